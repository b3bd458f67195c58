"""`fedsps train`: one run, from its options to its folder.

A run that is there already is read, and shown all the same; one that diverged is a result, not an error.
"""

from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from fedsps.cli.options import ALGORITHM_HELP, AsJson, EngineName, Exact, Fresh, Runs, Threads, with_settings
from fedsps.cli.terminal import bars_of, print_comparison, print_json, say
from fedsps.engine.ranks import join, together
from fedsps.errors import ConfigurationError
from fedsps.methods.notation import parse, usual
from fedsps.report.comparison import METRIC, comparison
from fedsps.report.format import spec_title
from fedsps.runs.run import run
from fedsps.runs.spec import Spec

app = typer.Typer(rich_markup_mode="rich")
DEFAULT = f"{usual()}; {usual(local_batch_norm=True)} with --local-batch-norm"


@app.command(name="train")
@with_settings()
@together()
def train_command(
    settings: dict[str, Any],
    algorithm: Annotated[str | None, typer.Argument(help=ALGORITHM_HELP, show_default=DEFAULT)] = None,
    runs: Runs = Path("runs"),
    fresh: Fresh = False,
    exact: Exact = False,
    as_json: AsJson = False,
    threads: Threads = 1,
    engine: EngineName = "auto",
) -> None:
    """Train one model and write its run folder.

    On several processes or machines: [bold]torchrun --nproc-per-node 4 -m fedsps train ...[/], with the same options
    and the same numbers up to rounding. The processes share the clients of a round; the first writes and reports.
    """
    torch.set_num_threads(threads)
    if algorithm is None:
        algorithm = usual(settings["local_batch_norm"])
    chosen, *others = parse(algorithm)
    if others:
        raise ConfigurationError(f"{algorithm!r} names {1 + len(others)} runs: train takes one, compare takes several")
    spec = Spec.of(chosen, **settings)
    ranks = join()
    if ranks is not None and not ranks.leads:
        run(spec, runs, fresh=fresh, exact=exact, engine=engine)
        return
    with bars_of([spec], runs, fresh, exact) as watch:
        result = run(spec, runs, fresh=fresh, exact=exact, engine=engine, callback=lambda row: watch(0, row))
    if as_json:
        print_json({"digest": spec.digest, "folder": str(runs / spec.digest), "summary": result.summary})
        return
    metric = METRIC if result.history[METRIC].notna().any() else "test_loss"  # a regression has no accuracy
    print_comparison(comparison({spec.named.label(): [result]}, metric=metric), spec_title(spec), target=False)
    if result.kept_round is not None:
        say(f"kept: the model of round {result.kept_round}, whose numbers the final ones are")
    say(f"run folder: {runs / spec.digest}")
