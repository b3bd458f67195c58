"""The paper's own methods: FedSPS, FedDecSPS, FedSPS-Normalized and FedSPS-Global."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedsps.algorithm import Algorithm
from fedsps.methods.synchronous import Formula, SynchronousSPS
from fedsps.parts import Trace
from fedsps.server import Average, ServerRule
from fedsps.shapes import Tensors, scale
from fedsps.stepsize import SPS, Clock, DecSPS, Smoothing

Lower = float | tuple[float, ...]


class FedSPS(Algorithm):
    """The paper's main method (algorithm 1): every client, at every local step, by the stochastic Polyak stepsize.

        x_i <- x_i - gamma_i g_i,    gamma_i = min( (F_i(x_i; batch) - lower_i) / (scale ||g_i||^2), cap )

    `smoothing` lets each client's cap grow ("paper", "loizou"; see `SPS`); it is off by default.
    """

    def __init__(
        self,
        *,
        scale: float = 0.5,
        cap: float = 1.0,
        lower: Lower = 0.0,
        smoothing: Smoothing | None = None,
        server_stepsize: float = 1.0,
    ) -> None:
        rule = SPS(scale, cap, lower, smoothing)
        super().__init__(stepsize=rule, server=Average(server_stepsize))


class FedDecSPS(Algorithm):
    """The paper's decreasing variant (section 5), for data that no single model fits exactly.

        gamma_t = (1/c_t) min( (F_i(x_i; batch) - lower_i) / ||g_i||^2, c_{t-1} gamma_{t-1} ),   c_t = scale sqrt(t+1)

    `clock` and `reset` settle what the paper leaves open; see `DecSPS`.
    """

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
        rule = DecSPS(scale, cap, lower, clock, reset)
        super().__init__(stepsize=rule, server=Average(server_stepsize))


@dataclass(frozen=True)
class Normalized(ServerRule):
    """The paper's FedSPS-Normalized (its appendix, after Wang et al. 2021).

        x <- ( mean_i x_i / nu_i ) / ( mean_i 1 / nu_i ),    nu_i = the sum of client i's local stepsizes

    written with the changes `x_i - x`, which is the same. Clients with `nu_i = 0` did not move and are left out; if
    all are, x stays.

    Deviation: the paper's pseudo-code leaves the stepsize of the last local step out of nu_i, its text does not. We
    follow the text, so that tau = 1 is defined.
    """

    sends: ClassVar[tuple[str, ...]] = ("normalized_delta", "inverse_stepsizes")

    def report(self, delta: Tensor, trace: Trace) -> Tensors:
        """Return `delta_i / nu_i` and `1 / nu_i`, both 0 where `nu_i = 0`."""
        total = trace.stepsizes.sum(-1)
        inverse = torch.where(total > 0, 1 / total, 0.0)
        return {"normalized_delta": scale(inverse, delta), "inverse_stepsizes": inverse}

    def __call__(self, state: Tensors, x: Tensor, mean: Tensors) -> tuple[Tensor, Tensors]:
        """Undo the mean normalisation."""
        inverse = mean["inverse_stepsizes"]
        return x + scale(torch.where(inverse > 0, 1 / inverse, 0.0), mean["normalized_delta"]), state


class FedSPSNormalized(Algorithm):
    """The paper's FedSPS-Normalized (appendix): each client's change is divided by its sum of stepsizes.

    x <- ( mean_i x_i / nu_i ) / ( mean_i 1 / nu_i ),    nu_i = the sum of client i's local stepsizes
    """

    def __init__(
        self,
        *,
        scale: float = 0.5,
        cap: float = 1.0,
        lower: Lower = 0.0,
        smoothing: Smoothing | None = None,
    ) -> None:
        super().__init__(stepsize=SPS(scale, cap, lower, smoothing), server=Normalized())


class FedSPSGlobal(Algorithm):
    """The paper's FedSPS-Global (appendix): one stepsize for all, averaged on the server, one round old.

        gamma = mean_i min( (F_i(x_i; batch) - lower_i) / (scale ||g_i||^2), cap )    at the last local step

    Formulas (b) and (c), and the first stepsize `initial`: see `SynchronousSPS`.
    """

    def __init__(
        self,
        *,
        scale: float = 0.5,
        cap: float = 1.0,
        lower: Lower = 0.0,
        smoothing: Smoothing | None = None,
        formula: Formula = "a",
        initial: float | None = None,
        server_stepsize: float = 1.0,
    ) -> None:
        rule = SynchronousSPS(SPS(scale, cap, lower, smoothing), formula, initial)
        super().__init__(stepsize=rule, server=Average(server_stepsize))
