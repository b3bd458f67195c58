"""What a federation's folder holds, and the file that says what runs."""

import json
import secrets
import socket
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from fedsps.errors import ConfigurationError
from fedsps.federation.processes import Process, members

NAME = "federation.json"


@dataclass(frozen=True)
class State:
    """A federation that was started and not yet taken down."""

    folder: Path  # absolute
    address: str  # of the SuperLink
    nodes: int
    secure: bool
    mark: str = field(default_factory=lambda: secrets.token_hex(16))
    machine: str = field(default_factory=socket.gethostname)
    processes: tuple[Process, ...] = ()

    def save(self) -> None:
        """Write all or nothing."""
        partial = self.folder / f"{NAME}.partial"
        partial.write_text(json.dumps(asdict(self) | {"folder": str(self.folder)}, indent=2), encoding="utf-8")
        partial.replace(self.folder / NAME)

    def with_process(self, process: Process) -> "State":
        """One process more, written down."""
        state = replace(self, processes=(*self.processes, process))
        state.save()
        return state

    @property
    def is_up(self) -> bool:
        """Something of it runs."""
        return bool(members(self.mark))


def load(folder: Path) -> State | None:
    """The federation of a folder; None if there is none, or it was taken down."""
    path = folder / NAME
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        found["processes"] = tuple(Process(**one | {"command": tuple(one["command"])}) for one in found["processes"])
        state = State(**found | {"folder": Path(found["folder"])})
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigurationError(f"{path} cannot be read ({error}): delete it if nothing of it runs") from error
    if state.machine != socket.gethostname():
        raise ConfigurationError(f"the federation in {folder} belongs to the machine {state.machine}: use it there")
    return state


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
