"""Search for the best parameters of an algorithm, by a grid or a Bayesian search. The only file that knows Optuna.

The winner has the lowest mean `train_loss` over the last tenth of the rounds, on a seed that no figure reports.
Trials live in a storage (SQLite by default, any Optuna URL for several machines), runs in their folders: an interrupted
search goes on where it stopped.
"""

import hashlib
import itertools
import json
import multiprocessing
import re
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch

from fedsps import catalogue
from fedsps.catalogue import Named
from fedsps.errors import ConfigurationError
from fedsps.result import Result
from fedsps.run import run
from fedsps.session import Row
from fedsps.spec import Spec

TUNING_SEED = 1000
HEARTBEAT = 10  # seconds
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
    """Any value from `low` to `high`, sampled on a logarithmic scale; for the Bayesian search."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 < self.low < self.high:
            raise ConfigurationError(f"a range goes from a number above 0 to a larger one; got {self.low}..{self.high}")


Space = dict[str, tuple[Any, ...] | Range]


@dataclass(frozen=True)
class Search:
    """What is searched: the run that stays the same, and the parameters that vary."""

    spec: Spec
    space: Space
    sampler: Sampler = "grid"
    trials: int = 50  # of the Bayesian search; a grid has its own number
    halve_from: int = 0  # at this round, four times it, ... drop what is not in the best quarter; 0: never

    def __post_init__(self) -> None:
        if not self.space:
            raise ConfigurationError(f"nothing to search: give {self.spec.algorithm} several values of a parameter")
        if self.sampler == "grid" and any(isinstance(values, Range) for values in self.space.values()):
            raise ConfigurationError("a grid needs values, a/b/c; ranges, a..b, are for --sampler tpe")

    @property
    def size(self) -> int:
        """The number of trials."""
        sizes = [len(values) for values in self.space.values() if not isinstance(values, Range)]
        return prod(sizes) if self.sampler == "grid" else self.trials

    @property
    def name(self) -> str:
        """The name of the study."""
        text = json.dumps([self.spec.digest, self.sampler, self.halve_from, repr(self.space)])
        return f"{self.spec.algorithm}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def at(self, parameters: dict[str, Any]) -> Spec:
        """The run at one point of the space."""
        return replace(self.spec, parameters=self.spec.parameters | parameters)


@dataclass(frozen=True)
class Outcome:
    """What a search found: one row a trial, its parameters, its `score`, and whether it `diverged` or was `dropped`."""

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
        """The largest finite score."""
        return self._named(int(np.argmax(self._finished("max"))))

    def _finished(self, kind: str) -> np.ndarray[Any, Any]:
        scores = self.table["score"].to_numpy(float)
        usable = np.isfinite(scores) & ~self.table["dropped"].to_numpy(bool)
        if not usable.any():
            raise ConfigurationError(
                f"all {len(scores)} trials of {self.search.spec.algorithm} diverged: widen the search"
            )
        return np.where(usable, scores, np.inf if kind == "min" else -np.inf)

    @property
    def diverged(self) -> int:
        """How many trials diverged."""
        return int(self.table["diverged"].sum())


def parse(text: str) -> tuple[Named, Space]:
    """An algorithm and its space from one word: values a/b/c, ranges a..b; a bare name takes the paper's grid."""
    ranges: dict[str, Range] = {}

    def take(found: re.Match[str]) -> str:
        try:
            ranges[found["key"]] = Range(float(found["low"]), float(found["high"]))
        except ValueError as error:
            raise ConfigurationError(f"{found[0]!r} is not a range of numbers, like 0.001..1") from error
        return f"{found['key']}={found['low']}"

    variants = catalogue.parse(re.sub(r"(?P<key>\w+)=(?P<low>[^,/]+?)\.\.(?P<high>[^,/]+)", take, text))
    first = variants[0]
    space: Space = dict(ranges)
    for key in first.parameters:
        values = tuple(dict.fromkeys(variant.parameters[key] for variant in variants))
        if len(values) > 1:
            space[key] = values
    if not space and ":" not in text:
        space = {key: values for key, values in PAPER_GRID.items() if key in first.parameters}
    return first, space


def score(result: Result) -> float:
    """The mean `train_loss` over the last tenth of the rounds; infinite if the run diverged."""
    if result.diverged_at is not None:
        return np.inf
    table = result.history
    last = table["train_loss"][table["round"] > 0.9 * table["round"].max()].dropna()
    if last.empty:
        raise ConfigurationError("no round in the last tenth was evaluated: set evaluate_every to a tenth or less")
    return float(last.mean())


def tune(
    search: Search,
    runs: str | Path = "runs",
    *,
    storage: str | None = None,
    jobs: int = 1,
    progress: Progress | None = None,
) -> Outcome:
    """Search, in `jobs` processes of one thread each. What the storage already has is not run again."""
    Path(runs).mkdir(parents=True, exist_ok=True)
    url = storage or f"sqlite:///{Path(runs).resolve() / 'tune.db'}"
    study = _study(search, url)
    if search.sampler == "grid":
        names = list(search.space)
        for values in itertools.product(*search.space.values()):  # type: ignore[arg-type]
            study.enqueue_trial(dict(zip(names, values, strict=True)), skip_if_exists=True)
    if jobs == 1:
        _work(search, str(runs), url, progress)
    else:
        context = multiprocessing.get_context("spawn")
        workers = [context.Process(target=_work, args=(search, str(runs), url, None)) for _ in range(jobs)]
        for worker in workers:
            worker.start()
        try:
            while any(worker.is_alive() for worker in workers):
                time.sleep(0.5)
                if progress is not None:
                    progress(_finished(study), search.size)
        finally:
            for worker in workers:
                worker.terminate() if worker.is_alive() else worker.join()
        if any(worker.exitcode for worker in workers):
            raise ConfigurationError("a trial failed, see above; the same command goes on once the cause is mended")
    return outcome(search, url)


def outcome(search: Search, url: str) -> Outcome:
    """The table of a study."""
    from optuna.trial import TrialState

    rows = [
        dict(trial.params)
        | {
            "score": trial.value if trial.state == TrialState.COMPLETE else trial.user_attrs.get("score", np.nan),
            "diverged": trial.user_attrs.get("diverged", False),
            "dropped": trial.state == TrialState.PRUNED,
            "digest": trial.user_attrs.get("digest"),
        }
        for trial in _study(search, url).get_trials(deepcopy=False)
        if trial.state in (TrialState.COMPLETE, TrialState.PRUNED)
    ]
    table = pd.DataFrame(rows).drop_duplicates(subset=list(search.space), keep="first")
    return Outcome(search, table.sort_values("score", kind="stable").reset_index(drop=True))


def _study(search: Search, url: str) -> Any:
    try:
        import optuna
    except ImportError as error:
        raise ConfigurationError("tuning needs optuna: pip install 'fedsps[tune]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the heartbeat is marked as experimental
        storage = optuna.storages.RDBStorage(
            url,
            engine_kwargs={"connect_args": {"timeout": 100}} if url.startswith("sqlite") else None,
            heartbeat_interval=HEARTBEAT,
            grace_period=3 * HEARTBEAT,
            heartbeat_stale_trial_callback=optuna.storages.RetryHeartbeatStaleTrialCallback(),
        )
        grid = {name: list(values) for name, values in search.space.items() if not isinstance(values, Range)}
        sampler = (
            optuna.samplers.GridSampler(grid)
            if search.sampler == "grid"
            else optuna.samplers.TPESampler(seed=TUNING_SEED)
        )
        pruner = (
            optuna.pruners.SuccessiveHalvingPruner(min_resource=search.halve_from, reduction_factor=4)
            if search.halve_from
            else optuna.pruners.NopPruner()
        )
        return optuna.create_study(
            storage=storage, study_name=search.name, sampler=sampler, pruner=pruner, load_if_exists=True
        )


def _finished(study: Any) -> int:
    return sum(trial.state.is_finished() for trial in study.get_trials(deepcopy=False))


def _work(search: Search, runs: str, url: str, progress: Progress | None) -> None:
    """Take trials until none is left; wait for those of a worker that may have died."""
    import optuna
    from optuna.trial import TrialState

    torch.set_num_threads(1)
    study = _study(search, url)
    while True:
        states = [trial.state for trial in study.get_trials(deepcopy=False)]
        if TrialState.WAITING in states or (search.sampler == "tpe" and len(states) < search.trials):
            study.optimize(lambda trial: _trial(search, runs, trial), n_trials=1)
        elif TrialState.RUNNING in states:
            time.sleep(2)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # marked as experimental
                optuna.storages.fail_stale_trials(study)
        else:
            return
        if progress is not None:
            progress(_finished(study), search.size)


def _trial(search: Search, runs: str, trial: Any) -> float:
    import optuna

    point = {
        name: trial.suggest_float(name, values.low, values.high, log=True)
        if isinstance(values, Range)
        else trial.suggest_categorical(name, list(values))
        for name, values in search.space.items()
    }
    spec = search.at(point)
    trial.set_user_attr("digest", spec.digest)

    def report(row: Row) -> bool:
        if not search.halve_from or not np.isfinite(row["train_loss"]):
            return False
        trial.report(row["train_loss"], row["round"])
        trial.set_user_attr("score", row["train_loss"])
        return bool(trial.should_prune())

    result = run(spec, runs, callback=report)
    if len(result.history) < spec.rounds and result.diverged_at is None:
        raise optuna.TrialPruned
    trial.set_user_attr("diverged", result.diverged_at is not None)
    return score(result)
