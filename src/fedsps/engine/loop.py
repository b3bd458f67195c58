"""The plain reading of an exchange, one client after another: the oracle that the other engines are held against.

It needs the memory of one client, and takes models that cannot be stacked.
"""

from dataclasses import replace

from fedsps.core.contract import Exchange
from fedsps.core.streams import Indices
from fedsps.engine.answer import Answer, answer, combine
from fedsps.engine.round import Collected
from fedsps.engine.setup import Setup, State
from fedsps.engine.workers import side_by_side


def collect(setup: Setup, state: State, exchange: Exchange, audience: Indices) -> Collected:
    """Each client's work in turn, or by several workers side by side, then the means in the order of the clients.

    Args:
        setup: of the run.
        state: before the exchange; it is not changed.
        exchange: which one.
        audience: the clients that take part, ascending.
    """
    received = exchange.broadcast(state.server)
    states = {name: value.clone() for name, value in state.clients.items()}

    def share(client: int) -> Answer:
        # cloned: a view would change with the state
        client_state = {name: value[client].clone() for name, value in state.clients.items()}
        return answer(setup, exchange, state.round, state.x, state.buffers, received, client, client_state)

    answers = side_by_side(share, audience.tolist(), setup.workers)
    for client, done in zip(audience.tolist(), answers, strict=True):
        for name, value in done.own.items():
            states[name][client] = value
    return replace(combine(setup, state, exchange, audience, answers), states=states)
