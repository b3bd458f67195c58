"""FedDecSPS, the paper's method for data that no single model fits exactly."""

from typing import ClassVar

from fedsps.core.algorithm import Algorithm
from fedsps.core.kinds import Average
from fedsps.rules.polyak import Clock, DecSPS, Lower


class FedDecSPS(Algorithm):
    """The Polyak stepsize under a decreasing bound, for data that no single model fits exactly (section 5).

        gamma_t = (1/c_t) min( (F_i(x_i; batch) - lower_i) / ||g_i||^2, c_{t-1} gamma_{t-1} ),   c_t = scale sqrt(t+1)

    Args:
        scale: c_0.
        cap: gamma_b, the bound of the first stepsize.
        lower: l*, a lower bound of the losses, one number or one for each client.
        clock: what t counts, the "global" iteration or the "client"'s own steps; the paper leaves it open.
        reset: whether a client's minimum begins anew in each round; the paper leaves it open.
        server_stepsize: how far the server goes along the mean change.

    References:
        Mukherjee, Loizou, Stich: Locally Adaptive Federated Learning, section 5.
    """

    name: ClassVar[str] = "feddecsps"
    family: ClassVar[str] = "the paper's own"
    adaptive: ClassVar[str] = "clients"
    colour: ClassVar[str] = "#009E73"

    def __init__(
        self,
        *,
        scale: float = 0.5,
        cap: float = 1.0,
        lower: Lower = 0.0,
        clock: Clock = "global",
        reset: bool = False,
        server_stepsize: float = 1.0,
    ) -> None:
        rule = DecSPS(scale=scale, cap=cap, lower=lower, clock=clock, reset=reset)
        super().__init__(stepsize=rule, server=Average(server_stepsize))
