"""FedSPS-Normalized, of the paper's appendix."""

from typing import ClassVar

from fedsps.core.algorithm import Algorithm
from fedsps.rules.polyak import SPS, Lower, Smoothing
from fedsps.rules.server import Normalized


class FedSPSNormalized(Algorithm):
    """FedSPS with each client's change divided by the sum of its stepsizes (appendix).

        x <- ( mean_i x_i / nu_i ) / ( mean_i 1 / nu_i ),    nu_i = the sum of client i's local stepsizes

    Args:
        scale: c, what the ratio is divided by.
        cap: gamma_b, the largest stepsize.
        lower: l*, a lower bound of the losses, one number or one for each client.
        smoothing: "paper" or "loizou" lets each client's cap move (see `SPS`).
        reset: whether a smoothed cap begins anew in each round; the paper leaves it open.

    References:
        Mukherjee, Loizou, Stich: Locally Adaptive Federated Learning, appendix.
    """

    name: ClassVar[str] = "fedsps-normalized"
    family: ClassVar[str] = "the paper's own"
    adaptive: ClassVar[str] = "clients"
    colour: ClassVar[str] = "#CC79A7"

    def __init__(
        self,
        *,
        scale: float = 0.5,
        cap: float = 1.0,
        lower: Lower = 0.0,
        smoothing: Smoothing | None = None,
        reset: bool = False,
    ) -> None:
        rule = SPS(scale=scale, cap=cap, lower=lower, smoothing=smoothing, reset=reset)
        super().__init__(stepsize=rule, server=Normalized())
