"""Options that several commands take, written once; first of all the fields of `Spec`."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from fedsps.spec import Spec

Runs = Annotated[Path, typer.Option(help="Folder of the run folders, each named by the digest of its spec.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Train again even if the run is there already.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print a machine-readable summary instead of a table.")]
Threads = Annotated[int, typer.Option(help="Torch threads; one is fastest for small models.", min=1)]
EngineName = Annotated[str, typer.Option(help="auto, stacked (all clients at once) or loop (one after another).")]
SETTINGS = [field for field in fields(Spec) if "help" in field.metadata]


def with_settings(**defaults: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command one option for each setting of a run; they arrive together as `settings`.

    `defaults` are for settings whose default differs in this command.
    """

    def give(command: Callable[..., None]) -> Callable[..., None]:
        own = [one for one in inspect.signature(command, eval_str=True).parameters.values() if one.name != "settings"]
        options = [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=defaults.get(field.name, field.default),
                annotation=Annotated[
                    field.type, typer.Option(help=field.metadata["help"], rich_help_panel=field.metadata["panel"])
                ],
            )
            for field in SETTINGS
        ]

        @functools.wraps(command)
        def wrapped(**given: Any) -> None:
            settings = {field.name: given.pop(field.name) for field in SETTINGS}
            command(settings=settings, **given)

        parameters = [*own, *options]
        wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return wrapped

    return give
