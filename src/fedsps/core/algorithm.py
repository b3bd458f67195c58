"""An algorithm: the parts it is made of, and the exchanges of its rounds."""

import inspect
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from fedsps.core.contract import Exchange, Part, Ranges
from fedsps.core.kinds import (
    Average,
    Compression,
    Direction,
    Gradient,
    OutputRule,
    Penalty,
    ServerRule,
    StepsizeRule,
)
from fedsps.core.local_training import Train
from fedsps.core.vectors import Tensors
from fedsps.errors import ConfigurationError, unknown

FAMILIES = (
    "no learning rate at all",
    "the paper's own",
    "averaging",
    "adaptive server",
    "adaptive clients",
    "corrected directions",
)
"""In which order tables list the methods."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Algorithm:
    """A federated method, composed: stepsize rule x direction rule x server rule x output rule.

    Algorithms are values: equal parts make equal algorithms, whoever put them together, and the `repr` of one can be
    evaluated (with the names of `fedsps` and `fedsps.rules`). Two compositions are refused: a direction other than the
    gradient with a stepsize that is not constant (the paper defines the Polyak stepsize for the gradient alone), and
    compression of a message that is more than delta.

    Args:
        stepsize: how far a client's local step goes.
        direction: which way; the mini-batch gradient if not given.
        server: what the server makes of the mean change; the plain mean if not given.
        output: which point is evaluated and returned; the server rule's own if not given, the last iterate for most.
        penalty: what clients minimise beside their loss, such as FedProx's.
        compression: how the clients' changes are coded; not at all if not given.

    A named method is a subclass whose constructor takes its parameters and hands the parts up. It may say its `name`
    for the command line, its `family` in tables, and the `colour` of its curves.

    >>> import fedsps
    >>> from fedsps.rules import SPS, AMSGrad, Constant, PolynomialAverage
    >>> Algorithm(stepsize=Constant(0.1), output=PolynomialAverage())
    Algorithm(stepsize=Constant(stepsize=0.1), output=PolynomialAverage(power=8))
    >>> Algorithm(stepsize=SPS()) == fedsps.FedSPS()
    True
    >>> fedsps.FedSPS(cap=10.0).with_parts(server=AMSGrad()) == fedsps.build("fedsps:cap=10+amsgrad")
    True
    """

    name: ClassVar[str] = ""
    family: ClassVar[str] = ""
    adaptive: ClassVar[str] = "no"
    colour: ClassVar[str] = ""

    stepsize: StepsizeRule
    direction: Direction = Gradient()
    server: ServerRule = Average()
    output: OutputRule | None = None
    penalty: Penalty | None = None
    compression: Compression | None = None

    def __new__(cls, *positional: Any, **named: Any) -> Self:
        """Remember what the constructor was given, so that a named method can print itself by its own parameters."""
        made = super().__new__(cls)
        object.__setattr__(made, "_given", (positional, named))
        return made

    def __post_init__(self) -> None:
        kinds = {
            "stepsize": StepsizeRule,
            "direction": Direction,
            "server": ServerRule,
            "output": OutputRule | None,
            "penalty": Penalty | None,
            "compression": Compression | None,
        }
        for name, kind in kinds.items():
            if not isinstance(getattr(self, name), kind):
                raise ConfigurationError(f"{name} must be a part of that kind; got {getattr(self, name)!r}")
        self.direction.check_with(self.stepsize, self.server)
        self._check_names()
        if self.compression is not None and not self.sends_delta_only:
            sent = ", ".join(name for part in self.parts for name in part.sends)
            raise ConfigurationError(f"compression is for algorithms that send delta alone; this one also sends {sent}")

    def _check_names(self) -> None:
        x = torch.zeros(1)
        unsent = [] if self.compression is None else list(self.compression.client_init(x))
        for names in (
            [name for part in self.parts for name in part.client_init(x)] + unsent,
            [name for part in self.parts for name in part.server_init(x)],
        ):
            twice = {name for name in names if names.count(name) > 1}
            if twice:
                raise ConfigurationError(f"two parts keep a state of the name {min(twice)!r}: they do not go together")

    @property
    def composition(self) -> dict[str, Any]:
        """Every part by its place, those that are not there as None: what makes two algorithms equal."""
        return {field.name: getattr(self, field.name) for field in fields(Algorithm)}

    @property
    def _actor(self) -> type:
        """The class that decides how the parts act together: `Algorithm`, unless a subclass overrides what it does."""
        acts = {"exchanges", "client_init", "server_init", "check"}
        return next(kind for kind in type(self).__mro__ if acts & vars(kind).keys())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Algorithm):
            return NotImplemented
        return self._actor is other._actor and self.composition == other.composition

    def __hash__(self) -> int:
        return hash((self._actor, *self.composition.values()))

    def __repr__(self) -> str:
        shown, usual = self.given, {field.name: field.default for field in fields(Algorithm)}
        if shown is None:
            shown = {name: part for name, part in self.composition.items() if part != usual[name]}
        name = self._actor.__name__ if self.given is None else type(self).__name__
        return f"{name}({', '.join(f'{key}={value!r}' for key, value in shown.items())})"

    @property
    def given(self) -> dict[str, Any] | None:
        """The parameters of a named method that are not its defaults; None for a composition of parts."""
        if type(self).__init__ is Algorithm.__init__ or "_given" not in vars(self):
            return None
        signature, (positional, named) = inspect.signature(type(self)), vars(self)["_given"]
        bound = signature.bind(*positional, **named).arguments
        plain = {key: tuple(value.tolist()) if hasattr(value, "tolist") else value for key, value in bound.items()}
        return {key: value for key, value in plain.items() if value != signature.parameters[key].default}

    def with_parts(self, **parts: Any) -> "Algorithm":
        """The same algorithm with some parts exchanged; without any it equals the one it was made from.

        Args:
            **parts: by place, as the constructor takes them: `with_parts(output=PolynomialAverage())`.
        """
        for place in parts:
            if place not in self.composition:
                raise unknown("part of an algorithm", place, self.composition)
        made: Algorithm = object.__new__(self._actor)
        vars(made).update({name: value for name, value in vars(self).items() if name != "_given"})
        Algorithm.__init__(made, **(self.composition | parts))
        return made

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts that have state on clients or on the server."""
        return (self.stepsize, self.direction, self.server)

    @property
    def output_rule(self) -> OutputRule:
        """The output rule, the server rule's own where none is given."""
        return self.output or self.server.output

    @property
    def sends_delta_only(self) -> bool:
        """Whether a client's message is one vector, its change of the model."""
        return not any(part.sends for part in self.parts)

    def ranges(self, norm: float, private: bool = False) -> Ranges:
        """The ranges of the scalars that clients send, of all parts; see `Part.ranges` and `Part.private_ranges`."""
        stated = [part.private_ranges(norm) if private else part.ranges(norm) for part in self.parts]
        return {name: bounds for ranges in stated for name, bounds in ranges.items()}

    @property
    def privately(self) -> "Algorithm":
        """The algorithm with the parts that runs with differential privacy have in their place."""
        own = {name: part for name, part in self.composition.items() if isinstance(part, Part)}
        other = {name: part.privately() for name, part in own.items()}
        return self if other == own else self.with_parts(**other)

    @property
    def in_span(self) -> bool:
        """Whether clients need no coordinates of vectors; see `Part.in_span`."""
        plain = self.penalty is None and self.compression is None
        return plain and all(vars(type(part)).get("in_span", False) for part in self.parts)

    def check(self, clients: int) -> None:
        """Refuse what does not fit this number of clients."""
        for part in self.parts:
            part.check(clients)

    def client_init(self, x: Tensor) -> Tensors:
        """The state of clients that have not taken part yet; `x [..., d]` tells the shape."""
        state = {name: value for part in self.parts for name, value in part.client_init(x).items()}
        return state if self.compression is None else state | self.compression.client_init(x)

    def server_init(self, x: Tensor) -> Tensors:
        """The server's state before the first round, at its point `x [d]`."""
        return {name: value for part in self.parts for name, value in part.server_init(x).items()}

    def exchanges(self, round: int) -> tuple[Exchange, ...]:
        """The exchanges of round 0, 1, ...: what the parts ask for, then training."""
        before = [exchange for part in self.parts for exchange in part.before(round)]
        return (*before, Train(self.stepsize, self.direction, self.server, self.penalty, self.compression))
