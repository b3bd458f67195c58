"""Output rules: means of the server's iterates, in place of the last one."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedsps.checks import count
from fedsps.core.kinds import OutputRule
from fedsps.core.vectors import Tensors

__all__ = ["MeanOfLastTwo", "PolynomialAverage"]


@dataclass(frozen=True)
class MeanOfLastTwo(OutputRule):
    """`xhat_1 = x_1`, and `xhat_r = (x_r + x_{r-1}) / 2` after round r >= 2: FedExP's output.

    References:
        Jhunjhunwala, Wang, Joshi: FedExP: Speeding Up Federated Averaging via Extrapolation, ICLR 2023.
    """

    in_sweep: ClassVar[bool] = True
    word: ClassVar[str] = "lasttwo"

    def init(self, x: Tensor) -> Tensors:
        """The iterate before the last."""
        return {"previous": x}

    def __call__(self, state: Tensors, x: Tensor, round: int) -> tuple[Tensor, Tensors]:
        """Return the mean of the last two iterates, and remember this one."""
        return (x if round == 1 else (x + state["previous"]) / 2), {"previous": x}


@dataclass(frozen=True)
class PolynomialAverage(OutputRule):
    """Polynomial-decay averaging: a running mean that forgets its beginning.

        xhat_r = (1 - w) xhat_{r-1} + w x_r,    w = (power + 1) / (r + power)

    Args:
        power: how fast it forgets; 0 is the plain mean of all iterates.

    References:
        Shamir, Zhang: Stochastic Gradient Descent for Non-smooth Optimization, ICML 2013.

    >>> import torch
    >>> rule, x = PolynomialAverage(power=0), torch.zeros(1)
    >>> state = rule.init(x)
    >>> for round, value in enumerate([1.0, 2.0, 6.0], start=1):
    ...     output, state = rule(state, torch.tensor([value]), round)
    >>> output
    tensor([3.])
    """

    in_sweep: ClassVar[bool] = True
    word: ClassVar[str] = "polyaverage"
    power: int = 8

    def __post_init__(self) -> None:
        count("power", self.power, least=0)

    def init(self, x: Tensor) -> Tensors:
        """The average so far; the first weight is 1."""
        return {"average": x}

    def __call__(self, state: Tensors, x: Tensor, round: int) -> tuple[Tensor, Tensors]:
        """Return the average with this round's iterate in it, and remember it."""
        weight = (self.power + 1) / (round + self.power)
        average = (1 - weight) * state["average"] + weight * x
        return average, {"average": average}
