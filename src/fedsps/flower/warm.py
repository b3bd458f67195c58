"""Flower's programs of a node, kept warm: all that fedsps changes in Flower 1.41 is in this file.

    python -P -m fedsps.flower.warm superexec OPTIONS     as flower-superexec OPTIONS
    python -P -m fedsps.flower.warm supernode OPTIONS     as flower-supernode OPTIONS

Flower starts a process for each message, which imports torch before it does anything; a node asks for messages every
3 s. Here

    superexec  has a process aside that has imported torch and fedsps, and forks it for each app; what an app imports
               beside, of installed packages, is imported there before the next one
    supernode  asks after a tenth of the time that nothing came, at least every 3 s, at most every 0.2 s

Apps, messages, tokens and secrets are Flower's own. The process aside is forked before the secret is read. It has one
thread, so that a fork of it is whole; where it has more (a library that it imports has started one), on another system
than Linux and with another version of Flower, a note says so, and all is done in Flower's way. The environment variable
FEDSPS_WARM=0 asks for that.

Numpy's own products use one thread in a warm process, since its pool of threads starts when it is imported; torch's use
as many as it is told.
"""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.metadata import version
from multiprocessing.connection import Connection, wait
from pathlib import Path
from sysconfig import get_path
from types import SimpleNamespace
from typing import Any

VARIABLE = "FEDSPS_WARM"
KNOWN = "1.41.0"  # the version of Flower whose inner modules are changed here
APPS = {  # Flower's programs that are forked, and what they call
    "flwr-clientapp": ("flwr.supernode.cli.flwr_clientapp", "flwr_clientapp"),
    "flwr-serverapp": ("flwr.superlink.cli.flwr_serverapp", "flwr_serverapp"),
}
IMPORTED = ("torch", "fedsps.flower.client", "fedsps.methods.registry", *(module for module, _ in APPS.values()))
ONE_THREAD = "OPENBLAS_NUM_THREADS"
FORK_SAFE = {"jemalloc_bg_thd"}  # pyarrow's, which comes with pandas: jemalloc stops it around a fork
STARTED = "started"
PATIENCE = 120.0  # seconds that the imports may take
SHORTEST = 0.2  # seconds between two looks for work; one costs the SuperLink some milliseconds
SHARE = 0.1  # of the time without work


class Pace:
    """In the place of the module `time`, for a loop that looks for work: it waits longer, the longer there is none.

    Args:
        idle: seconds that Flower's loop waits where it has found nothing; any other wait is within work.

    >>> pace = Pace(idle=3.0)
    >>> pace.since -= 20
    >>> round(pace.pause(3.0), 1), pace.pause(0.5), pace.pause(3.0)
    (2.0, 0.2, 0.2)
    """

    def __init__(self, idle: float) -> None:
        self.idle = idle
        self.since = time.monotonic()

    def work(self) -> None:
        """There was some, just now."""
        self.since = time.monotonic()

    def pause(self, seconds: float) -> float:
        """How long to wait where Flower waits so many seconds."""
        if seconds != self.idle:
            self.work()
        return min(seconds, max(SHORTEST, SHARE * (time.monotonic() - self.since)))

    def sleep(self, seconds: float) -> None:
        """As `time.sleep`, but shorter."""
        time.sleep(self.pause(seconds))


class Warm:
    """The process aside, and the way to it; made before anything else is imported.

    Args:
        pace: told of each app that is started.
    """

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        fork = multiprocessing.get_context("fork")
        self._channel, theirs = fork.Pipe()
        self._process = fork.Process(target=_aside, args=(theirs, self._channel))
        self._process.start()
        theirs.close()
        self._is_there = True

    def popen(self, words: Sequence[str], **options: Any) -> None:
        """Start one of Flower's programs, in the place of `subprocess.Popen`.

        Args:
            words: the program and its arguments.
            **options: `stdout` and `stderr`, if it is to be silent.
        """
        self.pace.work()
        if words[0] not in APPS or not self._fork(words, silent=bool(options)):
            subprocess.Popen(words, **options)

    def close(self) -> None:
        """Let the process aside end."""
        self._channel.close()
        self._process.join()

    def _fork(self, words: Sequence[str], silent: bool) -> bool:
        """Whether the process aside has started it; the first time this waits for the imports."""
        if not self._is_there:
            return False
        try:
            self._channel.send_bytes(json.dumps([silent, *words]).encode())
            said = self._channel.recv_bytes().decode() if self._channel.poll(PATIENCE) else "no answer within 120 s"
        except (OSError, EOFError):
            said = "it is gone"
        if said != STARTED:
            _note(f"the process to fork from cannot be used, {said}")
            self._is_there = False
        return self._is_there


def _aside(channel: Connection, other: Connection) -> None:
    """The life of the process aside: import, then fork for each app, and learn from it what else to import."""
    other.close()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.environ |= {ONE_THREAD: "1"}
    for name in IMPORTED:
        import_module(name)
    del os.environ[ONE_THREAD]
    too_many = threads()
    reports: list[Connection] = []
    tried: set[str] = set()
    fork = multiprocessing.get_context("fork")
    while True:
        for ready in wait([channel, *reports]):
            assert isinstance(ready, Connection)
            try:
                said = json.loads(ready.recv_bytes())
            except (OSError, EOFError):
                if ready is channel:
                    os._exit(0)  # nobody asks any more; apps that run notice it by themselves
                reports.remove(ready)
                continue
            if ready is not channel:
                if new := [name for name in said if name not in tried]:
                    tried.update(new)
                    _grow(new)
            elif too_many:
                channel.send_bytes(f"its imports have started threads: {', '.join(too_many)}".encode())
            else:
                multiprocessing.active_children()  # those that ended are let go
                report, theirs = fork.Pipe(duplex=False)
                fork.Process(target=_app, args=(channel, theirs, *said)).start()
                theirs.close()
                reports.append(report)
                channel.send_bytes(STARTED.encode())


def _grow(names: list[str]) -> None:
    """Import what an app has imported: a fork does it, and takes over if no thread came with it.

    This process waits, and goes on as it was if the fork refuses or is killed.
    """
    if successor := os.fork():
        if os.waitpid(successor, 0)[1] == 0:
            os._exit(0)
        return
    for name in names:
        with suppress(Exception):
            import_module(name)
    if threads():
        os._exit(1)


def _app(channel: Connection, report: Connection, silent: bool, *words: str) -> None:
    """The life of a forked process: one of Flower's programs, as if it had been started."""
    channel.close()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.modules["numpy"].random.seed()  # else all would draw the same
    if silent:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
    sys.argv = list(words)
    module, name = APPS[words[0]]
    before = set(sys.modules)
    try:
        getattr(import_module(module), name)()
    finally:
        report.send_bytes(json.dumps(installed(before)).encode())


def installed(before: Collection[str]) -> list[str]:
    """The modules that were imported since, but for those of the app itself: what `pip` or Python brought."""
    places = {get_path(kind) for kind in ("stdlib", "platlib", "purelib")}
    files = {name: getattr(module, "__file__", None) for name, module in sys.modules.items() if name not in before}
    return [name for name, file in files.items() if file and any(Path(file).is_relative_to(place) for place in places)]


def threads() -> list[str]:
    """The names of this process's threads but the first, and but those that are made anew in a fork."""
    own = str(os.getpid())
    found = [
        (one / "comm").read_text(encoding="utf-8").strip()
        for one in Path("/proc/self/task").iterdir()
        if one.name != own
    ]
    return [name for name in found if name not in FORK_SAFE]


def superexec() -> None:
    """`flower-superexec`, which forks its apps."""
    if not _is_possible():
        return _called("flwr.supercore.cli", "flower_superexec")
    pace = Pace(idle=1.0)
    warm = Warm(pace)
    from flwr.supercore.superexec import run_superexec
    from flwr.supercore.superexec.executor import subprocess_executor

    vars(run_superexec)["time"] = pace
    vars(subprocess_executor)["subprocess"] = SimpleNamespace(Popen=warm.popen, DEVNULL=subprocess.DEVNULL)
    try:
        _called("flwr.supercore.cli", "flower_superexec")
    finally:
        warm.close()


def supernode() -> None:
    """`flower-supernode`, which asks for messages more often."""
    if _is_possible():
        from flwr.supernode import start_client_internal

        vars(start_client_internal)["time"] = Pace(idle=3)
    _called("flwr.supernode.cli", "flower_supernode")


def _is_possible() -> bool:
    """Whether this is the Flower and the system that this file knows, and nobody has switched it off."""
    found = version("flwr")
    if os.environ.get(VARIABLE) == "0":
        return False
    if found != KNOWN:
        _note(f"Flower is {found}, and how it is kept warm is known of {KNOWN}")
    elif not sys.platform.startswith("linux"):
        _note(f"processes are forked on Linux, this is {sys.platform}")
    else:
        return True
    return False


def _note(why: str) -> None:
    """Why it is done in Flower's way, in the log."""
    print(f"note: {why}: a process is started for each message", flush=True)  # noqa: T201


def _called(module: str, name: str) -> None:
    """Call one of Flower's programs."""
    program: Callable[[], None] = getattr(import_module(module), name)
    program()


PROGRAMS = {"superexec": superexec, "supernode": supernode}

if __name__ == "__main__":
    called = sys.argv.pop(1) if len(sys.argv) > 1 else ""
    if called not in PROGRAMS:
        sys.exit(f"python -P -m fedsps.flower.warm {'|'.join(PROGRAMS)} OPTIONS, got {called!r}")
    sys.argv[0] = f"flower-{called}"
    PROGRAMS[called]()
