"""One stepsize for all clients: the geometric mean of the Polyak ratios that they saw in the round before."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedsps.checks import positive
from fedsps.core.contract import Ranges, Seen
from fedsps.core.vectors import Tensors, norm_sq, rounded, scalars
from fedsps.rules.polyak import PolyakRule, polyak_ratio

__all__ = ["CommonStepsize"]

RANGE = 30.0  # of log ratios that are reported: e^-30 to e^30
PRIVATE_RANGE = 5.0  # under differential privacy, whose noise grows with it: 0.0067 to 148


@dataclass(frozen=True)
class CommonStepsize(PolyakRule):
    """A stepsize that the server keeps, moved by the geometric mean of the clients' Polyak ratios.

        a client's step     gamma = min( Gamma, cap, safety ratio ),    ratio = (F_i - lower_i) / (2 scale ||g||^2)
        a client reports    the mean of log ratio over its local steps
        the server          Gamma <- min( growth Gamma, wanted ),    wanted = exp( mean of the reports )
        in the first round  gamma = min( cap, initial ratio ), and then Gamma = initial wanted before it grows

    The per-batch rule takes tiny steps on hard batches and large ones on easy ones, and the means of FedSPS-Global are
    ruled by one client; a geometric mean is steady. The limit on its growth brings it through the first rounds, and
    `safety` is the brake that acts at once, on the batch itself. Where the loss is `h (y - y*)^2 / 2 + lower`, a step
    of `a ratio` multiplies `y - y*` with `1 - a / 2`: 4 is the most at which no distance grows, however steep the
    client is that Gamma knew nothing of. All is relative to ratios: a loss in other units, or inputs of another size,
    give the same run (while no cap binds). A Gamma of infinity says that there is none yet.

    Args:
        scale: c; 1/2 is the plain ratio.
        cap: the largest stepsize.
        lower: l*, a lower bound of the losses, one number or one for each client.
        initial: the share of its ratio that a step is in the first round.
        growth: how many times larger Gamma may be than a round before.
        safety: how many times the batch's own ratio a step may be.
    """

    in_span: ClassVar[bool] = True
    in_sweep: ClassVar[bool] = True
    word: ClassVar[str] = "common"
    receives: ClassVar[tuple[str, ...]] = ("stepsize",)
    sends: ClassVar[tuple[str, ...]] = ("log_ratio",)
    initial: float = 0.003
    growth: float = 1.1
    safety: float = 4.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("initial", "growth", "safety"):
            positive(name, getattr(self, name))

    def server_init(self, x: Tensor) -> Tensors:
        """No stepsize: no ratio has been seen."""
        return {"stepsize": scalars(x, torch.inf)}

    def begin(self, state: Tensors, x: Tensor) -> Tensors:
        """No ratio has been seen yet."""
        return state | {"log_ratio": scalars(x, 0.0)}

    def __call__(self, state: Tensors, seen: Seen) -> tuple[Tensor, Tensors]:
        """Return the common stepsize within its bounds, and add the ratio's logarithm up."""
        ratio = polyak_ratio(self.gap(seen).clamp(min=0), norm_sq(seen.gradient)) / (2 * self.scale)
        logs = ratio.log().clamp(-RANGE, RANGE)
        return self.within(seen, ratio), state | {"log_ratio": state["log_ratio"] + logs / seen.steps}

    def within(self, seen: Seen, ratio: Tensor) -> Tensor:
        """The common stepsize within the bounds that the batch's own ratio sets, `[...]`."""
        shared = seen.received["stepsize"]
        own = torch.where(shared.isinf(), self.first_share(seen) * ratio, self.safety * ratio)
        return torch.minimum(shared, own).clamp(max=rounded(self.cap, ratio.dtype))

    def first_share(self, seen: Seen) -> Tensor | float:
        """The share of its ratio that a step is while there is no common stepsize."""
        return self.initial

    def conclude(self, state: Tensors, seen: Seen, delta: Tensor) -> tuple[Tensors, Tensors]:
        """Send the mean of `log ratio` over the local steps of the round."""
        return {"log_ratio": state["log_ratio"]}, state

    def ranges(self, norm: float) -> Ranges:
        """Log ratios are clipped as they are made."""
        return {"log_ratio": (-RANGE, RANGE)}

    def private_ranges(self, norm: float) -> Ranges:
        """Most stepsizes that are of use lie in a narrower range."""
        return {"log_ratio": (-PRIVATE_RANGE, PRIVATE_RANGE)}

    def absorb(self, state: Tensors, mean: Tensors, participation: float) -> Tensors:
        """The next round's stepsize."""
        wanted = mean["log_ratio"].exp()
        last = torch.where(state["stepsize"].isinf(), self.initial * wanted, state["stepsize"])
        return state | {"stepsize": torch.minimum(self.growth * last, wanted)}
