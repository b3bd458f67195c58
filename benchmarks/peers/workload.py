"""The work that every library is given, and the report that each gives back. Needs NumPy alone.

Softmax regression from 784 numbers to 10 classes, starting at zero: in each round all 10 clients take 5 steps of plain
gradient descent on batches of 20 distinct samples, and the server takes the mean (FedAvg).

    python NAME_rounds.py REPORT [--samples 600] [--rounds 100]

With 20 samples a client every batch is the client's whole data. There is then nothing left to draw, so each library
must end where `exact` ends: `difference` in the report says how far off it is.
"""

import argparse
import functools
import json
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

CLIENTS, FEATURES, CLASSES = 10, 784, 10
LOCAL_STEPS, BATCH, STEPSIZE = 5, 20, 0.01

Floats = npt.NDArray[np.floating]
Integers = npt.NDArray[np.int64]


@functools.cache
def client(number: int, samples: int) -> tuple[Floats, Integers]:
    """The data of one client: random inputs in [0, 1), labelled by a linear map that all clients share."""
    truth = np.random.default_rng(0).normal(size=(FEATURES, CLASSES))
    inputs = np.random.default_rng(1 + number).random((samples, FEATURES), dtype=np.float32)
    return inputs, ((inputs - 0.5) @ truth).argmax(1)


def clients(samples: int) -> list[tuple[Floats, Integers]]:
    """The data of all clients."""
    return [client(number, samples) for number in range(CLIENTS)]


def draw(generator: np.random.Generator, samples: int) -> Integers:
    """The rows of a client's local steps, one batch after another: `[LOCAL_STEPS * BATCH]`."""
    return np.concatenate([generator.permutation(samples)[:BATCH] for _ in range(LOCAL_STEPS)])


def probabilities(weight: Floats, bias: Floats, inputs: Floats) -> Floats:
    """The softmax of `inputs @ weight + bias`, `[samples, CLASSES]`."""
    scores = inputs @ weight + bias
    powers = np.exp(scores - scores.max(1, keepdims=True))
    return np.asarray(powers / powers.sum(1, keepdims=True))


def exact(rounds: int) -> tuple[Floats, Floats]:
    """Weight and bias after so many rounds with 20 samples a client, in float64."""
    weight, bias = np.zeros((FEATURES, CLASSES)), np.zeros(CLASSES)
    for _ in range(rounds):
        ends = []
        for inputs, targets in clients(BATCH):
            own, own_bias = weight.copy(), bias.copy()
            for _ in range(LOCAL_STEPS):
                slope = (probabilities(own, own_bias, inputs) - np.eye(CLASSES)[targets]) / BATCH
                own -= STEPSIZE * inputs.T @ slope
                own_bias -= STEPSIZE * slope.sum(0)
            ends.append((own, own_bias))
        weight, bias = np.mean([end[0] for end in ends], 0), np.mean([end[1] for end in ends], 0)
    return weight, bias


class Work:
    """What one call is asked, and the clock of its rounds."""

    def __init__(self) -> None:
        parser = argparse.ArgumentParser()
        parser.add_argument("report", type=Path)
        parser.add_argument("--samples", type=int, default=600)
        parser.add_argument("--rounds", type=int, default=100)
        asked, self.rest = parser.parse_known_args()
        self.report: Path = asked.report
        self.samples: int = asked.samples
        self.rounds: int = asked.rounds
        self.times: list[float] = []

    def round_ends(self) -> None:
        """To be called at the end of each round."""
        self.times.append(time.perf_counter())

    def finish(self, weight: npt.ArrayLike, bias: npt.ArrayLike) -> None:
        """Write the report: seconds of each round but the first, the final loss, the difference from `exact`.

        Args:
            weight: of the final model, `[FEATURES, CLASSES]`.
            bias: its bias, `[CLASSES]`.
        """
        weight, bias = np.asarray(weight, np.float64), np.asarray(bias, np.float64)
        if len(self.times) != self.rounds:
            raise SystemExit(f"{len(self.times)} rounds were run, not {self.rounds}")
        losses = [
            -np.log(probabilities(weight, bias, inputs)[np.arange(len(targets)), targets]).mean()
            for inputs, targets in clients(self.samples)
        ]
        found = {"seconds": np.diff(self.times).tolist(), "loss": float(np.mean(losses)), "difference": None}
        if self.samples == BATCH:
            right, right_bias = exact(self.rounds)
            off = max(np.abs(weight - right).max(), np.abs(bias - right_bias).max())
            found["difference"] = float(off / np.abs(right).max())
        self.report.write_text(json.dumps(found))
