"""Answers one by one: the server sees each client's message, checks it, and takes the mean.

Since every message is seen, any algorithm can be carried, robust means can be taken, and a bad answer costs its client
the round and nobody else. `secagg` is the other way.
"""

import time
from dataclasses import dataclass, replace

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, RecordDict
from torch import Tensor

from fedsps.core.contract import Exchange, Trace
from fedsps.core.streams import Indices
from fedsps.core.vectors import Tensors
from fedsps.engine.answer import combine
from fedsps.engine.round import Collected, audience_of
from fedsps.engine.session import Scores, check_bound
from fedsps.engine.setup import Setup, State
from fedsps.errors import DataError, LowerBoundError
from fedsps.flower import wire
from fedsps.flower.check import accept, accept_scores, far_above, infinite, largest, rehearse
from fedsps.flower.membership import Membership
from fedsps.flower.transport import Heard
from fedsps.rules.aggregation import Mean, parse_mean


@dataclass(frozen=True)
class Early:
    """Answers to a round's first exchange that came with the scores of the round before.

    Attributes:
        round: that they are for.
        answers: by client.
        seconds: from the question to the last answer, of those that are asked for scores alone too.
    """

    round: int
    answers: dict[int, RecordDict]
    seconds: float


@dataclass
class PlainTransport:
    """Each client's answer as a message of its own.

    Attributes:
        membership: who is there.
        context: Flower's; not needed here.
        digest: of the run, by which clients find their state.
        early: what has come already of the next round, if anything has.
    """

    membership: Membership
    context: Context | None
    digest: str
    early: Early | None = None
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

        Who has answered already, with the scores of the round before, is not asked again. An answer that is of the
        right form and finite is sound. One with NaN or infinity, or below its bound, is remembered as such: the seed
        decides what a client computes, so that asking again would bring the same.

        Args:
            setup: of the run.
            state: before the exchange.
            exchange: which one.
            audience: the clients to ask, ascending.
            heard: where the answers go.

        Returns:
            The events, that is who did not answer, was refused, or had lost its state.
        """
        sent, message, trace = form = self._form(setup, state, exchange)
        answers: dict[int, RecordDict | DataError] = {}
        early, self.early = self.early, None
        if early is not None and early.round == state.round:
            answers |= {client: early.answers[client] for client in audience.tolist() if client in early.answers}
            heard.seconds = early.seconds if answers else 0.0
        requests = self._requests(state, exchange, np.setdiff1d(audience, list(answers)))
        answers |= self.membership.ask(requests, largest(*form))
        events = []
        for client, content in sorted(answers.items()):
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
        factor = config.far_factor if config.privacy is None else 0  # there changes are clipped, absence would tell
        for client, why in far_above(heard.sound, factor).items():
            del heard.sound[client]
            heard.far.add(client)
            events.append(f"client {client}: {why}")
        return events

    def _form(self, setup: Setup, state: State, exchange: Exchange) -> tuple[State, Tensors, Trace | None]:
        """The state with the buffers that clients send, and a rehearsed message and trace."""
        message, trace = rehearse(setup, state, exchange)
        privacy = self.membership.config.privacy
        if privacy is not None:
            message, trace = privacy.clip(message), None  # nor are buffers sent
        return replace(state, buffers=setup.shared(state.buffers)), message, trace

    def _requests(self, state: State, exchange: Exchange, audience: Indices) -> dict[int, tuple[str, RecordDict]]:
        """What these clients are sent for an exchange: the type of the message, and its records."""
        kind = "train.train" if exchange.action == "train" else "train.probe"
        same = {"received": wire.arrays(exchange.broadcast(state.server)), **wire.model(state.x, state.buffers)}
        return {
            client: (kind, RecordDict({"ask": request(self.digest, state, exchange, client), **same}))
            for client in audience.tolist()
        }

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
        answers = self._scores_and_more(setup, state)
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

    def _scores_and_more(self, setup: Setup, state: State) -> dict[int, RecordDict | DataError]:
        """Ask all clients for their scores, and those of the next round in the same message for what it asks first.

        A message costs more than most work does. If the next round does not come, because the run ends before or the
        server dies, the answers leave no trace on the clients (see `Store`). A client that says that it failed is asked
        again; one that did not answer is, if it is back when the round begins.
        """
        where, output = whereabouts(self.digest, state), (state.result, state.result_buffers)
        model = wire.model(*output)
        requests = {
            client: ("evaluate", RecordDict({"evaluate": where, **model})) for client in range(setup.data.clients)
        }
        first = setup.algorithm.exchanges(state.round)[0]
        if state.round == setup.plan.rounds or first.first_client_only:  # whom to ask depends on who is there then
            return self.membership.ask(requests)
        beside = {} if state.result is state.x else wire.model(*output, wire.OUTPUT)
        both = self._requests(state, first, audience_of(setup, first, state.round))
        for _, content in both.values():
            content.update({"evaluate": where, **beside})
        began = time.perf_counter()
        answers = self.membership.ask(requests | both, largest(*self._form(setup, state, first)), tasks=2)
        came = {client: answers[client] for client in both}
        sound = {client: one for client, one in came.items() if isinstance(one, RecordDict) and "message" in one}
        self.early = Early(state.round, sound, time.perf_counter() - began)
        return answers


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
