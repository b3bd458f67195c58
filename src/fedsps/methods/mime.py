"""MIME, in its form for SGD with momentum."""

from typing import ClassVar

from fedsps.core.algorithm import Algorithm
from fedsps.rules.mime import Mimicry
from fedsps.rules.stepsize import Constant


class Mime(Algorithm):
    """Local steps that mimic the server's by a variance correction and its momentum.

        y <- y - client_stepsize ((1 - b) d + b s),    d = grad F_i(y) - grad F_i(x) + c,    s <- (1 - b) c + b s

    c is the mean over the cohort of the full-batch gradients at x, asked for in an exchange of its own.

    Args:
        client_stepsize: the stepsize of every local step (eta_l).
        momentum: b.

    References:
        Karimireddy, Jaggi, Kale, Mohri, Reddi, Stich, Suresh: Breaking the Centralized Barrier for Cross-Device
        Federated Learning, NeurIPS 2021.
    """

    name: ClassVar[str] = "mime"
    family: ClassVar[str] = "corrected directions"
    colour: ClassVar[str] = "#8C6D31"

    def __init__(self, *, client_stepsize: float = 0.1, momentum: float = 0.9) -> None:
        super().__init__(stepsize=Constant(client_stepsize), direction=Mimicry(momentum=momentum))
