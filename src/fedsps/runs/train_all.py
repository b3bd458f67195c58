"""Several algorithms and seeds on a model and data of one's own; in sweeps where they differ in numbers alone."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from torch import nn

from fedsps.core.algorithm import Algorithm
from fedsps.core.plan import Plan
from fedsps.core.stacking import can_stack
from fedsps.data.clients import ClientData
from fedsps.engine.history import Row
from fedsps.engine.metrics import Metric
from fedsps.engine.ranks import world_size
from fedsps.engine.setup import Setup, suited
from fedsps.engine.sweep import Sweep, bytes_of_setting
from fedsps.engine.trial import Engine
from fedsps.model.device import placed
from fedsps.model.logistic import network_of
from fedsps.model.network import Loss
from fedsps.runs.result import Result
from fedsps.runs.scores import start_facts
from fedsps.runs.sweep import MEMORY, Watch, by_client_of, ready, swept_result
from fedsps.runs.train import described, train


def train_all(
    model: nn.Module,
    clients: ClientData,
    algorithms: Sequence[Algorithm],
    plans: Sequence[Plan],
    *,
    test: ClientData | None,
    loss: Loss,
    metrics: Mapping[str, Metric] = MappingProxyType({}),
    engine: Engine = "auto",
    exact: bool = False,
    watch: Watch | None = None,
) -> list[Result]:
    """Train each algorithm by each plan; all start from the model's parameters.

    Args:
        model: any module.
        clients: their samples.
        algorithms: what to train with.
        plans: which differ in their seed alone.
        test: held-out data, if there is any.
        loss: of outputs and targets.
        metrics: of the test data, beside loss and accuracy; with some there are no sweeps.
        engine: see `train`; other than "auto" there are no sweeps.
        exact: each run by itself.
        watch: called with the number of a run and a row of it.

    Returns:
        The results, plan after plan of the first algorithm, then those of the second, ...
    """
    runs = [(algorithm, plan) for algorithm in algorithms for plan in plans]
    results: dict[int, Result] = {}
    may_sweep = engine == "auto" and not (exact or metrics or plans[0].watches) and world_size() == 1
    for group in _alike(runs) if may_sweep else ():
        results |= _together(model, clients, runs, group, test, loss, watch)
    for number, (algorithm, plan) in enumerate(runs):
        if number not in results:
            told = None if watch is None else _numbered(watch, number)
            results[number] = train(
                model,
                clients,
                algorithm=algorithm,
                test=test,
                loss=loss,
                metrics=metrics,
                engine=engine,
                callback=told,
                **vars(plan),
            )
    return [results[number] for number in range(len(runs))]


def _alike(runs: Sequence[tuple[Algorithm, Plan]]) -> list[list[int]]:
    """Which of them can be computed together, by their numbers; a group has at least two.

    With absences those of one seed alone: of other seeds other clients are missing, and other numbers of them.
    """
    groups: list[list[int]] = []
    for number, (algorithm, plan) in enumerate(runs):
        for group in groups:
            first, other = runs[group[0]]
            if can_stack([first, algorithm]) and (plan.absences is None or plan == other):
                group.append(number)
                break
        else:
            groups.append([number])
    return [group for group in groups if len(group) > 1]


def _together(
    model: nn.Module,
    clients: ClientData,
    runs: Sequence[tuple[Algorithm, Plan]],
    group: Sequence[int],
    test: ClientData | None,
    loss: Loss,
    watch: Watch | None,
) -> dict[int, Result]:
    """The results of a group by number, as many in one pass as fit into memory; none if the model cannot be swept."""
    first, plan = runs[group[0]]
    network = network_of(placed(model, plan.device), placed(loss, plan.device))
    data = suited(network, clients)
    setup = ready(Setup(plan, network, data, first))
    if setup is None:
        return {}
    held = [] if test is None else [test.pooled.to(network.x, network.accepted)]
    results: dict[int, Result] = {}
    at_once = max(1, MEMORY // bytes_of_setting(setup))
    for start in range(0, len(group), at_once):
        numbers = group[start : start + at_once]
        plans = list(dict.fromkeys(runs[number][1] for number in numbers))

        def tell(_: int, rows: Mapping[int, Row], numbers: Sequence[int] = numbers) -> set[int]:
            if watch is not None:
                for place, row in rows.items():
                    watch(numbers[place], row)
            return set()

        sweep = Sweep(
            [replace(setup, plan=one) for one in plans],
            [runs[number][0] for number in numbers],
            [plans.index(runs[number][1]) for number in numbers],
            held * len(plans),
        )
        for number, one in zip(numbers, sweep.run(tell), strict=True):
            spec, facts = described(model, clients, *runs[number], loss, [clients] if test is None else [clients, test])
            made = swept_result(spec, one, setup, facts | start_facts(setup), len(numbers))
            results[number] = replace(made, clients=by_client_of(one, setup, test))
    return results


def _numbered(watch: Watch, number: int) -> Callable[[Row], None]:
    """A callback that knows its run's number; a lambda in the loop would see the loop's last one."""
    return lambda row: watch(number, row)
