"""`fedsps reproduce`: the paper's experiments, and a verdict on every claim.

One bar shows what is being done, on standard error; the table of verdicts, or the JSON, is on standard output. A
verdict that does not hold is a result, not an error: the exit code is 0.
"""

from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.progress import Progress
from rich.table import Table

from fedsps.cli.options import AsJson, Jobs, Runs
from fedsps.cli.terminal import bar_columns, paper, print_json, say, screen
from fedsps.paper.page import Scale
from fedsps.paper.reproduce import PAGES, find, reproduce

app = typer.Typer(rich_markup_mode="rich")


@app.command(name="reproduce")
def reproduce_command(
    pages: Annotated[list[str] | None, typer.Argument(help="Pages; all if none is named.", show_default=False)] = None,
    show: Annotated[bool, typer.Option("--list", help="Show the pages and stop.")] = False,
    scale: Annotated[Scale, typer.Option(help="Minutes, 150 rounds, or hours.")] = "smoke",
    seeds: Annotated[int | None, typer.Option(help="Default: 3 at paper scale (1 for cifar), else 1.", min=1)] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="Folder for figures, tables and verdicts. Default: reproduction/SCALE.", show_default=False),
    ] = None,
    text: Annotated[Path | None, typer.Option(help="The Markdown document. Default: OUTPUT/README.md.")] = None,
    jobs: Jobs = 1,
    runs: Runs = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Re-run the paper's experiments: figures, tables, and a verdict on every claim.

    Runs are cached: a second call draws without training, an interrupted one goes on where it stopped. The document
    shows every page that lies in OUTPUT, so pages may be run one by one, and at scales of their own.
    """
    torch.set_num_threads(1)
    if show:
        for page in [find(name) for name in pages or PAGES]:
            claims = ", ".join(claim.id for claim in page.claims)
            paper.print(f"{page.name:12} {page.title} ({claims})", highlight=False, soft_wrap=True)
        return
    with Progress(*bar_columns(), console=screen) as progress:
        bar = progress.add_task("", total=None, note="")

        def report(what: str, done: int, size: int) -> None:
            progress.update(bar, description=what, completed=done, total=size)

        pages_done = reproduce(
            *(pages or ()), scale=scale, seeds=seeds, output=output, text=text, runs=runs, jobs=jobs, report=report
        )
    verdicts = [verdict for page_done in pages_done for verdict in page_done.verdicts]
    if as_json:
        print_json(
            {
                verdict.claim.id + (f" {verdict.column}" if verdict.column else ""): verdict.outcome
                for verdict in verdicts
            }
        )
        return
    table = Table(box=None, padding=(0, 1, 0, 0))
    for heading in ("claim", "loss", "verdict", "numbers", "statement"):
        table.add_column(heading)
    for verdict in verdicts:
        table.add_row(verdict.claim.id, verdict.column, verdict.outcome, verdict.numbers, verdict.claim.statement)
    paper.print(table)
    say(f"written: {text or (output or Path('reproduction', scale)) / 'README.md'}")
