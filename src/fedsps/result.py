"""What a run leaves behind: the trained model, its history, and what was asked."""

import json
import platform
import shutil
import subprocess
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from safetensors import SafetensorError
from safetensors.torch import load_model, save_model
from torch import nn

from fedsps.errors import DataError
from fedsps.history import COLUMNS
from fedsps.version import __version__

SPEC, HISTORY, SUMMARY, WEIGHTS = "spec.json", "history.parquet", "summary.json", "model.safetensors"
KINDS: dict[str, dict[str, Any]] = {  # what is read from a run's files; those of another version may hold more
    SPEC: {
        "algorithm": str,
        "model": str,
        "clients": int,
        "local_steps": int,
        "batch_size": int | None,
        "cohort": int,
        "seed": int,
    },
    SUMMARY: {"diverged_at": int | None, "data": dict, "provenance": dict},
}
MAY_LACK = {"data": str, "parameters": dict, "files": dict}  # of the spec, in runs from Python and of a federation
REMEDY = "delete the folder and run again, or give train or compare --fresh"


@cache
def commit() -> str | None:
    """The commit of the checkout that this file is in, if it is in one."""
    checkout = Path(__file__).parents[2]
    if not (checkout / ".git").exists() or shutil.which("git") is None:
        return None
    words = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip() or None


def provenance() -> dict[str, Any]:
    """With what, where and when a run was made."""
    return {
        "fedsps": __version__,
        "commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }


@dataclass(frozen=True)
class Result:
    """The outcome of a run. A run that diverged is one too: `diverged_at` is the round, else None."""

    model: nn.Module | None
    history: pd.DataFrame
    spec: dict[str, Any]
    diverged_at: int | None = None
    data: dict[str, Any] = field(default_factory=dict)  # what the data turned out to be: sizes, shape, classes
    provenance: dict[str, Any] = field(default_factory=provenance)

    @property
    def summary(self) -> dict[str, Any]:
        """The run in a few numbers; all of it JSON."""
        table = self.history
        evaluated = table["train_loss"].dropna()
        return {
            "rounds": len(table),
            "diverged_at": self.diverged_at,
            "final_train_loss": number(evaluated.iloc[-1] if len(evaluated) else None),
            "final_cohort_loss": number(table["cohort_loss"].iloc[-1] if len(table) else None),
            "best_test_accuracy": number(table["test_accuracy"].max()),
            "stepsize_mean": number(table["stepsize_mean"].mean()),
            "seconds": number(table["seconds"].sum()),
            "exchanges": int(table["exchanges"].sum()),
            "gradient_evaluations": int(table["gradient_evaluations"].sum()),
            "bytes_up": int(table["bytes_up"].sum()),
            "bytes_down": int(table["bytes_down"].sum()),
            "data": self.data,
            "provenance": self.provenance,
        }

    def save(self, folder: str | Path) -> Path:
        """Write `spec.json`, `history.parquet`, `summary.json` and the weights (safetensors) into a folder."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / SUMMARY).unlink(missing_ok=True)
        (folder / SPEC).write_text(json.dumps(self.spec, indent=2) + "\n", encoding="utf-8")
        self.history.to_parquet(folder / HISTORY, index=False)
        if self.model is not None:
            save_model(self.model, str(folder / WEIGHTS))
        # last, and all or nothing, so that a folder with a summary is complete
        partial = (folder / SUMMARY).with_suffix(".partial")
        partial.write_text(json.dumps(self.summary, indent=2) + "\n", encoding="utf-8")
        partial.replace(folder / SUMMARY)
        return folder

    @classmethod
    def load(cls, folder: str | Path, model: nn.Module | None = None) -> "Result":
        """Read what `save` wrote. The architecture is not in the folder: give a `model` to get its weights back."""
        folder = Path(folder)
        missing = [name for name in (SPEC, HISTORY, SUMMARY) if not (folder / name).is_file()]
        if SUMMARY in missing:
            raise DataError(f"{folder} is not the folder of a finished run: it has no {', '.join(missing)}")
        if missing:
            raise damaged(folder, f"it has no {', '.join(missing)}")
        spec, summary = _read(folder / SPEC), _read(folder / SUMMARY)
        history = _read_history(folder / HISTORY)
        if model is not None:
            load_weights(folder, model)
        return cls(model, history, spec, summary["diverged_at"], summary["data"], summary["provenance"])


def damaged(path: Path, what: str) -> DataError:
    """An error for a run folder, or a file in it, that cannot be used."""
    return DataError(f"{path} is damaged ({what}): {REMEDY}")


def _read(path: Path) -> dict[str, Any]:
    """The spec or the summary of a run, with what is read from it in place."""
    try:
        found = read_json(path)
    except DataError as error:
        raise DataError(f"{error}: {REMEDY}") from error
    kinds = KINDS[path.name]
    if path.name == SPEC:
        kinds = kinds | {name: kind for name, kind in MAY_LACK.items() if name in found}
    for name, kind in kinds.items():
        if name not in found:
            raise damaged(path, f"it has no {name}")
        if not isinstance(found[name], kind):
            raise damaged(path, f"its {name} is {found[name]!r}")
    return found


def _read_history(path: Path) -> pd.DataFrame:
    try:
        table = pd.read_parquet(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}): {REMEDY}") from error
    numbers = table.select_dtypes("number").columns
    missing = [name for name in COLUMNS if name not in numbers]
    if missing:
        raise damaged(path, f"it has no numbers for {', '.join(missing)}")
    return table


def load_weights(folder: Path, model: nn.Module) -> None:
    """Fill a run's weights into its model."""
    path = folder / WEIGHTS
    if not path.is_file():
        raise damaged(folder, f"it has no {WEIGHTS}")
    try:
        load_model(model, path)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path} cannot be read ({error}): {REMEDY}") from error
    except RuntimeError as error:
        raise DataError(f"the weights in {path} do not fit the model: {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error})") from error
    if not isinstance(found, dict):
        raise DataError(f"{path} does not hold a JSON object")
    return found


def number(value: float | None) -> float | None:
    """A finite number as it is, anything else as JSON's null."""
    return float(value) if value is not None and np.isfinite(value) else None
