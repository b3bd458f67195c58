"""A search in sweeps against the same runs one by one: seconds, and their ratio, in one run and interleaved.

python benchmarks/sweeps.py                 120 settings of FedAMS, logistic regression of MNIST's shape, 100 rounds
python benchmarks/sweeps.py --settings 24 --repeats 1
"""

import argparse
import itertools
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch

import fedsps
from fedsps.core.plan import Plan
from fedsps.data.clients import ClientData
from fedsps.engine.session import local_session
from fedsps.engine.setup import Setup
from fedsps.engine.sweep import Sweep
from fedsps.model.logistic import network_of
from fedsps.runs.tune import PAPER_GRID


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--settings", type=int, default=120)
    parser.add_argument("--singles", type=int, default=12, help="single runs that are timed; the rest is extrapolated")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    grid: list[dict[str, Any]] = [
        dict(zip(PAPER_GRID, point, strict=True)) for point in itertools.product(*PAPER_GRID.values())
    ]
    algorithms = [fedsps.FedAMS(**point) for point in grid][: asked.settings]
    network = network_of(fedsps.LogisticRegression(784, 10))
    data = ClientData(torch.rand(60_000, 784), torch.randint(10, (60_000,)), np.full(10, 6000))
    print(f"torch {torch.__version__}, one thread, {len(algorithms)} settings, {asked.rounds} rounds")
    print(f"{'evaluated':22} {'sweep s':>9} {'singles s':>10} {'ratio':>7}")
    for words, every, first in (
        ("every round", 1, 1),
        ("every tenth round", 10, 1),
        ("where the search needs", 10, int(0.9 * asked.rounds) + 1),
    ):
        plan = Plan(rounds=asked.rounds, evaluate_every=every, evaluate_from=first)
        setup = Setup(plan, network, data, algorithms[0])
        together, alone = [], []
        for repeat in range(asked.repeats):
            began = time.perf_counter()
            Sweep(setup, algorithms).run()
            together.append(time.perf_counter() - began)
            began = time.perf_counter()
            for number in range(asked.singles):
                algorithm = algorithms[(repeat * asked.singles + number) % len(algorithms)]
                local_session(replace(setup, algorithm=algorithm)).run()
            alone.append((time.perf_counter() - began) / asked.singles * len(algorithms))
        ratio = np.array(alone) / np.array(together)
        print(
            f"{words:22} {np.median(together):9.1f} {np.median(alone):10.1f} {np.median(ratio):6.1f}x"
            f"   ({ratio.min():.1f} to {ratio.max():.1f})"
        )


if __name__ == "__main__":
    main()
