"""`fedsps reproduce`: the paper's experiments, and a verdict on every claim.

One bar shows what is being done, on standard error; the table of verdicts, or the JSON, is on standard output. A
verdict that does not hold is a result, not an error: the exit code is 0. It is 1 if a run failed: the others go on, and
its page is judged when it is complete.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.table import Table

from fedsps.cli.options import AsJson, Jobs, Runs
from fedsps.cli.terminal import Bars, as_far_as_possible, paper, print_json, say, say_wrapped
from fedsps.paper.page import Scale, Verdict
from fedsps.paper.reproduce import PAGES, find, reproduce

app = typer.Typer(rich_markup_mode="rich")


@app.command(name="reproduce")
def reproduce_command(
    pages: Annotated[list[str] | None, typer.Argument(help="Pages; all if none is named.", show_default=False)] = None,
    show: Annotated[bool, typer.Option("--list", help="Show the pages and stop.")] = False,
    scale: Annotated[Scale, typer.Option(help="Minutes, 150 rounds, or hours.")] = "smoke",
    seeds: Annotated[
        int | None, typer.Option(help="Default: each page's own at paper scale (10 for most), else 1.", min=1)
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="Folder for figures, tables and verdicts. Default: reproduction/SCALE.", show_default=False),
    ] = None,
    text: Annotated[Path | None, typer.Option(help="The Markdown document. Default: OUTPUT/README.md.")] = None,
    jobs: Jobs = 1,
    runs: Runs = Path("runs"),
    from_tables: Annotated[
        bool, typer.Option("--from-tables", help="Judge and draw again what lies in OUTPUT, without training.")
    ] = False,
    add: Annotated[
        bool, typer.Option("--add", help="Take the runs and winners that OUTPUT's tables hold, and run what they lack.")
    ] = False,
    minutes: Annotated[
        float | None,
        typer.Option(help="More than 0: begin no further panel after so long; judge those that are complete."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Re-run the paper's experiments: figures, tables, and a verdict on every claim.

    Runs are cached: a second call draws without training, an interrupted one goes on where it stopped. The document
    shows every page that lies in OUTPUT, so pages may be run one by one, and at scales of their own. Only the paper
    scale decides about the paper: what a smaller one shows is said beside "undecided". A page that takes longer than a
    machine is there can be run in stretches: --minutes ends one, and --add goes on with its tables, without its runs.
    """
    torch.set_num_threads(1)
    if show:
        for page in [find(name) for name in pages or PAGES]:
            claims = ", ".join(claim.id for claim in page.claims)
            say_wrapped(f"{page.name:12} {page.title} ({claims})", hang=13)
        return
    with Bars() as progress:
        bar = progress.add_task("", total=None, note="")

        def report(what: str, done: int, size: int) -> None:
            progress.tell(bar, description=what, completed=done, total=size)

        pages_done, failed = as_far_as_possible(
            lambda: reproduce(
                *(pages or ()),
                scale=scale,
                seeds=seeds,
                output=output,
                text=text,
                runs=runs,
                jobs=jobs,
                report=report,
                from_tables=from_tables,
                add=add,
                minutes=minutes,
            )
        )
    verdicts = [verdict for page_done in pages_done for verdict in page_done.verdicts]
    if as_json:
        print_json(
            {
                " ".join(filter(None, (verdict.claim.id, verdict.case, verdict.column))): verdict.words
                for verdict in verdicts
            }
        )
    else:
        _show(verdicts)
        say(f"written: {text or (output or Path('reproduction', scale)) / 'README.md'}")
    if failed is not None:
        raise failed


def _show(verdicts: Sequence[Verdict]) -> None:
    """The verdicts as a table."""
    table = Table(box=None, padding=(0, 1, 0, 0))
    for heading in ("claim", "case", "loss", "verdict", "numbers", "statement"):
        table.add_column(heading)
    for verdict in verdicts:
        claim = verdict.claim
        table.add_row(claim.id, verdict.case, verdict.column, verdict.words, verdict.numbers, claim.statement)
    paper.print(table)
