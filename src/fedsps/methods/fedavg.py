"""FedAvg, the baseline of the field."""

from typing import ClassVar

from fedsps.core.algorithm import Algorithm
from fedsps.core.kinds import Average
from fedsps.rules.stepsize import Constant


class FedAvg(Algorithm):
    """Federated averaging, also called local SGD: constant stepsizes and the plain mean.

        x_i <- x_i - client_stepsize g_i    tau times,    x <- x + server_stepsize mean_i(x_i - x)

    Args:
        client_stepsize: the stepsize of every local step (eta_l).
        server_stepsize: how far the server goes along the mean change (eta).

    References:
        McMahan, Moore, Ramage, Hampson, Aguera y Arcas: Communication-Efficient Learning of Deep Networks from
        Decentralized Data, AISTATS 2017.

    >>> FedAvg(client_stepsize=0.01)
    FedAvg(client_stepsize=0.01)
    """

    name: ClassVar[str] = "fedavg"
    family: ClassVar[str] = "averaging"
    colour: ClassVar[str] = "#0072B2"

    def __init__(self, *, client_stepsize: float = 0.1, server_stepsize: float = 1.0) -> None:
        super().__init__(stepsize=Constant(client_stepsize), server=Average(server_stepsize))
