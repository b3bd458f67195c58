"""What the noise of differential privacy does to algorithms: test accuracy on digits, 100 clients, 40 rounds.

    python benchmarks/privacy.py [ALGORITHM ...] [--noise 0.5 8] [--seeds 1] [--rounds 40]

The model and the data of examples/flower-digits, i.i.d., all clients in each round, clip-norm 1. Messages are clipped
and their means get noise by the code that a federation uses; they do not travel. The noise of a mean goes by the
multiplier over the number of clients: 0.5 with 100 clients is 8 with 1600. Noise 0 is neither clipped.
"""

import argparse
from dataclasses import replace

import numpy as np
import torch
from torch import nn

import fedsps
from fedsps.core.contract import Exchange
from fedsps.core.plan import Plan
from fedsps.core.streams import Indices, torch_seed
from fedsps.data import load, partition
from fedsps.data.clients import ClientData
from fedsps.engine.answer import answer, combine
from fedsps.engine.round import Collected, play_round
from fedsps.engine.setup import Setup, State, start
from fedsps.flower.privacy import Privacy
from fedsps.model.logistic import network_of

CLIENTS, CLIP_NORM = 100, 1.0


def accuracy(name: str, noise: float, seed: int, rounds: int) -> float:
    """Of the model after so many rounds; without clipping where there is no noise."""
    digits, algorithm = load("digits"), fedsps.build(name)
    algorithm = algorithm.privately if noise else algorithm
    rows = partition("iid", digits.targets, clients=CLIENTS, seed=0).rows
    order = np.concatenate(rows)
    inputs, targets = torch.from_numpy(digits.inputs[order]), torch.from_numpy(digits.targets[order])
    data = ClientData(inputs, targets, np.array([len(one) for one in rows]))
    with torch_seed(seed, "model"):
        module = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    network = network_of(module, nn.functional.cross_entropy)
    setup = Setup(plan=Plan(rounds=rounds, seed=seed, workers=1), network=network, data=data, algorithm=algorithm)
    private = Privacy(CLIP_NORM, noise, ranges=algorithm.ranges(CLIP_NORM, private=True)) if noise else None

    def collect(setup: Setup, state: State, exchange: Exchange, audience: Indices) -> Collected:
        """One client after another, as in a federation."""
        received = exchange.broadcast(state.server)
        done = [answer(setup, exchange, state.round, state.x, {}, received, one, {}) for one in audience.tolist()]
        if private is None:
            return combine(setup, state, exchange, audience, done)
        sent = [replace(one, message=private.clip(one.message)) for one in done]
        return combine(setup, state, exchange, audience, sent, private.mean)

    state = start(setup)
    for _ in range(rounds):
        state, _ = play_round(setup, state, collect)
    found = network.module(state.result, {})(torch.from_numpy(digits.test_inputs)).argmax(1)
    return float((found == torch.from_numpy(digits.test_targets)).double().mean())


def main() -> None:
    """Print a line for each algorithm and noise, with the accuracy under each seed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("algorithms", nargs="*", default=["fedsps", "sps+fedexp", "fedpolyak"])
    parser.add_argument("--noise", type=float, nargs="+", default=[0.5, 8.0])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=40)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for name in asked.algorithms:
        for noise in (0.0, *asked.noise):
            found = [accuracy(name, noise, seed, asked.rounds) for seed in range(asked.seeds)]
            print(f"{name:28} noise {noise:4g}   accuracy {' '.join(f'{one:.3f}' for one in found)}", flush=True)


if __name__ == "__main__":
    main()
