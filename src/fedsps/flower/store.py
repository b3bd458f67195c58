"""A client's own state on its own disk. It outlives the process, the node and the run's restart.

Control variates, caps of stepsizes and what compression left over belong to the client: the server never sees them.
"""

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree

from safetensors import safe_open
from safetensors.torch import save_file

from fedsps.core.files import replace_file
from fedsps.core.vectors import Tensors
from fedsps.errors import ConfigurationError, DataError

LAYERS = "layers.safetensors"
NEVER = -1  # the round in which a client last took part, if it never did


@dataclass(frozen=True)
class Store:
    """The states of one partition in one run: `STATE-DIR/DIGEST/PARTITION/ROUND-EXCHANGE.safetensors`.

    The server says in which round the client last took part (`since`: its answer was counted), and the client starts
    from what it was after that, whatever it did in between. So a node that was killed, an answer that came too late,
    a round that is repeated and a server that was restarted all continue from the same place.

    Attributes:
        folder: of this partition in this run.
        token: of the run; states of an earlier run with the same spec carry another one and do not count.

    >>> import torch
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     store = Store.of(folder, digest="0123456789ab", partition=2, token="7")
    ...     store.save(round=4, exchange=0, since=NEVER, state={"cap": torch.tensor([1.0, 2.0])})
    ...     store.load(round=6, exchange=0, since=4)
    {'cap': tensor([1., 2.])}
    """

    folder: Path
    token: str  # of the run: states of an earlier run with the same spec do not count

    @classmethod
    def of(cls, state_dir: str | Path, digest: str, partition: int, token: str) -> "Store":
        """The store of a partition in a run that the server names by its digest.

        Raises:
            ConfigurationError: the digest is not twelve hex digits; another text could lead out of the folder.
        """
        if not re.fullmatch("[0-9a-f]{12}", digest):
            raise ConfigurationError(f"{digest!r} is not the digest of a run")
        return cls(Path(state_dir) / digest / str(int(partition)), token)

    def load(self, round: int, exchange: int, since: int) -> Tensors | None:
        """The state to start this exchange of the round from; None if there is none.

        It is that after the exchange before, if that one started from round `since` too, else that after the last
        exchange of round `since`. (A server that died may have asked for this round from a state it does not know.)

        Args:
            round: 0, 1, ...
            exchange: its place in the round, 0, 1, ...
            since: the last round in which the client's answer was counted, or `NEVER`.
        """
        state = self._read(self._path(round, exchange - 1), since) if exchange > 0 else None
        if state is None and since > NEVER:
            last = max(self.folder.glob(f"{since:08d}-*.safetensors"), default=None)
            state = None if last is None else self._read(last)
        return state

    def save(self, round: int, exchange: int, since: int, state: Tensors) -> None:
        """Write all or nothing; keep this round, the one it started from and the one before, and delete all others.

        The one before is for a server that asks for this round before it has saved the last one, and dies between.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: value.detach().clone().contiguous() for name, value in state.items()}
        notes = {"token": self.token, "since": str(since)}
        replace_file(self._path(round, exchange), lambda partial: save_file(tensors, partial, notes))
        rounds = {other: int(other.name.partition("-")[0]) for other in self.folder.glob("*-*.safetensors")}
        before = max((one for one in rounds.values() if one < since), default=NEVER)
        for other, one in rounds.items():
            if one not in (before, since, round):
                other.unlink(missing_ok=True)

    def forget(self) -> None:
        """Delete the states of this partition in this run: it is finished."""
        rmtree(self.folder, ignore_errors=True)
        with suppress(OSError):  # other partitions of this node may have theirs in it
            self.folder.parent.rmdir()

    def keep(self, layers: Tensors) -> None:
        """Write the layers that the client has for itself, by the names of the model's `state_dict`, to stay."""
        self.folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: value.detach().clone().contiguous() for name, value in layers.items()}
        replace_file(self.folder / LAYERS, lambda partial: save_file(tensors, partial))

    def _path(self, round: int, exchange: int) -> Path:
        return self.folder / f"{round:08d}-{exchange}.safetensors"

    def _read(self, path: Path, since: int | None = None) -> Tensors | None:
        """A state of this run, of one that started from round `since` if that is given; None if there is no such file.

        Raises:
            DataError: a damaged file.
        """
        if not path.exists():
            return None
        try:
            with safe_open(path, framework="pt") as file:
                notes = file.metadata() or {}
                if notes.get("token") != self.token or (since is not None and notes.get("since") != str(since)):
                    return None
                return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except Exception as error:
            raise DataError(f"{path} cannot be read ({error}): delete it, and the client starts anew") from error
