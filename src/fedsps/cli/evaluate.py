"""`fedsps evaluate`: a finished run's model, on its clients' data and on the test data.

The data is loaded and split again as the spec says; the mean over clients has the weights of the run, so that the
training loss is the one that its history ends with. Beside it are the worst client's loss and accuracy, which the
history does not have.
"""

from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.table import Table
from rich.text import Text

from fedsps.cli.options import AsJson, Threads
from fedsps.cli.terminal import paper, print_json
from fedsps.engine.evaluate import evaluate_clients
from fedsps.errors import ConfigurationError
from fedsps.model.logistic import network_of
from fedsps.report.format import finite, shown, spec_title
from fedsps.runs.run import load

app = typer.Typer(rich_markup_mode="rich")


@app.command(name="evaluate")
def evaluate_command(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
    as_json: AsJson = False,
    threads: Threads = 1,
) -> None:
    """Evaluate a finished run's model on its clients' data and on the test data."""
    torch.set_num_threads(threads)
    result = load(folder)
    spec = result.spec
    if spec.task is None or result.model is None:
        raise ConfigurationError(
            f"{folder} was saved from Python, where its data is: use fedsps.load(folder, model=...) there"
        )
    task = spec.task.load(spec.plan.seed, spec.files.get("data"))
    network = network_of(result.model, task.loss)
    scores: dict[str, float] = {}
    for name, data in {"train": task.clients, "test": task.test}.items():
        if data is None:
            continue
        loss, accuracy = evaluate_clients(network, network.x, network.buffers, data.to(network.x, network.accepted))
        counts = torch.from_numpy(data.sizes).to(loss) if spec.plan.weights == "samples" else torch.ones_like(loss)
        share = counts / counts.sum()
        scores |= {f"{name}_loss": (share * loss).sum().item(), f"{name}_accuracy": (share * accuracy).sum().item()}
        if name == "train":
            scores |= {"worst_client_loss": loss.max().item(), "worst_client_accuracy": accuracy.min().item()}
    if as_json:
        print_json(finite([scores])[0])
        return
    table = Table(title=Text(f"{spec.named.label()}: {spec_title(spec)}"), title_justify="left", box=None)
    table.add_column("measure")
    table.add_column("value", justify="right")
    for name, value in scores.items():
        table.add_row(name.replace("_", " "), shown(value))
    paper.print(table)
