"""Run a Flower app on a federation that is up, and follow what its server says.

The run is the federation's, not this command's: it goes on if the connection to its log breaks, and is asked for its
status until it is finished. Only Ctrl-C and the timeout stop it.
"""

import re
import subprocess
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from fedsps.deploy.deployment import Deployment, load
from fedsps.deploy.programs import CONNECTION, SETTING, ask, environment, program, run_status
from fedsps.errors import ConfigurationError, FedspsError, unknown

# what Flower says in every run; it is in the log all the same
BOILERPLATE = re.compile(
    r"Using SuperLink: |Starting logstream |Start `flwr-serverapp` |Successfully (installed|started run) |$"
)
RAISED = "ServerApp raised an exception"  # the traceback follows


@dataclass(frozen=True)
class RunEnd:
    """How a run on a federation ended.

    Attributes:
        run: its number.
        status: "completed", "failed" or "stopped".
        details: what Flower says about it.
        log: where all of its output is.
    """

    run: str
    status: str
    details: str
    log: Path


def run(
    app: Path,
    folder: Path,
    run_config: Sequence[str] = (),
    timeout: float | None = None,
    show: Callable[[str], None] = lambda line: None,
) -> RunEnd:
    """Hand the app to the federation and show its server's lines until it ends. Ctrl-C and the timeout stop the run.

    Args:
        app: the folder of a Flower app.
        folder: of the federation.
        run_config: settings, `name=value ...`, or a single `.toml` file of them.
        timeout: seconds; None for no limit.
        show: called with each line.

    Raises:
        ConfigurationError: no app, settings that it does not have, or no federation that is up.
        FedspsError: Flower refuses the app, or the SuperLink ended.
    """
    app = app.expanduser().resolve()
    # Flower's program runs in the federation's folder
    run_config = [str(Path(text).expanduser().resolve()) if text.endswith(".toml") else text for text in run_config]
    check_app(app, run_config)
    deployment = load(folder.expanduser().resolve())
    if deployment is None or not deployment.is_up:
        raise ConfigurationError(
            f"no federation is up in {folder}: start one with fedsps federation up --folder {folder}"
        )
    deadline = time.monotonic() + (timeout or float("inf"))
    words = [word for text in run_config for word in ("--run-config", text)]
    number = str(ask(deployment.folder, "run", str(app), CONNECTION, *words)["run-id"])
    log = deployment.folder / "logs" / f"run-{number}.log"
    show(f"run {number}, all of its output goes to {log}")
    try:
        status, details = follow(deployment, number, log, deadline, show)
    except KeyboardInterrupt:
        ask(deployment.folder, "stop", number, CONNECTION)
        raise
    if not status.startswith("finished"):
        ask(deployment.folder, "stop", number, CONNECTION)
        status, details = "finished:stopped", f"not done within {timeout:g} s"
    return RunEnd(number, status.partition(":")[2], details, log)


def follow(
    deployment: Deployment, number: str, log: Path, deadline: float, show: Callable[[str], None]
) -> tuple[str, str]:
    """Show the server's lines until the run is finished, or time is up; its status and what Flower says about it.

    A stream that breaks off is begun anew from the first line; lines that were shown are not shown again.

    Args:
        deployment: the federation.
        number: of the run.
        log: where all lines go, those that are not shown too.
        deadline: on the monotonic clock.
        show: called with each line.
    """
    seen = 0
    while True:
        lines = 0
        with log.open("wb") as copy:
            for line in plain(_stream(deployment.folder, number, deadline, copy)):
                lines += 1
                if lines > seen:
                    show(line)
        seen = max(seen, lines)
        if not any(process.name == "superlink" and process.is_alive() for process in deployment.processes):
            raise FedspsError(f"the SuperLink ended during the run: see {deployment.folder / 'logs' / 'superlink.log'}")
        status, details = run_status(deployment.folder, number)
        if status.startswith("finished") or time.monotonic() > deadline:
            return status, details
        time.sleep(1)  # the stream broke off: it is begun anew, from the first line


def plain(lines: Iterator[str]) -> Iterator[str]:
    r"""The lines without colours, boilerplate and tracebacks.

    >>> list(plain(iter(["\x1b[92mINFO\x1b[0m :      round 1/2\n", "Starting logstream for run_id 1\n"])))
    ['round 1/2']
    """
    raised = False
    for line in lines:
        text = re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip()
        text = re.sub(r"^INFO\s*:\s*", "", text)
        raised = raised or RAISED in text
        if not raised and not BOILERPLATE.match(text):
            yield text


def check_app(app: Path, run_config: Sequence[str]) -> None:
    """Refuse a folder that is no Flower app, and settings that it does not have.

    The settings that an app has are those in `[tool.flwr.app.config]` of its pyproject.toml.
    """
    file = app / "pyproject.toml"
    if not file.exists():
        raise ConfigurationError(f"{app} is no Flower app, it has no pyproject.toml: name the folder of one")
    flower_app = _toml(file).get("tool", {}).get("flwr", {}).get("app")
    if flower_app is None:
        raise ConfigurationError(f"{file} describes no Flower app: it has no [tool.flwr.app]")
    known = set(_flat(flower_app.get("config", {})))
    for text in run_config:
        if text.endswith(".toml") and len(run_config) > 1:
            raise ConfigurationError(f"Flower takes either a file of run settings or settings; got {text} and more")
        names = _flat(_toml(Path(text))) if text.endswith(".toml") else (name for name, _ in re.findall(SETTING, text))
        for name in names:
            if name not in known:
                raise unknown(f"run setting of {app.name}", name, known)


def _toml(file: Path) -> dict[str, Any]:
    """The content of a TOML file; an error names the file."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{file} cannot be read: {error}") from error


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """The names of nested settings, with dots.

    >>> list(_flat({"rounds": 3, "data": {"name": "mnist"}}))
    ['rounds', 'data.name']
    """
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name


def _stream(folder: Path, number: str, deadline: float, copy: BinaryIO) -> Iterator[str]:
    """The lines of `flwr log`, copied to a file, until the run or the time is over.

    A timer ends the program at the deadline; it is ended too when nobody reads on.
    """
    process = subprocess.Popen(
        [program("flwr"), "log", number, CONNECTION, "--stream"],
        env=environment(folder),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C is ours
    )
    timer = threading.Timer(min(deadline - time.monotonic(), threading.TIMEOUT_MAX), process.kill)
    timer.daemon = True
    with process:
        timer.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                copy.write(line)
                copy.flush()
                yield line.decode(errors="replace")
        finally:
            timer.cancel()
            process.kill()
