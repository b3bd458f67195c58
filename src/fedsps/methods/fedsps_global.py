"""FedSPS-Global, of the paper's appendix."""

from typing import ClassVar

from fedsps.core.algorithm import Algorithm
from fedsps.core.kinds import Average
from fedsps.rules.global_stepsize import Formula, GlobalStepsize
from fedsps.rules.polyak import SPS, Lower, Smoothing


class FedSPSGlobal(Algorithm):
    """One Polyak stepsize for all clients, averaged on the server and one round old (appendix).

        gamma = mean_i min( (F_i(x_i; batch) - lower_i) / (scale ||g_i||^2), cap )    at the last local step

    Args:
        scale: c, what the ratio is divided by.
        cap: gamma_b, the largest stepsize.
        lower: l*, a lower bound of the losses, one number or one for each client.
        smoothing: "paper" or "loizou" lets each client's cap move (see `SPS`).
        reset: whether a smoothed cap begins anew in each round; the paper leaves it open.
        formula: "a" as above; "b" and "c" are in `GlobalStepsize`.
        initial: the first round's stepsize; None asks one client for its own.
        server_stepsize: how far the server goes along the mean change.

    References:
        Mukherjee, Loizou, Stich: Locally Adaptive Federated Learning, appendix.
    """

    name: ClassVar[str] = "fedsps-global"
    family: ClassVar[str] = "the paper's own"
    adaptive: ClassVar[str] = "server"
    colour: ClassVar[str] = "#E69F00"

    def __init__(
        self,
        *,
        scale: float = 0.5,
        cap: float = 1.0,
        lower: Lower = 0.0,
        smoothing: Smoothing | None = None,
        reset: bool = False,
        formula: Formula = "a",
        initial: float | None = None,
        server_stepsize: float = 1.0,
    ) -> None:
        local = SPS(scale=scale, cap=cap, lower=lower, smoothing=smoothing, reset=reset)
        rule = GlobalStepsize(local=local, formula=formula, initial=initial)
        super().__init__(stepsize=rule, server=Average(server_stepsize))
