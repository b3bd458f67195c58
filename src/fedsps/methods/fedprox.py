"""FedProx (Li et al. 2020): a pull towards the server's point."""

from fedsps.algorithm import Algorithm
from fedsps.server import Average
from fedsps.stepsize import Constant


class FedProx(Algorithm):
    """FedProx (Li et al. 2020): clients minimise `F_i(y) + mu/2 ||y - x||^2`, x being the server's point.

        y <- y - client_stepsize (g + mu (y - x))

    The penalty goes with any stepsize rule: `sps+prox`, where the Polyak rule sees the regularised loss and gradient.
    """

    def __init__(self, *, client_stepsize: float = 0.1, mu: float = 0.1, server_stepsize: float = 1.0) -> None:
        super().__init__(stepsize=Constant(client_stepsize), server=Average(server_stepsize), proximal=mu)
