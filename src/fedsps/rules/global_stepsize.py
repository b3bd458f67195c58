"""FedSPS-Global's stepsize: one for all clients and local steps of a round, aggregated on the server."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from fedsps.checks import choice, positive
from fedsps.core.contract import Exchange, Seen, Trace, Work, observe
from fedsps.core.kinds import StepsizeRule
from fedsps.core.vectors import Tensors, norm_sq, scalars
from fedsps.rules.polyak import SPS

__all__ = ["FirstStepsize", "Formula", "GlobalStepsize"]

Formula = Literal["a", "b", "c"]
"""How the clients' last observations become one stepsize; the formulas are in `GlobalStepsize`."""


@dataclass(frozen=True)
class GlobalStepsize(StepsizeRule):
    """The paper's FedSPS-Global (appendix): all clients step with the server's gamma, which is one round old.

    After the last local step each client reports what it observed before that step's update: its gap
    `f_i = F_i - lower_i`, its gradient `g_i`, its cap, and the SPS stepsize they give. The next round uses

        (a)  mean_i min( f_i / (scale ||g_i||^2), cap_i )
        (b)  min( mean_i f_i / (scale mean_i ||g_i||^2), mean_i cap_i )
        (c)  min( mean_i f_i / (scale ||mean_i g_i||^2), mean_i cap_i )

    Args:
        local: the rule that gives a client's own stepsize, with its scale, cap and lower bound.
        formula: "a", "b" or "c".
        initial: the stepsize of the first round. If None, it is the SPS stepsize of the lowest-numbered client of the
            first cohort on its first batch, asked for in an extra exchange (`FirstStepsize`).
    """

    in_span: ClassVar[bool] = True
    in_sweep: ClassVar[bool] = True

    local: SPS = field(default_factory=SPS)
    formula: Formula = "a"
    initial: float | None = None

    receives: ClassVar[tuple[str, ...]] = ("stepsize",)
    sends: ClassVar[tuple[str, ...]] = ("local_stepsize", "local_gap", "local_cap", "local_norm_sq", "local_gradient")

    def __post_init__(self) -> None:
        choice("formula", self.formula, get_args(Formula))
        if self.initial is not None:
            positive("initial", self.initial)

    def check(self, clients: int) -> None:
        """Refuse what the local rule refuses: a `lower` for another number of clients."""
        self.local.check(clients)

    def gap(self, seen: Seen) -> Tensor:
        """How far the loss is above the local rule's bound."""
        return self.local.gap(seen)

    def client_init(self, x: Tensor) -> Tensors:
        """The local rule's state: its cap, if that is smoothed."""
        return self.local.client_init(x)

    def begin(self, state: Tensors, x: Tensor) -> Tensors:
        """Begin the round as the local rule begins it."""
        return self.local.begin(state, x)

    def server_init(self, x: Tensor) -> Tensors:
        """The stepsize of the first round; NaN until a client has been asked."""
        return {"stepsize": scalars(x, torch.nan if self.initial is None else self.initial)}

    def before(self, round: int) -> tuple[Exchange, ...]:
        """Before the first round, ask one client for its stepsize, unless `initial` is given."""
        return (FirstStepsize(self),) if round == 0 and self.initial is None else ()

    def __call__(self, state: Tensors, seen: Seen) -> tuple[Tensor, Tensors]:
        """Return the server's stepsize; what the client would have used goes into the state, for the report."""
        cap = state.get("cap", scalars(seen.x, self.local.cap))
        local, state = self.local(state, seen)
        return seen.received["stepsize"], state | {"last_local": local, "last_cap": cap}

    def conclude(self, state: Tensors, seen: Seen, delta: Tensor) -> tuple[Tensors, Tensors]:
        """Send what the formula needs of the last local step."""
        if self.formula == "a":
            return {"local_stepsize": state["last_local"]}, state
        gap, _ = self.local.gap_and_ratio(seen)
        sent = {"local_gap": gap, "local_cap": state["last_cap"]}
        if self.formula == "b":
            return sent | {"local_norm_sq": norm_sq(seen.gradient)}, state
        return sent | {"local_gradient": seen.gradient}, state

    def absorb(self, state: Tensors, mean: Tensors, participation: float) -> Tensors:
        """The next round's stepsize, by the formula."""
        if self.formula == "a":
            return state | {"stepsize": mean["local_stepsize"]}
        size = mean["local_norm_sq"] if self.formula == "b" else norm_sq(mean["local_gradient"])
        ratio = torch.where(size > 0, mean["local_gap"] / (self.local.scale * size), torch.inf)
        return state | {"stepsize": torch.minimum(ratio, mean["local_cap"])}


@dataclass(frozen=True)
class FirstStepsize(Exchange):
    """Before the first round: one client's SPS stepsize on its first batch becomes the stepsize of that round."""

    rule: GlobalStepsize
    action: ClassVar[str] = "first stepsize"
    first_client_only: ClassVar[bool] = True

    def work(self, state: Tensors, x: Tensor, received: Tensors, work: Work) -> tuple[Tensors, Tensors, Trace | None]:
        """Send the local SPS stepsize; the client's state stays as it was."""
        seen = observe(work, work.probe, x, x, 0, received)
        stepsize, _ = self.rule.local(self.rule.begin(state, x), seen)
        return {"stepsize": stepsize}, state, None

    def finish(self, state: Tensors, x: Tensor, mean: Tensors, participation: float) -> tuple[Tensor, Tensors]:
        """The server stays where it is and keeps the stepsize."""
        return x, state | {"stepsize": mean["stepsize"]}
