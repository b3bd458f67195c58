"""FedExP (Jhunjhunwala et al. 2023): extrapolation on the server."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedsps.algorithm import Algorithm
from fedsps.checks import positive
from fedsps.output import MeanOfLastTwo, OutputRule
from fedsps.parts import Trace
from fedsps.server import ServerRule
from fedsps.shapes import Tensors, norm_sq, scale
from fedsps.stepsize import Constant


@dataclass(frozen=True)
class Extrapolation(ServerRule):
    """FedExP's server: it extrapolates as far as the clients disagree.

        x <- x + eta Delta,    eta = max(1, mean_i ||x_i - x||^2 / (2 (||Delta||^2 + eps)))

    Its output is the mean of the last two iterates, since the iterates oscillate.

    Deviation: eps is a constant here; the authors' code lets it decay with the rounds.
    """

    eps: float = 1e-3
    sends: ClassVar[tuple[str, ...]] = ("delta_norm_sq",)
    output: ClassVar[OutputRule] = MeanOfLastTwo()

    def __post_init__(self) -> None:
        positive("eps", self.eps)

    def report(self, delta: Tensor, trace: Trace) -> Tensors:
        """The change and its squared length."""
        return {"delta": delta, "delta_norm_sq": norm_sq(delta)}

    def __call__(self, state: Tensors, x: Tensor, mean: Tensors) -> tuple[Tensor, Tensors]:
        """Move by the extrapolated mean change."""
        eta = (mean["delta_norm_sq"] / (2 * (norm_sq(mean["delta"]) + self.eps))).clamp(min=1)
        return x + scale(eta, mean["delta"]), state


class FedExP(Algorithm):
    """FedExP (Jhunjhunwala et al. 2023): the server extrapolates as far as the clients disagree.

        x <- x + eta Delta,    eta = max(1, mean_i ||x_i - x||^2 / (2 (||Delta||^2 + eps)))

    The output is the mean of the last two iterates.
    """

    def __init__(self, *, client_stepsize: float = 0.1, eps: float = 1e-3) -> None:
        super().__init__(stepsize=Constant(client_stepsize), server=Extrapolation(eps))
