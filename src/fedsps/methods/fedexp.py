"""FedExP: extrapolation on the server."""

from typing import ClassVar

from fedsps.core.algorithm import Algorithm
from fedsps.rules.server import Extrapolation
from fedsps.rules.stepsize import Constant


class FedExP(Algorithm):
    """FedAvg on the clients; the server extrapolates as far as the clients disagree.

        x <- x + eta Delta,    eta = max(1, mean_i ||x_i - x||^2 / (2 (||Delta||^2 + eps)))

    The output is the mean of the last two iterates.

    Args:
        client_stepsize: the stepsize of every local step (eta_l).
        eps: keeps eta finite where the mean change vanishes.

    References:
        Jhunjhunwala, Wang, Joshi: FedExP: Speeding Up Federated Averaging via Extrapolation, ICLR 2023.
    """

    name: ClassVar[str] = "fedexp"
    family: ClassVar[str] = "adaptive server"
    adaptive: ClassVar[str] = "server"
    colour: ClassVar[str] = "#17BECF"

    def __init__(self, *, client_stepsize: float = 0.1, eps: float = 1e-3) -> None:
        super().__init__(stepsize=Constant(client_stepsize), server=Extrapolation(eps=eps))
