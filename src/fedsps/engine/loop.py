"""The plain reading of an exchange, one client after another: the oracle that the other engines are held against."""

import numpy as np
import torch
from torch import Tensor

from fedsps import streams
from fedsps.engine.round import Collected
from fedsps.engine.setting import Setting, State
from fedsps.engine.work import batches
from fedsps.parts import Exchange, Trace, bytes_of
from fedsps.shapes import mean
from fedsps.streams import Rows


def collect(setting: Setting, state: State, exchange: Exchange, audience: Rows) -> Collected:
    """Each client's work in turn, then the means."""
    received = exchange.broadcast(state.server)
    clients = {name: value.clone() for name, value in state.clients.items()}
    messages, buffers, traces = [], [], []
    gradients = 0
    for client, batch in zip(audience, setting.batch_sizes(audience, exchange), strict=True):
        work = batches(setting, exchange, state.round, np.array([client]), int(batch), state.buffers).alone()
        own = {name: value[client].clone() for name, value in clients.items()}  # a view would change with the state
        with streams.torch_seed(setting.seed, exchange.action, state.round, int(client)):
            message, own, trace = exchange.work(own, state.x, received, work)
        for name, value in own.items():
            clients[name][client] = value
        messages.append(message)
        buffers.append(work.buffers)
        traces.append(trace)
        gradients += setting.gradients(np.array([client]), int(batch), work.evaluations)
    shares = setting.shares(audience)
    trained = [trace for trace in traces if trace is not None]
    bytes_up = sum(exchange.bytes_up(message) for message in messages)
    if trained:
        bytes_up += sum(bytes_of(*one.values()) for one in buffers)
    return Collected(
        mean={name: mean(torch.stack([message[name] for message in messages]), shares) for name in message},
        buffers={name: _middle(torch.stack([one[name] for one in buffers])) for name in state.buffers}
        if trained
        else state.buffers,
        clients=clients,
        trace=Trace(*(torch.stack([getattr(t, name) for t in trained]) for name in ("losses", "stepsizes", "gap")))
        if trained
        else None,
        gradients=gradients,
        bytes_up=bytes_up,
        bytes_down=len(audience) * bytes_of(state.x, *received.values(), *state.buffers.values()),
    )


def _middle(buffers: Tensor) -> Tensor:
    return buffers.mean(0) if buffers.is_floating_point() else buffers.amax(0)
