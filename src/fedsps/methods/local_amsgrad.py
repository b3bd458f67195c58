"""Local-AMSGrad: adaptive local steps under one shared second moment."""

from typing import ClassVar

from fedsps.core.algorithm import Algorithm
from fedsps.rules.local_adaptive import LastStep, LocalMoments
from fedsps.rules.stepsize import Constant


class LocalAMSGrad(Algorithm):
    """AMSGrad on the clients, its second moment shared at each communication.

        x_i <- x_i - client_stepsize m_i / sqrt(vhat),    vhat <- max( mean_i v_i, vhat )

    Args:
        client_stepsize: the stepsize of every local step, the last of which the server takes.
        b1: decay of the clients' momenta.
        b2: decay of the clients' second moments.
        eps: vhat before the first round.

    References:
        Chen, Li, Li: Toward Communication Efficient Adaptive Gradient Method, FODS 2020.
    """

    name: ClassVar[str] = "local-amsgrad"
    family: ClassVar[str] = "adaptive clients"
    adaptive: ClassVar[str] = "clients"
    colour: ClassVar[str] = "#1B9E77"

    def __init__(self, *, client_stepsize: float = 0.1, b1: float = 0.9, b2: float = 0.99, eps: float = 1e-3) -> None:
        super().__init__(
            stepsize=Constant(client_stepsize),
            direction=LocalMoments(b1=b1, b2=b2, eps=eps),
            server=LastStep(stepsize=client_stepsize),
        )
