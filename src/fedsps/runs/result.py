"""What a run leaves behind: the trained model, its history, and what was asked.

| file in the run's folder | holds |
| --- | --- |
| `spec.json` | what was asked, see `Spec` |
| `history.parquet` | one row a round |
| `model.safetensors` | the trained weights, where there is a model |
| `summary.json` | the run in a few numbers; written last, so that a folder with one is complete |
"""

import platform
import shutil
import subprocess
from collections.abc import Iterable
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

from fedsps.core.files import replace_file
from fedsps.engine.history import COLUMNS, Row
from fedsps.errors import ConfigurationError, DataError
from fedsps.runs.files import read_json, write_json
from fedsps.runs.spec import Spec
from fedsps.version import __version__

SPEC, HISTORY, SUMMARY, WEIGHTS = "spec.json", "history.parquet", "summary.json", "model.safetensors"
KINDS: dict[str, Any] = {"diverged_at": int | None, "data": dict, "provenance": dict}  # what is read from a summary
REMEDY = "delete the folder and run again, or run with fresh=True"


@cache
def commit() -> str | None:
    """The commit of the checkout that this file is in; None for an installed package, or without git."""
    checkout = Path(__file__).parents[3]
    if not (checkout / ".git").exists() or shutil.which("git") is None:
        return None
    words = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip() or None


def provenance() -> dict[str, Any]:
    """With what, where and when a run was made: versions, commit, machine, threads, and the time in UTC."""
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
    """What a run came to. A run that diverged has a result too.

    Attributes:
        model: the trained module, in evaluation mode; None where only the numbers were read.
        history: one row a round; the columns are in `fedsps.engine.history`.
        spec: what was asked.
        diverged_at: the round in which a loss or the model was no longer finite, else None.
        data: what the data and the model turned out to be: clients, sizes, classes.
        provenance: versions, commit, machine and time.
    """

    model: nn.Module | None
    history: pd.DataFrame
    spec: Spec
    diverged_at: int | None = None
    data: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=provenance)

    @property
    def summary(self) -> dict[str, Any]:
        """The run in a few numbers; all of it JSON, and null where a number is missing or not finite.

        The training loss and the accuracy are those of evaluated rounds; seconds, exchanges, gradients and bytes are
        sums over all rounds.
        """
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
        """Write `spec.json`, `history.parquet`, `summary.json` and the weights (safetensors) into a folder.

        Each file is written all or nothing, the summary last and after the old one is gone: a folder that is only half
        written does not pass for a finished run.

        Args:
            folder: made if it is not there; what lies in it under these names is replaced.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / SUMMARY).unlink(missing_ok=True)
        write_json(folder / SPEC, self.spec.json())
        replace_file(folder / HISTORY, lambda partial: self.history.to_parquet(partial, index=False))
        if self.model is not None:
            model = self.model
            replace_file(folder / WEIGHTS, lambda partial: save_model(model, str(partial)))
        write_json(folder / SUMMARY, self.summary)  # last, so that a folder with a summary is complete
        return folder

    @classmethod
    def load(cls, folder: str | Path, model: nn.Module | None = None) -> "Result":
        """Read what `save` wrote. The architecture is not in the folder: give a `model` to get its weights back.

        Args:
            folder: of a finished run.
            model: it is filled with the weights, in place; without it the result has numbers alone.

        Raises:
            DataError: if the run is not finished, a file is missing or damaged, or the weights do not fit the model.
        """
        folder = Path(folder)
        missing = [name for name in (SPEC, HISTORY, SUMMARY) if not (folder / name).is_file()]
        if SUMMARY in missing:
            raise DataError(f"{folder} is not the folder of a finished run: it has no {', '.join(missing)}")
        if missing:
            raise damaged(folder, f"it has no {', '.join(missing)}")
        spec, summary = _read_spec(folder / SPEC), _read_summary(folder / SUMMARY)
        history = _read_history(folder / HISTORY)
        if model is not None:
            load_weights(folder, model)
        return cls(model, history, spec, summary["diverged_at"], summary["data"], summary["provenance"])


def frame(rows: list[Row], columns: Iterable[str] = COLUMNS) -> pd.DataFrame:
    """The rows of a session as a table; a row without a value for a column has NaN there.

    >>> frame([{"round": 1, "train_loss": 0.5}], columns=["round", "train_loss", "test_loss"]).iloc[0].tolist()
    [1.0, 0.5, nan]
    """
    return pd.DataFrame(rows, columns=list(columns))


def damaged(path: Path, what: str) -> DataError:
    """An error for a run folder, or a file in it, that cannot be used.

    >>> print(damaged(Path("spec.json"), "it has no plan"))
    spec.json is damaged (it has no plan): delete the folder and run again...
    """
    return DataError(f"{path} is damaged ({what}): {REMEDY}")


def _read(path: Path) -> dict[str, Any]:
    """As `read_json`, with what to do about it in the error."""
    try:
        return read_json(path)
    except DataError as error:
        raise DataError(f"{error}: {REMEDY}") from error


def _read_spec(path: Path) -> Spec:
    """The spec; one that another version of fedsps wrote is told apart from a damaged one."""
    content = _read(path)
    for name in ("algorithm", "plan"):
        if name not in content:
            raise damaged(path, f"it has no {name}")
    try:
        return Spec.from_json(content)
    except ConfigurationError as error:
        raise DataError(f"{path} is of another version of fedsps ({error}): use that, or run again") from error
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise damaged(path, str(error)) from error


def _read_summary(path: Path) -> dict[str, Any]:
    """The summary, after a look at the three entries that a result is made of."""
    content = _read(path)
    for name, kind in KINDS.items():
        if name not in content:
            raise damaged(path, f"it has no {name}")
        if not isinstance(content[name], kind):
            raise damaged(path, f"its {name} is {content[name]!r}")
    return content


def _read_history(path: Path) -> pd.DataFrame:
    """The table; refused unless every column that reports and claims rely on is there, as numbers."""
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
    """Fill a run's weights into its model, in place.

    Raises:
        DataError: if they are missing or cannot be read, or the model's parameters have other names or shapes.
    """
    path = folder / WEIGHTS
    if not path.is_file():
        raise damaged(folder, f"it has no {WEIGHTS}")
    try:
        load_model(model, path)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path} cannot be read ({error}): {REMEDY}") from error
    except RuntimeError as error:
        raise DataError(f"the weights in {path} do not fit the model: {error}") from error


def number(value: float | None) -> float | None:
    """A finite number as it is, anything else as JSON's null.

    >>> number(2), number(float("inf")), number(None)
    (2.0, None, None)
    """
    return float(value) if value is not None and np.isfinite(value) else None
