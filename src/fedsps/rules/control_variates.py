"""SCAFFOLD's direction: control variates against client drift."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedsps.checks import positive
from fedsps.core.contract import Seen
from fedsps.core.kinds import Direction, ServerRule, StepsizeRule
from fedsps.core.vectors import Tensors, along
from fedsps.errors import ConfigurationError
from fedsps.rules.stepsize import Constant

__all__ = ["ControlVariates"]


@dataclass(frozen=True)
class ControlVariates(Direction):
    """`g - c_i + c`, the client's variate c_i and the server's c being 0 at the start (option II).

        c_i+ = c_i - c + (x - y) / (tau stepsize)                 after the local steps; kept by the client
        c <- c + |cohort| / clients * mean_i(c_i+ - c_i)          on the server

    Args:
        stepsize: the clients' stepsize, in whose units the variates are; it must be that of the `Constant` rule.

    References:
        Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: Stochastic Controlled Averaging for Federated
        Learning, ICML 2020.
    """

    in_sweep: ClassVar[bool] = True
    word: ClassVar[str] = "scaffold"
    stepsize: float = 0.1
    receives: ClassVar[tuple[str, ...]] = ("control",)
    sends: ClassVar[tuple[str, ...]] = ("control_change",)
    method: ClassVar[str] = "SCAFFOLD"

    def __post_init__(self) -> None:
        positive("client_stepsize", self.stepsize)

    def check_with(self, stepsize: StepsizeRule, server: ServerRule) -> None:
        """The variates are in units of the clients' own stepsize."""
        super().check_with(stepsize, server)
        if isinstance(stepsize, Constant) and stepsize.stepsize != self.stepsize:
            raise ConfigurationError(
                f"SCAFFOLD's variates need the clients' stepsize {stepsize.stepsize}; got stepsize={self.stepsize}: "
                "give both the same"
            )

    def client_init(self, x: Tensor) -> Tensors:
        """The client's variate, `c_i = 0`."""
        return {"own_control": torch.zeros_like(x)}

    def server_init(self, x: Tensor) -> Tensors:
        """The server's variate, `c = 0`."""
        return {"control": torch.zeros_like(x)}

    def __call__(self, state: Tensors, seen: Seen) -> tuple[Tensor, Tensors]:
        """Return the corrected gradient."""
        return seen.gradient - state["own_control"] + seen.received["control"], state

    def conclude(self, state: Tensors, seen: Seen, delta: Tensor) -> tuple[Tensors, Tensors]:
        """Keep the new variate, and send its change to the server."""
        change = -seen.received["control"] - delta / (seen.steps * along(self.stepsize))
        return {"control_change": change}, state | {"own_control": state["own_control"] + change}

    def absorb(self, state: Tensors, mean: Tensors, participation: float) -> Tensors:
        """Add the mean change by the share that took part: clients that sat out did not change theirs."""
        return state | {"control": state["control"] + participation * mean["control_change"]}
