"""MimeLite: MIME without the variance correction."""

from typing import ClassVar

from fedsps.core.algorithm import Algorithm
from fedsps.rules.mime import SharedMomentum
from fedsps.rules.stepsize import Constant


class MimeLite(Algorithm):
    """MIME without the variance correction: local gradients under the server's momentum.

        y <- y - client_stepsize ((1 - b) grad F_i(y) + b s),    s <- (1 - b) c + b s

    c is the mean over the cohort of the full-batch gradients at x, asked for in an exchange of its own.

    Args:
        client_stepsize: the stepsize of every local step (eta_l).
        momentum: b.

    References:
        Karimireddy, Jaggi, Kale, Mohri, Reddi, Stich, Suresh: Breaking the Centralized Barrier for Cross-Device
        Federated Learning, NeurIPS 2021.
    """

    name: ClassVar[str] = "mimelite"
    family: ClassVar[str] = "corrected directions"
    colour: ClassVar[str] = "#C49C94"

    def __init__(self, *, client_stepsize: float = 0.1, momentum: float = 0.9) -> None:
        super().__init__(stepsize=Constant(client_stepsize), direction=SharedMomentum(momentum=momentum))
