"""A client's own state on its own disk. It outlives the process, the node and the run's restart."""

import re
from dataclasses import dataclass
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file

from fedsps.core.vectors import Tensors
from fedsps.errors import ConfigurationError, DataError
from fedsps.runs.files import replace_file

NEVER = -1  # the round in which a client last took part, if it never did


@dataclass(frozen=True)
class Store:
    """The states of one partition in one run: `STATE-DIR/DIGEST/PARTITION/ROUND-EXCHANGE.safetensors`.

    The server says in which round the client last took part (`since`: its answer was counted), and the client starts
    from what it was after that, whatever it did in between. So a node that was killed, an answer that came too late,
    a round that is repeated and a server that was restarted all continue from the same place.
    """

    folder: Path
    token: str  # of the run: states of an earlier run with the same spec do not count

    @classmethod
    def of(cls, state_dir: str | Path, digest: str, partition: int, token: str) -> "Store":
        """The server names the digest; it must not lead out of the folder."""
        if not re.fullmatch("[0-9a-f]{12}", digest):
            raise ConfigurationError(f"{digest!r} is not the digest of a run")
        return cls(Path(state_dir) / digest / str(int(partition)), token)

    def load(self, round: int, exchange: int, since: int) -> Tensors | None:
        """The state to start this exchange of the round from; None if there is none."""
        state = self._read(self._path(round, exchange - 1)) if exchange > 0 else None
        if state is None and since > NEVER:
            last = max(self.folder.glob(f"{since:08d}-*.safetensors"), default=None)
            state = None if last is None else self._read(last)
        return state

    def save(self, round: int, exchange: int, since: int, state: Tensors) -> None:
        """Write all or nothing; keep this round and the one it started from."""
        self.folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: value.detach().clone().contiguous() for name, value in state.items()}
        replace_file(self._path(round, exchange), lambda partial: save_file(tensors, partial, self._notes))
        for other in self.folder.glob("*.safetensors"):
            if int(other.name.partition("-")[0]) not in (since, round):
                other.unlink(missing_ok=True)

    @property
    def _notes(self) -> dict[str, str]:
        return {"token": self.token}

    def _path(self, round: int, exchange: int) -> Path:
        return self.folder / f"{round:08d}-{exchange}.safetensors"

    def _read(self, path: Path) -> Tensors | None:
        if not path.exists():
            return None
        try:
            with safe_open(path, framework="pt") as file:
                if file.metadata() != self._notes:
                    return None
                return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except Exception as error:
            raise DataError(f"{path} cannot be read ({error}): delete it, and the client starts anew") from error
