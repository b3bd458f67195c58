"""Several algorithms on one task: `fedsps.compare`, its table and its figure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import pandas as pd
import torch.nn.functional as F
from torch import nn

from fedsps.checks import count
from fedsps.core.algorithm import Algorithm
from fedsps.core.plan import Knobs, Plan, takes_plan
from fedsps.data.clients import ClientData, Samples, held_out
from fedsps.engine.history import Row
from fedsps.engine.trial import Engine
from fedsps.errors import ConfigurationError
from fedsps.methods.notation import Named, name_of, parse
from fedsps.model.network import Loss
from fedsps.report import plot
from fedsps.report.format import run_title
from fedsps.runs.parallel import run_all
from fedsps.runs.result import Result
from fedsps.runs.spec import Spec
from fedsps.runs.sweep import Watch
from fedsps.runs.train import train

HEADINGS = {
    "algorithm": "algorithm",
    "rounds": "rounds",
    "final_train_loss": "final\ntrain loss",
    "best_test_accuracy": "best test\naccuracy",
    "rounds_to_target": "rounds to\ntarget",
    "stepsize_mean": "mean\nstepsize",
    "seconds": "seconds",
}
"""The columns of the table, and what stands above them."""

TARGET_FACTOR = 1.1
"""Where no target is given, it is the best final train loss times this."""


@dataclass(frozen=True)
class Comparison:
    """Several algorithms' runs on the same data, batches and start.

    Attributes:
        results: each algorithm's runs by its label, one for each seed.
        table: a row an algorithm, means over its seeds.
        target: the loss that the column `rounds_to_target` speaks of.
        given: whether the caller chose the target.
    """

    results: Mapping[str, Sequence[Result]]
    table: pd.DataFrame
    target: float
    given: bool

    @property
    def note(self) -> str:
        """What the target is, in words."""
        if np.isnan(self.target):
            return "no target: nothing was evaluated"
        if self.given:
            return f"target loss: {self.target:.4g}, as given"
        return f"target loss: {self.target:.4g}, the best final train loss of these runs times {TARGET_FACTOR}"

    @property
    def title(self) -> str:
        """What was trained on, in one line."""
        runs = next(iter(self.results.values()))
        seeds = f", {len(runs)} seeds: mean, least and largest" if len(runs) > 1 else ""
        return run_title(runs[0]) + seeds

    def figure(self, path: str | Path | None = None) -> Any:
        """Loss, test accuracy and stepsize against rounds, as a matplotlib figure.

        Args:
            path: where it is written too (.png, .pdf, .svg), if it is given.
        """
        histories = {label: [run.history for run in runs] for label, runs in self.results.items()}
        names = {label: runs[0].spec.algorithm for label, runs in self.results.items()}
        if path is not None:
            plot.check(Path(path))
        return plot.comparison(histories, names, self.title, None if path is None else Path(path))


@takes_plan
def compare(
    algorithms: Sequence[str | Algorithm],
    *,
    spec: Spec | None = None,
    model: nn.Module | None = None,
    clients: Sequence[Samples] | ClientData | None = None,
    test: Samples | ClientData | None = None,
    loss: Loss = F.cross_entropy,
    seeds: int = 1,
    target: float | None = None,
    runs: str | Path = "runs",
    jobs: int = 1,
    fresh: bool = False,
    exact: bool = False,
    engine: Engine = "auto",
    watch: Watch | None = None,
    **plan: Unpack[Knobs],
) -> Comparison:
    """Train several algorithms on the same data, batches and start, over several seeds.

    Either on a task that a spec names: its runs are cached in their folders, and several can go at the same time. Or
    on a model and clients' data of your own, one run after another in this process.

    Args:
        algorithms: names as the command line writes them ("fedavg:client_stepsize=0.1/1" is two), or algorithms.
        spec: the task and the plan, made by `Spec.of`; whatever algorithm it names does not matter.
        model: any module, with `clients`; training starts from its parameters.
        clients: one `(inputs, targets)` pair or data set for each client.
        test: held-out data of your own.
        loss: of your own model.
        seeds: runs of each algorithm, with the plan's seed, the one after it, ...
        target: the loss of the column `rounds_to_target`; the best final train loss times 1.1 if not given.
        runs: the folder of run folders, with a spec.
        jobs: runs at the same time, in processes of one thread each; with a spec.
        fresh: train again even if a run is there already; with a spec.
        exact: each run by itself; else runs that differ in numbers alone are computed together, with the same numbers
            up to rounding.
        engine: see `train`.
        watch: called with the number of the run and the row of its last round.
        **plan: the fields of `Plan`; with a spec those that differ from its own.

    >>> import torch
    >>> clients = [(torch.randn(8, 2), torch.randint(2, (8,))) for _ in range(3)]
    >>> names = ["fedsps", "fedavg:client_stepsize=0.1/1"]
    >>> compared = compare(names, model=nn.Linear(2, 2), clients=clients, rounds=2)
    >>> list(compared.table["algorithm"])
    ['fedsps', 'fedavg client_stepsize=0.1', 'fedavg client_stepsize=1']
    """
    count("seeds", seeds)
    count("jobs", jobs)
    asked = Plan.of(**plan)
    if spec is not None and not isinstance(spec, Spec):
        raise ConfigurationError(f"spec must be made by Spec.of; got {spec!r}")
    chosen = chosen_algorithms(algorithms)
    if (spec is None) == (model is None and clients is None):
        raise ConfigurationError("compare takes either a spec, or a model and clients")
    if spec is not None:
        if test is not None or loss is not F.cross_entropy:
            raise ConfigurationError("test and loss are for a model of your own: a spec has its own")
        for named in chosen:
            _check_known(named)
        specs = specs_of(list(chosen), replace(spec, plan=replace(spec.plan, **plan)), seeds)
        results = run_all(specs, runs, jobs=jobs, fresh=fresh, exact=exact, engine=engine, watch=watch)
    else:
        if model is None or clients is None:
            raise ConfigurationError("compare needs both a model and clients, or a spec")
        if jobs != 1:
            raise ConfigurationError("jobs is for a spec, whose data other processes can load: leave it out")
        if fresh or exact:
            raise ConfigurationError("fresh and exact are for a spec, whose runs are kept: leave them out")
        data, held = ClientData.of(clients), None if test is None else held_out(test)
        results = []
        for algorithm in chosen.values():
            for number in range(seeds):
                results.append(
                    train(
                        model,
                        data,
                        algorithm=algorithm,
                        test=held,
                        loss=loss,
                        engine=engine,
                        callback=None if watch is None else _numbered(watch, len(results)),
                        **{**vars(asked), "seed": asked.seed + number},
                    )
                )
    by_label: dict[str, list[Result]] = {}
    for place, result in enumerate(results):
        named = list(chosen)[place // seeds]
        by_label.setdefault(named.label(*chosen), []).append(result)
    return comparison(by_label, target)


def chosen_algorithms(algorithms: Sequence[str | Algorithm]) -> dict[Named, Algorithm]:
    """The algorithms by name, each once, in the order in which they were named.

    >>> [named.label() for named in chosen_algorithms(["fedavg:client_stepsize=0.5/2", "fedsps", "fedsps"])]
    ['fedavg client_stepsize=0.5', 'fedavg client_stepsize=2', 'fedsps']

    Raises:
        ConfigurationError: if there is none, or a name is unknown.
    """
    chosen: dict[Named, Algorithm] = {}
    for algorithm in [algorithms] if isinstance(algorithms, str | Algorithm) else algorithms:
        if isinstance(algorithm, Algorithm):
            named = name_of(algorithm)
            if chosen.setdefault(named, algorithm) != algorithm:
                raise ConfigurationError(
                    f"two different algorithms are called {named.name}: give one of the classes another name"
                )
        else:
            chosen |= {named: named.build() for named in parse(algorithm) if named not in chosen}
    if not chosen:
        raise ConfigurationError("nothing to compare: name at least one algorithm")
    return chosen


def _check_known(named: Named) -> None:
    """Refuse a class that only this process knows: a run from a spec is built by its name, elsewhere and later."""
    try:
        named.build()
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{named.name} cannot be made by its name ({error}): write a class of your own as 'file.py:{named.name}', "
            "or compare with model and clients"
        ) from error


def specs_of(chosen: Sequence[Named], spec: Spec, seeds: int) -> list[Spec]:
    """One spec for each algorithm and seed, algorithm after algorithm.

    Args:
        chosen: the algorithms.
        spec: the task and the plan; its seed is the first one.
        seeds: how many for each algorithm: seed, seed + 1, ...
    """
    if spec.task is None:
        raise ConfigurationError("the spec has no task: make specs by Spec.of, or give a model and clients")
    settings = vars(spec.plan) | vars(spec.task)
    seed = spec.plan.seed
    return [Spec.of(named, **(settings | {"seed": seed + number})) for named in chosen for number in range(seeds)]


def _numbered(watch: Watch, number: int) -> Callable[[Row], None]:
    """A callback that knows its run's number; a lambda in the loop would see the loop's last one."""
    return lambda row: watch(number, row)


def comparison(results: Mapping[str, Sequence[Result]], target: float | None = None) -> Comparison:
    """The table of runs that are there.

    Where a seed diverged, the mean final loss is infinite: the other seeds do not hide it.

    Args:
        results: each algorithm's runs over the seeds, by label.
        target: the loss of the column `rounds_to_target`; the best final train loss times 1.1 if not given.
    """
    finals = {name: float(np.mean([final_loss(run) for run in runs])) for name, runs in results.items()}
    finite = [value for value in finals.values() if np.isfinite(value)]
    aim = target if target is not None else (TARGET_FACTOR * min(finite) if finite else np.nan)
    rows = [
        {
            "algorithm": name,
            "rounds": int(np.mean([len(run.history) for run in runs])),
            "final_train_loss": finals[name],
            "best_test_accuracy": float(np.mean([run.history["test_accuracy"].max() for run in runs])),
            "rounds_to_target": float(np.mean([rounds_to(run, aim) for run in runs])),
            "stepsize_mean": float(np.mean([run.history["stepsize_mean"].mean() for run in runs])),
            "seconds": float(np.mean([run.history["seconds"].sum() for run in runs])),
            "diverged": sum(run.diverged_at is not None for run in runs),
        }
        for name, runs in results.items()
    ]
    return Comparison(results, pd.DataFrame(rows), float(aim), target is not None)


def final_loss(run: Result) -> float:
    """The last evaluated training loss; infinite if the run diverged, NaN if it was never evaluated."""
    if run.diverged_at is not None:
        return np.inf
    evaluated = run.history["train_loss"].dropna()
    return float(evaluated.iloc[-1]) if len(evaluated) else np.nan


def rounds_to(run: Result, target: float) -> float:
    """The first round whose training loss is at most the target; infinite if there is none."""
    reached = run.history.loc[run.history["train_loss"] <= target, "round"]
    return float(reached.iloc[0]) if len(reached) else np.inf
