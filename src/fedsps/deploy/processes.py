"""Processes that outlive the command that started them, and are found again without mistake.

Every process that a federation starts carries the federation's random id in its environment, and so do its children,
also those that left its process group. Nothing else is ever sent a signal: a process id that went to somebody else in
the meantime belongs to a process of another start time, command line and environment.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fedsps.errors import ConfigurationError, FedspsError

MARK = "FEDSPS_FEDERATION"  # the environment variable


@dataclass(frozen=True)
class Process:
    """One that was started: what is needed to know it again."""

    name: str
    pid: int
    started: int  # clock ticks after the machine's start
    command: tuple[str, ...]
    address: str
    log: str

    def is_alive(self) -> bool:
        """A process of this id runs, and it is the one: started then, by this command line."""
        found = _stat(self.pid)
        return found is not None and found.started == self.started and _command(self.pid) == self.command

    def cpu_seconds(self) -> float:
        """CPU time of the process and its children, also of those that ended."""
        stats = _stats()
        return sum(stats[pid].ticks for pid in _family({self.pid}, stats) if pid in stats) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Stat:
    """What the kernel says about a process."""

    parent: int
    started: int
    ticks: int


def check_system() -> None:
    """Refuse where processes cannot be told apart as they are here."""
    if not sys.platform.startswith("linux"):
        raise ConfigurationError(f"federations of processes need Linux, this is {sys.platform}: use Flower's commands")


def start(
    name: str, command: Sequence[str], environment: dict[str, str], mark: str, address: str, log: Path
) -> Process:
    """Start a process in a session of its own, with its output in the log file."""
    with log.open("wb") as output:
        handle = subprocess.Popen(
            command,
            env=environment | {MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    handle.returncode = 0  # it outlives this command, which does not wait for it
    wait_until(
        lambda: bool(_command(handle.pid)) or _stat(handle.pid) is None, 1.0, pause=0.01
    )  # the kernel fills it in
    found = _stat(handle.pid)
    return Process(name, handle.pid, found.started if found else -1, _command(handle.pid), address, str(log))


def members(mark: str) -> set[int]:
    """All running processes that carry the mark, and their children."""
    stats = _stats()
    entry = f"{MARK}={mark}".encode()
    marked = {pid for pid in stats if entry in _read(pid, "environ").split(b"\0")}
    return _family(marked, stats) - {os.getpid()}


def ask_to_end(processes: Sequence[Process], grace: float = 8.0) -> None:
    """SIGTERM to the group of each that is still ours, then wait for them, for a while."""
    asked = [process for process in processes if process.is_alive()]
    for process in asked:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
    wait_until(lambda: not any(process.is_alive() for process in asked), grace)


def kill_members(mark: str, seconds: float = 10.0) -> None:
    """SIGKILL to all that carry the mark, until two looks in a row find none: one may have been starting another."""
    looks = [True, True]

    def none_left() -> bool:
        left = members(mark)
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        looks.append(bool(left))
        return not any(looks[-2:])

    if not wait_until(none_left, seconds):
        raise FedspsError(f"processes {sorted(members(mark))} do not end: look at them with ps")


def wait_until(done: Callable[[], bool], seconds: float, pause: float = 0.1) -> bool:
    """Ask again and again; True if it was done in time."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
    return True


def _family(pids: set[int], stats: dict[int, Stat]) -> set[int]:
    """The processes, their children, and theirs."""
    found = set(pids)
    while new := {pid for pid, stat in stats.items() if stat.parent in found} - found:
        found |= new
    return found


def _stats() -> dict[int, Stat]:
    found = {int(path.name): _stat(int(path.name)) for path in Path("/proc").iterdir() if path.name.isdigit()}
    return {pid: stat for pid, stat in found.items() if stat}


def _stat(pid: int) -> Stat | None:
    """None if there is no such process, or only its remains wait for their parent."""
    fields = _read(pid, "stat").rpartition(b")")[2].split()  # the name before may hold anything
    if not fields or fields[0] in (b"Z", b"X"):
        return None
    return Stat(parent=int(fields[1]), started=int(fields[19]), ticks=sum(map(int, fields[11:15])))


def _command(pid: int) -> tuple[str, ...]:
    return tuple(word.decode(errors="replace") for word in _read(pid, "cmdline").split(b"\0")[:-1])


def _read(pid: int, name: str) -> bytes:
    """A file of /proc; empty if the process is gone or another user's."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
