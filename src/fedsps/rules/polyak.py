"""The Polyak stepsizes of the paper: SPS with a cap, and its decreasing form."""

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from fedsps.checks import choice, positive, truth
from fedsps.core.contract import Seen
from fedsps.core.kinds import StepsizeRule
from fedsps.core.vectors import Tensors, norm_sq, rounded, scalars
from fedsps.errors import ConfigurationError

__all__ = ["SPS", "Clock", "DecSPS", "Lower", "PolyakRule", "Smoothing"]

Lower = float | tuple[float, ...]
"""A lower bound of all losses, or one for each client."""

Smoothing = Literal["paper", "loizou"]
"""How a client's cap moves from one of its own local steps to the next; the recursions are in `SPS`."""

Clock = Literal["global", "client"]
"""What DecSPS's t counts: the federation's iterations, or the client's own steps."""


@lru_cache(maxsize=4)
def _bounds(lower: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """The clients' bounds, `[clients]`, brought to the device once and not at every step."""
    return torch.tensor(lower, dtype=dtype).to(device)


@dataclass(frozen=True)
class PolyakRule(StepsizeRule):
    """What SPS and DecSPS share: the Polyak ratio over a lower bound, and the watch on that bound.

        ratio = (F_i(x; batch) - lower_i) / ||g||^2,    +inf where g = 0

    A loss below `lower` counts as a gap of 0; the run stops with a clear error (see `StepsizeRule.gap`).

    Args:
        scale: c, what the ratio is divided by.
        cap: gamma_b, the largest stepsize.
        lower: l*, a lower bound of the losses, one number or one for each client.
    """

    scale: float = 0.5
    cap: float = 1.0
    lower: Lower = 0.0

    def __post_init__(self) -> None:
        positive("scale", self.scale)
        positive("cap", self.cap)
        if hasattr(self.lower, "tolist"):  # an array or a tensor
            object.__setattr__(self, "lower", self.lower.tolist())
        if isinstance(self.lower, list):
            object.__setattr__(self, "lower", tuple(self.lower))
        try:
            bounds = torch.as_tensor(self.lower, dtype=torch.float64)
        except (TypeError, ValueError, RuntimeError):
            bounds = torch.tensor(torch.nan)
        if bounds.numel() == 0 or bounds.ndim > 1 or not bounds.isfinite().all() or isinstance(self.lower, bool):
            raise ConfigurationError(f"lower must be a finite number, or one for each client; got {self.lower!r}")

    def check(self, clients: int) -> None:
        """Refuse a `lower` that does not give every client its bound."""
        if isinstance(self.lower, tuple) and len(self.lower) != clients:
            raise ConfigurationError(f"lower has {len(self.lower)} values for {clients} clients: give one for each")

    def gap(self, seen: Seen) -> Tensor:
        """`F_i(x; batch) - lower_i`, `[...]`, in float32 at least; below 0 the bound is none."""
        half = seen.gradient.dtype in (torch.float16, torch.bfloat16)
        loss = seen.loss.to(torch.float32 if half else seen.gradient.dtype)
        if not isinstance(self.lower, tuple):
            return loss - rounded(self.lower, loss.dtype)
        return loss - _bounds(self.lower, loss.dtype, loss.device).take(seen.client)

    def gap_and_ratio(self, seen: Seen) -> tuple[Tensor, Tensor]:
        """The loss gap, at least 0, and the Polyak ratio, both `[...]`."""
        gap = self.gap(seen).clamp(min=0)
        return gap, polyak_ratio(gap, norm_sq(seen.gradient))


def polyak_ratio(gap: Tensor, size: Tensor) -> Tensor:
    """A loss gap over the gradient's squared norm, both `[...]`; +inf where that is 0.

    A squared norm that overflows gives NaN, so that the run ends as diverged: it is no small stepsize.
    """
    return (gap / size).masked_fill(size == 0, torch.inf).masked_fill(size == torch.inf, torch.nan)


@dataclass(frozen=True)
class SPS(PolyakRule):
    """The stochastic Polyak stepsize with an upper bound, the paper's FedSPS rule (equation 2).

        gamma = min( (F_i(x; batch) - lower_i) / (scale ||g||^2), cap )

    A zero gradient gives the cap (the iterate does not move), a zero gap a zero stepsize. With `smoothing` the cap
    is the client's own and changes after each of its local steps; B is its actual batch, m_i its number of samples:

        "paper"     cap_t = 2^(B/m_i) cap_{t-1}      section 5 of the paper; saturates at the largest finite number
        "loizou"    cap_t = 2^(B/m_i) gamma_{t-1}    Loizou et al. 2021; a step of 0 leaves the cap as it was

    Args:
        scale: c, what the ratio is divided by.
        cap: gamma_b, the largest stepsize; with smoothing the first of them.
        lower: l*, a lower bound of the losses, one number or one for each client.
        smoothing: how the cap moves, or None.
        reset: whether a smoothed cap begins anew in each round; the paper leaves it open.

    References:
        Loizou, Vaswani, Laradji, Lacoste-Julien: Stochastic Polyak Step-size for SGD, AISTATS 2021.

    >>> from fedsps import Algorithm
    >>> Algorithm(stepsize=SPS(cap=10.0, smoothing="loizou"))
    Algorithm(stepsize=SPS(scale=0.5, cap=10.0, lower=0.0, smoothing='loizou', reset=False))
    """

    in_span: ClassVar[bool] = True
    in_sweep: ClassVar[bool] = True
    word: ClassVar[str] = "sps"
    smoothing: Smoothing | None = None
    reset: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.smoothing is not None:
            choice("smoothing", self.smoothing, get_args(Smoothing))
        truth("reset", self.reset)

    def client_init(self, x: Tensor) -> Tensors:
        """The client's own cap, if it is smoothed."""
        return {} if self.smoothing is None else {"cap": scalars(x, self.cap)}

    def begin(self, state: Tensors, x: Tensor) -> Tensors:
        """With `reset`, a smoothed cap begins anew."""
        return state | self.client_init(x) if self.reset else state

    def __call__(self, state: Tensors, seen: Seen) -> tuple[Tensor, Tensors]:
        """Return the stepsize, and the state with the cap for the client's next step."""
        _, ratio = self.gap_and_ratio(seen)
        if self.smoothing is None:
            return (ratio / self.scale).clamp(max=rounded(self.cap, ratio.dtype)), state
        cap = state["cap"]
        gamma = torch.minimum(ratio / self.scale, cap)
        growth = torch.exp2(seen.fraction)
        grown = cap * growth if self.smoothing == "paper" else torch.where(gamma > 0, gamma * growth, cap)
        return gamma, state | {"cap": grown.clamp(max=torch.finfo(cap.dtype).max)}


@dataclass(frozen=True)
class DecSPS(PolyakRule):
    """The decreasing stochastic Polyak stepsize, the paper's FedDecSPS rule (section 5).

        gamma_t = (1/c_t) min( (F_i(x; batch) - lower_i) / ||g||^2, c_{t-1} gamma_{t-1} ),   c_t = scale sqrt(t + 1)

    with `c_{-1} = scale`, `gamma_{-1} = cap`. Since `c_t gamma_t` is a running minimum, it is the whole state of a
    client: `M <- min(M, ratio)` from `M = scale * cap`, and `gamma_t = M / c_t`. A gap of exactly 0 gives a zero
    step and leaves M as it was (else one perfectly fitted batch would stop the client for good).

    The paper does not say what t counts, nor whether a client that sits out keeps its minimum; `clock` and `reset`
    settle it.

    Args:
        scale: c_0.
        cap: gamma_b, the bound of the first stepsize.
        lower: l*, a lower bound of the losses, one number or one for each client.
        clock: t is the "global" iteration `round * tau + step`, or counts the "client"'s own local steps.
        reset: whether the minimum begins anew in each round.

    References:
        Orvieto, Lacoste-Julien, Loizou: Dynamics of SGD with Stochastic Polyak Stepsizes, NeurIPS 2022.
    """

    in_span: ClassVar[bool] = True
    in_sweep: ClassVar[bool] = True
    word: ClassVar[str] = "decsps"
    clock: Clock = "global"
    reset: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        choice("clock", self.clock, get_args(Clock))
        truth("reset", self.reset)

    def client_init(self, x: Tensor) -> Tensors:
        """The running minimum M, and the client's own clock if it has one."""
        state = {"minimum": scalars(x, self.scale * self.cap)}
        return state | {"clock": scalars(x, 0.0)} if self.clock == "client" else state

    def begin(self, state: Tensors, x: Tensor) -> Tensors:
        """With `reset`, the minimum begins anew; the clock runs on."""
        return state | {"minimum": scalars(x, self.scale * self.cap)} if self.reset else state

    def __call__(self, state: Tensors, seen: Seen) -> tuple[Tensor, Tensors]:
        """Return the stepsize, and the state with the new minimum."""
        gap, ratio = self.gap_and_ratio(seen)
        still = gap <= 0  # and not `gap > 0`, which would hide a loss that is not a number
        minimum = torch.where(still, state["minimum"], torch.minimum(state["minimum"], ratio))
        state = state | {"minimum": minimum}
        t: Tensor | int = seen.iteration
        if self.clock == "client":
            t = state["clock"]
            state = state | {"clock": t + 1}
        c = self.scale * torch.as_tensor(t + 1, dtype=minimum.dtype).sqrt()
        return torch.where(still, 0.0, minimum / c), state
