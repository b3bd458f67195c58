"""The one loop over repeats and refusals: who is asked, how often, and when the answers are enough.

How answers travel is the transport's affair; what is done with them is the session's.
"""

import secrets
from dataclasses import dataclass, replace

import numpy as np
import torch

from fedsps.core.contract import Exchange
from fedsps.core.streams import Indices
from fedsps.core.vectors import Tensors
from fedsps.engine.round import Collected
from fedsps.engine.session import Scores
from fedsps.engine.setup import Setup, State
from fedsps.errors import DataError
from fedsps.flower.config import RunConfig
from fedsps.flower.membership import Membership
from fedsps.flower.privacy import epsilon
from fedsps.flower.store import NEVER
from fedsps.flower.transport import Heard, Transport


def new_ledger(sizes: Indices) -> Tensors:
    """What the server notes of the clients: their own states stay with them.

    `since` is the last round in which each one's answer was counted, `counted` in how many that was, `token` tells the
    run from an earlier one with the same spec.

    >>> ledger = new_ledger(np.array([5, 7]))
    >>> ledger["sizes"].tolist(), ledger["since"].tolist(), ledger["counted"].tolist()
    ([5, 7], [-1, -1], [0, 0])
    """
    return {
        "sizes": torch.from_numpy(sizes),
        "since": torch.full((len(sizes),), NEVER),
        "counted": torch.zeros(len(sizes), dtype=torch.int64),
        "token": torch.tensor(secrets.randbits(62)),
    }


def counted(state: State, clients: Indices) -> Tensors:
    """The ledger after a round in which these clients' answers were counted."""
    since, times = state.ledger["since"].clone(), state.ledger["counted"].clone()
    since[torch.from_numpy(clients)] = state.round
    times[torch.from_numpy(clients)] += 1
    return state.ledger | {"since": since, "counted": times}


@dataclass(frozen=True)
class Server:
    """Collects the answers of exchanges and evaluations: the one loop over repeats and refusals.

    Attributes:
        membership: who is there.
        transport: how answers travel.
    """

    membership: Membership
    transport: Transport

    @property
    def config(self) -> RunConfig:
        """The run configuration, as the membership has it."""
        return self.membership.config

    @property
    def tells(self) -> bool:
        """Whether the clients tell more of their data than the message."""
        return self.transport.tells and self.config.privacy is None

    def collect(self, setup: Setup, state: State, exchange: Exchange, audience: Indices) -> Collected:
        """Ask the audience; a round that too few answer is repeated. Where one client is enough, try them in turn.

        Clients whose answer cannot change (NaN, a loss below its bound) are not asked again. If at least half are such,
        the run has diverged, or its bound is wrong: it ends. If fewer are, the round goes on without them.

        Args:
            setup: of the run.
            state: before the exchange.
            exchange: which one.
            audience: the clients to ask, ascending.

        Raises:
            DataError: too few answered, also when the round was repeated `retries` times.
            LowerBoundError: at least half of the clients saw a loss below its bound.
        """
        config, membership = self.config, self.membership
        hoped, groups = audience, [audience] * (1 + config.retries)
        if exchange.first_client_only:
            hoped = setup.cohort_of(state.round)
            groups = [np.array([client]) for client in hoped]
        least = 1 if exchange.first_client_only else self.transport.least(len(audience))
        heard, events, failures = Heard(), [], ["nobody was asked"]

        def there() -> set[int]:
            """Clients of the cohort that are connected, and whose answer may still count."""
            return set(hoped.tolist()).intersection(membership.nodes).difference(heard.refused)

        for attempt, group in enumerate(groups):
            events += membership.wait(config.deadline if attempt else 0, lambda: len(there()) >= least)
            heard.again()
            failures = self.transport.ask(setup, state, exchange, np.setdiff1d(group, heard.refused), heard)
            events += failures
            left = len(hoped) - len(heard.refused)
            if len(heard.sound) >= least or left < least or left <= len(heard.refused):
                break
        done = exchange.first_client_only and bool(heard.sound)
        if heard.is_half(heard.below) and not done:
            raise next(iter(heard.below.values()))
        diverged = heard.is_half(heard.infinite) and not done
        if len(heard.sound) < least and not diverged:
            raise DataError(
                f"round {state.round + 1}: {len(heard.sound)} of {len(audience)} clients answered, {least} are needed "
                f"({'; '.join(failures)}). Run it again to go on from round {state.round}"
            )
        collected = self.transport.combine(setup, state, exchange, heard, diverged)
        ledger = counted(state, collected.clients) if exchange.action == "train" else state.ledger
        return replace(collected, ledger=ledger, events=(*events, *collected.events), seconds=heard.seconds)

    def evaluate(self, setup: Setup, state: State) -> Scores:
        """What clients say of the model, unless privacy forbids it: then the epsilon so far."""
        privacy, clients = self.config.privacy, setup.data.clients
        if privacy is not None:
            most = int(state.ledger["counted"].max())
            return Scores({"epsilon": epsilon(most, clients, clients, privacy.noise_multiplier, privacy.delta)})
        if not state.result.isfinite().all():  # diverged: there is nothing to ask
            return Scores({})
        return self.transport.evaluate(setup, state)
