"""The fast engine: all active clients in one leading axis, in chunks that fit a memory limit.

Clients whose actual batches differ in size are stacked in groups of equal size. Padding them to one size would change
the value of losses that are not plain means, and the statistics of batch norm.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from fedsps import streams
from fedsps.engine.round import Collected
from fedsps.engine.setting import Setting, State
from fedsps.engine.work import batches
from fedsps.parts import Exchange, Trace, bytes_of
from fedsps.shapes import Tensors, averages, mean
from fedsps.streams import Rows


def collect(setting: Setting, state: State, exchange: Exchange, audience: Rows) -> Collected:
    """The work of all clients of a chunk at once; chunks add up."""
    received = exchange.broadcast(state.server)
    shares, uniform = setting.shares(audience), torch.full((len(audience),), 1 / len(audience), dtype=torch.float64)
    clients = {name: value.clone() for name, value in state.clients.items()}
    total: Tensors = {}
    buffers: Tensors = {}
    traces: list[Trace] = []
    order: list[Rows] = []
    gradients = bytes_up = 0
    for positions, batch in chunks(setting, exchange, audience):
        numbers = audience[positions]
        index = torch.from_numpy(numbers).to(state.x.device)
        work = batches(setting, exchange, state.round, numbers, batch, state.buffers)
        with streams.torch_seed(setting.seed, exchange.action, state.round, int(numbers[0])):
            message, own, trace = exchange.work(
                {name: value[index] for name, value in clients.items()},
                state.x.expand(len(numbers), -1),
                {name: value.expand(len(numbers), *value.shape) for name, value in received.items()},
                work,
            )
        for name, value in own.items():
            clients[name].index_copy_(0, index, value)
        for name, value in message.items():
            part = mean(value, shares[positions])
            total[name] = total[name] + part if name in total else part
        gradients += setting.gradients(numbers, batch, work.evaluations)
        bytes_up += exchange.bytes_up(message)
        if trace is not None:
            traces.append(trace)
            order.append(positions)
            bytes_up += bytes_of(*work.buffers.values())
            buffers = {name: _add(buffers.get(name), value, uniform[positions]) for name, value in work.buffers.items()}
    return Collected(
        clients=audience,
        mean=total,
        buffers=buffers if traces else state.buffers,
        states=clients,
        trace=_in_order(traces, np.concatenate(order)) if traces else None,
        gradients=gradients,
        bytes_up=bytes_up,
        bytes_down=len(audience) * bytes_of(state.x, *received.values(), *state.buffers.values()),
    )


def chunks(setting: Setting, exchange: Exchange, audience: Rows) -> Iterator[tuple[Rows, int]]:
    """Positions in the audience that go together, and their batch size."""
    sizes = setting.batch_sizes(audience, exchange)
    for batch in np.unique(sizes):
        positions = np.flatnonzero(sizes == batch)
        most = max(1, setting.memory_limit // setting.client_bytes(int(batch)))
        for first in range(0, len(positions), most):
            yield positions[first : first + most], int(batch)


def _add(so_far: Tensor | None, values: Tensor, uniform: Tensor) -> Tensor:
    """Float buffers add up to their mean, integer ones to their maximum."""
    if averages(values):
        part = mean(values, uniform.to(values.device))
        return part if so_far is None else so_far + part
    part = values.amax(0)
    return part if so_far is None else torch.maximum(so_far, part)


def _in_order(traces: list[Trace], order: Rows) -> Trace:
    back = torch.from_numpy(np.argsort(order))
    return Trace(*(torch.cat([getattr(t, name) for t in traces])[back] for name in ("losses", "stepsizes", "gap")))
