"""The catalogue: each named algorithm is a few lines over the parts."""

from dataclasses import dataclass

from torch import Tensor

from fedsps.client import Train
from fedsps.direction import Direction, Gradient
from fedsps.output import LastIterate, OutputRule
from fedsps.parts import Exchange, Part
from fedsps.server import Average, Normalized, ServerRule
from fedsps.shapes import Tensors
from fedsps.stepsize import SPS, Clock, Constant, DecSPS, Smoothing, StepsizeRule
from fedsps.synchronous import Formula, SynchronousSPS

Lower = float | tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """A federated method, composed: stepsize rule x direction rule x server rule x output rule.

    Any composition works: `Algorithm(stepsize=SPS(), server=Average(stepsize=0.5))`.
    """

    stepsize: StepsizeRule
    direction: Direction = Gradient()
    server: ServerRule = Average()
    output: OutputRule = LastIterate()

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts that have state on clients or on the server."""
        return (self.stepsize, self.direction, self.server)

    def check(self, clients: int) -> None:
        """Refuse what does not fit this number of clients."""
        for part in self.parts:
            part.check(clients)

    def client_init(self, x: Tensor) -> Tensors:
        """The state of clients that have not taken part yet; `x [..., d]` tells the shape."""
        return {name: value for part in self.parts for name, value in part.client_init(x).items()}

    def server_init(self, x: Tensor) -> Tensors:
        """The server's state before the first round."""
        return {name: value for part in self.parts for name, value in part.server_init(x).items()}

    def exchanges(self, round: int) -> tuple[Exchange, ...]:
        """The exchanges of round 0, 1, ...: what the parts ask for, then training."""
        before = [exchange for part in self.parts for exchange in part.before(round)]
        return (*before, Train(self.stepsize, self.direction, self.server))


class FedAvg(Algorithm):
    """Federated averaging (McMahan et al. 2017), also called local SGD: constant stepsizes.

    x_i <- x_i - client_stepsize g_i    tau times,    x <- x + server_stepsize mean_i(x_i - x)
    """

    def __init__(self, *, client_stepsize: float = 0.1, server_stepsize: float = 1.0) -> None:
        super().__init__(stepsize=Constant(client_stepsize), server=Average(server_stepsize))


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
