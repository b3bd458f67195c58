"""What the command shows: results on standard output, progress and complaints on standard error.

So `fedsps ... --json > file` holds JSON and nothing else. Where standard output is no terminal, tables are 120 columns
wide, the same everywhere. Where standard error is none, as in the log of a job, progress is a line every few seconds.
"""

import json
import sys
import textwrap
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import typer
from pandas.api.types import is_numeric_dtype
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from fedsps.engine.history import Row, in_short
from fedsps.errors import FailedRunsError
from fedsps.report.comparison import Comparison, headings
from fedsps.report.format import shown
from fedsps.runs.result import Result
from fedsps.runs.run import is_done
from fedsps.runs.spec import Spec
from fedsps.runs.sweep import Watch

Made = TypeVar("Made")
screen = Console(stderr=True)
PAUSE = 5.0  # seconds between two lines of progress where bars cannot be drawn
paper = Console(width=None if sys.stdout.isatty() else 120)


def complain(message: str) -> None:
    """One line in red on standard error, "error: ..."; how the command ends is for the caller to say."""
    screen.print(Text.assemble(("error: ", "bold red"), message), soft_wrap=True)


def note(message: str) -> None:
    """One line on standard error, "note: ...", for what is worth knowing but no error."""
    screen.print(Text.assemble(("note: ", "yellow"), message), soft_wrap=True)


def as_far_as_possible(work: Callable[[], Made]) -> tuple[Made, FailedRunsError | None]:
    """What the work made; if some of its runs failed, what it made of the others, and the error to raise at the end.

    Raises:
        FailedRunsError: at once, where nothing can be made of the others.
    """
    try:
        return work(), None
    except FailedRunsError as error:
        if not error.finished:
            raise
        return error.finished, error


class Bars(Progress):
    """Progress bars; where they cannot be drawn live, a line from time to time says how far the work is."""

    def __init__(self) -> None:
        super().__init__(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            TimeElapsedColumn(),
            console=screen,
        )
        self._told = time.monotonic()

    def tell(self, bar: TaskID, **changes: Any) -> None:
        """Move a bar, or write its line if enough time has passed since the last one."""
        self.update(bar, **changes)
        if screen.is_terminal or time.monotonic() - self._told < PAUSE:
            return
        self._told = time.monotonic()
        task = next(task for task in self.tasks if task.id == bar)
        of = "" if task.total is None else f"/{task.total:.0f}"
        words = (task.description, f"{task.completed:.0f}{of}", task.fields["note"])
        screen.print(" ".join(filter(None, words)), markup=False, highlight=False, soft_wrap=True)


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
    with Bars() as progress:
        bars = []
        for spec in specs:
            label = spec.named.label(*(other.named for other in specs))
            label += f" seed {spec.plan.seed}" if several_seeds else ""
            bars.append(progress.add_task(label, total=spec.plan.rounds, note="", start=False))

        def watch(number: int, row: Row) -> None:
            progress.start_task(bars[number])
            progress.tell(bars[number], completed=row["round"], note=in_short(row))

        try:
            yield watch
        except KeyboardInterrupt:
            progress.stop()
            how = "the same command without --fresh" if fresh else "the same command"
            screen.print(f"interrupted; {how} goes on where this one stopped")
            raise typer.Exit(130) from None
        for bar, spec, was_there in zip(bars, specs, there, strict=True):
            if not is_done(spec, runs):
                progress.tell(bar, note="failed")
                continue
            result = Result.load(runs / spec.digest)
            end = f"diverged in round {result.diverged_at}" if result.diverged_at else f"train loss {_final(result)}"
            progress.update(bar, completed=len(result.history), note=end + (" (was there)" if was_there else ""))
            progress.stop_task(bar)


def _final(result: Result) -> str:
    """The final training loss in four digits; a dash if there is none."""
    return shown(result.summary["final_train_loss"])


def print_comparison(compared: Comparison, title: str, target: bool = True) -> None:
    """The table of a comparison on standard output.

    Args:
        compared: means over the seeds; an algorithm of which any run diverged, or whose training loss ended above its
            start, says so behind its name.
        title: above the table.
        target: whether the rounds to the target are shown; of a single run they would say nothing.
    """
    table = Table(
        title=Text(title),
        title_justify="left",
        box=None,
        padding=(0, 1, 0, 0),
    )
    several = bool(compared.statistics)
    above = headings(compared.metric)
    columns = [name for name in above if _is_shown(name, several, target)]
    if several and paper.width < 90:
        columns.remove("seconds")  # else the names of algorithms are broken
    for name in columns:
        if name == "algorithm":
            table.add_column(above[name], overflow="fold", min_width=18 if several else 22)
        else:
            table.add_column(above[name], justify="right", no_wrap=True)
    for row in compared.table.to_dict("records"):
        table.add_row(*(_cell(name, row) for name in columns))
    paper.print(table)
    if target:
        say_wrapped(compared.note)


def _is_shown(name: str, several: bool, target: bool) -> bool:
    """Whether a column is printed: p-values need several seeds, and leave no room for rounds and best values."""
    if name.endswith("_p"):
        return several
    if name == "rounds_to_target":
        return target
    return not several or not (name == "rounds" or name.startswith("best_"))


def _cell(name: str, row: dict[Hashable, Any]) -> Text:
    """A number of the table, and below it its deviation over the seeds, or how many of them reached the target."""
    value, deviation = row[name], row.get(f"{name}_std", np.nan)
    beneath = "" if np.isnan(deviation) else f"\n± {deviation:.2g}"
    if name == "algorithm":
        word = "diverged" if row["diverged"] else "loss rose" if row["loss_rose"] else ""
        times = f" {row['diverged'] or row['loss_rose']} of {row['seeds']}" if row["seeds"] > 1 else ""
        return Text(f"{value} ({word}{times})" if word else str(value))
    if name.endswith("_p"):
        best = np.isnan(value) and np.isfinite(row[name.removesuffix("_p")])
        return Text("best" if best else "-" if np.isnan(value) else "<0.001" if value < 0.001 else f"{value:.3f}")
    if name == "rounds_to_target":
        missed = row["reached"] < row["seeds"]
        beneath = f"\n{row['reached']} of {row['seeds']} seeds" if missed else beneath
        return Text(f"{value:.0f}{beneath}" if row["reached"] else "never")
    if name in ("rounds", "seconds"):
        return Text(f"{value:.1f}" if name == "seconds" else str(value))
    return Text(shown(value) + beneath)


def say_wrapped(text: str, hang: int = 4) -> None:
    """Lines on standard output, broken between words where the terminal ends, and going on indented by so much more.

    For other programs a line stays a line.
    """
    if not paper.is_terminal:
        say(text)
        return
    for line in text.splitlines():
        indent = " " * (len(line) - len(line.lstrip()) + hang)
        wrapper = textwrap.TextWrapper(
            paper.width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
        say("\n".join(wrapper.wrap(line)))


def print_frame(frame: pd.DataFrame, title: str) -> None:
    """A table of records on standard output: numbers in four digits, words as they are."""
    table = Table(title=Text(title), title_justify="left", box=None, padding=(0, 1, 0, 0))
    numeric = [is_numeric_dtype(frame[name]) for name in frame]
    for name, right in zip(frame, numeric, strict=True):
        table.add_column(str(name).replace("_", " "), justify="right" if right else "left", overflow="fold")
    for record in frame.itertuples(index=False):
        table.add_row(
            *(Text(shown(value) if right else str(value)) for value, right in zip(record, numeric, strict=True))
        )
    paper.print(table)


def say(text: str) -> None:
    """A line on standard output as it is: brackets in names are no markup, and long lines are not broken."""
    paper.print(text, highlight=False, markup=False, soft_wrap=True)


def print_json(content: Any) -> None:
    """A value as JSON on standard output, without colours, for other programs."""
    typer.echo(json.dumps(content, indent=2))
