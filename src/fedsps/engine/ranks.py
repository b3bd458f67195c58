"""The processes that torchrun starts for one run: how they find each other, wait for each other, and part.

Tensors travel by torch.distributed, gloo on a CPU and nccl on CUDA. Words travel by torchrun's store, and so does a
beat of each rank: a number that goes up as long as its process lives. Whoever waits looks at the beats, so a rank may
compute for hours and nobody takes it for dead, and one that is gone is missed within seconds.
"""

import atexit
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from fedsps.engine.workers import share_cores
from fedsps.errors import ConfigurationError, FedspsError, RankError

PATIENCE = 60.0  # seconds that ranks wait for each other at the start, when torchrun has started all of them
SILENCE = 20.0  # seconds without a beat after which a rank is gone
BEAT = 0.5  # seconds between two beats
ENDING = signal.SIGINT, signal.SIGTERM  # Ctrl-C, and torchrun's way to end a rank when another has failed


def world_size() -> int:
    """How many ranks there are: torchrun's `WORLD_SIZE`; 1 for a process that it did not start."""
    return _number("WORLD_SIZE", "1")


def only_one_process(what: str, instead: str) -> None:
    """Refuse what cannot be shared by several ranks.

    Args:
        what: the thing.
        instead: what to do.
    """
    if world_size() > 1:
        raise ConfigurationError(f"{what} does not run under torchrun (WORLD_SIZE is {world_size()}): {instead}")


def join() -> "Ranks | None":
    """The place of this process among those that torchrun started; None if it is alone. The first call waits for all.

    Raises:
        ConfigurationError: the environment is not torchrun's.
        RankError: not all came, or they have parted after an error.
    """
    if world_size() == 1:
        return None
    ranks = _joined()
    if ranks.has_left:
        raise RankError("the ranks have parted after an error: start again")
    return ranks


@contextmanager
def together() -> Iterator["Ranks | None"]:
    """Inside, an error of one rank ends the run on all of them, and so does a signal; alone, nothing is different."""
    ranks = join()
    if ranks is None:
        yield None
        return
    before = {one: signal.getsignal(one) for one in ENDING} if _is_main_thread() else {}
    for one in before:
        signal.signal(one, ranks.end)
    try:
        yield ranks
    except BaseException as error:
        # a rank that ends because another did has nothing to say
        ranks.leave("" if isinstance(error, RankError | KeyboardInterrupt) else _words(error))
        raise
    for one, handler in before.items():
        signal.signal(one, handler)


class Ranks:
    """One process among those of a run. Rank 0 leads: the others wait for it alone, and it waits for all of them.

    Attributes:
        rank: 0, 1, ...
        size: how many there are.
        has_left: whether this rank has said that it ends.

    Args:
        rank: of this process.
        size: how many there are.
        store: where words and beats are.
    """

    def __init__(self, rank: int, size: int, store: Any) -> None:
        self.rank, self.size, self.has_left = rank, size, False
        self._store = store
        self._topic = 0
        self._beats: dict[int, tuple[str, float]] = {}  # of each rank the last one, and when it was new
        threading.Thread(target=self._beat, daemon=True).start()

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which evaluates, writes and reports."""
        return self.rank == 0

    # Words

    def say(self, text: str) -> None:
        """Rank 0's next words to all others."""
        self._store.set(f"words/{self._next_topic()}", text)

    def hear(self) -> str:
        """The next words of rank 0; waits for them."""
        return self._read(f"words/{self._next_topic()}")

    def answers(self, own: str) -> list[str]:
        """What each rank has to say, in their order; only rank 0 waits for it, and the others get nothing."""
        topic = self._next_topic()
        self._store.set(f"words/{topic}/{self.rank}", own)
        return [self._read(f"words/{topic}/{rank}") for rank in range(self.size)] if self.leads else []

    def _next_topic(self) -> int:
        """All ranks speak of the same things in the same order, so a number is enough of a name."""
        self._topic += 1
        return self._topic

    def _read(self, name: str) -> str:
        while not self._store.check([name]):
            self._look()
            time.sleep(0.005)
        return str(self._store.get(name).decode())

    # Tensors

    def broadcast(self, tensor: Tensor) -> Tensor:
        """Rank 0's tensor, on all ranks; the others give one of its shape and dtype, which is filled."""
        self._wait(dist.broadcast(tensor, 0, async_op=True))
        return tensor

    def scatter(self, tensor: Tensor, parts: Sequence[Tensor] | None) -> Tensor:
        """Of rank 0's tensors, one for each rank and of one shape, this rank's; it is filled into `tensor`."""
        self._wait(dist.scatter(tensor, None if parts is None else list(parts), 0, async_op=True))
        return tensor

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all ranks, of one shape and dtype, on rank 0; nothing on the others."""
        parts = [torch.empty_like(tensor) for _ in range(self.size)] if self.leads else None
        self._wait(dist.gather(tensor, parts, 0, async_op=True))
        return parts or []

    def _wait(self, work: Any) -> None:
        """Until it is done. In Python, so that signals are heard and beats are looked at meanwhile."""
        began = looked = time.monotonic()
        while not work.is_completed():
            now = time.monotonic()
            if now - looked > BEAT:
                self._look()
                looked = now
            time.sleep(min(0.005, 0.00002 + (now - began) / 10))
        try:
            work.wait()
        except RuntimeError as error:
            raise self._lost("the connection between the ranks broke") from error

    # Life and death

    def leave(self, why: str) -> None:
        """Tell the others that this rank ends, once, and give them the time to hear it.

        A rank with an error of its own waits until rank 0 has reported it, since torchrun ends all ranks of a machine
        as soon as one of them has ended. Rank 0 waits for the others, since the store may end with it.

        Args:
            why: its own error; nothing where it follows another rank.
        """
        if self.has_left:
            return
        self.has_left = True
        _hear_no_signals()
        awaited = range(1, self.size) if self.leads else [0] if why else []
        deadline = time.monotonic() + (6 * BEAT if self.leads else SILENCE / 2)
        try:
            self._store.set(f"left/{self.rank}", why)
            while time.monotonic() < deadline and len(self._who_left(awaited)) < len(awaited):
                time.sleep(BEAT / 10)
        except RuntimeError:  # the store is gone, and with it those who could hear it
            return

    def end(self, number: int, _frame: Any) -> None:
        """What a signal does; a second one does nothing, so that the last save is not cut short."""
        _hear_no_signals()
        if not self.leads:
            self.leave("")
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise self._lost("torchrun ended the run")

    def _beat(self) -> None:
        """Say for ever that this rank lives."""
        try:
            number = 0
            while True:
                self._store.set(f"beat/{self.rank}", str(number))
                number += 1
                time.sleep(BEAT)
        except RuntimeError:  # the store is gone: whoever waits finds that out too
            return

    def _look(self) -> None:
        """Raise if a rank that this one waits for has left, or was silent for too long."""
        others = range(1, self.size) if self.leads else [0]
        try:
            if self._who_left(others):
                raise self._lost("a rank ended")
            if any(seconds > SILENCE for seconds in self._silence(others).values()):
                raise self._lost("a rank is silent")
        except RuntimeError as error:
            raise self._without_store() from error

    def _silence(self, others: Sequence[int]) -> dict[int, float]:
        """For how long this process has seen no new beat of these ranks, in seconds."""
        now = time.monotonic()
        for rank in others:
            beat = self._store.get(f"beat/{rank}").decode() if self._store.check([f"beat/{rank}"]) else ""
            if rank not in self._beats or self._beats[rank][0] != beat:
                self._beats[rank] = beat, now
        return {rank: now - self._beats[rank][1] for rank in others}

    def _who_left(self, others: Sequence[int]) -> dict[int, str]:
        """Those of these ranks that have said that they end, and why."""
        there = [rank for rank in others if self._store.check([f"left/{rank}"])]
        return {rank: self._store.get(f"left/{rank}").decode() for rank in there}

    def _without_store(self) -> RankError:
        """The error where even the store cannot be reached: it is on the machine of rank 0."""
        if self.leads:
            return RankError("the store of torchrun is gone")
        error = RankError("rank 0 and its store are gone: run the same again, it goes on from its last save")
        error.speaks = self.rank == 1
        return error

    def _lost(self, what: str) -> RankError:
        """The error that says who is gone or has failed; it takes a few beats to know.

        Args:
            what: what was noticed, for the case that everybody is there.
        """
        _hear_no_signals()
        others = [rank for rank in range(self.size) if rank != self.rank]
        try:
            deadline = time.monotonic() + 6 * BEAT
            while not any((left := self._who_left(others)).values()) and time.monotonic() < deadline:
                self._silence(others)
                time.sleep(BEAT / 2)
            silence = self._silence(others)
        except RuntimeError:
            return self._without_store()
        failed = [f"rank {rank} failed: {why}" for rank, why in left.items() if why]
        gone = [rank for rank in others if rank not in left and silence[rank] > 4 * BEAT]
        if gone:
            atexit.register(_end_now)  # a rank that is silent but connected would keep this process from ending
            named = ", ".join(map(str, gone))
            what = f"rank {named} is gone" if len(gone) == 1 else f"ranks {named} are gone"
        if 0 in gone:
            what += ": run the same again, it goes on from its last save"
        error = RankError("; ".join(failed) or what)
        error.speaks = set(range(self.rank)) <= set(gone)
        return error


@cache
def _joined() -> Ranks:
    """Meet the other ranks, once in the life of a process."""
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing:
        raise ConfigurationError(
            f"WORLD_SIZE is {world_size()}, but there is no {' and no '.join(missing)}: "
            "start by torchrun, or unset WORLD_SIZE"
        )
    if dist.is_initialized():
        raise ConfigurationError("torch.distributed is initialised already: leave init_process_group to fedsps")
    rank, size = _number("RANK", "0"), world_size()
    share_cores(_number("LOCAL_WORLD_SIZE", "1"))
    address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    try:
        store, _, _ = next(rendezvous("env://", timeout=timedelta(seconds=PATIENCE)))
    except (RuntimeError, ValueError) as error:
        raise RankError(f"rank {rank} on {socket.gethostname()} cannot reach rank 0 at {address}") from error
    # torchrun keeps its store when it starts the ranks again, with all that they said the first time
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = dist.PrefixStore(f"fedsps {attempt}", store)  # type: ignore[attr-defined]
    store.set(f"here/{rank}", "")
    try:
        store.wait([f"here/{one}" for one in range(size)], timedelta(seconds=PATIENCE))
    except RuntimeError as error:
        absent = [str(one) for one in range(size) if not store.check([f"here/{one}"])]
        raise RankError(f"rank {', '.join(absent)} did not come within {PATIENCE:.0f} seconds") from error
    has_cuda = torch.cuda.is_available() and dist.is_nccl_available()
    backend = "cpu:gloo,cuda:nccl" if has_cuda else "gloo"
    # a round may take hours: whether the others live is told by their beats, not by a limit on its time
    try:
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timedelta(days=7))
    except RuntimeError as error:
        raise RankError(f"rank {rank} on {socket.gethostname()} cannot connect to the others: {error}") from error
    return Ranks(rank, size, store)


def _is_main_thread() -> bool:
    """Whether this thread may set what signals do."""
    return threading.current_thread() is threading.main_thread()


def _hear_no_signals() -> None:
    """From now on, since the process is ending anyway: it still has to save and to report."""
    for one in ENDING if _is_main_thread() else ():
        signal.signal(one, signal.SIG_IGN)


def _number(name: str, default: str) -> int:
    """A whole number from the environment."""
    text = os.environ.get(name) or default
    if not text.isdecimal():
        raise ConfigurationError(f"{name} must be a whole number, as torchrun sets it; got {text!r}")
    return int(text)


def _words(error: BaseException) -> str:
    """An error in one line: as it is if fedsps made it, with its type otherwise."""
    text = str(error) if isinstance(error, FedspsError) else f"{type(error).__name__}: {error}"
    return text or type(error).__name__


def _end_now() -> None:
    """End the process at once, with what it has printed."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(1)
