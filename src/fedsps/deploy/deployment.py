"""What a federation's folder holds, and the file that says what runs."""

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

    Attributes:
        folder: where its keys, logs and state are; absolute.
        address: of the SuperLink.
        nodes: how many there are.
        secure: whether it has TLS and node keys.
        mark: in the environment of all its processes, by which they are found again.
        machine: where it runs.
        processes: all that were started.
    """

    folder: Path
    address: str
    nodes: int
    secure: bool
    mark: str = field(default_factory=lambda: secrets.token_hex(16))
    machine: str = field(default_factory=socket.gethostname)
    processes: tuple[Process, ...] = ()

    def save(self) -> None:
        """Write all or nothing."""
        write_json(self.folder / NAME, asdict(self) | {"folder": str(self.folder)})

    def with_process(self, process: Process) -> "Deployment":
        """One process more, written down."""
        grown = replace(self, processes=(*self.processes, process))
        grown.save()
        return grown

    @property
    def is_up(self) -> bool:
        """Something of it runs."""
        return bool(members(self.mark))


def load(folder: Path) -> Deployment | None:
    """The federation of a folder; None if there is none, or it was taken down."""
    path = folder / NAME
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        processes = [Process(**own | {"command": tuple(own["command"])}) for own in content["processes"]]
        deployment = Deployment(**content | {"folder": Path(content["folder"]), "processes": tuple(processes)})
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigurationError(f"{path} cannot be read ({error}): delete it if nothing of it runs") from error
    if deployment.machine != socket.gethostname():
        raise ConfigurationError(
            f"the federation in {folder} belongs to the machine {deployment.machine}: use it there"
        )
    return deployment


def prepare(folder: Path) -> Path:
    """Make a federation's folder, or accept one; refuse a folder of other things. Its absolute path."""
    folder = folder.expanduser().resolve()
    if '"' in str(folder) or "\n" in str(folder):
        raise ConfigurationError(f"folder {folder}: Flower cannot take a path with quotes")
    if folder.exists() and not folder.is_dir():
        raise ConfigurationError(f"folder {folder} is a file: name another with --folder")
    ignore = folder / ".gitignore"
    if (
        folder.is_dir()
        and any(folder.iterdir())
        and not (ignore.exists() and ignore.read_text(encoding="utf-8") == IGNORE)
    ):
        raise ConfigurationError(f"folder {folder} holds other things: name an empty or a new one with --folder")
    folder.mkdir(parents=True, mode=0o700, exist_ok=True)
    ignore.write_text(IGNORE, encoding="utf-8")
    return folder


IGNORE = "# the folder of a fedsps federation: its keys and logs are for no repository\n*\n"
