"""Networks on several cores: milliseconds a round by workers, by ranks, by hand, and of independent processes.

python benchmarks/workers.py                LeNet, and ResNet-18 of width 16
python benchmarks/workers.py --write        the table goes into docs/benchmarks.md too

The bound is "processes, each a run": independent runs of one thread, one a core, the time of one divided by their
number. Ranks are processes that share the clients of one run, started by torchrun (docs/several-machines.md).
"""

import multiprocessing
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from page import Section, options
from torch import Tensor, nn

import fedsps
from fedsps.engine.workers import cores

BATCH, SAMPLES = 20, 100


@dataclass(frozen=True)
class Case:
    """A network and how much of it one round is."""

    make: Callable[[], nn.Module]
    shape: tuple[int, int, int]
    clients: int
    steps: int

    def data(self) -> list[tuple[Tensor, Tensor]]:
        """Random images, the same at every call."""
        random = torch.Generator().manual_seed(0)
        return [
            (torch.rand(SAMPLES, *self.shape, generator=random), torch.randint(10, (SAMPLES,), generator=random))
            for _ in range(self.clients)
        ]


def resnet() -> nn.Module:
    """Small enough for a benchmark."""
    return fedsps.ResNet18(width=16)


CASES = {"LeNet": Case(fedsps.LeNet, (1, 28, 28), 10, 5), "ResNet-18": Case(resnet, (3, 32, 32), 4, 2)}


def ours(name: str, workers: int, rounds: int) -> float:
    """Milliseconds a round."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    case = CASES[name]
    table = fedsps.train(
        case.make(), case.data(), rounds=rounds, local_steps=case.steps, batch_size=BATCH, evaluate_every=0,
        workers=workers,
    ).history  # fmt: skip
    return float(np.median(table["seconds"]) * 1e3)


def by_hand(name: str, threads: int, rounds: int) -> float:
    """A plain loop over clients with torch's own threads, and the same stepsize."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    case = CASES[name]
    model, data = case.make(), case.data()
    start = {name: value.clone() for name, value in model.state_dict().items()}
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        total = {name: torch.zeros_like(value, dtype=torch.float32) for name, value in start.items()}
        for inputs, targets in data:
            model.load_state_dict(start)
            for _ in range(case.steps):
                rows = torch.randperm(SAMPLES)[:BATCH]
                loss = F.cross_entropy(model(inputs[rows]), targets[rows])
                gradients = torch.autograd.grad(loss, list(model.parameters()))
                with torch.no_grad():
                    size = sum((gradient**2).sum() for gradient in gradients)
                    gamma = torch.minimum(2 * loss / size, torch.ones(()))
                    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                        parameter.sub_(gamma * gradient)
            for key, value in model.state_dict().items():
                total[key] += value / case.clients
        start = total
        seconds.append(time.perf_counter() - began)
    torch.set_num_threads(1)
    return float(np.median(seconds) * 1e3)


def independent(name: str, processes: int, rounds: int) -> float:
    """Milliseconds a round of so many processes of one thread each, per round of all of them together."""
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        return float(np.median(pool.starmap(ours, [(name, 1, rounds)] * processes)) / processes)


def ranks(name: str, processes: int, rounds: int) -> float:
    """Milliseconds a round of one run that torchrun shares between processes: this script, once for each."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    words = [*torchrun, __file__, "--rank-of", name, "--rounds", str(rounds)]
    return float(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rank-of", metavar="NAME", help="one of the processes that torchrun starts")
    asked = parser.parse_args()
    rounds: int = asked.rounds
    if asked.rank_of:
        found = ours(asked.rank_of, 1, rounds)
        if torch.distributed.get_rank() == 0:
            print(found)
        return
    most, section = cores(), Section("workers")
    for name, case in CASES.items():
        ways: dict[str, tuple[Callable[[str, int, int], float], int]] = {
            f"{most} processes, each a run": (independent, most),
            "fedsps, 1 worker": (ours, 1),
            f"fedsps, {most} workers": (ours, most),
            f"fedsps, {most} ranks": (ranks, most),
            "by hand, 1 thread": (by_hand, 1),
            f"by hand, {most} threads": (by_hand, most),
        }
        times: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(asked.repeats):
            for way, (measured, many) in ways.items():
                times[way].append(measured(name, many, rounds))
        bound, *_ = times.values()
        section.line(f"{name}, {case.clients} clients x {case.steps} steps x batch {BATCH}")
        section.line(f"{'':28}{'ms a round':>12}{'range':>18}{'of the bound':>16}")
        for way, values in times.items():
            share = np.median([one / other for one, other in zip(bound, values, strict=True)])
            spread = f"{min(values):.1f} - {max(values):.1f}"
            section.line(f"{way:28}{np.median(values):12.1f}{spread:>18}{share:15.0%}")
    if asked.write:
        section.write()


if __name__ == "__main__":
    main()
