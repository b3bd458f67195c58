"""The fields of `Spec` as options of the command line, written once for all commands that take them."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Annotated, Any

import typer

from fedsps.spec import Spec

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
