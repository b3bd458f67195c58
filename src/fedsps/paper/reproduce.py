"""Re-run pages: tune, train or compute, then draw, tabulate and judge from the records.

For each page the output folder gets PAGE.json (verdicts, panels, what it took), PAGE.csv (the numbers behind the
curves), its figures, and other tables of its own. `document` and `fedsps report` read these files alone. All verdicts
of the folder are in verdicts.csv.
"""

import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import get_args

import numpy as np
import pandas as pd

from fedsps.checks import choice, count, positive
from fedsps.errors import (
    ConfigurationError,
    DiskFullError,
    FailedRunsError,
    Failure,
    FedspsError,
    unknown,
)
from fedsps.paper.document import document, verdict_table
from fedsps.paper.evidence import Numbers
from fedsps.paper.execute import noting, search, seconds_of, train
from fedsps.paper.page import (
    PARTS,
    Job,
    Known,
    Line,
    Page,
    Panel,
    Records,
    Report,
    Scale,
    Tuned,
    Verdict,
    hundred_rounds,
)
from fedsps.paper.stored import known, stored
from fedsps.report import plot
from fedsps.runs.checkpoint import FAILURE
from fedsps.runs.failures import in_line
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
    "beyond": "beyond",
    "theory": "theory",
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
    from_tables: bool = False,
    add: bool = False,
    minutes: float | None = None,
) -> list[Reproduction]:
    """Re-run the paper's experiments: figures, tables, and a verdict on every claim.

    Runs are cached: a second call draws without training, an interrupted one goes on where it stopped. The document
    shows every page that lies in the output folder, so pages may be run one by one, and at scales of their own. What
    takes longer than a machine is there can be run in stretches: `minutes` ends one, and `add` goes on with its tables.

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
        add: take runs, and what searches chose, from the tables in the output folder, and run what they lack. Runs
            whose algorithm has other parts by now are run again; other changes of the code are not noticed.
        minutes: begin no further panel after so long; a page is judged on the panels that are complete. Panels that
            the tables hold are always completed.

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
        there = [name for name in PAGES if (folder / f"{name}.json").is_file()]
        reproductions = [judge_again(find(name), folder) for name in pages or there]
    else:
        chosen = [find(name) for name in pages or PAGES]
        for page in chosen:
            check_room(page, scale, folder, add)
            if minutes is not None and not add and (folder / f"{page.name}.json").is_file():
                raise ConfigurationError(
                    f"{folder / page.name}.json may hold panels that {minutes:g} minutes are too short for, and they "
                    "would be lost: add to it (add=True), or name another output folder"
                )
        start = Job(
            page="",
            scale=scale,
            seeds=0,
            runs=Path(runs),
            jobs=jobs,
            report=report,
            known=known([find(name) for name in PAGES], folder) if add else Known(),
            until=None if minutes is None else time.monotonic() + 60 * minutes,
        )
        reproductions = []
        for page in chosen:
            with failing_alone(page, folder, failures, among=len(chosen)):
                reproductions.append(reproduce_page(page, replace(start, seeds=seeds_of(page, scale, seeds)), folder))
    if reproductions:
        place = folder / "README.md" if text is None else Path(text)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(document(folder, place, list(PAGES)), encoding="utf-8")
        verdict_table(folder, list(PAGES)).to_csv(folder / "verdicts.csv", index=False, float_format="%.6g")
    if failures:
        raise FailedRunsError(failures, reproductions)
    return reproductions


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

    Args:
        page: which one.
        job: scale, seeds, folder of the runs, and how they are run.
        folder: where the files go.
    """
    panels = page.panels(job.scale)
    records = (page.compute or train)(panels, replace(job, page=page.name))
    if records.runs:  # a stretch may have ended before all were complete
        panels = [panel for panel in panels if panel.name in records.runs]
    outcome = judge(page, job.scale, job.seeds, panels, records, folder)
    write(outcome, folder)
    return outcome


def judge(
    page: Page, scale: Scale, seeds: int, panels: Sequence[Panel], records: Records, folder: Path
) -> Reproduction:
    """Judge records and draw them: the page's own figures, and the intervals of its verdicts."""
    verdicts = [verdict for claim in page.claims for verdict in claim.verdicts(records, page.reduced(scale))]
    figures = page.draw(records, panels, folder)
    path = folder / f"{page.name}-verdicts.png"
    if intervals(verdicts, path):
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


def check_room(page: Page, scale: Scale, folder: Path, add: bool = False) -> None:
    """Refuse to write over the same page at another scale, which may have taken hours; a larger one may be added.

    Raises:
        ConfigurationError: it names the file, and the scale that it holds.
    """
    path, scales = folder / f"{page.name}.json", get_args(Scale)
    there = read_json(path).get("scale", scale) if path.is_file() else scale
    grows = add and there in scales and scales.index(there) < scales.index(scale)
    if there != scale and not grows:
        raise ConfigurationError(
            f"{path} holds the page {page.name} at {there} scale, not {scale}: name another output folder"
        )


def write(outcome: Reproduction, folder: Path) -> None:
    """Write the page's tables (CSV), and what else there is to know about it (JSON).

    Numbers in tables have six digits: enough to draw and to judge, and the files stay small.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name, records = outcome.page.name, outcome.records
    tables = ({name: table(records, outcome.page.kept)} if records.runs else {}) | dict(records.tables)
    for stem, content in tables.items():
        content.to_csv(folder / f"{stem}.csv", index=False, float_format="%.6g")
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


FINAL = ("train_loss", "cohort_loss", "test_accuracy")  # what the tables of a page's panels show, or else its column


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


def intervals(verdicts: Sequence[Verdict], path: Path) -> bool:
    """Draw the intervals of the verdicts that have one, ratios and differences apart; whether there are any."""
    kinds: dict[str, list[plot.Interval]] = {}
    for verdict in verdicts:
        evidence, (low, high) = verdict.evidence, verdict.evidence.interval
        if evidence.kind != "exact" and np.isfinite([low, high]).all():
            label = " ".join(filter(None, (verdict.claim.id, verdict.case)))
            kinds.setdefault(evidence.kind, []).append(
                plot.Interval(
                    label, verdict.column, evidence.outcome, evidence.mean, low, high, (evidence.low, evidence.high)
                )
            )
    if kinds:
        plot.intervals(kinds, [path, path.with_suffix(".pdf")])
    return bool(kinds)


def plain(outcome: Reproduction) -> dict[str, object]:
    """A page as JSON: what the document and `fedsps report` need besides figures, tables and run folders."""
    records = outcome.records

    def plain_line(panel: Panel, line: Line) -> dict[str, object]:
        """A line with its run folders, what a search chose for it, and the seeds that diverged."""
        runs, key = records.of(panel.name, line.label), (panel.name, line.label)
        spec, winner = runs[0].spec, records.winners.get(key)
        tuned = search(panel, line, line.algorithm, outcome.scale).space if isinstance(line.algorithm, Tuned) else {}
        return {
            "label": line.label,
            "final": {
                column: _mean_and_deviation(records.final(panel.name, line.label, column))
                for column in [name for name in FINAL if name in runs[0].history] or [panel.column]
            },
            "algorithm": spec.algorithm,
            "tuned": {name: spec.parameters[name] for name in tuned},
            "search": None
            if winner is None or not isinstance(line.algorithm, Tuned)
            else {
                "name": winner.search,
                "pick": line.algorithm.pick,
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
