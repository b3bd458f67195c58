"""Milliseconds a round: the stacked engine, the loop engine, and a plain hand-written PyTorch loop, in one run.

    python benchmarks/engines.py [--threads 1] [--repeats 7] [--rounds 40]

MNIST-shaped softmax regression (random data), 10 clients x 5 local steps x batch 20, FedSPS, no evaluation. The
engines take turns, `repeats` times; the table shows the median and the range. "stacked, any module" is the stacked
engine on a plain `nn.Linear` through autograd, as for a user's own network.
"""

import argparse
import copy
import platform
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedsps
from fedsps.engine.trial import Engine
from fedsps.model.models import LogisticRegression

CLIENTS, SAMPLES, FEATURES, CLASSES = 10, 6000, 784, 10
LOCAL_STEPS, BATCH = 5, 20
SCALE, CAP = 0.5, 1.0

Data = list[tuple[Tensor, Tensor]]


def by_hand(model: nn.Module, data: Data, rounds: int) -> nn.Module:
    """FedSPS as one would write it first: a copy of the module for each client, backward, in-place updates."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(rounds):
        copies = [copy.deepcopy(model) for _ in data]
        for local, (inputs, targets) in zip(copies, data, strict=True):
            for _ in range(LOCAL_STEPS):
                rows = torch.randint(len(targets), (BATCH,), generator=generator)
                local.zero_grad()
                loss = F.cross_entropy(local(inputs[rows]), targets[rows])
                loss.backward()
                gradients = [parameter.grad for parameter in local.parameters() if parameter.grad is not None]
                size = sum(float((gradient**2).sum()) for gradient in gradients)
                stepsize = min(loss.item() / (SCALE * size), CAP)
                with torch.no_grad():
                    for parameter, gradient in zip(local.parameters(), gradients, strict=True):
                        parameter.sub_(stepsize * gradient)
        with torch.no_grad():
            for parameter, *own in zip(model.parameters(), *(local.parameters() for local in copies), strict=True):
                parameter.copy_(torch.stack([value.detach() for value in own]).mean(0))
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=40)
    asked = parser.parse_args()
    rounds: int = asked.rounds
    torch.set_num_threads(asked.threads)
    torch.manual_seed(0)
    data = [(torch.rand(SAMPLES, FEATURES), torch.randint(CLASSES, (SAMPLES,))) for _ in range(CLIENTS)]

    def trained(model: nn.Module, engine: Engine) -> Callable[[], float]:
        def run() -> float:
            result = fedsps.train(
                model, data, algorithm=fedsps.FedSPS(scale=SCALE, cap=CAP), rounds=rounds,
                local_steps=LOCAL_STEPS, batch_size=BATCH, evaluate_every=0, engine=engine,
            )  # fmt: skip
            return statistics.fmean(result.history["seconds"].tolist()[2:])

        return run

    def handmade() -> float:
        model = nn.Linear(FEATURES, CLASSES)
        by_hand(model, data, 2)
        began = time.perf_counter()
        by_hand(model, data, rounds)
        return (time.perf_counter() - began) / rounds

    contestants = {
        "stacked": trained(LogisticRegression(FEATURES, CLASSES), "stacked"),
        "stacked, any module": trained(nn.Linear(FEATURES, CLASSES), "stacked"),
        "loop": trained(nn.Linear(FEATURES, CLASSES), "loop"),
        "hand-written loop": handmade,
    }
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(asked.repeats):
        for name, run in contestants.items():
            times[name].append(1000 * run())
    print(f"torch {torch.__version__}, {asked.threads} thread(s), {platform.processor() or platform.machine()}")
    print(f"{'engine':22}{'ms a round':>12}{'range':>18}{'against by hand':>18}")
    for name, found in times.items():
        ratio = statistics.median(hand / own for hand, own in zip(times["hand-written loop"], found, strict=True))
        spread = f"{min(found):.1f} - {max(found):.1f}"
        print(f"{name:22}{statistics.median(found):12.2f}{spread:>18}{ratio:17.1f}x")


if __name__ == "__main__":
    main()
