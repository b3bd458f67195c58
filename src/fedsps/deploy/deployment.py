"""What a federation's folder holds, and the file that says what runs.

FOLDER/.gitignore        marks the folder as ours; nothing in it goes into a repository
FOLDER/federation.json   what was started; it is there until the federation is taken down
FOLDER/keys, logs, flwr, state/NODE
"""

import json
import secrets
import socket
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from fedsps.deploy.processes import Process, members
from fedsps.errors import ConfigurationError
from fedsps.runs.files import write_json

NAME = "federation.json"


@dataclass(frozen=True)
class Deployment:
    """A federation that was started on this machine and not yet taken down.

    It is a value: each process that is started makes a new one, which is written to `federation.json` at once. So a
    command that is killed in between leaves a file from which `down` finds everything.

    Attributes:
        folder: where its keys, logs and state are; absolute.
        address: of the SuperLink, "host:port".
        nodes: how many there are.
        secure: whether it has TLS and node keys.
        mark: in the environment of all its processes, by which they are found again.
        machine: the host name of the machine where it runs.
        processes: all that were started, the SuperLink first.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     Deployment(Path(folder), "127.0.0.1:9300", nodes=2, secure=False).save()
    ...     load(Path(folder)).address
    '127.0.0.1:9300'
    """

    folder: Path
    address: str
    nodes: int
    secure: bool
    mark: str = field(default_factory=lambda: secrets.token_hex(16))
    machine: str = field(default_factory=socket.gethostname)
    processes: tuple[Process, ...] = ()

    def save(self) -> None:
        """Write `federation.json` all or nothing: a reader sees the file before or after, never half of it."""
        write_json(self.folder / NAME, asdict(self) | {"folder": str(self.folder)})

    def with_process(self, process: Process) -> "Deployment":
        """The deployment with one process more, written down before anything else happens."""
        grown = replace(self, processes=(*self.processes, process))
        grown.save()
        return grown

    @property
    def is_up(self) -> bool:
        """Whether a process with the federation's mark runs, be it one that a killed command left."""
        return bool(members(self.mark))


def load(folder: Path) -> Deployment | None:
    """The federation of a folder; None if there is none, or it was taken down.

    Raises:
        ConfigurationError: the file cannot be read, or was written on another machine, whose processes cannot be seen.
    """
    path = folder / NAME
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        processes = [Process(**entry | {"command": tuple(entry["command"])}) for entry in content["processes"]]
        deployment = Deployment(**content | {"folder": Path(content["folder"]), "processes": tuple(processes)})
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigurationError(f"{path} cannot be read ({error}): delete it if nothing of it runs") from error
    if deployment.machine != socket.gethostname():
        raise ConfigurationError(
            f"the federation in {folder} belongs to the machine {deployment.machine}: use it there"
        )
    return deployment


def prepare(folder: Path) -> Path:
    """Make a federation's folder, or accept one; its absolute path.

    The folder is for its owner alone (mode 700), since keys will lie in it.

    Raises:
        ConfigurationError: the path is a file, a folder of other things, or has quotes, which Flower's settings cannot
            hold.
    """
    folder = folder.expanduser().resolve()
    if '"' in str(folder) or "\n" in str(folder):
        raise ConfigurationError(f"folder {folder}: Flower cannot take a path with quotes")
    if folder.exists() and not folder.is_dir():
        raise ConfigurationError(f"folder {folder} is a file: name another")
    ignore = folder / ".gitignore"
    if (
        folder.is_dir()
        and any(folder.iterdir())
        and not (ignore.exists() and ignore.read_text(encoding="utf-8") == IGNORE)
    ):
        raise ConfigurationError(f"folder {folder} holds other things: name an empty or a new one")
    folder.mkdir(parents=True, mode=0o700, exist_ok=True)
    ignore.write_text(IGNORE, encoding="utf-8")
    return folder


IGNORE = "# the folder of a fedsps federation: its keys and logs are for no repository\n*\n"
