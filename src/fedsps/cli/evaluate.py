"""`fedsps evaluate`: a finished run's model, on its clients' data and on the test data, or on a file.

The data is loaded and split again as the spec says; the mean over clients has the weights of the run, so that the
training loss is the one that its history ends with. Beside it are the worst client's loss and accuracy, and the numbers
of each client, by its name in the data.
"""

import warnings
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from rich.table import Table
from rich.text import Text

from fedsps.checks import device_name
from fedsps.cli.options import AsJson, Device, Threads
from fedsps.cli.terminal import paper, print_frame, print_json
from fedsps.core.vectors import DTYPES
from fedsps.data.clients import ClientData
from fedsps.data.columns import words_of
from fedsps.data.read import read_frame
from fedsps.engine.evaluate import Own, client_scores
from fedsps.engine.metrics import named_metrics
from fedsps.errors import ConfigurationError, DataError, TableWarning
from fedsps.model.device import find_device, placed
from fedsps.model.logistic import network_of
from fedsps.model.losses import LOSSES
from fedsps.report.format import finite, shown, spec_title
from fedsps.runs.result import Result
from fedsps.runs.run import load
from fedsps.runs.scores import client_table, layers_of_clients

app = typer.Typer(rich_markup_mode="rich")
MOST_CLIENTS = 30  # rows of the printed table; --json has all


@app.command(name="evaluate")
def evaluate_command(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
    data: Annotated[
        Path | None, typer.Option(help="Another table to evaluate on, with the columns that the run trained on.")
    ] = None,
    metrics: Annotated[str, typer.Option(help="Beside loss and accuracy; those of the run if not given.")] = "",
    as_json: AsJson = False,
    threads: Threads = 1,
    device: Device = None,
) -> None:
    """Evaluate a finished run's model on its clients' data and on the test data, or on another table."""
    torch.set_num_threads(threads)
    if device is not None:
        find_device(device_name("device", device))  # refused before anything is loaded
    result = load(folder)
    spec = result.spec
    if spec.task is None or result.model is None:
        raise ConfigurationError(
            f"{folder} was saved from Python, where its data is: use fedsps.load(folder, model=...) there"
        )
    parts = _own_parts(result) if data is None else {"data": _from_table(result, data)}
    loss = LOSSES[spec.task.loss_name(result.data["classes"])]
    network = network_of(placed(result.model, device), loss)
    parts = {name: part.to(network.x, network.accepted) for name, part in parts.items()}
    first = next(iter(parts.values()))
    network.squeezed = network.has_column(first.inputs, first.targets)
    measures = named_metrics(metrics or spec.task.metrics)
    scores: dict[str, float] = {}
    for name, part in parts.items():
        layers = layers_of_clients(result, network, part.labels)
        own = Own.of(*layers, part.sizes) if data is not None or part.clients == first.clients else None
        whole = part if name == "train" else part.pooled if own is None else part.as_one
        by_name = client_scores(network, network.x, network.buffers, whole, measures, own)
        found = {key: np.array(values) for key, values in by_name.items()}
        counts = whole.sizes if spec.plan.weights == "samples" else np.ones(whole.clients)
        scores |= {f"{name}_{key}": float((counts / counts.sum() * values).sum()) for key, values in found.items()}
        if name == "train":
            worst = {"loss": found["loss"].max(), "accuracy": found["accuracy"].min()}
            scores |= {f"worst_client_{key}": float(value) for key, value in worst.items()}
    by_client = {name: part for name, part in parts.items() if part.clients == first.clients}
    layers = layers_of_clients(result, network, first.labels)
    table = client_table(network, network.x, network.buffers, by_client, measures, layers=layers)
    if as_json:
        print_json(finite([scores])[0] | {"clients": finite(table.to_dict("records"))})
        return
    lines = Table(title=Text(f"{spec.named.label()}: {spec_title(spec)}"), title_justify="left", box=None)
    lines.add_column("measure")
    lines.add_column("value", justify="right")
    for name, value in scores.items():
        if not np.isnan(value):
            lines.add_row(name.replace("_", " "), shown(value))
    paper.print(lines)
    if len(table) > 1:
        rest = f", the first {MOST_CLIENTS} of {len(table)}" if len(table) > MOST_CLIENTS else ""
        print_frame(table.head(MOST_CLIENTS), f"by client{rest}")


def _own_parts(result: Result) -> dict[str, ClientData]:
    """The run's own data, split as it was."""
    spec = result.spec
    assert spec.task is not None, "asked by the caller"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TableWarning)  # said when it was trained
        task = spec.task.load(spec.plan.seed, spec.files.get("data"))
    parts = {"train": task.clients}
    if spec.task.validation:
        train, held = task.clients.held_back(spec.task.validation, spec.plan.seed, "validation")
        parts = {"train": train, "validation": held}
    return parts | ({} if task.test is None else {"test": task.test})


def _from_table(result: Result, path: Path) -> ClientData:
    """The rows of a table, by the client column if it is there."""
    columns, task = result.columns, result.spec.task
    if columns is None or task is None:
        raise ConfigurationError("data is for runs that trained on a table: this one has no columns to go by")
    frame, _ = read_frame(path)
    try:
        frame = frame[frame[columns.target].notna()] if columns.target in frame else frame
        inputs, targets = columns(frame), columns.targets(frame)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    for surprise in columns.surprises(frame):
        warnings.warn(f"{path}: {surprise}", TableWarning, stacklevel=2)
    owners = words_of(frame[columns.client]) if columns.client in frame else np.full(len(frame), path.name)
    names, numbers = np.unique(owners.astype(str), return_inverse=True)
    order = np.argsort(numbers, kind="stable")
    made = torch.from_numpy(inputs[order]).to(DTYPES[task.dtype]), torch.from_numpy(targets[order])
    return ClientData(*made, np.bincount(numbers), order, tuple(map(str, names)))
