"""FedAvgM: momentum on the server."""

from typing import ClassVar

from fedsps.core.algorithm import Algorithm
from fedsps.rules.server import Momentum
from fedsps.rules.stepsize import Constant


class FedAvgM(Algorithm):
    """FedAvg with heavy-ball momentum on the server.

        x_i <- x_i - client_stepsize g_i    tau times,    m <- beta m + Delta,    x <- x + server_stepsize m

    Args:
        client_stepsize: the stepsize of every local step (eta_l).
        server_stepsize: the server's stepsize (eta).
        beta: how much of the momentum stays.

    References:
        Hsu, Qi, Brown: Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification,
        2019.
    """

    name: ClassVar[str] = "fedavgm"
    family: ClassVar[str] = "averaging"
    colour: ClassVar[str] = "#08306B"

    def __init__(self, *, client_stepsize: float = 0.1, server_stepsize: float = 1.0, beta: float = 0.9) -> None:
        super().__init__(stepsize=Constant(client_stepsize), server=Momentum(stepsize=server_stepsize, beta=beta))
