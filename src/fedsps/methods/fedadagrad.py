"""FedAdagrad: Adagrad on the server."""

from typing import ClassVar

from fedsps.core.algorithm import Algorithm
from fedsps.rules.adaptive_server import Adagrad
from fedsps.rules.stepsize import Constant


class FedAdagrad(Algorithm):
    """FedAvg on the clients, Adagrad on the server.

        m <- b1 m + (1 - b1) Delta,    v <- v + Delta^2,    x <- x + server_stepsize m / (sqrt(v) + eps)

    Args:
        client_stepsize: the stepsize of every local step (eta_l).
        server_stepsize: the server's stepsize (eta).
        b1: decay of the momentum.
        eps: added to the root, and the root of v at the start.

    References:
        Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan: Adaptive Federated Optimization, ICLR 2021.
    """

    name: ClassVar[str] = "fedadagrad"
    family: ClassVar[str] = "adaptive server"
    adaptive: ClassVar[str] = "server"
    colour: ClassVar[str] = "#7F7F7F"

    def __init__(
        self,
        *,
        client_stepsize: float = 0.1,
        server_stepsize: float = 0.1,
        b1: float = 0.9,
        eps: float = 1e-3,
    ) -> None:
        server = Adagrad(stepsize=server_stepsize, b1=b1, eps=eps)
        super().__init__(stepsize=Constant(client_stepsize), server=server)
