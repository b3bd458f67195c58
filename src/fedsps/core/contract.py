"""The contract between the parts of an algorithm and the engines that run it.

An algorithm is made of parts (frozen values; state goes in and comes out as named tensors). A round is a few
exchanges: the server broadcasts, each client works and answers, the server takes the mean of the answers. Everything
here holds for one client (leading axes `[]`), for many at once (`[clients]`), and for any more leading axes.

    an algorithm owns   one client's work and one server step
    an engine owns      the loops, the batches, who takes part, and how answers travel
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from fedsps.core.vectors import Tensors, bytes_of

LossAndGradient = tuple[Tensor, Tensor]
"""Loss `[...]` and gradient `[..., d]` of one batch."""

Oracle = Callable[[Tensor, int], LossAndGradient]
"""A point `[..., d]` and the number of a batch in, its loss and gradient out."""

Ranges = dict[str, tuple[float, float]]
"""The least and the largest value of scalars that clients send, by name."""


class Work(Protocol):
    """What the engine hands to a client for one exchange: its batches, behind an oracle that counts.

    Attributes:
        steps: the number of batches, tau for training and 1 for a probe.
        iteration: the global iteration `round * tau` of the first local step.
        client: the clients' numbers, `[...]`.
        fraction: the share of a client's samples in one batch, `B / m_i`, `[...]`.
    """

    @property
    def steps(self) -> int: ...  # noqa: D102
    @property
    def iteration(self) -> int: ...  # noqa: D102
    @property
    def client(self) -> Tensor: ...  # noqa: D102
    @property
    def fraction(self) -> Tensor: ...  # noqa: D102

    def loss_and_gradient(self, x: Tensor, step: int) -> LossAndGradient:
        """Loss `[...]` and gradient `[..., d]` of batch `step` at x, as a training step: it updates the buffers."""
        ...

    def probe(self, x: Tensor, step: int) -> LossAndGradient:
        """The same as an extra evaluation: it counts as a gradient, and updates of buffers are discarded."""
        ...


@dataclass(frozen=True)
class Seen:
    """What one client, or `[...]` clients at once, observe at a local step. Stepsizes and directions are made of it.

    Attributes:
        x: the local iterate, `[..., d]`.
        start: the server's point, where this round began, `[..., d]`.
        loss: `F_i(x; batch)`, `[...]`; penalties included.
        gradient: its gradient at x, `[..., d]`.
        step: 0, 1, ..., `steps - 1` within the round.
        steps: local steps of a round (tau).
        iteration: `t = round * tau + step`, the same for all clients.
        fraction: the share of the client's samples in the batch, `B / m_i`, `[...]`.
        client: the clients' numbers, `[...]`.
        received: the server's broadcast, by the names in the parts' `receives`.
        probe: loss and gradient of the same batch at another point; it leaves the buffers alone.
    """

    x: Tensor
    start: Tensor
    loss: Tensor
    gradient: Tensor
    step: int
    steps: int
    iteration: int
    fraction: Tensor
    client: Tensor
    received: Tensors
    probe: Callable[[Tensor], LossAndGradient]


def observe(work: Work, oracle: Oracle, x: Tensor, start: Tensor, step: int, received: Tensors) -> Seen:
    """Evaluate batch `step` at x by one of the two oracles of `work`, and put what a rule may see together.

    Args:
        work: the client's batches.
        oracle: `work.loss_and_gradient` for a training step, `work.probe` for an extra evaluation.
        x: where, `[..., d]`.
        start: the server's point, `[..., d]`.
        step: the number of the batch.
        received: the server's broadcast.
    """
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
    """What happened during the local steps; it travels beside the messages and never feeds back.

    Attributes:
        losses: the mini-batch losses before each step, `[..., tau]`.
        stepsizes: the stepsizes taken, `[..., tau]`.
        gap: the smallest `F - lower` of the round, `[...]`; +inf for rules without a lower bound.
    """

    losses: Tensor
    stepsizes: Tensor
    gap: Tensor

    @classmethod
    def join(cls, traces: "Sequence[Trace]", order: Tensor | None = None) -> "Trace":
        """Traces of several groups of clients, each `[clients, *]`, as one; `order` sorts the clients anew."""
        joined = {name: torch.cat([vars(trace)[name] for trace in traces]) for name in TRACE_FIELDS}
        return cls(**(joined if order is None else {name: value[order] for name, value in joined.items()}))

    @property
    def on_host(self) -> "Trace":
        """The trace in the host's memory, whatever device it was made on; the device is waited for."""
        return Trace(**{name: vars(self)[name].cpu() for name in TRACE_FIELDS})

    @property
    def as_cohort(self) -> "Trace":
        """The trace of a single client, with the leading axis of a cohort of one."""
        return Trace(**{name: vars(self)[name].unsqueeze(0) for name in TRACE_FIELDS})


TRACE_FIELDS = ("losses", "stepsizes", "gap")


class Exchange:
    """Down, work, up: one of the exchanges of a round.

    Attributes:
        action: its name, one of its kind in a round ("train" for the last one).
        first_client_only: whether the lowest-numbered client of the cohort alone takes part.
        whole_data: whether its one batch is all of a client's data.
    """

    action: ClassVar[str]
    first_client_only: ClassVar[bool] = False
    whole_data: ClassVar[bool] = False

    def broadcast(self, state: Tensors) -> Tensors:
        """What goes down to the clients beside the model, out of the server's state; nothing by default."""
        return {}

    def work(self, state: Tensors, x: Tensor, received: Tensors, work: Work) -> tuple[Tensors, Tensors, Trace | None]:
        """One client's share of the exchange, or that of `[...]` clients at once.

        Args:
            state: the client's own, as `client_init` or the last exchange left it.
            x: the server's point, once for each client, `[..., d]`.
            received: the server's broadcast.
            work: the client's batches.

        Returns:
            The message to the server, the client's new state, and a trace if it trained.
        """
        raise NotImplementedError

    def finish(self, state: Tensors, x: Tensor, mean: Tensors, participation: float) -> tuple[Tensor, Tensors]:
        """The server's share: the next point and its new state, given the mean of the messages.

        Args:
            state: the server's own.
            x: its point, `[d]`.
            mean: the mean of the clients' messages, by name.
            participation: the share of all clients that took part, `|cohort| / clients`.
        """
        raise NotImplementedError

    def bytes_up(self, message: Tensors) -> int:
        """What the messages take on the wire; as they are, unless they are compressed."""
        return bytes_of(message.values())


@dataclass(frozen=True)
class Part:
    """One building block of an algorithm: what it keeps on clients and on the server, and what it exchanges.

    Client state made by `client_init` belongs to the client and persists between rounds; what `begin` adds lives for
    one round. What a part shares goes up in its message (`sends` names it), is absorbed by the server's half of the
    part, and comes down again by the names in `receives`. Names must differ between the parts of one algorithm.

    Attributes:
        word: the part's name in compositions, `sps+amsgrad`; a part without one is for Python only.
        receives: names in the server's state that are broadcast to the clients.
        sends: names in the clients' messages, beside the server rule's own.
        in_span: whether its work on clients needs of vectors their sums, products with scalars and norms alone, and no
            coordinates. It speaks of the class itself and not of those that extend it.
        in_sweep: whether it serves many runs at once: all axes but the last of a vector are leading ones, on the server
            too, and its floating parameters may be tensors, one number for each setting: they then go with scalars as
            they are, and with vectors by `along`. It too speaks of the class itself.
    """

    in_span: ClassVar[bool] = False
    in_sweep: ClassVar[bool] = False
    word: ClassVar[str] = ""
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
        """The server's state before the first round; `x [d]` is its point."""
        return {}

    def accept(self, state: Tensors, mean: Tensors) -> Tensors:
        """The mean of the messages as all parts are to take it: a part may refuse a change, and put 0 in its place."""
        return mean

    def absorb(self, state: Tensors, mean: Tensors, participation: float) -> Tensors:
        """The server's state after it has the mean of the messages."""
        return state

    def anew(self, state: Tensors, mean: Tensors) -> tuple[Tensor, Tensor, Tensors] | None:
        """Whether the run has to begin anew, `[...]`, at which point, `[..., d]`, and what of the state it has learnt.

        None, the default: it never has to.
        """
        return None

    def ranges(self, norm: float) -> Ranges:
        """Where the scalars lie that it sends, if no change is longer than `norm`; those beyond are clipped.

        Secure aggregation and differential privacy need them. They refuse what has none: vectors, and by default all.
        """
        return {}

    def private_ranges(self, norm: float) -> Ranges:
        """The same for differential privacy, whose noise grows with the ranges; what is not in it is not sent.

        So they may be narrower here, and a scalar may be missing that `absorb` can do without.
        """
        return self.ranges(norm)

    def privately(self) -> "Part":
        """The part to take its place in runs with differential privacy; itself, if it bears the noise."""
        return self

    def before(self, round: int) -> tuple[Exchange, ...]:
        """The exchanges that this part needs before the training of round 0, 1, ...; none by default."""
        return ()
