"""The command `fedsps`."""

import inspect
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any, get_args

import numpy as np
import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from fedsps import data as data_files
from fedsps import plot
from fedsps import tune as tuning
from fedsps.catalogue import CATALOGUE, PARTS, defaults, find, parse
from fedsps.checks import choice
from fedsps.compare import COLUMNS, Comparison, comparison
from fedsps.errors import ConfigurationError, FedspsError
from fedsps.evaluate import score
from fedsps.logistic import objective
from fedsps.many import run_all
from fedsps.options import with_settings
from fedsps.paper.document import document
from fedsps.paper.reproduce import PAGES, reproduce
from fedsps.paper.reproduce import find as find_page
from fedsps.result import Result, number
from fedsps.run import is_done, load, task
from fedsps.session import Row
from fedsps.spec import Spec
from fedsps.version import __version__

app = typer.Typer(
    help="Federated learning without learning-rate tuning.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(help="The data sets: where they are, fetch them, check them.", no_args_is_help=True)
app.add_typer(data_app, name="data")

screen = Console(stderr=True)  # progress and notes; results go to standard output
paper = Console(width=None if sys.stdout.isatty() else 120)

Runs = Annotated[Path, typer.Option(help="Folder of the run folders, each named by the digest of its spec.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Train again even if the run is there already.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print a machine-readable summary instead of a table.")]
Threads = Annotated[int, typer.Option(help="Torch threads; one is fastest for small models.", min=1)]
EngineName = Annotated[str, typer.Option(help="auto, stacked (all clients at once) or loop (one after another).")]
ALGORITHM_HELP = (
    "Name, with settings after a colon: [bold]fedsps[/], [bold]fedsps:cap=10,smoothing=paper[/], "
    "[bold]fedavg:client_stepsize=0.01/0.1/1[/] (one run for each value), parts joined by a plus, "
    "[bold]sps+amsgrad+polyaverage[/], or your own [bold]file.py:Class[/]."
)


def main() -> None:
    """Run the command; what fedsps refuses is one line on standard error and exit code 2."""
    warnings.showwarning = lambda message, *_: screen.print(Text.assemble(("note: ", "yellow"), str(message)))
    try:
        app()
    except (FedspsError, OSError) as error:
        _complain(str(error))
        sys.exit(2)
    except Exception as error:  # most likely in a model or a rule of the user's own
        if os.environ.get("FEDSPS_DEBUG"):
            raise
        _complain(f"{type(error).__name__}: {error} (set FEDSPS_DEBUG=1 for the traceback)")
        sys.exit(1)


def _complain(message: str) -> None:
    screen.print(Text.assemble(("error: ", "bold red"), message), soft_wrap=True)


def _version(asked: bool) -> None:
    if asked:
        paper.print(f"fedsps {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def start(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Federated learning without learning-rate tuning.

    Every client sets its own stepsize, at every local step, by the stochastic Polyak rule. Start with
    [bold]fedsps compare[/].
    """


@app.command(name="train")
@with_settings()
def train_command(
    settings: dict[str, Any],
    algorithm: Annotated[str, typer.Argument(help=ALGORITHM_HELP)] = "fedsps",
    runs: Runs = Path("runs"),
    fresh: Fresh = False,
    as_json: AsJson = False,
    threads: Threads = 1,
    engine: EngineName = "auto",
) -> None:
    """Train one model and write its run folder."""
    torch.set_num_threads(threads)
    chosen = parse(algorithm)
    if len(chosen) > 1:
        raise ConfigurationError(f"{algorithm!r} names {len(chosen)} runs: train takes one, compare takes several")
    spec = Spec.of(chosen[0], **settings)
    result = _run_all([spec], runs, fresh, engine)[0]
    if as_json:
        _print_json({"digest": spec.digest, "folder": str(runs / spec.digest), "summary": result.summary})
        return
    _print_table(comparison({spec.named.label(): [result]}), _title(spec), target=False)
    _say(f"run folder: {runs / spec.digest}")


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
    jobs: Annotated[int, typer.Option(help="Runs at the same time, in processes of one thread each.", min=1)] = 1,
    runs: Runs = Path("runs"),
    fresh: Fresh = False,
    as_json: AsJson = False,
    threads: Threads = 1,
    engine: EngineName = "auto",
) -> None:
    """Train several algorithms on the same data, batches and start; print a table and draw the curves.

    Without a name: FedSPS and FedDecSPS against FedAvg at the client stepsizes 0.001, 0.01, 0.1 and 1.
    """
    torch.set_num_threads(threads)
    words = algorithms or ["fedsps", "feddecsps", "fedavg:client_stepsize=0.001/0.01/0.1/1"]
    chosen = [named for word in words for named in parse(word)]
    chosen = [named for place, named in enumerate(chosen) if named not in chosen[:place]]
    if plot.is_available():
        plot.check(figure)
    first = settings.pop("seed")
    specs = [Spec.of(named, seed=first + number, **settings) for named in chosen for number in range(seeds)]
    found = _run_all(specs, runs, fresh, engine, jobs)
    results: dict[str, list[Result]] = {}
    names: dict[str, str] = {}
    folders: dict[str, list[str]] = {}
    for spec, result in zip(specs, found, strict=True):
        label = spec.named.label(*chosen)
        results.setdefault(label, []).append(result)
        folders.setdefault(label, []).append(str(runs / spec.digest))
        names[label] = spec.algorithm
    compared = comparison(results, target)
    title = _title(specs[0])
    if as_json:
        rows = _finite(compared.table.to_dict("records"))
        _print_json({"target_loss": number(compared.target), "rows": rows, "runs": folders, "figure": str(figure)})
    else:
        _print_table(compared, title)
    if not plot.is_available():
        screen.print("no figure: it needs matplotlib, pip install 'fedsps[plot]'", highlight=False)
        return
    if seeds > 1:
        title += f", {seeds} seeds: mean, least and largest"
    histories = {label: [one.history for one in some] for label, some in results.items()}
    plot.comparison(histories, names, figure, title)
    if not as_json:
        _say(f"figure: {figure}")


@app.command(name="tune")
@with_settings(seed=tuning.TUNING_SEED)
def tune_command(
    settings: dict[str, Any],
    algorithm: Annotated[
        str,
        typer.Argument(
            help="Name, with the values to search after a colon: [bold]fedavg:client_stepsize=0.01/0.1/1[/], or "
            "a range for tpe, [bold]fedavg:client_stepsize=1e-4..1[/]. A bare name takes the paper's grid."
        ),
    ],
    sampler: Annotated[str, typer.Option(help="grid (every point) or tpe (Bayesian).")] = "grid",
    trials: Annotated[int, typer.Option(help="Trials of the Bayesian search.", min=1)] = 50,
    halve_from: Annotated[
        int,
        typer.Option(help="Drop all but the best quarter at this round, four times it, ...; 0: never.", min=0),
    ] = 0,
    storage: Annotated[
        str | None, typer.Option(help="Optuna storage URL, shared by several machines. Default: RUNS/tune.db.")
    ] = None,
    jobs: Annotated[int, typer.Option(help="Trials at the same time, in processes of one thread each.", min=1)] = 1,
    runs: Runs = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Search an algorithm's parameters: lowest mean train loss over the last tenth of the rounds.

    The seed has another default here, so that tuning does not see the runs that are reported.
    """
    choice("sampler", sampler, get_args(tuning.Sampler))
    named, space = tuning.parse(algorithm)
    spec = Spec.of(named, **settings)
    search = tuning.Search(spec, space, sampler, trials, halve_from)  # type: ignore[arg-type]
    with Progress(*_columns(), console=screen) as progress:
        bar = progress.add_task(f"tuning {named.name}", total=search.size, note="")
        outcome = tuning.tune(
            search, runs, storage=storage, jobs=jobs, progress=lambda done, size: progress.update(bar, completed=done)
        )
    if as_json:
        rows = _finite(outcome.table.to_dict("records"))
        _print_json({"best": outcome.best.parameters, "diverged": outcome.diverged, "trials": rows})
        return
    table = Table(title=Text(_title(spec)), title_justify="left", box=None, padding=(0, 1, 0, 0))
    for heading in (*space, "score", "", "run"):
        table.add_column(heading, justify="left" if heading in ("", "run") else "right")
    for row in outcome.table.head(10).to_dict("records"):
        fate = "diverged" if row["diverged"] else "dropped" if row["dropped"] else ""
        table.add_row(*(f"{row[name]:g}" for name in space), _number(row["score"]), fate, str(row["digest"]))
    paper.print(table)
    paper.print(f"{len(outcome.table)} trials, {outcome.diverged} diverged; the best 10 are shown", highlight=False)
    _say(f"best: {outcome.best.label()}")


@app.command(name="reproduce")
def reproduce_command(
    pages: Annotated[list[str] | None, typer.Argument(help="Pages; all if none is named.", show_default=False)] = None,
    show: Annotated[bool, typer.Option("--list", help="Show the pages and stop.")] = False,
    scale: Annotated[str, typer.Option(help="smoke (minutes) or paper (hours).")] = "smoke",
    seeds: Annotated[int | None, typer.Option(help="Seeds; default 3 at paper scale, else 1.", min=1)] = None,
    output: Annotated[Path, typer.Option(help="Folder for figures, tables and verdicts.")] = Path("reproduction"),
    text: Annotated[Path | None, typer.Option(help="The Markdown document. Default: OUTPUT/README.md.")] = None,
    jobs: Annotated[int, typer.Option(help="Runs at the same time, in processes of one thread each.", min=1)] = 1,
    runs: Runs = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Re-run the paper's experiments: figures, tables, and a verdict on every claim.

    Runs are cached: a second call draws without training, an interrupted one goes on where it stopped.
    """
    choice("scale", scale, ("smoke", "paper"))
    torch.set_num_threads(1)
    chosen = [find_page(name) for name in pages or PAGES]
    if show:
        for page in chosen:
            paper.print(
                f"{page.name:12} {page.title} ({', '.join(claim.id for claim in page.claims)})", highlight=False
            )
        return
    seeds = seeds or (3 if scale == "paper" else 1)
    outcomes = []
    with Progress(*_columns(), console=screen) as progress:
        bar = progress.add_task("", total=None, note="")

        def report(what: str, done: int, size: int) -> None:
            progress.update(bar, description=what, completed=done, total=size)

        for page in chosen:
            outcomes.append(
                reproduce(page, scale, seeds=seeds, runs=runs, folder=output, jobs=jobs, report=report)  # type: ignore[arg-type]
            )
    place = text or output / "README.md"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(document(outcomes, scale, seeds, place))  # type: ignore[arg-type]
    verdicts = [verdict for outcome in outcomes for verdict in outcome.verdicts]
    if as_json:
        _print_json(
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
    _say(f"written: {place}")


@app.command(name="evaluate")
def evaluate_command(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
    as_json: AsJson = False,
    threads: Threads = 1,
) -> None:
    """Evaluate a finished run's model on its clients' data and on the test data."""
    torch.set_num_threads(threads)
    result = load(folder)
    if "parameters" not in result.spec or result.model is None:
        raise ConfigurationError(
            f"{folder} was saved from Python, where its data is: use fedsps.load(folder, model=...) there"
        )
    spec = Spec.from_json(result.spec)
    made = task(spec)
    goal = objective(result.model, made.loss)
    parts = {"train": made.clients, "test": made.test}
    found: dict[str, float] = {}
    for name, federation in parts.items():
        if not len(federation.targets):
            continue
        loss, accuracy = score(goal, goal.x, goal.buffers, federation.to(goal.x, goal.accepted))
        counts = torch.from_numpy(federation.sizes).to(loss) if spec.weights == "samples" else torch.ones_like(loss)
        share = counts / counts.sum()
        found |= {f"{name}_loss": (share * loss).sum().item(), f"{name}_accuracy": (share * accuracy).sum().item()}
        if name == "train":
            found |= {"worst_client_loss": loss.max().item(), "worst_client_accuracy": accuracy.min().item()}
    if as_json:
        _print_json(_finite([found])[0])
        return
    table = Table(title=Text(f"{spec.named.label()}: {_title(spec)}"), title_justify="left", box=None)
    table.add_column("measure")
    table.add_column("value", justify="right")
    for name, value in found.items():
        table.add_row(name.replace("_", " "), _number(value))
    paper.print(table)


@app.command(name="algorithms")
def algorithms_command(
    name: Annotated[str | None, typer.Argument(help="One algorithm, in full.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the catalogue, with formulas; name one to see its parameters."""
    shown = {name: find(name)} if name else CATALOGUE
    if as_json:
        _print_json({one: {"formula": formula(kind), "parameters": defaults(one)} for one, kind in shown.items()})
        return
    for one, kind in shown.items():
        paper.print(f"[bold]{one}[/]  {(inspect.getdoc(kind) or '').splitlines()[0]}", highlight=False, soft_wrap=True)
        text = "\n".join((inspect.getdoc(kind) or "").splitlines()[1:]).strip("\n") if name else "    " + formula(kind)
        paper.print(text, highlight=False, markup=False, soft_wrap=True)
        parameters = ", ".join(f"{key}={value}" for key, value in defaults(one).items())
        paper.print(f"    [dim]{parameters}[/]\n", highlight=False, soft_wrap=True)
    if not name:
        paper.print("Parts, for compositions such as sps+amsgrad+polyaverage:", highlight=False)
        paper.print(parts_by_slot(), highlight=False, soft_wrap=True)


def parts_by_slot() -> str:
    """The names of the parts, by what they are for."""
    slots = dict.fromkeys(slot for slot, _ in PARTS.values())
    return "\n".join(
        f"    {slot}: {', '.join(word for word, (own, _) in PARTS.items() if own == slot)}" for slot in slots
    )


def formula(kind: type) -> str:
    """The second paragraph of a class's docstring."""
    _, _, rest = (inspect.getdoc(kind) or "").partition("\n\n")
    return "\n    ".join(line.strip() for line in rest.partition("\n\n")[0].splitlines())


@data_app.command(name="list")
def data_list() -> None:
    """Show the data sets and where their files are."""
    table = Table("data set", "file", "where", "bytes", box=None)
    for name in data_files.data_sets():
        for status in data_files.status(name):
            size = "" if status.size is None else f"{status.size:,}"
            table.add_row(name, status.name, status.where, size)
    paper.print(table)
    paper.print("Files are looked for in the folder that FEDSPS_DATA names, then in the cache, else downloaded.")


DataSets = Annotated[list[str] | None, typer.Argument(help="Data sets; all if none is named.", show_default=False)]


@data_app.command(name="fetch")
def data_fetch(names: DataSets = None) -> None:
    """Download what is missing into the cache, and check it."""
    for name in names or data_files.data_sets():
        data_files.fetch(name)
        paper.print(f"{name}: ready", highlight=False)


@data_app.command(name="verify")
def data_verify(names: DataSets = None) -> None:
    """Check the sha256 of every file that is here."""
    for name in names or data_files.data_sets():
        for status in data_files.verify(name):
            paper.print(f"{name} {status.name}: {'right' if status.where != 'missing' else 'missing'}", highlight=False)


def _run_all(specs: list[Spec], runs: Path, fresh: bool, engine: str, jobs: int = 1) -> list[Result]:
    """Run the specs with a live bar for each."""
    several_seeds = len({spec.seed for spec in specs}) > 1
    there = [is_done(spec, runs) and not fresh for spec in specs]
    with Progress(*_columns(), console=screen) as progress:
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


def _columns() -> tuple[ProgressColumn, ...]:
    return (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        TimeElapsedColumn(),
    )


def _final(result: Result) -> str:
    return _number(result.summary["final_train_loss"])


def _title(spec: Spec) -> str:
    clients = "clients of the data" if spec.partition == "natural" else f"{spec.clients} clients"
    cohort = f", {spec.cohort} a round" if spec.cohort else ""
    steps = f"{spec.local_steps} local steps, batch {spec.batch_size or 'all'}"
    return f"{Path(spec.data).name}, {spec.model}, {spec.partition}, {clients}{cohort}, {steps}"


def _print_table(compared: Comparison, title: str, target: bool = True) -> None:
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
            _number(row["final_train_loss"]),
            _number(row["best_test_accuracy"]),
            *([reached] if target else []),
            _number(row["stepsize_mean"]),
            f"{row['seconds']:.1f}",
        )
    paper.print(table)


def _say(text: str) -> None:
    paper.print(text, highlight=False, markup=False, soft_wrap=True)


def _print_json(found: Any) -> None:
    typer.echo(json.dumps(found, indent=2))


def _number(value: float | None) -> str:
    return "-" if value is None or np.isnan(value) else f"{value:.4g}"


def _finite(rows: list[dict[Any, Any]]) -> list[dict[str, Any]]:
    """JSON has no infinity and no NaN."""
    return [
        {str(key): None if isinstance(value, float) and not np.isfinite(value) else value for key, value in row.items()}
        for row in rows
    ]
