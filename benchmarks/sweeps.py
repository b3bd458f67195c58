"""A search in sweeps against the same runs one by one: seconds, and their ratio, in one run and interleaved.

python benchmarks/sweeps.py                 120 settings of FedAMS, logistic regression of MNIST's shape, 100 rounds
python benchmarks/sweeps.py --settings 24 --repeats 1
python benchmarks/sweeps.py --write         the table goes into docs/benchmarks.md too
"""

import itertools
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from page import Section, options

import fedsps
from fedsps.core.plan import Plan
from fedsps.data.clients import ClientData
from fedsps.engine.evaluate import evaluate_clients
from fedsps.engine.session import local_session
from fedsps.engine.setup import Setup
from fedsps.engine.sweep import Sweep
from fedsps.model.logistic import network_of
from fedsps.model.network import Network
from fedsps.runs.space import PAPER_GRID

SEEDS = 5


def main() -> None:
    parser = options(__doc__)
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
    section = Section("sweeps")
    section.line(evaluation(network, data, asked.repeats))
    section.line(f"one thread, {len(algorithms)} settings, {asked.rounds} rounds")
    section.line(f"{'evaluated':22} {'sweep s':>9} {'singles s':>10} {'ratio':>7}")
    for words, every, first in (
        ("every round", 1, 1),
        ("every tenth round", 10, 1),
        ("where the search needs", 10, int(0.9 * asked.rounds) + 1),
    ):
        plan = Plan(rounds=asked.rounds, evaluate_every=every, evaluate_from=first)
        setup = Setup(plan, network, data, algorithms[0])
        runs: list[tuple[int, fedsps.Algorithm]] = [(0, algorithm) for algorithm in algorithms]
        section.line(f"{words:22} {compared([setup], runs, asked.singles, asked.repeats)}")
    section.line(f"one thread, FedSPS with {SEEDS} seeds, {asked.rounds} rounds")
    for words, every in (("every round", 1), ("every tenth round", 10)):
        setups = []
        for seed in range(SEEDS):
            rows = np.random.default_rng(seed).permutation(len(data.targets))
            split = ClientData(data.inputs[rows], data.targets[rows], data.sizes, rows)
            plan = Plan(rounds=asked.rounds, evaluate_every=every, seed=seed)
            setups.append(Setup(plan, network, split, fedsps.FedSPS()))
        runs = [(seed, fedsps.FedSPS()) for seed in range(SEEDS)]
        section.line(f"{words:22} {compared(setups, runs, SEEDS, asked.repeats)}")
    if asked.write:
        section.write()


def compared(setups: Sequence[Setup], runs: Sequence[tuple[int, fedsps.Algorithm]], singles: int, repeats: int) -> str:
    """Seconds of the runs in a sweep, and one by one: so many of them are timed, others each time."""
    together, alone = [], []
    for repeat in range(repeats):
        began = time.perf_counter()
        Sweep(setups, [algorithm for _, algorithm in runs], [seed for seed, _ in runs]).run()
        together.append(time.perf_counter() - began)
        began = time.perf_counter()
        for number in range(singles):
            seed, algorithm = runs[(repeat * singles + number) % len(runs)]
            local_session(replace(setups[seed], algorithm=algorithm)).run()
        alone.append((time.perf_counter() - began) / singles * len(runs))
    ratio = np.array(alone) / np.array(together)
    middle = f"{np.median(together):9.1f} {np.median(alone):10.1f} {np.median(ratio):6.1f}x"
    return f"{middle}   ({ratio.min():.1f} to {ratio.max():.1f})"


def evaluation(network: Network, data: ClientData, repeats: int) -> str:
    """One evaluation of a model on all data, against the bare product of the data with its weights."""
    weight, times = torch.rand(784, 10), np.zeros((2, 5 * repeats))
    for number in range(5 * repeats):
        began = time.perf_counter()
        data.inputs @ weight
        middle = time.perf_counter()
        evaluate_clients(network, network.x, {}, data, accuracy=False)
        times[:, number] = middle - began, time.perf_counter() - middle
    product, whole = np.median(times, 1) * 1e3
    ratio = np.median(times[1] / times[0])
    return f"one evaluation of 60 000 samples {whole:.1f} ms, the bare product {product:.1f} ms: {ratio:.2f} times"


if __name__ == "__main__":
    main()
