"""SCAFFOLD (Karimireddy et al. 2020), option II: control variates against client drift."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedsps.algorithm import Algorithm
from fedsps.checks import positive
from fedsps.direction import Direction
from fedsps.errors import ConfigurationError
from fedsps.parts import Seen
from fedsps.server import Average, ServerRule
from fedsps.shapes import Tensors
from fedsps.stepsize import Constant, StepsizeRule


@dataclass(frozen=True)
class ControlVariates(Direction):
    """`g - c_i + c`, the client's variate c_i and the server's c being 0 at the start.

    c_i+ = c_i - c + (x - y) / (tau stepsize)                 after the local steps; kept by the client
    c <- c + |cohort| / clients * mean_i(c_i+ - c_i)          on the server
    """

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
        """The client's variate."""
        return {"own_control": torch.zeros_like(x)}

    def server_init(self, x: Tensor) -> Tensors:
        """The server's variate."""
        return {"control": torch.zeros_like(x)}

    def __call__(self, state: Tensors, seen: Seen) -> tuple[Tensor, Tensors]:
        """The corrected gradient."""
        return seen.gradient - state["own_control"] + seen.received["control"], state

    def conclude(self, state: Tensors, seen: Seen, delta: Tensor) -> tuple[Tensors, Tensors]:
        """The new variate, and its change for the server."""
        change = -seen.received["control"] - delta / (seen.steps * self.stepsize)
        return {"control_change": change}, state | {"own_control": state["own_control"] + change}

    def absorb(self, state: Tensors, mean: Tensors, participation: float) -> Tensors:
        """Clients that sat out did not change theirs."""
        return state | {"control": state["control"] + participation * mean["control_change"]}


class Scaffold(Algorithm):
    """SCAFFOLD (Karimireddy et al. 2020), option II: local steps corrected by control variates.

    y <- y - client_stepsize (g - c_i + c),    c_i <- c_i - c + (x - y) / (tau client_stepsize)
    x <- x + server_stepsize mean_i(y_i - x),    c <- c + |cohort| / clients * mean_i(change of c_i)
    """

    def __init__(self, *, client_stepsize: float = 0.1, server_stepsize: float = 1.0) -> None:
        super().__init__(
            stepsize=Constant(client_stepsize),
            direction=ControlVariates(client_stepsize),
            server=Average(server_stepsize),
        )
