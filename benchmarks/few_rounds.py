"""Small networks on digits after 20, 50 and 100 rounds: what untuned methods have reached by then, beside FedAvg tuned.

    python benchmarks/few_rounds.py [ALGORITHM ...] [--seeds 3] [--only cnn] [--figures 3]

Ten clients that all take part, five local steps, batches of 20. The pages of the reproduction ask where 500 rounds end;
whoever has fewer wants to know who starts well. FedAvg has the best of five stepsizes for each number of rounds, by the
training loss that is shown.
"""

import argparse
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

import fedsps
from fedsps.core.streams import torch_seed
from fedsps.data import load, partition

ROUNDS = (20, 50, 100)
STEPSIZES = (0.01, 0.03, 0.1, 0.3, 1.0)
UNTUNED = ("fedpolyak", "fedsps")


class Attention(nn.Module):
    """One head over the eight rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Linear(8, 32)
        self.places = nn.Parameter(0.1 * torch.randn(8, 32))
        self.norm = nn.LayerNorm(32)
        self.heads = nn.Linear(32, 96)
        self.classes = nn.Linear(32, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Logits `[B, 10]` of images `[B, 64]`."""
        rows = self.rows(images.unflatten(-1, (8, 8))) + self.places
        query, key, value = self.heads(self.norm(rows)).chunk(3, -1)
        weights = (query @ key.transpose(-1, -2) / 32**0.5).softmax(-1)
        logits: Tensor = self.classes((rows + weights @ value).mean(-2))
        return logits


def perceptron(norm: bool = False, hidden: int = 2, bend: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Hidden layers of 64 numbers."""
    layers: list[nn.Module] = []
    for _ in range(hidden):
        layers += [nn.Linear(64, 64), *([nn.BatchNorm1d(64)] if norm else []), bend()]
    return nn.Sequential(*layers, nn.Linear(64, 10))


def convolutions(norm: bool = False) -> nn.Sequential:
    """Two convolutions of 16 and 32 channels, each with pooling."""
    layers: list[nn.Module] = [nn.Unflatten(1, (1, 8, 8))]
    for before, after in ((1, 16), (16, 32)):
        layers += [nn.Conv2d(before, after, 3, padding=1), *([nn.BatchNorm2d(after)] if norm else [])]
        layers += [nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128, 10))


PROBLEMS: dict[str, tuple[str, Callable[[], nn.Module]]] = {
    "perceptron": ("iid", perceptron),
    "perceptron, by class": ("two-class", perceptron),
    "perceptron, batch norm": ("iid", lambda: perceptron(norm=True)),
    "perceptron, 5 layers, tanh": ("iid", lambda: perceptron(hidden=5, bend=nn.Tanh)),
    "cnn": ("iid", convolutions),
    "cnn, by class": ("two-class", convolutions),
    "cnn, batch norm": ("iid", lambda: convolutions(norm=True)),
    "cnn, batch norm, by class": ("two-class", lambda: convolutions(norm=True)),
    "attention": ("iid", Attention),
}


def losses(name: str, algorithm: str, seed: int) -> list[float]:
    """The training loss after each of `ROUNDS`; infinite where the run diverged before."""
    kind, make = PROBLEMS[name]
    digits = load("digits")
    rows = partition(kind, digits.targets, clients=10, seed=seed).rows
    clients = [(torch.from_numpy(digits.inputs[own]).flatten(1), torch.from_numpy(digits.targets[own])) for own in rows]
    with torch_seed(seed, "model"):
        module = make()
    history = fedsps.train(
        module, clients, algorithm=algorithm, rounds=ROUNDS[-1], batch_size=20, seed=seed, evaluate_every=10
    ).history.set_index("round")["train_loss"]
    return [float(history.get(number, np.inf)) for number in ROUNDS]


def main() -> None:
    """Print a row for each network: the mean loss over the seeds, of every method after every number of rounds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("algorithms", nargs="*", default=UNTUNED)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="networks with this in their name")
    parser.add_argument("--figures", type=int, default=2, help="significant ones")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    heads = [f"{number} rounds: {algorithm}" for number in ROUNDS for algorithm in (*asked.algorithms, "best fedavg")]
    print(f"| network | {' | '.join(heads)} |\n| --- |{' ---: |' * len(heads)}", flush=True)
    for name in PROBLEMS:
        if asked.only not in name:
            continue
        words = [*asked.algorithms, *(f"fedavg:client_stepsize={stepsize}" for stepsize in STEPSIZES)]
        found = np.array([[losses(name, word, seed) for seed in range(asked.seeds)] for word in words]).mean(1)
        own, tuned = found[: len(asked.algorithms)], found[len(asked.algorithms) :].min(0, keepdims=True)
        cells = [f"{value:.{asked.figures}g}" for value in np.concatenate([own, tuned]).T.flatten()]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
