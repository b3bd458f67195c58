"""Many runs of one algorithm at once: `[settings, clients, d]` in one pass, the clients of several seeds in one axis.

The runs differ in numbers of the algorithm and in seeds alone. Settings of one seed share its cohorts and batches, so
that one gathering, one product with the data and one evaluation serve all of them. Each run's rows and model are those
that it has alone, up to rounding. A run that diverges, or that the caller drops, leaves without costing the others.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedsps.core.algorithm import Algorithm
from fedsps.core.contract import TRACE_FIELDS, Exchange, Trace
from fedsps.core.local_training import Train
from fedsps.core.stacking import on_clients, stack
from fedsps.core.streams import Indices
from fedsps.core.vectors import Implicit, Tensors, bytes_of
from fedsps.data.clients import ClientData
from fedsps.engine import history
from fedsps.engine.batches import Batches, batches, join
from fedsps.engine.evaluate import Evaluation, Pool, evaluate_clients, evaluate_pool, pools
from fedsps.engine.history import Row
from fedsps.engine.round import bytes_down
from fedsps.engine.session import Saver, check_bound
from fedsps.engine.setup import Setup, State, with_output
from fedsps.engine.stacked import chunks
from fedsps.engine.trial import check_test
from fedsps.errors import ConfigurationError
from fedsps.model.logistic import Logistic
from fedsps.model.span import RoundSamples, Span

SAVE_SECONDS = 30.0  # between two saves: each run has a file of its own
MOST_GRAM = 512  # samples of a client in a round: beyond them their Gram matrices cost more than they save
Drop = Callable[[int, Mapping[int, Row]], set[int]]
"""Called after each evaluated round with the rows of the runs; those that it returns are dropped."""


@dataclass(frozen=True)
class Swept:
    """What one run of a sweep came to.

    Attributes:
        rows: its history.
        x: its output, `[d]`.
        diverged_at: the round in which it diverged, else None.
        dropped: whether the caller dropped it before its last round.
        tally: of its clients' stepsizes, see `State`.
    """

    rows: list[Row]
    x: Tensor
    diverged_at: int | None
    dropped: bool
    tally: Tensors


@dataclass(frozen=True)
class Unit:
    """What is computed in one pass: as many clients of each of some seeds, with equal batches, for as many settings.

    Attributes:
        seeds: the numbers of the setups, `S` of them.
        places: the runs' places in the stack, `[settings, S]`.
        positions: the clients' in their seed's audience, `[S, n]`.
        batch: the actual batch of each of them.
    """

    seeds: tuple[int, ...]
    places: Indices
    positions: Indices
    batch: int

    def spread(self, column: Tensor) -> Tensor:
        """A parameter's numbers `[settings * S]` against the scalars of this unit's clients, `[settings, S * n]`."""
        if len(self.seeds) == 1:
            return on_clients(column)
        return column.view(self.places.shape).repeat_interleave(self.positions.shape[1], dim=1)


class Sweep:
    """A sweep in progress.

    Args:
        setups: one for each seed, prepared (see `prepare`). They differ in their seed, in the split of the data and in
            the starting point alone; their algorithms do not matter.
        algorithms: one for each run, equal in everything but floating parameters.
        seeds: the number of each run's setup; all have the first if it is not given.
        tests: held-out data for each setup, if there are any.
    """

    def __init__(
        self,
        setups: Sequence[Setup],
        algorithms: Sequence[Algorithm],
        seeds: Sequence[int] | None = None,
        tests: Sequence[ClientData] = (),
    ) -> None:
        self.setups, self.tests = list(setups), list(tests)
        self.plan, self.network, self.clients = setups[0].plan, setups[0].network, setups[0].data.clients
        if any(setup.is_random or setup.network.buffers for setup in setups):
            raise ConfigurationError("a model that draws random numbers or keeps statistics cannot be swept")
        for setup, test in zip(self.setups, self.tests, strict=False):
            check_test(setup, test)
        network = self.network
        self._linear = (
            network
            if isinstance(network, Logistic)
            and all(
                network.counts_classes(one.targets, one.ignored is not None)
                for one in (*(setup.data for setup in setups), *self.tests)
            )
            else None
        )
        self._data, self._tests = pools([setup.data for setup in setups]), pools(self.tests)
        self.rows: list[list[Row]] = [[] for _ in algorithms]
        self.ends: dict[int, Swept] = {}
        self._algorithms = list(algorithms)
        self._seeds = [0] * len(algorithms) if seeds is None else list(seeds)
        self._alive = list(range(len(algorithms)))  # the numbers of the runs in the stack
        self._stack_algorithms()
        x = torch.stack([setups[seed].network.x for seed in self._seeds])
        on_all_clients = stack(self._algorithms, network.x, on_clients)
        self.state = State(
            round=0,
            x=x,
            buffers={},
            server=self._server_side.server_init(x),
            clients=on_all_clients.client_init(x.unsqueeze(1).expand(-1, self.clients, -1)),
            output=self._server_side.output_rule.init(x),
            result=x,
            tally={name: torch.zeros(len(x), self.clients, dtype=torch.float64) for name in ("stepsizes", "steps")},
        )

    def _stack_algorithms(self) -> None:
        """The algorithms of the runs in the stack as one on the server, and the memory that each of them has."""
        self._roomy = [replace(one, memory_limit=one.memory_limit // len(self._alive)) for one in self.setups]
        self._server_side = stack([self._algorithms[number] for number in self._alive], self.network.x)
        self._client_sides: dict[Any, Algorithm] = {}

    def run(
        self, drop: Drop | None = None, savers: Sequence[Saver] = (), save_seconds: float = SAVE_SECONDS
    ) -> list[Swept]:
        """Take all rounds of the plan; what each run came to, in the order in which they were given.

        Args:
            drop: called after each evaluated round.
            savers: where each run is saved, in the form that it would have alone.
            save_seconds: the time between two saves.
        """
        last_save = time.monotonic()
        try:
            while self._alive and self.state.round < self.plan.rounds:
                rows = self._advance()
                if drop is not None and self.plan.is_evaluated(self.state.round):
                    unwanted = drop(self.state.round, {number: rows[number] for number in self._alive})
                    self._leave(unwanted, dropped=True)
                if time.monotonic() - last_save >= save_seconds:
                    self._save(savers)
                    last_save = time.monotonic()
        except KeyboardInterrupt:
            self._save(savers)
            raise
        self._leave(set(self._alive))
        return [self.ends[number] for number in range(len(self._algorithms))]

    def resume(self, states: Sequence[State], rows: Sequence[list[Row]]) -> None:
        """Go on from where the runs were saved, all of them after the same round."""
        assert len({state.round for state in states}) == 1, "runs of a sweep have come equally far"

        def stacked(tensors: Sequence[Tensors]) -> Tensors:
            return {name: torch.stack([one[name] for one in tensors]) for name in tensors[0]}

        self.rows = [list(own) for own in rows]
        self.state = State(
            round=states[0].round,
            x=torch.stack([state.x for state in states]),
            buffers={},
            server=stacked([state.server for state in states]),
            clients=stacked([state.clients for state in states]),
            output=stacked([state.output for state in states]),
            result=torch.stack([state.result for state in states]),
            tally={name: value.cpu() for name, value in stacked([state.tally for state in states]).items()},
        )

    def _save(self, savers: Sequence[Saver]) -> None:
        """Each run that is still in the stack, as it would be saved alone; nothing if a round was broken off."""
        state, alive = self.state, self._alive
        is_whole = len(state.x) == len(alive) and all(len(self.rows[number]) == state.round for number in alive)
        for place, number in enumerate(alive if savers and is_whole and state.round else ()):
            groups = (state.server, state.clients, state.output, state.tally)
            server, clients, output, tally = ({name: value[place] for name, value in group.items()} for group in groups)
            own = State(state.round, state.x[place], {}, server, clients, output, state.result[place], tally=tally)
            savers[number].save(own, self.rows[number])

    def _advance(self) -> dict[int, Row]:
        """One round of all runs in the stack; their rows by number."""
        before, cohorts = self.state, [setup.cohort_of(self.state.round) for setup in self.setups]
        began = time.perf_counter()
        after, trace, costs = self._play(cohorts)
        trace = trace.on_host
        finite = after.x.isfinite().all(-1).cpu() & trace.losses.isfinite().flatten(1).all(-1)
        seconds = (time.perf_counter() - began) / len(self._alive)
        self._check_bound(after.round, trace, cohorts, finite)
        after = replace(after, tally=self._tallied(trace, cohorts))
        scores = self._evaluate(after) if self.plan.is_evaluated(after.round) else {}
        statistics = history.training(trace.losses, trace.stepsizes) | scores
        columns = {name: value.tolist() for name, value in statistics.items()}
        rows = {}
        for place, number in enumerate(self._alive):
            own = {name: values[place] for name, values in columns.items()}
            rows[number] = history.COLUMN_ORDER | {
                "round": after.round,
                **own,
                "seconds": seconds,
                **costs[self._seeds[number]],
                "events": "",
            }
            self.rows[number].append(rows[number])
        lost = {self._alive[place]: place for place, sound in enumerate(finite.tolist()) if not sound}
        for number, place in lost.items():
            self._end(number, before, place, diverged=True)
        self.state = after
        self._remove(set(lost))
        return rows

    def _tallied(self, trace: Trace, cohorts: Sequence[Indices]) -> Tensors:
        """The tally of all runs after a round, each `[runs, clients]`; as `with_tally` has it for one."""
        index = torch.from_numpy(np.stack(cohorts)[[self._seeds[number] for number in self._alive]])
        rows = trace.stepsizes.double()
        more = {"stepsizes": rows.sum(-1), "steps": torch.full(index.shape, rows.shape[-1], dtype=torch.float64)}
        return {name: value.scatter_add(1, index, more[name]) for name, value in self.state.tally.items()}

    def _check_bound(self, round: int, trace: Trace, cohorts: Sequence[Indices], finite: Tensor) -> None:
        """As `check_bound`, for the first run of which a loss fell below its bound."""
        if not (trace.gap < 0).any():
            return
        for place in finite.nonzero().flatten().tolist():
            cohort = cohorts[self._seeds[self._alive[place]]]
            check_bound(round, Trace(trace.losses[place], trace.stepsizes[place], trace.gap[place]), cohort)

    def _evaluate(self, state: State) -> Tensors:
        seeds = [self._seeds[number] for number in self._alive]
        shares = torch.stack([setup.shares(np.arange(self.clients)) for setup in self.setups])[seeds]
        losses = self._scores(state.result, seeds, self._data, wants_accuracy=False).loss.cpu()
        scores = {"train_loss": (losses * shares.to(losses.dtype)).sum(-1)}
        if self.tests:
            loss, accuracy = self._scores(state.result, seeds, self._tests, wants_accuracy=True)
            scores |= {"test_loss": loss[:, 0], "test_accuracy": accuracy[:, 0]}
        return scores

    def _scores(self, x: Tensor, seeds: Sequence[int], data: Sequence[Pool], wants_accuracy: bool) -> Evaluation:
        """Loss and accuracy of all runs, `[runs, clients]`; of a linear model by one product with each pool's data."""
        clients = next(iter(data[0].data.values())).clients
        loss, accuracy = x.new_empty(len(x), clients), x.new_empty(len(x), clients)
        for pool in data:
            own = [place for place, seed in enumerate(seeds) if seed in pool.data]
            splits = [seeds[place] for place in own]
            if self._linear is not None and own:
                loss[own], accuracy[own] = evaluate_pool(self._linear, x[own], pool, splits, wants_accuracy)
                continue
            for place, seed in zip(own, splits, strict=True):
                alone = evaluate_clients(self.network, x[place], {}, pool.data[seed], wants_accuracy)
                loss[place], accuracy[place] = alone
        return Evaluation(loss, accuracy)

    def _play(self, cohorts: Sequence[Indices]) -> tuple[State, Trace, list[dict[str, int]]]:
        """One round of all runs: as `play_round`, with the runs in front. What it cost is that of each seed."""
        state = self.state
        costs = [{"gradient_evaluations": 0, "bytes_up": 0, "bytes_down": 0} for _ in self.setups]
        trace: Trace | None = None
        exchanges = self._server_side.exchanges(state.round)
        for number, exchange in enumerate(exchanges):
            audiences = [cohort[:1] for cohort in cohorts] if exchange.first_client_only else cohorts
            mean, states, trace = self._collect(state, exchange, number, audiences, costs)
            participation = len(audiences[0]) / self.clients
            x, server = exchange.finish(state.server, state.x, mean, participation)
            state = replace(state, x=x, server=server, clients=states)
        assert trace is not None, "a round ends with training"
        state = with_output(self._server_side.output_rule, state)
        for cost, cohort in zip(costs, cohorts, strict=True):
            cost |= {"exchanges": len(exchanges), "clients": len(cohort)}
        return state, trace, costs

    def _collect(
        self, state: State, on_server: Exchange, number: int, audiences: Sequence[Indices], costs: list[dict[str, int]]
    ) -> tuple[Tensors, Tensors, Trace | None]:
        """The clients' work of one exchange, unit by unit: the means, the clients' states, and the traces of all runs.

        Args:
            state: before the exchange.
            on_server: the exchange, as the server sees it.
            number: its number in the round.
            audiences: the clients that take part, of each seed.
            costs: of each seed; what the exchange costs is added.
        """
        runs, broadcast = len(self._alive), on_server.broadcast(state.server)
        states = {name: value.clone() for name, value in state.clients.items()}
        total: Tensors = {}
        traces: Tensors = {}
        alone = replace(state, x=state.x[0], server={name: value[0] for name, value in state.server.items()})
        for cost, audience in zip(costs, audiences, strict=True):
            cost["bytes_down"] += bytes_down(alone, on_server, audience)
        for unit in self._units(on_server, audiences):
            clients = np.stack([audiences[seed][own] for seed, own in zip(unit.seeds, unit.positions, strict=True)])
            places, index = (torch.from_numpy(values).to(state.x.device) for values in (unit.places, clients))
            exchange = self._on_clients(unit).exchanges(state.round)[number]
            work, x = self._work(state.x[places], exchange, state.round, unit, clients)
            message, own, trace = exchange.work(
                {name: value[places[..., None], index].flatten(1, 2) for name, value in states.items()},
                x,
                {name: _for_clients(value[places], clients.shape[1]) for name, value in broadcast.items()},
                work,
            )
            for name, value in own.items():
                states[name][places[..., None], index] = value.unflatten(1, index.shape)
            shares = torch.stack([self.setups[seed].shares(audiences[seed]) for seed in unit.seeds])
            shares = shares.gather(1, torch.from_numpy(unit.positions).to(shares.device))
            for name, value in message.items():
                part = _mean(value, shares)
                total.setdefault(name, part.new_zeros(runs, *part.shape[2:]))[places] += part
            for seed, numbers in zip(unit.seeds, clients, strict=True):
                costs[seed]["gradient_evaluations"] += self.setups[seed].gradients(
                    numbers, unit.batch, work.evaluations
                )
                costs[seed]["bytes_up"] += exchange.bytes_up(message) // unit.places.size
            if trace is not None:
                positions = torch.from_numpy(unit.positions).to(state.x.device)
                for name in TRACE_FIELDS:
                    found = vars(trace)[name].unflatten(1, index.shape)
                    kept = traces.setdefault(name, found.new_zeros(runs, len(audiences[0]), *found.shape[3:]))
                    kept[places[..., None], positions] = found
        return total, states, Trace(**traces) if traces else None

    def _units(self, exchange: Exchange, audiences: Sequence[Indices]) -> Iterator[Unit]:
        """The chunks of all seeds, those of one shape together."""
        places: dict[int, list[int]] = {}
        for place, number in enumerate(self._alive):
            places.setdefault(self._seeds[number], []).append(place)
        alike: dict[tuple[int, ...], list[tuple[int, Indices]]] = {}
        for seed, own in places.items():
            for number, (positions, batch) in enumerate(chunks(self._roomy[seed], exchange, audiences[seed])):
                alike.setdefault((batch, number, len(positions), len(own)), []).append((seed, positions))
        for (batch, *_), members in alike.items():
            yield Unit(
                seeds=tuple(seed for seed, _ in members),
                places=np.array([places[seed] for seed, _ in members]).T.copy(),
                positions=np.stack([positions for _, positions in members]),
                batch=batch,
            )

    def _on_clients(self, unit: Unit) -> Algorithm:
        """The algorithms of a unit's runs as one, as its clients need it."""
        key = (unit.places.tobytes(), unit.places.shape, unit.positions.shape)
        if key not in self._client_sides:
            chosen = [self._algorithms[self._alive[place]] for place in unit.places.flatten()]
            self._client_sides[key] = stack(chosen, self.network.x, unit.spread)
        return self._client_sides[key]

    def _work(
        self, x: Tensor, exchange: Exchange, round: int, unit: Unit, clients: npt.NDArray[np.int64]
    ) -> tuple[Any, Any]:
        """The clients' batches, and the server's points once for each of them: in the round's span where that pays.

        Args:
            x: the server's points, `[settings, S, d]`.
            exchange: which one.
            round: 0, 1, ...
            unit: of the clients.
            clients: their numbers, `[S, n]`.
        """
        settings, linear = len(x), self._linear
        work = join([
            batches(self._roomy[seed], exchange, round, numbers, unit.batch, {})
            for seed, numbers in zip(unit.seeds, clients, strict=True)
        ])  # fmt: skip
        work.shared = 1
        work.fraction = work.fraction.expand(settings, -1)
        samples = self.plan.local_steps * unit.batch
        if (
            linear is not None
            and isinstance(exchange, Train)
            and self._server_side.in_span
            and samples <= min(MOST_GRAM, 4 * settings * linear.width)
        ):
            return (spanned := SpanBatches(work, x, linear.width)), spanned.samples.start()
        return work, _for_clients(x, clients.shape[1])

    def _end(self, number: int, state: State, place: int, *, diverged: bool = False, dropped: bool = False) -> None:
        self.ends[number] = Swept(
            rows=self.rows[number],
            x=state.result[place].clone(),
            diverged_at=len(self.rows[number]) if diverged else None,
            dropped=dropped,
            tally={name: value[place].clone() for name, value in state.tally.items()},
        )

    def _leave(self, numbers: set[int], *, dropped: bool = False) -> None:
        """These runs leave the stack as they are."""
        for place, number in enumerate(self._alive):
            if number in numbers:
                self._end(number, self.state, place, dropped=dropped)
        self._remove(numbers)

    def _remove(self, numbers: set[int]) -> None:
        """Take runs out of the stack."""
        if not numbers:
            return
        kept = [place for place, number in enumerate(self._alive) if number not in numbers]
        alive, state = [self._alive[place] for place in kept], self.state
        index = torch.tensor(kept, dtype=torch.int64, device=state.x.device)

        def kept_of(tensors: Tensors) -> Tensors:
            return {name: value[index] for name, value in tensors.items()}

        state = replace(
            state,
            x=state.x[index],
            result=state.result[index],
            server=kept_of(state.server),
            clients=kept_of(state.clients),
            output=kept_of(state.output),
            tally={name: value[kept] for name, value in state.tally.items()},
        )
        self._alive, self.state = alive, state
        if alive:
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


def _for_clients(values: Tensor, clients: int) -> Tensor:
    """The server's `[settings, S, *]` once for each client: `[settings, S * n, *]`."""
    return values.unsqueeze(2).expand(*values.shape[:2], clients, *values.shape[2:]).flatten(1, 2)


def _mean(values: Tensor | Span, weights: Tensor) -> Tensor:
    """The sum over each seed's clients of `[settings, S * n, *]`, weighted by `[S, n]`: `[settings, S, *]`."""
    if isinstance(values, Implicit):
        return values.mean(weights)
    by_seed = values.unflatten(1, weights.shape).unbind(1)
    weights = weights.to(values.device, values.dtype)
    sums = [torch.tensordot(own, part, dims=([0], [1])) for own, part in zip(weights, by_seed, strict=True)]
    return torch.stack(sums, 1)


def bytes_of_setting(setup: Setup) -> int:
    """Roughly what one run takes in a stack: a few vectors on the server and for each client of the cohort."""
    x, algorithm = setup.network.x, setup.algorithm
    kept = bytes_of(algorithm.client_init(x.expand(1, -1)).values()) * setup.data.clients
    cohort = setup.plan.active(setup.data.clients)
    batch = int(setup.data.sizes.max()) if setup.plan.batch_size is None else setup.plan.batch_size
    return 10 * x.numel() * x.element_size() + 2 * kept + cohort * setup.client_bytes(batch)
