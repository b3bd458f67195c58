"""A page as files: PAGE.csv, the numbers behind its curves, its other tables, and PAGE.json, what else is known of it.

`fedsps.paper.stored` reads them back. Numbers in tables have six digits: enough to draw and to judge, and the files
stay small.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from fedsps.core.files import replace_file
from fedsps.paper.evidence import Numbers
from fedsps.paper.execute import search, seconds_of
from fedsps.paper.page import PARTS, Line, Page, Panel, Records, Scale, Tuned, Verdict, hundred_rounds, last_tenth
from fedsps.runs.files import write_json
from fedsps.runs.result import Result, number


@dataclass(frozen=True)
class Reproduction:
    """A page re-run: its records, figures and verdicts.

    Attributes:
        page: which one.
        scale: at which it was run.
        seeds: how many.
        panels: what was run, at this scale.
        records: what came of it.
        figures: the files that the document shows.
        verdicts: on every claim, in the page's order.
    """

    page: Page
    scale: Scale
    seeds: int
    panels: Sequence[Panel]
    records: Records
    figures: Sequence[Path]
    verdicts: Sequence[Verdict]


def write(outcome: Reproduction, folder: Path) -> None:
    """Write the page's tables (CSV), and what else there is to know about it (JSON)."""
    folder.mkdir(parents=True, exist_ok=True)
    name, records = outcome.page.name, outcome.records
    tables = ({name: table(records, outcome.page.kept)} if records.runs else {}) | dict(records.tables)
    for stem, content in tables.items():
        replace_file(folder / f"{stem}.csv", partial(content.to_csv, index=False, float_format="%.6g"))
    write_json(folder / f"{name}.json", plain(outcome))


def table(records: Records, kept: Callable[[str, pd.DataFrame], pd.DataFrame] = hundred_rounds) -> pd.DataFrame:
    """The numbers behind a figure: of every run what the page keeps.

    Times are left out, so that the same runs give the same table on every machine.
    """
    parts = []
    for panel, lines in records.runs.items():
        for label, seeds in lines.items():
            for run in seeds:
                history = kept(label, run.history.drop(columns="seconds", errors="ignore"))
                parts.append(history.assign(panel=panel, line=label, seed=run.spec.plan.seed))
    whole = pd.concat(parts, ignore_index=True)
    return whole[["panel", "line", "seed", *whole.columns.drop(["panel", "line", "seed"])]]


FINAL = ("train_loss", "cohort_loss", "test_accuracy")


def _shown(panel: Panel, run: Result) -> list[str]:
    """What the table of a panel shows: losses and accuracy where its axes show one of them, else what they show."""
    return [name for name in FINAL if name in run.history] if panel.column in FINAL else [panel.column]


def _mean_and_deviation(finals: Numbers) -> list[float | None]:
    """Over the seeds; null where a run diverged, and no deviation of one seed.

    >>> _mean_and_deviation(np.array([1.0, 3.0]))
    [2.0, 1.4142135623730951]
    """
    finite = np.isfinite(finals).all()
    return [
        number(finals.mean()) if finite else None,
        number(finals.std(ddof=1)) if finite and len(finals) > 1 else None,
    ]


def plain(outcome: Reproduction) -> dict[str, object]:
    """A page as JSON: what the document and `fedsps report` need besides figures, tables and run folders."""
    records = outcome.records

    def plain_line(panel: Panel, line: Line, label: str) -> dict[str, object]:
        """A line with its run folders, what a search chose for it, and the seeds that diverged."""
        runs, key = records.runs[panel.name][label], (panel.name, label)
        spec, winner = runs[0].spec, records.winners.get(key)
        tuned = search(panel, line, line.algorithm, outcome.scale).space if isinstance(line.algorithm, Tuned) else {}
        return {
            "label": label,
            "final": {
                column: _mean_and_deviation(np.array([last_tenth(run, column) for run in runs]))
                for column in _shown(panel, runs[0])
            },
            "algorithm": spec.algorithm,
            "tuned": {name: spec.parameters[name] for name in tuned},
            "search": None
            if winner is None or not isinstance(line.algorithm, Tuned)
            else {
                "name": winner.search,
                "pick": line.algorithm.pick,
                "on": list(winner.on),
                "trials": winner.trials,
                "seconds": round(winner.seconds, 3),
            },
            "runs": list(records.digests.get(key, ())),
            "parts": runs[0].provenance.get(PARTS, "") if spec.task is None else spec.named.parts,
            "seconds": [round(seconds_of(run), 3) for run in runs],
            "diverged": {str(run.spec.plan.seed): run.diverged_at for run in runs if run.diverged_at is not None},
        }

    return {
        "page": outcome.page.name,
        "title": outcome.page.title,
        "note": outcome.page.note,
        "scale": outcome.scale,
        "seeds": outcome.seeds,
        "wanted": outcome.page.seeds,
        "panels_wanted": len(outcome.page.panels(outcome.scale)),
        **asdict(records.cost),
        "figures": [figure.name for figure in outcome.figures],
        "shown": list(outcome.page.shown),
        "verdicts": [_plain_verdict(verdict) for verdict in outcome.verdicts],
        "panels": [
            {
                "name": panel.name,
                "heading": panel.title,
                "column": panel.column,
                "lines": [
                    plain_line(panel, line, label)
                    for line in panel.lines
                    for label in line.labels.values()
                    if label in records.runs[panel.name]
                ],
            }
            for panel in outcome.panels
            if panel.name in records.runs
        ],
    }


def _plain_verdict(verdict: Verdict) -> dict[str, object]:
    """A verdict with its claim in words; effects that are not finite are null, as JSON has no infinity."""
    claim = verdict.claim
    return {
        "id": claim.id,
        "case": verdict.case or None,
        "statement": claim.statement,
        "place": claim.place,
        "criterion": claim.criterion,
        "why": claim.why,
        "loss": verdict.column or None,
        "outcome": verdict.outcome,
        "words": verdict.words,
        "seen": verdict.evidence.outcome,
        "what": claim.effect,
        "mean": number(verdict.evidence.mean),
        "numbers": verdict.numbers,
        "effect": [number(value) for value in verdict.evidence.effect],
        "interval": [number(end) for end in verdict.evidence.interval],
        "margins": [number(end) for end in (verdict.evidence.low, verdict.evidence.high)],
    }
