"""`fedsps data`: the data sets' files, and a look at a table of one's own.

Files are looked for in the folder that `FEDSPS_DATA` names, then in the cache. `list` and `verify` download nothing;
`fetch` does, for machines that will be without a network later.
"""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from fedsps import data
from fedsps.cli.terminal import paper, print_frame, say
from fedsps.errors import DataError
from fedsps.runs.task import split_names

app = typer.Typer(
    help="The data sets: where they are, fetch them, check them; a look at a table.", no_args_is_help=True
)


@app.command(name="look")
def look(
    file: Annotated[Path, typer.Argument(help="A table of your own: .csv, .tsv, .parquet or .feather.")],
    client_column: Annotated[str | None, typer.Option(help="The column that says whose sample it is.")] = None,
    target_column: Annotated[
        str | None, typer.Option(help="The column to predict. Default: target, else the last.")
    ] = None,
    drop: Annotated[str, typer.Option(help="Columns to leave out, with commas between them.")] = "",
) -> None:
    """Look at a table: what each column is taken for, and all findings at once. Nothing is trained."""
    table = data.Table.read(file, client=client_column, target=target_column, drop=split_names(drop))
    clients = "" if client_column is None else f", {len(table.clients)} clients"
    title = f"{file.name}: {len(table.train)} rows to train on, {len(table.test)} to test on{clients}"
    print_frame(table.look, title)
    for finding in table.findings:
        say(f"- {finding}")


@app.command(name="list")
def list_files() -> None:
    """Show the data sets and where their files are."""
    table = Table("data set", "file", "where", "bytes", box=None)
    for name in data.data_sets():
        for status in data.status(name):
            size = "" if status.size is None else f"{status.size:,}"
            table.add_row(name, status.name, status.where, size)
    paper.print(table)
    paper.print("Files are looked for in the folder that FEDSPS_DATA names, then in the cache, else downloaded.")


DataSets = Annotated[list[str] | None, typer.Argument(help="Data sets; all if none is named.", show_default=False)]


@app.command(name="fetch")
def fetch(names: DataSets = None) -> None:
    """Download what is missing into the cache, and check it."""
    for name in names or data.data_sets():
        data.fetch(name)
        paper.print(f"{name}: ready", highlight=False)


@app.command(name="verify")
def verify(names: DataSets = None) -> None:
    """Check the sha256 of every file that is here; one error lists all that are damaged."""
    damaged = []
    for name in names or data.data_sets():
        try:
            for status in data.verify(name):
                state = "missing" if status.where == "missing" else "right"
                paper.print(f"{name} {status.name}: {state}", highlight=False)
        except DataError as error:
            damaged.append(str(error))
    if damaged:
        raise DataError("\n".join(damaged))
