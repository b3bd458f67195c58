"""The command `fedsps`: its commands, each imported when it is called, and how it ends.

| exit code | when |
| --- | --- |
| 0 | all went well |
| 1 | something broke that fedsps does not know, as in the user's own code; or a federation's run or process failed |
| 2 | something was refused, with one line that says what and why |
| 130 | Ctrl-C |
"""

import os
import re
import sys
import warnings
from importlib import import_module
from typing import Annotated

import click
import typer
from typer.core import TyperGroup

from fedsps.errors import FedspsError
from fedsps.version import __version__

COMMANDS = {  # each is the `app` of the file of its name; this is what the list of commands says of it
    "train": "Train one model and write its run folder.",
    "compare": "Train several algorithms on the same data; print a table and draw the curves.",
    "tune": "Search an algorithm's parameters.",
    "reproduce": "Re-run the paper's experiments: figures, tables, and a verdict on every claim.",
    "report": "Write runs and verdicts as one interactive HTML page that needs no network.",
    "evaluate": "Evaluate a finished run's model on its clients' data and on the test data.",
    "algorithms": "Show the catalogue, with formulas; name one to see its parameters.",
    "data": "The data sets: where they are, fetch them, check them.",
    "federation": "A real Flower federation on this machine, as processes.",
}


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
    Warnings are notes on standard error.
    """
    warnings.showwarning = lambda message, *_: _note(str(message))
    try:
        app()
    except (FedspsError, OSError) as error:
        _complain(with_flags(str(error)))
        sys.exit(2)
    except Exception as error:  # most likely in a model or a rule of the user's own
        if os.environ.get("FEDSPS_DEBUG"):
            raise
        _complain(f"{type(error).__name__}: {error} (set FEDSPS_DEBUG=1 for the traceback)")
        sys.exit(1)


def with_flags(message: str) -> str:
    """A library's message in the command's words: parameters that are options here, as `--option`.

    >>> with_flags("cohort is 9, but there are only 5 clients")
    '--cohort is 9, but there are only 5 clients'
    >>> with_flags("batch_size (None: all) must be a whole number of at least 1; got 0")
    '--batch-size (or all) must be a whole number of at least 1; got 0'
    """
    from fedsps.cli.options import NAMES

    known = "|".join(sorted(map(re.escape, NAMES), key=len, reverse=True))
    message = message.replace(" (None: all)", " (or all)").replace("fresh=True", "--fresh")
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
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Federated learning without learning-rate tuning.

    Every client sets its own stepsize, at every local step, by the stochastic Polyak rule. Start with
    [bold]fedsps compare[/].
    """
