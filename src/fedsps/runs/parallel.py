"""Many runs: one after another in this process, or in several processes of one thread each.

A run is its spec in and its folder out, so processes need not share anything: each writes the folders of its own runs,
and the results are read from there. How many processes there are changes no number.
"""

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from itertools import pairwise
from multiprocessing.managers import SyncManager
from pathlib import Path
from queue import Empty
from typing import Any

import torch

from fedsps.checks import count
from fedsps.engine.history import Row
from fedsps.engine.ranks import only_one_process
from fedsps.engine.trial import Engine
from fedsps.engine.workers import share_cores
from fedsps.errors import FailedRunsError, Failure
from fedsps.runs.checkpoint import forget
from fedsps.runs.failures import attempt
from fedsps.runs.result import SUMMARY, Result
from fedsps.runs.run import is_done, run
from fedsps.runs.spec import Spec
from fedsps.runs.sweep import Watch, groups, run_sweep

LEAST_SWEEP = 4  # runs: fewer are not worth a process of their own
SPAWN = multiprocessing.get_context("spawn")  # a forked torch can hang
Submit = Callable[..., Future[Any]]


def run_all(
    specs: Sequence[Spec],
    runs: str | Path = "runs",
    *,
    jobs: int = 1,
    fresh: bool = False,
    exact: bool = False,
    engine: Engine = "auto",
    watch: Watch | None = None,
) -> list[Result]:
    """The results of the specs, in their order. Finished runs are read, interrupted ones go on.

    Runs that differ in numbers of their algorithm and in seeds alone are computed together, in sweeps.

    Args:
        specs: what is asked.
        runs: the folder of run folders.
        jobs: runs, or sweeps, at the same time, in processes of one thread each.
        fresh: train again, whatever is there.
        exact: no sweeps, and none of their results: each run by itself.
        engine: of single runs; other than "auto" there are no sweeps.
        watch: called with the number of a spec and the row of its last round.

    Raises:
        FailedRunsError: when all others are done, if some failed; what would refuse them all is raised at once.
    """
    only_one_process("a comparison of several runs", "start it without torchrun, with jobs for several processes")
    count("jobs", jobs)
    alone = exact or engine != "auto"
    todo = [number for number, spec in enumerate(specs) if fresh or not is_done(spec, runs, exact=alone)]
    together = [[number] for number in todo] if alone else portions(specs, todo, jobs)
    how = (runs, fresh, alone, engine)
    failed: dict[int, Failure] = {}
    if jobs == 1 or len(together) <= 1:
        for numbers in together:
            failed |= _attempt_portion(specs, *how, numbers, watch)
        return _results(specs, runs, alone, failed)
    manager = SyncManager(ctx=SPAWN)
    manager.start(_end_with_parent)
    with manager, workers(jobs) as submit:
        rows = manager.Queue()
        waiting = {submit(_work, specs, *how, numbers, rows if watch else None) for numbers in together}
        while waiting:
            done, waiting = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
            _forward(rows, watch)
            for future in done:
                failed |= future.result()  # raises what the worker raised
    return _results(specs, runs, alone, failed)


def _results(specs: Sequence[Spec], runs: str | Path, exact: bool, failed: dict[int, Failure]) -> list[Result]:
    """What lies in the run folders."""
    results = [None if number in failed else run(spec, runs, exact=exact) for number, spec in enumerate(specs)]
    if failed:
        raise FailedRunsError([failed[number] for number in sorted(failed)], results)
    return [result for result in results if result is not None]


def portions(specs: Sequence[Spec], todo: Sequence[int], jobs: int) -> list[list[int]]:
    """Which of the specs that are to be run go together, by their numbers; the jobs share a sweep."""
    shares = []
    for group in groups([specs[number] for number in todo]):
        numbers = [todo[place] for place in group]
        parts = min(jobs, -(-len(numbers) // LEAST_SWEEP))
        cuts = [len(numbers) * part // parts for part in range(parts + 1)]
        shares += [numbers[start:stop] for start, stop in pairwise(cuts)]
    return shares


def _attempt_portion(
    specs: Sequence[Spec],
    runs: str | Path,
    fresh: bool,
    exact: bool,
    engine: Engine,
    numbers: Sequence[int],
    watch: Watch | None,
) -> dict[int, Failure]:
    """One run, or one sweep, of these specs by their numbers; those that failed."""

    def work(some: list[int]) -> None:
        again = fresh and len(some) == len(numbers)  # a part is tried after the whole, which may have finished runs
        left = [number for number in some if again or not is_done(specs[number], runs, exact)]
        if left:
            _run_portion([specs[number] for number in left], runs, again, exact, engine, _renumbered(watch, left))

    return attempt(specs, runs, work, numbers)


def _run_portion(
    specs: Sequence[Spec], runs: str | Path, fresh: bool, exact: bool, engine: Engine, watch: Watch | None
) -> None:
    """One run, or one sweep; the results are on disk."""
    if len(specs) == 1:
        callback = None if watch is None else lambda row: watch(0, row)
        run(specs[0], runs, fresh=fresh, exact=exact, engine=engine, callback=callback)
        return
    for spec in specs if fresh else ():
        (Path(runs) / spec.digest / SUMMARY).unlink(missing_ok=True)
        forget(Path(runs) / spec.digest)
    run_sweep(specs, runs, watch=watch)


@contextmanager
def workers(jobs: int) -> Iterator[Submit]:
    """A way to run functions in `jobs` processes of one torch thread each, or in this one if `jobs` is 1.

    Behind an error or Ctrl-C nothing is left running, nor where this process is killed. Functions and arguments are
    pickled, so that functions must be those of a module.

    >>> with workers(1) as submit:
    ...     submit(max, 3, 5).result()
    5
    """
    if jobs == 1:
        yield _run_here
        return
    pool = ProcessPoolExecutor(jobs, SPAWN, _start_worker, (jobs,))
    try:
        yield pool.submit
    except BaseException:
        for process in list((pool._processes or {}).values()):
            process.terminate()
        pool.shutdown(wait=True, cancel_futures=True)
        raise
    pool.shutdown()


def _start_worker(jobs: int) -> None:
    """One thread each: processes with as many threads as there are cores would wait for one another."""
    torch.set_num_threads(1)
    share_cores(jobs)
    _end_with_parent()


def _end_with_parent() -> None:
    """Let this process end when the one that started it is gone; a killed one cannot say so."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _run_here(function: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """As a pool's `submit`, but at once and in this process: an error is raised by the call itself."""
    future: Future[Any] = Future()
    future.set_result(function(*arguments))
    return future


def _work(
    specs: Sequence[Spec], runs: str | Path, fresh: bool, exact: bool, engine: Engine, numbers: Sequence[int], rows: Any
) -> dict[int, Failure]:
    """A portion in a worker; it tells of its rows a few times a second."""
    last = dict.fromkeys(numbers, 0.0)

    def send(number: int, row: Row) -> None:
        if time.monotonic() - last[number] > 0.2:
            last[number] = time.monotonic()
            rows.put((number, dict(row)))  # the numbers alone: the run that they are of stays here

    return _attempt_portion(specs, runs, fresh, exact, engine, numbers, None if rows is None else send)


def _renumbered(watch: Watch | None, numbers: Sequence[int]) -> Watch | None:
    return None if watch is None else lambda place, row: watch(numbers[place], row)


def _forward(rows: Any, watch: Watch | None) -> None:
    """Hand over all rows that have come in so far, without waiting for more."""
    while watch is not None:
        try:
            watch(*rows.get_nowait())
        except Empty:
            return
