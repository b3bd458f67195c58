"""A run written down after a round, so that a killed process goes on where it stopped.

The state is in a file of safetensors, the history in one of JSON beside it: reading them runs no code. A digest tells
whether either was damaged or edited: such a run is refused, not continued. The state holds all that the next round
depends on beside what was asked, so a run that was interrupted and one that was not have the same history.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedsps.core.files import replace_file
from fedsps.core.plan import LATE, PLUMBING
from fedsps.core.vectors import widest
from fedsps.engine.history import Row
from fedsps.engine.setup import Setup, State
from fedsps.errors import DataError
from fedsps.runs.files import only_one

NAME = "checkpoint.safetensors"
FAILURE = "failure.txt"  # the traceback of a run of several that failed
SWEEP = "sweep.safetensors"  # of a run in a sweep: its numbers are those of the run alone up to rounding
LATER = (
    "rounds",
    "evaluate_every",
    "evaluate_from",
    "patience",
    *PLUMBING,
)  # of a plan: a run may be asked for more, it goes on all the same


@dataclass(frozen=True)
class Checkpoint:
    """A file in the run's folder with the state and the fingerprint of the run, and one with the history so far.

    The history is written first, and the state says how many of its rows are its own: a process that is killed between
    the two leaves a row too many, which is not read.

    Attributes:
        folder: the run's.
        fingerprint: of the run; a checkpoint with another one is refused.
        device: where the state is read to, which need not be the device that it was written from.
        name: of the file.
    """

    folder: Path
    fingerprint: str
    device: str = "cpu"
    name: str = NAME

    @property
    def path(self) -> Path:
        """Where the file lies: `checkpoint.safetensors` in the run's folder."""
        return self.folder / self.name

    @property
    def rows_path(self) -> Path:
        """Where the history lies: `checkpoint.json` beside it."""
        return self.path.with_suffix(".json")

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes out of the run's folder.

        Raises:
            ConfigurationError: if one is in it.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with only_one(self.folder, f"another process trains this run in {self.folder}: wait for it, or stop it"):
            yield

    def save(self, state: State, rows: list[Row]) -> None:
        """Write all or nothing: the old file stays until the new one is complete.

        Args:
            state: after the last round that is complete.
            rows: the history up to that round.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        notes = {"round": str(state.round), "fingerprint": self.fingerprint, "rows": str(len(rows))}
        # safetensors refuses tensors that share memory, as x and the last iterate do
        tensors = {name: tensor.detach().clone() for name, tensor in flatten(state).items()}
        notes["digest"] = digest(tensors, notes, rows)
        text = json.dumps(rows)
        replace_file(self.rows_path, lambda partial: partial.write_text(text, encoding="utf-8"))
        replace_file(self.path, lambda partial: save_file(tensors, partial, notes))

    def load(self) -> tuple[State, list[Row]] | None:
        """The state and the history, or None if nothing was saved.

        Raises:
            DataError: if the file cannot be read, was changed since it was written, or is that of a run with another
                fingerprint. The run does not begin again by itself: that is for the user to decide.
        """
        if not self.path.exists():
            return None
        device = torch.device(self.device)
        try:
            with safe_open(self.path, framework="pt") as file:
                notes = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            many = int(notes["rows"])
            rows = json.loads(self.rows_path.read_text(encoding="utf-8"))[:many]
            is_whole = notes.pop("digest", None) == digest(tensors, notes, rows)
            state = unflatten(int(notes["round"]), {name: _moved(tensor, device) for name, tensor in tensors.items()})
        except Exception as error:
            raise DataError(
                f"{self.path}, or {self.rows_path.name} beside it, cannot be read ({error!r}): delete it to start again"
            ) from error
        if len(rows) < many:
            raise DataError(f"{self.rows_path} has {len(rows)} rows of {many}: delete {self.path} to start again")
        if not is_whole:
            raise DataError(
                f"{self.path}, or {self.rows_path.name} beside it, was changed since it was written: "
                "delete it to start again"
            )
        if notes.get("fingerprint") != self.fingerprint:
            raise DataError(
                f"{self.path} belongs to another run (other data, model, algorithm or settings): "
                "use another folder, or delete it to start again"
            )
        return state, rows

    def forget(self) -> None:
        """Delete both files: the run is finished, or begins again."""
        for path in (self.path, self.rows_path):
            path.unlink(missing_ok=True)


def digest(tensors: dict[str, Tensor], notes: dict[str, str], rows: list[Row]) -> str:
    """The sha256 of what a checkpoint holds: names, dtypes, shapes and bytes of its tensors, its notes, its history."""
    found = hashlib.sha256(json.dumps([notes, rows], sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        found.update(repr((name, tensor.dtype, tensor.shape)).encode())
        found.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on the device; a float64 in the widest dtype that there is."""
    return tensor.to(device, widest(device) if tensor.dtype == torch.float64 else tensor.dtype)


def forget(folder: Path) -> None:
    """Delete what was saved of a run in progress: it is finished, or begins again."""
    for name in (NAME, SWEEP):
        Checkpoint(folder, "", name=name).forget()
    (folder / FAILURE).unlink(missing_ok=True)


def saved_rounds(folder: Path) -> int:
    """After how many rounds the run of this folder was saved in a sweep; 0 if it was not, or that cannot be read."""
    try:
        with safe_open(folder / SWEEP, framework="pt") as file:
            return int(file.metadata()["round"])
    except Exception:  # whoever goes on from there says what is wrong with it
        return 0


def flatten(state: State) -> dict[str, Tensor]:
    """A state as one flat dictionary, "x", "server/stepsize", ...: files of tensors know no groups."""
    flat: dict[str, Tensor] = {}
    for name, value in vars(state).items():
        if isinstance(value, Tensor):
            flat[name] = value
        elif isinstance(value, dict):
            flat |= {f"{name}/{key}": tensor for key, tensor in value.items()}
    return flat


def unflatten(round: int, flat: dict[str, Tensor]) -> State:
    """The inverse of `flatten`; the round is no tensor, and is handed in beside them.

    >>> x = torch.zeros(2)
    >>> state = State(round=3, x=x, buffers={}, server={"m": x}, clients={}, output={}, result=x)
    >>> flat = flatten(state)
    >>> sorted(flat)
    ['result', 'server/m', 'x']
    >>> unflatten(3, flat).server
    {'m': tensor([0., 0.])}
    """
    groups: dict[str, dict[str, Tensor]] = {
        field.name: {} for field in fields(State) if field.name not in ("round", "x", "result")
    }
    for name, tensor in flat.items():
        group, _, key = name.partition("/")
        if key:
            groups[group][key] = tensor
    return State(round=round, x=flat["x"], result=flat["result"], **groups)


def fingerprint(setup: Setup) -> str:
    """A digest of all that decides a run's course: data, starting point, algorithm and plan.

    What the plan says of rounds, evaluations and workers is not in it (`LATER`), so a run may be asked for more rounds
    later and goes on. Nor is the engine: all engines compute the same, up to rounding.
    """
    network, plan = setup.network, setup.plan
    asked: list[Any] = [setup.algorithm.composition]
    for name, value in vars(plan).items():
        if name not in LATER and (name not in LATE or value != LATE[name]):
            asked.append((name, value))
    digest = hashlib.sha256(repr(asked).encode())
    digest.update(network.description.encode())
    digest.update(setup.data.digest)
    for tensor in (network.x, *network.buffers.values()):
        digest.update(repr((tensor.dtype, tensor.shape)).encode())
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
