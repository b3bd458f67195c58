"""Answers one by one: the server sees each client's message, checks it, and takes the mean.

Since every message is seen, any algorithm can be carried, robust means can be taken, and a bad answer costs its client
the round and nobody else. `secagg` is the other way.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, RecordDict
from torch import Tensor

from fedsps.core.contract import Exchange
from fedsps.core.streams import Indices
from fedsps.engine.answer import combine
from fedsps.engine.round import Collected
from fedsps.engine.session import Scores, check_bound
from fedsps.engine.setup import Setup, State
from fedsps.errors import DataError, LowerBoundError
from fedsps.flower import wire
from fedsps.flower.check import accept, accept_scores, far_above, infinite, largest, rehearse
from fedsps.flower.membership import Membership
from fedsps.flower.transport import Heard
from fedsps.rules.aggregation import Mean, parse_mean


@dataclass(frozen=True)
class PlainTransport:
    """Each client's answer as a message of its own.

    Attributes:
        membership: who is there.
        context: Flower's; not needed here.
        digest: of the run, by which clients find their state.
    """

    membership: Membership
    context: Context | None
    digest: str
    tells = True

    def mean(self, name: str) -> Mean:
        """What is taken for the mean of values of this name: as configured, or with the noise of privacy."""
        config = self.membership.config
        return parse_mean(config.mean) if config.privacy is None else config.privacy.mean(name)

    def check(self, setup: Setup) -> None:
        """Every algorithm and model can be carried; a mean that there is not is refused."""
        _ = self.mean("delta")

    def least(self, audience: int) -> int:
        """The configured minimum cohort, or all of an audience that is smaller."""
        return min(self.membership.config.minimum_cohort, audience)

    def ask(self, setup: Setup, state: State, exchange: Exchange, audience: Indices, heard: Heard) -> list[str]:
        """Ask, and hold each answer against a rehearsed one, by client in ascending order.

        An answer that is of the right form and finite is sound. One with NaN or infinity, or below its bound, is
        remembered as such: the seed decides what a client computes, so that asking again would bring the same.

        Args:
            setup: of the run.
            state: before the exchange.
            exchange: which one.
            audience: the clients to ask, ascending.
            heard: where the answers go.

        Returns:
            The events, that is who did not answer, was refused, or had lost its state.
        """
        message, trace = rehearse(setup, state, exchange)
        sent = replace(state, buffers=setup.shared(state.buffers))
        privacy = self.membership.config.privacy
        if privacy is not None:
            message, trace = privacy.clip(message), None  # nor are buffers sent
        received = wire.arrays(exchange.broadcast(state.server))
        model = wire.model(state.x, state.buffers)
        requests = {
            client: RecordDict({"ask": request(self.digest, state, exchange, client), "received": received, **model})
            for client in audience.tolist()
        }
        events = []
        kind = "train.train" if exchange.action == "train" else "train.probe"
        for client, content in self.membership.ask(requests, kind, largest(sent, message, trace)).items():
            try:
                if isinstance(content, DataError):
                    raise content
                answer = accept(content, message, trace, sent)
                name = infinite(answer)
                if name is not None:
                    heard.infinite[client] = answer
                    raise DataError(f"{name} holds NaN or infinity")
                if answer.trace is not None:
                    check_bound(state.round + 1, answer.trace.as_cohort, np.array([client]))
                heard.sound[client] = answer
                if wire.values(content, "facts").get("lost"):
                    events.append(f"client {client}: its state was lost, it started anew")
            except LowerBoundError as error:
                heard.below[client] = error
                events.append(f"client {client}: it says that a loss fell below its lower bound")
            except DataError as error:
                events.append(f"client {client}: {error}")
        config = self.membership.config
        factor = config.far_factor if privacy is None else 0  # there changes are clipped, and absence would tell
        for client, why in far_above(heard.sound, factor).items():
            del heard.sound[client]
            heard.far.add(client)
            events.append(f"client {client}: {why}")
        return events

    def combine(self, setup: Setup, state: State, exchange: Exchange, heard: Heard, diverged: bool) -> Collected:
        """The mean of the answers that count; of a diverged run NaN, over all of them."""
        answers = dict(sorted((heard.sound | heard.infinite).items())) if diverged else heard.sound
        clients = np.array(list(answers), dtype=np.int64)
        means = (lambda name: no_mean) if diverged else self.mean
        return combine(setup, state, exchange, clients, list(answers.values()), means)

    def evaluate(self, setup: Setup, state: State) -> Scores:
        """Ask all clients for their scores. Losses that are not finite are left out, unless half of them are such.

        A few broken clients do not hide the objective of the others; if half are not finite, the run itself diverges.
        """
        ask, model = whereabouts(self.digest, state), wire.model(state.result, state.result_buffers)
        requests = {client: RecordDict({"ask": ask, **model}) for client in range(setup.data.clients)}
        answers = self.membership.ask(requests, "evaluate")
        scores, events = {}, []
        for client, content in answers.items():
            try:
                if isinstance(content, DataError):
                    raise content
                scores[client] = accept_scores(content, self.membership.held[client])
            except DataError as error:
                events.append(f"client {client}: no scores ({error})")
        beyond = [client for client, values in scores.items() if not np.isfinite(list(values.values())).all()]
        events += [f"client {client}: its loss is not finite" for client in beyond]
        if 2 * len(beyond) < len(scores):
            scores = {client: values for client, values in scores.items() if client not in beyond}
        return Scores(_means(setup, scores), tuple(events), scores)


def _means(setup: Setup, scores: dict[int, dict[str, float]]) -> dict[str, float]:
    """The objective under the plan's weights, and the clients' own test scores by their numbers of samples.

    Both are over the clients that answered; the weights are scaled to add up to 1 over them.
    """
    if not scores:
        return {}
    shares = setup.shares(np.array(list(scores))).numpy()
    means = {"train_loss": float(shares @ [values["train_loss"] for values in scores.values()])}
    for name in ("test_loss", "test_accuracy"):
        held = [values for values in scores.values() if name in values]
        if held:
            counts = np.array([values["test_samples"] for values in held])
            means[f"client_{name}"] = float(counts @ [values[name] for values in held] / counts.sum())
    return means


def request(digest: str, state: State, exchange: Exchange, client: int) -> ConfigRecord:
    """What a client must know beside the model: the run, the round, and when its answer was last counted."""
    return wire.facts(
        digest=digest,
        token=str(int(state.ledger["token"])),
        round=state.round,
        action=exchange.action,
        since=int(state.ledger["since"][client]),
    )


def whereabouts(digest: str, state: State) -> ConfigRecord:
    """By what clients find their state outside of an exchange: the run, and when each one's answer was last counted."""
    return wire.facts(digest=digest, token=str(int(state.ledger["token"])), since=state.ledger["since"].tolist())


def no_mean(values: Tensor, weights: Tensor) -> Tensor:
    """The mean where the run has diverged, whatever mean it takes: NaN, on which a session ends.

    >>> no_mean(torch.ones(3, 2), torch.ones(3) / 3)
    tensor([nan, nan])
    """
    return torch.full_like(values[0], torch.nan)
