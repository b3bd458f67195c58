"""Search and train what the panels of a page ask for. Everything is cached.

Searches come first, since their winners are what is trained. A run is known by the digest of its spec, and a search by
its name, so that pages share both: what one page ran, another reads. What the tables of an earlier stretch hold
(`Job.known`) is not run again.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

from fedsps.engine.history import Row
from fedsps.errors import ConfigurationError, FailedRunsError, Failure
from fedsps.methods.notation import named, parse
from fedsps.paper.page import LOSSES, SECONDS, Cost, Job, Line, Panel, Records, Scale, Tuned, Winner
from fedsps.runs.parallel import run_all
from fedsps.runs.result import Result
from fedsps.runs.space import PAPER_GRID, TUNING_SEED, Search
from fedsps.runs.spec import Spec
from fedsps.runs.tune import run_search
from fedsps.runs.tuning import TuningResult


def train(panels: Sequence[Panel], job: Job) -> Records:
    """Tune, then train every line of every panel on each seed; what is there already is read.

    A job that has to end at some time takes one panel after another, and begins none when the time is up. Panels that
    the tables hold are always completed, or what they hold would be lost with the tables that are written.

    Args:
        panels: of the page, at the job's scale.
        job: seeds, folder of the runs, processes, what is known, and who is told how far it is.

    Returns:
        The results by panel, label and seed, the run folders that they came from, and what all of it took.

    Raises:
        FailedRunsError: some searches or runs failed; the others are done, but what is missing cannot be judged.
        ConfigurationError: the time was up before one panel was complete.
    """
    if job.until is None:
        return train_together(panels, job)
    held, failures = job.known.panels, list[Failure]()
    parts = []
    for panel in panels:
        if (job.page, panel.name) in held or not job.is_over:
            with noting(failures):
                parts.append(train_together([panel], job))
    if failures:
        raise FailedRunsError(failures)
    if not parts:
        raise ConfigurationError(f"no panel of {job.page} was complete when the time was up: give it more minutes")
    return Records(
        runs={name: lines for part in parts for name, lines in part.runs.items()},
        digests={key: digests for part in parts for key, digests in part.digests.items()},
        winners={key: winner for part in parts for key, winner in part.winners.items()},
        cost=cost(
            {
                digest: run
                for part in parts
                for (name, label), digests in part.digests.items()
                for digest, run in zip(digests, part.runs[name][label], strict=True)
            }.values(),
            [winner for part in parts for winner in part.winners.values()],
        ),
    )


def train_together(panels: Sequence[Panel], job: Job) -> Records:
    """All panels at once: their searches, then their runs, shared among the job's processes."""
    failures: list[Failure] = []
    winners: dict[tuple[str, str], Winner] = {}
    for panel in panels:
        for line in panel.lines:
            if isinstance(line.algorithm, Tuned):
                with noting(failures):
                    found = winners_of(panel, line, line.algorithm, job)
                    winners |= {(panel.name, label): winner for label, winner in found.items()}
    specs_by_line = {
        (panel.name, label, seed): spec
        for panel in panels
        for line in panel.lines
        for label in line.labels.values()
        if isinstance(line.algorithm, str) or (panel.name, label) in winners
        for seed, spec in enumerate(specs_of(panel, line, winners.get((panel.name, label)), job))
    }
    specs = list({spec.digest: spec for spec in specs_by_line.values()}.values())  # panels may share runs
    results = {spec.digest: run for spec in specs if (run := known_run(spec, job)) is not None}
    todo = [spec for spec in specs if spec.digest not in results]
    done = [0] * len(todo)

    def watch(number: int, row: Row) -> None:
        done[number] = row["round"]
        job.tell("training", sum(done), sum(spec.plan.rounds for spec in todo))

    with noting(failures):
        trained = run_all(todo, job.runs, jobs=job.jobs, watch=watch) if todo else []
        results |= zip((spec.digest for spec in todo), trained, strict=True)
    if failures:
        raise FailedRunsError(failures)
    runs: dict[str, dict[str, list[Result]]] = {}
    digests: dict[tuple[str, str], list[str]] = {}
    for (name, label, _), spec in specs_by_line.items():
        runs.setdefault(name, {}).setdefault(label, []).append(results[spec.digest])
        digests.setdefault((name, label), []).append(spec.digest)
    return Records(runs, digests, winners, cost=cost(results.values(), winners.values()))


def specs_of(panel: Panel, line: Line, winner: Winner | None, job: Job) -> list[Spec]:
    """A line's runs, seed by seed; a searched line has its winner's parameters."""
    if isinstance(line.algorithm, str):
        chosen = parse(line.algorithm)[0]
    else:
        assert winner is not None, "a searched line has a winner"
        chosen = winner.chosen
    settings = dict(panel.settings) | dict(line.settings)
    return [Spec.of(chosen, seed=seed, **settings) for seed in range(min(job.seeds, panel.seeds or job.seeds))]


def known_run(spec: Spec, job: Job) -> Result | None:
    """The run in the tables of earlier stretches; not if its algorithm has other parts by now."""
    found = job.known.runs.get((spec.digest, spec.named.parts)) if job.known.runs else None
    return None if found is None else replace(found, spec=spec)


def winners_of(panel: Panel, line: Line, tuned: Tuned, job: Job) -> dict[str, Winner]:
    """What a search chose by each loss, by the label of the runs; one that two losses agree on stands once."""
    found: dict[str, Winner] = {}
    for column, label in line.labels.items():
        winner = known_winner(panel, line, tuned, column, job)
        if winner is None:
            trials = searched(panel, line, tuned, job)
            winner = winner_of(trials if column == LOSSES[0] else trials.scored_by(column, job.runs), tuned.pick)
            if job.note is not None:
                job.note(replace(winner, on=(column,)), tuned.pick)
        same = next((name for name, other in found.items() if other.chosen == winner.chosen), label)
        found[same] = replace(winner, on=(*(found[same].on if same in found else ()), column))
    return found


def known_winner(panel: Panel, line: Line, tuned: Tuned, column: str, job: Job) -> Winner | None:
    """What a search chose by this loss in an earlier stretch."""
    if not job.known.winners:
        return None
    return job.known.winners.get((search(panel, line, tuned, job.scale).name, tuned.pick, column))


def winner_of(tuned: TuningResult, pick: Literal["best", "worst"]) -> Winner:
    """A search's winner, or its worst finite point, and what the search took."""
    seconds = float(tuned.table["seconds"].sum())
    return Winner(tuned.search.name, tuned.best if pick == "best" else tuned.worst, len(tuned.table), seconds)


@contextmanager
def noting(failures: list[Failure]) -> Iterator[None]:
    """Add what failed in there to a list, and go on."""
    try:
        yield
    except FailedRunsError as error:
        failures += error.failures


def cost(results: Iterable[Result], winners: Iterable[Winner]) -> Cost:
    """What runs and searches took, whether now or before; lines may share a search, which counts once.

    Seconds are those of training in the runs, and of whole trials in the searches.
    """
    results, searches = list(results), {winner.search: winner for winner in winners}.values()
    return Cost(
        runs=len(results),
        seconds=sum(map(seconds_of, results)),
        trials=sum(winner.trials for winner in searches),
        search_seconds=sum(winner.seconds for winner in searches),
    )


def seconds_of(result: Result) -> float:
    """The time of a run's training; one from a table has it noted, as the table leaves the times of rounds out."""
    return float(
        result.provenance.get(SECONDS, 0.0) if "seconds" not in result.history else result.history["seconds"].sum()
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
