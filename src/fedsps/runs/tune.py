"""Search for the best parameters of an algorithm, by a grid or a Bayesian search.

Trials live in a storage (SQLite by default, any Optuna URL for several machines), runs in their folders: an interrupted
search goes on where it stopped.
"""

import itertools
import os
import platform
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedsps.checks import count
from fedsps.engine.history import Row
from fedsps.engine.ranks import only_one_process
from fedsps.errors import FailedRunsError, Failure
from fedsps.runs.failures import attempt
from fedsps.runs.files import only_one
from fedsps.runs.parallel import LEAST_SWEEP, workers
from fedsps.runs.result import Result
from fedsps.runs.run import is_done, run
from fedsps.runs.space import TUNING_SEED, Range, Sampler, Search, parse_space
from fedsps.runs.spec import Spec
from fedsps.runs.storage import open_storage, optuna_itself
from fedsps.runs.sweep import groups, run_sweep
from fedsps.runs.tuning import TuningResult, score

OWNER = f"{platform.node()}:{os.getpid()}"  # who runs a trial
BEAT = 30.0  # seconds after which its owner says again that it lives
SILENCE = 600.0  # seconds without a beat, and a process of another machine counts as dead
AT_ONCE = 64  # trials of a grid that are computed together, so that a killed search loses little
CLAIMS = "tune.lock"  # in the folder of the runs: held while trials are taken
FAILED = "failed:"  # before the digest of a run, in what the study notes
Outcome = float | Failure | None  # a score; None for a trial that was dropped
Progress = Callable[[int, int], None]  # trials finished, trials in all
Heard = dict[str, tuple[float | None, float]]  # by process: its last beat, and when that was new here


def tune(
    algorithm: str,
    *,
    sampler: Sampler = "grid",
    trials: int = 50,
    halve_from: int = 0,
    runs: str | Path = "runs",
    storage: str | None = None,
    jobs: int = 1,
    retry: bool = False,
    progress: Progress | None = None,
    **settings: Any,
) -> TuningResult:
    """Search an algorithm's parameters: lowest mean train loss over the last tenth of the rounds.

    Args:
        algorithm: with the values to search, "fedavg:client_stepsize=0.01/0.1/1", or a range for tpe,
            "fedavg:client_stepsize=1e-4..1"; a bare name takes the paper's grid.
        sampler: "grid" (every point) or "tpe" (Bayesian).
        trials: of the Bayesian search.
        halve_from: see `Search`.
        runs: the folder of run folders, and of the search's own data base.
        storage: the URL of a data base through which several machines share the search,
            "postgresql://user@host/base"; a file in `runs` if not given.
        jobs: trials at the same time, in processes of one thread each.
        retry: run once more what failed before.
        progress: called with the trials that are finished, and all.
        **settings: fields of `Task` and `Plan`, as `Spec.of` takes them. The seed is 1000 if not given, so that
            tuning does not see the runs that are reported.

    Raises:
        FailedRunsError: if some trials failed, now or before; the others are done, and `finished` is what they found.
    """
    named, space = parse_space(algorithm)
    spec = Spec.of(named, **({"seed": TUNING_SEED} | settings))
    search = Search(spec, space, sampler=sampler, trials=trials, halve_from=halve_from)
    return run_search(search, runs, storage=storage, jobs=jobs, retry=retry, progress=progress)


def run_search(
    search: Search,
    runs: str | Path = "runs",
    *,
    storage: str | None = None,
    jobs: int = 1,
    retry: bool = False,
    progress: Progress | None = None,
) -> TuningResult:
    """Search, with `jobs` runs at the same time in processes of one thread each. What is there is not run again.

    This process alone asks the storage for trials, and those that share a folder of runs ask in turn (SQLite could give
    two the same one); the workers only run them. Several machines share a search through a real data base, one such
    process on each; all of them wait for the last trial, and take over those of a machine that fell silent.

    A trial that fails is written down as such, so that the search ends; with `retry` it is run once more.

    Raises:
        FailedRunsError: if some trials failed, now or before; the others are done, and `finished` is what they found.
    """
    only_one_process("a search", "start it without torchrun, with jobs or with one storage for several machines")
    count("jobs", jobs)
    Path(runs).mkdir(parents=True, exist_ok=True)
    url = storage or f"sqlite:///{Path(runs).resolve() / 'tune.db'}"
    heard: Heard = {}
    busy = f"another process has held {Path(runs) / CLAIMS} for {SILENCE:g} s: let it go on, or end it"
    with open_storage(url) as opened:
        study = _study(search, opened)
        with _beating(study), workers(jobs) as submit:
            running: dict[Future[list[Outcome]], list[Any]] = {}
            try:
                if retry:
                    _forget_failures(search, study)
                _queue(search, study, heard)
                while True:
                    while len(running) < jobs:
                        with only_one(Path(runs), busy, CLAIMS, SILENCE):  # SQLite would give one trial to two
                            trials = _claim(search, study, jobs, is_shared=storage is not None)
                        if not trials:
                            break
                        points = [_point(search, trial) for trial in trials]
                        for trial, point in zip(trials, points, strict=True):
                            trial.set_user_attr("digest", search.at(point).digest)
                        numbers = [trial._trial_id for trial in trials]
                        running[submit(_run_trials, search, str(runs), url, numbers, points)] = trials
                    if not running:
                        if not _queue(search, study, heard):
                            break
                        time.sleep(1)
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        scores, trials = future.result(), running.pop(future)
                        for trial, outcome in zip(trials, scores, strict=True):
                            _tell(study, trial, outcome)
                    if progress is not None:
                        progress(len(_found(search, study).table) + len(_failures(study)), search.size)
            except BaseException:
                _give_back(study)
                raise
        found, failures = _found(search, study), _failures(study)
        if failures:
            made = None if found.table.empty else found
            raise FailedRunsError(list(failures.values()), made, " with retry=True")
        return found


def _tell(study: Any, trial: Any, outcome: Outcome) -> None:
    """What came of a trial; a machine that was asleep finds that others have taken its trials over."""
    TrialState = optuna_itself().trial.TrialState
    if isinstance(outcome, Failure):
        study.set_user_attr(FAILED + _digest(trial), [outcome.what, outcome.error, str(outcome.file)])
        study.tell(trial, state=TrialState.FAIL, skip_if_finished=True)
    else:
        study.tell(trial, outcome, state=TrialState.PRUNED if outcome is None else None, skip_if_finished=True)


def _digest(trial: Any) -> str:
    """Of the run of a trial; none if its process was killed before it could say so."""
    return str(trial.user_attrs.get("digest", ""))


def _failures(study: Any) -> dict[str, Failure]:
    """The trials that failed, by the digests of their runs; all machines see the same ones."""
    return {
        name.removeprefix(FAILED): Failure(noted[0], noted[1], Path(noted[2]))
        for name, noted in study.user_attrs.items()
        if name.startswith(FAILED) and noted
    }


def _forget_failures(search: Search, study: Any) -> None:
    """Put what failed in line again; a finished trial cannot be changed, so that the study notes what failed."""
    failures = _failures(study)
    for trial in study.get_trials(deepcopy=False):
        if _digest(trial) in failures and search.sampler == "tpe":  # the points of a grid come by themselves
            study.enqueue_trial(_params(trial))
    for digest in failures:
        study.set_user_attr(FAILED + digest, None)


def _counts(trial: Any, failures: Mapping[str, Failure]) -> bool:
    """Whether a trial is one of the search: it is done or may be, or its run failed; not if its process is gone."""
    return trial.state != optuna_itself().trial.TrialState.FAIL or _digest(trial) in failures


@contextmanager
def _beating(study: Any) -> Iterator[None]:
    """Let the other machines know every `BEAT` seconds that this process lives, however long its trials take."""
    over = threading.Event()

    def beat() -> None:
        while True:
            with suppress(Exception):  # the storage is away for a moment: the next beat may reach it
                study.set_user_attr(OWNER, time.time())
            if over.wait(BEAT):
                return

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _queue(search: Search, study: Any, heard: Heard) -> bool:
    """Put every point of a grid in line that is neither done nor in line nor being run by a process that lives.

    Trials whose process is gone are marked as failed, so that their points come up again, here or on another machine.

    Returns:
        Whether there is anything left to run, or to wait for.
    """
    TrialState = optuna_itself().trial.TrialState
    beats, failures = study.user_attrs, _failures(study)
    taken, is_open = [], False
    for trial in study.get_trials(deepcopy=False):
        if trial.state == TrialState.RUNNING and not _is_alive(trial, beats, heard):
            study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)
        elif _counts(trial, failures):
            taken.append(_params(trial))
            is_open |= not trial.state.is_finished()
    if search.sampler == "tpe":
        return is_open or len(taken) < search.trials
    names = list(search.space)
    points = [dict(zip(names, values, strict=True)) for values in itertools.product(*search.space.values())]  # type: ignore[arg-type]
    if search.halve_from:  # in a grid's own order each point may be better than all before it: none is dropped
        random.Random(TUNING_SEED).shuffle(points)
    missing = [point for point in points if point not in taken]
    for point in missing:
        study.enqueue_trial(point)
    return is_open or bool(missing)


def _is_alive(trial: Any, beats: Mapping[str, float], heard: Heard) -> bool:
    """Whether the process that runs a trial still lives.

    One on this machine does not if it is not there. Any other counts as dead when its beat has not changed for
    `SILENCE` seconds by this machine's own clock, so that the clocks of the machines need not agree.

    Args:
        trial: that somebody runs.
        beats: the last beat of each process.
        heard: which beat this process saw last of each, and when it was new; brought up to date.
    """
    owner = trial.user_attrs.get("owner", f"of trial {trial.number}")  # its process was killed before it could say so
    host, _, pid = owner.rpartition(":")
    if host == platform.node() and not _is_process(int(pid)):
        return False
    now, beat = time.monotonic(), beats.get(owner)
    if owner not in heard or heard[owner][0] != beat:
        heard[owner] = beat, now
    return now - heard[owner][1] < SILENCE


def _is_process(pid: int) -> bool:
    """Whether another process of this machine has this number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        return True
    return pid != os.getpid()


def _claim(search: Search, study: Any, jobs: int, *, is_shared: bool) -> list[Any]:
    """The next trials of this process, to be computed together; none when there are none left.

    A grid's points are known beforehand: the jobs share them, in portions that are worth a process. In a storage that
    machines share, each takes a quarter of what is in line, and comes again: none idles while another has much before
    it, and one that is killed loses little. A Bayesian search learns from each trial, and takes one at a time.
    """
    optuna = optuna_itself()
    TrialState = optuna.trial.TrialState
    trials, failures = study.get_trials(deepcopy=False), _failures(study)
    waiting = sum(trial.state == TrialState.WAITING for trial in trials)
    if search.sampler == "tpe":
        size = int(waiting > 0 or sum(_counts(trial, failures) for trial in trials) < search.trials)
    else:
        portion = -(-waiting // (4 * jobs)) if is_shared else -(-search.size // jobs)
        size = min(waiting, AT_ONCE, max(LEAST_SWEEP, portion))
    asked = []
    for _ in range(size):
        trial = study.ask()
        trial.set_user_attr("owner", OWNER)
        # the seed moves on, or a search that goes on would draw its first points again, and two machines the same ones
        study.sampler = optuna.samplers.TPESampler(seed=TUNING_SEED + trial.number)
        asked.append(trial)
    everyone = study.get_trials(deepcopy=False)
    claimed = []
    for trial in asked:
        before = [one for one in everyone[: trial.number] if _counts(one, failures)]
        if _is_needless(search, everyone[trial.number], before):
            study.tell(trial, state=TrialState.FAIL, skip_if_finished=True)
        else:
            claimed.append(trial)
    return claimed


def _is_needless(search: Search, trial: Any, before: Sequence[Any]) -> bool:
    """Whether a trial is one too many: machines that look at the same moment put the same points in line.

    The trials before it that count decide, and all machines see the same ones: of trials at one point the first counts.
    """
    counted = [_params(one) for one in before]
    if search.sampler == "tpe":
        return len(counted) >= search.trials
    return not _params(trial) or _params(trial) in counted  # without a point: the line was empty by then


def _params(trial: Any) -> dict[str, Any]:
    """The point that a trial was put in line with, or that was drawn for it."""
    params: dict[str, Any] = trial.system_attrs.get("fixed_params", trial.params)
    return params


def _give_back(study: Any) -> None:
    """Mark the trials of this process as failed, so that others need not wait until it counts as dead."""
    TrialState = optuna_itself().trial.TrialState
    with suppress(Exception):  # what ended the search is what is raised, also where that was the storage
        for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if trial.user_attrs.get("owner") == OWNER:
                study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)


def _point(search: Search, trial: Any) -> dict[str, Any]:
    """The trial's values: those it was put in line with, or what the sampler suggests."""
    return {
        name: trial.suggest_float(name, values.low, values.high, log=True)
        if isinstance(values, Range)
        else trial.suggest_categorical(name, list(values))
        for name, values in search.space.items()
    }


def _run_trials(
    search: Search, runs: str, url: str, numbers: Sequence[int], points: Sequence[dict[str, Any]]
) -> list[Outcome]:
    """The scores of some points, computed together where they can be; None for one that was dropped early."""
    specs = [search.at(point) for point in points]
    scores: list[Outcome] = [None] * len(specs)
    todo = []
    for place, spec in enumerate(specs):
        if is_done(spec, runs):
            scores[place] = score(run(spec, runs))
        else:
            todo.append(place)
    with open_storage(url) if search.halve_from else nullcontext() as opened:
        trials = [optuna_itself().trial.Trial(_study(search, opened), number) for number in numbers] if opened else []
        results: dict[int, Result | None] = {}

        def work(places: list[int]) -> None:
            drop = partial(_dropped, [trials[place] for place in places]) if trials else None
            done = run_sweep([specs[place] for place in places], runs, drop=drop, by_client=False)
            results.update(zip(places, done, strict=True))

        for group in groups([specs[place] for place in todo]):
            for place, failure in attempt(specs, runs, work, [todo[place] for place in group]).items():
                scores[place] = failure
        for place, result in results.items():
            scores[place] = None if result is None else score(result)
    return scores


def _dropped(trials: Sequence[Any], round: int, rows: Mapping[int, Row]) -> set[int]:
    """Report the losses of a round, and say which of the trials to drop, by their places in the list."""
    losses = {place: row["train_loss"] for place, row in rows.items() if np.isfinite(row["train_loss"])}
    try:
        for place, loss in losses.items():
            trials[place].report(loss, round)
        return {place for place in losses if trials[place].should_prune()}
    except optuna_itself().exceptions.UpdateFinishedTrialError:
        return set()  # this machine was asleep, and others have taken its trials over: nobody asks for these any more


def _found(search: Search, study: Any) -> TuningResult:
    """The table of a study: trials that finished or were dropped, the best first, a point that ran twice once."""
    TrialState = optuna_itself().trial.TrialState
    done = [
        trial for trial in study.get_trials(deepcopy=False) if trial.state in (TrialState.COMPLETE, TrialState.PRUNED)
    ]
    times = [(trial.datetime_start.timestamp(), trial.datetime_complete.timestamp()) for trial in done]
    rows = [
        dict(trial.params)
        | {
            "score": trial.value if trial.value is not None else np.nan,
            "diverged": trial.value == np.inf,
            "dropped": trial.state == TrialState.PRUNED,
            "digest": trial.user_attrs.get("digest"),
            "seconds": seconds,
        }
        for trial, seconds in zip(done, shared_time(times), strict=True)
    ]
    columns = [*search.space, "score", "diverged", "dropped", "digest", "seconds"]
    table = pd.DataFrame(rows, columns=columns)
    for name, values in search.space.items():
        if not isinstance(values, Range) and None in values:  # among numbers it would become NaN
            table[name] = pd.Series([row[name] for row in rows], dtype=object)
    table = table.drop_duplicates(subset=list(search.space), keep="first")
    return TuningResult(search, table.sort_values("score", kind="stable").reset_index(drop=True))


def shared_time(times: Sequence[tuple[float, float]]) -> list[float]:
    """Of each (start, end) its share of the time, which all that run at a moment share equally: sweeps run together.

    >>> shared_time([(0.0, 4.0), (2.0, 4.0), (7.0, 8.0)])
    [3.0, 1.0, 1.0]
    """
    starts, ends = np.array(times).reshape(-1, 2).T
    edges = np.unique([*starts, *ends])
    running = np.searchsorted(np.sort(starts), edges[:-1], "right") - np.searchsorted(
        np.sort(ends), edges[:-1], "right"
    )
    passed = np.concatenate([[0.0], np.cumsum(np.diff(edges) / np.maximum(running, 1))])
    shares: list[float] = (passed[np.searchsorted(edges, ends)] - passed[np.searchsorted(edges, starts)]).tolist()
    return shares


def _study(search: Search, storage: Any) -> Any:
    """The search's study in the storage, made if it is not there; halving is Optuna's, with a factor of four."""
    optuna = optuna_itself()
    pruner = (
        optuna.pruners.SuccessiveHalvingPruner(min_resource=search.halve_from, reduction_factor=4)
        if search.halve_from
        else optuna.pruners.NopPruner()
    )
    return optuna.create_study(storage=storage, study_name=search.name, pruner=pruner, load_if_exists=True)
