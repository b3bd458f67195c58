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

from fedsps.deploy import stamp
from fedsps.errors import ConfigurationError, FedspsError

MARK = "FEDSPS_FEDERATION"  # the environment variable


@dataclass(frozen=True)
class Process:
    """One that was started: what is needed to know it again.

    Attributes:
        name: "superlink", "node-0", ...
        pid: its id, which the kernel may give to another process once this one ended.
        started: clock ticks between the machine's start and its own; -1 if it ended before it was seen.
        command: its command line as the kernel has it.
        address: where it listens, "host:port".
        log: the file of its output.
    """

    name: str
    pid: int
    started: int  # clock ticks after the machine's start
    command: tuple[str, ...]
    address: str
    log: str

    def is_alive(self) -> bool:
        """A process of this id runs, and it is the one: started then, by this command line.

        One that ended and waits for its parent to notice is not alive.
        """
        stat = _stat(self.pid)
        return stat is not None and stat.started == self.started and _command(self.pid) == self.command

    def cpu_seconds(self) -> float:
        """CPU time of the process and its children, also of those that ended."""
        stats = _stats()
        return sum(stats[pid].ticks for pid in _family({self.pid}, stats) if pid in stats) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Stat:
    """What the kernel says about a process, out of `/proc/PID/stat`.

    Attributes:
        parent: the id of its parent.
        started: clock ticks after the machine's start.
        ticks: CPU time in clock ticks, its own and that of children that ended.
    """

    parent: int
    started: int
    ticks: int


def check_system() -> None:
    """Refuse where processes cannot be told apart as they are here: it takes Linux's `/proc`."""
    if not sys.platform.startswith("linux"):
        raise ConfigurationError(f"federations of processes need Linux, this is {sys.platform}: use Flower's commands")


def start(
    name: str, command: Sequence[str], environment: dict[str, str], mark: str, address: str, log: Path
) -> Process:
    """Start a process in a session of its own, with its output in the log file, the time before each line.

    In its own session it gets no Ctrl-C of the terminal, and it goes on when the terminal is closed.

    Args:
        name: how it is called in messages.
        command: the program and its arguments.
        environment: all of its environment; the mark is added.
        mark: of the federation.
        address: where it will listen, for the record.
        log: overwritten if it is there.
    """
    marked = environment | {MARK: mark}
    with log.open("wb") as output:
        clock = subprocess.Popen(
            [sys.executable, "-I", "-S", stamp.__file__],
            env=marked,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    assert clock.stdin is not None
    with clock.stdin as pipe:
        handle = subprocess.Popen(
            command,
            env=marked,
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    clock.returncode = handle.returncode = 0  # they outlive this command, which does not wait for them
    wait_until(
        lambda: bool(_command(handle.pid)) or _stat(handle.pid) is None, 1.0, pause=0.01
    )  # the kernel fills it in
    stat = _stat(handle.pid)
    return Process(name, handle.pid, stat.started if stat else -1, _command(handle.pid), address, str(log))


def members(mark: str) -> set[int]:
    """The ids of all running processes that carry the mark, and of their children, but not of this process."""
    stats = _stats()
    entry = f"{MARK}={mark}".encode()
    marked = {pid for pid in stats if entry in _read(pid, "environ").split(b"\0")}
    return _family(marked, stats) - {os.getpid()}


def ask_to_end(processes: Sequence[Process], grace: float = 8.0) -> None:
    """SIGTERM to the group of each that is still ours, then wait for them, for a while.

    It does not fail if one stays; `kill_members` comes after it.

    Args:
        processes: those that are gone, or whose id went to somebody else, are left out.
        grace: seconds that they have together.
    """
    asked = [process for process in processes if process.is_alive()]
    for process in asked:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
    wait_until(lambda: not any(process.is_alive() for process in asked), grace)


def kill_members(mark: str, seconds: float = 10.0) -> None:
    """SIGKILL to all that carry the mark, until two looks in a row find none: one may have been starting another.

    Raises:
        FedspsError: some still run after so many seconds.
    """
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
    """Ask again and again; True if it was done in time.

    >>> answers = iter([False, False, True])
    >>> wait_until(lambda: next(answers), seconds=1.0, pause=0.0)
    True
    """
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
    return True


def _family(pids: set[int], stats: dict[int, Stat]) -> set[int]:
    """The processes, their children, and theirs.

    >>> parents = {2: 1, 3: 2, 4: 3, 5: 1}
    >>> sorted(_family({2}, {pid: Stat(parent, 0, 0) for pid, parent in parents.items()}))
    [2, 3, 4]
    """
    family = set(pids)
    while new := {pid for pid, stat in stats.items() if stat.parent in family} - family:
        family |= new
    return family


def _stats() -> dict[int, Stat]:
    """All processes of this machine by id, but for those that ended."""
    stats = {int(path.name): _stat(int(path.name)) for path in Path("/proc").iterdir() if path.name.isdigit()}
    return {pid: stat for pid, stat in stats.items() if stat}


def _stat(pid: int) -> Stat | None:
    """One process; None if there is no such process, or only its remains wait for their parent."""
    fields = _read(pid, "stat").rpartition(b")")[2].split()  # the name before may hold anything
    if not fields or fields[0] in (b"Z", b"X"):
        return None
    return Stat(parent=int(fields[1]), started=int(fields[19]), ticks=sum(map(int, fields[11:15])))


def _command(pid: int) -> tuple[str, ...]:
    """The command line of a process; empty if it is gone, or not filled in yet."""
    return tuple(word.decode(errors="replace") for word in _read(pid, "cmdline").split(b"\0")[:-1])


def _read(pid: int, name: str) -> bytes:
    """A file of /proc; empty if the process is gone or another user's."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
