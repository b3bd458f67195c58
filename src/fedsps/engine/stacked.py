"""The fast engine: all active clients in one leading axis, in chunks that fit a memory limit.

Clients whose actual batches differ in size are stacked in groups of equal size. Padding them to one size would change
the value of losses that are not plain means, and the statistics of batch norm.
"""

from collections.abc import Iterator, Sequence

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


def collect(setup: Setup, state: State, exchange: Exchange, audience: Indices) -> Collected:
    """The work of all clients of a chunk at once; chunks add up.

    Its results are those of the loop engine up to rounding, for any size of the chunks. Dropout is the exception: it is
    drawn for all clients of a chunk at once.

    Args:
        setup: of the run.
        state: before the exchange; it is not changed.
        exchange: which one.
        audience: the clients that take part, ascending.
    """
    received = exchange.broadcast(state.server)
    shares = setup.shares(audience)
    states = {name: value.clone() for name, value in state.clients.items()}
    total: Tensors = {}
    buffers = BufferMean()
    traces: list[Trace] = []
    order: list[Indices] = []
    gradients = bytes_up = 0
    for positions, batch in chunks(setup, exchange, audience):
        numbers = audience[positions]
        index = torch.from_numpy(numbers).to(state.x.device)
        work = batches(setup, exchange, state.round, numbers, batch, state.buffers)
        with streams.torch_seed(setup.plan.seed, exchange.action, state.round, int(numbers[0])):
            message, new_states, trace = share(
                setup,
                exchange,
                {name: value[index] for name, value in states.items()},
                state.x.expand(len(numbers), -1),
                {name: value.expand(len(numbers), *value.shape) for name, value in received.items()},
                work,
            )
        for name, value in new_states.items():
            states[name].index_copy_(0, index, value)
        for name, value in message.items():
            part = mean(value, shares[positions])
            total[name] = total[name] + part if name in total else part
        gradients += setup.gradients(numbers, batch, work.evaluations)
        bytes_up += exchange.bytes_up(message)
        if trace is not None:
            traces.append(trace)
            order.append(positions)
            bytes_up += bytes_of(work.buffers.values())
            buffers.add(work.buffers)
    return Collected(
        clients=audience,
        mean=total,
        buffers=state.buffers | buffers.result(),
        states=states,
        trace=Trace.join(traces, positions_in(order, state.x.device)) if traces else None,
        gradients=gradients,
        bytes_up=bytes_up,
        bytes_down=bytes_down(state, exchange, audience),
        ledger=state.ledger,
    )


def positions_in(order: Sequence[Indices], device: torch.device) -> Tensor:
    """Where each client of the audience is among the chunks put together, given the positions of each chunk."""
    return torch.from_numpy(np.argsort(np.concatenate(order))).to(device)


def chunks(setup: Setup, exchange: Exchange, audience: Indices) -> Iterator[tuple[Indices, int]]:
    """Positions in the audience that go together, and their batch size.

    Clients of a chunk have equal batches, and so many of them go together as `memory_limit` takes, one at least.
    """
    sizes = setup.batch_sizes(audience, exchange)
    for batch in np.unique(sizes):
        positions = np.flatnonzero(sizes == batch)
        most = max(1, setup.memory_limit // setup.client_bytes(int(batch)))
        for first in range(0, len(positions), most):
            yield positions[first : first + most], int(batch)
