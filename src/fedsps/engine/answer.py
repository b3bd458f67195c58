"""What one client does in an exchange, and what the server makes of the answers; loop and Flower share it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedsps import streams
from fedsps.engine.round import Collected
from fedsps.engine.setting import Setting, State
from fedsps.engine.work import batches
from fedsps.parts import Exchange, Trace, bytes_of
from fedsps.robust import Mean
from fedsps.shapes import Tensors, averages, mean
from fedsps.streams import Rows


@dataclass(frozen=True)
class Answer:
    """One client's part of an exchange."""

    message: Tensors
    own: Tensors  # the client's state after it, which it keeps
    buffers: Tensors
    trace: Trace | None  # if it trained
    gradients: int


def answer(
    setting: Setting,
    exchange: Exchange,
    round: int,
    x: Tensor,
    buffers: Tensors,
    received: Tensors,
    client: int,
    own: Tensors,
) -> Answer:
    """The client's work at the server's point x, from its own state."""
    number = np.array([client])
    batch = int(setting.batch_sizes(number, exchange)[0])
    work = batches(setting, exchange, round, number, batch, buffers).alone()
    with streams.torch_seed(setting.seed, exchange.action, round, client):
        message, own, trace = exchange.work(own, x, received, work)
    return Answer(message, own, work.buffers, trace, setting.gradients(number, batch, work.evaluations))


def gather(
    setting: Setting,
    state: State,
    exchange: Exchange,
    clients: Rows,
    answers: Sequence[Answer],
    states: Tensors,
    means: Mean = mean,
) -> Collected:
    """The means over the clients that answered, in the order of their numbers; `states` is what they keep."""
    shares = setting.shares(clients)
    messages = [one.message for one in answers]
    buffers = [one.buffers for one in answers]
    trained = [one.trace for one in answers if one.trace is not None]
    bytes_up = sum(exchange.bytes_up(message) for message in messages)
    if trained:
        bytes_up += sum(bytes_of(*one.values()) for one in buffers)
    received = exchange.broadcast(state.server)
    return Collected(
        clients=clients,
        mean={name: means(torch.stack([message[name] for message in messages]), shares) for name in messages[0]},
        buffers={name: _middle(torch.stack([one[name] for one in buffers])) for name in state.buffers}
        if trained
        else state.buffers,
        states=states,
        trace=Trace(*(torch.stack([getattr(t, name) for t in trained]) for name in ("losses", "stepsizes", "gap")))
        if trained
        else None,
        gradients=sum(one.gradients for one in answers),
        bytes_up=bytes_up,
        bytes_down=len(clients) * bytes_of(state.x, *received.values(), *state.buffers.values()),
    )


def _middle(buffers: Tensor) -> Tensor:
    return buffers.mean(0) if averages(buffers) else buffers.amax(0)
