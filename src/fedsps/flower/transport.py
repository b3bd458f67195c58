"""How answers travel from the clients to the server, and what the server has heard so far.

`Server` owns the loop over repeats and refusals; a transport asks once, sorts what it hears, and takes the mean.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from flwr.app import Context

from fedsps.core.contract import Exchange
from fedsps.core.streams import Indices
from fedsps.engine.round import Collected
from fedsps.engine.session import Scores
from fedsps.engine.setup import Setup, State
from fedsps.errors import LowerBoundError
from fedsps.flower.membership import Membership


@dataclass
class Heard:
    """The answers of an exchange so far, by client: those that count, and those that no repetition would mend.

    Attributes:
        sound: answers that count.
        infinite: answers with NaN or infinity: the client diverged, or is broken.
        below: clients that saw a loss below its bound.
        far: clients whose answer was far larger than the others'.
        silent: clients that did not answer; the next attempt may do without them.
        unused: answers that were sound, but too few to be used.
        seconds: that clients worked on their answers before they were asked for, see `PlainTransport.evaluate`.

    >>> heard = Heard(sound={0: "answer", 1: "answer"}, infinite={2: "answer"})
    >>> heard.refused, heard.is_half(heard.infinite)
    ([2], False)
    """

    sound: dict[int, Any] = field(default_factory=dict)
    infinite: dict[int, Any] = field(default_factory=dict)
    below: dict[int, LowerBoundError] = field(default_factory=dict)
    far: set[int] = field(default_factory=set)
    silent: set[int] = field(default_factory=set)
    unused: int = 0
    seconds: float = 0.0

    @property
    def refused(self) -> list[int]:
        """Clients that need not be asked again: what they compute is decided by the seed."""
        return [*self.infinite, *self.below, *self.far]

    def again(self) -> None:
        """Before another attempt: nothing of the last one counts, but for what no repetition would mend."""
        self.sound.clear()
        self.unused = 0

    def is_half(self, some: Mapping[int, object]) -> bool:
        """Whether at least half of the answers are such. A few clients may be broken; half are the run's own fault."""
        return bool(some) and 2 * len(some) >= len(self.sound) + self.unused + len(self.refused)


class Transport(Protocol):
    """How answers travel from the clients to the server: `PlainTransport`, or `SecureTransport` as a sum.

    Attributes:
        tells: whether clients tell more of their data than the message: sizes, losses, scores.
    """

    @property
    def tells(self) -> bool: ...  # noqa: D102

    def check(self, setup: Setup) -> None:
        """Refuse, before the first round, what this transport cannot carry."""
        ...

    def least(self, audience: int) -> int:
        """How many of so many clients must answer for an exchange to count."""
        ...

    def ask(self, setup: Setup, state: State, exchange: Exchange, audience: Indices, heard: Heard) -> list[str]:
        """Ask these clients and sort their answers into `heard`; what went wrong with those that do not count."""
        ...

    def combine(self, setup: Setup, state: State, exchange: Exchange, heard: Heard, diverged: bool) -> Collected:
        """The means of what was heard; NaN, on which a session ends, if the run has diverged."""
        ...

    def evaluate(self, setup: Setup, state: State) -> Scores:
        """The objective, and loss and accuracy on the clients' own test data, over those that answer."""
        ...


MakeTransport = Callable[[Membership, Context | None, str], Transport]
"""From who is there, Flower's context and the run's digest."""
