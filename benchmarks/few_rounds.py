"""Small problems after 20, 50 and 100 rounds: what untuned methods have reached by then, beside FedAvg tuned.

    python benchmarks/few_rounds.py [ALGORITHM ...] [--seeds 3] [--only cnn] [--figures 3]

Networks are trained on digits, by ten clients that all take part, and so are least squares and a network on the numbers
of scikit-learn's diabetes (standardised); logistic regression by ten of a hundred clients, and on a made-up table of
three hospitals. Five local steps, batches of 20. The pages of the reproduction ask where 500
rounds end; whoever has fewer wants to know who starts well. FedAvg has the best of five stepsizes, of seven for
logistic regression, for each number of rounds, by the training loss that is shown. `FEDSPS_DATA` names the folder of
the data sets.
"""

import argparse
import runpy
import tempfile
from collections.abc import Callable, Sequence
from contextlib import chdir, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.datasets import load_diabetes
from torch import Tensor, nn

import fedsps
from fedsps.core.streams import torch_seed
from fedsps.data import load, partition

ROUNDS = (20, 50, 100)
STEPSIZES = (0.01, 0.03, 0.1, 0.3, 1.0)
LONGER = (3.0, 10.0)  # logistic regression bears them
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


@dataclass(frozen=True)
class Own:
    """A problem with a module of its own: how the samples are dealt, who makes it, of what, and the local steps."""

    partition: str
    make: Callable[[], nn.Module]
    numbers: bool = False
    local_steps: int = 5


OWN = {
    "perceptron": Own("iid", perceptron),
    "perceptron, by class": Own("two-class", perceptron),
    "perceptron, 1 local step": Own("iid", perceptron, local_steps=1),
    "perceptron, batch norm": Own("iid", lambda: perceptron(norm=True)),
    "perceptron, 5 layers, tanh": Own("iid", lambda: perceptron(hidden=5, bend=nn.Tanh)),
    "cnn": Own("iid", convolutions),
    "cnn, by class": Own("two-class", convolutions),
    "cnn, batch norm": Own("iid", lambda: convolutions(norm=True)),
    "cnn, batch norm, by class": Own("two-class", lambda: convolutions(norm=True)),
    "attention": Own("iid", Attention),
    "least squares": Own("iid", lambda: nn.Linear(10, 1), numbers=True),
    "numbers, perceptron": Own(
        "iid", lambda: nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 1)), numbers=True
    ),
}
HOSPITALS = Path(__file__).parents[1] / "examples" / "hospitals" / "patients.py"
SAMPLED = {"clients": 100, "cohort": 10}
LOGISTIC: dict[str, dict[str, Any]] = {
    "logistic, hospitals": {"data": "patients.csv", "client_column": "hospital", "target_column": "ill"},
    "logistic, a9a": {"data": "a9a", "partition": "iid", **SAMPLED},
    "logistic, phishing": {"data": "phishing", "partition": "iid", **SAMPLED},
    "logistic, w8a": {"data": "w8a", "partition": "iid", **SAMPLED},
    "logistic, ijcnn1, by label": {"data": "ijcnn1", "partition": "shards", "shards_per_client": 1, **SAMPLED},
    "logistic, mnist, by class": {"data": "mnist", "partition": "two-class", **SAMPLED},
    "logistic, mnist, a fifth flipped": {"data": "mnist", "partition": "iid", "flipped": 0.2, **SAMPLED},
}


def shown(history: pd.DataFrame) -> list[float]:
    """The training loss after each of `ROUNDS`; infinite where the run diverged before."""
    found = history.set_index("round")["train_loss"]
    return [float(found.get(number, np.inf)) for number in ROUNDS]


def samples(numbers: bool) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets: images of digits, or standardised rows with one standardised number each."""
    if not numbers:
        digits = load("digits")
        return digits.inputs.reshape(len(digits.inputs), -1), digits.targets
    rows, targets = load_diabetes(return_X_y=True, scaled=False)
    every = np.column_stack([rows, targets])
    every = ((every - every.mean(0)) / every.std(0)).astype(np.float32)
    return every[:, :-1], every[:, -1]


def of_own(name: str, algorithm: str, seed: int) -> list[float]:
    """The losses of a problem with a module of its own."""
    problem = OWN[name]
    inputs, targets = samples(problem.numbers)
    rows = partition(problem.partition, targets, clients=10, seed=seed).rows
    clients = [(torch.from_numpy(inputs[own]), torch.from_numpy(targets[own])) for own in rows]
    with torch_seed(seed, "model"):
        module = problem.make()
    result = fedsps.train(
        module,
        clients,
        algorithm=algorithm,
        loss="squared" if problem.numbers else "cross-entropy",
        rounds=ROUNDS[-1],
        local_steps=problem.local_steps,
        batch_size=20,
        seed=seed,
        evaluate_every=10,
    )
    return shown(result.history)


def of_logistic(name: str, algorithms: Sequence[str], seeds: int) -> list[list[list[float]]]:
    """The losses of logistic regression, by algorithm and seed."""
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        with redirect_stdout(None):
            runpy.run_path(str(HOSPITALS))
        spec = fedsps.Spec.of(rounds=ROUNDS[-1], evaluate_every=10, **LOGISTIC[name])
        found = fedsps.compare(algorithms, spec=spec, seeds=seeds)
    return [[shown(run.history) for run in runs] for runs in found.results.values()]


def main() -> None:
    """Print a row for each problem: the mean loss over the seeds, of every method after every number of rounds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("algorithms", nargs="*", default=UNTUNED)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="problems with this in their name")
    parser.add_argument("--figures", type=int, default=2, help="significant ones")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    heads = [f"{number} rounds: {algorithm}" for number in ROUNDS for algorithm in (*asked.algorithms, "best fedavg")]
    print(f"| problem | {' | '.join(heads)} |\n| --- |{' ---: |' * len(heads)}", flush=True)
    for name in (*OWN, *LOGISTIC):
        if asked.only not in name:
            continue
        stepsizes = STEPSIZES if name in OWN else STEPSIZES + LONGER
        words = [*asked.algorithms, *(f"fedavg:client_stepsize={stepsize}" for stepsize in stepsizes)]
        if name in OWN:
            every = [[of_own(name, word, seed) for seed in range(asked.seeds)] for word in words]
        else:
            every = of_logistic(name, words, asked.seeds)
        found = np.array(every).mean(1)
        own, tuned = found[: len(asked.algorithms)], found[len(asked.algorithms) :].min(0, keepdims=True)
        cells = [f"{value:.{asked.figures}g}" for value in np.concatenate([own, tuned]).T.flatten()]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
