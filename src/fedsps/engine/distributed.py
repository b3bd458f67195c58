"""One run on several processes, on one machine or many: rank 0 leads it, the others follow.

Rank 0 is the run. It plays the rounds, evaluates, saves and reports as a single process does, with an engine that asks
the other ranks for their share. The others keep nothing from one task to the next, so it makes no difference how many
there are, and a run that was saved goes on with any number of them.

    header                       rank 0 -> all     which exchange of which round; an evaluation; the end
    x, buffers, broadcast        rank 0 -> all
    states of its clients        rank 0 -> each    where the algorithm has such, or clients have layers of their own
    what its clients answer      each -> rank 0    means, buffers, traces, states, costs

A rank's clients are its slice of the audience, and the mean over all is that of the slices by their shares,
`sum_r s_r mean_r` with `s_r = sum_{i in slice r} s_i`.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsps.core.contract import TRACE_FIELDS, Exchange, Trace
from fedsps.core.streams import Indices
from fedsps.core.vectors import BufferMean, Tensors, bytes_of, mean
from fedsps.data.clients import ClientData
from fedsps.engine import loop, stacked
from fedsps.engine.evaluate import Own, evaluate_clients
from fedsps.engine.history import Row
from fedsps.engine.own_layers import layers_of
from fedsps.engine.ranks import Ranks
from fedsps.engine.round import Collect, Collected, audience_of, bytes_down
from fedsps.engine.setup import Setup, State, start
from fedsps.errors import ConfigurationError

EXCHANGE, EVALUATION, END = range(3)
ENGINES: dict[str, Collect] = {"loop": loop.collect, "stacked": stacked.collect}


@dataclass(frozen=True)
class End:
    """Where a run ended, on whichever rank.

    Attributes:
        x: the output, `[d]`; where clients have layers of their own, with those that a new client starts from.
        buffers: the model's.
        rows: the history.
        diverged_at: the round in which it diverged, if it did.
        workers: clients that each rank computed side by side.
        ended: why, see `Session`.
        layers: what each client has for itself, `[clients, *]`, by name; rank 0 alone knows it.
    """

    x: Tensor
    buffers: Tensors
    rows: list[Row]
    diverged_at: int | None
    workers: int
    ended: str
    layers: Tensors = field(default_factory=dict)


# Rank 0


def lead(ranks: Ranks, setup: Setup, inner: Collect, fingerprint: str) -> Collect:
    """The engine of rank 0, after all ranks have shown that they were asked the same and have the same data.

    Args:
        ranks: the processes.
        setup: of the run, as `prepare` made it: the others follow its decisions.
        inner: the engine that each of them uses.
        fingerprint: of the run, see `fedsps.runs.checkpoint`.

    Raises:
        ConfigurationError: a rank has other data, or another model, algorithm or plan.
    """
    _compare(ranks.answers(_identity(setup, fingerprint)))
    (engine,) = (name for name, one in ENGINES.items() if one is inner)
    decided = {name: getattr(setup, name) for name in ("sample_bytes", "workers", "is_random")}
    ranks.say(json.dumps({"engine": engine, "setup": decided}))

    def collect(setup: Setup, state: State, exchange: Exchange, audience: Indices) -> Collected:
        state = _by_name(state)
        actions = [one.action for one in setup.algorithm.exchanges(state.round)]
        _send_header(ranks, EXCHANGE, state.round, actions.index(exchange.action))
        received = exchange.broadcast(state.server)
        ranks.broadcast(pack([state.x, *state.buffers.values(), *received.values()]))
        shares = slices(audience, ranks.size)
        if state.clients:
            parts = [pack(_rows(state.clients, own, len(shares[0]))) for own in shares]
            ranks.scatter(torch.empty_like(parts[0]), parts)
        collected = inner(setup, state, exchange, shares[0])
        own = _answer(setup, collected, shares[0], len(shares[0]))
        answers = [unpack(flat, own) for flat in ranks.gather(pack(own))]
        return _combine(setup, state, exchange, collected, [one for one in shares if len(one)], answers)

    return collect


def client_losses(ranks: Ranks, setup: Setup, state: State) -> Tensor:
    """`f_i` of all clients at the output, `[clients]`: each rank evaluates some of them."""
    state = _by_name(state)
    _send_header(ranks, EVALUATION)
    ranks.broadcast(pack([state.result, *state.result_buffers.values()]))
    shares = slices(np.arange(setup.data.clients), ranks.size)
    layers = layers_of(state.clients)
    if layers:
        parts = [pack(_rows(layers, own, len(shares[0]))) for own in shares]
        ranks.scatter(torch.empty_like(parts[0]), parts)
    own = _losses(setup, state.result, state.result_buffers, shares[0], len(shares[0]), layers)
    return torch.cat([losses[: len(clients)] for losses, clients in zip(ranks.gather(own), shares, strict=True)])


def finish(ranks: Ranks, end: End) -> None:
    """Tell the other ranks that the run is over, and how it ended."""
    numbers = {name: getattr(end, name) for name in ("rows", "diverged_at", "workers", "ended")}
    text = json.dumps(numbers).encode()
    _send_header(ranks, END, len(text))
    ranks.broadcast(torch.frombuffer(bytearray(text), dtype=torch.uint8))
    ranks.broadcast(pack([end.x, *dict(sorted(end.buffers.items())).values()]))


# The other ranks


def follow(ranks: Ranks, setup: Setup, fingerprint: str) -> End:
    """Do what rank 0 asks for, until the run is over.

    Args:
        ranks: the processes.
        setup: of the run, the same as that of rank 0.
        fingerprint: of the run.
    """
    ranks.answers(_identity(setup, fingerprint))
    words: dict[str, Any] = json.loads(ranks.hear())
    setup, inner, blank = replace(setup, **words["setup"]), ENGINES[words["engine"]], _by_name(start(setup))
    while True:
        kind, first, second = ranks.broadcast(torch.zeros(3, dtype=torch.int64)).tolist()
        if kind == EXCHANGE:
            _take_part(ranks, setup, inner, blank, first, second)
        elif kind == EVALUATION:
            x, buffers, _ = _receive(ranks, blank, {})
            shares = slices(np.arange(setup.data.clients), ranks.size)
            own, layers = shares[ranks.rank], layers_of(blank.clients)
            if layers:
                like = _rows(layers, own, len(shares[0]))
                layers = dict(zip(layers, unpack(ranks.scatter(pack(like), None), like), strict=True))
            ranks.gather(_losses(setup, x, buffers, own, len(shares[0]), layers))
        else:
            text = ranks.broadcast(torch.empty(first, dtype=torch.uint8))
            x, buffers, _ = _receive(ranks, blank, {})
            return End(x, buffers, **json.loads(text.numpy().tobytes()))


def _take_part(ranks: Ranks, setup: Setup, inner: Collect, blank: State, round: int, number: int) -> None:
    """Compute the slice of this rank in an exchange, and send it."""
    exchange = setup.algorithm.exchanges(round)[number]
    audience = audience_of(setup, exchange, round)
    shares = slices(audience, ranks.size)
    # a rank without clients computes one that does not count: what all ranks send has the same shape
    own = shares[ranks.rank] if len(shares[ranks.rank]) else audience[:1]
    x, buffers, received = _receive(ranks, blank, exchange.broadcast(blank.server))
    clients = blank.clients
    if clients:
        like = _rows(clients, own, len(shares[0]))
        rows = unpack(ranks.scatter(pack(like), None), like)
        index = torch.from_numpy(own).to(x.device)
        clients = {
            name: value.index_copy(0, index, some[: len(own)])
            for (name, value), some in zip(clients.items(), rows, strict=True)
        }
    state = replace(blank, round=round, x=x, buffers=buffers, server=blank.server | received, clients=clients)
    ranks.gather(pack(_answer(setup, inner(setup, state, exchange, own), own, len(shares[0]))))


def _receive(ranks: Ranks, blank: State, received: Tensors) -> tuple[Tensor, Tensors, Tensors]:
    """A point, buffers and what is broadcast with them, of the shapes that they have before the first round."""
    like = [blank.x, *blank.buffers.values(), *received.values()]
    x, *rest = unpack(ranks.broadcast(pack(like)), like)
    buffers = dict(zip(blank.buffers, rest, strict=False))
    return x, buffers, dict(zip(received, rest[len(buffers) :], strict=True))


# Both


def slices(clients: Indices, ranks: int) -> list[Indices]:
    """The clients of each rank: as equal in number as can be, the first ranks have one more, the last may have none.

    >>> [own.tolist() for own in slices(np.array([2, 3, 5, 7, 11]), 3)]
    [[2, 3], [5, 7], [11]]
    """
    return np.array_split(clients, ranks)


def pack(tensors: Sequence[Tensor]) -> Tensor:
    """The bytes of several tensors as one tensor of bytes.

    >>> parts = [torch.tensor(1.5), torch.tensor([True]), torch.arange(3)]
    >>> unpack(pack(parts), parts)
    [tensor(1.5000), tensor([True]), tensor([0, 1, 2])]
    """
    return torch.cat([one.detach().reshape(-1).contiguous().view(torch.uint8) for one in tensors])


def unpack(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """The inverse of `pack`, for tensors of these shapes and dtypes."""
    parts = flat.split([bytes_of([one]) for one in like])
    # cloned: a piece may begin where no number of its dtype may
    return [part.clone().view(one.dtype).reshape(one.shape) for part, one in zip(parts, like, strict=True)]


def _by_name(state: State) -> State:
    """The state with buffers and clients' states in the order of their names, which a saved one does not remember."""
    buffers, clients, result_buffers = (
        dict(sorted(group.items())) for group in (state.buffers, state.clients, state.result_buffers)
    )
    return replace(state, buffers=buffers, clients=clients, result_buffers=result_buffers)


def _send_header(ranks: Ranks, kind: int, first: int = 0, second: int = 0) -> None:
    ranks.broadcast(torch.tensor([kind, first, second]))


def _rows(states: Tensors, clients: Indices, length: int) -> list[Tensor]:
    """The states of some clients, each `[length, *]`."""
    return [_longer(value[torch.from_numpy(clients).to(value.device)], length) for value in states.values()]


def _longer(values: Tensor, length: int) -> Tensor:
    """As many rows as asked for, those that are missing with zeros: all ranks must send the same shape."""
    return torch.cat([values, values.new_zeros(length - len(values), *values.shape[1:])])


def _answer(setup: Setup, collected: Collected, clients: Indices, length: int) -> list[Tensor]:
    """What a rank sends of its slice, in the same order and shapes on all ranks."""
    device = next(iter(collected.mean.values())).device
    costs = torch.tensor([collected.gradients, collected.bytes_up], device=device)
    trained = [] if collected.trace is None else [vars(collected.trace)[name] for name in TRACE_FIELDS]
    return [
        costs,
        *collected.mean.values(),
        *(setup.shared(collected.buffers).values() if trained else ()),
        *(_longer(value, length) for value in trained),
        *_rows(collected.states, clients, length),
    ]


def _combine(
    setup: Setup,
    state: State,
    exchange: Exchange,
    own: Collected,
    shares: Sequence[Indices],
    answers: Sequence[Sequence[Tensor]],
) -> Collected:
    """The answers of all ranks that have clients, as those of one engine.

    Args:
        setup: of the run.
        state: before the exchange.
        exchange: which one.
        own: rank 0's own share; it has the names of what all of them sent.
        shares: the clients of each rank that has some.
        answers: as `_answer` gave them, of all ranks.
    """
    audience = np.concatenate(shares)
    weights = torch.stack([part.sum() for part in setup.shares(audience).split([len(one) for one in shares])])
    costs = torch.zeros(2, dtype=torch.int64)
    messages: list[Tensors] = []
    traces: list[Trace] = []
    buffers = BufferMean()
    shared = setup.shared(own.buffers)
    states = {name: value.clone() for name, value in state.clients.items()}
    for clients, answer in zip(shares, answers, strict=False):
        values, count = iter(answer), len(clients)
        costs += next(values).cpu()
        messages.append({name: next(values) for name in own.mean})
        if own.trace is not None:
            # the mean of a rank counts once for each of its clients
            buffers.add({name: (one := next(values)).expand(count, *one.shape) for name in shared})
            traces.append(Trace(**{name: next(values)[:count] for name in TRACE_FIELDS}))
        index = torch.from_numpy(clients).to(state.x.device)
        for value in states.values():
            value.index_copy_(0, index, next(values)[:count])
    gradients, bytes_up = costs.tolist()
    return Collected(
        clients=audience,
        mean={name: mean(torch.stack([one[name] for one in messages]), weights) for name in own.mean},
        buffers=state.buffers | buffers.result(),
        states=states,
        trace=Trace.join(traces) if traces else None,
        gradients=gradients,
        bytes_up=bytes_up,
        bytes_down=bytes_down(state, exchange, audience),
        ledger=state.ledger,
    )


def _losses(setup: Setup, x: Tensor, buffers: Tensors, clients: Indices, length: int, layers: Tensors) -> Tensor:
    """`f_i(x)` of neighbouring clients, `[length]`, in float64; their own layers come first in `layers [*, *]`."""
    if not len(clients):
        return x.new_zeros(length, dtype=torch.float64)
    data, first, last = setup.data, clients[0], clients[-1]
    samples = slice(int(data.offsets[first]), int(data.offsets[last] + data.sizes[last]))
    some = ClientData(data.inputs[samples], data.targets[samples], data.sizes[first : last + 1])
    own = Own.of(setup.own_layers, layers, some.sizes)
    return _longer(evaluate_clients(setup.network, x, buffers, some, accuracy=False, own=own).loss.double(), length)


def _identity(setup: Setup, fingerprint: str) -> str:
    return json.dumps({"data": setup.data.digest.hex(), "model, algorithm or plan": fingerprint})


def _compare(identities: Sequence[str]) -> None:
    """Refuse ranks that would compute something else than rank 0."""
    first = json.loads(identities[0])
    for rank, text in enumerate(identities):
        other = [name for name, value in json.loads(text).items() if value != first[name]]
        if other:
            raise ConfigurationError(
                f"rank {rank} has not the {other[0]} of rank 0: all ranks must be given the same "
                "(seed what is drawn at random, such as a model's start, before it is drawn)"
            )
