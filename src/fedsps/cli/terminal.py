"""What the command shows: results on standard output, progress and complaints on standard error.

So `fedsps ... --json > file` holds JSON and nothing else. Where standard output is no terminal, tables are 120 columns
wide, the same everywhere.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from fedsps.engine.history import Row
from fedsps.report.compare import HEADINGS, Comparison
from fedsps.report.format import shown
from fedsps.runs.result import Result
from fedsps.runs.run import is_done
from fedsps.runs.spec import Spec
from fedsps.runs.sweep import Watch

screen = Console(stderr=True)
paper = Console(width=None if sys.stdout.isatty() else 120)


def complain(message: str) -> None:
    """One line in red on standard error, "error: ..."; how the command ends is for the caller to say."""
    screen.print(Text.assemble(("error: ", "bold red"), message), soft_wrap=True)


def note(message: str) -> None:
    """One line on standard error, "note: ...", for what is worth knowing but no error."""
    screen.print(Text.assemble(("note: ", "yellow"), message), soft_wrap=True)


@contextmanager
def bars_of(specs: Sequence[Spec], runs: Path, fresh: bool, exact: bool = False) -> Iterator[Watch]:
    """A live bar for each run; what is yielded moves them. Ctrl-C says how to go on.

    Bars end with the final loss or the round of divergence, read from the run folders, and say which runs were there
    before.

    Args:
        specs: of the runs, in the order in which `watch` numbers them.
        runs: the folder of run folders.
        exact: whether results of sweeps count as not there.
        fresh: whether runs that are there are trained again.
    """
    several_seeds = len({spec.plan.seed for spec in specs}) > 1
    there = [is_done(spec, runs, exact) and not fresh for spec in specs]
    with Progress(*bar_columns(), console=screen) as progress:
        bars = []
        for spec in specs:
            label = spec.named.label(*(other.named for other in specs))
            label += f" seed {spec.plan.seed}" if several_seeds else ""
            bars.append(progress.add_task(label, total=spec.plan.rounds, note="", start=False))

        def watch(number: int, row: Row) -> None:
            loss = row["cohort_loss"] if np.isnan(row["train_loss"]) else row["train_loss"]
            progress.start_task(bars[number])
            progress.update(bars[number], completed=row["round"], note=f"loss {loss:.4g}")

        try:
            yield watch
        except KeyboardInterrupt:
            progress.stop()
            how = "the same command without --fresh" if fresh else "the same command"
            screen.print(f"interrupted; {how} goes on where this one stopped")
            raise typer.Exit(130) from None
        for bar, spec, was_there in zip(bars, specs, there, strict=True):
            result = Result.load(runs / spec.digest)
            end = f"diverged in round {result.diverged_at}" if result.diverged_at else f"loss {_final(result)}"
            progress.update(bar, completed=len(result.history), note=end + (" (was there)" if was_there else ""))
            progress.stop_task(bar)


def bar_columns() -> tuple[ProgressColumn, ...]:
    """What a progress bar shows: what is done, the bar, how much of it, a note, and the time."""
    return (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        TimeElapsedColumn(),
    )


def _final(result: Result) -> str:
    """The final training loss in four digits; a dash if there is none."""
    return shown(result.summary["final_train_loss"])


def print_comparison(compared: Comparison, title: str, target: bool = True) -> None:
    """The table of a comparison on standard output.

    Args:
        compared: means over the seeds; an algorithm of which any run diverged says so behind its name.
        title: above the table.
        target: whether the rounds to the target are shown; of a single run they would say nothing.
    """
    table = Table(
        title=Text(title),
        title_justify="left",
        caption=compared.note if target else None,
        caption_justify="left",
        box=None,
        padding=(0, 1, 0, 0),
    )
    for name, heading in HEADINGS.items():
        if name == "rounds_to_target" and not target:
            continue
        if name == "algorithm":
            table.add_column(heading, overflow="fold", min_width=22)
        else:
            table.add_column(heading, justify="right")
    for row in compared.table.to_dict("records"):
        diverged = " (diverged)" if row["diverged"] else ""
        reached = "never" if np.isinf(row["rounds_to_target"]) else f"{row['rounds_to_target']:.0f}"
        table.add_row(
            Text(str(row["algorithm"]) + diverged),
            str(row["rounds"]),
            shown(row["final_train_loss"]),
            shown(row["best_test_accuracy"]),
            *([reached] if target else []),
            shown(row["stepsize_mean"]),
            f"{row['seconds']:.1f}",
        )
    paper.print(table)


def say(text: str) -> None:
    """A line on standard output as it is: brackets in names are no markup, and long lines are not broken."""
    paper.print(text, highlight=False, markup=False, soft_wrap=True)


def print_json(content: Any) -> None:
    """A value as JSON on standard output, without colours, for other programs."""
    typer.echo(json.dumps(content, indent=2))
