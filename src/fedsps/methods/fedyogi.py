"""FedYogi: Yogi on the server."""

from typing import ClassVar

from fedsps.core.algorithm import Algorithm
from fedsps.rules.adaptive_server import Yogi
from fedsps.rules.stepsize import Constant


class FedYogi(Algorithm):
    """FedAvg on the clients, Yogi on the server.

        v <- v - (1 - b2) Delta^2 sign(v - Delta^2),    m and x as FedAdam

    Args:
        client_stepsize: the stepsize of every local step (eta_l).
        server_stepsize: the server's stepsize (eta).
        b1: decay of the momentum.
        b2: decay of the second moment.
        eps: added to the root, and the root of v at the start.

    References:
        Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan: Adaptive Federated Optimization, ICLR 2021.
    """

    name: ClassVar[str] = "fedyogi"
    family: ClassVar[str] = "adaptive server"
    adaptive: ClassVar[str] = "server"
    colour: ClassVar[str] = "#9467BD"

    def __init__(
        self,
        *,
        client_stepsize: float = 0.1,
        server_stepsize: float = 0.1,
        b1: float = 0.9,
        b2: float = 0.99,
        eps: float = 1e-3,
    ) -> None:
        server = Yogi(stepsize=server_stepsize, b1=b1, b2=b2, eps=eps)
        super().__init__(stepsize=Constant(client_stepsize), server=server)
