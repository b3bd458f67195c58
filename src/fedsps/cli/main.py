"""The command `fedsps`: its commands, each imported when it is called, and how it ends.

| exit code | when |
| --- | --- |
| 0 | all went well |
| 1 | something broke that fedsps does not know, as in the user's own code; or one run, or process, of several failed |
| 2 | something was refused, with one line that says what and why |
| 130 | Ctrl-C |
"""

import os
import re
import sys
import time
import warnings
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Annotated

import click
import typer
from typer.core import TyperGroup

from fedsps.errors import ConfigurationError, FailedRunsError, FedspsError, RankError
from fedsps.version import __version__

COMMANDS = {  # each is the `app` of the file of its name; this is what the list of commands says of it
    "train": "Train one model and write its run folder.",
    "compare": "Train several algorithms on the same data; print a table and draw the curves.",
    "tune": "Search an algorithm's parameters.",
    "analyse": "Say how heterogeneous the clients are and what FedSPS will do with them, before training.",
    "reproduce": "Re-run the paper's experiments: figures, tables, and a verdict on every claim.",
    "report": "Write runs and verdicts as one interactive HTML page that needs no network.",
    "evaluate": "Evaluate a finished run's model on its clients' data and on the test data.",
    "predict": "Predict the samples in a file with a finished run's model, as CSV.",
    "algorithms": "Show the catalogue, with formulas; name one to see its parameters.",
    "data": "The data sets: where they are, fetch them, check them; a look at a table of your own.",
    "federation": "A real Flower federation on this machine, as processes.",
}

INSTEAD = {  # of torchrun, for those that can use several processes in another way
    "compare": "start it without torchrun; --jobs is for several processes",
    "tune": "start it without torchrun; --jobs is for several processes, --storage for several machines",
    "reproduce": "start it without torchrun; --jobs is for several processes",
}
FIRST_WORD = 3.0  # seconds that rank 0 has to report what went wrong before torchrun, when another ends, ends it too


class LazyGroup(TyperGroup):
    """Imports a command when it is called: torch takes a second, and `--help` need not wait for it.

    Attributes:
        is_listing: whether the list of commands is being written, for which no command is imported.
    """

    is_listing = False

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of `COMMANDS`."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command; for the list of commands, what it says there is enough.

        None for a name that is not in `COMMANDS`: click then says which ones there are.
        """
        if cmd_name not in COMMANDS:
            return None
        if self.is_listing:
            return click.Command(cmd_name, help=COMMANDS[cmd_name])
        command = typer.main.get_command(import_module(f"fedsps.cli.{cmd_name}").app)
        command.name = cmd_name
        return command

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help with the list of commands."""
        self.is_listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self.is_listing = False


app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command; what fedsps refuses is one line on standard error and exit code 2.

    An error of any other kind is one line too, with exit code 1; its traceback is shown if `FEDSPS_DEBUG` is set.
    Warnings are notes on standard error. Of several ranks under torchrun, rank 0 speaks for all of them.
    """
    warnings.showwarning = lambda message, *_: _note(str(message))
    if _has_ranks():
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # torch's own words about connections that broke
    if not _follows():
        _run()
        return
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        try:
            _run()
        except SystemExit as end:
            if end.code:
                time.sleep(FIRST_WORD)
            raise


def _run() -> None:
    """The command, and how it ends."""
    try:
        app()
    except RankError as error:
        with redirect_stderr(sys.__stderr__ if error.speaks else sys.stderr):
            _complain(str(error))
        sys.exit(1)
    except FailedRunsError as error:
        _complain(with_flags(str(error)))
        sys.exit(1)
    except (FedspsError, OSError) as error:
        _complain(with_flags(str(error)))
        sys.exit(2)
    except Exception as error:  # most likely in a model or a rule of the user's own
        if os.environ.get("FEDSPS_DEBUG"):
            raise
        _complain(f"{type(error).__name__}: {error} (set FEDSPS_DEBUG=1 for the traceback)")
        sys.exit(1)


def _follows() -> bool:
    """Whether this process is one of several that torchrun started, and not the first."""
    return _has_ranks() and os.environ.get("RANK", "0") != "0"


def _has_ranks() -> bool:
    return os.environ.get("WORLD_SIZE", "1") not in ("", "1")


def with_flags(message: str) -> str:
    """A library's message in the command's words: parameters that are options here, as `--option`.

    >>> with_flags("cohort is 9, but there are only 5 clients")
    '--cohort is 9, but there are only 5 clients'
    >>> with_flags("batch_size (None: all) must be a whole number of at least 1; got 0")
    '--batch-size (or all) must be a whole number of at least 1; got 0'
    """
    from fedsps.cli.options import NAMES

    known = "|".join(sorted(map(re.escape, NAMES), key=len, reverse=True))
    message = (
        message.replace(" (None: all)", " (or all)")
        .replace("fresh=True", "--fresh")
        .replace("retry=True", "--retry")
        .replace("add=True", "--add")
    )
    return re.sub(rf"^({known})(?= (is|must|needs|of|\()|=)", lambda found: f"--{found[1].replace('_', '-')}", message)


def _note(message: str) -> None:
    from fedsps.cli.terminal import note

    note(message)


def _complain(message: str) -> None:
    from fedsps.cli.terminal import complain

    complain(message)


def _version(asked: bool) -> None:
    """Print the version and stop, before any command is looked at."""
    if asked:
        typer.echo(f"fedsps {__version__}")
        raise typer.Exit


@app.callback()
def start(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Federated learning without learning-rate tuning.

    Every client sets its own stepsize, at every local step, by the stochastic Polyak rule. Start with
    [bold]fedsps compare[/].
    """
    command = context.invoked_subcommand or ""
    if _has_ranks() and command != "train":
        instead = INSTEAD.get(command, "start it without torchrun")
        raise ConfigurationError(f"{command} does not run under torchrun, which is for train alone: {instead}")
