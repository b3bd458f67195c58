"""Stepsize rules that need no lower bound: a constant, and one from local smoothness."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedsps.checks import positive
from fedsps.core.contract import Seen
from fedsps.core.kinds import StepsizeRule
from fedsps.core.vectors import Tensors, norm_sq, scalars

__all__ = ["Constant", "LocalSmoothness"]


@dataclass(frozen=True)
class Constant(StepsizeRule):
    """The same stepsize for every client and step: `gamma = stepsize`.

    Args:
        stepsize: the clients' stepsize (eta_l).

    >>> from fedsps import Algorithm, FedAvg
    >>> Algorithm(stepsize=Constant(0.05)) == FedAvg(client_stepsize=0.05)
    True
    """

    in_span: ClassVar[bool] = True
    in_sweep: ClassVar[bool] = True
    word: ClassVar[str] = "constant"
    is_constant: ClassVar[bool] = True
    stepsize: float = 0.1

    def __post_init__(self) -> None:
        positive("client_stepsize", self.stepsize)

    def __call__(self, state: Tensors, seen: Seen) -> tuple[Tensor, Tensors]:
        """Return `gamma = stepsize`, and the state as it was."""
        return scalars(seen.x, self.stepsize), state


@dataclass(frozen=True)
class LocalSmoothness(StepsizeRule):
    """Delta-SGD's rule: as long a step as the client's own estimate of smoothness allows.

        eta_k = min( gamma ||x_k - x_{k-1}|| / (2 ||g_k - g_{k-1}||), sqrt(1 + delta theta_{k-1}) eta_{k-1} )
        theta_k = eta_k / eta_{k-1}

    It begins anew in each round with `eta_0 = initial`, `theta_0 = 1`. Both gradients are of the current batch: a
    second evaluation at every step but the first. A zero denominator leaves the other term.

    Args:
        initial: the stepsize of a round's first local step.
        gamma: the factor of the smoothness term.
        delta: how fast the stepsize may grow.

    References:
        Kim, Toghani, Uribe, Kyrillidis: Adaptive Federated Learning with Auto-Tuned Clients, ICLR 2024.
    """

    in_span: ClassVar[bool] = True
    in_sweep: ClassVar[bool] = True
    word: ClassVar[str] = "smoothness"
    initial: float = 0.2
    gamma: float = 2.0
    delta: float = 0.1

    def __post_init__(self) -> None:
        positive("initial", self.initial)
        positive("gamma", self.gamma)
        positive("delta", self.delta)

    def begin(self, state: Tensors, x: Tensor) -> Tensors:
        """Nothing is kept between rounds: the last point, stepsize and ratio start anew."""
        return state | {"last_x": x, "last_eta": scalars(x, self.initial), "theta": scalars(x, 1.0)}

    def __call__(self, state: Tensors, seen: Seen) -> tuple[Tensor, Tensors]:
        """Return the stepsize, and the state for the next step; the first step of a round takes `initial`."""
        eta, theta = state["last_eta"], state["theta"]
        if seen.step > 0:
            _, before = seen.probe(state["last_x"])
            moved, turned = norm_sq(seen.x - state["last_x"]).sqrt(), norm_sq(seen.gradient - before).sqrt()
            growth = (1 + self.delta * theta).sqrt() * eta
            smooth = torch.where(turned > 0, self.gamma * moved / (2 * turned), growth)
            new = torch.minimum(smooth, growth)
            eta, theta = new, torch.where(eta > 0, new / eta, 1.0)
        return eta, state | {"last_x": seen.x, "last_eta": eta, "theta": theta}
