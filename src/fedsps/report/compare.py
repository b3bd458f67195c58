"""Several algorithms on one task: `fedsps.compare`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Unpack, get_args

import torch.nn.functional as F
from torch import nn

from fedsps.checks import choice, count
from fedsps.core.algorithm import Algorithm
from fedsps.core.plan import Knobs, Plan, takes_plan
from fedsps.data.clients import ClientData, Samples
from fedsps.engine.history import COLUMNS
from fedsps.engine.metrics import METRICS, Metric, named_metrics
from fedsps.engine.trial import Engine
from fedsps.errors import ConfigurationError, FailedRunsError, Failure, unknown
from fedsps.methods.notation import Named, name_of, parse
from fedsps.model.losses import chosen_loss
from fedsps.model.network import Loss
from fedsps.report.comparison import METRIC, Comparison, comparison
from fedsps.report.statistics import Test
from fedsps.runs.parallel import run_all
from fedsps.runs.result import Result
from fedsps.runs.spec import Spec
from fedsps.runs.sweep import Watch
from fedsps.runs.train import divided
from fedsps.runs.train_all import train_all


@takes_plan
def compare(
    algorithms: Sequence[str | Algorithm],
    *,
    spec: Spec | None = None,
    model: nn.Module | None = None,
    clients: Sequence[Samples] | ClientData | None = None,
    test: Samples | Sequence[Samples] | Mapping[str, Samples] | ClientData | float | None = None,
    loss: Loss | str = F.cross_entropy,
    seeds: int = 1,
    target: float | None = None,
    metrics: str | Metric | Sequence[str | Metric] | Mapping[str, Metric] = (),
    metric: str = METRIC,
    statistic: Test = "t",
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
    on a model and clients' data of your own, in this process.

    Args:
        algorithms: names as the command line writes them ("fedavg:client_stepsize=0.1/1" is two), or algorithms.
        spec: the task and the plan, made by `Spec.of`; whatever algorithm it names does not matter.
        model: any module, with `clients`; training starts from its parameters.
        clients: one `(inputs, targets)` pair or data set for each client.
        test: held-out data of your own, or the share of each client's samples that is held out; see `train`.
        loss: of your own model.
        seeds: runs of each algorithm, with the plan's seed, the one after it, ...
        target: the loss of the column `rounds_to_target`; the best final train loss times 1.1 if not given.
        metrics: of the test data of your own, see `train`.
        metric: the column of the history whose final and best values the table has.
        statistic: the paired test over seeds against the best algorithm, "t" or "wilcoxon"; see
            `fedsps.report.statistics`.
        runs: the folder of run folders, with a spec.
        jobs: runs at the same time, in processes of one thread each; with a spec.
        fresh: train again even if a run is there already; with a spec.
        exact: each run by itself; else runs that differ in numbers and seeds alone are computed together, with the
            same numbers up to rounding.
        engine: see `train`.
        watch: called with the number of the run and the row of its last round.
        **plan: the fields of `Plan`; with a spec those that differ from its own.

    Raises:
        FailedRunsError: with a spec, if some runs failed; the others are done, and `finished` is the comparison of the
            algorithms of which none failed.

    >>> import torch
    >>> clients = [(torch.randn(8, 2), torch.randint(2, (8,))) for _ in range(3)]
    >>> names = ["fedsps", "fedavg:client_stepsize=0.1/1"]
    >>> compared = compare(names, model=nn.Linear(2, 2), clients=clients, rounds=2)
    >>> list(compared.table["algorithm"])
    ['fedsps', 'fedavg client_stepsize=0.1', 'fedavg client_stepsize=1']
    """
    count("seeds", seeds)
    count("jobs", jobs)
    choice("statistic", statistic, get_args(Test))
    asked = Plan.of(**plan)
    if spec is not None and not isinstance(spec, Spec):
        raise ConfigurationError(f"spec must be made by Spec.of; got {spec!r}")
    chosen = chosen_algorithms(algorithms)
    if (spec is None) == (model is None and clients is None):
        raise ConfigurationError("compare takes either a spec, or a model and clients")
    failures: Sequence[Failure] = ()
    if spec is not None:
        if test is not None or loss is not F.cross_entropy or metrics:
            raise ConfigurationError("test, loss and metrics are for a model of your own: a spec has its own")
        if spec.task is not None:
            _check_metric(metric, named_metrics(spec.task.metrics), bool(spec.task.validation))
        for named in chosen:
            _check_known(named)
        specs = specs_of(list(chosen), replace(spec, plan=replace(spec.plan, **plan)), seeds)
        try:
            results: Sequence[Result | None] = run_all(
                specs, runs, jobs=jobs, fresh=fresh, exact=exact, engine=engine, watch=watch
            )
        except FailedRunsError as error:
            results, failures = error.finished, error.failures
    else:
        if model is None or clients is None:
            raise ConfigurationError("compare needs both a model and clients, or a spec")
        if jobs != 1:
            raise ConfigurationError("jobs is for a spec, whose data other processes can load: leave it out")
        if fresh:
            raise ConfigurationError("fresh is for a spec, whose runs are kept: leave it out")
        data, held = divided(ClientData.of(clients), test, asked.seed, "test")
        plans = [replace(asked, seed=asked.seed + number) for number in range(seeds)]
        own = list(chosen.values())
        wanted = named_metrics(metrics)
        _check_metric(metric, wanted, validation=False)
        results = train_all(
            model,
            data,
            own,
            plans,
            test=held,
            loss=chosen_loss(loss),
            metrics=wanted,
            engine=engine,
            exact=exact,
            watch=watch,
        )
    by_label: dict[str, list[Result]] = {}
    for number, named in enumerate(chosen):
        own_runs = [result for result in results[number * seeds : (number + 1) * seeds] if result is not None]
        if len(own_runs) == seeds:  # tests over the seeds are paired
            by_label[named.label(*chosen)] = own_runs
    if failures:
        finished = comparison(by_label, target, metric, statistic) if by_label else None
        raise FailedRunsError(failures, finished, " without fresh=True" if fresh else "")
    return comparison(by_label, target, metric, statistic)


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


def _check_metric(metric: str, names: Iterable[str], validation: bool) -> None:
    """Refuse a column that no run will have, before any is trained.

    Args:
        metric: the column.
        names: of the runs' metrics.
        validation: whether they have validation data.
    """
    parts = ("test", "validation") if validation else ("test",)
    known = [*COLUMNS, *(f"{part}_{name}" for part in parts for name in ("loss", "accuracy", *names))]
    name = metric.removeprefix("test_").removeprefix("validation_")
    if metric not in known and name in METRICS and name not in names:
        raise ConfigurationError(f"no run would have {metric!r}: add {name!r} to metrics")
    if metric not in known:
        raise unknown("metric", metric, known)


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
