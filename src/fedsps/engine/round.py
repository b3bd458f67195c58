"""One round: its exchanges in turn. How the clients' answers are collected is the engine's own affair.

Who takes part is `Setup.cohort_of`'s to say, which draws from `fedsps.core.streams.cohort`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from fedsps.core.contract import Exchange, Trace
from fedsps.core.streams import Indices
from fedsps.core.vectors import Tensors, bytes_of
from fedsps.engine.setup import Setup, State, with_output


@dataclass(frozen=True)
class Collected:
    """What an engine brings back from the clients of one exchange.

    Attributes:
        clients: those whose answers count, ascending; all that were asked, unless some failed.
        mean: of the messages, under the plan's weights.
        buffers: the mean of the clients' buffers.
        states: all clients' states, each `[clients, *]`.
        trace: of those clients, `[n, tau]`; None if they did not train, or do not tell.
        gradients: mini-batch gradients over all clients; one of m_i samples counts `ceil(m_i / B)`.
        bytes_up: sent by the clients.
        bytes_down: sent to them.
        ledger: what a federation's server notes of its clients.
        means: columns of the history, where the engine knows the mean over clients and no trace.
        events: who failed, and how.
        seconds: that the clients worked before the engine was called.
    """

    clients: Indices
    mean: Tensors
    buffers: Tensors
    states: Tensors
    trace: Trace | None
    gradients: int
    bytes_up: int
    bytes_down: int
    ledger: Tensors
    means: dict[str, float] = field(default_factory=dict)
    events: tuple[str, ...] = ()
    seconds: float = 0.0


Collect = Callable[[Setup, State, Exchange, Indices], Collected]
"""An engine: it asks these clients for their share of an exchange."""


@dataclass(frozen=True)
class Round:
    """What one round leaves behind for the record.

    Attributes:
        clients: those whose training counts, `[n]`.
        trace: theirs, `[n, tau]`; None if the clients do not tell.
        exchanges: how often the server called on the clients.
        gradients: mini-batch gradients over all clients and exchanges.
        bytes_up: sent by the clients.
        bytes_down: sent to them.
        means: columns of the history that are known without a trace.
        events: who failed, and how.
        seconds: that the clients worked before the round began.
    """

    clients: Indices
    trace: Trace | None
    exchanges: int
    gradients: int
    bytes_up: int
    bytes_down: int
    means: dict[str, float]
    events: tuple[str, ...]
    seconds: float


def play_round(setup: Setup, state: State, collect: Collect) -> tuple[State, Round]:
    """One round: for each exchange the server broadcasts, the clients work, the server takes the mean.

    Args:
        setup: of the run.
        state: before the round.
        collect: the engine.

    Returns:
        The state after the round, and what is recorded of it.
    """
    exchanges = setup.algorithm.exchanges(state.round)
    answers = []
    for exchange in exchanges:
        collected = collect(setup, state, exchange, audience_of(setup, exchange, state.round))
        participation = len(collected.clients) / setup.data.clients
        x, server = exchange.finish(state.server, state.x, collected.mean, participation)
        state = replace(
            state, x=x, server=server, clients=collected.states, buffers=collected.buffers, ledger=collected.ledger
        )
        answers.append(collected)
    done = Round(
        clients=answers[-1].clients,
        trace=answers[-1].trace,
        exchanges=len(exchanges),
        gradients=sum(collected.gradients for collected in answers),
        bytes_up=sum(collected.bytes_up for collected in answers),
        bytes_down=sum(collected.bytes_down for collected in answers),
        means=answers[-1].means,
        events=tuple(event for collected in answers for event in collected.events),
        seconds=sum(collected.seconds for collected in answers),
    )
    return with_output(setup.algorithm.output_rule, state), done


def audience_of(setup: Setup, exchange: Exchange, round: int) -> Indices:
    """The clients that take part in an exchange of round 0, 1, ..., ascending."""
    cohort = setup.cohort_of(round)
    return cohort[:1] if exchange.first_client_only else cohort


def bytes_down(state: State, exchange: Exchange, clients: Indices) -> int:
    """What goes down to these clients: the model with its buffers, and the exchange's broadcast."""
    received = exchange.broadcast(state.server)
    return len(clients) * bytes_of([state.x, *received.values(), *state.buffers.values()])
