"""A run written down after a round, so that a killed process goes on where it stopped.

The file is one of safetensors: numbers and short texts, and reading it runs no code. The state holds all that the next
round depends on beside what was asked, so a run that was interrupted and one that was not have the same history.
"""

import hashlib
import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedsps.core.files import replace_file
from fedsps.core.plan import PLUMBING, Plan
from fedsps.engine.history import Row
from fedsps.engine.setup import Setup, State
from fedsps.errors import DataError

NAME = "checkpoint.safetensors"
LATER = (
    "rounds",
    "evaluate_every",
    "evaluate_from",
    *PLUMBING,
)  # of a plan: a run may be asked for more, it goes on all the same


@dataclass(frozen=True)
class Checkpoint:
    """A file in the run's folder. It holds the state, the history so far, and the fingerprint of the run.

    Attributes:
        folder: the run's.
        fingerprint: of the run; a checkpoint with another one is refused.
        device: where the state is read to.
    """

    folder: Path
    fingerprint: str
    device: str = "cpu"

    @property
    def path(self) -> Path:
        """Where the file lies: `checkpoint.safetensors` in the run's folder."""
        return self.folder / NAME

    def save(self, state: State, rows: list[Row]) -> None:
        """Write all or nothing: the old file stays until the new one is complete.

        Args:
            state: after the last round that is complete.
            rows: the history up to that round.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        notes = {"round": str(state.round), "fingerprint": self.fingerprint, "rows": json.dumps(rows)}
        # safetensors refuses tensors that share memory, as x and the last iterate do
        tensors = {name: tensor.detach().clone() for name, tensor in flatten(state).items()}
        replace_file(self.path, lambda partial: save_file(tensors, partial, notes))

    def load(self) -> tuple[State, list[Row]] | None:
        """The state and the history, or None if nothing was saved.

        Raises:
            DataError: if the file cannot be read, or is that of a run with another fingerprint. The run does not begin
                again by itself: that is for the user to decide.
        """
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

    def forget(self) -> None:
        """Delete the file: the run is finished, or begins again."""
        self.path.unlink(missing_ok=True)


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
    asked += [(field.name, getattr(plan, field.name)) for field in fields(Plan) if field.name not in LATER]
    digest = hashlib.sha256(repr(asked).encode())
    digest.update(network.description.encode())
    digest.update(setup.data.digest)
    for tensor in (network.x, *network.buffers.values()):
        digest.update(repr((tensor.dtype, tensor.shape)).encode())
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
