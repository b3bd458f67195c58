"""Algorithms as words: how the command line and specs write them, and back.

fedsps                                     a method at its defaults
fedsps:cap=10,smoothing=paper              some parameters given
fedavg:client_stepsize=0.001/0.01/0.1      one algorithm for each value
sps:cap=2+amsgrad:eps=0.01+polyaverage     a composition of parts
own_rule.py:MyMethod:strength=2            the user's own class
sps+own_rule.py:Nesterov:beta=0.5          a part of the user's own in a composition
"""

import hashlib
import inspect
import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from fedsps.core.addresses import source_digest
from fedsps.core.algorithm import Algorithm
from fedsps.errors import ConfigurationError, FedspsError, unknown
from fedsps.methods.registry import CATALOGUE, PARTS, find, find_part, is_method


@dataclass(frozen=True)
class Named:
    """An algorithm by its name and all its parameters, as a spec holds it.

    A composition's name joins its parts, "sps+amsgrad", and its parameters carry theirs, "amsgrad.eps".
    """

    name: str
    parameters: dict[str, Any]

    def __hash__(self) -> int:
        return hash((self.name, repr(sorted(self.parameters.items(), key=lambda pair: pair[0]))))

    def build(self) -> Algorithm:
        """The algorithm that the name and the parameters stand for.

        Raises:
            ConfigurationError: for a name or a parameter that is unknown, or a value that cannot work.
        """
        try:
            return self._build()
        except FedspsError:
            raise
        except Exception as error:  # a class of the user's own may raise anything
            raise ConfigurationError(f"{self.name} cannot be made: {type(error).__name__}: {error}") from error

    def _build(self) -> Algorithm:
        words = _words(self.name)
        _check_known(self.name, self.parameters)
        if len(words) == 1 and _slot(words[0], 0) is None:
            return find(self.name)(**self.parameters)
        own = signatures(self.name)
        return compose({word: {key: self.parameters[f"{word}.{key}"] for key in keys} for word, keys in own.items()})

    @property
    def parts(self) -> str:
        """What the algorithm is made of, down to the defaults of its parts, in twelve digits.

        Name and parameters stay the same when a method is composed otherwise by a later version; this does not. Empty
        for the user's own classes, which are not imported for it: specs have the digest of their source.

        >>> named("fedsps").parts == named("fedsps").parts, named("fedsps").parts == named("fedavg").parts
        (True, False)
        """
        if ":" in self.name:
            return ""
        return hashlib.sha256(repr(self.build().composition).encode()).hexdigest()[:12]

    @property
    def text(self) -> str:
        """As the command line writes it, with the parameters that are not the default ones; `parse` reads it back.

        >>> parse("sps:cap=2,smoothing=paper+amsgrad:eps=0.01")[0].text
        'sps:cap=2,smoothing=paper+amsgrad:eps=0.01'
        """
        usual = defaults(self.name)
        given = {key: _written(value) for key, value in self.parameters.items() if value != usual[key]}
        words = _words(self.name)
        if len(words) == 1 and _slot(words[0], 0) is None:
            return _joined(self.name, given)
        own = {
            word: {key.removeprefix(f"{word}."): given[key] for key in given if key.startswith(f"{word}.")}
            for word in words
        }
        return "+".join(_joined(word, values) for word, values in own.items())

    def label(self, *others: "Named") -> str:
        """The name, and the parameters that are not the default ones or differ between it and others of its name."""
        try:
            usual = defaults(self.name)
        except ConfigurationError:  # of a class that the registry does not know: only differences can be told
            usual = self.parameters
        alike = [other.parameters for other in others if other.name == self.name]
        shown = [
            f"{key.rpartition(':')[2]}={_written(value)}"
            for key, value in self.parameters.items()
            if key not in usual or value != usual[key] or any(value != other.get(key, value) for other in alike)
        ]
        own = short(self.name)
        namesakes = any(other.name != self.name and short(other.name) == own for other in others)
        return " ".join([self.name if namesakes else own, *shown])


def short(name: str) -> str:
    """A name without the files that the user's own classes are in.

    >>> short("sps+rules/mine.py:Nesterov")
    'sps+Nesterov'
    """
    return "+".join(word.rpartition(":")[2] for word in _words(name))


def _joined(word: str, values: dict[str, str]) -> str:
    """A word and its settings."""
    return f"{word}:{','.join(f'{key}={value}' for key, value in values.items())}" if values else word


def _written(value: Any) -> str:
    """As short as it can be without becoming another value, and as `_value` reads it."""
    if isinstance(value, tuple):
        return ";".join(map(_written, value))
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def compose(parts: dict[str, dict[str, Any]]) -> Algorithm:
    """An algorithm from the names of parts and their parameters; the first may be a whole algorithm to start from."""
    name = "+".join(parts)
    whole: Algorithm | None = None
    chosen: dict[str, Any] = {}
    for place, (word, parameters) in enumerate(parts.items()):
        slot = _slot(word, place)
        if slot is None:
            whole = find(word)(**parameters)
            continue
        if slot in chosen:
            raise ConfigurationError(f"{name} has two parts for its {slot}: leave one out")
        chosen[slot] = find_part(word)(**parameters)
    if whole is not None:
        made = whole.with_parts(**chosen)
        first, parameters = next(iter(parts.items()))
        usual = defaults(first)
        for key, value in parameters.items():
            if value != usual[key] and _makes(made, first, parameters | {key: usual[key]}, chosen):
                raise ConfigurationError(
                    f"{key} of {first} has no effect in {name}, which replaces that part: leave it out"
                )
        return made
    if "stepsize" not in chosen:
        rules = [word for word, part in PARTS.items() if part.slot == "stepsize"]
        raise ConfigurationError(f"{name} has no stepsize rule: begin with {', '.join(rules)}, or an algorithm")
    return Algorithm(**chosen)


def _makes(made: Algorithm, first: str, parameters: dict[str, Any], chosen: dict[str, Any]) -> bool:
    """Whether these parameters make the same; those that do not go with the chosen parts make nothing."""
    try:
        return find(first)(**parameters).with_parts(**chosen) == made
    except FedspsError:
        return False


def defaults(name: str) -> dict[str, Any]:
    """The parameters of an algorithm or a composition, and their default values."""
    words = _words(name)
    own = signatures(name)
    if len(words) == 1 and _slot(words[0], 0) is None:
        return own[name]
    return {f"{word}.{key}": value for word, parameters in own.items() for key, value in parameters.items()}


def _words(name: str) -> list[str]:
    return re.split(r"\+(?=[a-zA-Z_./])", name)  # no digit: 1e+5 is one value


def _slot(word: str, place: int) -> str | None:
    """Where a word's part belongs; None for a whole algorithm, which only the first word can be."""
    if place == 0 and is_method(word):
        return None
    if word in CATALOGUE and word not in PARTS:
        raise ConfigurationError(f"{word} is a whole algorithm, not a part: put it first")
    slot: str = find_part(word).slot
    return slot


def makers(name: str) -> dict[str, Callable[..., Any]]:
    """What makes each word of a name: an algorithm's class, or what makes the part."""
    words = enumerate(_words(name))
    return {word: find(word) if _slot(word, place) is None else find_part(word) for place, word in words}


def signatures(name: str) -> dict[str, dict[str, Any]]:
    """Each word of a name with its own parameters and their defaults."""
    own = {}
    for word, make in makers(name).items():
        parameters = inspect.signature(make).parameters
        for key, parameter in parameters.items():
            if parameter.default is inspect.Parameter.empty:
                raise ConfigurationError(f"parameter {key!r} of {word} has no default value: give it one in its class")
        own[word] = {key: parameter.default for key, parameter in parameters.items()}
    return own


def name_of(algorithm: Algorithm) -> Named:
    """The name and all parameters of an algorithm: the inverse of `Named.build`, for records and labels.

    A method that was called by its parameters has its own name; a composition joins the words of its parts. A class
    that the registry does not know goes by its class name, and such a name cannot be built again.

    >>> import fedsps
    >>> name_of(fedsps.FedSPS(cap=2.0)).label()
    'fedsps cap=2'
    >>> name_of(fedsps.FedSPS().with_parts(output=fedsps.rules.PolynomialAverage(4))).label()
    'sps+polyaverage polyaverage.power=4'
    """
    kind, given = type(algorithm), algorithm.given
    if given is not None:
        usual = {key: parameter.default for key, parameter in inspect.signature(kind).parameters.items()}
        values = {key: _as_default(value, usual.get(key)) for key, value in (usual | given).items()}
        return Named(kind.name if CATALOGUE.get(kind.name) is kind else kind.__name__, values)
    usual = {field.name: field.default for field in fields(Algorithm)}
    parts = [part for place, part in algorithm.composition.items() if part != usual[place]]
    words = [part.word if PARTS.get(part.word) is type(part) else type(part).__name__ for part in parts]
    values = {
        f"{word}.{field.name}": _as_default(getattr(part, field.name), field.default)
        for word, part in zip(words, parts, strict=True)
        if is_dataclass(part)
        for field in fields(part)
    }
    return Named("+".join(words), values)


def named(name: str, **given: Any) -> Named:
    """An algorithm with some parameters given and the rest at their defaults."""
    known = defaults(name)
    _check_known(name, given)
    # 1 and 1.0 are one value and must be one run
    given = {key: _as_default(value, known[key]) for key, value in given.items()}
    chosen = Named(name, known | given)
    chosen.build()  # so that a wrong value is refused now, not after an hour
    return chosen


def _check_known(name: str, given: dict[str, Any]) -> None:
    known = defaults(name)
    for key in given:
        if key not in known:
            raise unknown(f"parameter of {name}", key, known)


def _as_default(value: Any, default: Any) -> Any:
    if type(value) is int and type(default) is float:
        return float(value)
    if type(value) is float and type(default) is int and value.is_integer():
        return int(value)
    return value


def usual(local_batch_norm: bool = False, change_alone: bool = False) -> str:
    """What is trained with where no algorithm is named: FedPolyak, which has nothing to tune.

    Args:
        local_batch_norm: the layers that clients keep are those of the last round: so is the output beside them.
        change_alone: clients send nothing but their change of the model, or nothing else that survives: FedSPS.

    >>> usual(), usual(local_batch_norm=True), usual(change_alone=True)
    ('fedpolyak', 'plateau+diagonal', 'fedsps')
    """
    if change_alone:
        return "fedsps"
    return "plateau+diagonal" if local_batch_norm else "fedpolyak"


def build(text: str) -> Algorithm:
    """One algorithm from its name, as the command line writes it.

    Args:
        text: a method, with its parameters if they are not the defaults; parts joined by a plus; or the user's own
            "file.py:Class".

    >>> build("fedsps:cap=10,smoothing=paper")
    FedSPS(cap=10.0, smoothing='paper')
    >>> build("ngn:cap=2+polyaverage")
    Algorithm(stepsize=NGN(scale=0.5, cap=2.0, lower=0.0), output=PolynomialAverage(power=8))
    """
    chosen, *others = parse(text)
    if others:
        raise ConfigurationError(f"{text!r} names {1 + len(others)} algorithms: give each parameter one value")
    return chosen.build()


def parse(text: str) -> list[Named]:
    """Algorithms from one word of the command line: one for each choice among values a/b/c of its parameters.

    >>> [one.label() for one in parse("fedavg:client_stepsize=0.01/1")]
    ['fedavg client_stepsize=0.01', 'fedavg client_stepsize=1']
    """
    return variants(*read(text))


def read(text: str) -> tuple[str, dict[str, str]]:
    """The name in one word of the command line, and its parameters as they are written; a part's carry its name."""
    if not isinstance(text, str):
        raise ConfigurationError(f"an algorithm is named by a text such as 'fedsps:cap=10'; got {text!r}")
    pieces = [_split(piece) for piece in _words(text)]
    name = "+".join(word for word, _ in pieces)
    if len({word for word, _ in pieces}) < len(pieces):
        raise ConfigurationError(f"{text!r} names a part twice: leave one out")
    is_whole = len(pieces) == 1 and _slot(name, 0) is None
    given: dict[str, str] = {}
    for word, settings in pieces:
        for setting in filter(None, settings.split(",")):
            key, equals, values = setting.partition("=")
            if not equals or not values:
                raise ConfigurationError(f"{setting!r} in {text!r} must look like name=value")
            key = key.strip() if is_whole else f"{word}.{key.strip()}"
            if key in given:
                raise ConfigurationError(f"{text!r} gives {key} twice: leave one out, or write {key}=a/b for both")
            given[key] = values
    return name, given


def variants(name: str, given: dict[str, str]) -> list[Named]:
    """One algorithm for each choice among the values a/b/c of its parameters."""
    choices = [[(key, _value(value)) for value in values.split("/")] for key, values in given.items()]
    return [named(name, **dict(variant)) for variant in itertools.product(*choices)]


def _split(text: str) -> tuple[str, str]:
    """The name (which may be "file.py:Class") and the settings behind it."""
    name, _, rest = text.partition(":")
    if name not in CATALOGUE and name not in PARTS and ("." in name or (rest and "=" not in rest.partition(":")[0])):
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
    """The digest of the file that holds a user's own algorithm or part, so that a changed file is another run.

    Of several files it is the digest of their digests.
    """
    found = list(dict.fromkeys(source_digest(word) for word in _words(name) if ":" in word))
    if len(found) > 1:
        return hashlib.sha256(" ".join(found).encode()).hexdigest()
    return found[0] if found else None
