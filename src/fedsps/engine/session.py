"""A run in progress: round after round, checked, evaluated and saved.

A session knows neither where answers come from (`collect`) nor where it is saved (`Saver`): local runs and federations
are the same loop.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from fedsps.core.contract import Trace
from fedsps.core.streams import Indices
from fedsps.core.vectors import Tensors
from fedsps.data.clients import ClientData
from fedsps.engine import distributed, history
from fedsps.engine.distributed import End
from fedsps.engine.evaluate import Own, client_scores, evaluate_clients
from fedsps.engine.history import Row
from fedsps.engine.metrics import is_better, worst
from fedsps.engine.now import Callbacks, Now, Told
from fedsps.engine.own_layers import PREFIX, layers_of, newcomers
from fedsps.engine.ranks import Ranks
from fedsps.engine.round import Collect, play_round
from fedsps.engine.setup import Setup, State, start, with_tally
from fedsps.engine.trial import Engine, check_test, prepare
from fedsps.errors import LowerBoundError, RankError, unknown


class Scores(NamedTuple):
    """What an evaluation gives: values for columns of the history, and what went wrong with it.

    Attributes:
        values: by column, such as `train_loss`; columns that are not there are NaN in the row.
        events: what is noted with the round.
        clients: what each client said of itself, where they do: `train_loss` and the like, by its number.
    """

    values: dict[str, float]
    events: tuple[str, ...] = ()
    clients: Mapping[int, Mapping[str, float]] = MappingProxyType({})


Evaluate = Callable[[State], Scores]
"""An evaluation of the output."""


class Saver(Protocol):
    """Where a session writes itself down as it goes; `fedsps.runs.checkpoint` has one."""

    def load(self) -> tuple[State, list[Row]] | None:
        """The state and the history of the last save, or None if there is none."""
        ...

    def save(self, state: State, rows: list[Row]) -> None:
        """Write state and history all or nothing: after a crash, the last complete save is there."""
        ...


class Session:
    """Where a run stands, and how it takes its next round. A run that diverges stops; it does not raise.

    Args:
        setup: of the run.
        state: where it begins.
        collect: the engine.
        evaluate: the evaluation of the output.
        events: what is to be noted with the first round.
        monitor: the column that the plan's `patience` and `restore_best` speak of.

    Attributes:
        told: what each client said of the output in the last evaluation; of the best round, where that one is kept.
        ended: why the run ended: "rounds" are all done, "diverged", "patience" is over, a "loss" is reached, or a
            "callback" said so.
    """

    def __init__(
        self,
        setup: Setup,
        state: State,
        collect: Collect,
        evaluate: Evaluate,
        events: Iterable[str] = (),
        monitor: str = "train_loss",
    ) -> None:
        self.setup, self.state = setup, state
        self.monitor = setup.plan.monitor or monitor
        self.ended = "rounds"
        self.told: Mapping[int, Mapping[str, float]] = {}
        self.rows: list[Row] = []
        self._collect, self._evaluate = collect, evaluate
        self._events = tuple(events)

    @property
    def diverged_at(self) -> int | None:
        """The round in which a loss or the model was no longer finite; the state is that of the round before."""
        return len(self.rows) if len(self.rows) > self.state.round else None

    @property
    def end(self) -> End:
        """Where the run stands, as its result is made of it."""
        state, best = self.state, self.state.best
        if best:
            buffers = {name.removeprefix("buffer:"): value for name, value in best.items() if name[:7] == "buffer:"}
            state = replace(state, result=best["x"], result_buffers=buffers, clients=best)
        x, buffers = output_of(self.setup, state)
        layers = layers_of(state.clients)
        return End(x, buffers, self.rows, self.diverged_at, self.setup.workers, self.ended, layers)

    def advance(self) -> Row:
        """Take one round, add its row to the history, and return it.

        A round whose model or losses are not finite is recorded, but its state is dropped: `diverged_at` is set, and
        `state` stays that of the round before.

        Raises:
            LowerBoundError: a loss fell below the bound of the stepsize rule; nothing of the round is kept.
        """
        began = time.perf_counter()
        after, done = play_round(self.setup, self.state, self._collect)
        done = replace(done, trace=None if done.trace is None else done.trace.on_host)
        sound = bool(after.x.isfinite().all()) and (done.trace is None or bool(done.trace.losses.isfinite().all()))
        seconds = done.seconds + time.perf_counter() - began  # only now: a device may still have been at work
        if sound:
            check_bound(after.round, done.trace, done.clients)
            after = after if done.trace is None else with_tally(after, done.clients, done.trace.stepsizes)
        scores = self._evaluate(after) if self.setup.plan.is_evaluated(after.round) else Scores({})
        events = (*self._events, *done.events, *scores.events)
        row = history.row(done, after.round, seconds, done.means | scores.values, events)
        self.state = after if sound else self.state  # only now: an interrupt leaves the round before, whole
        self._events = ()
        self.rows.append(row)
        if sound and scores.clients and (not self.setup.plan.restore_best or self.best_round == after.round):
            self.told = scores.clients
        if sound and self.setup.plan.watches and self.setup.plan.is_evaluated(after.round):
            self._watch(row)
        return row

    def _watch(self, row: Row) -> None:
        """Keep the output if its value of the monitored column is the best so far."""
        if self.best_round == 0:
            known = [name for name, value in row.items() if isinstance(value, float) and np.isfinite(value)]
            raise unknown("column to monitor, with a number in this run,", self.monitor, known)
        if self.setup.plan.restore_best and self.best_round == row["round"]:
            buffers = {f"buffer:{name}": value for name, value in self.state.result_buffers.items()}
            own = {name: value for name, value in self.state.clients.items() if name.startswith(PREFIX)}
            self.state = replace(self.state, best={"x": self.state.result, **buffers, **own})

    @property
    def best_round(self) -> int:
        """The first round with the best value of the monitored column so far; 0 if there is none."""
        found, best = 0, worst(self.monitor)
        for row in self.rows:
            if is_better(self.monitor, row.get(self.monitor, np.nan), best):
                found, best = row["round"], row[self.monitor]
        return found

    def run(
        self,
        *,
        stop_at_loss: float | None = None,
        callback: Callbacks = None,
        saver: Saver | None = None,
        save_seconds: float = 10.0,
    ) -> None:
        """Take all rounds of the plan, from the last save if there is one.

        Args:
            stop_at_loss: stop once `train_loss` is at most this.
            callback: called after each round; one or several.
            saver: where the run is saved, and found again.
            save_seconds: the time between two saves.

        Raises:
            RankError: another process of the run is gone; what is done so far is saved.
        """
        if saver is not None and (saved := saver.load()):
            self.state, self.rows = saved
        last_save = time.monotonic()
        with Told(callback) as tell:
            while not self._is_over(stop_at_loss):
                try:
                    row = self.advance()
                    if saver is not None and time.monotonic() - last_save >= save_seconds:
                        saver.save(self.state, self.rows)
                        last_save = time.monotonic()
                    stop = tell(self._now(row))
                except (KeyboardInterrupt, RankError) as error:
                    if saver is not None:
                        saver.save(self.state, self.rows)
                    if saver is None or isinstance(error, KeyboardInterrupt):
                        raise
                    again = f"run the same again, it goes on from round {len(self.rows) + 1}"
                    raise RankError(f"{error}: {again}") from error
                if stop and not self._is_over(stop_at_loss):
                    self.ended = "callback"
                    break
        if saver is not None:
            saver.save(self.state, self.rows)

    def _now(self, row: Row) -> Now:
        state, setup = self.state, self.setup

        def model() -> nn.Module:
            return setup.network.module(*output_of(setup, state))

        return Now(row, setup.plan.rounds, repr(setup.algorithm), model)

    def _is_over(self, stop_at_loss: float | None) -> bool:
        """Whether all rounds are done, the run diverged, patience is over, or the loss to stop at is reached."""
        plan, done = self.setup.plan, len(self.rows)
        if self.diverged_at is not None:
            self.ended = "diverged"
        elif done and stop_at_loss is not None and self.rows[-1]["train_loss"] <= stop_at_loss:
            self.ended = "loss"
        elif done >= plan.rounds:
            self.ended = "rounds"
        elif (
            done
            and plan.patience is not None
            and plan.is_evaluated(done)  # so that the run ends with numbers of the model that it ends with
            and done - self.best_round >= plan.patience
        ):
            self.ended = "patience"
        else:
            return False
        return True


def local_session(
    setup: Setup,
    engine: Engine = "auto",
    test: ClientData | None = None,
    ranks: Ranks | None = None,
    fingerprint: str = "",
    validation: ClientData | None = None,
) -> Session:
    """A run on this machine, which has all clients' data; or one that it leads, as rank 0 of several.

    Args:
        setup: of the run.
        engine: see `prepare`.
        test: held-out data, if there is any.
        ranks: the processes that share the work, if there are several.
        fingerprint: of the run, for the others to compare theirs with.
        validation: data that are held back to choose a round by, if there are any.

    >>> from fedsps.core.algorithm import Algorithm
    >>> from fedsps.core.plan import Plan
    >>> from fedsps.model.logistic import network_of
    >>> from fedsps.model.models import LogisticRegression
    >>> from fedsps.rules import SPS
    >>> clients = ClientData.of([(torch.eye(3), torch.arange(3))] * 2)
    >>> setup = Setup(Plan(rounds=3), network_of(LogisticRegression(3, 3)), clients, Algorithm(stepsize=SPS()))
    >>> session = local_session(setup)
    >>> session.run()
    >>> [row["round"] for row in session.rows], session.rows[-1]["train_loss"] < session.rows[0]["train_loss"]
    ([1, 2, 3], True)
    """
    setup, collect = prepare(setup, engine)
    if test is not None:
        check_test(setup, test)
    if validation is not None:
        check_test(setup, validation, "the validation data")
    if ranks is not None:
        collect = distributed.lead(ranks, setup, collect, fingerprint)

    def evaluate(state: State) -> Scores:
        losses = None if ranks is None else distributed.client_losses(ranks, setup, state)
        return evaluated(setup, state, {"test": test, "validation": validation}, losses)

    monitor = "train_loss" if validation is None else "validation_loss"
    return Session(setup, start(setup), collect, evaluate, monitor=monitor)


def evaluated(
    setup: Setup, state: State, held: Mapping[str, ClientData | None], losses: Tensor | None = None
) -> Scores:
    """The objective `f = mean_i f_i` under the plan's weights, and the scores on held-out data, at the output.

    Args:
        setup: of the run.
        state: after a round.
        held: held-out data by what they are for, "test" and "validation"; None where there are none.
        losses: `f_i` of all clients, where they are known.
    """
    if losses is None:
        own = Own.of(setup.own_layers, layers_of(state.clients), setup.data.sizes)
        point = state.result, state.result_buffers
        losses = evaluate_clients(setup.network, *point, setup.data, accuracy=False, own=own).loss
    train_loss = (setup.shares(np.arange(setup.data.clients)) * losses.cpu()).sum().item()
    scores = {"train_loss": train_loss}
    for name, data in held.items():
        scores |= on_held_out(setup, state, data, name)
    return Scores(scores)


def on_held_out(setup: Setup, state: State, data: ClientData | None, purpose: str = "test") -> dict[str, float]:
    """Loss, accuracy and metrics of the output on all held-out samples, if there are any; `test_loss`, ...

    Samples that belong to the clients are judged by each one's own layers, where clients have such.
    """
    if data is None:
        return {}
    own = None
    if data.clients == setup.data.clients:
        own = Own.of(setup.own_layers, layers_of(state.clients), data.sizes)
    whole = data.pooled if own is None else data.as_one
    scores = client_scores(setup.network, *output_of(setup, state), whole, setup.metrics, own)
    return {f"{purpose}_{name}": value for name, (value,) in scores.items()}


def output_of(setup: Setup, state: State) -> tuple[Tensor, Tensors]:
    """The output, `[d]`, and its buffers; of clients' own layers the mean, which is what a new client starts from."""
    layers = layers_of(state.clients)
    if setup.own_layers is None or not layers:
        return state.result, state.result_buffers
    return setup.own_layers.into(state.result, state.result_buffers, newcomers(layers))


def check_bound(round: int, trace: Trace | None, clients: Indices) -> None:
    """Stop if a loss fell below the stepsize rule's `lower`, up to rounding: ten units in the last place.

    Args:
        round: 1, 2, ..., for the message.
        trace: of the clients, `[n, tau]`; None is not checked.
        clients: their numbers, `[n]`.

    Raises:
        LowerBoundError: with the loss, the client, and a bound that would do.

    >>> trace = Trace(losses=torch.tensor([[0.5, -0.25]]), stepsizes=torch.ones(1, 2), gap=torch.tensor([-0.25]))
    >>> check_bound(3, trace, np.array([7]))
    Traceback (most recent call last):
    fedsps.errors.LowerBoundError: round 3: client 7 saw a loss of -0.25, below its lower bound of 0. ...
    """
    if trace is None:
        return
    gap, place = trace.gap.min(dim=0)
    loss = trace.losses[place].min()
    tolerance = 10 * torch.finfo(gap.dtype).eps * max(1.0, abs(loss.item()))
    if gap < -tolerance:
        raise LowerBoundError(
            f"round {round}: client {clients[place]} saw a loss of {loss.item():.6g}, below its lower bound of "
            f"{(loss - gap).item():.6g}. The Polyak stepsize needs a bound that no loss falls below: "
            f"set `lower` of the method, or of its stepsize rule, to {loss.item():.6g} or lower, as in "
            f"'fedpolyak:lower={loss.item():.6g}' or 'plateau:lower={loss.item():.6g}+diagonal'; a loss without such a "
            "bound needs a method without one, as fedavg"
        )
