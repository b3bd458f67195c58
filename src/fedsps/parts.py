"""The contract between the parts of an algorithm and the engines that run it.

An algorithm is made of parts (frozen values, state goes in and comes out as named tensors). A round is a few
exchanges: the server broadcasts, each client works and answers, the server takes the mean of the answers. Everything
here holds for one client (leading axes `[]`), for many at once (`[clients]`), and for any more leading axes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import Tensor

from fedsps.shapes import Tensors

LossAndGradient = tuple[Tensor, Tensor]
Oracle = Callable[[Tensor, int], LossAndGradient]


class Work(Protocol):
    """What the engine hands to a client: its batches of this exchange, behind an oracle that counts."""

    @property
    def steps(self) -> int:
        """The number of batches: tau for training, 1 for a probe."""
        ...

    @property
    def iteration(self) -> int:
        """The global iteration `round * tau` of the first local step."""
        ...

    @property
    def client(self) -> Tensor:
        """The clients' numbers, `[...]`."""
        ...

    @property
    def fraction(self) -> Tensor:
        """The share of a client's samples in one batch, `B / m_i`, `[...]`."""
        ...

    def loss_and_gradient(self, x: Tensor, step: int) -> LossAndGradient:
        """Loss `[...]` and gradient `[..., d]` of batch `step` at x, as a training step: it updates the buffers."""
        ...

    def probe(self, x: Tensor, step: int) -> LossAndGradient:
        """The same, as an extra evaluation: buffer updates are discarded."""
        ...


@dataclass(frozen=True)
class Seen:
    """What one client, or `[...]` clients at once, observe at a local step."""

    x: Tensor  # [..., d]  the local iterate
    start: Tensor  # [..., d]  the server's point, where this round began
    loss: Tensor  # [...]  F_i(x; batch)
    gradient: Tensor  # [..., d]
    step: int  # 0 .. steps - 1
    steps: int  # tau
    iteration: int  # t = round * tau + step, the same for all clients
    fraction: Tensor  # [...]  B / m_i
    client: Tensor  # [...]  the clients' numbers
    received: Tensors  # the server's broadcast
    probe: Callable[[Tensor], LossAndGradient]  # the same batch at another point; leaves the buffers alone


def look(work: Work, oracle: Oracle, x: Tensor, start: Tensor, step: int, received: Tensors) -> Seen:
    """Evaluate batch `step` at x by one of the two oracles of `work`."""
    loss, gradient = oracle(x, step)
    return Seen(
        x=x,
        start=start,
        loss=loss,
        gradient=gradient,
        step=step,
        steps=work.steps,
        iteration=work.iteration + step,
        fraction=work.fraction,
        client=work.client,
        received=received,
        probe=lambda point: work.probe(point, step),
    )


@dataclass(frozen=True)
class Trace:
    """What happened during the local steps; it travels beside the messages and never feeds back."""

    losses: Tensor  # [..., tau]  the mini-batch losses before each step
    stepsizes: Tensor  # [..., tau]
    gap: Tensor  # [...]  the smallest F - lower of the round; +inf for rules without a bound


def bytes_of(*tensors: Tensor) -> int:
    """The size of tensors when they are sent as they are."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class Exchange:
    """Down, work, up: one of the exchanges of a round."""

    action: ClassVar[str]
    first_client_only: ClassVar[bool] = False
    whole_data: ClassVar[bool] = False

    def broadcast(self, state: Tensors) -> Tensors:
        """What goes down to the clients beside the model, out of the server's state."""
        return {}

    def work(self, state: Tensors, x: Tensor, received: Tensors, work: Work) -> tuple[Tensors, Tensors, Trace | None]:
        """One client's part (or `[...]` clients'): its message, its new state, and a trace if it trained."""
        raise NotImplementedError

    def finish(self, state: Tensors, x: Tensor, mean: Tensors, participation: float) -> tuple[Tensor, Tensors]:
        """The server's part, given the mean of the messages: the next point and its new state.

        `participation` is the share of all clients that took part.
        """
        raise NotImplementedError

    def bytes_up(self, message: Tensors) -> int:
        """What the message takes on the wire."""
        return bytes_of(*message.values())


@dataclass(frozen=True)
class Part:
    """One building block of an algorithm.

    Client state made by `client_init` belongs to the client and persists between rounds; what `begin` adds lives for
    one round. What a part shares goes up in its message (`sends` names it), is absorbed by the server's half of the
    part, and comes down again by the names in `receives`. Names must differ between the parts of one algorithm.
    """

    receives: ClassVar[tuple[str, ...]] = ()
    sends: ClassVar[tuple[str, ...]] = ()

    def check(self, clients: int) -> None:
        """Refuse, with the remedy, a setting that does not fit this number of clients."""

    def client_init(self, x: Tensor) -> Tensors:
        """A new client's own state; `x [..., d]` tells the dtype and the shape."""
        return {}

    def begin(self, state: Tensors, x: Tensor) -> Tensors:
        """The client's state at the start of a round at the server's point `x`."""
        return state

    def conclude(self, state: Tensors, seen: Seen, delta: Tensor) -> tuple[Tensors, Tensors]:
        """The message and the state after the last local step (`seen`), all of which changed the model by `delta`."""
        return {}, state

    def server_init(self, x: Tensor) -> Tensors:
        """The server's state at the start."""
        return {}

    def absorb(self, state: Tensors, mean: Tensors, participation: float) -> Tensors:
        """The server's state after it has the mean of the messages."""
        return state

    def before(self, round: int) -> tuple[Exchange, ...]:
        """The exchanges that this part needs before the training of this round."""
        return ()
