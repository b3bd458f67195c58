"""What a page of the reproduction is made of. Figures, tables and verdicts are pure functions of records.

A `Page` has `Panel`s, each of which is a setting with `Line`s; these are trained into `Records`. Its `Claim`s look at
the records and give `Evidence`, which decides a `Verdict`. So a verdict can be found again from the run folders, and
the claims can be tested on results that are made up.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from fedsps.methods.notation import Named
from fedsps.paper.evidence import Evidence, Numbers, Outcome
from fedsps.runs.result import Result

Scale = Literal["smoke", "laptop", "paper"]
LOSSES = ("train_loss", "cohort_loss")
OUR_QUESTION = "our question"  # the place of a statement that the paper does not make
WORST = {"train_loss": np.inf, "cohort_loss": np.inf, "test_accuracy": -np.inf}  # what a diverged run ends at
SECONDS, PARTS = "training_seconds", "parts"  # what the provenance of a run that was read from a table has
Report = Callable[[str, int, int], None]  # what is being done, how far, of how much


@dataclass(frozen=True)
class Tuned:
    """The winner of the search over a grid on the panel's own setting, or its worst finite point.

    Attributes:
        algorithm: its name.
        pick: "best", or "worst" where a claim is about what bad parameters cost.
        halve_from: see `tune.Search`.
        grid: values for each parameter; the paper's if not given.
        on: the losses on which the line is judged: each has a winner of its own.
    """

    algorithm: str
    pick: Literal["best", "worst"] = "best"
    halve_from: int = 0
    grid: Mapping[str, tuple[Any, ...]] | None = None
    on: tuple[str, ...] = LOSSES


@dataclass(frozen=True)
class Line:
    """One curve of a panel.

    Attributes:
        label: what the legend says, and how claims name it.
        algorithm: in the command line's notation, or tuned.
        settings: those in which the line differs from its panel.
    """

    label: str
    algorithm: str | Tuned
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def labels(self) -> dict[str, str]:
        """By the loss that a line is judged on, what its runs are called; one that is not tuned is the same on both.

        >>> Line("FedAvg tuned", Tuned("fedavg")).labels
        {'train_loss': 'FedAvg tuned', 'cohort_loss': 'FedAvg tuned by cohort_loss'}
        """
        on = self.algorithm.on if isinstance(self.algorithm, Tuned) else LOSSES[:1]
        return {column: _label_on(self.label, column) for column in on}


def _label_on(label: str, column: str) -> str:
    """What the runs of a line are called whose search was judged by this loss."""
    return label if column != LOSSES[1] else f"{label} by {column}"


@dataclass(frozen=True)
class Panel:
    """Curves on one setting: a pair of axes in a figure.

    Attributes:
        name: short, for claims and tables.
        title: what stands above the axes.
        settings: fields of `Task` and `Plan` that all of its lines have.
        lines: what is trained on it.
        column: what the axes show.
        seeds: the most that are run of it, where a page's own number is too dear; 0: all.
    """

    name: str
    title: str
    settings: Mapping[str, Any]
    lines: Sequence[Line]
    column: str = "train_loss"
    seeds: int = 0


@dataclass(frozen=True)
class Winner:
    """What a search chose for a line, and what it took.

    Attributes:
        search: its name, the same for the same search.
        chosen: the algorithm with the parameters that were chosen.
        trials: how many there were.
        seconds: of whole trials.
        on: the losses by which it is what the search chose.
    """

    search: str
    chosen: Named
    trials: int
    seconds: float
    on: tuple[str, ...] = LOSSES[:1]


@dataclass(frozen=True)
class Known:
    """What the tables of earlier stretches hold, so that it need not be run again.

    Attributes:
        runs: by the run's digest and that of its algorithm's parts, whose defaults may have changed since.
        winners: by the name of the search, which of its points was picked, and by which loss.
        panels: page and name of those that the tables hold at the scale that is asked for.
        seeds: how many the page's own table has.
    """

    runs: Mapping[tuple[str, str], Result] = field(default_factory=dict)
    winners: Mapping[tuple[str, str, str], Winner] = field(default_factory=dict)
    panels: frozenset[tuple[str, str]] = frozenset()
    seeds: int = 0


@dataclass(frozen=True)
class Job:
    """How much of which page is run, how often, and where.

    Attributes:
        page: its name, for reports of progress.
        scale: "smoke" shows that it works, "laptop" has fewer rounds, "paper" is the paper's own.
        seeds: 0, 1, ..., so many.
        runs: the folder of run folders.
        jobs: runs at the same time.
        report: who is told how far it is.
        known: what is taken from tables.
        until: when no further panel is begun, by `time.monotonic`; None: all of them are run.
        note: called with what a search chose, and which of its points that is, as soon as it is known.
    """

    page: str
    scale: Scale
    seeds: int
    runs: Path
    jobs: int = 1
    report: Report | None = None
    known: Known = Known()
    until: float | None = None
    note: "Callable[[Winner, str], None] | None" = None

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        return self.until is not None and time.monotonic() >= self.until

    def tell(self, what: str, done: int, size: int) -> None:
        """Report progress, if anybody listens: what is being done, how far, of how much."""
        if self.report is not None:
            self.report(f"{self.page}: {what}", done, size)


@dataclass(frozen=True)
class Cost:
    """What a page trained, whether now or before: its runs, and the trials of its searches.

    Attributes:
        runs: how many are shown.
        seconds: of their training, without evaluations.
        trials: of the searches.
        search_seconds: of whole trials.
    """

    runs: int = 0
    seconds: float = 0.0
    trials: int = 0
    search_seconds: float = 0.0


@dataclass(frozen=True)
class Records:
    """The results of a page: for each panel and label, one for each seed. A page may have tables beside them.

    Where a search has another winner by `cohort_loss`, that has runs of its own, and those are what a line's
    `cohort_loss` is taken from.

    Attributes:
        runs: results by panel and label, in the order of the seeds.
        digests: the run folders of each line.
        winners: what a search chose for a line, of those that have one.
        tables: by the name of their file.
        cost: what all of it took.

    >>> from dataclasses import replace
    >>> from fedsps.runs.spec import Spec
    >>> history = pd.DataFrame({"round": range(1, 21), "train_loss": [1.0] * 18 + [0.5, 0.25]})
    >>> run = Result(None, history, Spec.of("fedsps"), provenance={})
    >>> records = Records({"a": {"FedSPS": [run, replace(run, diverged_at=7)]}})
    >>> records.final("a", "FedSPS", "train_loss")
    array([0.375,   inf])
    """

    runs: Mapping[str, Mapping[str, Sequence[Result]]]
    digests: Mapping[tuple[str, str], Sequence[str]] = field(default_factory=dict)
    winners: Mapping[tuple[str, str], Winner] = field(default_factory=dict)
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    cost: Cost = Cost()

    def of(self, panel: str, label: str, column: str = LOSSES[0]) -> Sequence[Result]:
        """The runs of one line, in the order of the seeds: of a tuned one those of the winner by this column."""
        runs = self.runs[panel]
        return runs.get(_label_on(label, column), runs[label])

    def labels(self, panel: str) -> list[str]:
        """The lines of a panel, in the order of its legend."""
        runs = self.runs[panel]
        others = {_label_on(label, LOSSES[1]) for label in runs}
        return [label for label in runs if label not in others]

    def final(self, panel: str, label: str, column: str) -> Numbers:
        """For each seed the mean of a column over the last tenth of the rounds, or the worst if the run diverged."""
        return np.array([last_tenth(run, column) for run in self.of(panel, label, column)])

    def each(self, panel: str, label: str, number: Callable[[pd.DataFrame], float]) -> Numbers:
        """For each seed a number made of the history; NaN if the run diverged, which leaves a claim undecided."""
        return np.array(
            [np.nan if run.diverged_at is not None else number(run.history) for run in self.of(panel, label)]
        )


def last_tenth(run: Result, column: str) -> float:
    """The mean of a column over the evaluated rounds of the last tenth.

    A run that diverged ends at the worst value: an infinite loss, an accuracy of minus infinity, NaN for other columns.
    """
    if run.diverged_at is not None:
        return WORST.get(column, np.nan)
    table = run.history
    return float(table.loc[table["round"] > 0.9 * table["round"].max(), column].mean())


Check = Callable[[Records, str], Evidence]
"""From records and the name of a loss to the evidence for a statement."""


@dataclass(frozen=True)
class Claim:
    """A statement of the paper and the test it is put to, decided on before the numbers were seen.

    A check sees the records and, for statements about a training loss, which of the two losses to look at: the paper
    does not say whether it plots the objective (`train_loss`) or what the active clients saw (`cohort_loss`).

    A statement about several things, as both partitions or each of three rivals, has several cases, by name. Each has a
    check, an interval and a verdict of its own, so that one does not sink the others.

    Attributes:
        id: what the verdict is called.
        statement: what the paper says, in short, or our own question beside it.
        place: where it says so.
        criterion: when it counts as true, in words; `check` computes the same.
        effect: what the number is.
        check: from records and the name of a loss to evidence; or one for each case.
        on_loss: whether it is about a training loss, and so judged on both.
        over: what there is one number for.
        why: why we find otherwise, in a sentence; shown where a case does not hold or is undecided.
    """

    id: str
    statement: str
    place: str
    criterion: str
    effect: str
    check: Check | Mapping[str, Check]
    on_loss: bool = True
    over: str = "seed"
    why: str = ""

    @property
    def cases(self) -> Mapping[str, Check]:
        """The checks by the name of their case; a single one has no name."""
        return self.check if isinstance(self.check, Mapping) else {"": self.check}

    def verdicts(self, records: Records, reduced: str = "", part: str = "") -> "list[Verdict]":
        """One verdict for each case, or one for each of the two losses if the statement is about the training loss.

        Args:
            records: the results of the page.
            reduced: the scale, if less than the paper's experiment was run.
            part: how much of the page was run, if not all of it.
        """
        columns = LOSSES if self.on_loss else ("",)
        return [
            Verdict(self, case, column, _evidence(check, records, column), reduced, part)
            for case, check in self.cases.items()
            for column in columns
        ]


def _evidence(check: Check, records: Records, column: str) -> Evidence:
    """What a check finds; no numbers if its line, or the column it looks at, is not among the records."""
    with np.errstate(invalid="ignore", divide="ignore"):  # of diverged runs: infinity over infinity is undecided
        try:
            return check(records, column)
        except KeyError:  # a smaller scale leaves panels out, and so do the tables of an earlier version
            return Evidence(np.array([]))


@dataclass(frozen=True)
class Verdict:
    """A claim's outcome in one case and on one loss.

    Attributes:
        claim: what was judged.
        case: which of its cases; empty if it has one.
        column: the loss that it was judged on; empty for claims that are about none.
        evidence: the effects, and the margins that they are held against.
        reduced: the scale, if less than the paper's experiment was run.
        part: how much of the page was run, if not all of it.
    """

    claim: Claim
    case: str
    column: str
    evidence: Evidence
    reduced: str = ""
    part: str = ""

    @property
    def outcome(self) -> Outcome:
        """What the evidence says; a reduced experiment leaves the paper's statement undecided."""
        ours = self.claim.place == OUR_QUESTION
        return "undecided" if self.reduced and not ours else self.evidence.outcome

    @property
    def words(self) -> str:
        """The outcome, and of a reduced experiment its scale and what was seen there, or how much of it was run."""
        if len(self.evidence.effect) == 0:
            return f"{self.outcome} (not run)"
        seen = f": {self.evidence.outcome}" if self.evidence.outcome != self.outcome else ""
        limits = ", ".join(filter(None, (self.reduced and f"at {self.reduced} scale{seen}", self.part)))
        return f"{self.outcome} ({limits})" if limits else self.outcome

    @property
    def numbers(self) -> str:
        """The effect: its mean, its interval, and of how many numbers they are."""
        size, over = len(self.evidence.effect), self.claim.over
        if size == 0:
            return "no numbers"
        many = over if size == 1 else f"{over}es" if over.endswith("ch") else f"{over}s"
        mean, (low, high) = self.evidence.mean, self.evidence.interval
        interval = f" [{low:.3g}, {high:.3g}]" if low < high else ""
        words = "undefined" if np.isnan(mean) else f"{mean:.3g}"
        return f"{self.claim.effect} {words}{interval} ({size} {many})"


def evenly(history: pd.DataFrame) -> pd.DataFrame:
    """About a hundred rounds, equally far apart: what claims about the whole course look at.

    >>> evenly(pd.DataFrame({"round": range(1, 501)}))["round"].tolist()[:3]
    [5, 10, 15]
    """
    rounds = history["round"]
    every = max(1, int(rounds.max()) // 100) if len(rounds) else 1
    return history[rounds % every == 0]


def hundred_rounds(label: str, history: pd.DataFrame) -> pd.DataFrame:
    """Of a run a hundred rounds, all that were evaluated, and the last tenth, whose mean is its final value.

    >>> history = pd.DataFrame({"round": range(1, 1001), "train_loss": [np.nan] * 895 + [0.5] + [np.nan] * 104})
    >>> kept = hundred_rounds("FedSPS", history)["round"].tolist()
    >>> len(kept), kept[88:94]
    (191, [890, 896, 900, 901, 902, 903])
    """
    rounds = history["round"]
    chosen = rounds.isin(evenly(history)["round"]) | history["train_loss"].notna()
    return history[chosen | (rounds > 0.9 * float(rounds.max()))]


@dataclass(frozen=True)
class Page:
    """One page: its panels by scale, the figure it draws from the records, and the claims it settles.

    Its panels are trained, unless it says how to `compute` its records.

    Attributes:
        name: on the command line, and of its files.
        title: which figure or table of the paper it is.
        panels: from the scale to what is run.
        draw: writes the figures into a folder and returns those that the document shows.
        claims: what is judged.
        note: what we chose where the paper is silent, and what a scale reduces.
        seeds: at paper scale; of a computed page at every scale.
        is_seeded: whether other numbers of seeds make sense.
        compute: from panels and the job to records, in place of training.
        shown: tables that the document shows.
        kept: from a line's label and a run's history to what the page's table keeps of it, enough to judge from.
    """

    name: str
    title: str
    panels: Callable[[Scale], Sequence[Panel]]
    draw: Callable[[Records, Sequence[Panel], Path], list[Path]]
    claims: Sequence[Claim]
    note: str = ""
    seeds: int = 10
    is_seeded: bool = True
    compute: Callable[[Sequence[Panel], Job], Records] | None = None
    shown: Sequence[str] = ()
    kept: Callable[[str, pd.DataFrame], pd.DataFrame] = hundred_rounds

    def reduced(self, scale: Scale) -> str:
        """The scale, if its panels are not the paper's; empty if they are."""
        return "" if self.panels(scale) == self.panels("paper") else scale
