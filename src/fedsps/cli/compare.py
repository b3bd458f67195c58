"""`fedsps compare`: several algorithms on one task, as a table on standard output and a figure in a file.

Whether the figure can be written is asked before anything is trained. Without matplotlib there is a note instead of a
figure, and the table all the same.
"""

from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from fedsps.cli.options import ALGORITHM_HELP, AsJson, EngineName, Exact, Fresh, Jobs, Runs, Threads, with_settings
from fedsps.cli.terminal import bars_of, note, print_comparison, print_json, say
from fedsps.report import plot
from fedsps.report.compare import chosen_algorithms, compare, specs_of
from fedsps.report.format import finite, spec_title
from fedsps.runs.result import number
from fedsps.runs.spec import Spec

app = typer.Typer(rich_markup_mode="rich")
USUAL = ("fedsps", "feddecsps", "fedavg:client_stepsize=0.001/0.01/0.1/1")


@app.command(name="compare")
@with_settings()
def compare_command(
    settings: dict[str, Any],
    algorithms: Annotated[list[str] | None, typer.Argument(help=ALGORITHM_HELP, show_default=False)] = None,
    seeds: Annotated[int, typer.Option(help="Runs of each algorithm, with seeds SEED, SEED + 1, ...", min=1)] = 1,
    target: Annotated[
        float | None, typer.Option(help="Target loss of the table. Default: the best final train loss times 1.1.")
    ] = None,
    figure: Annotated[Path, typer.Option(help="Where the figure goes (.png, .pdf, .svg).")] = Path("compare.png"),
    jobs: Jobs = 1,
    runs: Runs = Path("runs"),
    fresh: Fresh = False,
    exact: Exact = False,
    as_json: AsJson = False,
    threads: Threads = 1,
    engine: EngineName = "auto",
) -> None:
    """Train several algorithms on the same data, batches and start; print a table and draw the curves.

    Without a name: FedSPS and FedDecSPS against FedAvg at the client stepsizes 0.001, 0.01, 0.1 and 1.
    """
    torch.set_num_threads(threads)
    words = algorithms or list(USUAL)
    if plot.is_available():
        plot.check(figure)
    spec = Spec.of(**settings)
    specs = specs_of(list(chosen_algorithms(words)), spec, seeds)
    with bars_of(specs, runs, fresh, exact) as watch:
        compared = compare(
            words,
            spec=spec,
            seeds=seeds,
            target=target,
            runs=runs,
            jobs=jobs,
            fresh=fresh,
            exact=exact,
            engine=engine,
            watch=watch,
        )
    if as_json:
        drawn = str(figure) if plot.is_available() else None
        digests = iter(spec.digest for spec in specs)
        folders = {label: [str(runs / next(digests)) for _ in results] for label, results in compared.results.items()}
        rows = finite(compared.table.to_dict("records"))
        print_json({"target_loss": number(compared.target), "rows": rows, "runs": folders, "figure": drawn})
    else:
        print_comparison(compared, spec_title(specs[0]))
    if not plot.is_available():
        note("no figure: it needs matplotlib, pip install 'fedsps[plot]'")
        return
    compared.figure(figure)
    if not as_json:
        say(f"figure: {figure}")
