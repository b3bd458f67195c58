"""Delta-SGD, the concurrent locally adaptive method."""

from typing import ClassVar

from fedsps.core.algorithm import Algorithm
from fedsps.core.kinds import Average
from fedsps.rules.stepsize import LocalSmoothness


class DeltaSGD(Algorithm):
    """Each client's stepsize from its own estimate of smoothness.

        eta_k = min( gamma ||x_k - x_{k-1}|| / (2 ||g_k - g_{k-1}||), sqrt(1 + delta theta_{k-1}) eta_{k-1} )

    Both gradients are of the current batch, so every local step but the first costs two.

    Args:
        initial: the stepsize of a round's first local step.
        gamma: the factor of the smoothness term.
        delta: how fast the stepsize may grow.
        server_stepsize: how far the server goes along the mean change.

    References:
        Kim, Toghani, Uribe, Kyrillidis: Adaptive Federated Learning with Auto-Tuned Clients, ICLR 2024.
    """

    name: ClassVar[str] = "deltasgd"
    family: ClassVar[str] = "adaptive clients"
    adaptive: ClassVar[str] = "clients"
    colour: ClassVar[str] = "#E7298A"

    def __init__(
        self, *, initial: float = 0.2, gamma: float = 2.0, delta: float = 0.1, server_stepsize: float = 1.0
    ) -> None:
        rule = LocalSmoothness(initial=initial, gamma=gamma, delta=delta)
        super().__init__(stepsize=rule, server=Average(server_stepsize))
