"""A run in progress: round after round, checked, evaluated and saved.

A session knows neither where answers come from (`collect`) nor where it is saved (`Saver`): local runs and federations
are the same loop.
"""

import time
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

import numpy as np
import torch

from fedsps.core.contract import Trace
from fedsps.core.streams import Indices
from fedsps.data.clients import ClientData
from fedsps.engine import history
from fedsps.engine.evaluate import evaluate_clients
from fedsps.engine.history import Row
from fedsps.engine.round import Collect, play_round
from fedsps.engine.setup import Setup, State, start
from fedsps.engine.trial import Engine, check_test, prepare
from fedsps.errors import LowerBoundError

Callback = Callable[[Row], bool | None]
"""Called after each round with a copy of its row; only `True` stops the run."""


class Scores(NamedTuple):
    """What an evaluation gives: values for columns of the history, and what went wrong with it.

    Attributes:
        values: by column, such as `train_loss`; columns that are not there are NaN in the row.
        events: what is noted with the round.
    """

    values: dict[str, float]
    events: tuple[str, ...] = ()


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
    """

    def __init__(
        self, setup: Setup, state: State, collect: Collect, evaluate: Evaluate, events: Iterable[str] = ()
    ) -> None:
        self.setup, self.state = setup, state
        self.rows: list[Row] = []
        self._collect, self._evaluate = collect, evaluate
        self._events = tuple(events)

    @property
    def diverged_at(self) -> int | None:
        """The round in which a loss or the model was no longer finite; the state is that of the round before."""
        return len(self.rows) if len(self.rows) > self.state.round else None

    def advance(self) -> Row:
        """Take one round, add its row to the history, and return it.

        A round whose model or losses are not finite is recorded, but its state is dropped: `diverged_at` is set, and
        `state` stays that of the round before.

        Raises:
            LowerBoundError: a loss fell below the bound of the stepsize rule; nothing of the round is kept.
        """
        began = time.perf_counter()
        after, done = play_round(self.setup, self.state, self._collect)
        seconds = time.perf_counter() - began
        sound = after.x.isfinite().all() and (done.trace is None or done.trace.losses.isfinite().all())
        if sound:
            check_bound(after.round, done.trace, done.clients)
        scores = self._evaluate(after) if self.setup.plan.is_evaluated(after.round) else Scores({})
        events = (*self._events, *done.events, *scores.events)
        row = history.row(done, after.round, seconds, done.means | scores.values, events)
        self.state = after if sound else self.state  # only now: an interrupt leaves the round before, whole
        self._events = ()
        self.rows.append(row)
        return row

    def run(
        self,
        *,
        stop_at_loss: float | None = None,
        callback: Callback | None = None,
        saver: Saver | None = None,
        save_seconds: float = 10.0,
    ) -> None:
        """Take all rounds of the plan, from the last save if there is one.

        Args:
            stop_at_loss: stop once `train_loss` is at most this.
            callback: called after each round.
            saver: where the run is saved, and found again.
            save_seconds: the time between two saves.
        """
        if saver is not None and (saved := saver.load()):
            self.state, self.rows = saved
        last_save = time.monotonic()
        while len(self.rows) < self.setup.plan.rounds and not self._is_over(stop_at_loss):
            try:
                row = self.advance()
            except KeyboardInterrupt:
                if saver is not None:
                    saver.save(self.state, self.rows)
                raise
            if saver is not None and time.monotonic() - last_save >= save_seconds:
                saver.save(self.state, self.rows)
                last_save = time.monotonic()
            stop = None if callback is None else callback(dict(row))
            if isinstance(stop, bool | np.bool_) and stop:  # progress bars return numbers
                break
        if saver is not None:
            saver.save(self.state, self.rows)

    def _is_over(self, stop_at_loss: float | None) -> bool:
        """Whether the run diverged, or the last evaluation reached the loss to stop at."""
        if self.diverged_at is not None:
            return True
        return stop_at_loss is not None and bool(self.rows) and self.rows[-1]["train_loss"] <= stop_at_loss


def local_session(setup: Setup, engine: Engine = "auto", test: ClientData | None = None) -> Session:
    """A run on this machine, which has all clients' data.

    Args:
        setup: of the run.
        engine: see `prepare`.
        test: held-out data, if there is any.

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
    return Session(setup, start(setup), collect, lambda state: evaluated(setup, state, test))


def evaluated(setup: Setup, state: State, test: ClientData | None) -> Scores:
    """The objective `f = mean_i f_i` under the plan's weights, and the test loss and accuracy, at the output."""
    losses = evaluate_clients(setup.network, state.result, state.buffers, setup.data, accuracy=False).loss
    train_loss = (setup.shares(np.arange(setup.data.clients)) * losses).sum().item()
    return Scores({"train_loss": train_loss} | on_test(setup, state, test))


def on_test(setup: Setup, state: State, test: ClientData | None) -> dict[str, float]:
    """The test loss and accuracy at the output, if there is a test set."""
    if test is None:
        return {}
    loss, accuracy = evaluate_clients(setup.network, state.result, state.buffers, test)
    return {"test_loss": loss.item(), "test_accuracy": accuracy.item()}


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
            f"set `lower` to {loss.item():.6g} or lower"
        )
