"""Local-AMSGrad (Chen et al. 2020): adaptive local steps under one shared second moment."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedsps.algorithm import Algorithm
from fedsps.checks import fraction, positive
from fedsps.direction import Direction
from fedsps.errors import ConfigurationError
from fedsps.parts import Seen
from fedsps.server import ServerRule
from fedsps.shapes import Tensors
from fedsps.stepsize import Constant, StepsizeRule


@dataclass(frozen=True)
class LocalMoments(Direction):
    """`m_i / sqrt(vhat)`: the client's own momentum, which persists, over a vhat that is frozen between communications.

        m_i <- b1 m_i + (1 - b1) g,   v_i <- b2 v_i + (1 - b2) g^2          at every local step
        vhat <- max( mean_i v_i, vhat )                                     on the server; vhat = eps at the start

    The last local step of a round uses the new vhat, which only the server has: `LastStep` takes it, from the mean
    of the momenta. Here its direction is 0.
    """

    b1: float = 0.9
    b2: float = 0.99
    eps: float = 1e-3
    receives: ClassVar[tuple[str, ...]] = ("vhat",)
    sends: ClassVar[tuple[str, ...]] = ("local_m", "local_v")
    method: ClassVar[str] = "Local-AMSGrad"

    def __post_init__(self) -> None:
        fraction("b1", self.b1)
        fraction("b2", self.b2)
        positive("eps", self.eps)

    def check_with(self, stepsize: StepsizeRule, server: ServerRule) -> None:
        """Only `LastStep` takes the step that is left out here."""
        super().check_with(stepsize, server)
        if not isinstance(server, LastStep):
            raise ConfigurationError(
                "Local-AMSGrad's last local step is its server's: no other server rule goes with it"
            )
        if isinstance(stepsize, Constant) and stepsize.stepsize != server.stepsize:
            raise ConfigurationError(
                f"Local-AMSGrad's server takes a step of the clients: give both the stepsize {stepsize.stepsize}"
            )

    def client_init(self, x: Tensor) -> Tensors:
        """Both moments."""
        return {"m": torch.zeros_like(x), "v": torch.zeros_like(x)}

    def server_init(self, x: Tensor) -> Tensors:
        """The shared second moment."""
        return {"vhat": torch.full_like(x, self.eps)}

    def __call__(self, state: Tensors, seen: Seen) -> tuple[Tensor, Tensors]:
        """The direction, and the new moments."""
        m = self.b1 * state["m"] + (1 - self.b1) * seen.gradient
        v = self.b2 * state["v"] + (1 - self.b2) * seen.gradient**2
        last = seen.step == seen.steps - 1
        return torch.zeros_like(m) if last else m / seen.received["vhat"].sqrt(), state | {"m": m, "v": v}

    def conclude(self, state: Tensors, seen: Seen, delta: Tensor) -> tuple[Tensors, Tensors]:
        """Send both moments."""
        return {"local_m": state["m"], "local_v": state["v"]}, state

    def absorb(self, state: Tensors, mean: Tensors, participation: float) -> Tensors:
        """The shared second moment never shrinks."""
        return state | {"vhat": torch.maximum(mean["local_v"], state["vhat"])}


@dataclass(frozen=True)
class LastStep(ServerRule):
    """`x <- x + Delta - stepsize mean_i(m_i) / sqrt(vhat)`: the average after the last local step, which it takes."""

    stepsize: float = 0.1

    def __call__(self, state: Tensors, x: Tensor, mean: Tensors) -> tuple[Tensor, Tensors]:
        """Take the last step with the vhat that was just absorbed."""
        return x + mean["delta"] - self.stepsize * mean["local_m"] / state["vhat"].sqrt(), state


class LocalAMSGrad(Algorithm):
    """Local-AMSGrad (Chen et al. 2020): AMSGrad on the clients, its second moment shared at each communication.

    x_i <- x_i - client_stepsize m_i / sqrt(vhat),    vhat <- max( mean_i v_i, vhat )
    """

    def __init__(self, *, client_stepsize: float = 0.1, b1: float = 0.9, b2: float = 0.99, eps: float = 1e-3) -> None:
        super().__init__(
            stepsize=Constant(client_stepsize), direction=LocalMoments(b1, b2, eps), server=LastStep(client_stepsize)
        )
