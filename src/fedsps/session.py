"""A run in progress: round after round, checked and evaluated."""

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from fedsps import history, streams
from fedsps.checkpoint import Checkpoint
from fedsps.checks import choice
from fedsps.data.federated import Federation
from fedsps.engine import loop, stacked
from fedsps.engine.round import Collect, play
from fedsps.engine.setting import Setting, State, start
from fedsps.errors import ConfigurationError, FedspsError, LowerBoundError
from fedsps.evaluate import score
from fedsps.parts import Trace
from fedsps.streams import Rows

Engine = Literal["auto", "stacked", "loop"]
Row = dict[str, Any]
Callback = Callable[[Row], bool | None]
Evaluate = Callable[[State], dict[str, float]]


class Session:
    """Where a run stands, and how it takes its next round. A run that diverges stops; it does not raise."""

    def __init__(self, setting: Setting, state: State, collect: Collect, evaluate: Evaluate) -> None:
        self.setting, self.state = setting, state
        self._collect, self._evaluate = collect, evaluate
        self.rows: list[Row] = []

    @property
    def diverged_at(self) -> int | None:
        """The round in which a loss or the model was no longer finite; the state is that of the round before."""
        return len(self.rows) if len(self.rows) > self.state.round else None

    def advance(self, evaluate: bool) -> Row:
        """Play one round, add its row to the history, and return it."""
        began = time.perf_counter()
        after, done = play(self.setting, self.state, self._collect)
        seconds = time.perf_counter() - began
        sound = after.x.isfinite().all() and (done.trace is None or done.trace.losses.isfinite().all())
        if sound:
            check_bound(after.round, done.trace, done.clients)
        row = history.row(done, after.round, seconds, self._evaluate(after) if evaluate else {})
        self.state = after if sound else self.state  # only now: an interrupt leaves the round before, whole
        self.rows.append(row)
        return row

    def go_on(
        self,
        rounds: int,
        *,
        evaluate_every: int = 1,
        stop_at_loss: float | None = None,
        callback: Callback | None = None,
        saver: Checkpoint | None = None,
        save_seconds: float = 10.0,
    ) -> None:
        """Play up to so many rounds in all, from the last save if there is one."""
        if saver is not None and (found := saver.load()):
            self.state, self.rows = found
        last_save = time.monotonic()
        while len(self.rows) < rounds and not self._is_over(stop_at_loss):
            number = len(self.rows) + 1
            due = evaluate_every > 0 and (number % evaluate_every == 0 or number == rounds)
            try:
                row = self.advance(evaluate=due)
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
        if self.diverged_at is not None:
            return True
        return stop_at_loss is not None and bool(self.rows) and self.rows[-1]["train_loss"] <= stop_at_loss


def local(setting: Setting, engine: Engine = "auto", test: Federation | None = None) -> Session:
    """A run on this machine, which has all clients' data."""
    choice("engine", engine, get_args(Engine))
    setting, collect = prepare(setting, engine)
    if test is not None:
        goal, (inputs, targets) = setting.objective, _batch(setting, test, 0)
        with _trial(setting, "the test data", inputs, targets):
            outputs = goal.outputs(goal.x, goal.buffers, inputs)
            goal.check_targets(outputs, test.targets)
            goal.loss(outputs, targets)
    return Session(setting, start(setting), collect, lambda state: scores(setting, state, test))


def scores(setting: Setting, state: State, test: Federation | None) -> dict[str, float]:
    """The objective, and the test loss and accuracy, at the output."""
    goal, federation = setting.objective, setting.federation
    losses = score(goal, state.result, state.buffers, federation).loss
    found = {"train_loss": (setting.shares(np.arange(federation.clients)) * losses).sum().item()}
    return found | on_test(setting, state, test)


def on_test(setting: Setting, state: State, test: Federation | None) -> dict[str, float]:
    """The test loss and accuracy at the output, if there is a test set."""
    if test is None:
        return {}
    found = score(setting.objective, state.result, state.buffers, test)
    return {"test_loss": found.loss.item(), "test_accuracy": found.accuracy.item()}


def check_bound(round: int, trace: Trace | None, clients: Rows) -> None:
    """Stop if a loss fell below `lower`, up to rounding."""
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


def prepare(setting: Setting, engine: Engine) -> tuple[Setting, Collect]:
    """Try the model on one small batch before the run: which engine can take it, and how much memory it needs."""
    goal, federation = setting.objective, setting.federation
    smallest = int(np.where(federation.sizes > 0, federation.sizes, federation.sizes.max() + 1).argmin())
    inputs, targets = _batch(setting, federation, smallest)
    with _trial(setting, f"client {smallest}", inputs, targets):
        goal.check_targets(goal.outputs(goal.x, goal.buffers, inputs), federation.targets)
        setting = replace(setting, sample_bytes=goal.sample_bytes(inputs, targets))
    if engine == "loop" or (engine == "auto" and goal.prefers_loop):
        return setting, loop.collect
    try:
        twice = [_twice(value) for value in (goal.x, inputs, targets)]
        with streams.torch_seed(setting.seed, "trial"):
            goal.loss_and_gradient(twice[0], {name: _twice(value) for name, value in goal.buffers.items()}, *twice[1:])
    except (RuntimeError, ValueError, NotImplementedError) as error:
        reason = f"the model cannot be computed for several clients at once ({_first_line(error)})"
        if engine == "stacked":
            raise ConfigurationError(f"{reason}: use engine='loop'") from error
        warnings.warn(f"{reason}; training one client after another, which is slower", stacklevel=2)
        return setting, loop.collect
    return setting, stacked.collect


def _batch(setting: Setting, data: Federation, client: int) -> tuple[Tensor, Tensor]:
    """The first batch of a client's."""
    start, size = int(data.offsets[client]), int(data.sizes[client])
    rows = slice(start, start + min(size, setting.batch_size or size))
    return data.inputs[rows].clone(), data.targets[rows].clone()


@contextmanager
def _trial(setting: Setting, owner: str, inputs: Tensor, targets: Tensor) -> Iterator[None]:
    """Refuse a batch that the model and the loss cannot take, by the owner's name."""
    try:
        with warnings.catch_warnings(), streams.torch_seed(setting.seed, "trial"):
            warnings.filterwarnings("error", message="Using a target size")  # torch would broadcast the two
            yield
    except FedspsError:
        raise
    except Exception as error:
        raise ConfigurationError(
            f"the model and the loss cannot take a batch of {owner} "
            f"(inputs {_kind(inputs)}, targets {_kind(targets)}): {_first_line(error)}"
        ) from error


def _twice(value: Tensor) -> Tensor:
    return value.expand(2, *value.shape)


def _kind(values: Tensor) -> str:
    return f"{tuple(values.shape)} {values.dtype}"


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
