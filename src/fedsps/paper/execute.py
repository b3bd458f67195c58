"""Search and train what the panels of a page ask for. Everything is cached.

Searches come first, since their winners are what is trained. A run is known by the digest of its spec, and a search by
its name, so that pages share both: what one page ran, another reads.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fedsps.engine.history import Row
from fedsps.errors import FailedRunsError, Failure
from fedsps.methods.notation import Named, named, parse
from fedsps.paper.page import Cost, Job, Line, Panel, Records, Scale, Tuned
from fedsps.runs.parallel import run_all
from fedsps.runs.result import Result
from fedsps.runs.space import PAPER_GRID, TUNING_SEED, Search
from fedsps.runs.spec import Spec
from fedsps.runs.tune import run_search
from fedsps.runs.tuning import TuningResult


def train(panels: Sequence[Panel], job: Job) -> Records:
    """Tune, then train every line of every panel on each seed; what is there already is read.

    Args:
        panels: of the page, at the job's scale.
        job: seeds, folder of the runs, processes, and who is told how far it is.

    Returns:
        The results by panel, label and seed, the run folders that they came from, and what all of it took.

    Raises:
        FailedRunsError: some searches or runs failed; the others are done, but what is missing cannot be judged.
    """
    failures: list[Failure] = []
    chosen: dict[tuple[str, str], Named] = {}
    searches: list[TuningResult] = []
    for panel in panels:
        for line in panel.lines:
            if isinstance(line.algorithm, str):
                chosen[panel.name, line.label] = parse(line.algorithm)[0]
            else:
                with noting(failures):
                    searches.append(searched(panel, line, line.algorithm, job))
                    chosen[panel.name, line.label] = getattr(searches[-1], line.algorithm.pick)
    specs_by_line = {
        (panel.name, line.label, seed): Spec.of(
            chosen[panel.name, line.label], seed=seed, **(dict(panel.settings) | dict(line.settings))
        )
        for panel in panels
        for line in panel.lines
        if (panel.name, line.label) in chosen
        for seed in range(min(job.seeds, panel.seeds or job.seeds))
    }
    specs = list({spec.digest: spec for spec in specs_by_line.values()}.values())  # panels may share runs
    done = [0] * len(specs)

    def watch(number: int, row: Row) -> None:
        done[number] = row["round"]
        job.tell("training", sum(done), sum(spec.plan.rounds for spec in specs))

    with noting(failures):
        results = dict(
            zip((spec.digest for spec in specs), run_all(specs, job.runs, jobs=job.jobs, watch=watch), strict=True)
        )
    if failures:
        raise FailedRunsError(failures)
    runs: dict[str, dict[str, list[Result]]] = {}
    digests: dict[tuple[str, str], list[str]] = {}
    for (name, label, _), spec in specs_by_line.items():
        runs.setdefault(name, {}).setdefault(label, []).append(results[spec.digest])
        digests.setdefault((name, label), []).append(spec.digest)
    return Records(runs, digests, cost=cost(list(results.values()), searches))


@contextmanager
def noting(failures: list[Failure]) -> Iterator[None]:
    """Add what failed in there to a list, and go on."""
    try:
        yield
    except FailedRunsError as error:
        failures += error.failures


def cost(results: Sequence[Result], searches: Sequence[TuningResult]) -> Cost:
    """What runs and searches took, whether now or before; lines may share a search, which counts once.

    Seconds are those of training in the runs, and of whole trials in the searches.
    """
    tables = [tuned.table for tuned in {tuned.search.name: tuned for tuned in searches}.values()]
    return Cost(
        runs=len(results),
        seconds=sum(float(result.history["seconds"].sum()) for result in results),
        trials=sum(len(table) for table in tables),
        search_seconds=sum(float(table["seconds"].sum()) for table in tables),
    )


def searched(panel: Panel, line: Line, tuned: Tuned, job: Job) -> TuningResult:
    """What a search on the panel's setting found, with a seed that is not reported.

    A panel's line is tuned on that panel's data, clients and rounds, as the paper's are. What failed before is tried
    again: a page is judged only when nothing of it is missing.
    """
    what = f"tuning {tuned.algorithm} for {panel.name}"
    return run_search(
        search(panel, line, tuned, job.scale),
        job.runs,
        jobs=job.jobs,
        retry=True,
        progress=lambda done, size: job.tell(what, done, size),
    )


def search(panel: Panel, line: Line, tuned: Tuned, scale: Scale) -> Search:
    """The line's own grid, or the paper's, on the panel's setting; the smoke scale tries two client stepsizes.

    With halving the runs are evaluated at `halve_from` rounds and its multiples: that is where trials are compared.

    Args:
        panel: whose setting is used.
        line: whose own settings are laid over it.
        tuned: which algorithm, grid and halving.
        scale: of the page.
    """
    start = named(tuned.algorithm)
    grid = {"client_stepsize": (0.01, 0.1)} if scale == "smoke" else PAPER_GRID
    space = tuned.grid or {key: values for key, values in grid.items() if key in start.parameters}
    settings = search_settings(panel, line, scale)
    if scale == "smoke":
        return Search(Spec.of(start, **settings), dict(space))
    if tuned.halve_from:
        settings["evaluate_every"] = tuned.halve_from
    return Search(Spec.of(start, **settings), dict(space), halve_from=tuned.halve_from)


def search_settings(panel: Panel, line: Line, scale: Scale) -> dict[str, Any]:
    """A line's setting with the seed of the searches, and evaluations every tenth round at most.

    >>> panel = Panel("a", "(a)", {"data": "mnist", "rounds": 500, "evaluate_every": 5}, [])
    >>> search_settings(panel, Line("FedSPS", "fedsps"), "paper")
    {'data': 'mnist', 'rounds': 500, 'evaluate_every': 10, 'seed': 1000}
    """
    settings = dict(panel.settings) | dict(line.settings) | {"seed": TUNING_SEED}
    if scale != "smoke":
        settings["evaluate_every"] = max(10, settings["evaluate_every"])
    return settings
