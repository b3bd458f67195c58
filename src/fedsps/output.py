"""Output rules: which point is evaluated and returned. Training always goes on from the server's x."""

from dataclasses import dataclass

from torch import Tensor

from fedsps.checks import count
from fedsps.shapes import Tensors


@dataclass(frozen=True)
class OutputRule:
    """What every rule is."""

    def init(self, x: Tensor) -> Tensors:
        """The rule's state before the first round."""
        return {}

    def __call__(self, state: Tensors, x: Tensor, round: int) -> tuple[Tensor, Tensors]:
        """Return the output after round 1, 2, ..., given the server's x after it, and the new state."""
        raise NotImplementedError


@dataclass(frozen=True)
class LastIterate(OutputRule):
    """The server's x itself."""

    def __call__(self, state: Tensors, x: Tensor, round: int) -> tuple[Tensor, Tensors]:
        """The last iterate."""
        return x, state


@dataclass(frozen=True)
class MeanOfLastTwo(OutputRule):
    """`x_1` after round 1, `(x_r + x_{r-1}) / 2` after round r >= 2 (Jhunjhunwala et al. 2023)."""

    def init(self, x: Tensor) -> Tensors:
        """The iterate before the last."""
        return {"previous": x}

    def __call__(self, state: Tensors, x: Tensor, round: int) -> tuple[Tensor, Tensors]:
        """The mean of the last two iterates."""
        return (x if round == 1 else (x + state["previous"]) / 2), {"previous": x}


@dataclass(frozen=True)
class PolynomialAverage(OutputRule):
    """Polynomial-decay averaging (Shamir and Zhang 2013).

    xhat_r = (1 - w) xhat_{r-1} + w x_r,    w = (power + 1) / (r + power)
    """

    power: int = 8

    def __post_init__(self) -> None:
        count("power", self.power, least=0)

    def init(self, x: Tensor) -> Tensors:
        """The average so far; the first weight is 1."""
        return {"average": x}

    def __call__(self, state: Tensors, x: Tensor, round: int) -> tuple[Tensor, Tensors]:
        """The running average."""
        weight = (self.power + 1) / (round + self.power)
        average = (1 - weight) * state["average"] + weight * x
        return average, {"average": average}
