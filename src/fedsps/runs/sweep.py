"""Many runs in one pass: specs that differ in numbers of their algorithm alone, each with its own run folder.

A run that came from a sweep equals its single run up to rounding and says so in its provenance (`sweep`: how many
settings were computed with it). Asked for by itself it is taken as it is, unless `exact` is asked for too.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedsps.core.stacking import can_stack
from fedsps.engine import stacked
from fedsps.engine.history import Row
from fedsps.engine.setup import Setup
from fedsps.engine.sweep import Sweep, Swept, bytes_of_setting
from fedsps.engine.trial import prepare
from fedsps.model.logistic import network_of
from fedsps.model.network import Network
from fedsps.runs.checkpoint import NAME as CHECKPOINT
from fedsps.runs.result import Result, frame, provenance
from fedsps.runs.run import run
from fedsps.runs.spec import Spec

MEMORY = 2 * 2**30  # bytes that the settings of one sweep may take together
Watch = Callable[[int, Row], None]
"""The number of a spec in the list, and the row of its last round."""

Drop = Callable[[int, Mapping[int, Row]], set[int]]
"""The round and the rows by the number of the spec in, the numbers of those to be dropped out."""


def groups(specs: Sequence[Spec]) -> list[list[int]]:
    """Which specs can be computed together, by their numbers in the list; those that cannot are groups of one.

    >>> from fedsps import Spec
    >>> words = ["fedavg:client_stepsize=0.1", "fedsps", "fedavg:client_stepsize=1", "fedavg:client_stepsize=2"]
    >>> groups([Spec.of(word) for word in words])
    [[0, 2, 3], [1]]
    """
    kept: dict[str, list[int]] = {}
    for number, spec in enumerate(specs):
        content = spec.json()
        words = {key: value for key, value in content["parameters"].items() if not isinstance(value, float)}
        key = json.dumps([content | {"parameters": words}, sorted(content["parameters"])], sort_keys=True)
        kept.setdefault(key, []).append(number)
    together: list[list[int]] = []
    for numbers in kept.values():
        alike = len(numbers) == 1 or can_stack([specs[number].named.build() for number in numbers])
        together += [numbers] if alike else [[number] for number in numbers]
    return sorted(together)


def run_sweep(
    specs: Sequence[Spec],
    runs: str | Path = "runs",
    *,
    watch: Watch | None = None,
    drop: Drop | None = None,
) -> list[Result | None]:
    """Train specs of one group in one pass and write their run folders.

    Args:
        specs: a group of `groups`, not yet done.
        runs: the folder of run folders.
        watch: called after each evaluated round of each spec, with its number in the list.
        drop: called after each evaluated round; what it returns is dropped.

    Returns:
        The results in the order of the specs; None for those that were dropped.
    """
    first = specs[0]
    if len(specs) == 1:
        return [_alone(first, 0, runs, watch, drop)]
    assert first.task is not None, "specs of runs have a task"
    task = first.task.load(first.plan.seed, first.files.get("data"))
    network = network_of(task.model, task.loss)
    algorithms = [spec.named.build() for spec in specs]
    data = task.clients.to(network.x, network.accepted)
    test = None if task.test is None else task.test.to(network.x, network.accepted)
    setup = Setup(plan=first.plan, network=network, data=data, algorithm=algorithms[0])
    setup, collect = prepare(setup, "auto")
    if collect is not stacked.collect or setup.is_random or not network.can_sweep:
        return [_alone(spec, number, runs, watch, drop) for number, spec in enumerate(specs)]
    at_once = max(1, MEMORY // bytes_of_setting(setup))
    results: list[Result | None] = []
    for start in range(0, len(specs), at_once):
        some = range(start, min(start + at_once, len(specs)))

        def dropped(round: int, rows: Mapping[int, Row], start: int = start) -> set[int]:
            moved = {start + number: row for number, row in rows.items()}
            if watch is not None:
                for number, row in moved.items():
                    watch(number, row)
            return set() if drop is None else {number - start for number in drop(round, moved)}

        swept = Sweep(setup, [algorithms[number] for number in some], test).run(dropped)
        for number, one in zip(some, swept, strict=True):
            result = _result(specs[number], one, network, task.facts, len(some))
            results.append(result)
            if result is not None:
                folder = result.save(Path(runs) / specs[number].digest)
                (folder / CHECKPOINT).unlink(missing_ok=True)
    return results


def _alone(spec: Spec, number: int, runs: str | Path, watch: Watch | None, drop: Drop | None) -> Result | None:
    """One run by itself, which may be dropped too."""

    def after(row: Row) -> bool:
        if watch is not None:
            watch(number, row)
        return drop is not None and spec.plan.is_evaluated(row["round"]) and number in drop(row["round"], {number: row})

    result = run(spec, runs, callback=after)
    is_whole = len(result.history) == spec.plan.rounds or result.diverged_at is not None
    return result if is_whole else None


def _result(spec: Spec, swept: Swept, network: Network, facts: dict[str, Any], size: int) -> Result | None:
    if swept.dropped:
        return None
    return Result(
        model=network.module(swept.x, {}),
        history=frame(swept.rows),
        spec=spec,
        diverged_at=swept.diverged_at,
        data=facts,
        provenance=provenance() | {"sweep": size},
    )
