"""Re-run pages: tune, train or compute, then draw, tabulate and judge from the records.

For each page the output folder gets PAGE.json (verdicts, panels, what it took), PAGE.csv (the numbers behind the
curves), its figures, and other tables of its own. `document` and `fedsps report` read these files alone.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import get_args

import pandas as pd

from fedsps.checks import choice, count
from fedsps.errors import ConfigurationError, unknown
from fedsps.paper.document import document
from fedsps.paper.execute import search, train
from fedsps.paper.page import Job, Line, Page, Panel, Records, Report, Scale, Tuned, Verdict
from fedsps.report import plot
from fedsps.runs.files import read_json, write_json
from fedsps.runs.result import number

PAGES = {  # by name, in the paper's order: the file of `fedsps.paper.pages` that holds its PAGE
    "example1": "example1",
    "sensitivity": "sensitivity",
    "convex": "convex",
    "lenet": "lenet",
    "cifar": "cifar",
    "normalized": "normalized",
    "global": "global_stepsize",
    "stepsizes": "stepsizes",
    "libsvm": "libsvm",
    "tuning": "tuning",
}


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


def find(name: str) -> Page:
    """A page by its name; its file is imported when it is asked for.

    >>> find("convex").title
    'Figure 3: convex comparisons'
    >>> find("convecks")
    Traceback (most recent call last):
    fedsps.errors.ConfigurationError: unknown page 'convecks': did you mean convex?
    """
    if name not in PAGES:
        raise unknown("page", name, PAGES)
    page: Page = import_module(f"fedsps.paper.pages.{PAGES[name]}").PAGE
    return page


def reproduce(
    *pages: str,
    scale: Scale = "smoke",
    seeds: int | None = None,
    output: str | Path | None = None,
    text: str | Path | None = None,
    runs: str | Path = "runs",
    jobs: int = 1,
    report: Report | None = None,
) -> list[Reproduction]:
    """Re-run the paper's experiments: figures, tables, and a verdict on every claim.

    Runs are cached: a second call draws without training, an interrupted one goes on where it stopped. The document
    shows every page that lies in the output folder, so pages may be run one by one, and at scales of their own.

    Args:
        *pages: their names; all if none is given.
        scale: "smoke" (minutes), "laptop" (150 rounds) or "paper" (hours).
        seeds: as each page has it if not given: several at paper scale, one at the others.
        output: the folder for figures, tables and verdicts; `reproduction/SCALE` if not given.
        text: the Markdown document; `README.md` in the output folder if not given.
        runs: the folder of run folders.
        jobs: runs at the same time, in processes of one thread each.
        report: called with what is being done, how far it is, and of how much.
    """
    choice("scale", scale, get_args(Scale))
    count("jobs", jobs)
    if seeds is not None:
        count("seeds", seeds)
    plot.check_available()
    chosen = [find(name) for name in pages or PAGES]
    folder = Path("reproduction", scale) if output is None else Path(output)
    for page in chosen:
        check_room(page, scale, folder)
    reproductions = [
        reproduce_page(page, scale, seeds=seeds, runs=Path(runs), folder=folder, jobs=jobs, report=report)
        for page in chosen
    ]
    place = folder / "README.md" if text is None else Path(text)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(document(folder, place, list(PAGES)), encoding="utf-8")
    return reproductions


def reproduce_page(
    page: Page,
    scale: Scale,
    *,
    seeds: int | None,
    runs: Path,
    folder: Path,
    jobs: int = 1,
    report: Report | None = None,
) -> Reproduction:
    """Run what is not there yet, then write the page's figures, its tables (CSV), and its verdicts and panels (JSON).

    Args:
        page: which one.
        scale: "smoke", "laptop" or "paper".
        seeds: one if not given, or as many as the page has at paper scale; a page that is not seeded has its own.
        runs: the folder of run folders.
        folder: where the files go.
        jobs: runs at the same time, in processes of one thread each.
        report: called with what is being done, how far it is, and of how much.
    """
    check_room(page, scale, folder)
    panels = page.panels(scale)
    if seeds is None or not page.is_seeded:
        seeds = page.seeds if scale == "paper" or page.compute else 1
    records = (page.compute or train)(panels, Job(page.name, scale, seeds, runs, jobs, report))
    verdicts = [verdict for claim in page.claims for verdict in claim.verdicts(records)]
    outcome = Reproduction(page, scale, seeds, panels, records, page.draw(records, panels, folder), verdicts)
    write(outcome, folder)
    return outcome


def check_room(page: Page, scale: Scale, folder: Path) -> None:
    """Refuse to write over the same page at another scale, which may have taken hours.

    Raises:
        ConfigurationError: it names the file, and the scale that it holds.
    """
    path = folder / f"{page.name}.json"
    if path.is_file() and (there := read_json(path).get("scale")) != scale:
        raise ConfigurationError(
            f"{path} holds the page {page.name} at {there} scale, not {scale}: name another output folder"
        )


def write(outcome: Reproduction, folder: Path) -> None:
    """Write the page's tables (CSV), and what else there is to know about it (JSON).

    Numbers in tables have six digits: enough to draw and to judge, and the files stay small.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name, records = outcome.page.name, outcome.records
    tables = ({name: table(records)} if records.runs else {}) | dict(records.tables)
    for stem, content in tables.items():
        content.to_csv(folder / f"{stem}.csv", index=False, float_format="%.6g")
    write_json(folder / f"{name}.json", plain(outcome))


def table(records: Records) -> pd.DataFrame:
    """The numbers behind a figure: of every run a hundred rounds, and those that were evaluated.

    Times are left out, so that the same runs give the same table on every machine.
    """
    parts = []
    for panel, lines in records.runs.items():
        for label, seeds in lines.items():
            for run in seeds:
                history = run.history.drop(columns="seconds", errors="ignore")
                step = max(1, len(history) // 100)
                shown = history[history["train_loss"].notna() | (history["round"] % step == 0)]
                parts.append(shown.assign(panel=panel, line=label, seed=run.spec.plan.seed))
    whole = pd.concat(parts, ignore_index=True)
    return whole[["panel", "line", "seed", *whole.columns.drop(["panel", "line", "seed"])]]


def plain(outcome: Reproduction) -> dict[str, object]:
    """A page as JSON: what the document and `fedsps report` need besides figures, tables and run folders."""
    records = outcome.records

    def plain_line(panel: Panel, line: Line) -> dict[str, object]:
        """A line with its run folders, what a search chose for it, and the seeds that diverged."""
        runs = records.of(panel.name, line.label)
        spec = runs[0].spec
        tuned = isinstance(line.algorithm, Tuned) and search(panel, line, line.algorithm, outcome.scale).space
        return {
            "label": line.label,
            "algorithm": spec.algorithm,
            "tuned": {name: spec.parameters[name] for name in tuned or ()},
            "runs": list(records.digests.get((panel.name, line.label), ())),
            "diverged": {str(run.spec.plan.seed): run.diverged_at for run in runs if run.diverged_at is not None},
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
                "lines": [plain_line(panel, line) for line in panel.lines],
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
        "statement": claim.statement,
        "place": claim.place,
        "criterion": claim.criterion,
        "loss": verdict.column or None,
        "outcome": verdict.outcome,
        "numbers": verdict.numbers,
        "effect": [number(value) for value in verdict.effect],
    }
