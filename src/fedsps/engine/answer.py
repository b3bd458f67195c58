"""One client's share of an exchange, and the means over several; the loop engine and Flower share it.

So a federation whose clients all answer takes the same steps as a local run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedsps.core import streams
from fedsps.core.contract import Exchange, Trace
from fedsps.core.streams import Indices
from fedsps.core.vectors import BufferMean, Tensors, bytes_of, mean
from fedsps.engine.batches import batches, share
from fedsps.engine.round import Collected, bytes_down
from fedsps.engine.setup import Setup, State
from fedsps.rules.aggregation import Mean


@dataclass(frozen=True)
class Answer:
    """One client's share of an exchange.

    Attributes:
        message: what the server may see of it: its part in a mean.
        own: the client's state after it, which the client keeps.
        buffers: its buffers after training that it sends, each `[*]`.
        trace: its losses and stepsizes, `[tau]`, if it trained.
        gradients: what it cost, in mini-batches.
    """

    message: Tensors
    own: Tensors
    buffers: Tensors
    trace: Trace | None
    gradients: int


def answer(
    setup: Setup,
    exchange: Exchange,
    round: int,
    x: Tensor,
    buffers: Tensors,
    received: Tensors,
    client: int,
    own: Tensors,
) -> Answer:
    """The client's work at the server's point.

    Args:
        setup: of the run.
        exchange: which one.
        round: 0, 1, ...
        x: the server's point, `[d]`.
        buffers: the server's.
        received: its broadcast.
        client: the client's number.
        own: the client's state.
    """
    number = np.array([client])
    batch = int(setup.batch_sizes(number, exchange)[0])
    work = batches(setup, exchange, round, number, batch, buffers).alone()
    with streams.torch_seed(setup.plan.seed, exchange.action, round, client):
        message, own, trace = share(setup, exchange, own, x, received, work)
    return Answer(message, own, work.buffers, trace, setup.gradients(number, batch, work.evaluations))


def combine(
    setup: Setup,
    state: State,
    exchange: Exchange,
    clients: Indices,
    answers: Sequence[Answer],
    means: Callable[[str], Mean] = lambda name: mean,
) -> Collected:
    """The means over the clients that answered, in the order of their numbers.

    Args:
        setup: of the run.
        state: before the exchange.
        exchange: which one.
        clients: the numbers of those that answered, ascending.
        answers: theirs.
        means: what is taken for the mean of a message's values of this name, such as a median.
    """
    shares = setup.shares(clients)
    messages = [answer.message for answer in answers]
    traces = [answer.trace.as_cohort for answer in answers if answer.trace is not None]
    buffers = BufferMean()
    bytes_up = sum(exchange.bytes_up(message) for message in messages)
    if traces:
        bytes_up += sum(bytes_of(answer.buffers.values()) for answer in answers)
        buffers.add(
            {name: torch.stack([answer.buffers[name] for answer in answers]) for name in setup.shared(state.buffers)}
        )
    return Collected(
        clients=clients,
        mean={name: means(name)(torch.stack([message[name] for message in messages]), shares) for name in messages[0]},
        buffers=state.buffers | buffers.result(),
        states=state.clients,
        trace=Trace.join(traces) if traces else None,
        gradients=sum(answer.gradients for answer in answers),
        bytes_up=bytes_up,
        bytes_down=bytes_down(state, exchange, clients),
        ledger=state.ledger,
    )
