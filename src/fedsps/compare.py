"""Several algorithms on one task: the table, as a pure function of their results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from fedsps.result import Result

COLUMNS = {
    "algorithm": "algorithm",
    "rounds": "rounds",
    "final_train_loss": "final\ntrain loss",
    "best_test_accuracy": "best test\naccuracy",
    "rounds_to_target": "rounds to\ntarget",
    "stepsize_mean": "mean\nstepsize",
    "seconds": "seconds",
}


@dataclass(frozen=True)
class Comparison:
    """One row an algorithm (means over its seeds), and the target loss that rounds_to_target speaks of."""

    table: pd.DataFrame
    target: float
    given: bool  # whether the user gave the target

    @property
    def note(self) -> str:
        """What the target is."""
        if self.given:
            return f"target loss: {self.target:.4g}, as given"
        return f"target loss: {self.target:.4g}, the best final train loss of these runs times 1.1"


def comparison(results: Mapping[str, Sequence[Result]], target: float | None = None) -> Comparison:
    """The table of a comparison; `results` holds each algorithm's runs over the seeds."""
    finals = {name: float(np.mean([final_loss(run) for run in runs])) for name, runs in results.items()}
    finite = [value for value in finals.values() if np.isfinite(value)]
    aim = target if target is not None else (1.1 * min(finite) if finite else np.nan)
    rows = [
        {
            "algorithm": name,
            "rounds": int(np.mean([len(run.history) for run in runs])),
            "final_train_loss": finals[name],
            "best_test_accuracy": float(np.mean([run.history["test_accuracy"].max() for run in runs])),
            "rounds_to_target": float(np.mean([rounds_to(run, aim) for run in runs])),
            "stepsize_mean": float(np.mean([run.history["stepsize_mean"].mean() for run in runs])),
            "seconds": float(np.mean([run.history["seconds"].sum() for run in runs])),
            "diverged": sum(run.diverged_at is not None for run in runs),
        }
        for name, runs in results.items()
    ]
    return Comparison(pd.DataFrame(rows), float(aim), target is not None)


def final_loss(run: Result) -> float:
    """The last evaluated training loss; infinite if the run diverged, NaN if it was never evaluated."""
    if run.diverged_at is not None:
        return np.inf
    evaluated = run.history["train_loss"].dropna()
    return float(evaluated.iloc[-1]) if len(evaluated) else np.nan


def rounds_to(run: Result, target: float) -> float:
    """The first round whose training loss is at most the target; infinite if there is none."""
    reached = run.history.loc[run.history["train_loss"] <= target, "round"]
    return float(reached.iloc[0]) if len(reached) else np.inf
