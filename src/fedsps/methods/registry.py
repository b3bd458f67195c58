"""Which methods and parts there are. Nothing is listed by hand: classes say their names, and are found by them."""

import inspect
import pkgutil
from importlib import import_module
from types import ModuleType
from typing import Any

from fedsps import methods, rules
from fedsps.checks import choice
from fedsps.core.addresses import import_object
from fedsps.core.algorithm import FAMILIES, Algorithm
from fedsps.core.kinds import KINDS
from fedsps.errors import ConfigurationError, unknown


def _modules() -> list[ModuleType]:
    """The files of the package `fedsps.methods`, but for this one and the notation, which stands on it."""
    names = [info.name for info in pkgutil.iter_modules(methods.__path__) if info.name not in ("registry", "notation")]
    return [import_module(f"{methods.__name__}.{name}") for name in names]


def _classes(module: ModuleType, kinds: tuple[type, ...]) -> list[type[Any]]:
    return [value for value in vars(module).values() if inspect.isclass(value) and issubclass(value, kinds)]


def _catalogue() -> dict[str, type[Algorithm]]:
    """By family, and within one the shortest name first: variants are named after what they vary."""
    classes = {kind for module in _modules() for kind in _classes(module, (Algorithm,)) if vars(kind).get("name")}
    for kind in classes:
        choice(f"family of {kind.__name__}", kind.family, FAMILIES)
    order = sorted(classes, key=lambda kind: (FAMILIES.index(kind.family), len(kind.name), kind.name))
    return {kind.name: kind for kind in order}


def _parts() -> dict[str, type[Any]]:
    """By kind, and within one by word."""
    classes = {part for module in (rules, *_modules()) for part in _classes(module, KINDS) if vars(part).get("word")}
    slots = [kind.slot for kind in KINDS]
    return {part.word: part for part in sorted(classes, key=lambda part: (slots.index(part.slot), part.word))}


CATALOGUE: dict[str, type[Algorithm]] = _catalogue()
"""The methods by name, in the order of tables."""

PARTS: dict[str, type[Any]] = _parts()
"""The parts of compositions by word; `PARTS[word].slot` is a part's place in an `Algorithm`."""


def find_part(word: str) -> type[Any]:
    """The class of a part, or of the user's own.

    Args:
        word: of the table of parts, "file.py:Class" or "package.module:Class".

    >>> find_part("amsgrad").slot
    'server'
    """
    if word in PARTS:
        return PARTS[word]
    if ":" not in word:
        raise unknown("part", word, PARTS)
    own: type[Any] = import_object(word)
    if not (inspect.isclass(own) and issubclass(own, KINDS)):
        kinds = ", ".join(kind.__name__ for kind in KINDS)
        raise ConfigurationError(f"{word} is no part of an algorithm: extend one of fedsps.rules.{{{kinds}}}")
    return own


def is_method(word: str) -> bool:
    """Whether a word names a whole method and not a part: of a file of the user's own its class decides."""
    if ":" in word:
        own = import_object(word)
        return not (inspect.isclass(own) and issubclass(own, KINDS))
    return word in CATALOGUE or word not in PARTS


def find(name: str) -> type[Algorithm]:
    """The class of a method, or of the user's own.

    Args:
        name: a name of the catalogue, "file.py:Class" or "package.module:Class".

    >>> find("fedams").__name__
    'FedAMS'
    >>> find("fedasm")
    Traceback (most recent call last):
    fedsps.errors.ConfigurationError: unknown algorithm 'fedasm': did you mean fedams or ...
    """
    if name in CATALOGUE:
        return CATALOGUE[name]
    if ":" not in name:
        raise unknown("algorithm", name, [*CATALOGUE, *PARTS])
    own = import_object(name)
    if not (inspect.isclass(own) and issubclass(own, Algorithm)):
        raise ConfigurationError(f"{name} is not a subclass of fedsps.Algorithm")
    return own
