"""Search for the best parameters of an algorithm, by a grid or a Bayesian search. The only file that knows Optuna.

The winner has the lowest mean `train_loss` over the last tenth of the rounds, on a seed that no figure reports.
Trials live in a storage (SQLite by default, any Optuna URL for several machines), runs in their folders: an interrupted
search goes on where it stopped.
"""

import hashlib
import itertools
import json
import os
import platform
import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from math import inf, prod
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from fedsps.checks import choice, count
from fedsps.engine.history import Row
from fedsps.errors import ConfigurationError
from fedsps.methods import notation
from fedsps.methods.notation import Named
from fedsps.runs.parallel import LEAST_SWEEP, workers
from fedsps.runs.result import Result
from fedsps.runs.run import is_done, run
from fedsps.runs.spec import Spec
from fedsps.runs.sweep import groups, run_sweep

TUNING_SEED = 1000
OWNER = f"{platform.node()}:{os.getpid()}"  # who runs a trial
BEAT = 30.0  # seconds after which its owner says again that it lives
AT_ONCE = 64  # trials of a grid that are computed together, so that a killed search loses little
SILENT = 20  # so many beats without a word, and another machine counts as dead
Sampler = Literal["grid", "tpe"]
Progress = Callable[[int, int], None]  # trials finished, trials in all
PAPER_GRID = {
    "client_stepsize": (1e-4, 1e-3, 1e-2, 1e-1, 1.0),
    "server_stepsize": (1e-3, 1e-2, 1e-1, 1.0),
    "eps": (1e-8, 1e-4, 1e-3, 1e-2, 1e-1, 1.0),
}
"""Table 1 of the paper. FedAvg has the first two; FedAdam is given FedAMS's."""


@dataclass(frozen=True)
class Range:
    """Any value from `low` to `high`, sampled on a logarithmic scale; for the Bayesian search.

    >>> Range(0.001, 0.0)
    Traceback (most recent call last):
    fedsps.errors.ConfigurationError: a range goes from a number above 0 to a larger one; got 0.001..0.0
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 < self.low < self.high < inf:
            raise ConfigurationError(f"a range goes from a number above 0 to a larger one; got {self.low}..{self.high}")


Space = dict[str, tuple[Any, ...] | Range]


@dataclass(frozen=True)
class Search:
    """What is searched: the run that stays the same, and the parameters that vary.

    Attributes:
        spec: the run.
        space: values, or a range, for each parameter that varies.
        sampler: "grid" tries every point, "tpe" is Bayesian.
        trials: of the Bayesian search; a grid has its own number.
        halve_from: at this round, four times it, ... a trial is dropped that is not in the best quarter of those that
            have come as far; 0: never.

    >>> search = Search(Spec.of("fedavg"), {"client_stepsize": (0.1, 1.0), "server_stepsize": (0.5, 1.0)})
    >>> search.size, search.at({"client_stepsize": 0.1}).parameters
    (4, {'client_stepsize': 0.1, 'server_stepsize': 1.0})
    """

    spec: Spec
    space: Space
    sampler: Sampler = "grid"
    trials: int = 50
    halve_from: int = 0

    def __post_init__(self) -> None:
        choice("sampler", self.sampler, get_args(Sampler))
        count("trials", self.trials)
        count("halve_from", self.halve_from, least=0)
        plan = self.spec.plan
        if not self.halve_from and plan.evaluate_from == 1:  # the score is made of the last tenth
            object.__setattr__(self, "spec", self.spec.but(evaluate_from=int(0.9 * plan.rounds) + 1))
        if not self.space:
            raise ConfigurationError(f"nothing to search: give {self.spec.algorithm} several values of a parameter")
        if self.sampler == "grid" and any(isinstance(values, Range) for values in self.space.values()):
            raise ConfigurationError("a grid needs values, a/b/c; ranges, a..b, are for the sampler tpe")
        for name, values in self.space.items():
            for value in () if isinstance(values, Range) else values:
                if not isinstance(value, str | int | float | None):
                    raise ConfigurationError(f"{name} cannot be searched: {value!r} is neither a number nor a word")

    @property
    def size(self) -> int:
        """The number of trials: of all points of a grid, or as many as were asked for."""
        sizes = [len(values) for values in self.space.values() if not isinstance(values, Range)]
        return prod(sizes) if self.sampler == "grid" else self.trials

    @property
    def name(self) -> str:
        """The name of the study, the same for the same search: that is how one that was interrupted is found again.

        The number of trials is not in it, so that a Bayesian search may be asked for more and goes on.
        """
        text = json.dumps([self.spec.digest, self.sampler, self.halve_from, repr(self.space)])
        return f"{self.spec.algorithm}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def at(self, parameters: dict[str, Any]) -> Spec:
        """The run at one point of the space."""
        return replace(self.spec, parameters=self.spec.parameters | parameters)


@dataclass(frozen=True)
class TuningResult:
    """What a search found.

    Attributes:
        search: what was searched.
        table: a row a trial: its parameters, `score`, `seconds`, whether it `diverged` or was `dropped`, and the
            `digest` of its run; the best first.
    """

    search: Search
    table: pd.DataFrame

    def _named(self, row: int) -> Named:
        point = {name: self.table[name].tolist()[row] for name in self.search.space}
        return self.search.at(point).named

    @property
    def best(self) -> Named:
        """The trial with the lowest score among those that ran to the end."""
        return self._named(int(np.argmin(self._finished("min"))))

    @property
    def worst(self) -> Named:
        """The trial with the largest finite score among those that ran to the end.

        It shows how much a wrong choice costs; trials that diverged would say nothing but that.
        """
        return self._named(int(np.argmax(self._finished("max"))))

    def _finished(self, kind: str) -> np.ndarray[Any, Any]:
        """The scores, with those of trials that diverged or were dropped made the last to be chosen.

        Raises:
            ConfigurationError: if there is no other trial, and so nothing to choose.
        """
        scores = self.table["score"].to_numpy(float)
        usable = np.isfinite(scores) & ~self.table["dropped"].to_numpy(bool)
        if not usable.any():
            raise ConfigurationError(
                f"all {len(scores)} trials of {self.search.spec.algorithm} diverged: widen the search"
            )
        return np.where(usable, scores, np.inf if kind == "min" else -np.inf)

    @property
    def diverged(self) -> int:
        """How many trials diverged: their score is infinite, and they count as finished."""
        return int(self.table["diverged"].sum())


def parse_space(text: str) -> tuple[Named, Space]:
    """An algorithm and its space from one word: values a/b/c, ranges a..b; a bare name takes the paper's grid.

    The algorithm has the first value of each parameter, or a range's lower end.

    >>> parse_space("fedavg:client_stepsize=0.01/0.1")[1]
    {'client_stepsize': (0.01, 0.1)}
    >>> parse_space("fedavg:client_stepsize=1e-4..1")[1]
    {'client_stepsize': Range(low=0.0001, high=1.0)}
    """
    name, given = notation.read(text)
    ranges: dict[str, Range] = {}
    for key, written in given.items():
        low, dots, high = written.partition("..")
        if dots:
            ranges[key] = _range(f"{key}={written}", low, high)
            given[key] = low
    variants = notation.variants(name, given)
    first = variants[0]
    space: Space = dict(ranges)
    for key in first.parameters:
        values = tuple(dict.fromkeys(variant.parameters[key] for variant in variants))
        if len(values) > 1:
            space[key] = values
    if not space and ":" not in text:
        space = {key: values for key, values in PAPER_GRID.items() if key in first.parameters}
    return first, space


def _range(setting: str, low: str, high: str) -> Range:
    if "/" in low + high:
        raise ConfigurationError(f"{setting!r} is both a range, a..b, and values, a/b/c: take one of them")
    try:
        ends = float(low), float(high)
    except ValueError as error:
        raise ConfigurationError(f"{setting!r} is not a range of numbers, like 0.001..1") from error
    return Range(*ends)


def score(result: Result) -> float:
    """The mean `train_loss` over the last tenth of the rounds; infinite if the run diverged.

    A mean, since the loss of a single round is noisy, and of the objective over all clients, not the cohort's batches.

    Raises:
        ConfigurationError: if none of these rounds was evaluated.
    """
    if result.diverged_at is not None:
        return np.inf
    table = result.history
    last = table["train_loss"][table["round"] > 0.9 * table["round"].max()].dropna()
    if last.empty:
        raise ConfigurationError("no round in the last tenth was evaluated: set evaluate_every to a tenth or less")
    return float(last.mean())


def tune(
    algorithm: str,
    *,
    sampler: Sampler = "grid",
    trials: int = 50,
    halve_from: int = 0,
    runs: str | Path = "runs",
    storage: str | None = None,
    jobs: int = 1,
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
        storage: an Optuna storage URL, shared by several machines; a file in `runs` if not given.
        jobs: trials at the same time, in processes of one thread each.
        progress: called with the trials that are finished, and all.
        **settings: fields of `Task` and `Plan`, as `Spec.of` takes them. The seed is 1000 if not given, so that
            tuning does not see the runs that are reported.
    """
    named, space = parse_space(algorithm)
    spec = Spec.of(named, **({"seed": TUNING_SEED} | settings))
    search = Search(spec, space, sampler=sampler, trials=trials, halve_from=halve_from)
    return run_search(search, runs, storage=storage, jobs=jobs, progress=progress)


def run_search(
    search: Search,
    runs: str | Path = "runs",
    *,
    storage: str | None = None,
    jobs: int = 1,
    progress: Progress | None = None,
) -> TuningResult:
    """Search, with `jobs` runs at the same time in processes of one thread each. What is there is not run again.

    This process alone asks the storage for trials (two that share an SQLite file could be given the same one); the
    workers only run them. Several machines share a search through a real database, one such process on each; all of
    them wait for the last trial, and take over those of a machine that fell silent.
    """
    count("jobs", jobs)
    TrialState = _optuna().trial.TrialState
    Path(runs).mkdir(parents=True, exist_ok=True)
    url = storage or f"sqlite:///{Path(runs).resolve() / 'tune.db'}"
    study = _study(search, url)
    _queue(search, study)
    with workers(jobs) as submit:
        running: dict[Future[list[float | None]], list[Any]] = {}
        try:
            while True:
                while len(running) < jobs and (trials := _next(search, study, jobs)):
                    points = [_point(search, trial) for trial in trials]
                    for trial, point in zip(trials, points, strict=True):
                        trial.set_user_attr("owner", OWNER)
                        trial.set_user_attr("digest", search.at(point).digest)
                    numbers = [trial._trial_id for trial in trials]
                    running[submit(_run_trials, search, str(runs), url, numbers, points)] = trials
                if not running and not _others_run(study):
                    break
                if not running:
                    time.sleep(1)
                    _queue(search, study)
                    continue
                done, _ = wait(running, timeout=BEAT, return_when=FIRST_COMPLETED)
                for trial in itertools.chain(*running.values()):
                    trial.set_user_attr("seen", time.time())
                for future in done:
                    scores, trials = future.result(), running.pop(future)
                    for trial, value in zip(trials, scores, strict=True):
                        trial.set_user_attr("diverged", value == np.inf)
                        study.tell(trial, value, state=None if value is not None else TrialState.PRUNED)
                if progress is not None:
                    progress(len(found_so_far(search, url).table), search.size)
        except BaseException:
            for trial in itertools.chain(*running.values()):
                study.tell(trial, state=TrialState.FAIL)
            raise
    return found_so_far(search, url)


def _queue(search: Search, study: Any) -> None:
    """Put every point of a grid in line that is neither done nor in line nor being run by a process that lives.

    Trials whose process is gone are marked as failed, so that their points come up again, here or on another machine.
    """
    TrialState = _optuna().trial.TrialState
    taken = []
    for trial in study.get_trials(deepcopy=False):
        if trial.state == TrialState.RUNNING and not _is_alive(trial):
            study.tell(trial.number, state=TrialState.FAIL)
        elif trial.state != TrialState.FAIL:
            taken.append(trial.system_attrs.get("fixed_params", trial.params))
    if search.sampler == "grid":
        names = list(search.space)
        points = [dict(zip(names, values, strict=True)) for values in itertools.product(*search.space.values())]  # type: ignore[arg-type]
        if search.halve_from:  # in a grid's own order each point may be better than all before it: none is dropped
            random.Random(TUNING_SEED).shuffle(points)
        for point in points:
            if point not in taken:
                study.enqueue_trial(point)


def _others_run(study: Any) -> bool:
    """Whether some trial is in line or being run; asked by a process that has none of its own."""
    TrialState = _optuna().trial.TrialState
    return bool(study.get_trials(deepcopy=False, states=(TrialState.WAITING, TrialState.RUNNING)))


def _is_alive(trial: Any) -> bool:
    """Whether the process that runs a trial still lives: on this machine, or heard of from another one lately."""
    host, _, pid = trial.user_attrs.get("owner", "").rpartition(":")
    if host != platform.node():
        seen: float = trial.user_attrs.get("seen", trial.datetime_start.timestamp())
        return time.time() - seen < SILENT * BEAT
    try:
        os.kill(int(pid), 0)
    except OSError:
        return False
    return int(pid) != os.getpid()


def _next(search: Search, study: Any, jobs: int) -> list[Any]:
    """The next trials, to be computed together; none when there are none left.

    A grid's points are known beforehand: the jobs share them, in portions that are worth a process. A Bayesian search
    learns from each trial, and takes one at a time.
    """
    optuna = _optuna()
    TrialState = optuna.trial.TrialState
    states = [trial.state for trial in study.get_trials(deepcopy=False)]
    # the seed moves on, or a search that goes on would draw its first points again
    study.sampler = optuna.samplers.TPESampler(seed=TUNING_SEED + len(states))
    waiting = states.count(TrialState.WAITING)
    if search.sampler == "tpe":
        wanted = len(states) - states.count(TrialState.FAIL) < search.trials
        return [study.ask()] if wanted or waiting else []
    size = min(AT_ONCE, max(LEAST_SWEEP, -(-search.size // jobs)))
    return [study.ask() for _ in range(min(waiting, size))]


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
) -> list[float | None]:
    """The scores of some points, computed together where they can be; None for one that was dropped early."""
    specs = [search.at(point) for point in points]
    scores: list[float | None] = [None] * len(specs)
    todo = []
    for place, spec in enumerate(specs):
        if is_done(spec, runs):
            scores[place] = score(run(spec, runs))
        else:
            todo.append(place)
    study = _study(search, url) if search.halve_from else None
    trials = [_optuna().trial.Trial(study, number) for number in numbers] if study is not None else []

    for group in groups([specs[place] for place in todo]):
        places = [todo[place] for place in group]

        def drop(round: int, rows: Mapping[int, Row], places: Sequence[int] = places) -> set[int]:
            losses = {number: row["train_loss"] for number, row in rows.items() if np.isfinite(row["train_loss"])}
            for number, loss in losses.items():
                trials[places[number]].report(loss, round)
            return {number for number in losses if trials[places[number]].should_prune()}

        results = run_sweep([specs[place] for place in places], runs, drop=drop if trials else None)
        for place, result in zip(places, results, strict=True):
            scores[place] = None if result is None else score(result)
    return scores


def found_so_far(search: Search, url: str) -> TuningResult:
    """The table of a study: trials that finished or were dropped, the best first, a point that ran twice once.

    Args:
        search: it names the study.
        url: of the storage.
    """
    TrialState = _optuna().trial.TrialState
    rows = [
        dict(trial.params)
        | {
            "score": trial.value if trial.value is not None else np.nan,
            "diverged": trial.user_attrs.get("diverged", False),
            "dropped": trial.state == TrialState.PRUNED,
            "digest": trial.user_attrs.get("digest"),
            "seconds": trial.duration.total_seconds(),
        }
        for trial in _study(search, url).get_trials(deepcopy=False)
        if trial.state in (TrialState.COMPLETE, TrialState.PRUNED)
    ]
    columns = [*search.space, "score", "diverged", "dropped", "digest", "seconds"]
    table = pd.DataFrame(rows, columns=columns)
    for name, values in search.space.items():
        if not isinstance(values, Range) and None in values:  # among numbers it would become NaN
            table[name] = pd.Series([row[name] for row in rows], dtype=object)
    table = table.drop_duplicates(subset=list(search.space), keep="first")
    return TuningResult(search, table.sort_values("score", kind="stable").reset_index(drop=True))


def _study(search: Search, url: str) -> Any:
    """The search's study in the storage, made if it is not there; halving is Optuna's, with a factor of four."""
    optuna = _optuna()
    storage = _open(url)
    pruner = (
        optuna.pruners.SuccessiveHalvingPruner(min_resource=search.halve_from, reduction_factor=4)
        if search.halve_from
        else optuna.pruners.NopPruner()
    )
    return optuna.create_study(storage=storage, study_name=search.name, pruner=pruner, load_if_exists=True)


def _optuna() -> Any:
    """Optuna itself, imported when a search begins: it is an extra, and says much unless it is told not to."""
    try:
        import optuna
    except ImportError as error:
        raise ConfigurationError("tuning needs optuna: pip install 'fedsps[tune]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _open(url: str) -> Any:
    """The storage at this URL, in five tries: processes that begin together may make its tables at the same time.

    Raises:
        ConfigurationError: with the database's own reason, and with the password in the URL hidden.
    """
    optuna = _optuna()
    waits = {"connect_args": {"timeout": 100}} if url.startswith("sqlite") else None
    for _ in range(5):
        try:
            return optuna.storages.RDBStorage(url, engine_kwargs=waits)
        except Exception as error:  # of the database, its driver, or the URL
            problem = error
            if not any(words in str(error).lower() for words in ("already exists", "unique constraint")):
                break  # else another process makes the same tables at this moment
            time.sleep(1)
    hidden = re.sub(r":[^:@/]*@", ":***@", url)
    reason = str(problem).strip().partition("\n")[0]
    raise ConfigurationError(
        f"the storage {hidden} cannot be opened: {reason}. It is an SQLAlchemy URL, "
        "such as sqlite:///tune.db or postgresql://user:password@host/base, and the database's driver must be installed"
    ) from problem
