"""The errors a user can meet; each names the thing, the value and the remedy."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any


class FedspsError(Exception):
    """Whatever fedsps refuses to do; the command line prints it without a traceback."""


class ConfigurationError(FedspsError, ValueError):
    """A setting that cannot work, alone or together with the others."""


class DataError(FedspsError, ValueError):
    """Data that is missing, damaged or of the wrong shape."""


class DiskFullError(DataError):
    """There is no space left, or the quota is used up; what was saved last is as it was."""


class LowerBoundError(FedspsError, ValueError):
    """A loss fell below the `lower` bound that the Polyak rule was given."""


class NotFiniteError(FedspsError, ArithmeticError):
    """A loss or a gradient that an optimiser was given is infinite or not a number."""


class RankError(FedspsError):
    """A run on several processes cannot go on, since one of them is gone or has failed.

    Attributes:
        speaks: whether it is for this process to report it, where rank 0 cannot.
    """

    speaks = False


@dataclass(frozen=True)
class Failure:
    """A run of several that failed.

    Attributes:
        what: the run, in words.
        error: its error, in one line.
        file: where its traceback lies.
    """

    what: str
    error: str
    file: Path

    def __str__(self) -> str:
        return f"{self.what}: {self.error} ({self.file})"


class FailedRunsError(FedspsError):
    """Some runs of several failed; raised when the others are done.

    Args:
        failures: which, and why.
        finished: what was made of the others: the results (None for those that failed), the comparison, what the search
            found, or the pages; None where nothing can be made of them.
        again: how the same is to be asked for again.
    """

    def __init__(self, failures: Sequence[Failure], finished: Any = None, again: str = "") -> None:
        self.failures, self.finished = tuple(failures), finished
        many, alone = f"{len(failures)} runs", "they alone are run"
        if len(failures) == 1:
            many, alone = "1 run", "it alone is run"
        lines = "".join(f"\n  {failure}" for failure in failures)
        super().__init__(f"{many} failed, the others are done. Ask for the same again{again}, and {alone}:{lines}")


class LossRoseWarning(UserWarning):
    """A run whose training loss ended above its start: it has a result, but hardly the one that was wanted."""


class TableWarning(UserWarning):
    """Something that was found in a table, and what is done about it."""


def unknown(kind: str, name: str, known: Iterable[str]) -> ConfigurationError:
    """An error for a name that is not in the list, with the nearest ones that are.

    >>> str(unknown("partition", "shard", ["iid", "shards"]))
    "unknown partition 'shard': did you mean shards?"
    """
    known = sorted(set(known) - {name})
    near = get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}"
    return ConfigurationError(f"unknown {kind} {name!r}: {hint}")
