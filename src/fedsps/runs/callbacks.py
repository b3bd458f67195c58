"""Ready callbacks for `fedsps.train` and `fedsps.run`: a progress bar, logging, TensorBoard, MLflow.

Each is given to `callback=`, alone or in a list, and closes what it opened when the run ends, however it does.
TensorBoard and MLflow are extras, imported when one is made.
"""

import logging
import os
import sys
from pathlib import Path
from typing import Any, Self

import numpy as np

from fedsps.engine.history import in_short
from fedsps.engine.now import Now
from fedsps.errors import ConfigurationError


def numbers(now: Now) -> dict[str, float]:
    """The columns of a round that have a finite number, but for its number."""
    return {
        name: float(value)
        for name, value in now.items()
        if name != "round" and isinstance(value, int | float) and np.isfinite(value)
    }


class Progress:
    """A progress bar with the training loss: rich's in a terminal, tqdm's in a notebook.

    `fedsps.train(..., progress=True)` makes one.
    """

    def __init__(self) -> None:
        self._bar: Any = None

    def __enter__(self) -> Self:
        return self

    def __call__(self, now: Now) -> None:
        """Move the bar to this round."""
        if self._bar is None:
            self._bar = _notebook_bar(now.rounds) if _in_notebook() else _terminal_bar(now.rounds)
        self._bar(now.round, in_short(now))

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar(None, "")
        self._bar = None


def _in_notebook() -> bool:
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return shell is not None and hasattr(shell, "kernel")


def _terminal_bar(rounds: int) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    bars = Bars(*columns, console=Console(stderr=True))
    bars.start()
    task = bars.add_task("", total=rounds)

    def move(round: int | None, text: str) -> None:
        if round is None:
            bars.stop()
        else:
            bars.update(task, completed=round, description=text)

    return move


def _notebook_bar(rounds: int) -> Any:
    from tqdm.auto import tqdm

    bar = tqdm(total=rounds)

    def move(round: int | None, text: str) -> None:
        if round is None:
            bar.close()
        else:
            bar.set_description_str(text, refresh=False)
            bar.update(round - bar.n)

    return move


class Log:
    """A line a round for Python's logging, under the name `fedsps`.

    Args:
        level: of the lines.
    """

    def __init__(self, level: int = logging.INFO) -> None:
        self.level = level

    def __call__(self, now: Now) -> None:
        """Log one line."""
        logging.getLogger("fedsps").log(self.level, "round %d/%d: %s", now.round, now.rounds, in_short(now))


class TensorBoard:
    """Every column of the history as a scalar of TensorBoard (extra `tensorboard`).

    Args:
        folder: where the event files go; one for each run, so that TensorBoard tells them apart.

    Raises:
        ConfigurationError: tensorboard is not installed.
    """

    def __init__(self, folder: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigurationError("TensorBoard needs tensorboard: pip install 'fedsps[tensorboard]'") from error
        self.folder, self._make = Path(folder), SummaryWriter
        self._writer: Any = None

    def __enter__(self) -> Self:
        self._writer = self._make(str(self.folder))
        return self

    def __call__(self, now: Now) -> None:
        """Write the scalars of this round."""
        assert self._writer is not None, "entered by the run"
        for name, value in numbers(now).items():
            self._writer.add_scalar(name, value, now.round)

    def __exit__(self, *error: object) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = None


class MLflow:
    """Every column of the history as a metric of a run of MLflow (extra `mlflow`), which fails where ours fails.

    Args:
        where: a folder, or the address of a server, "http://...".
        experiment: its name there; made if it is not there.
        name: of the run.
        **parameters: what else is noted with the run.

    Raises:
        ConfigurationError: mlflow-skinny is not installed.
    """

    def __init__(
        self, where: str | Path = "mlruns", experiment: str = "fedsps", name: str | None = None, **parameters: Any
    ) -> None:
        try:
            from mlflow.tracking import MlflowClient
        except ImportError as error:
            raise ConfigurationError("MLflow needs mlflow-skinny: pip install 'fedsps[mlflow]'") from error
        address = str(where)
        if "://" not in address:
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # else MLflow wants a data base
            address = Path(where).resolve().as_uri()
        self._client = MlflowClient(address)
        self._experiment, self._name, self._parameters = experiment, name, parameters
        self.run_id: str | None = None

    def __enter__(self) -> Self:
        known = self._client.get_experiment_by_name(self._experiment)
        place = self._client.create_experiment(self._experiment) if known is None else known.experiment_id
        self.run_id = self._client.create_run(place, run_name=self._name).info.run_id
        for key, value in self._parameters.items():
            self._client.log_param(self.run_id, key, value)
        self._is_new = True
        return self

    def __call__(self, now: Now) -> None:
        """Log the metrics of this round, and with the first one the algorithm."""
        from mlflow.entities import Metric

        assert self.run_id is not None, "entered by the run"
        if self._is_new:
            self._client.log_param(self.run_id, "algorithm", now.algorithm)
            self._client.log_param(self.run_id, "rounds", now.rounds)
            self._is_new = False
        metrics = [Metric(name, value, 0, now.round) for name, value in numbers(now).items()]
        self._client.log_batch(self.run_id, metrics=metrics)

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._client.set_terminated(self.run_id, "FINISHED" if kind is None else "FAILED")
