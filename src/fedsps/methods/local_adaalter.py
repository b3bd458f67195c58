"""Local-AdaAlter: AdaGrad on the clients with a lazily shared denominator."""

from typing import ClassVar

from fedsps.core.algorithm import Algorithm
from fedsps.rules.local_adaptive import LazyAdagrad
from fedsps.rules.stepsize import Constant


class LocalAdaAlter(Algorithm):
    """AdaGrad on the clients, its denominator shared at each communication.

        x_i <- x_i - client_stepsize g / sqrt(A + k eps^2)   for k = 1 .. tau,    A <- A + mean_i sum_k g^2

    Args:
        client_stepsize: the stepsize of every local step (eta_l).
        start: A before the first round.
        eps: what stands in for a square that is not shared yet.

    References:
        Xie, Koyejo, Gupta, Lin: Local AdaAlter: Communication-Efficient Stochastic Gradient Descent with Adaptive
        Learning Rates, 2019.
    """

    name: ClassVar[str] = "local-adaalter"
    family: ClassVar[str] = "adaptive clients"
    adaptive: ClassVar[str] = "clients"
    colour: ClassVar[str] = "#6A3D9A"

    def __init__(self, *, client_stepsize: float = 0.1, start: float = 1.0, eps: float = 1.0) -> None:
        super().__init__(stepsize=Constant(client_stepsize), direction=LazyAdagrad(start=start, eps=eps))
