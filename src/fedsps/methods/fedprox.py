"""FedProx: a pull towards the server's point."""

from typing import ClassVar

from fedsps.core.algorithm import Algorithm
from fedsps.core.kinds import Average
from fedsps.rules.penalty import Proximal
from fedsps.rules.stepsize import Constant


class FedProx(Algorithm):
    """FedAvg whose clients are pulled towards the server's point x: they minimise `F_i(y) + mu/2 ||y - x||^2`.

        y <- y - client_stepsize (g + mu (y - x))

    The penalty goes with any stepsize rule: `sps+prox`, where the Polyak rule sees the penalised loss and gradient.

    Args:
        client_stepsize: the stepsize of every local step (eta_l).
        mu: the strength of the pull; 0 is FedAvg.
        server_stepsize: how far the server goes along the mean change (eta).

    References:
        Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks, MLSys 2020.
    """

    name: ClassVar[str] = "fedprox"
    family: ClassVar[str] = "averaging"
    colour: ClassVar[str] = "#66A61E"

    def __init__(self, *, client_stepsize: float = 0.1, mu: float = 0.1, server_stepsize: float = 1.0) -> None:
        super().__init__(
            stepsize=Constant(client_stepsize), server=Average(server_stepsize), penalty=Proximal(mu=mu) if mu else None
        )
