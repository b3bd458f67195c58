"""The kinds of parts that an algorithm is made of, and the plainest of each.

| kind | says | plainest |
| --- | --- | --- |
| `StepsizeRule` | how far a local step goes | (none: it must be chosen) |
| `Direction` | which way | `Gradient` |
| `ServerRule` | what the server makes of the mean change | `Average` |
| `OutputRule` | which point is evaluated and returned | `LastIterate` |
| `Penalty` | what is added to the clients' losses | none |
| `Compression` | how the clients' changes are coded | none |

The rest of the toolbox is in `fedsps.rules`.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedsps.checks import positive
from fedsps.core.contract import LossAndGradient, Part, Seen, Trace
from fedsps.core.vectors import Tensors, along
from fedsps.errors import ConfigurationError


@dataclass(frozen=True)
class StepsizeRule(Part):
    """What a client observes at a local step goes in, its stepsize `gamma` comes out: `y <- y - gamma d`.

    To write one, override `__call__`, and `client_init` if the client must remember something. Write it for any
    leading axes and without branches on tensors, and it runs on every engine and on Flower.

    >>> from dataclasses import dataclass
    >>> from fedsps import Algorithm
    >>> @dataclass(frozen=True)
    ... class Harmonic(StepsizeRule):
    ...     first: float = 0.5
    ...
    ...     def __call__(self, state, seen):
    ...         return torch.full_like(seen.loss, self.first / (1 + seen.iteration)), state
    >>> Algorithm(stepsize=Harmonic())
    Algorithm(stepsize=Harmonic(first=0.5))
    """

    slot: ClassVar[str] = "stepsize"
    is_constant: ClassVar[bool] = False  # the same for all clients and steps: defined with every direction

    def __call__(self, state: Tensors, seen: Seen) -> tuple[Tensor, Tensors]:
        """Return `gamma [...]` and the client's new state."""
        raise NotImplementedError

    def gap(self, seen: Seen) -> Tensor | None:
        """How far the loss is above the rule's lower bound, `F - lower`, `[...]`; None for rules without a bound.

        It feeds nothing, and is asked once a round with the smallest of a client's losses: the run stops with a clear
        error where it is below 0, since a rule itself has no branch.
        """
        return None


@dataclass(frozen=True)
class Direction(Part):
    """What a client multiplies its stepsize with: `y <- y - gamma d`.

    Attributes:
        method: the name of the method that it belongs to, for messages.
    """

    slot: ClassVar[str] = "direction"
    method: ClassVar[str] = ""

    def check_with(self, stepsize: StepsizeRule, server: "ServerRule") -> None:
        """Refuse other parts that are not defined with this direction.

        The paper defines the Polyak stepsize for the gradient alone: the ratio of a loss gap and the squared norm of
        a corrected direction bounds nothing. So any other direction takes a constant stepsize only.
        """
        if not stepsize.is_constant:
            raise ConfigurationError(
                f"the stepsize rule {type(stepsize).__name__} is not defined with the corrected direction of "
                f"{self.method or type(self).__name__}: use a constant stepsize with it, or the plain gradient"
            )

    def __call__(self, state: Tensors, seen: Seen) -> tuple[Tensor, Tensors]:
        """Return the direction `d [..., d]` and the client's new state."""
        raise NotImplementedError


@dataclass(frozen=True)
class Gradient(Direction):
    """Plain stochastic gradient descent: the direction is the mini-batch gradient, `d = grad F_i(y; batch)`."""

    in_span: ClassVar[bool] = True
    in_sweep: ClassVar[bool] = True

    def check_with(self, stepsize: StepsizeRule, server: "ServerRule") -> None:
        """Every stepsize rule and server rule is defined with the gradient."""

    def __call__(self, state: Tensors, seen: Seen) -> tuple[Tensor, Tensors]:
        """Return the gradient as it was observed."""
        return seen.gradient, state


@dataclass(frozen=True)
class OutputRule:
    """Which point is evaluated and returned. Training always goes on from the server's x, whatever the output is."""

    slot: ClassVar[str] = "output"
    word: ClassVar[str] = ""

    def init(self, x: Tensor) -> Tensors:
        """The rule's state before the first round."""
        return {}

    def __call__(self, state: Tensors, x: Tensor, round: int) -> tuple[Tensor, Tensors]:
        """Return the output after round 1, 2, ..., given the server's x after it, and the new state."""
        raise NotImplementedError


@dataclass(frozen=True)
class LastIterate(OutputRule):
    """The server's x itself, `xhat_r = x_r`: what most methods return."""

    in_sweep: ClassVar[bool] = True
    word: ClassVar[str] = "last"

    def __call__(self, state: Tensors, x: Tensor, round: int) -> tuple[Tensor, Tensors]:
        """Return x as it is."""
        return x, state


@dataclass(frozen=True)
class ServerRule(Part):
    """What the server makes of the mean of the messages. `report` runs on the client, `__call__` on the server.

    `delta_i = x_i - x` is what a client's local steps changed; the server sees only means over the cohort, so secure
    aggregation and constant memory come for free.

    Attributes:
        output: what goes with the rule where no other output is asked for.
    """

    slot: ClassVar[str] = "server"
    output: ClassVar[OutputRule] = LastIterate()

    def report(self, delta: Tensor, trace: Trace) -> Tensors:
        """What a client sends: its change `[..., d]`, unless the rule needs something else."""
        return {"delta": delta}

    def __call__(self, state: Tensors, x: Tensor, mean: Tensors) -> tuple[Tensor, Tensors]:
        """Return the next point and the server's new state."""
        raise NotImplementedError


@dataclass(frozen=True)
class Average(ServerRule):
    """`x <- x + stepsize * mean_i(x_i - x)`; with a stepsize of 1 the plain mean of the clients' points.

    Args:
        stepsize: the server's stepsize (eta).
    """

    in_span: ClassVar[bool] = True
    in_sweep: ClassVar[bool] = True
    word: ClassVar[str] = "average"
    stepsize: float = 1.0

    def __post_init__(self) -> None:
        positive("server_stepsize", self.stepsize)

    def __call__(self, state: Tensors, x: Tensor, mean: Tensors) -> tuple[Tensor, Tensors]:
        """Move by the mean change."""
        return x + along(self.stepsize) * mean["delta"], state


@dataclass(frozen=True)
class Penalty:
    """What clients minimise beside their loss: `F_i(y) + p(y; x)`, x being the server's point.

    Stepsize rules and directions see the penalised loss and gradient, in probes too.
    """

    slot: ClassVar[str] = "penalty"
    word: ClassVar[str] = ""

    def __call__(self, y: Tensor, start: Tensor) -> LossAndGradient:
        """Return `p(y; x)`, `[...]`, and its gradient in y, `[..., d]`; `start` is x."""
        raise NotImplementedError


@dataclass(frozen=True)
class Compression:
    """How a client's change is coded: a lossy function C of one vector, with error feedback.

        p = delta_i + e_i,    send C(p),    e_i <- p - C(p)          e_i is the client's own and starts at 0

    To write one, override `compress` and `bits`.

    References:
        Wang, Lin, Chen: Communication-Efficient Adaptive Federated Learning (FedCAMS), ICML 2022.
    """

    slot: ClassVar[str] = "compression"
    word: ClassVar[str] = ""

    def client_init(self, x: Tensor) -> Tensors:
        """What a client has not sent yet, `e_i = 0`."""
        return {"unsent": torch.zeros_like(x)}

    def __call__(self, state: Tensors, delta: Tensor) -> tuple[Tensor, Tensors]:
        """Return what is sent, `C(delta + e)`, and the state with what is left over."""
        wanted = delta + state["unsent"]
        sent = self.compress(wanted)
        return sent, state | {"unsent": wanted - sent}

    def compress(self, v: Tensor) -> Tensor:
        """`C(v)`, `[..., d] -> [..., d]`."""
        raise NotImplementedError

    def bits(self, v: Tensor) -> int:
        """The size of the code of one vector of this length and dtype."""
        raise NotImplementedError


Kind = type[StepsizeRule] | type[Direction] | type[ServerRule] | type[OutputRule] | type[Penalty] | type[Compression]

KINDS: tuple[Kind, ...] = (StepsizeRule, Direction, ServerRule, OutputRule, Penalty, Compression)
"""Each has a `slot`, its place in `Algorithm`."""
