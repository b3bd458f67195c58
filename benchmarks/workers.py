"""A network on several cores: milliseconds a round for each number of workers, next to independent processes.

python benchmarks/workers.py                LeNet, 10 clients x 5 steps x batch 20
"""

import argparse
import multiprocessing
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F

import fedsps
from fedsps.engine.workers import cores

CLIENTS, STEPS, BATCH, SAMPLES = 10, 5, 20, 100


def clients() -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    return [(torch.rand(SAMPLES, 1, 28, 28), torch.randint(10, (SAMPLES,))) for _ in range(CLIENTS)]


def ours(workers: int, rounds: int) -> float:
    """Milliseconds a round."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    table = fedsps.train(
        fedsps.LeNet(), clients(), rounds=rounds, local_steps=STEPS, batch_size=BATCH, evaluate_every=0, workers=workers
    ).history
    return float(np.median(table["seconds"]) * 1e3)


def by_hand(threads: int, rounds: int) -> float:
    """A plain loop over clients with torch's own threads, and the same stepsize."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model, data = fedsps.LeNet(), clients()
    start = {name: value.clone() for name, value in model.state_dict().items()}
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        total = {name: torch.zeros_like(value) for name, value in start.items()}
        for inputs, targets in data:
            model.load_state_dict(start)
            for _ in range(STEPS):
                rows = torch.randperm(SAMPLES)[:BATCH]
                loss = F.cross_entropy(model(inputs[rows]), targets[rows])
                gradients = torch.autograd.grad(loss, list(model.parameters()))
                with torch.no_grad():
                    size = sum((gradient**2).sum() for gradient in gradients)
                    gamma = torch.minimum(2 * loss / size, torch.ones(()))
                    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                        parameter.sub_(gamma * gradient)
            for name, value in model.state_dict().items():
                total[name] += value / CLIENTS
        start = total
        seconds.append(time.perf_counter() - began)
    torch.set_num_threads(1)
    return float(np.median(seconds) * 1e3)


def independent(processes: int, rounds: int) -> float:
    """Milliseconds a round of so many processes of one thread each, per round of all of them together."""
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        return float(np.median(pool.starmap(ours, [(1, rounds)] * processes)) / processes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    most = cores()
    cases: dict[str, Callable[[], float]] = {
        "fedsps, 1 worker": lambda: ours(1, asked.rounds),
        f"fedsps, {most} workers": lambda: ours(most, asked.rounds),
        "by hand, 1 thread": lambda: by_hand(1, asked.rounds),
        f"by hand, {most} threads": lambda: by_hand(most, asked.rounds),
        f"{most} processes, each a run": lambda: independent(most, asked.rounds),
    }
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(asked.repeats):
        for name, case in cases.items():
            times[name].append(case())
    print(f"torch {torch.__version__}, {most} cores, LeNet, {CLIENTS} clients x {STEPS} steps x batch {BATCH}")
    for name, values in times.items():
        print(f"{name:28} {np.median(values):8.1f} ms a round   ({min(values):.1f} to {max(values):.1f})")


if __name__ == "__main__":
    main()
