"""Delta-SGD (Kim et al. 2023), the concurrent locally adaptive method: stepsizes from local smoothness."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedsps.algorithm import Algorithm
from fedsps.checks import positive
from fedsps.parts import Seen
from fedsps.server import Average
from fedsps.shapes import Tensors, norm_sq, scalars
from fedsps.stepsize import StepsizeRule


@dataclass(frozen=True)
class LocalSmoothness(StepsizeRule):
    """Delta-SGD's rule; it begins anew in each round with `eta_0 = initial`, `theta_0 = 1`.

        eta_k = min( gamma ||x_k - x_{k-1}|| / (2 ||g_k - g_{k-1}||), sqrt(1 + delta theta_{k-1}) eta_{k-1} )
        theta_k = eta_k / eta_{k-1}

    Both gradients are of the current batch: a second evaluation at every step but the first. A zero denominator
    leaves the other term.
    """

    initial: float = 0.2
    gamma: float = 2.0
    delta: float = 0.1

    def __post_init__(self) -> None:
        positive("initial", self.initial)
        positive("gamma", self.gamma)
        positive("delta", self.delta)

    def begin(self, state: Tensors, x: Tensor) -> Tensors:
        """Nothing is kept between rounds."""
        return state | {"last_x": x, "last_eta": scalars(x, self.initial), "theta": scalars(x, 1.0)}

    def __call__(self, state: Tensors, seen: Seen) -> tuple[Tensor, Tensors]:
        """Return the stepsize, and the state for the next step."""
        eta, theta = state["last_eta"], state["theta"]
        if seen.step > 0:
            _, before = seen.probe(state["last_x"])
            moved, turned = norm_sq(seen.x - state["last_x"]).sqrt(), norm_sq(seen.gradient - before).sqrt()
            growth = (1 + self.delta * theta).sqrt() * eta
            smooth = torch.where(turned > 0, self.gamma * moved / (2 * turned), growth)
            new = torch.minimum(smooth, growth)
            eta, theta = new, torch.where(eta > 0, new / eta, 1.0)
        return eta, state | {"last_x": seen.x, "last_eta": eta, "theta": theta}


class DeltaSGD(Algorithm):
    """Delta-SGD (Kim et al. 2023): each client's stepsize from its own estimate of smoothness.

        eta_k = min( gamma ||x_k - x_{k-1}|| / (2 ||g_k - g_{k-1}||), sqrt(1 + delta theta_{k-1}) eta_{k-1} )

    Both gradients are of the current batch, so every local step but the first costs two.
    """

    def __init__(
        self, *, initial: float = 0.2, gamma: float = 2.0, delta: float = 0.1, server_stepsize: float = 1.0
    ) -> None:
        super().__init__(stepsize=LocalSmoothness(initial, gamma, delta), server=Average(server_stepsize))
