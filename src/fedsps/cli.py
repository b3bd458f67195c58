"""The command `fedsps`."""

import inspect
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_args

import torch
import typer
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from fedsps import plot
from fedsps import tune as tuning
from fedsps.catalogue import CATALOGUE, PARTS, defaults, makers, parse, read, signatures
from fedsps.checks import choice
from fedsps.commands import data
from fedsps.commands.federation import app as federation_app
from fedsps.commands.report import report_command
from fedsps.commands.reproduce import reproduce_command
from fedsps.compare import comparison
from fedsps.errors import ConfigurationError, FedspsError
from fedsps.evaluate import score
from fedsps.logistic import objective
from fedsps.options import AsJson, EngineName, Fresh, Runs, Threads, with_settings
from fedsps.result import Result, number
from fedsps.run import load, task
from fedsps.spec import Spec
from fedsps.terminal import (
    bar_columns,
    complain,
    finite,
    paper,
    print_comparison,
    print_json,
    run_with_bars,
    say,
    screen,
    shown,
    task_title,
)
from fedsps.version import __version__

app = typer.Typer(
    help="Federated learning without learning-rate tuning.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

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
        complain(str(error))
        sys.exit(2)
    except Exception as error:  # most likely in a model or a rule of the user's own
        if os.environ.get("FEDSPS_DEBUG"):
            raise
        complain(f"{type(error).__name__}: {error} (set FEDSPS_DEBUG=1 for the traceback)")
        sys.exit(1)


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
    result = run_with_bars([spec], runs, fresh, engine)[0]
    if as_json:
        print_json({"digest": spec.digest, "folder": str(runs / spec.digest), "summary": result.summary})
        return
    print_comparison(comparison({spec.named.label(): [result]}), task_title(spec), target=False)
    say(f"run folder: {runs / spec.digest}")


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
    found = run_with_bars(specs, runs, fresh, engine, jobs)
    results: dict[str, list[Result]] = {}
    names: dict[str, str] = {}
    folders: dict[str, list[str]] = {}
    for spec, result in zip(specs, found, strict=True):
        label = spec.named.label(*chosen)
        results.setdefault(label, []).append(result)
        folders.setdefault(label, []).append(str(runs / spec.digest))
        names[label] = spec.algorithm
    compared = comparison(results, target)
    title = task_title(specs[0])
    if as_json:
        rows = finite(compared.table.to_dict("records"))
        drawn = str(figure) if plot.is_available() else None
        print_json({"target_loss": number(compared.target), "rows": rows, "runs": folders, "figure": drawn})
    else:
        print_comparison(compared, title)
    if not plot.is_available():
        screen.print("no figure: it needs matplotlib, pip install 'fedsps[plot]'", highlight=False)
        return
    if seeds > 1:
        title += f", {seeds} seeds: mean, least and largest"
    histories = {label: [one.history for one in some] for label, some in results.items()}
    plot.comparison(histories, names, figure, title)
    if not as_json:
        say(f"figure: {figure}")


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
        typer.Option(
            help="At this round, four times it, ..., drop a trial that is not in the best quarter of those that have "
            "come as far; 0: never.",
            min=0,
        ),
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
    with Progress(*bar_columns(), console=screen) as progress:
        bar = progress.add_task(f"tuning {named.name}", total=search.size, note="")
        outcome = tuning.tune(
            search, runs, storage=storage, jobs=jobs, progress=lambda done, size: progress.update(bar, completed=done)
        )
    if as_json:
        rows = finite(outcome.table.to_dict("records"))
        print_json({"best": outcome.best.parameters, "diverged": outcome.diverged, "trials": rows})
        return
    table = Table(title=Text(task_title(spec)), title_justify="left", box=None, padding=(0, 1, 0, 0))
    for heading in (*space, "score", "", "run"):
        table.add_column(heading, justify="left" if heading in ("", "run") else "right")
    for row in outcome.table.head(10).to_dict("records"):
        fate = "diverged" if row["diverged"] else "dropped" if row["dropped"] else ""
        table.add_row(*(_value(row[name]) for name in space), shown(row["score"]), fate, str(row["digest"]))
    paper.print(table)
    paper.print(f"{len(outcome.table)} trials, {outcome.diverged} diverged; the best 10 are shown", highlight=False)
    say(f"best: {outcome.best.label()}")


def _value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


app.command(name="reproduce")(reproduce_command)
app.command(name="report")(report_command)


@app.command(name="evaluate")
def evaluate_command(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
    as_json: AsJson = False,
    threads: Threads = 1,
) -> None:
    """Evaluate a finished run's model on its clients' data and on the test data."""
    torch.set_num_threads(threads)
    result = load(folder)
    if "data" not in result.spec or result.model is None:
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
        print_json(finite([found])[0])
        return
    table = Table(title=Text(f"{spec.named.label()}: {task_title(spec)}"), title_justify="left", box=None)
    table.add_column("measure")
    table.add_column("value", justify="right")
    for name, value in found.items():
        table.add_row(name.replace("_", " "), shown(value))
    paper.print(table)


@app.command(name="algorithms")
def algorithms_command(
    name: Annotated[str | None, typer.Argument(help="One algorithm, in full; or a part, or several by a plus.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the catalogue, with formulas; name one to see its parameters."""
    shown = makers(read(name)[0]) if name else dict(CATALOGUE)
    if len(shown) > 1 and name:
        parse(name)  # parts that do not go together are refused
    own = signatures("+".join(shown)) if name else {one: defaults(one) for one in CATALOGUE}
    if as_json:
        print_json({one: {"formula": formula(kind), "parameters": own[one]} for one, kind in shown.items()})
        return
    for one, kind in shown.items():
        title, _, text = (inspect.getdoc(kind) or "").partition("\n")
        place = "" if kind in CATALOGUE.values() or one not in PARTS else f" ({PARTS[one][0]})"
        paper.print(f"[bold]{one}[/]{place}  {title}", highlight=False, soft_wrap=True)
        text = text.strip("\n") if name else "    " + formula(kind)
        if text:
            paper.print(text, highlight=False, markup=False, soft_wrap=True)
        parameters = ", ".join(f"{key}={value}" for key, value in own[one].items())
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


def formula(kind: Callable[..., Any]) -> str:
    """The second paragraph of a docstring, or its only one."""
    title, _, rest = (inspect.getdoc(kind) or "").partition("\n\n")
    return "\n    ".join(line.strip() for line in (rest.partition("\n\n")[0] or title).splitlines())


app.add_typer(data.app, name="data")
app.add_typer(federation_app, name="federation")
