"""What a search found: the score of a run, the table of the trials, the winner.

The winner has the lowest mean `train_loss` over the last tenth of the rounds, on a seed that no figure reports.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedsps.errors import ConfigurationError
from fedsps.methods.notation import Named
from fedsps.runs.result import Result
from fedsps.runs.space import Search


def score(result: Result, column: str = "train_loss") -> float:
    """The mean loss over the last tenth of the rounds; infinite if the run diverged.

    A mean, since the loss of a single round is noisy; `train_loss` is the objective over all clients, `cohort_loss`
    that of the cohorts' batches.

    Raises:
        ConfigurationError: if none of these rounds was evaluated.
    """
    if result.diverged_at is not None:
        return np.inf
    table = result.history
    last = table[column][table["round"] > 0.9 * table["round"].max()].dropna()
    if last.empty:
        raise ConfigurationError("no round in the last tenth was evaluated: set evaluate_every to a tenth or less")
    return float(last.mean())


@dataclass(frozen=True)
class TuningResult:
    """What a search found.

    Attributes:
        search: what was searched.
        table: a row a trial: its parameters, `score`, `seconds` (trials share the time in which they run), whether it
            `diverged` or was `dropped`, and the `digest` of its run; the best first.
    """

    search: Search
    table: pd.DataFrame

    def _named(self, row: int) -> Named:
        point = {name: self.table[name].tolist()[row] for name in self.search.space}
        return self.search.at(point).named

    @property
    def best(self) -> Named:
        """The trial with the lowest score among those that ran to the end."""
        return self._named(int(np.argmin(self._finished("min"))))

    @property
    def worst(self) -> Named:
        """The trial with the largest finite score among those that ran to the end.

        It shows how much a wrong choice costs; trials that diverged would say nothing but that.
        """
        return self._named(int(np.argmax(self._finished("max"))))

    def _finished(self, kind: str) -> np.ndarray[Any, Any]:
        """The scores, with those of trials that diverged or were dropped made the last to be chosen.

        Raises:
            ConfigurationError: if there is no other trial, and so nothing to choose.
        """
        scores = self.table["score"].to_numpy(float)
        usable = np.isfinite(scores) & ~self.table["dropped"].to_numpy(bool)
        if not usable.any():
            raise ConfigurationError(
                f"all {len(scores)} trials of {self.search.spec.algorithm} diverged: widen the search"
            )
        return np.where(usable, scores, np.inf if kind == "min" else -np.inf)

    def scored_by(self, column: str, runs: str | Path) -> "TuningResult":
        """The same trials with another column's scores, of those that ran to the end.

        Args:
            column: of the histories, "cohort_loss".
            runs: the folder of run folders, where the trials' own lie.
        """
        ended = self.table["digest"].where(~self.table["dropped"].astype(bool))
        scores = [np.nan if pd.isna(digest) else score(Result.load(Path(runs) / digest), column) for digest in ended]
        return replace(self, table=self.table.assign(score=scores))

    @property
    def diverged(self) -> int:
        """How many trials diverged: their score is infinite, and they count as finished."""
        return int(self.table["diverged"].sum())
