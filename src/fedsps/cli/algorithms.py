"""`fedsps algorithms`: the catalogue and the parts, out of the docstrings of their classes.

So a formula is written once, where it is computed, and a new algorithm shows up here without a line of its own.
"""

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from fedsps.cli.options import AsJson
from fedsps.cli.terminal import print_json, say, say_wrapped
from fedsps.methods.notation import defaults, makers, parse, read, signatures
from fedsps.methods.registry import CATALOGUE, PARTS

app = typer.Typer(rich_markup_mode="rich")


@app.command(name="algorithms")
def algorithms_command(
    name: Annotated[str | None, typer.Argument(help="One algorithm, in full; or a part, or several by a plus.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the catalogue, with formulas; name one to see its parameters."""
    kinds = makers(read(name)[0]) if name else dict(CATALOGUE)
    if len(kinds) > 1 and name:
        parse(name)  # parts that do not go together are refused
    usual = signatures("+".join(kinds)) if name else {word: defaults(word) for word in CATALOGUE}
    if as_json:
        print_json({word: {"formula": formula(kind), "parameters": usual[word]} for word, kind in kinds.items()})
        return
    for word, kind in kinds.items():
        title, _, text = docstring(kind).partition("\n")
        slot = getattr(kind, "slot", None)
        place = f" ({slot})" if slot else ""
        say_wrapped(f"{word}{place}  {title}")
        say_wrapped(text.strip("\n").partition("\n>>> ")[0].rstrip() if name else "    " + formula(kind))
        parameters = ", ".join(f"{key}={value}" for key, value in usual[word].items())
        say_wrapped(f"    {parameters}")
        say("")
    if not name:
        say("Parts, for compositions such as sps+amsgrad+polyaverage:")
        say_wrapped(parts_by_slot())


def docstring(kind: Callable[..., Any]) -> str:
    """A class's own docstring: that of the class which it extends says nothing about it."""
    return inspect.cleandoc(kind.__doc__ or "(it has no docstring)")


def parts_by_slot() -> str:
    """The words of the parts, by what they are for: a line for each slot of an algorithm."""
    slots = dict.fromkeys(part.slot for part in PARTS.values())
    return "\n".join(
        f"    {slot}: {', '.join(word for word, part in PARTS.items() if part.slot == slot)}" for slot in slots
    )


def formula(kind: Callable[..., Any]) -> str:
    """The second paragraph of a docstring, or its only one: that is where an algorithm's class says its formula.

    >>> from fedsps import FedSPS
    >>> print(formula(FedSPS))
    x_i <- x_i - gamma_i g_i,    gamma_i = min( (F_i(x_i; batch) - lower_i) / (scale ||g_i||^2), cap )
    """
    title, _, rest = docstring(kind).partition("\n\n")
    return "\n    ".join(line.strip() for line in (rest.partition("\n\n")[0] or title).splitlines())
