"""`fedsps compare`: several algorithms on one task, as a table on standard output and a figure in a file.

Whether the figure can be written is asked before anything is trained. Without matplotlib there is a note instead of a
figure, and the table all the same.
"""

from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from fedsps.cli.options import ALGORITHM_HELP, AsJson, EngineName, Exact, Fresh, Jobs, Runs, Threads, with_settings
from fedsps.cli.terminal import as_far_as_possible, bars_of, note, print_comparison, print_json, say
from fedsps.errors import ConfigurationError
from fedsps.methods.notation import usual
from fedsps.report import plot
from fedsps.report.compare import chosen_algorithms, compare, specs_of
from fedsps.report.comparison import METRIC
from fedsps.report.format import finite, spec_title
from fedsps.report.statistics import Test
from fedsps.runs.result import number
from fedsps.runs.spec import Spec

app = typer.Typer(rich_markup_mode="rich")
USUAL = ("fedsps", "fedavg:client_stepsize=0.001/0.01/0.1/1")  # beside what `train` takes


@app.command(name="compare")
@with_settings()
def compare_command(
    settings: dict[str, Any],
    algorithms: Annotated[list[str] | None, typer.Argument(help=ALGORITHM_HELP, show_default=False)] = None,
    seeds: Annotated[int, typer.Option(help="Runs of each algorithm, with seeds SEED, SEED + 1, ...", min=1)] = 1,
    target: Annotated[
        float | None, typer.Option(help="Target loss of the table. Default: the best final train loss times 1.1.")
    ] = None,
    metric: Annotated[
        str, typer.Option(help="Column whose final and best values the table has, as test_auc with --metrics auc.")
    ] = METRIC,
    statistic: Annotated[
        Test,
        typer.Option(
            help="Paired test over the seeds against the best; to get below 0.05 wilcoxon needs six seeds for two "
            "algorithms, nine for six."
        ),
    ] = "t",
    figure: Annotated[Path, typer.Option(help="Where the figure goes (.png, .pdf, .svg).")] = Path("compare.png"),
    across: Annotated[plot.Across, typer.Option(help="What the figure's axis across counts.")] = "round",
    size: Annotated[
        str | None, typer.Option(metavar="WxH", help="Width and height of the figure in inches, [bold]6.5x2.4[/].")
    ] = None,
    latex: Annotated[Path | None, typer.Option(help="Write the table here as LaTeX too.")] = None,
    csv: Annotated[
        Path | None, typer.Option(help="Write the table here as CSV too: all columns, in full precision.")
    ] = None,
    jobs: Jobs = 1,
    runs: Runs = Path("runs"),
    fresh: Fresh = False,
    exact: Exact = False,
    as_json: AsJson = False,
    threads: Threads = 1,
    engine: EngineName = "auto",
) -> None:
    """Train several algorithms on the same data, batches and start; print a table and draw the curves.

    Without a name: FedPolyak and FedSPS against FedAvg at the client stepsizes 0.001, 0.01, 0.1 and 1. A run that fails
    is named at the end (exit code 1), with its traceback in a file; the others go on.
    """
    torch.set_num_threads(threads)
    words = algorithms or [usual(settings["local_batch_norm"]), *USUAL]
    inches = None if size is None else size_of(size)
    if plot.is_available():
        plot.check(figure)
    for table in (latex, csv):
        if table is not None and table.is_dir():
            raise ConfigurationError(f"{table} is a folder: name a file for the table")
    spec = Spec.of(**settings)
    specs = specs_of(list(chosen_algorithms(words)), spec, seeds)
    with bars_of(specs, runs, fresh, exact) as watch:
        compared, failed = as_far_as_possible(
            lambda: compare(
                words,
                spec=spec,
                seeds=seeds,
                target=target,
                metric=metric,
                statistic=statistic,
                runs=runs,
                jobs=jobs,
                fresh=fresh,
                exact=exact,
                engine=engine,
                watch=watch,
            )
        )
    if as_json:
        drawn = str(figure) if plot.is_available() else None
        folders: dict[str, list[str]] = {label: [] for label in compared.results}
        for one in specs:
            label = one.named.label(*(other.named for other in specs))
            if label in folders:
                folders[label].append(str(runs / one.digest))
        rows = finite(compared.table.to_dict("records"))
        failures = {"failed": [str(one.file) for one in failed.failures]} if failed is not None else {}
        shown = {"target_loss": number(compared.target), "rows": rows, "runs": folders, "figure": drawn}
        print_json(shown | failures)
    else:
        print_comparison(compared, spec_title(specs[0]))
    for path, text in ((latex, compared.latex), (csv, lambda: compared.table.to_csv(index=False))):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text(), encoding="utf-8", newline="\n")
            if not as_json:
                say(f"table: {path}")
    if not plot.is_available():
        note("no figure: it needs matplotlib, pip install 'fedsps[plot]'")
    else:
        compared.figure(figure, across=across, size=inches)
        if not as_json:
            say(f"figure: {figure}")
    if failed is not None:
        raise failed


def size_of(text: str) -> tuple[float, float]:
    """Width and height from "WxH".

    >>> size_of("6.5x2.4")
    (6.5, 2.4)
    """
    try:
        width, height = (float(part) for part in text.split("x"))
    except ValueError:
        raise ConfigurationError(f"--size must look like 6.5x2.4, in inches; got {text!r}") from None
    if not (0 < width < 100 and 0 < height < 100):
        raise ConfigurationError(f"--size must be above 0 and below 100 inches; got {text!r}")
    return width, height
