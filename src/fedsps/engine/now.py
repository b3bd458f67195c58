"""What a callback is given after each round: the row, and the run that it is of."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import numpy as np
from torch import nn

from fedsps.engine.history import Row
from fedsps.errors import ConfigurationError


class Now(dict[str, Any]):
    """Where a run stands after a round: a copy of the round's row, with the run at hand.

    A callback that only wants numbers takes it as the dictionary that it is: `now["train_loss"]`.

    Attributes:
        rounds: how many rounds the plan has.
        algorithm: as it prints itself.

    >>> now = Now({"round": 3, "train_loss": 0.5}, 10, "FedSPS()", lambda: nn.Linear(1, 1))
    >>> now.round, now["train_loss"], now.is_stopped
    (3, 0.5, False)
    >>> now.stop()
    >>> now.is_stopped
    True
    """

    def __init__(self, row: Row, rounds: int, algorithm: str, make_model: Callable[[], nn.Module]) -> None:
        super().__init__(row)
        self.rounds, self.algorithm = rounds, algorithm
        self.is_stopped = False
        self._make_model = make_model

    @property
    def round(self) -> int:
        """Which round this is, counted from 1."""
        return int(self["round"])

    @property
    def row(self) -> Row:
        """The numbers alone, as a plain dictionary."""
        return dict(self)

    @property
    def model(self) -> nn.Module:
        """The model as it is after this round, in evaluation mode; a copy, made when it is asked for."""
        return self._make_model()

    def stop(self) -> None:
        """End the run after this round."""
        self.is_stopped = True


Callback = Callable[[Now], bool | None]
"""Called after each round; the run ends if it returns `True` (nothing else), or calls `now.stop()`.

One that is a context manager is entered before the first round, and left after the last one, however the run ends.
"""

Callbacks = Callback | Sequence[Callback] | None
"""One callback, several, or none."""


def as_list(callbacks: Callbacks) -> list[Callback]:
    """The callbacks as a list.

    Raises:
        ConfigurationError: one of them cannot be called.
    """
    found = [] if callbacks is None else [callbacks] if callable(callbacks) else list(callbacks)
    for one in found:
        if isinstance(one, type):
            raise ConfigurationError(f"callback is the class {one.__name__}: make one of it, {one.__name__}(...)")
        if not callable(one):
            raise ConfigurationError(f"callback must be a function of the round's row, or a list of such; got {one!r}")
    return found


class Told:
    """Several callbacks as one, for the time of a run.

    Args:
        callbacks: one, several, or none.
    """

    def __init__(self, callbacks: Callbacks) -> None:
        self._callbacks = as_list(callbacks)
        self._stack = ExitStack()

    def __enter__(self) -> "Told":
        with ExitStack() as stack:
            for one in self._callbacks:
                if isinstance(one, AbstractContextManager):
                    stack.enter_context(one)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def __call__(self, now: Now) -> bool:
        """Tell all of them; whether one wants the run to end."""
        answers = [one(now) for one in self._callbacks]
        # progress bars return numbers
        return now.is_stopped or any(isinstance(answer, bool | np.bool_) and bool(answer) for answer in answers)
