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
from multiprocessing.managers import SyncManager
from pathlib import Path
from queue import Empty
from typing import Any

import torch

from fedsps.runs.result import Result
from fedsps.runs.run import run
from fedsps.engine.history import Row
from fedsps.engine.trial import Engine
from fedsps.runs.spec import Spec

SPAWN = multiprocessing.get_context("spawn")  # a forked torch can hang
Submit = Callable[..., Future[Any]]
Watch = Callable[[int, Row], None]  # the number of the spec in the list, and the row of its last round


def run_all(
    specs: Sequence[Spec],
    runs: str | Path = "runs",
    *,
    jobs: int = 1,
    fresh: bool = False,
    engine: Engine = "auto",
    watch: Watch | None = None,
) -> list[Result]:
    """The results of the specs, in their order. Finished runs are read, interrupted ones go on.

    Args:
        specs: made by `Spec.of`; with several jobs no two the same, as these would write one folder at the same time.
        runs: the folder of run folders.
        jobs: runs at the same time, in processes of one thread each; 1: here, with this process's threads.
        fresh: train again even if a run is there already.
        engine: see `train`.
        watch: called with the number of a spec in the list and the row of its last round. With several jobs that is at
            most five times a second for each run: rows in between are left out.

    Whatever the first run that fails raises is raised here. The others are stopped, and go on when they are asked for
    again.
    """
    if jobs == 1 or len(specs) == 1:
        return [
            run(spec, runs, fresh=fresh, engine=engine, callback=None if watch is None else _watched(watch, number))
            for number, spec in enumerate(specs)
        ]
    manager = SyncManager(ctx=SPAWN)
    manager.start(_end_with_parent)
    with manager, workers(jobs) as submit:
        rows = manager.Queue()
        waiting: dict[Future[Any], int] = {
            submit(_work, spec, runs, fresh, engine, number, rows if watch else None): number
            for number, spec in enumerate(specs)
        }
        while waiting:
            done, _ = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
            _forward(rows, watch)
            for future in done:
                future.result()  # raises what the worker raised
                del waiting[future]
    return [run(spec, runs) for spec in specs]


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
    pool = ProcessPoolExecutor(jobs, SPAWN, _start_worker)
    try:
        yield pool.submit
    except BaseException:
        for process in list((pool._processes or {}).values()):
            process.terminate()
        pool.shutdown(wait=True, cancel_futures=True)
        raise
    pool.shutdown()


def _start_worker() -> None:
    """One thread each: processes with as many threads as there are cores would wait for one another."""
    torch.set_num_threads(1)
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


def _work(spec: Spec, runs: str | Path, fresh: bool, engine: Engine, number: int, rows: Any) -> None:
    """One run in a worker; its result is on disk, and rows are sent five times a second at most."""
    last = 0.0

    def send(row: Row) -> None:
        nonlocal last
        if time.monotonic() - last > 0.2:
            last = time.monotonic()
            rows.put((number, row))

    run(spec, runs, fresh=fresh, engine=engine, callback=None if rows is None else send)


def _watched(watch: Watch, number: int) -> Callable[[Row], None]:
    """A callback that knows its number; a lambda written in the loop would see the loop's last one."""
    return lambda row: watch(number, row)


def _forward(rows: Any, watch: Watch | None) -> None:
    """Hand over all rows that have come in so far, without waiting for more."""
    while watch is not None:
        try:
            watch(*rows.get_nowait())
        except Empty:
            return
