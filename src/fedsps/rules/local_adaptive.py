"""Directions that adapt to each coordinate on the clients: lazy AdaGrad, and AMSGrad with a shared second moment."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedsps.checks import fraction, positive
from fedsps.core.contract import Seen
from fedsps.core.kinds import Direction, ServerRule, StepsizeRule
from fedsps.core.vectors import Tensors, along, filled
from fedsps.errors import ConfigurationError
from fedsps.rules.stepsize import Constant

__all__ = ["LastStep", "LazyAdagrad", "LocalMoments"]


@dataclass(frozen=True)
class LazyAdagrad(Direction):
    """Local-AdaAlter's direction: `g / sqrt(A + k eps^2)` at local step k = 1 .. tau since the last communication.

    A is the shared sum of squares, `start` in each coordinate at first; a client's own squares of the round are kept
    aside, stood in for by `k eps^2`, and averaged into A at the communication.

    Args:
        start: A before the first round.
        eps: what stands in for a square that is not shared yet.

    References:
        Xie, Koyejo, Gupta, Lin: Local AdaAlter: Communication-Efficient Stochastic Gradient Descent with Adaptive
        Learning Rates, 2019.
    """

    in_sweep: ClassVar[bool] = True
    start: float = 1.0
    eps: float = 1.0
    receives: ClassVar[tuple[str, ...]] = ("squares",)
    sends: ClassVar[tuple[str, ...]] = ("local_squares",)
    method: ClassVar[str] = "Local-AdaAlter"

    def __post_init__(self) -> None:
        positive("start", self.start)
        positive("eps", self.eps)

    def server_init(self, x: Tensor) -> Tensors:
        """The shared sum A, `start` in every coordinate."""
        return {"squares": filled(x, self.start)}

    def begin(self, state: Tensors, x: Tensor) -> Tensors:
        """The client's own sum of the round begins at 0."""
        return state | {"own_squares": torch.zeros_like(x)}

    def __call__(self, state: Tensors, seen: Seen) -> tuple[Tensor, Tensors]:
        """Return the direction, and the state with the own sum."""
        direction = seen.gradient / (seen.received["squares"] + (seen.step + 1) * along(self.eps) ** 2).sqrt()
        return direction, state | {"own_squares": state["own_squares"] + seen.gradient**2}

    def conclude(self, state: Tensors, seen: Seen, delta: Tensor) -> tuple[Tensors, Tensors]:
        """Send the own sum of squares."""
        return {"local_squares": state["own_squares"]}, state

    def absorb(self, state: Tensors, mean: Tensors, participation: float) -> Tensors:
        """A becomes the mean of the clients' A_i = A + own squares."""
        return state | {"squares": state["squares"] + mean["local_squares"]}


@dataclass(frozen=True)
class LocalMoments(Direction):
    """`m_i / sqrt(vhat)`: the client's own momentum, which persists, over a vhat that is frozen between communications.

        m_i <- b1 m_i + (1 - b1) g,   v_i <- b2 v_i + (1 - b2) g^2          at every local step
        vhat <- max( mean_i v_i, vhat )                                     on the server; vhat = eps at the start

    The last local step of a round uses the new vhat, which only the server has: `LastStep` takes it, from the mean
    of the momenta. Here its direction is 0.

    Args:
        b1: decay of the momentum.
        b2: decay of the second moment.
        eps: vhat before the first round.

    References:
        Chen, Li, Li: Toward Communication Efficient Adaptive Gradient Method, FODS 2020.
    """

    in_sweep: ClassVar[bool] = True
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
        """Only `LastStep` takes the step that is left out here, and its length must be the clients'."""
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
        """The client's moments, both 0."""
        return {"m": torch.zeros_like(x), "v": torch.zeros_like(x)}

    def server_init(self, x: Tensor) -> Tensors:
        """The shared second moment, `vhat = eps`."""
        return {"vhat": filled(x, self.eps)}

    def __call__(self, state: Tensors, seen: Seen) -> tuple[Tensor, Tensors]:
        """Return the direction (0 at the round's last step), and the state with the new moments."""
        b1, b2 = along(self.b1), along(self.b2)
        m = b1 * state["m"] + (1 - b1) * seen.gradient
        v = b2 * state["v"] + (1 - b2) * seen.gradient**2
        last = seen.step == seen.steps - 1
        return torch.zeros_like(m) if last else m / seen.received["vhat"].sqrt(), state | {"m": m, "v": v}

    def conclude(self, state: Tensors, seen: Seen, delta: Tensor) -> tuple[Tensors, Tensors]:
        """Send the client's own two moments, m and v, for the server to average."""
        return {"local_m": state["m"], "local_v": state["v"]}, state

    def absorb(self, state: Tensors, mean: Tensors, participation: float) -> Tensors:
        """Raise the shared second moment to the mean of the clients'; it never shrinks."""
        return state | {"vhat": torch.maximum(mean["local_v"], state["vhat"])}


@dataclass(frozen=True)
class LastStep(ServerRule):
    """`x <- x + Delta - stepsize mean_i(m_i) / sqrt(vhat)`: the average after the last local step, which it takes.

    Args:
        stepsize: the clients' stepsize; `LocalMoments` goes with this server alone.
    """

    in_sweep: ClassVar[bool] = True
    stepsize: float = 0.1

    def __call__(self, state: Tensors, x: Tensor, mean: Tensors) -> tuple[Tensor, Tensors]:
        """Take the last step with the vhat that was just absorbed."""
        return x + mean["delta"] - along(self.stepsize) * mean["local_m"] / state["vhat"].sqrt(), state
