"""Milliseconds a round: the stacked engine, the loop engine, and a plain hand-written PyTorch loop, in one run.

    python benchmarks/engines.py [--threads 1] [--repeats 7] [--rounds 40] [--write]

MNIST-shaped softmax regression (random data), 10 clients x 5 local steps x batch 20, FedSPS, no evaluation. The
engines take turns, `repeats` times; the table shows the median and the range. "stacked, any module" is the stacked
engine on a plain `nn.Linear` through autograd, as for a user's own network. "fused by hand" is the floor: nothing but
the products of all clients at once, updates in place, and no record of what happened.
"""

import copy
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from page import Section, options
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


def fused(inputs: Tensor, targets: Tensor, rounds: int) -> tuple[Tensor, Tensor]:
    """FedSPS on softmax regression in batched products, with nothing around them; weights and biases, once a client."""
    weight, bias = torch.zeros(CLIENTS, CLASSES, FEATURES), torch.zeros(CLIENTS, CLASSES)
    generator = torch.Generator().manual_seed(0)
    for _ in range(rounds):
        rows = torch.randint(SAMPLES, (LOCAL_STEPS, CLIENTS, BATCH), generator=generator)
        rows += torch.arange(CLIENTS)[:, None] * SAMPLES
        for own in rows:
            features, truth = inputs[own], targets[own].unsqueeze(-1)
            slope = torch.baddbmm(bias.unsqueeze(1), features, weight.transpose(1, 2)).log_softmax(-1)
            loss = -slope.gather(-1, truth).squeeze(-1).mean(1)
            slope.exp_().scatter_add_(-1, truth, torch.full(truth.shape, -1.0)).div_(BATCH)
            ascent, rise = torch.bmm(slope.transpose(1, 2), features), slope.sum(1)
            size = ascent.flatten(1).square().sum(1) + rise.square().sum(1)
            stepsize = (loss / (SCALE * size)).clamp_(max=CAP)
            weight.sub_(ascent.mul_(stepsize[:, None, None]))
            bias.sub_(rise.mul_(stepsize[:, None]))
        weight[:], bias[:] = weight.mean(0), bias.mean(0)
    return weight, bias


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=40)
    asked = parser.parse_args()
    rounds: int = asked.rounds
    torch.set_num_threads(asked.threads)
    torch.manual_seed(0)
    data = [(torch.rand(SAMPLES, FEATURES), torch.randint(CLASSES, (SAMPLES,))) for _ in range(CLIENTS)]

    def trained(model: nn.Module, engine: Engine, algorithm: fedsps.Algorithm) -> Callable[[], float]:
        def run() -> float:
            result = fedsps.train(
                model, data, algorithm=algorithm, rounds=rounds,
                local_steps=LOCAL_STEPS, batch_size=BATCH, evaluate_every=0, engine=engine,
            )  # fmt: skip
            return statistics.fmean(result.history["seconds"].tolist()[2:])

        return run

    def timed(function: Callable[[int], object]) -> Callable[[], float]:
        def run() -> float:
            function(2)
            began = time.perf_counter()
            function(rounds)
            return (time.perf_counter() - began) / rounds

        return run

    together = (torch.cat([own for own, _ in data]), torch.cat([own for _, own in data]))
    sps, logistic, module = fedsps.FedSPS(scale=SCALE, cap=CAP), LogisticRegression(FEATURES, CLASSES), nn.Linear
    contestants = {
        "fused by hand": timed(lambda rounds: fused(*together, rounds)),
        "stacked, FedAvg": trained(logistic, "stacked", fedsps.FedAvg(client_stepsize=0.1)),
        "stacked": trained(logistic, "stacked", sps),
        "stacked, any module": trained(module(FEATURES, CLASSES), "stacked", sps),
        "loop": trained(module(FEATURES, CLASSES), "loop", sps),
        "hand-written loop": timed(lambda rounds: by_hand(nn.Linear(FEATURES, CLASSES), data, rounds)),
    }
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(asked.repeats):
        for name, run in contestants.items():
            times[name].append(1000 * run())
    section = Section("engines")
    section.line(f"{asked.threads} thread(s), FedSPS, {CLIENTS} clients x {LOCAL_STEPS} steps x batch {BATCH}")
    section.line(f"{'engine':22}{'ms a round':>12}{'range':>16}{'times faster than by hand':>27}{'of the floor':>14}")

    def ratio(above: str, below: str) -> float:
        return statistics.median(one / other for one, other in zip(times[above], times[below], strict=True))

    for name, found in times.items():
        middle, spread = f"{statistics.median(found):12.2f}", f"{min(found):.1f} - {max(found):.1f}"
        faster, slower = ratio("hand-written loop", name), ratio(name, "fused by hand")
        section.line(f"{name:22}{middle}{spread:>16}{faster:26.1f}x{slower:13.2f}x")
    if asked.write:
        section.write()


if __name__ == "__main__":
    main()
