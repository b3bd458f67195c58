"""What a run leaves behind: the trained model, its history, and what was asked, in memory and as a folder of files.

`docs/history.md` says which files those are, and what is in them.
"""

import copy
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
from safetensors.torch import load_file, load_model, save_file, save_model
from torch import Tensor, nn

from fedsps.core.files import replace_file
from fedsps.data.columns import Columns, words_of
from fedsps.engine.history import COLUMN_ORDER, COLUMNS, Row
from fedsps.engine.metrics import is_better
from fedsps.errors import ConfigurationError, DataError, unknown
from fedsps.runs.files import read_json, write_json
from fedsps.runs.predict import predictions
from fedsps.runs.spec import Spec
from fedsps.version import __version__

SPEC, HISTORY, SUMMARY, WEIGHTS = "spec.json", "history.parquet", "summary.json", "model.safetensors"
CLIENTS, TABLE, LAYERS = "clients.csv", "columns.json", "layers.safetensors"
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
        model: the trained module, in evaluation mode; None where only the numbers were read. Where clients have layers
            of their own it has the mean of them: what a new client starts from. See `model_of`.
        history: one row a round; the columns are in `fedsps.engine.history`.
        spec: what was asked.
        diverged_at: the round in which a loss or the model was no longer finite, else None.
        data: what the data and the model turned out to be: clients, sizes, classes.
        provenance: versions, commit, machine and time.
        clients: one row a client: `client` (its name), `samples`, `loss`, `accuracy` and metrics of the result on them,
            the same on its validation and test samples where it has some, and `stepsize_mean`, over all its steps;
            None where clients do not tell, as in a private federation, and of the trials of a search.
        columns: how rows of a table become inputs, where the run trained on a table.
        layers: what each client has for itself, `[clients, *]`, by the names of the model's `state_dict`; empty unless
            the run was asked for `local_batch_norm`.
    """

    model: nn.Module | None
    history: pd.DataFrame
    spec: Spec
    diverged_at: int | None = None
    data: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=provenance)
    clients: pd.DataFrame | None = None
    columns: Columns | None = None
    layers: dict[str, Tensor] = field(default_factory=dict)

    @property
    def summary(self) -> dict[str, Any]:
        """The run in a few numbers; all of it JSON, and null where a number is missing or not finite.

        The training loss and the accuracy are those of evaluated rounds; seconds, exchanges, gradients and bytes are
        sums over all rounds.
        """
        table = self.history
        best, best_round = self.best("test_accuracy")
        return {
            "rounds": len(table),
            "ended": self.data.get("ended"),
            "kept_round": self.kept_round,
            "diverged_at": self.diverged_at,
            "start_train_loss": number(self.start_loss),
            "final_train_loss": number(self.final("train_loss")),
            "loss_rose": self.loss_rose,
            "final_cohort_loss": number(table["cohort_loss"].iloc[-1] if len(table) else None),
            "final_test_accuracy": number(self.final("test_accuracy")),
            "best_test_accuracy": number(best),
            "best_test_round": best_round,
            "stepsize_mean": number(table["stepsize_mean"].mean()),
            "seconds": number(table["seconds"].sum()),
            "exchanges": int(table["exchanges"].sum()),
            "gradient_evaluations": int(table["gradient_evaluations"].sum()),
            "bytes_up": int(table["bytes_up"].sum()),
            "bytes_down": int(table["bytes_down"].sum()),
            "data": self.data,
            "provenance": self.provenance,
        }

    @property
    def start_loss(self) -> float:
        """The training loss before the first round, or at the first evaluation where that is not known."""
        known = self.data.get("start_train_loss")
        evaluated = self._evaluated("train_loss")
        return float(known) if known is not None else float(evaluated.iloc[0]) if len(evaluated) else np.nan

    @property
    def end_loss(self) -> float:
        """The last training loss that was evaluated, whichever round's model was kept; NaN if none was."""
        values = self._evaluated("train_loss")
        return float(values.iloc[-1]) if len(values) else np.nan

    @property
    def loss_rose(self) -> bool:
        """Whether the training loss ended above its start, by more than a hundredth of it."""
        return bool(self.end_loss - self.start_loss > 0.01 * abs(self.start_loss))

    @property
    def kept_round(self) -> int | None:
        """The round whose model this is, where the best one was kept (`restore_best`); None where it is the last."""
        if not self.spec.plan.restore_best:
            return None
        watched = "train_loss" if self._evaluated("validation_loss").empty else "validation_loss"
        return self.best(self.spec.plan.monitor or watched)[1]

    def final(self, column: str) -> float:
        """A column's value for the model that the run ended with; NaN if it has none.

        That is the last round with a value, or the round whose model was kept: the numbers go with the model.
        """
        values = self._evaluated(column)
        if self.kept_round is not None:
            return float(values.get(self.kept_round, np.nan))
        return float(values.iloc[-1]) if len(values) else np.nan

    def best(self, column: str) -> tuple[float, int | None]:
        """A column's best value, and the first round that has it; less is better of losses and errors."""
        values = self._evaluated(column)
        if not len(values):
            return np.nan, None
        place = int(np.argmin(values) if is_better(column, 0.0, 1.0) else np.argmax(values))
        return float(values.iloc[place]), int(values.index[place])

    def _evaluated(self, column: str) -> "pd.Series[float]":
        """The values of a column by round, where there are any."""
        found: pd.Series[float] = self.history.set_index("round").get(column, pd.Series(dtype=float)).dropna()
        return found

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
        for name in (CLIENTS, TABLE, LAYERS):
            (folder / name).unlink(missing_ok=True)
        if self.columns is not None:
            write_json(folder / TABLE, self.columns.json())
        if self.layers:
            layers = {name: value.detach().cpu().clone() for name, value in self.layers.items()}
            replace_file(folder / LAYERS, lambda partial: save_file(layers, partial))
        if self.clients is not None:
            text = self.clients.to_csv(index=False)
            replace_file(folder / CLIENTS, lambda partial: partial.write_text(text, encoding="utf-8"))
        summary = self.summary
        if self.spec.task is not None:  # of a run that may be asked for again
            summary |= {"parts": self.spec.named.parts}
        write_json(folder / SUMMARY, summary)  # last, so that a folder with a summary is complete
        return folder

    @classmethod
    def load(cls, folder: str | Path, model: nn.Module | None = None) -> "Result":
        """Read what `save` wrote. The architecture is not in the folder: give a `model` to get its weights back.

        Args:
            folder: of a finished run.
            model: the result has a copy of it with the weights, in evaluation mode; without it numbers alone.

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
            model = filled(folder, model)
        clients = _read_clients(folder / CLIENTS) if (folder / CLIENTS).is_file() else None
        columns = _read_columns(folder / TABLE) if (folder / TABLE).is_file() else None
        layers = _read_layers(folder / LAYERS) if (folder / LAYERS).is_file() else {}
        told = summary["diverged_at"], summary["data"], summary["provenance"]
        return cls(model, history, spec, *told, clients, columns, layers)

    def model_of(self, client: str) -> nn.Module:
        """A client's model: the common one, with the layers that this client has for itself, if there are any.

        Args:
            client: its name, as in the table `clients`.

        Raises:
            ConfigurationError: the result has no model, or no client of this name.
        """
        if self.model is None:
            raise ConfigurationError("the result has no model: load it with fedsps.load(folder, model=...)")
        if self.clients is None:
            raise ConfigurationError("the result does not know its clients")
        names, client = list(self.clients["client"]), str(client)
        if client not in names:
            raise unknown("client", client, names)
        model = copy.deepcopy(self.model)
        model.load_state_dict({name: value[names.index(client)] for name, value in self.layers.items()}, strict=False)
        return model

    def predict(self, inputs: Any, client: str | None = None) -> pd.DataFrame:
        """What the trained model says of new samples, a row each.

        Args:
            inputs: a data frame with the columns that the run trained on, or inputs as an array or a tensor
                `[samples, *]`.
            client: whose they are, by name: where clients have layers of their own, its model is used. Those of a data
                frame with the column of clients are known; nobody's get what a new client starts from.

        Returns:
            `prediction`, the name of a class (its number, where it has no name) or a number; and for classes
            `p(NAME)`, the probability of each. Several outputs that are no classes are `output 0`, `output 1`, ...

        Raises:
            ConfigurationError: the result has no model.
            DataError: the inputs do not fit the model.
        """
        if client is not None:
            return predictions(self.model_of(client), inputs, self.columns, self.data)
        owner = None if self.columns is None or not self.layers else self.columns.client
        if not isinstance(inputs, pd.DataFrame) or owner not in inputs or self.clients is None:
            return predictions(self.model, inputs, self.columns, self.data)
        known, owners = set(self.clients["client"]), words_of(inputs[owner])
        parts = []
        for name in dict.fromkeys(owners):
            model = self.model_of(name) if name in known else self.model
            rows = np.flatnonzero(owners == name)
            said = predictions(model, inputs.iloc[rows], self.columns, self.data)
            parts.append(said.set_axis(rows))
        return pd.concat(parts).sort_index()


def frame(rows: list[Row], columns: Iterable[str] = COLUMNS) -> pd.DataFrame:
    """The rows of a session as a table; a row without a value for a column has NaN there.

    Columns that only some runs have, of validation data and metrics, come after those that are named.

    >>> frame([{"round": 1, "train_loss": 0.5}], columns=["round", "train_loss", "test_loss"]).iloc[0].tolist()
    [1.0, 0.5, nan]
    """
    own = dict.fromkeys(name for row in rows for name in row if name not in COLUMN_ORDER)
    return pd.DataFrame(rows, columns=[*columns, *own])


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
    try:
        return Spec.from_json(content)
    except ConfigurationError as error:
        raise DataError(f"{path} is of another version of fedsps ({error}): use that, or run again") from error
    except DataError as error:
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
    except Exception as error:  # whatever a damaged file makes it raise
        raise DataError(f"{path} cannot be read ({error}): {REMEDY}") from error
    numbers = table.select_dtypes("number").columns
    missing = [name for name in COLUMNS if name not in numbers]
    if missing:
        raise damaged(path, f"it has no numbers for {', '.join(missing)}")
    return table


def _read_columns(path: Path) -> Columns:
    """The columns of the table that a run trained on."""
    content = _read(path)
    try:
        return Columns.from_json(content)
    except DataError as error:
        raise damaged(path, str(error)) from error


def _read_clients(path: Path) -> pd.DataFrame:
    """The table of the clients; their names are texts, even where they look like numbers."""
    try:
        return pd.read_csv(path, dtype={"client": str}, keep_default_na=False, na_values=[""])
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}): {REMEDY}") from error


def _read_layers(path: Path) -> dict[str, Tensor]:
    """The layers that clients have for themselves."""
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path} cannot be read ({error}): {REMEDY}") from error


def filled(folder: Path, model: nn.Module) -> nn.Module:
    """A copy of the model with a run's weights, in evaluation mode.

    Raises:
        DataError: if they are missing or cannot be read, or the model's parameters have other names or shapes.
    """
    path = folder / WEIGHTS
    if not path.is_file():
        raise damaged(folder, f"it has no {WEIGHTS}")
    model = copy.deepcopy(model).eval()
    try:
        load_model(model, path)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path} cannot be read ({error}): {REMEDY}") from error
    except RuntimeError as error:
        raise DataError(f"the weights in {path} do not fit the model: {error}") from error
    return model


def number(value: float | None) -> float | None:
    """A finite number as it is, anything else as JSON's null.

    >>> number(2), number(float("inf")), number(None)
    (2.0, None, None)
    """
    return float(value) if value is not None and np.isfinite(value) else None
