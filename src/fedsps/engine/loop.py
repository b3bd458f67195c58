"""The plain reading of an exchange, one client after another: the oracle that the other engines are held against."""

from fedsps.engine.answer import answer, gather
from fedsps.engine.round import Collected
from fedsps.engine.setting import Setting, State
from fedsps.parts import Exchange
from fedsps.streams import Rows


def collect(setting: Setting, state: State, exchange: Exchange, audience: Rows) -> Collected:
    """Each client's work in turn, then the means."""
    received = exchange.broadcast(state.server)
    states = {name: value.clone() for name, value in state.clients.items()}
    answers = []
    for client in audience.tolist():
        own = {name: value[client].clone() for name, value in states.items()}  # a view would change with the state
        answers.append(answer(setting, exchange, state.round, state.x, state.buffers, received, client, own))
        for name, value in answers[-1].own.items():
            states[name][client] = value
    return gather(setting, state, exchange, audience, answers, states)
