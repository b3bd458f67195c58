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
from fedsps.version import __version__

SPEC, HISTORY, SUMMARY, WEIGHTS = "spec.json", "history.parquet", "summary.json", "model.safetensors"


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
        (folder / SPEC).write_text(json.dumps(self.spec, indent=2) + "\n")
        self.history.to_parquet(folder / HISTORY, index=False)
        if self.model is not None:
            save_model(self.model, str(folder / WEIGHTS))
        # last, so that a folder with a summary is complete
        (folder / SUMMARY).write_text(json.dumps(self.summary, indent=2) + "\n")
        return folder

    @classmethod
    def load(cls, folder: str | Path, model: nn.Module | None = None) -> "Result":
        """Read what `save` wrote. The architecture is not in the folder: give a `model` to get its weights back."""
        folder = Path(folder)
        missing = [name for name in (SPEC, HISTORY, SUMMARY) if not (folder / name).is_file()]
        if missing:
            raise DataError(f"{folder} is not the folder of a finished run: it has no {', '.join(missing)}")
        summary = read_json(folder / SUMMARY)
        if model is not None:
            try:
                load_model(model, folder / WEIGHTS)
            except (RuntimeError, OSError, SafetensorError) as error:
                raise DataError(f"the weights in {folder / WEIGHTS} do not fit the model: {error}") from error
        try:
            history = pd.read_parquet(folder / HISTORY)
        except (OSError, ValueError) as error:
            raise DataError(f"{folder / HISTORY} cannot be read ({error})") from error
        spec = read_json(folder / SPEC)
        return cls(model, history, spec, summary["diverged_at"], summary["data"], summary["provenance"])


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error})") from error
    if not isinstance(found, dict):
        raise DataError(f"{path} does not hold a JSON object")
    return found


def number(value: float | None) -> float | None:
    """A finite number as it is, anything else as JSON's null."""
    return float(value) if value is not None and np.isfinite(value) else None
