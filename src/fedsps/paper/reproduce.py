"""Re-run pages: tune, train or compute, then draw, tabulate and judge from the records.

For each page the output folder gets PAGE.json (verdicts, panels, what it took), PAGE.csv (the numbers behind the
curves), its figures, and other tables of its own. `document` and `fedsps report` read these files alone. All verdicts
of the folder are in verdicts.csv.
"""

import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import get_args

import numpy as np

from fedsps.checks import choice, count, positive
from fedsps.errors import (
    ConfigurationError,
    DataError,
    DiskFullError,
    FailedRunsError,
    Failure,
    FedspsError,
    unknown,
)
from fedsps.paper.document import document, verdict_table
from fedsps.paper.execute import noting, train
from fedsps.paper.page import Job, Known, Page, Panel, Records, Report, Scale, Verdict
from fedsps.paper.stored import SEARCHES, forget_winners, known, note_winner, stored
from fedsps.paper.written import Reproduction, plain, write
from fedsps.report import intervals, plot
from fedsps.runs.checkpoint import FAILURE
from fedsps.runs.failures import in_line
from fedsps.runs.files import only_one, read_json, write_json

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
    "beyond": "beyond",
    "theory": "theory",
}


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
    from_tables: bool = False,
    add: bool = False,
    minutes: float | None = None,
) -> list[Reproduction]:
    """Re-run the paper's experiments: figures, tables, and a verdict on every claim.

    Runs are cached: a second call draws without training, an interrupted one goes on where it stopped. The document
    shows every page that lies in the output folder, so pages may be run one by one, and at scales of their own. What
    takes longer than a machine is there can be run in stretches: `minutes` ends one, and `add` goes on with its tables.
    What a search chose is written down at once (`PAGE-searches.json`), and taken up by `add` too.

    Args:
        *pages: their names; all if none is given.
        scale: "smoke" (minutes), "laptop" (150 rounds) or "paper" (hours).
        seeds: as each page has it if not given: several at paper scale, one at the others.
        output: the folder for figures, tables and verdicts; `reproduction/SCALE` if not given.
        text: the Markdown document; `README.md` in the output folder if not given.
        runs: the folder of run folders.
        jobs: runs at the same time, in processes of one thread each.
        report: called with what is being done, how far it is, and of how much.
        from_tables: judge and draw again what lies in the output folder, without training; of every page its own
            scale and seeds.
        add: take runs, and what searches chose, from the tables in the output folder, and run what they lack, on as
            many seeds as they have. Runs whose algorithm has other parts by now are run again; other changes of the
            code are not noticed.
        minutes: begin no further page or panel after so long; a page is judged on the panels that are complete. Panels
            that the tables hold are always completed. Pages that compute their records take as long as they take.

    Raises:
        ConfigurationError: the minutes were over before one panel of a page was complete.
        FailedRunsError: if some runs failed: all others are done, pages with a failed run are not judged, and
            `finished` are the other pages.
    """
    choice("scale", scale, get_args(Scale))
    count("jobs", jobs)
    if seeds is not None:
        count("seeds", seeds)
    plot.check_available()
    if minutes is not None:
        positive("minutes", minutes)
    folder = Path("reproduction", scale) if output is None else Path(output)
    failures: list[Failure] = []
    if from_tables:
        if add or minutes is not None or seeds is not None:
            raise ConfigurationError("from_tables trains nothing: leave out add, minutes and seeds")
        there = [name for name in PAGES if (folder / f"{name}.json").is_file()]
        if not (pages or there):
            raise DataError(f"no page lies in {folder}: name the output folder of an earlier run")
        reproductions = []
        for page in map(find, pages or there):
            if page.name not in there:
                raise DataError(f"the page {page.name} does not lie in {folder}: name the folder of an earlier run")
            with writing(page, folder):
                reproductions.append(judge_again(page, folder))
    else:
        chosen = [find(name) for name in pages or PAGES]
        for page in chosen:
            check_room(page, scale, folder, add, minutes)
        make_room(folder)
        start = Job(
            page="",
            scale=scale,
            seeds=0,
            runs=Path(runs),
            jobs=jobs,
            report=report,
            until=None if minutes is None else time.monotonic() + 60 * minutes,
        )
        reproductions = []
        for page in chosen:
            if start.is_over and reproductions:
                break
            with failing_alone(page, folder, failures, among=len(chosen)), writing(page, folder):
                held = known([find(name) for name in PAGES], page, scale, folder) if add else Known()
                many = max(seeds_of(page, scale, seeds), held.seeds)
                reproductions.append(reproduce_page(page, replace(start, seeds=many, known=held), folder))
    if reproductions:
        place = folder / "README.md" if text is None else Path(text)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(document(folder, place, list(PAGES)), encoding="utf-8")
        verdict_table(folder, list(PAGES)).to_csv(folder / "verdicts.csv", index=False, float_format="%.6g")
    if failures:
        raise FailedRunsError(failures, reproductions)
    return reproductions


@contextmanager
def writing(page: Page, folder: Path) -> Iterator[None]:
    """Refuse a page that another process is at: of two that add to its tables, one would lose what the other added."""
    refusal = f"another process writes the page {page.name} into {folder}: wait for it, or name another output folder"
    with only_one(folder, refusal, f".{page.name}.lock"):
        yield


@contextmanager
def failing_alone(page: Page, folder: Path, failures: list[Failure], among: int) -> Iterator[None]:
    """Let the other pages go on where one fails: what failed is added to the list, its traceback is kept in a file.

    A full disk is no matter of one page; and one that is asked for alone says itself what it was refused for.
    """
    file = folder / f"{page.name}-{FAILURE}"
    try:
        with noting(failures):
            yield
    except Exception as error:
        if isinstance(error, DiskFullError) or (among == 1 and isinstance(error, FedspsError)):
            raise
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
        failures.append(Failure(f"page {page.name}", in_line(error), file))
    else:
        file.unlink(missing_ok=True)


def seeds_of(page: Page, scale: Scale, asked: int | None) -> int:
    """How many seeds a page is run on: as many as asked for, unless it is not seeded; else its own, or one."""
    if asked is not None and page.is_seeded:
        return asked
    return page.seeds if scale == "paper" or page.compute else 1


def reproduce_page(page: Page, job: Job, folder: Path) -> Reproduction:
    """Run what is not there yet, then write the page's figures, its tables (CSV), and its verdicts and panels (JSON).

    It is judged from its tables, as whoever has nothing else can judge it again.

    Args:
        page: which one.
        job: scale, seeds, folder of the runs, and how they are run.
        folder: where the files go.
    """
    panels, searches = page.panels(job.scale), folder / SEARCHES.format(page.name)
    folder.mkdir(parents=True, exist_ok=True)
    records = (page.compute or train)(panels, replace(job, page=page.name, note=partial(note_winner, searches)))
    if records.runs:  # a stretch may have ended before all were complete
        panels = [panel for panel in panels if panel.name in records.runs]
    write(Reproduction(page, job.scale, job.seeds, panels, records, [], []), folder)
    forget_winners(searches, records.winners.values())
    return replace(judge_again(page, folder), records=records)


def judge(
    page: Page, scale: Scale, seeds: int, panels: Sequence[Panel], records: Records, folder: Path
) -> Reproduction:
    """Judge records and draw them: the page's own figures, and the intervals of its verdicts."""
    wanted = len(page.panels(scale))
    limits = page.reduced(scale), f"{len(panels)} of {wanted} panels" if 0 < len(panels) < wanted else ""
    verdicts = [verdict for claim in page.claims for verdict in claim.verdicts(records, *limits)]
    figures = page.draw(records, panels, folder)
    path = folder / f"{page.name}-verdicts.png"
    if draw_intervals(verdicts, path):
        figures = [*figures, path]
    return Reproduction(page, scale, seeds, panels, records, figures, verdicts)


def judge_again(page: Page, folder: Path) -> Reproduction:
    """Judge and draw a page from its tables, without training: after a claim was changed, or the rule.

    Its note says what was run, and so stays. Lines that the page has today and its tables do not have no numbers.

    Raises:
        DataError: if the page does not lie in the folder.
    """
    found, records = stored(page, folder)
    panels = [
        replace(panel, lines=[line for line in panel.lines if line.label in records.runs[panel.name]])
        for panel in page.panels(found["scale"])
        if panel.name in records.runs
    ]
    page = replace(page, note=found["note"])
    outcome = judge(page, found["scale"], found["seeds"], panels, records, folder)
    write_json(folder / f"{page.name}.json", plain(outcome))
    return outcome


def check_room(page: Page, scale: Scale, folder: Path, add: bool = False, minutes: float | None = None) -> None:
    """Refuse to write over what may have taken hours.

    That is the same page at another scale (a larger one may be added), one that a stretch may be too short for, and
    tables of which it is no longer known what they hold.

    Raises:
        ConfigurationError: it names the file, and what it holds.
    """
    path, scales = folder / f"{page.name}.json", get_args(Scale)
    there = read_json(path).get("scale", scale) if path.is_file() else scale
    grows = add and there in scales and scales.index(there) < scales.index(scale)
    if there != scale and not grows:
        raise ConfigurationError(
            f"{path} holds the page {page.name} at {there} scale, not {scale}: name another output folder"
        )
    if minutes is not None and not add and path.is_file():
        raise ConfigurationError(
            f"{path} may hold panels that {minutes:g} minutes are too short for, and they would be lost: add to it "
            "(add=True), or name another output folder"
        )
    table = path.with_suffix(".csv")
    if add and table.is_file() and not path.is_file():
        raise ConfigurationError(
            f"{path} is missing, which says what {table} holds: bring it back, or remove the table"
        )


def make_room(folder: Path) -> None:
    """Make the output folder before anything is trained.

    Raises:
        ConfigurationError: it cannot be made, or not be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigurationError(
            f"{folder} cannot be written to ({error.strerror}): name another output folder"
        ) from error


def draw_intervals(verdicts: Sequence[Verdict], path: Path) -> bool:
    """Draw the intervals of the verdicts that have one; whether there are any."""
    claims: dict[str, list[intervals.Interval]] = {}
    for verdict in verdicts:
        evidence, (low, high) = verdict.evidence, verdict.evidence.interval
        if evidence.kind != "exact" and np.isfinite([low, high]).all():
            margins, is_ratio = (evidence.low, evidence.high), evidence.kind == "ratio"
            row = verdict.case, verdict.column, evidence.outcome, evidence.mean, low, high, margins, is_ratio
            claims.setdefault(verdict.claim.id, []).append(intervals.Interval(*row))
    if claims:
        intervals.draw(claims, [path, path.with_suffix(".pdf")])
    return bool(claims)
