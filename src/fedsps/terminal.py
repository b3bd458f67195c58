"""What the command shows: results on standard output, progress and complaints on standard error."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from fedsps.compare import COLUMNS, Comparison
from fedsps.many import run_all
from fedsps.result import Result
from fedsps.run import is_done
from fedsps.session import Row
from fedsps.spec import Spec

screen = Console(stderr=True)
paper = Console(width=None if sys.stdout.isatty() else 120)


def complain(message: str) -> None:
    """One line in red."""
    screen.print(Text.assemble(("error: ", "bold red"), message), soft_wrap=True)


def run_with_bars(specs: list[Spec], runs: Path, fresh: bool, engine: str, jobs: int = 1) -> list[Result]:
    """Run the specs with a live bar for each."""
    several_seeds = len({spec.seed for spec in specs}) > 1
    there = [is_done(spec, runs) and not fresh for spec in specs]
    with Progress(*bar_columns(), console=screen) as progress:
        bars = []
        for spec in specs:
            label = spec.named.label(*(one.named for one in specs))
            label += f" seed {spec.seed}" if several_seeds else ""
            bars.append(progress.add_task(label, total=spec.rounds, note="", start=False))

        def watch(number: int, row: Row) -> None:
            loss = row["cohort_loss"] if np.isnan(row["train_loss"]) else row["train_loss"]
            progress.start_task(bars[number])
            progress.update(bars[number], completed=row["round"], note=f"loss {loss:.4g}")

        try:
            results = run_all(specs, runs, jobs=jobs, fresh=fresh, engine=engine, watch=watch)  # type: ignore[arg-type]
        except KeyboardInterrupt:
            progress.stop()
            how = "the same command without --fresh" if fresh else "the same command"
            screen.print(f"interrupted; {how} goes on where this one stopped")
            raise typer.Exit(130) from None
        for bar, result, was_there in zip(bars, results, there, strict=True):
            end = f"diverged in round {result.diverged_at}" if result.diverged_at else f"loss {_final(result)}"
            progress.update(bar, completed=len(result.history), note=end + (" (was there)" if was_there else ""))
            progress.stop_task(bar)
    return results


def bar_columns() -> tuple[ProgressColumn, ...]:
    """What a progress bar shows."""
    return (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        TimeElapsedColumn(),
    )


def _final(result: Result) -> str:
    return shown(result.summary["final_train_loss"])


def task_title(spec: Spec) -> str:
    """A run's data, model and setting in one line."""
    clients = "clients of the data" if spec.partition == "natural" else f"{spec.clients} clients"
    cohort = f", {spec.cohort} a round" if spec.cohort else ""
    steps = f"{spec.local_steps} local steps, batch {spec.batch_size or 'all'}"
    return f"{Path(spec.data).name}, {spec.model}, {spec.partition}, {clients}{cohort}, {steps}"


def print_comparison(compared: Comparison, title: str, target: bool = True) -> None:
    """The table of a comparison; of a single run without its target."""
    table = Table(
        title=Text(title),
        title_justify="left",
        caption=compared.note if target else None,
        caption_justify="left",
        box=None,
        padding=(0, 1, 0, 0),
    )
    for name, heading in COLUMNS.items():
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
    """A line as it is: brackets in names are no markup."""
    paper.print(text, highlight=False, markup=False, soft_wrap=True)


def print_json(found: Any) -> None:
    """Machine-readable."""
    typer.echo(json.dumps(found, indent=2))


def shown(value: float | None) -> str:
    """A number in four digits, or a dash."""
    return "-" if value is None or np.isnan(value) else f"{value:.4g}"


def finite(rows: list[dict[Any, Any]]) -> list[dict[str, Any]]:
    """JSON has no infinity and no NaN."""
    return [
        {str(key): None if isinstance(value, float) and not np.isfinite(value) else value for key, value in row.items()}
        for row in rows
    ]
