"""`fedsps predict`: what a finished run's model says of the samples in a file, as CSV."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import pandas as pd
import torch
import typer

from fedsps.checks import device_name
from fedsps.cli.options import Device, Threads
from fedsps.cli.terminal import say
from fedsps.data.own import inputs_of
from fedsps.data.read import read_frame
from fedsps.errors import ConfigurationError, DataError
from fedsps.model.device import placed
from fedsps.runs.run import load

app = typer.Typer(rich_markup_mode="rich")


@app.command(name="predict")
def predict_command(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
    file: Annotated[Path, typer.Argument(help="New samples: a table with the columns of the run's, or an .npz.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where the CSV goes. Default: standard output.")
    ] = None,
    threads: Threads = 1,
    device: Device = None,
) -> None:
    """Predict the samples in a file with a finished run's model, as CSV.

    A table's columns come first, as they are; behind them [bold]prediction[/], and for classes [bold]p(NAME)[/], the
    probability of each.
    """
    torch.set_num_threads(threads)
    result = load(folder)
    if result.model is None:
        raise ConfigurationError(
            f"{folder} was saved from Python: use fedsps.load(folder, model=...).predict(...) there"
        )
    if output is not None and not output.parent.is_dir():
        raise DataError(f"{output}: there is no folder {output.parent}")
    if output is not None and output.is_dir():
        raise DataError(f"{output} is a folder: name a file in it, {output / 'predictions.csv'}")
    model = placed(result.model, None if device is None else device_name("device", device))
    if result.columns is None:
        said = replace(result, model=model).predict(inputs_of(file))
        frame = pd.DataFrame(index=said.index)
    else:
        frame, _ = read_frame(file)
        try:
            said = replace(result, model=model).predict(frame)
        except DataError as error:
            raise DataError(f"{file}: {error}") from error
        frame, _ = read_frame(file, as_written=True)
    taken = [name for name in said if name in frame]
    text = pd.concat([frame.drop(columns=taken), said], axis=1).to_csv(index=False)
    if output is None:
        typer.echo(text, nl=False)
        return
    output.write_text(text, encoding="utf-8")
    say(f"{len(said)} predictions: {output}")
