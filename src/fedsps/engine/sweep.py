"""Many settings of one algorithm at once: `[settings, clients, d]` in one pass, on shared cohorts and batches.

The settings differ in numbers alone and share the seed, so that one gathering of batches, one product with the data and
one evaluation serve all of them. Each setting's rows and model are those of its single run up to rounding. A setting
that diverges, or that the caller drops, leaves the stack without costing the others.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsps.core.algorithm import Algorithm
from fedsps.core.contract import TRACE_FIELDS, Exchange, Trace
from fedsps.core.local_training import Train
from fedsps.core.stacking import stack
from fedsps.core.streams import Indices
from fedsps.core.vectors import Implicit, Tensors, bytes_of
from fedsps.data.clients import ClientData
from fedsps.engine import history
from fedsps.engine.batches import Batches, batches
from fedsps.engine.evaluate import evaluate_settings
from fedsps.engine.history import Row
from fedsps.engine.round import bytes_down
from fedsps.engine.session import check_bound
from fedsps.engine.setup import Setup, State
from fedsps.engine.stacked import chunks
from fedsps.engine.trial import check_test
from fedsps.errors import ConfigurationError
from fedsps.model.logistic import Logistic
from fedsps.model.span import RoundSamples, Span

MOST_GRAM = 512  # samples of a client in a round: beyond them their Gram matrices cost more than they save
Drop = Callable[[int, Mapping[int, Row]], set[int]]
"""Called after each evaluated round with the rows of the settings; those that it returns are dropped."""


@dataclass(frozen=True)
class Swept:
    """What one setting of a sweep came to.

    Attributes:
        rows: its history.
        x: its output, `[d]`.
        diverged_at: the round in which it diverged, else None.
        dropped: whether the caller dropped it before its last round.
    """

    rows: list[Row]
    x: Tensor
    diverged_at: int | None
    dropped: bool


class Sweep:
    """A sweep in progress.

    Args:
        setup: of the run, prepared (see `prepare`); its algorithm is one of those that are swept.
        algorithms: equal in everything but floating parameters.
        test: held-out data, if there is any.
    """

    def __init__(self, setup: Setup, algorithms: Sequence[Algorithm], test: ClientData | None = None) -> None:
        self.setup, self.test = setup, test
        network = setup.network
        if setup.is_random or network.buffers:
            raise ConfigurationError("a model that draws random numbers or keeps statistics cannot be swept")
        if test is not None:
            check_test(setup, test)
        self._linear = network if isinstance(network, Logistic) and network.counts_classes(setup.data.targets) else None
        self.rows: list[list[Row]] = [[] for _ in algorithms]
        self.ends: dict[int, Swept] = {}
        self._algorithms = list(algorithms)
        self._alive = list(range(len(algorithms)))  # the numbers of the settings in the stack
        self._stack_algorithms()
        x, clients = network.x.expand(len(algorithms), -1), setup.data.clients
        self.state = State(
            round=0,
            x=x,
            buffers={},
            server=self._server_side.server_init(x),
            clients=self._client_side.client_init(x.unsqueeze(1).expand(-1, clients, -1)),
            output=self._server_side.output_rule.init(x),
            result=x,
        )

    def _stack_algorithms(self) -> None:
        """The algorithms of the settings in the stack as one, on either side, and the memory that each setting has."""
        self._roomy = replace(self.setup, memory_limit=self.setup.memory_limit // len(self._alive))
        chosen, x = [self._algorithms[number] for number in self._alive], self.setup.network.x
        self._client_side = stack(chosen, x, on_clients=True)
        self._server_side = stack(chosen, x, on_clients=False)

    def run(self, drop: Drop | None = None) -> list[Swept]:
        """Take all rounds of the plan; what each setting came to, in the order in which they were given."""
        while self._alive and self.state.round < self.setup.plan.rounds:
            rows = self._advance()
            if drop is not None and self.setup.plan.is_evaluated(self.state.round):
                unwanted = drop(self.state.round, {number: rows[number] for number in self._alive})
                self._leave(unwanted, dropped=True)
        self._leave(set(self._alive))
        return [self.ends[number] for number in range(len(self._algorithms))]

    def _advance(self) -> dict[int, Row]:
        """One round of all settings in the stack; the rows by setting."""
        plan, before = self.setup.plan, self.state
        began = time.perf_counter()
        after, trace, cost, cohort = self._play()
        seconds = (time.perf_counter() - began) / len(self._alive)
        finite = after.x.isfinite().all(-1) & trace.losses.isfinite().flatten(1).all(-1)
        self._check_bound(after.round, trace, cohort, finite)
        scores = self._evaluate(after) if plan.is_evaluated(after.round) else {}
        statistics = history.training(trace.losses, trace.stepsizes) | scores
        columns = {name: value.tolist() for name, value in statistics.items()}
        rows = {}
        for place, number in enumerate(self._alive):
            own = {name: values[place] for name, values in columns.items()}
            rows[number] = history.COLUMN_ORDER | {
                "round": after.round,
                **own,
                "seconds": seconds,
                **cost,
                "events": "",
            }
            self.rows[number].append(rows[number])
        lost = {self._alive[place]: place for place, sound in enumerate(finite.tolist()) if not sound}
        for number, place in lost.items():
            self._end(number, before, place, diverged=True)
        self.state = after
        self._remove(set(lost))
        return rows

    def _check_bound(self, round: int, trace: Trace, cohort: Indices, finite: Tensor) -> None:
        """As `check_bound`, for the first setting of which a loss fell below its bound."""
        if not (trace.gap < 0).any():
            return
        for place in finite.nonzero().flatten().tolist():
            check_bound(round, Trace(trace.losses[place], trace.stepsizes[place], trace.gap[place]), cohort)

    def _evaluate(self, state: State) -> Tensors:
        setup = self.setup
        shares = setup.shares(np.arange(setup.data.clients))
        losses = evaluate_settings(setup.network, state.result, setup.data, accuracy=False).loss
        scores = {"train_loss": (losses * shares.to(losses.dtype)).sum(-1)}
        if self.test is not None:
            loss, accuracy = evaluate_settings(setup.network, state.result, self.test)
            scores |= {"test_loss": loss[:, 0], "test_accuracy": accuracy[:, 0]}
        return scores

    def _play(self) -> tuple[State, Trace, dict[str, Any], Indices]:
        """One round of all settings: as `play_round`, with the settings in front."""
        state, setup = self.state, self.setup
        cohort = setup.cohort_of(state.round)
        totals = {"gradient_evaluations": 0, "bytes_up": 0, "bytes_down": 0}
        sides = zip(self._client_side.exchanges(state.round), self._server_side.exchanges(state.round), strict=True)
        count = 0
        for on_clients, on_server in sides:
            audience = cohort[:1] if on_clients.first_client_only else cohort
            mean, states, trace, cost = self._collect(state, on_clients, on_server, audience)
            x, server = on_server.finish(state.server, state.x, mean, len(audience) / setup.data.clients)
            state = replace(state, x=x, server=server, clients=states)
            totals = {name: totals[name] + cost[name] for name in totals}
            count += 1
        assert trace is not None, "a round ends with training"
        result, output = self._server_side.output_rule(state.output, state.x, state.round + 1)
        state = replace(state, round=state.round + 1, output=output, result=result)
        return state, trace, totals | {"exchanges": count, "clients": len(cohort)}, cohort

    def _collect(
        self, state: State, exchange: Exchange, on_server: Exchange, audience: Indices
    ) -> tuple[Tensors, Tensors, Trace | None, dict[str, int]]:
        """The work of all clients of a chunk and all settings at once; chunks add up."""
        setup, settings = self.setup, len(self._alive)
        shares = setup.shares(audience)
        received = on_server.broadcast(state.server)
        states = {name: value.clone() for name, value in state.clients.items()}
        total: Tensors = {}
        traces: list[Trace] = []
        order: list[Indices] = []
        gradients = bytes_up = 0
        for positions, batch in chunks(self._roomy, exchange, audience):
            numbers = audience[positions]
            index = torch.from_numpy(numbers).to(state.x.device)
            work, x = self._work(state, exchange, numbers, batch)
            message, own, trace = exchange.work(
                {name: value[:, index] for name, value in states.items()},
                x,
                {
                    name: value.unsqueeze(1).expand(settings, len(numbers), *value.shape[1:])
                    for name, value in received.items()
                },
                work,
            )
            for name, value in own.items():
                states[name].index_copy_(1, index, value)
            for name, value in message.items():
                part = _mean(value, shares[positions])
                total[name] = total[name] + part if name in total else part
            gradients += setup.gradients(numbers, batch, work.evaluations)
            bytes_up += exchange.bytes_up(message) // settings
            if trace is not None:
                traces.append(trace)
                order.append(positions)
        alone = replace(state, x=state.x[0], server={name: value[0] for name, value in state.server.items()})
        cost = {
            "gradient_evaluations": gradients,
            "bytes_up": bytes_up,
            "bytes_down": bytes_down(alone, on_server, audience),
        }
        if not traces:
            return total, states, None, cost
        sort = torch.from_numpy(np.argsort(np.concatenate(order)))
        joined = {name: torch.cat([vars(trace)[name] for trace in traces], 1)[:, sort] for name in TRACE_FIELDS}
        return total, states, Trace(**joined), cost

    def _work(self, state: State, exchange: Exchange, numbers: Indices, batch: int) -> tuple[Any, Any]:
        """The clients' batches, and the server's points once for each of them: in the round's span where that pays."""
        setup, linear, settings = self.setup, self._linear, len(self._alive)
        work = batches(setup, exchange, state.round, numbers, batch, {})
        work.shared = 1
        work.fraction = work.fraction.expand(settings, -1)
        samples = setup.plan.local_steps * batch
        if (
            linear is not None
            and isinstance(exchange, Train)
            and self._client_side.in_span
            and samples <= min(MOST_GRAM, 4 * settings * linear.width)
        ):
            return (spanned := SpanBatches(work, state.x, linear.width)), spanned.samples.start()
        return work, state.x.unsqueeze(1).expand(-1, len(numbers), -1)

    def _end(self, number: int, state: State, place: int, *, diverged: bool = False, dropped: bool = False) -> None:
        self.ends[number] = Swept(
            rows=self.rows[number],
            x=state.result[place].clone(),
            diverged_at=len(self.rows[number]) if diverged else None,
            dropped=dropped,
        )

    def _leave(self, numbers: set[int], *, dropped: bool = False) -> None:
        """These settings leave the stack as they are."""
        for place, number in enumerate(self._alive):
            if number in numbers:
                self._end(number, self.state, place, dropped=dropped)
        self._remove(numbers)

    def _remove(self, numbers: set[int]) -> None:
        """Take settings out of the stack."""
        if not numbers:
            return
        kept = [place for place, number in enumerate(self._alive) if number not in numbers]
        self._alive = [self._alive[place] for place in kept]
        if not kept:
            return
        index = torch.tensor(kept, device=self.state.x.device)

        def kept_of(tensors: Tensors) -> Tensors:
            return {name: value[index] for name, value in tensors.items()}

        state = self.state
        self.state = replace(
            state,
            x=state.x[index],
            result=state.result[index],
            server=kept_of(state.server),
            clients=kept_of(state.clients),
            output=kept_of(state.output),
        )
        self._stack_algorithms()


class SpanBatches:
    """The `Work` of a linear model in the span of the round's samples; see `fedsps.model.span`."""

    def __init__(self, work: Batches, x: Tensor, outputs: int) -> None:
        self.samples = RoundSamples.of(x, outputs, work.inputs, work.targets)
        self.steps, self.iteration = work.steps, work.iteration
        self.client, self.fraction = work.client, work.fraction
        self.evaluations = 0

    def loss_and_gradient(self, x: Span, step: int) -> tuple[Tensor, Span]:
        """Loss `[settings, clients]` and gradient of batch `step` at x."""
        self.evaluations += 1
        return self.samples.loss_and_gradient(x, step)

    probe = loss_and_gradient


def _mean(values: Tensor | Span, weights: Tensor) -> Tensor:
    """The weighted sum over the clients of `[settings, clients, *]`."""
    if isinstance(values, Implicit):
        return values.mean(weights)
    total: Tensor = torch.tensordot(weights.to(values.dtype), values, dims=([0], [1]))
    return total


def bytes_of_setting(setup: Setup) -> int:
    """Roughly what one setting takes in a stack: a few vectors on the server and for each client of the cohort."""
    x, algorithm = setup.network.x, setup.algorithm
    kept = bytes_of(algorithm.client_init(x.expand(1, -1)).values()) * setup.data.clients
    cohort = setup.plan.active(setup.data.clients)
    return 10 * x.numel() * x.element_size() + 2 * kept + cohort * setup.client_bytes(setup.plan.batch_size or 1)
