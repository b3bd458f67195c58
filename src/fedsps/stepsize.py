"""Stepsize rules: what a client saw at a local step goes in, its stepsize comes out."""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from fedsps.checks import choice, positive, truth
from fedsps.errors import ConfigurationError
from fedsps.parts import Part, Seen
from fedsps.shapes import Tensors, like, norm_sq, scalars


@dataclass(frozen=True)
class StepsizeRule(Part):
    """What every rule is: override `__call__`, and `client_init` if the client must remember something."""

    def __call__(self, state: Tensors, seen: Seen) -> tuple[Tensor, Tensors]:
        """Return `gamma [...]` and the client's new state."""
        raise NotImplementedError


@dataclass(frozen=True)
class Constant(StepsizeRule):
    """The same stepsize for every client and step: `gamma = stepsize`."""

    stepsize: float = 0.1

    def __post_init__(self) -> None:
        positive("client_stepsize", self.stepsize)

    def __call__(self, state: Tensors, seen: Seen) -> tuple[Tensor, Tensors]:
        """`gamma = stepsize`."""
        return scalars(seen.x, self.stepsize), state


@dataclass(frozen=True)
class PolyakRule(StepsizeRule):
    """What SPS and DecSPS share: the Polyak ratio over a lower bound, and the watch on that bound.

        ratio = (F_i(x; batch) - lower_i) / ||g||^2,    +inf where g = 0

    A loss below `lower` counts as a gap of 0. The smallest gap of the round travels beside the messages as the
    diagnostic "gap", so that the run can stop with a clear error although the rule itself has no branch.
    """

    scale: float = 0.5
    cap: float = 1.0
    lower: float | tuple[float, ...] = 0.0

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

    def begin(self, state: Tensors, x: Tensor) -> Tensors:
        """Forget the gaps of earlier rounds."""
        return state | {"gap": scalars(x, torch.inf)}

    def gap_and_ratio(self, state: Tensors, seen: Seen) -> tuple[Tensor, Tensor, Tensors]:
        """The loss gap and the Polyak ratio, both `[...]`, and the state with the smallest gap so far."""
        size = norm_sq(seen.gradient)
        gap = seen.loss.to(size.dtype) - self._bound(seen, size)
        state = state | {"gap": torch.minimum(state["gap"], gap)}
        gap = gap.clamp(min=0)
        ratio = torch.where(size > 0, gap / size, torch.inf)
        return gap, torch.where(size < torch.inf, ratio, torch.nan), state  # an overflow is no small stepsize

    def _bound(self, seen: Seen, size: Tensor) -> Tensor:
        if not isinstance(self.lower, tuple):
            return like(self.lower, size)
        return torch.tensor(self.lower, dtype=size.dtype, device=size.device)[seen.client]


Smoothing = Literal["paper", "loizou"]
"""How a client's cap moves from one of its own local steps to the next; the recursions are in `SPS`."""


@dataclass(frozen=True)
class SPS(PolyakRule):
    """The stochastic Polyak stepsize with an upper bound, the paper's FedSPS rule (equation 2).

        gamma = min( (F_i(x; batch) - lower_i) / (scale ||g||^2), cap )

    A zero gradient gives the cap (the iterate does not move), a zero gap a zero stepsize. With `smoothing` the cap
    is the client's own and changes after each of its local steps; B is its actual batch, m_i its number of samples:

        "paper"     cap_t = 2^(B/m_i) cap_{t-1}      section 5 of the paper; saturates at the largest finite number
        "loizou"    cap_t = 2^(B/m_i) gamma_{t-1}    Loizou et al. 2021; a step of 0 leaves the cap as it was
    """

    smoothing: Smoothing | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.smoothing is not None:
            choice("smoothing", self.smoothing, get_args(Smoothing))

    def client_init(self, x: Tensor) -> Tensors:
        """The client's own cap, if it is smoothed."""
        return {} if self.smoothing is None else {"cap": scalars(x, self.cap)}

    def __call__(self, state: Tensors, seen: Seen) -> tuple[Tensor, Tensors]:
        """Return the stepsize, and the state with the cap for the client's next step."""
        _, ratio, state = self.gap_and_ratio(state, seen)
        if self.smoothing is None:
            return torch.minimum(ratio / self.scale, like(self.cap, ratio)), state
        cap = state["cap"]
        gamma = torch.minimum(ratio / self.scale, cap)
        growth = torch.exp2(seen.fraction)
        grown = cap * growth if self.smoothing == "paper" else torch.where(gamma > 0, gamma * growth, cap)
        return gamma, state | {"cap": grown.clamp(max=torch.finfo(cap.dtype).max)}


Clock = Literal["global", "client"]
"""What DecSPS's t counts."""


@dataclass(frozen=True)
class DecSPS(PolyakRule):
    """The decreasing stochastic Polyak stepsize, the paper's FedDecSPS rule (section 5; Orvieto et al. 2022).

        gamma_t = (1/c_t) min( (F_i(x; batch) - lower_i) / ||g||^2, c_{t-1} gamma_{t-1} ),   c_t = scale sqrt(t + 1)

    with `c_{-1} = scale`, `gamma_{-1} = cap`. Since `c_t gamma_t` is a running minimum, it is the whole state of a
    client: `M <- min(M, ratio)` from `M = scale * cap`, and `gamma_t = M / c_t`. A gap of exactly 0 gives a zero
    step and leaves M as it was (else one perfectly fitted batch would stop the client for good).

    The paper does not say what t counts, nor whether a client that sits out keeps its minimum. Here t is the global
    iteration `round * tau + step`, or the client's own local steps with `clock="client"`; the minimum is kept,
    or begins anew in each round with `reset=True`.
    """

    clock: Clock = "global"
    reset: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        choice("clock", self.clock, get_args(Clock))
        truth("reset", self.reset)

    def client_init(self, x: Tensor) -> Tensors:
        """The running minimum, and the client's own clock if it has one."""
        state = {"minimum": scalars(x, self.scale * self.cap)}
        return state | {"clock": scalars(x, 0.0)} if self.clock == "client" else state

    def begin(self, state: Tensors, x: Tensor) -> Tensors:
        """With `reset`, the minimum begins anew; the clock runs on."""
        state = super().begin(state, x)
        return state | {"minimum": scalars(x, self.scale * self.cap)} if self.reset else state

    def __call__(self, state: Tensors, seen: Seen) -> tuple[Tensor, Tensors]:
        """Return the stepsize, and the state with the new minimum."""
        gap, ratio, state = self.gap_and_ratio(state, seen)
        still = gap <= 0  # and not `gap > 0`, which would hide a loss that is not a number
        minimum = torch.where(still, state["minimum"], torch.minimum(state["minimum"], ratio))
        state = state | {"minimum": minimum}
        t: Tensor | int = seen.iteration
        if self.clock == "client":
            t = state["clock"]
            state = state | {"clock": t + 1}
        c = self.scale * torch.as_tensor(t + 1, dtype=minimum.dtype).sqrt()
        return torch.where(still, 0.0, minimum / c), state
