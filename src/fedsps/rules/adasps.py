"""AdaSPS: the Polyak stepsize, divided by what the client has lost so far."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedsps.checks import truth
from fedsps.core.contract import Seen
from fedsps.core.vectors import Tensors, scalars
from fedsps.rules.polyak import PolyakRule

__all__ = ["AdaSPS"]


@dataclass(frozen=True)
class AdaSPS(PolyakRule):
    """An adaptive Polyak stepsize that also converges where no point fits all batches.

        gamma_t = min( gap_t / (scale ||g_t||^2) sqrt( gap_0 / (gap_0 + ... + gap_t) ), gamma_{t-1} )

    with `gamma_{-1} = cap` and `gap_t = F_i(x_t; batch) - lower_i`, t counting the client's own local steps. The factor
    `sqrt(gap_0)` makes the rule free of the loss's scale. A gap of 0 gives a zero step and leaves the minimum as it
    was.

    Args:
        scale: c, what the ratio is divided by.
        cap: the largest stepsize.
        lower: l*, a lower bound of the losses, one number or one for each client.
        monotone: whether the stepsize never grows; else `gamma_{t-1}` is the cap.

    References:
        Jiang, Stich: Adaptive SGD with Polyak Stepsize and Line-Search: Robust Convergence and Variance Reduction,
        NeurIPS 2023.
    """

    in_span: ClassVar[bool] = True
    in_sweep: ClassVar[bool] = True
    word: ClassVar[str] = "adasps"
    scale: float = 1.0
    monotone: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        truth("monotone", self.monotone)

    def client_init(self, x: Tensor) -> Tensors:
        """The first gap, the sum of all, and the last stepsize."""
        return {"gap_zero": scalars(x, 0.0), "gap_sum": scalars(x, 0.0), "last_stepsize": scalars(x, self.cap)}

    def __call__(self, state: Tensors, seen: Seen) -> tuple[Tensor, Tensors]:
        """Return the stepsize, and the state with this step's gap."""
        gap, ratio = self.gap_and_ratio(seen)
        first = torch.where(state["gap_sum"] == 0, gap, state["gap_zero"])
        total = state["gap_sum"] + gap
        still = gap <= 0  # and not `gap > 0`, which would hide a loss that is not a number
        share = torch.where(total == 0, 0.0, first / total)
        bound = state["last_stepsize"]
        gamma = torch.minimum(ratio / self.scale * share.sqrt(), bound)
        last = torch.where(still, bound, gamma) if self.monotone else bound
        gamma = torch.where(still, 0.0, gamma)
        return gamma, state | {"gap_zero": first, "gap_sum": total, "last_stepsize": last}
