"""A run written down after a round, so that a killed process goes on where it stopped."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedsps.engine.setting import Setting, State
from fedsps.errors import DataError

Rows = list[dict[str, Any]]
NAME = "checkpoint.safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """A file in the run's folder. It holds the state, the history so far, and the fingerprint of the run."""

    folder: Path
    fingerprint: str
    device: str = "cpu"  # where the state is read to

    @property
    def path(self) -> Path:
        """The file."""
        return self.folder / NAME

    def save(self, state: State, rows: Rows) -> None:
        """Write all or nothing: the old file stays until the new one is complete."""
        self.folder.mkdir(parents=True, exist_ok=True)
        notes = {"round": str(state.round), "fingerprint": self.fingerprint, "rows": json.dumps(rows)}
        partial = self.path.with_suffix(".partial")
        # safetensors refuses tensors that share memory, as x and the last iterate do
        save_file({name: tensor.detach().clone() for name, tensor in flatten(state).items()}, partial, notes)
        partial.replace(self.path)

    def load(self) -> tuple[State, Rows] | None:
        """The state and the history, or None if nothing was saved."""
        if not self.path.exists():
            return None
        try:
            with safe_open(self.path, framework="pt", device=self.device) as file:
                notes = file.metadata()
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except Exception as error:
            raise DataError(f"{self.path} cannot be read ({error}): delete it to start again") from error
        if notes["fingerprint"] != self.fingerprint:
            raise DataError(
                f"{self.path} belongs to another run (other data, model, algorithm or settings): "
                "use another folder, or delete it to start again"
            )
        return unflatten(int(notes["round"]), tensors), json.loads(notes["rows"])


def flatten(state: State) -> dict[str, Tensor]:
    """A state as one flat dictionary: "x", "server/stepsize", ..."""
    flat: dict[str, Tensor] = {}
    for field, value in vars(state).items():
        if isinstance(value, Tensor):
            flat[field] = value
        elif isinstance(value, dict):
            flat |= {f"{field}/{name}": tensor for name, tensor in value.items()}
    return flat


def unflatten(round: int, flat: dict[str, Tensor]) -> State:
    """The inverse of `flatten`."""
    groups: dict[str, dict[str, Tensor]] = {name: {} for name in ("buffers", "server", "clients", "output")}
    for name, tensor in flat.items():
        field, _, key = name.partition("/")
        if key:
            groups[field][key] = tensor
    return State(round=round, x=flat["x"], result=flat["result"], **groups)


def fingerprint(setting: Setting) -> str:
    """A digest of all that decides a run's course: data, starting point, algorithm and settings."""
    goal, federation = setting.objective, setting.federation
    names = ("algorithm", "local_steps", "batch_size", "cohort", "seed", "weights", "augment")
    digest = hashlib.sha256(repr([getattr(setting, name) for name in names]).encode())
    digest.update(goal.description.encode())
    digest.update(federation.digest)
    for tensor in (goal.x, *goal.buffers.values()):
        digest.update(repr((tensor.dtype, tensor.shape)).encode())
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
