"""Algorithms by name: what the command line and the specs of runs call them."""

import inspect
from dataclasses import dataclass
from typing import Any

from fedsps.algorithms import Algorithm, FedAvg, FedDecSPS, FedSPS, FedSPSGlobal, FedSPSNormalized
from fedsps.errors import ConfigurationError, unknown
from fedsps.objects import import_object, source_digest

CATALOGUE: dict[str, type[Algorithm]] = {
    "fedavg": FedAvg,
    "fedsps": FedSPS,
    "feddecsps": FedDecSPS,
    "fedsps-normalized": FedSPSNormalized,
    "fedsps-global": FedSPSGlobal,
}


@dataclass(frozen=True)
class Named:
    """An algorithm by its name and all its parameters, as a spec holds it."""

    name: str
    parameters: dict[str, Any]

    def build(self) -> Algorithm:
        """The algorithm itself."""
        return find(self.name)(**self.parameters)

    def label(self, *others: "Named") -> str:
        """The name, and the parameters that are not the default ones or differ between it and others of its name."""
        usual = defaults(find(self.name))
        alike = [other.parameters for other in others if other.name == self.name]
        shown = [
            f"{key}={value}"
            for key, value in self.parameters.items()
            if value != usual[key] or any(value != other[key] for other in alike)
        ]
        return " ".join([self.name.rpartition(":")[2], *shown])


def find(name: str) -> type[Algorithm]:
    """The class of an algorithm of the catalogue, or of the user's own, "file.py:Class" or "package.module:Class"."""
    if name in CATALOGUE:
        return CATALOGUE[name]
    if ":" not in name:
        raise unknown("algorithm", name, CATALOGUE)
    found = import_object(name)
    if not (inspect.isclass(found) and issubclass(found, Algorithm)):
        raise ConfigurationError(f"{name} is not a subclass of fedsps.Algorithm")
    return found


def defaults(kind: type[Algorithm]) -> dict[str, Any]:
    """The parameters of an algorithm and their default values."""
    return {name: parameter.default for name, parameter in inspect.signature(kind).parameters.items()}


def named(name: str, **given: Any) -> Named:
    """An algorithm with some parameters given and the rest at their defaults."""
    kind = find(name)
    known = defaults(kind)
    for key in given:
        if key not in known:
            raise unknown(f"parameter of {name}", key, known)
    chosen = Named(name, known | given)
    chosen.build()  # so that a wrong value is refused now, not after an hour
    return chosen


def parse(text: str) -> list[Named]:
    """Algorithms from one word of the command line.

    fedsps                                     its defaults
    fedsps:cap=10,smoothing=paper              some parameters given
    fedavg:client_stepsize=0.001/0.01/0.1      one algorithm for each value
    own_rule.py:MyMethod:strength=2            the user's own class
    """
    name, settings = _split(text)
    variants: list[dict[str, Any]] = [{}]
    for setting in filter(None, settings.split(",")):
        key, equals, values = setting.partition("=")
        if not equals or not values:
            raise ConfigurationError(f"{setting!r} in {text!r} must look like name=value")
        variants = [variant | {key.strip(): _value(value)} for variant in variants for value in values.split("/")]
    return [named(name, **variant) for variant in variants]


def _split(text: str) -> tuple[str, str]:
    """The name (which may be "file.py:Class") and the settings behind it."""
    name, _, rest = text.partition(":")
    if name not in CATALOGUE and ("." in name or (rest and "=" not in rest.partition(":")[0])):
        kind, _, rest = rest.partition(":")
        name = f"{name}:{kind}"
    return name, rest


def _value(text: str) -> Any:
    """A number, a truth value, none, several numbers "0.1;0.2" (one for each client), or a word."""
    if ";" in text:
        return tuple(_value(part) for part in text.split(";"))
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def code_digest(name: str) -> str | None:
    """The digest of the file that holds a user's own algorithm, so that a changed file is another run."""
    return None if name in CATALOGUE else source_digest(name)
