"""`fedsps report`: runs and verdicts as one HTML file.

The page is put together in full before the file is opened, so that what is refused leaves an old report as it is.
"""

from pathlib import Path
from typing import Annotated

import typer

from fedsps.cli.terminal import say
from fedsps.errors import ConfigurationError
from fedsps.paper.reproduce import PAGES
from fedsps.report.collect import collect
from fedsps.report.page import page as page_of

app = typer.Typer(rich_markup_mode="rich")


@app.command(name="report")
def report_command(
    places: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUNS...",
            help="Run folders, folders of run folders, and output folders of [bold]fedsps reproduce[/], in any mix.",
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The HTML file to write.")] = Path("report.html"),
) -> None:
    """Write runs and verdicts as one interactive HTML page that needs no network.

    Runs that differ in algorithm, parameters and seed alone share a figure. The figures of a reproduction are drawn
    from its own tables; give the folder of its runs too, and their settings are listed.
    """
    if output.is_dir():
        raise ConfigurationError(f"{output} is a folder: name a file for the report")
    material = collect(places, list(PAGES))
    text = page_of(material)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(text, encoding="utf-8", newline="\n")
    verdicts = sum(len(page.found["verdicts"]) for page in material.pages)
    if material.left_out:
        say(f"left out: {material.left_out} runs that lie beside those of the reproduced pages; to have one, name it")
    say(f"report: {output} (runs: {len(material.runs)}, verdicts: {verdicts})")
