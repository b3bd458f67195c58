"""Re-run pages: tune, train, then draw, tabulate and judge from the records. Everything trained is cached."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pandas as pd

from fedsps import tune as tuning
from fedsps.catalogue import Named, named, parse
from fedsps.errors import unknown
from fedsps.many import run_all
from fedsps.paper.page import Line, Page, Panel, Records, Scale, Tuned, Verdict
from fedsps.result import Result, number
from fedsps.session import Row
from fedsps.spec import Spec

PAGES = {  # where each page is written
    "sensitivity": "sensitivity:PAGE",
    "convex": "convex:PAGE",
    "lenet": "networks:LENET",
    "cifar": "networks:CIFAR",
    "normalized": "normalized:PAGE",
    "global": "one_stepsize:PAGE",
    "stepsizes": "stepsizes:PAGE",
    "libsvm": "libsvm:PAGE",
}
Report = Callable[[str, int, int], None]  # what is being done, how far, of how much


@dataclass(frozen=True)
class Outcome:
    """A page re-run: its records, figures and verdicts, and the time that its training took."""

    page: Page
    panels: Sequence[Panel]
    records: Records
    figures: Sequence[Path]
    verdicts: Sequence[Verdict]
    seconds: float


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
    """Run what is not there yet, then write the page's figures, its table (CSV), and its verdicts and panels (JSON).

    Without `seeds` there is one, or as many as the page has at paper scale.
    """
    seeds = seeds or (page.seeds if scale == "paper" else 1)
    panels = page.panels(scale)
    chosen = {
        (panel.name, line.label): algorithm(panel, line, scale, runs, jobs, report)
        for panel in panels
        for line in panel.lines
    }
    plan = {
        (panel.name, line.label, seed): Spec.of(
            chosen[panel.name, line.label], seed=seed, **(dict(panel.settings) | dict(line.settings))
        )
        for panel in panels
        for line in panel.lines
        for seed in range(seeds)
    }
    specs = list({spec.digest: spec for spec in plan.values()}.values())  # panels may share runs
    done = [0] * len(specs)

    def watch(number: int, row: Row) -> None:
        done[number] = row["round"]
        if report is not None:
            report(f"{page.name}: training", sum(done), sum(spec.rounds for spec in specs))

    results = {
        spec.digest: result for spec, result in zip(specs, run_all(specs, runs, jobs=jobs, watch=watch), strict=True)
    }
    records = gather(plan, results)
    folder.mkdir(parents=True, exist_ok=True)
    table(records).to_csv(folder / f"{page.name}.csv", index=False, float_format="%.8g")
    verdicts = [verdict for claim in page.claims for verdict in claim.verdicts(records)]
    figures = page.draw(records, panels, folder)
    seconds = sum(float(result.history["seconds"].sum()) for result in results.values())
    outcome = Outcome(page, panels, records, figures, verdicts, seconds)
    (folder / f"{page.name}.json").write_text(json.dumps(plain(outcome, scale, plan), indent=2) + "\n")
    return outcome


def algorithm(panel: Panel, line: Line, scale: Scale, runs: Path, jobs: int, report: Report | None) -> Named:
    """The line's algorithm; a tuned one is searched for on the panel's setting, with a seed that is not reported."""
    if isinstance(line.algorithm, str):
        return parse(line.algorithm)[0]
    tuned = line.algorithm

    def progress(done: int, size: int) -> None:
        if report is not None:
            report(f"tuning {tuned.algorithm} for {panel.name}", done, size)

    outcome = tuning.tune(search(panel, line, tuned, scale), runs, jobs=jobs, progress=progress)
    return outcome.best if tuned.pick == "best" else outcome.worst


def search(panel: Panel, line: Line, tuned: Tuned, scale: Scale) -> tuning.Search:
    """The line's own grid, or the paper's, on the panel's setting; the smoke scale searches corners only."""
    start = named(tuned.algorithm)
    settings = dict(panel.settings) | dict(line.settings) | {"seed": tuning.TUNING_SEED}
    space = tuned.grid or {key: values for key, values in tuning.PAPER_GRID.items() if key in start.parameters}
    if scale == "smoke":
        space = {key: (values[0], values[-2]) if len(values) > 2 else values for key, values in space.items()}
    else:
        settings["evaluate_every"] = max(10, settings["evaluate_every"])
    return tuning.Search(
        Spec.of(start, **settings), dict(space), halve_from=0 if scale == "smoke" else tuned.halve_from
    )


def gather(plan: dict[tuple[str, str, int], Spec], results: dict[str, Result]) -> Records:
    """The results by panel and label, in the order of the plan."""
    runs: dict[str, dict[str, list[Result]]] = {}
    for (panel, label, _), spec in plan.items():
        runs.setdefault(panel, {}).setdefault(label, []).append(results[spec.digest])
    return Records(runs)


def table(records: Records) -> pd.DataFrame:
    """The numbers behind a figure: every evaluated round of every run."""
    parts = []
    for panel, lines in records.runs.items():
        for label, some in lines.items():
            for run in some:
                history = run.history[run.history["train_loss"].notna()].drop(columns="seconds")
                parts.append(history.assign(panel=panel, line=label, seed=run.spec["seed"]))
    whole = pd.concat(parts, ignore_index=True)
    return whole[["panel", "line", "seed", *whole.columns.drop(["panel", "line", "seed"])]]


def plain(outcome: Outcome, scale: Scale, plan: dict[tuple[str, str, int], Spec]) -> dict[str, object]:
    """A page as JSON: what `fedsps report` needs besides the table and the run folders."""
    specs: dict[tuple[str, str], list[Spec]] = {}
    for (panel, label, _), spec in plan.items():
        specs.setdefault((panel, label), []).append(spec)

    def line(panel: Panel, label: str) -> dict[str, object]:
        own = specs[panel.name, label]
        return {
            "label": label,
            "algorithm": own[0].algorithm,
            "runs": [spec.digest for spec in own],
            "diverged": {
                str(run.spec["seed"]): run.diverged_at
                for run in outcome.records.of(panel.name, label)
                if run.diverged_at is not None
            },
        }

    return {
        "page": outcome.page.name,
        "title": outcome.page.title,
        "note": outcome.page.note,
        "scale": scale,
        "seconds": outcome.seconds,
        "verdicts": [_plain_verdict(verdict) for verdict in outcome.verdicts],
        "panels": [
            {
                "name": panel.name,
                "heading": panel.title,
                "column": panel.column,
                "lines": [line(panel, one.label) for one in panel.lines],
            }
            for panel in outcome.panels
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
