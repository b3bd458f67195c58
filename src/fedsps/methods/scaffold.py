"""SCAFFOLD, option II."""

from typing import ClassVar

from fedsps.core.algorithm import Algorithm
from fedsps.core.kinds import Average
from fedsps.rules.control_variates import ControlVariates
from fedsps.rules.stepsize import Constant


class Scaffold(Algorithm):
    """Local steps corrected by control variates (option II).

        y <- y - client_stepsize (g - c_i + c),    c_i <- c_i - c + (x - y) / (tau client_stepsize)
        x <- x + server_stepsize mean_i(y_i - x),    c <- c + |cohort| / clients * mean_i(change of c_i)

    Args:
        client_stepsize: the stepsize of every local step (eta_l).
        server_stepsize: how far the server goes along the mean change (eta).

    References:
        Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: Stochastic Controlled Averaging for Federated
        Learning, ICML 2020.
    """

    name: ClassVar[str] = "scaffold"
    family: ClassVar[str] = "corrected directions"
    colour: ClassVar[str] = "#7570B3"

    def __init__(self, *, client_stepsize: float = 0.1, server_stepsize: float = 1.0) -> None:
        super().__init__(
            stepsize=Constant(client_stepsize),
            direction=ControlVariates(stepsize=client_stepsize),
            server=Average(server_stepsize),
        )
