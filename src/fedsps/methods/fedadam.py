"""FedAdam: Adam on the server."""

from typing import ClassVar

from fedsps.core.algorithm import Algorithm
from fedsps.rules.adaptive_server import Adam
from fedsps.rules.stepsize import Constant


class FedAdam(Algorithm):
    """FedAvg on the clients, Adam on the server, without bias correction.

        m <- b1 m + (1 - b1) Delta,    v <- b2 v + (1 - b2) Delta^2,    x <- x + server_stepsize m / (sqrt(v) + eps)

    Args:
        client_stepsize: the stepsize of every local step (eta_l).
        server_stepsize: the server's stepsize (eta).
        b1: decay of the momentum.
        b2: decay of the second moment.
        eps: added to the root, and the root of v at the start.

    References:
        Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan: Adaptive Federated Optimization, ICLR 2021.
    """

    name: ClassVar[str] = "fedadam"
    family: ClassVar[str] = "adaptive server"
    adaptive: ClassVar[str] = "server"
    colour: ClassVar[str] = "#56B4E9"

    def __init__(
        self,
        *,
        client_stepsize: float = 0.1,
        server_stepsize: float = 0.1,
        b1: float = 0.9,
        b2: float = 0.99,
        eps: float = 1e-3,
    ) -> None:
        server = Adam(stepsize=server_stepsize, b1=b1, b2=b2, eps=eps)
        super().__init__(stepsize=Constant(client_stepsize), server=server)
