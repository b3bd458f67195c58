"""Penalties: what clients minimise beside their loss."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedsps.checks import positive
from fedsps.core.contract import LossAndGradient
from fedsps.core.kinds import Penalty
from fedsps.core.vectors import along, norm_sq

__all__ = ["Proximal"]


@dataclass(frozen=True)
class Proximal(Penalty):
    """FedProx's pull towards the server's point x: `p(y; x) = mu/2 ||y - x||^2`, with the gradient `mu (y - x)`.

    It goes with any stepsize rule: under `sps+prox` the Polyak rule sees the penalised loss and gradient.

    Args:
        mu: the strength of the pull.

    References:
        Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks, MLSys 2020.

    >>> import torch
    >>> Proximal(mu=0.5)(torch.tensor([3.0, 4.0]), torch.zeros(2))
    (tensor(6.2500), tensor([1.5000, 2.0000]))
    """

    in_sweep: ClassVar[bool] = True
    word: ClassVar[str] = "prox"
    mu: float = 0.1

    def __post_init__(self) -> None:
        positive("mu", self.mu)

    def __call__(self, y: Tensor, start: Tensor) -> LossAndGradient:
        """Return the penalty and its gradient."""
        away = y - start
        return self.mu / 2 * norm_sq(away), along(self.mu) * away
