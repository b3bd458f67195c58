"""Options that several commands take, written once; first of all the fields of `Task` and `Plan`.

A field that is added there is an option of every command that trains, with the help, the heading and the default that
it has there.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import Field, fields
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import click
import typer

from fedsps.core.plan import Plan
from fedsps.engine.trial import Engine
from fedsps.runs.task import Task

ALGORITHM_HELP = (
    "Name, with settings after a colon: [bold]fedpolyak[/], [bold]fedsps:cap=10,smoothing=paper[/], "
    "[bold]fedavg:client_stepsize=0.01/0.1/1[/] (one run for each value), parts joined by a plus, "
    "[bold]sps+amsgrad+polyaverage[/], or your own [bold]file.py:Class[/]."
)

Runs = Annotated[Path, typer.Option(help="Folder of the run folders, each named by the digest of its spec.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Train again even if the run is there already.")]
Exact = Annotated[
    bool, typer.Option("--exact", help="Each run by itself: no sweeps, whose numbers are the same up to rounding.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print a machine-readable summary instead of a table.")]
Threads = Annotated[int, typer.Option(help="Torch threads; one is fastest for small models.", min=1)]
Jobs = Annotated[
    int, typer.Option(help="Runs at the same time, in processes of one thread each; a GPU is shared.", min=1)
]
EngineName = Annotated[Engine, typer.Option(help="All clients at once, one after another, or the faster of both.")]
Device = Annotated[
    str | None, typer.Option(help="cpu, cuda, cuda:1, mps, or auto: cuda, else mps, else cpu. Default: cpu.")
]
SETTINGS: list[Field[Any]] = [*fields(Task), *fields(Plan)]
NAMES = [field.name for field in SETTINGS]


class CountOrAll(click.ParamType[int | str]):
    """A whole number, or the word "all" for a setting whose None means that.

    >>> CountOrAll().convert("20", None, None), CountOrAll().convert("all", None, None)
    (20, 'all')
    """

    name = "number or all"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        """A number as such, "all" as the word: click takes None for an option that was not given."""
        try:
            return "all" if value == "all" else int(value)
        except ValueError:
            self.fail(f"{value!r} is neither a whole number nor 'all'", param, ctx)


def _option(field: Field[Any], kind: Any, default: Any) -> inspect.Parameter:
    """The option of one setting, as the parameter of a function.

    Args:
        field: of `Task` or `Plan`; its metadata has the help and the heading.
        kind: its type. A whole number or None becomes a number or the word "all".
        default: in this command.
    """
    more: dict[str, Any] = {}
    if str in get_args(kind):
        kind = str | None  # whatever else Python may give: on the command line it is a text
    if kind == int | None:
        kind, more["click_type"] = Any, CountOrAll()
        default = "all" if default is None else default
    option = typer.Option(help=field.metadata["help"], rich_help_panel=field.metadata["panel"], **more)
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option]
    )


def with_settings(**defaults: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command one option for each setting of a run; they arrive together as `settings`.

    The command is written with a parameter `settings`, a dictionary that `Spec.of` takes as it is: "all" is None in it.
    Typer reads options from a function's signature, so the command is wrapped in one that has them there.

    Args:
        **defaults: for settings whose default differs in this command.
    """
    kinds = get_type_hints(Task) | get_type_hints(Plan)

    def give(command: Callable[..., None]) -> Callable[..., None]:
        kept = [
            item for item in inspect.signature(command, eval_str=True).parameters.values() if item.name != "settings"
        ]
        options = [_option(field, kinds[field.name], defaults.get(field.name, field.default)) for field in SETTINGS]

        @functools.wraps(command)
        def wrapped(**given: Any) -> None:
            settings = {name: given.pop(name) for name in NAMES}
            command(settings={name: None if value == "all" else value for name, value in settings.items()}, **given)

        parameters = [*kept, *options]
        wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return wrapped

    return give
