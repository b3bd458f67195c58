"""What is searched: an algorithm, the values of its parameters, and how they are tried."""

import hashlib
import json
from dataclasses import dataclass, replace
from math import inf, prod
from typing import Any, Literal, get_args

from fedsps.checks import choice, count
from fedsps.errors import ConfigurationError
from fedsps.methods import notation
from fedsps.methods.notation import Named
from fedsps.runs.spec import Spec

TUNING_SEED = 1000
Sampler = Literal["grid", "tpe"]
PAPER_GRID = {
    "client_stepsize": (1e-4, 1e-3, 1e-2, 1e-1, 1.0),
    "server_stepsize": (1e-3, 1e-2, 1e-1, 1.0),
    "eps": (1e-8, 1e-4, 1e-3, 1e-2, 1e-1, 1.0),
}
"""Table 1 of the paper. FedAvg has the first two; FedAdam is given FedAMS's."""


@dataclass(frozen=True)
class Range:
    """Any value from `low` to `high`, sampled on a logarithmic scale; for the Bayesian search.

    >>> Range(0.001, 0.0)
    Traceback (most recent call last):
    fedsps.errors.ConfigurationError: a range goes from a number above 0 to a larger one; got 0.001..0.0
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 < self.low < self.high < inf:
            raise ConfigurationError(f"a range goes from a number above 0 to a larger one; got {self.low}..{self.high}")


Space = dict[str, tuple[Any, ...] | Range]


@dataclass(frozen=True)
class Search:
    """What is searched: the run that stays the same, and the parameters that vary.

    Attributes:
        spec: the run.
        space: values, or a range, for each parameter that varies.
        sampler: "grid" tries every point, "tpe" is Bayesian.
        trials: of the Bayesian search; a grid has its own number.
        halve_from: at this round, four times it, ... a trial is dropped that is not in the best quarter of those that
            have come as far; 0: never.

    >>> search = Search(Spec.of("fedavg"), {"client_stepsize": (0.1, 1.0), "server_stepsize": (0.5, 1.0)})
    >>> search.size, search.at({"client_stepsize": 0.1}).parameters
    (4, {'client_stepsize': 0.1, 'server_stepsize': 1.0})
    """

    spec: Spec
    space: Space
    sampler: Sampler = "grid"
    trials: int = 50
    halve_from: int = 0

    def __post_init__(self) -> None:
        choice("sampler", self.sampler, get_args(Sampler))
        count("trials", self.trials)
        count("halve_from", self.halve_from, least=0)
        plan = self.spec.plan
        if not self.halve_from and plan.evaluate_from == 1:  # the score is made of the last tenth
            object.__setattr__(self, "spec", self.spec.but(evaluate_from=int(0.9 * plan.rounds) + 1))
        if not self.space:
            raise ConfigurationError(f"nothing to search: give {self.spec.algorithm} several values of a parameter")
        if self.sampler == "grid" and any(isinstance(values, Range) for values in self.space.values()):
            raise ConfigurationError("a grid needs values, a/b/c; ranges, a..b, are for the sampler tpe")
        for name, values in self.space.items():
            for value in () if isinstance(values, Range) else values:
                if not isinstance(value, str | int | float | None):
                    raise ConfigurationError(f"{name} cannot be searched: {value!r} is neither a number nor a word")

    @property
    def size(self) -> int:
        """The number of trials: of all points of a grid, or as many as were asked for."""
        sizes = [len(values) for values in self.space.values() if not isinstance(values, Range)]
        return prod(sizes) if self.sampler == "grid" else self.trials

    @property
    def name(self) -> str:
        """The name of the study, the same for the same search: that is how one that was interrupted is found again.

        The number of trials is not in it, so that a Bayesian search may be asked for more and goes on.
        """
        text = json.dumps([self.spec.digest, self.sampler, self.halve_from, repr(self.space)])
        return f"{self.spec.algorithm}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def at(self, parameters: dict[str, Any]) -> Spec:
        """The run at one point of the space."""
        return replace(self.spec, parameters=self.spec.parameters | parameters)


def parse_space(text: str) -> tuple[Named, Space]:
    """An algorithm and its space from one word: values a/b/c, ranges a..b; a bare name takes the paper's grid.

    The algorithm has the first value of each parameter, or a range's lower end.

    >>> parse_space("fedavg:client_stepsize=0.01/0.1")[1]
    {'client_stepsize': (0.01, 0.1)}
    >>> parse_space("fedavg:client_stepsize=1e-4..1")[1]
    {'client_stepsize': Range(low=0.0001, high=1.0)}
    """
    name, given = notation.read(text)
    ranges: dict[str, Range] = {}
    for key, written in given.items():
        low, dots, high = written.partition("..")
        if dots:
            ranges[key] = _range(f"{key}={written}", low, high)
            given[key] = low
    variants = notation.variants(name, given)
    first = variants[0]
    space: Space = dict(ranges)
    for key in first.parameters:
        values = tuple(dict.fromkeys(variant.parameters[key] for variant in variants))
        if len(values) > 1:
            space[key] = values
    if not space and ":" not in text:
        space = {key: values for key, values in PAPER_GRID.items() if key in first.parameters}
    return first, space


def _range(setting: str, low: str, high: str) -> Range:
    if "/" in low + high:
        raise ConfigurationError(f"{setting!r} is both a range, a..b, and values, a/b/c: take one of them")
    try:
        ends = float(low), float(high)
    except ValueError as error:
        raise ConfigurationError(f"{setting!r} is not a range of numbers, like 0.001..1") from error
    return Range(*ends)
