"""Clients side by side: the loop engine's work on several cores, in threads of one torch thread each.

Torch lets go of Python's lock while it computes, so threads keep the cores busy where a client's step takes
milliseconds, as a convolutional network's does. Each client's work is its own and the means are taken in the order of
the clients, so results are bitwise the same for any number of workers.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor

from fedsps.engine.setup import Setup

WORTH = 0.004  # seconds of a client's local steps: below them threads gain nothing
_processes = 1  # that share the machine's cores with this one, itself included


def share_cores(processes: int) -> None:
    """Say that so many processes of one command run side by side: each takes its part of the cores, one at least."""
    global _processes  # noqa: PLW0603
    _processes = processes


def cores() -> int:
    """The cores that this process may use: those of its affinity, shared with the other jobs of its command."""
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, own // _processes)


def decide(setup: Setup, inputs: Tensor, targets: Tensor) -> int:
    """How many workers a run gets: as its plan says, else all cores where a short trial says that it pays.

    One where the module draws random numbers (they come from one generator), on other devices than a CPU, and where a
    client's local steps are too short.

    Args:
        setup: of the run.
        inputs: a batch to try.
        targets: its targets.
    """
    network, plan = setup.network, setup.plan
    if setup.is_random or network.x.device.type != "cpu":
        return 1
    most = min(plan.active(setup.data.clients), cores() if plan.workers is None else plan.workers)
    if plan.workers is not None or most == 1:
        return most
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        network.loss_and_gradient(network.x, network.buffers, inputs, targets)
        seconds.append(time.perf_counter() - began)
    return most if min(seconds) * plan.local_steps >= WORTH else 1


def side_by_side(function: Callable[[Any], Any], items: Sequence[Any], workers: int) -> list[Any]:
    """The function of each item, in their order, by so many threads; what one raises is raised here.

    >>> side_by_side(lambda number: number**2, [3, 1, 2], workers=2)
    [9, 1, 4]
    """
    if workers == 1 or len(items) == 1:
        return [function(item) for item in items]
    with _kept_as_it_was():
        return list(_pool(workers).map(function, items))


@cache
def _pool(workers: int) -> ThreadPoolExecutor:
    """The threads, which stay for all rounds: each has a copy of the module, and copying takes a while."""
    return ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))


@contextmanager
def _kept_as_it_was() -> Iterator[None]:
    """One torch thread inside; their number, and the generator that clients' work seeds, are put back after it."""
    threads, state = torch.get_num_threads(), torch.default_generator.get_state()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.default_generator.set_state(state)
