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

    clients: Rows  # those whose answers count, ascending; all that were asked, unless some failed
    mean: Tensors  # of the messages, under the setting's weights
    buffers: Tensors  # the uniform mean of the clients' buffers; integer ones take the maximum
    states: Tensors  # all clients' states, [clients, *]
    trace: Trace | None  # of those clients, [n, tau]; None if they did not train, or do not tell
    gradients: int  # mini-batch gradients over all clients; one of m_i samples counts ceil(m_i / B)
    bytes_up: int
    bytes_down: int
    events: tuple[str, ...] = ()  # who failed, and how


Collect = Callable[[Setting, State, Exchange, Rows], Collected]


@dataclass(frozen=True)
class Round:
    """What one round leaves behind for the record."""

    clients: Rows  # [n]  those whose training counts
    trace: Trace | None  # [n, tau]; None if the clients do not tell
    exchanges: int
    gradient_evaluations: int
    bytes_up: int
    bytes_down: int
    events: tuple[str, ...]


def play(setting: Setting, state: State, collect: Collect) -> tuple[State, Round]:
    """Play one round: for each exchange the server broadcasts, the clients work, the server takes the mean."""
    cohort = setting.cohort_of(state.round)
    exchanges = setting.algorithm.exchanges(state.round)
    gathered = []
    for exchange in exchanges:
        audience = cohort[:1] if exchange.first_client_only else cohort
        collected = collect(setting, state, exchange, audience)
        participation = len(collected.clients) / setting.federation.clients
        x, server = exchange.finish(state.server, state.x, collected.mean, participation)
        state = replace(state, x=x, server=server, clients=collected.states, buffers=collected.buffers)
        gathered.append(collected)
    result, output = setting.algorithm.output_rule(state.output, state.x, state.round + 1)
    done = Round(
        clients=gathered[-1].clients,
        trace=gathered[-1].trace,
        exchanges=len(exchanges),
        gradient_evaluations=sum(one.gradients for one in gathered),
        bytes_up=sum(one.bytes_up for one in gathered),
        bytes_down=sum(one.bytes_down for one in gathered),
        events=tuple(event for one in gathered for event in one.events),
    )
    return replace(state, round=state.round + 1, output=output, result=result), done
