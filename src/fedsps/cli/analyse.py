"""`fedsps analyse`: what the theory says of a task and an algorithm before training, or of a finished run."""

from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.table import Table
from rich.text import Text

from fedsps.cli.options import ALGORITHM_HELP, AsJson, Threads, with_settings
from fedsps.cli.terminal import paper, print_json, say
from fedsps.errors import ConfigurationError
from fedsps.methods.notation import parse
from fedsps.report.format import finite, shown, spec_title
from fedsps.runs.run import load
from fedsps.runs.spec import Spec
from fedsps.theory.analyse import analyse

app = typer.Typer(rich_markup_mode="rich")


@app.command(name="analyse")
@with_settings()
def analyse_command(
    settings: dict[str, Any],
    algorithm: Annotated[
        str, typer.Argument(metavar="ALGORITHM|RUN", help=f"The folder of a finished run, or: {ALGORITHM_HELP}")
    ] = "fedsps",
    trial_rounds: Annotated[int, typer.Option(help="Rounds played to see how often the cap binds.", min=1)] = 20,
    iterations: Annotated[
        int | None, typer.Option(help="Of L-BFGS for f*, at most. Default: 2000, fewer where one takes long.", min=1)
    ] = None,
    as_json: AsJson = False,
    threads: Threads = 1,
) -> None:
    """Say how heterogeneous the clients are and what FedSPS will do with them, before training.

    L and mu, f* and x* where the problem is convex, sigma_f^2, zeta*^2 and sigma*^2, how often the cap binds, what the
    paper's theorems promise, and what to do about it. With the folder of a finished run instead of an algorithm: the
    same of its task, and of its trained model.
    """
    torch.set_num_threads(threads)
    result = load(algorithm) if Path(algorithm).is_dir() else None
    if result is None and "/" in algorithm.partition(":")[0] and ".py" not in algorithm:
        raise ConfigurationError(f"there is no folder {algorithm}: name that of a finished run, or an algorithm")
    if result is None:
        chosen, *others = parse(algorithm)
        if others:
            raise ConfigurationError(f"{algorithm!r} names {1 + len(others)} runs: analyse takes one")
        spec = Spec.of(chosen, **settings)
    elif Spec.of(**settings) != Spec.of():
        raise ConfigurationError(f"{algorithm} is a run, which has its settings: leave out all others")
    else:
        spec = result.spec
    if spec.task is None or (result is not None and result.model is None):
        raise ConfigurationError(
            f"{algorithm} was saved from Python, where its data is: use fedsps.analyse(..., trained=model) there"
        )
    task = spec.task.load(spec.plan.seed, spec.files.get("data"))
    found = analyse(
        task.model,
        task.clients,
        algorithm=spec.named.build(),
        loss=task.loss,
        trained=None if result is None else result.model,
        trial_rounds=trial_rounds,
        iterations=iterations,
        **vars(spec.plan),
    )
    if as_json:
        print_json(
            {"model": found.model, "facts": finite([fact._asdict() for fact in found.facts]), "advice": found.advice}
        )
        return
    table = Table(title=Text(f"{spec.named.label()}: {spec_title(spec)}"), title_justify="left", box=None)
    table.add_column(found.model)
    table.add_column("value", justify="right")
    table.add_column("")
    for fact in found.facts:
        table.add_row(fact.name, shown(fact.value), fact.note)
    paper.print(table)
    for sentence in found.advice:
        say(f"- {sentence}")
