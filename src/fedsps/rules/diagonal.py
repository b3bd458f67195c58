"""Extrapolation in a coordinatewise metric that the server learns from the changes it has seen."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedsps.checks import at_least, fraction
from fedsps.core.contract import Ranges, Trace
from fedsps.core.kinds import ServerRule
from fedsps.core.vectors import Tensors, along, norm_sq, times

__all__ = ["DiagonalExtrapolation"]


@dataclass(frozen=True)
class DiagonalExtrapolation(ServerRule):
    """FedExP's step in a diagonal metric: as far as the clients' own steps guarantee, and nothing to set.

        G <- sqrt( sum of all Delta^2, this round's included ),    coordinate by coordinate
        x <- x + eta G^-1 m,    eta = 1/2 min( mean_i ||Delta_i||^2, most ||Delta||^2 ) / (Delta^T G^-1 Delta)
        m <- momentum m + (1 - momentum) Delta,    m = Delta without momentum

    The scale of G cancels. For convex clients whose stepsizes are at most `2 (F - lower) / ||g||^2` at every local step
    (SPS with scale 1/2 and any cap) this is the step after which the distance to a common minimum, measured by G, is
    guaranteed not to have grown, and so is any shorter one. G = I is FedExP with eps = 0 and without its floor at 1.
    Coordinates that never changed stay; a mean change of 0 moves nothing. (G has 1e-8 of its largest entry added, so
    that it can be divided by.)

    Where clients have no common minimum nothing is guaranteed: at the optimum Delta is 0 and the Delta_i are not, and
    without a bound the step would grow as Delta shrinks. Changes of n clients that have nothing to do with each other
    are together 1/n as long (squared) as each of them; a Delta far shorter than that tells of clients that pull against
    each other, and `most` is how much shorter is believed.

    Args:
        forget: the share of the sum that is forgotten in each round, so that it becomes a moving mean; 0 is the sum.
        momentum: of the direction; above 0 it is outside the guarantee.
        most: how many times the squared length of the mean change the clients' own may count.

    References:
        Takakura, Liew, Hasegawa: FedDuA, 2025 (arXiv 2505.11126), whose server is of this kind.
        Jhunjhunwala, Wang, Joshi: FedExP: Speeding Up Federated Averaging via Extrapolation, ICLR 2023.
    """

    in_span: ClassVar[bool] = True
    in_sweep: ClassVar[bool] = True
    word: ClassVar[str] = "diagonal"
    sends: ClassVar[tuple[str, ...]] = ("delta_norm_sq",)
    forget: float = 0.0
    momentum: float = 0.0
    most: float = 30.0

    def __post_init__(self) -> None:
        fraction("forget", self.forget)
        fraction("momentum", self.momentum)
        at_least("most", self.most, 1)

    def server_init(self, x: Tensor) -> Tensors:
        """The sum of the squared changes and the direction, 0 at the start."""
        return {"squares": torch.zeros_like(x), "moved": torch.zeros_like(x)}

    def report(self, delta: Tensor, trace: Trace) -> Tensors:
        """Send the change and its squared length."""
        return {"delta": delta, "delta_norm_sq": norm_sq(delta)}

    def ranges(self, norm: float) -> Ranges:
        """A squared length is at most that of the longest change."""
        return {"delta_norm_sq": (0.0, norm**2)}

    def __call__(self, state: Tensors, x: Tensor, mean: Tensors) -> tuple[Tensor, Tensors]:
        """Move by the extrapolated change in the metric."""
        delta = mean["delta"]
        squares = (1 - along(self.forget)) * state["squares"] + delta**2
        metric = squares.sqrt()
        metric = metric + 1e-8 * metric.amax(-1, keepdim=True)
        moved = along(self.momentum) * state["moved"] + (1 - along(self.momentum)) * delta
        still = metric == 0  # not `> 0` below, which would hide what is no number
        length = (delta * torch.where(still, 0.0, delta / metric)).sum(-1)
        believed = torch.minimum(mean["delta_norm_sq"], self.most * norm_sq(delta))
        eta = torch.where(length == 0, 0.0, believed / (2 * length))
        return x + times(eta, torch.where(still, 0.0, moved / metric)), state | {"squares": squares, "moved": moved}
