"""`fedsps tune`: a search, its ten best trials as a table, and the winner's parameters.

Ctrl-C loses nothing that is finished: the same command goes on.
"""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from fedsps.cli.options import AsJson, Jobs, Runs, with_settings
from fedsps.cli.terminal import Bars, as_far_as_possible, paper, print_json, say
from fedsps.report.format import finite, shown, spec_title
from fedsps.runs.space import TUNING_SEED, Sampler, Search, parse_space
from fedsps.runs.spec import Spec
from fedsps.runs.tune import run_search
from fedsps.runs.tuning import TuningResult

app = typer.Typer(rich_markup_mode="rich")


@app.command(name="tune")
@with_settings(seed=TUNING_SEED)
def tune_command(
    settings: dict[str, Any],
    algorithm: Annotated[
        str,
        typer.Argument(
            help="Name, with the values to search after a colon: [bold]fedavg:client_stepsize=0.01/0.1/1[/], or "
            "a range for tpe, [bold]fedavg:client_stepsize=1e-4..1[/]. A bare name takes the paper's grid."
        ),
    ],
    sampler: Annotated[Sampler, typer.Option(help="Every point of a grid, or a Bayesian search.")] = "grid",
    trials: Annotated[int, typer.Option(help="Trials of the Bayesian search.", min=1)] = 50,
    halve_from: Annotated[
        int,
        typer.Option(
            help="At this round, four times it, ..., drop a trial that is not in the best quarter of those that have "
            "come as far; 0: never.",
            min=0,
        ),
    ] = 0,
    storage: Annotated[
        str | None,
        typer.Option(
            help="URL of a data base through which several machines share the search, "
            "[bold]postgresql://user@host/base[/]. Default: the file RUNS/tune.db."
        ),
    ] = None,
    jobs: Jobs = 1,
    runs: Runs = Path("runs"),
    retry: Annotated[bool, typer.Option("--retry", help="Run once more the trials that failed before.")] = False,
    as_json: AsJson = False,
) -> None:
    """Search an algorithm's parameters: lowest mean train loss over the last tenth of the rounds.

    The seed has another default here, so that tuning does not see the runs that are reported. A trial that fails is
    named at the end (exit code 1), with its traceback in a file; the others go on.
    """
    named, space = parse_space(algorithm)
    spec = Spec.of(named, **settings)
    search = Search(spec, space, sampler=sampler, trials=trials, halve_from=halve_from)
    with Bars() as progress:
        bar = progress.add_task(f"tuning {named.name}", total=search.size, note="")

        def tell(done: int, size: int) -> None:
            progress.tell(bar, completed=done)

        tuned, failed = as_far_as_possible(
            lambda: run_search(search, runs, storage=storage, jobs=jobs, retry=retry, progress=tell)
        )
    _show(tuned, as_json)
    if failed is not None:
        raise failed


def _show(tuned: TuningResult, as_json: bool) -> None:
    """The ten best trials and the winner, or all as JSON."""
    if as_json:
        rows = finite(tuned.table.to_dict("records"))
        best = {"best": tuned.best.parameters, "algorithm": tuned.best.text}
        print_json(best | {"diverged": tuned.diverged, "trials": rows})
        return
    spec, space = tuned.search.spec, tuned.search.space
    table = Table(title=Text(spec_title(spec)), title_justify="left", box=None, padding=(0, 1, 0, 0))
    for heading in (*space, "score", "", "run"):
        table.add_column(heading, justify="left" if heading in ("", "run") else "right")
    for row in tuned.table.head(10).to_dict("records"):
        fate = "diverged" if row["diverged"] else "dropped" if row["dropped"] else ""
        table.add_row(*(_value(row[name]) for name in space), shown(row["score"]), fate, str(row["digest"]))
    paper.print(table)
    cut = "; the best 10 are shown" if len(tuned.table) > 10 else ""
    paper.print(f"{len(tuned.table)} trials, {tuned.diverged} diverged{cut}", highlight=False)
    say(f"best: {tuned.best.text}")


def _value(value: object) -> str:
    """A parameter in the table: numbers in six digits, words as they are."""
    return f"{value:g}" if isinstance(value, float) else str(value)
