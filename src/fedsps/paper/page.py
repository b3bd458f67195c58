"""What a page of the reproduction is made of. Figures, tables and verdicts are pure functions of records."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pandas as pd

from fedsps.runs.result import Result

Scale = Literal["smoke", "laptop", "paper"]
Outcome = Literal["holds", "does not hold", "undecided"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
Numbers = npt.NDArray[np.float64]
LOSSES = ("train_loss", "cohort_loss")
WORST = {"train_loss": np.inf, "cohort_loss": np.inf, "test_accuracy": -np.inf}  # what a diverged run ends at
Report = Callable[[str, int, int], None]  # what is being done, how far, of how much


@dataclass(frozen=True)
class Tuned:
    """The winner of the search over a grid on the panel's own setting, or its worst finite point."""

    algorithm: str
    pick: Literal["best", "worst"] = "best"
    halve_from: int = 0  # see `tune.Search`
    grid: Mapping[str, tuple[Any, ...]] | None = None  # the paper's if not given


@dataclass(frozen=True)
class Line:
    """One curve: a label, an algorithm (in the command line's notation, or tuned), and its own settings."""

    label: str
    algorithm: str | Tuned
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Panel:
    """Curves on one setting."""

    name: str
    title: str
    settings: Mapping[str, Any]
    lines: Sequence[Line]
    column: str = "train_loss"


@dataclass(frozen=True)
class Job:
    """How much of which page is run, how often, and where."""

    page: str
    scale: Scale
    seeds: int
    runs: Path
    jobs: int = 1
    report: Report | None = None

    def tell(self, what: str, done: int, size: int) -> None:
        """Report progress."""
        if self.report is not None:
            self.report(f"{self.page}: {what}", done, size)


@dataclass(frozen=True)
class Cost:
    """What a page trained, whether now or before: its runs, and the trials of its searches."""

    runs: int = 0
    seconds: float = 0.0
    trials: int = 0
    search_seconds: float = 0.0


@dataclass(frozen=True)
class Records:
    """The results of a page: for each panel and label, one for each seed. A page may have tables beside them."""

    runs: Mapping[str, Mapping[str, Sequence[Result]]]
    digests: Mapping[tuple[str, str], Sequence[str]] = field(default_factory=dict)  # the run folders of each line
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)  # by the name of their file
    cost: Cost = Cost()

    def of(self, panel: str, label: str) -> Sequence[Result]:
        """The runs of one line."""
        return self.runs[panel][label]

    def labels(self, panel: str) -> list[str]:
        """The lines of a panel."""
        return list(self.runs[panel])

    def final(self, panel: str, label: str, column: str) -> Numbers:
        """For each seed the mean of a column over the last tenth of the rounds, or the worst if the run diverged."""
        return np.array([last_tenth(run, column) for run in self.of(panel, label)])

    def each(self, panel: str, label: str, number: Callable[[pd.DataFrame], float]) -> Numbers:
        """For each seed a number made of the history; NaN if the run diverged."""
        return np.array(
            [np.nan if run.diverged_at is not None else number(run.history) for run in self.of(panel, label)]
        )


def last_tenth(run: Result, column: str) -> float:
    """The mean of a column over the evaluated rounds of the last tenth."""
    if run.diverged_at is not None:
        return WORST.get(column, np.nan)
    table = run.history
    return float(table.loc[table["round"] > 0.9 * table["round"].max(), column].mean())


@dataclass(frozen=True)
class Evidence:
    """For each seed, whether the statement is true of it, and the number that says so."""

    true: npt.NDArray[np.bool_]
    effect: Numbers


@dataclass(frozen=True)
class Claim:
    """A statement of the paper and the test it is put to, decided on before the numbers were seen.

    `check` sees the records and, for statements about a training loss, which of the two losses to look at: the paper
    does not say whether it plots the objective (`train_loss`) or what the active clients saw (`cohort_loss`).
    """

    id: str
    statement: str
    place: str
    criterion: str
    effect: str  # what the number is
    check: Callable[[Records, str], Evidence]
    on_loss: bool = True
    over: str = "seed"  # what there is one piece of evidence for

    def verdicts(self, records: Records) -> "list[Verdict]":
        """One verdict, or one for each loss."""
        columns = LOSSES if self.on_loss else ("",)
        with np.errstate(invalid="ignore", divide="ignore"):  # of diverged runs: infinity over infinity is undecided
            return [Verdict(self, column, *decide(self.check(records, column))) for column in columns]


def decide(evidence: Evidence) -> tuple[Outcome, Numbers]:
    """Holds if it is true of every seed, does not hold if of none, undecided if the seeds disagree or there is none."""
    true, effect = evidence.true, evidence.effect
    if len(true) == 0 or np.isnan(effect).any():
        return "undecided", effect
    if true.all():
        return "holds", effect
    return ("undecided" if true.any() else "does not hold"), effect


@dataclass(frozen=True)
class Verdict:
    """A claim's outcome on one loss, with the effect on each seed."""

    claim: Claim
    column: str
    outcome: Outcome
    effect: Numbers

    @property
    def numbers(self) -> str:
        """The effect: mean over the seeds, least and largest."""
        size, over = len(self.effect), self.claim.over
        if size == 0:
            return "no numbers"
        low, mean, high = self.effect.min(), self.effect.mean(), self.effect.max()
        many = f"{over}es" if over.endswith("ch") else f"{over}s"
        spread = f" ({low:.3g} to {high:.3g}, {size} {many})" if size > 1 else f" (1 {over})"
        return f"{self.claim.effect} {mean:.3g}{spread}"


@dataclass(frozen=True)
class Page:
    """One page: its panels by scale, the figure it draws from the records, and the claims it settles.

    Its panels are trained, unless it says how to `compute` its records.
    """

    name: str
    title: str
    panels: Callable[[Scale], Sequence[Panel]]
    draw: Callable[[Records, Sequence[Panel], Path], list[Path]]
    claims: Sequence[Claim]
    note: str = ""  # what we chose where the paper is silent, and what a scale reduces
    seeds: int = 3  # at paper scale; of a computed page at every scale
    is_seeded: bool = True  # whether other numbers of seeds make sense
    compute: Callable[[Sequence[Panel], Job], Records] | None = None
    shown: Sequence[str] = ()  # tables that the document shows
