"""One round: its exchanges in turn. How the clients' answers are collected is the engine's own affair."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from fedsps.engine.setting import Setting, State
from fedsps.parts import Exchange, Trace
from fedsps.shapes import Tensors
from fedsps.streams import Rows


@dataclass(frozen=True)
class Collected:
    """What an engine brings back from the clients of one exchange."""

    mean: Tensors  # of the messages, under the setting's weights
    buffers: Tensors  # the uniform mean of the clients' buffers; integer ones take the maximum
    clients: Tensors  # all clients' states, [clients, *]
    trace: Trace | None  # of the active clients, [n, tau], in the order of their numbers
    gradients: int  # mini-batch gradients over all clients; one of m_i samples counts ceil(m_i / B)
    bytes_up: int
    bytes_down: int


Collect = Callable[[Setting, State, Exchange, Rows], Collected]


@dataclass(frozen=True)
class Round:
    """What one round leaves behind for the record."""

    cohort: Rows  # [n]
    trace: Trace  # [n, tau]
    exchanges: int
    gradient_evaluations: int
    bytes_up: int
    bytes_down: int


def play(setting: Setting, state: State, collect: Collect) -> tuple[State, Round]:
    """Play one round: for each exchange the server broadcasts, the clients work, the server takes the mean."""
    cohort = setting.cohort_of(state.round)
    exchanges = setting.algorithm.exchanges(state.round)
    gathered = []
    for exchange in exchanges:
        audience = cohort[:1] if exchange.first_client_only else cohort
        collected = collect(setting, state, exchange, audience)
        x, server = exchange.finish(state.server, state.x, collected.mean, len(audience) / setting.federation.clients)
        state = replace(state, x=x, server=server, clients=collected.clients, buffers=collected.buffers)
        gathered.append(collected)
    trace = gathered[-1].trace
    assert trace is not None, "the last exchange of a round trains"
    result, output = setting.algorithm.output_rule(state.output, state.x, state.round + 1)
    done = Round(
        cohort=cohort,
        trace=trace,
        exchanges=len(exchanges),
        gradient_evaluations=sum(one.gradients for one in gathered),
        bytes_up=sum(one.bytes_up for one in gathered),
        bytes_down=sum(one.bytes_down for one in gathered),
    )
    return replace(state, round=state.round + 1, output=output, result=result), done
