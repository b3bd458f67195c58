"""FedSPS, the paper's main method."""

from typing import ClassVar

from fedsps.core.algorithm import Algorithm
from fedsps.core.kinds import Average
from fedsps.rules.polyak import SPS, Lower, Smoothing


class FedSPS(Algorithm):
    """Each client's own stochastic Polyak stepsize at every local step: the paper's main method (algorithm 1).

        x_i <- x_i - gamma_i g_i,    gamma_i = min( (F_i(x_i; batch) - lower_i) / (scale ||g_i||^2), cap )

    Args:
        scale: c, what the ratio is divided by.
        cap: gamma_b, the largest stepsize.
        lower: l*, a lower bound of the losses, one number or one for each client; 0 is one for most losses.
        smoothing: "paper" or "loizou" lets each client's cap move (see `SPS`); off by default.
        reset: whether a smoothed cap begins anew in each round; the paper leaves it open.
        server_stepsize: how far the server goes along the mean change.

    References:
        Mukherjee, Loizou, Stich: Locally Adaptive Federated Learning, algorithm 1.

    >>> FedSPS(cap=10.0, smoothing="paper")
    FedSPS(cap=10.0, smoothing='paper')
    >>> FedSPS(cap=-1)
    Traceback (most recent call last):
    fedsps.errors.ConfigurationError: cap must be a finite number above 0; got -1
    """

    name: ClassVar[str] = "fedsps"
    family: ClassVar[str] = "the paper's own"
    adaptive: ClassVar[str] = "clients"
    colour: ClassVar[str] = "#D55E00"

    def __init__(
        self,
        *,
        scale: float = 0.5,
        cap: float = 1.0,
        lower: Lower = 0.0,
        smoothing: Smoothing | None = None,
        reset: bool = False,
        server_stepsize: float = 1.0,
    ) -> None:
        rule = SPS(scale=scale, cap=cap, lower=lower, smoothing=smoothing, reset=reset)
        super().__init__(stepsize=rule, server=Average(server_stepsize))
