"""The lists of the API reference, made from the modules themselves: a new public name needs no edit of a page.

A page asks for a list by a comment, which a code host does not show:

    <!-- api: fedsps.rules -->         the public names of a module, by kind
    <!-- modules: fedsps.core -->      every file of a package

`expand` puts the directives of Sphinx in its place.
"""

import ast
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import pairwise
from types import ModuleType
from typing import Any

PUBLIC = ("fedsps", "fedsps.rules", "fedsps.data", "fedsps.optim", "fedsps.flower")

TITLES = {  # the headings of the pages, in their order; a package or kind that is not here comes after them
    "fedsps": {
        "runs": "Train, run, tune",
        "report": "Compare",
        "core": "Algorithms and plans",
        "methods": "Methods",
        "model": "Models",
        "theory": "Analyse",
        "paper": "The paper",
        "errors": "Errors",
        "version": "Version",
    },
    "fedsps.rules": {
        "stepsize": "Stepsize rules",
        "direction": "Directions",
        "server": "Server rules",
        "output": "Output rules",
        "penalty": "Penalties",
        "compression": "Compression",
        "contract": "For parts of your own",
        "mean": "Means over clients",
        "vectors": "Vectors",
        "types": "Types",
    },
    "fedsps.data": {"functions": "Functions", "classes": "Classes"},
    "fedsps.flower": {"functions": "Functions", "classes": "Classes"},
}


def names(module: str) -> list[str]:
    """The public names of a module: its `__all__`, or what is defined or imported there on purpose."""
    home = importlib.import_module(module)
    if hasattr(home, "__all__"):
        return [name for name in home.__all__ if not isinstance(getattr(home, name), ModuleType)]
    found = {name: value for name, value in vars(home).items() if not name.startswith("_")}
    return [name for name, value in found.items() if not isinstance(value, ModuleType) and _belongs(home, name, value)]


def _belongs(home: ModuleType, name: str, value: Any) -> bool:
    """Whether a name without `__all__` is meant for the users: a package collects names, a file defines them."""
    return hasattr(home, "__path__") or getattr(value, "__module__", None) == home.__name__


def groups(module: str) -> dict[str, list[str]]:
    """The public names of a module under their headings; none is left out."""
    titles = TITLES.get(module, {})
    found: dict[str, list[str]] = {title: [] for title in titles.values()}
    for name in names(module):
        word = _group(module, getattr(importlib.import_module(module), name))
        found.setdefault(titles.get(word, word.capitalize()), []).append(name)
    return {title: sorted(mine, key=str.casefold) for title, mine in found.items() if mine}


def _group(module: str, value: Any) -> str:
    if module == "fedsps":
        return getattr(value, "__module__", "fedsps.version").split(".")[1]
    if module == "fedsps.rules":
        if slot := getattr(value, "slot", ""):
            return str(slot)
        if not inspect.isclass(value) and not inspect.isfunction(value):
            return "types"
        home = value.__module__.rpartition(".")[2]
        return {"vectors": "vectors", "aggregation": "mean"}.get(home, "contract")
    return "functions" if inspect.isfunction(value) else "classes" if inspect.isclass(value) else "types"


@cache
def homes() -> dict[int, str]:
    """Under which full name a class or function is documented, by its identity."""
    found: dict[int, str] = {}
    for module in PUBLIC:
        for name in names(module):
            value = getattr(importlib.import_module(module), name)
            if inspect.isclass(value) or inspect.isfunction(value):
                found.setdefault(id(value), f"{module}.{name}")
    return found


def modules(package: str) -> list[str]:
    """The files of a package, by full name; of a single file none. All of them are imported."""
    home = importlib.import_module(package)
    return [one.name for one in pkgutil.walk_packages(getattr(home, "__path__", []), f"{package}.")]


def expand(text: str) -> str:
    """A page with its lists in place of the comments that ask for them."""
    for word, lines in (("api", _api), ("modules", _modules)):
        text = re.sub(
            rf"^<!-- {word}: ([\w.]+) -->$", lambda found, lines=lines: "\n".join(lines(found[1])), text, flags=re.M
        )
    return text


def _rst(lines: Iterable[str]) -> Iterator[str]:
    yield from ("", "```{eval-rst}", *lines, "```", "")


def _api(module: str) -> Iterator[str]:
    home = importlib.import_module(module)
    yield from _rst([f".. automodule:: {module}", "   :no-members:"])
    for title, mine in groups(module).items():
        yield from ("", f"## {title}", "")
        yield from _rst(_overview(module, mine))
        for name in mine:
            yield from _rst(_entry(f"{module}.{name}", getattr(home, name)))


def _overview(module: str, mine: Iterable[str]) -> Iterator[str]:
    """A table of names and the first sentences about them."""
    yield from (".. list-table::", "   :class: overview", "   :widths: auto", "")
    home = importlib.import_module(module)
    for name in mine:
        value = getattr(home, name)
        yield f"   * - :py:obj:`{name} <{module}.{name}>`"
        yield f"     - {_title(f'{module}.{name}', value)}"


def _title(address: str, value: Any) -> str:
    """The first line about a name."""
    if isinstance(value, str):
        return f"`{value!r}`"
    if inspect.isclass(value) or inspect.isfunction(value):
        return (inspect.getdoc(value) or "").partition("\n")[0]
    return _definition(address)[1]


def _entry(address: str, value: Any) -> list[str]:
    if inspect.isclass(value):
        kind = "exception" if issubclass(value, BaseException) else "class"
        hidden = [
            base for base in value.__mro__ if base.__name__.startswith("_") and base.__module__ == value.__module__
        ]
        inherited = [f"   :inherited-members: {hidden[-1].__base__.__name__}"] if hidden else []
        return [f".. auto{kind}:: {address}", "   :members:", "   :special-members: __call__", *inherited]
    if inspect.isfunction(value):
        return [f".. autofunction:: {address}"]
    if isinstance(value, str):
        return [f".. autodata:: {address}"]
    written, said = _definition(address)
    return [f".. py:type:: {address}", f"   :canonical: {written}", "", f"   {said}"]


def _definition(address: str) -> tuple[str, str]:
    """How a type is written and what is said below it, in a file of its public home or of core."""
    package, _, name = address.rpartition(".")
    for module in [*modules(package), *modules("fedsps.core")]:
        body = ast.parse(inspect.getsource(importlib.import_module(module))).body
        for node, below in pairwise(body):
            match node, below:
                case ast.Assign(targets=[ast.Name(id=found)], value=value), ast.Expr(ast.Constant(str(text))):
                    if found == name:
                        return ast.unparse(value), " ".join(text.split())
    raise LookupError(f"nothing is said about {address}: write a docstring below it")


def _modules(package: str) -> Iterator[str]:
    if package not in PUBLIC:
        yield from _file(package)
    for module in modules(package):
        yield from ("", f"## {module.removeprefix(package + '.')}", "")
        yield from _file(module)


def _file(module: str) -> Iterator[str]:
    """One file: its docstring, where its public names are documented, and the rest of it."""
    own = vars(importlib.import_module(module))
    public = {
        name: homes()[id(value)]
        for name, value in own.items()
        if id(value) in homes() and value.__module__ == module and homes()[id(value)] != f"{module}.{name}"
    }
    lines = [f".. automodule:: {module}", "   :members:", "   :special-members: __call__"]
    if public:
        lines.append(f"   :exclude-members: {', '.join(public)}")
    if module in homes().values():  # a function of the same name is public: links lead to it
        lines.append("   :no-index:")
    yield from _rst(lines)
    if public:
        links = ", ".join(f":py:obj:`{home}`" for home in public.values())
        yield from _rst([f"Public names of this file: {links}."])


# Docstrings

SECTION = re.compile(r"[A-Z]\w+:$")  # Args:, Attributes:, References:
ITEM = re.compile(r"([-*]|\d+\.) ")


def to_rst(lines: list[str]) -> list[str]:
    """A docstring as Sphinx reads it: an indented block is code, a table of Markdown is a table.

    The blocks under `Args:` and its like, lists, and examples with `>>>` stay as they are.
    """
    found: list[str] = []
    number, kept = 0, False  # kept: inside a section or a list, whose indented lines belong to it
    while number < len(lines):
        line = lines[number]
        follows_blank = not number or not lines[number - 1].strip()
        if line.startswith("|"):
            end = _end(lines, number, lambda one: one.startswith("|"))
            found += _table(lines[number:end])
            number = end
            continue
        if line.strip() and not line.startswith(" "):
            below = lines[number + 1] if number + 1 < len(lines) else ""
            kept = bool(SECTION.match(line) and below.startswith(" ")) or bool(ITEM.match(line))
        elif line.startswith("    ") and follows_blank and not kept:
            end = _end(lines, number, lambda one: one.startswith(" ") or not one.strip())
            block = lines[number:end]
            language = "python" if re.match(r"\s*(from|import) ", line) else "text"
            found += [f".. code-block:: {language}", "", *block, *([""] if block[-1].strip() else [])]
            number = end
            continue
        found.append(line)
        number += 1
    return found


def _end(lines: list[str], number: int, belongs: Any) -> int:
    while number < len(lines) and belongs(lines[number]):
        number += 1
    return number


def _table(rows: list[str]) -> Iterator[str]:
    yield from (".. list-table::", "   :header-rows: 1", "   :widths: auto", "")
    for number, row in enumerate(rows):
        if number == 1:
            continue  # | --- | --- |
        cells = [cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", row)[1:-1]]
        yield from (f"   {'*' if not place else ' '} - {cell}" for place, cell in enumerate(cells))
    yield ""
