"""Many runs in one pass: specs that differ in numbers of their algorithm and in seeds alone, each with its run folder.

A run that came from a sweep equals its single run up to rounding and says so in its provenance (`sweep`: how many
runs were computed together). Asked for by itself it is taken as it is, unless `exact` is asked for too.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from fedsps.core.stacking import can_stack
from fedsps.core.vectors import bytes_of
from fedsps.data.clients import ClientData
from fedsps.engine import stacked
from fedsps.engine.history import Row
from fedsps.engine.setup import Setup, suited
from fedsps.engine.sweep import Sweep, Swept, bytes_of_setting
from fedsps.engine.trial import prepare
from fedsps.model.device import placed
from fedsps.model.logistic import network_of
from fedsps.model.network import kind_of_outputs
from fedsps.runs.checkpoint import SWEEP, Checkpoint, fingerprint, forget, saved_rounds
from fedsps.runs.fingerprint import prints_of
from fedsps.runs.result import Result, frame, provenance
from fedsps.runs.run import run
from fedsps.runs.scores import client_table, start_facts
from fedsps.runs.spec import Spec
from fedsps.runs.task import Loaded

MEMORY = 2 * 2**30  # bytes that the runs of one sweep may take together, and the seeds' data
MOST = 200  # runs of one sweep: each holds a lock, and a process may have some hundred files open
Watch = Callable[[int, Row], None]
"""The number of a spec in the list, and the row of its last round."""

Drop = Callable[[int, Mapping[int, Row]], set[int]]
"""The round and the rows by the number of the spec in, the numbers of those to be dropped out."""


def groups(specs: Sequence[Spec]) -> list[list[int]]:
    """Which specs can be computed together, by their numbers in the list, seed after seed.

    Those that cannot are groups of one.

    >>> from fedsps import Spec
    >>> words = ["fedavg:client_stepsize=0.1", "fedsps", "fedavg:client_stepsize=1", "fedavg:client_stepsize=2"]
    >>> groups([Spec.of(word) for word in words])
    [[0, 2, 3], [1]]
    """
    kept: dict[str, list[int]] = {}
    for number, spec in enumerate(specs):
        content = spec.json()
        if spec.plan.absences is None:  # of other seeds other clients are missing, and other numbers of them
            content["plan"]["seed"] = None
        if spec.plan.watches or (spec.task is not None and (spec.task.validation or spec.task.metrics)):
            content["alone"] = number  # what a sweep does not evaluate
        words = {key: value for key, value in content["parameters"].items() if not isinstance(value, float)}
        key = json.dumps([content | {"parameters": words}, sorted(content["parameters"])], sort_keys=True)
        kept.setdefault(key, []).append(number)
    together: list[list[int]] = []
    for numbers in kept.values():
        alike = len(numbers) == 1 or can_stack([specs[number].named.build() for number in numbers])
        numbers.sort(key=lambda number: specs[number].plan.seed)
        together += [numbers] if alike else [[number] for number in numbers]
    return sorted(together)


def run_sweep(
    specs: Sequence[Spec],
    runs: str | Path = "runs",
    *,
    watch: Watch | None = None,
    drop: Drop | None = None,
    by_client: bool = True,
) -> list[Result | None]:
    """Train specs of one group in one pass and write their run folders.

    Each run is saved as it goes, unless some may be dropped; runs that were saved after the same round go on together.

    Args:
        specs: a group of `groups`, not yet done.
        runs: the folder of run folders.
        watch: called after each evaluated round of each spec, with its number in the list.
        drop: called after each evaluated round; what it returns is dropped.
        by_client: whether the results have their table by client, which takes one more evaluation of each.

    Returns:
        The results in the order of the specs; None for those that were dropped.
    """
    results: dict[int, Result | None] = {}
    while len(results) < len(specs):
        left = [number for number in range(len(specs)) if number not in results]
        if drop is None:
            come = {number: saved_rounds(Path(runs) / specs[number].digest) for number in left}
            left = [number for number in left if come[number] == come[left[0]]]
        sweep = _Together.of([specs[number] for number in left])
        if sweep is None:
            results[left[0]] = _alone(specs[left[0]], left[0], runs, watch, drop)
            continue

        def after(round: int, rows: Mapping[int, Row], left: list[int] = left) -> set[int]:
            of_specs = {left[number]: row for number, row in rows.items()}
            if watch is not None:
                for number, row in of_specs.items():
                    watch(number, row)
            unwanted = set() if drop is None else drop(round, of_specs)
            return {place for place, number in enumerate(left) if number in unwanted}

        found = sweep.run(after, None if drop is not None else Path(runs), by_client)
        for number, result in zip(left, found, strict=False):  # as many as fit into memory
            results[number] = result
            if result is not None:
                forget(result.save(Path(runs) / specs[number].digest))
    return [results[number] for number in range(len(specs))]


class _Together:
    """The first of some specs, as many as fit into memory, made ready to be computed together."""

    def __init__(self, specs: Sequence[Spec], loaded: Sequence[Loaded], setups: Sequence[Setup]) -> None:
        self.specs, self.loaded, self.setups = specs, loaded, setups
        self.seeds = [[setup.plan.seed for setup in setups].index(spec.plan.seed) for spec in specs]

    @classmethod
    def of(cls, specs: Sequence[Spec]) -> "_Together | None":
        """None if the first spec has to be run by itself."""
        if len(specs) == 1:
            return None
        loaded, asked = load_setup(specs[0])
        setup = ready(asked)
        if setup is None:
            return None
        some = specs[: max(1, min(MOST, MEMORY // bytes_of_setting(setup)))]
        most_seeds = max(1, MEMORY // bytes_of([setup.data.inputs]))
        seeds = {spec.plan.seed: (loaded, setup) for spec in specs[:1]}
        for number, spec in enumerate(some):
            if spec.plan.seed in seeds:
                continue
            other, made = load_setup(spec)
            made = replace(made, sample_bytes=setup.sample_bytes)
            if len(seeds) == most_seeds or not _are_alike(setup, made):
                some = some[:number]
                break
            seeds[spec.plan.seed] = other, made
        if len(some) == 1:
            return None
        return cls(some, [loaded for loaded, _ in seeds.values()], [setup for _, setup in seeds.values()])

    def run(self, drop: Drop, runs: Path | None, by_client: bool) -> list[Result | None]:
        """The results in the order of the specs; None for those that were dropped.

        Args:
            drop: called after each evaluated round.
            runs: the folder of run folders, where they are saved and found again; None: they are not.
            by_client: whether the results have their table by client.
        """
        like = self.setups[0].network
        tests = [one.test.pooled.to(like.x, like.accepted) for one in self.loaded if one.test is not None]
        algorithms = [spec.named.build() for spec in self.specs]
        sweep = Sweep(self.setups, algorithms, self.seeds, tests)
        savers = []
        for spec, algorithm, seed in zip(self.specs, algorithms, self.seeds, strict=True):
            if runs is not None:
                alone = replace(self.setups[seed], algorithm=algorithm)
                savers.append(Checkpoint(runs / spec.digest, fingerprint(alone), str(like.x.device), SWEEP))
        with ExitStack() as held:
            for saver in savers:
                held.enter_context(saver.held())
            saved = [found for saver in savers if (found := saver.load()) is not None]
            if len(saved) == len(self.specs):
                sweep.resume([state for state, _ in saved], [rows for _, rows in saved])
            ended = sweep.run(drop, savers)
        results: list[Result | None] = []
        facts = [
            {"outputs": kind_of_outputs(one.loss)} | one.facts | start_facts(setup)
            for one, setup in zip(self.loaded, self.setups, strict=True)
        ]
        for swept, spec, seed in zip(ended, self.specs, self.seeds, strict=True):
            if swept.dropped:
                results.append(None)
                continue
            setup, loaded = self.setups[seed], self.loaded[seed]
            made = swept_result(spec, swept, setup, facts[seed], len(self.specs))
            table = by_client_of(swept, setup, loaded.test) if by_client else None
            results.append(replace(made, columns=loaded.columns, clients=table))
        return results


def _are_alike(setup: Setup, other: Setup) -> bool:
    """Whether another seed has the same model but for its start, and as many clients."""
    if other.network.description != setup.network.description or other.data.clients != setup.data.clients:
        return False
    x, some = setup.network.x, setup.data.inputs[:2]  # a model may keep what it drew where nobody looks
    return torch.equal(setup.network.outputs(x, {}, some), other.network.outputs(x, {}, some))


def ready(setup: Setup) -> Setup | None:
    """The setup prepared for a sweep; None if runs of this model have to be computed one by one."""
    setup, collect = prepare(setup, "auto")
    alone = setup.is_random or setup.own_layers is not None
    may = collect is stacked.collect and setup.network.can_sweep and not alone
    return setup if may else None


def load_setup(spec: Spec) -> tuple[Loaded, Setup]:
    """The data and the model of a spec, and what a run of it goes by; what cannot work is refused."""
    assert spec.task is not None, "specs of runs have a task"
    loaded = spec.task.load(spec.plan.seed, spec.files.get("data"))
    network = network_of(placed(loaded.model, spec.plan.device), loaded.loss)
    data = suited(network, loaded.clients)
    given = [loaded.clients] if loaded.test is None else [loaded.clients, loaded.test]
    loaded = replace(loaded, facts=loaded.facts | prints_of(loaded.model, given, loaded.loss))
    return loaded, Setup(plan=spec.plan, network=network, data=data, algorithm=spec.named.build())


def _alone(spec: Spec, number: int, runs: str | Path, watch: Watch | None, drop: Drop | None) -> Result | None:
    """One run by itself, which may be dropped too."""

    def after(row: Row) -> bool:
        if watch is not None:
            watch(number, row)
        return drop is not None and spec.plan.is_evaluated(row["round"]) and number in drop(row["round"], {number: row})

    result = run(spec, runs, callback=after)
    return None if result.data["ended"] == "callback" else result


def swept_result(spec: Spec, swept: Swept, setup: Setup, facts: dict[str, Any], size: int) -> Result:
    """The result of one run of a sweep of so many; `setup` is that of its seed."""
    return Result(
        model=setup.network.module(swept.x, {}),
        history=frame(swept.rows),
        spec=spec,
        diverged_at=swept.diverged_at,
        data=facts | {"ended": "rounds" if swept.diverged_at is None else "diverged"},
        provenance=provenance() | {"sweep": size, "device": str(setup.network.x.device)},
    )


def by_client_of(swept: Swept, setup: Setup, test: ClientData | None) -> pd.DataFrame:
    """The table by client of one run of a sweep; held-out data of as many clients are told by client too."""
    network, parts = setup.network, {"train": setup.data}
    if test is not None and test.clients == setup.data.clients:
        parts["test"] = test.to(network.x, network.accepted)
    return client_table(network, swept.x, {}, parts, {}, swept.tally)
