"""Re-run pages: tune, train or compute, then draw, tabulate and judge from the records."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path

import pandas as pd

from fedsps.errors import unknown
from fedsps.paper.page import Page, Panel, Records, Report, Scale, Verdict, Work
from fedsps.paper.train import train
from fedsps.result import number

PAGES = {  # where each page is written
    "example1": "example1:PAGE",
    "sensitivity": "sensitivity:PAGE",
    "convex": "convex:PAGE",
    "lenet": "networks:LENET",
    "cifar": "networks:CIFAR",
    "normalized": "normalized:PAGE",
    "global": "one_stepsize:PAGE",
    "stepsizes": "stepsizes:PAGE",
    "libsvm": "libsvm:PAGE",
    "tuning": "tuning:PAGE",
}


@dataclass(frozen=True)
class Outcome:
    """A page re-run: its records, figures and verdicts."""

    page: Page
    scale: Scale
    seeds: int
    panels: Sequence[Panel]
    records: Records
    figures: Sequence[Path]
    verdicts: Sequence[Verdict]


def find(name: str) -> Page:
    """A page by name."""
    if name not in PAGES:
        raise unknown("page", name, PAGES)
    module, _, constant = PAGES[name].partition(":")
    page: Page = getattr(import_module(f"fedsps.paper.{module}"), constant)
    return page


def reproduce(
    page: Page,
    scale: Scale,
    *,
    seeds: int | None,
    runs: Path,
    folder: Path,
    jobs: int = 1,
    report: Report | None = None,
) -> Outcome:
    """Run what is not there yet, then write the page's figures, its tables (CSV), and its verdicts and panels (JSON).

    Without `seeds` there is one, or as many as the page has at paper scale.
    """
    panels = page.panels(scale)
    seeds = seeds or (page.seeds if scale == "paper" or page.compute else 1)
    records = (page.compute or train)(panels, Work(page.name, scale, seeds, runs, jobs, report))
    verdicts = [verdict for claim in page.claims for verdict in claim.verdicts(records)]
    outcome = Outcome(page, scale, seeds, panels, records, page.draw(records, panels, folder), verdicts)
    write(outcome, folder)
    return outcome


def write(outcome: Outcome, folder: Path) -> None:
    """The page's tables (CSV), and what else there is to know about it (JSON)."""
    folder.mkdir(parents=True, exist_ok=True)
    name, records = outcome.page.name, outcome.records
    tables = ({name: table(records)} if records.runs else {}) | dict(records.tables)
    for stem, one in tables.items():
        one.to_csv(folder / f"{stem}.csv", index=False, float_format="%.8g")
    (folder / f"{name}.json").write_text(json.dumps(plain(outcome), indent=2) + "\n")


def table(records: Records) -> pd.DataFrame:
    """The numbers behind a figure: every evaluated round of every run."""
    parts = []
    for panel, lines in records.runs.items():
        for label, some in lines.items():
            for run in some:
                history = run.history[run.history["train_loss"].notna()].drop(columns="seconds", errors="ignore")
                parts.append(history.assign(panel=panel, line=label, seed=run.spec["seed"]))
    whole = pd.concat(parts, ignore_index=True)
    return whole[["panel", "line", "seed", *whole.columns.drop(["panel", "line", "seed"])]]


def plain(outcome: Outcome) -> dict[str, object]:
    """A page as JSON: what the document and `fedsps report` need besides figures, tables and run folders."""
    records = outcome.records

    def line(panel: Panel, label: str) -> dict[str, object]:
        runs = records.of(panel.name, label)
        return {
            "label": label,
            "algorithm": runs[0].spec["algorithm"],
            "runs": list(records.digests.get((panel.name, label), ())),
            "diverged": {str(run.spec["seed"]): run.diverged_at for run in runs if run.diverged_at is not None},
        }

    return {
        "page": outcome.page.name,
        "title": outcome.page.title,
        "note": outcome.page.note,
        "scale": outcome.scale,
        "seeds": outcome.seeds,
        **asdict(records.cost),
        "figures": [figure.name for figure in outcome.figures],
        "shown": list(outcome.page.shown),
        "verdicts": [_plain_verdict(verdict) for verdict in outcome.verdicts],
        "panels": [
            {
                "name": panel.name,
                "heading": panel.title,
                "column": panel.column,
                "lines": [line(panel, one.label) for one in panel.lines],
            }
            for panel in outcome.panels
            if panel.name in records.runs
        ],
    }


def _plain_verdict(verdict: Verdict) -> dict[str, object]:
    claim = verdict.claim
    return {
        "id": claim.id,
        "statement": claim.statement,
        "place": claim.place,
        "criterion": claim.criterion,
        "loss": verdict.column or None,
        "outcome": verdict.outcome,
        "numbers": verdict.numbers,
        "effect": [number(value) for value in verdict.effect],
    }
