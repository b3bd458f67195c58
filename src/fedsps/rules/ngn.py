"""NGN: the Polyak stepsize with a smooth bend towards its cap."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedsps.core.contract import Seen
from fedsps.core.vectors import Tensors, norm_sq, rounded
from fedsps.rules.polyak import PolyakRule

__all__ = ["NGN"]


@dataclass(frozen=True)
class NGN(PolyakRule):
    """The non-negative Gauss-Newton stepsize, half the harmonic mean of the cap and the Polyak ratio.

        gamma = cap gap / ( gap + cap scale ||g||^2 ),    gap = F_i(x; batch) - lower_i

    It has the limits of SPS, the cap where the gradient is small and `gap / (scale ||g||^2)` where it is large, and is
    never above either. A zero gradient gives the cap (the iterate does not move), a zero gap a zero stepsize. With
    scale 1/2 it is the authors' rule for losses with the lower bound `lower_i`.

    Args:
        scale: c, what the ratio is divided by.
        cap: the largest stepsize.
        lower: l*, a lower bound of the losses, one number or one for each client.

    References:
        Orvieto, Xiao: An Adaptive Stochastic Gradient Method with Non-negative Gauss-Newton Stepsizes, 2024.

    >>> from fedsps import Algorithm
    >>> Algorithm(stepsize=NGN(cap=10.0))
    Algorithm(stepsize=NGN(scale=0.5, cap=10.0, lower=0.0))
    """

    in_span: ClassVar[bool] = True
    in_sweep: ClassVar[bool] = True
    word: ClassVar[str] = "ngn"

    def __call__(self, state: Tensors, seen: Seen) -> tuple[Tensor, Tensors]:
        """Return the stepsize; a squared norm that overflows gives NaN, so that the run ends as diverged."""
        size = norm_sq(seen.gradient)
        gap = self.gap(seen).clamp(min=0)
        cap = rounded(self.cap, gap.dtype)
        gamma = gap / (gap / cap + self.scale * size)  # no product with the cap, which may be as large as it likes
        gamma = torch.where(size == 0, cap, gamma)
        return gamma.masked_fill(size == torch.inf, torch.nan), state
