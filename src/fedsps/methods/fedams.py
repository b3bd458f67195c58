"""FedAMS, the paper's main competitor."""

from typing import ClassVar

from fedsps.core.algorithm import Algorithm
from fedsps.rules.adaptive_server import AMSGrad
from fedsps.rules.stepsize import Constant


class FedAMS(Algorithm):
    """FedAvg on the clients, AMSGrad on the server, stabilised by `max(., eps)`.

        m <- b1 m + (1 - b1) Delta,   v <- b2 v + (1 - b2) Delta^2,   vhat <- max(vhat, v, eps),
        x <- x + server_stepsize m / sqrt(vhat)

    Args:
        client_stepsize: the stepsize of every local step (eta_l).
        server_stepsize: the server's stepsize (eta).
        b1: decay of the momentum.
        b2: decay of the second moment.
        eps: the stabiliser.
        option: 1 as above; 2 adds eps to the root instead.
        bias_correction: the form of the authors' public code (see `AMSGrad`).

    References:
        Wang, Lin, Chen: Communication-Efficient Adaptive Federated Learning, ICML 2022.
    """

    name: ClassVar[str] = "fedams"
    family: ClassVar[str] = "adaptive server"
    adaptive: ClassVar[str] = "server"
    colour: ClassVar[str] = "#000000"

    def __init__(
        self,
        *,
        client_stepsize: float = 0.1,
        server_stepsize: float = 1.0,
        b1: float = 0.9,
        b2: float = 0.99,
        eps: float = 1e-3,
        option: int = 1,
        bias_correction: bool = False,
    ) -> None:
        server = AMSGrad(
            stepsize=server_stepsize, b1=b1, b2=b2, eps=eps, option=option, bias_correction=bias_correction
        )
        super().__init__(stepsize=Constant(client_stepsize), server=server)
