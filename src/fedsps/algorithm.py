"""An algorithm: the parts it is made of, and the exchanges of its rounds."""

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from fedsps.checks import positive
from fedsps.client import Train
from fedsps.compression import Compression
from fedsps.direction import Direction, Gradient
from fedsps.errors import ConfigurationError
from fedsps.output import OutputRule
from fedsps.parts import Exchange, Part
from fedsps.server import Average, ServerRule
from fedsps.shapes import Tensors
from fedsps.stepsize import StepsizeRule


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """A federated method, composed: stepsize rule x direction rule x server rule x output rule.

        Algorithm(stepsize=SPS(), server=AMSGrad(), output=PolynomialAverage())

    `compression` is for what the clients send, `proximal` the weight of FedProx's penalty. The output rule is the
    server rule's own where none is given: the last iterate for most.

    Two compositions are refused: a direction other than the gradient with a stepsize that is not constant (the paper
    defines the Polyak stepsize for the gradient alone), and compression of a message that is more than delta.
    """

    stepsize: StepsizeRule
    direction: Direction = Gradient()
    server: ServerRule = Average()
    output: OutputRule | None = None
    compression: Compression | None = None
    proximal: float = 0.0

    def __post_init__(self) -> None:
        kinds = {
            "stepsize": StepsizeRule,
            "direction": Direction,
            "server": ServerRule,
            "output": OutputRule | None,
            "compression": Compression | None,
        }
        for name, kind in kinds.items():
            if not isinstance(getattr(self, name), kind):
                raise ConfigurationError(f"{name} must be a part of that kind; got {getattr(self, name)!r}")
        if self.proximal != 0:
            positive("mu", self.proximal)
        self.direction.check_with(self.stepsize, self.server)
        self._check_names()
        if self.compression is not None and not self.sends_delta_only:
            sent = ", ".join(name for part in self.parts for name in part.sends)
            raise ConfigurationError(f"compression is for algorithms that send delta alone; this one also sends {sent}")

    def _check_names(self) -> None:
        one = torch.zeros(1)
        unsent = [] if self.compression is None else list(self.compression.client_init(one))
        for names in (
            [name for part in self.parts for name in part.client_init(one)] + unsent,
            [name for part in self.parts for name in part.server_init(one)],
        ):
            twice = {name for name in names if names.count(name) > 1}
            if twice:
                raise ConfigurationError(f"two parts keep a state of the name {min(twice)!r}: they do not go together")

    def with_parts(self, **parts: Any) -> "Algorithm":
        """The same algorithm with some parts exchanged: `FedSPS().with_parts(output=PolynomialAverage())`."""
        return Algorithm(**({field.name: getattr(self, field.name) for field in fields(Algorithm)} | parts))

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

    def check(self, clients: int) -> None:
        """Refuse what does not fit this number of clients."""
        for part in self.parts:
            part.check(clients)

    def client_init(self, x: Tensor) -> Tensors:
        """The state of clients that have not taken part yet; `x [..., d]` tells the shape."""
        state = {name: value for part in self.parts for name, value in part.client_init(x).items()}
        return state if self.compression is None else state | self.compression.client_init(x)

    def server_init(self, x: Tensor) -> Tensors:
        """The server's state before the first round."""
        return {name: value for part in self.parts for name, value in part.server_init(x).items()}

    def exchanges(self, round: int) -> tuple[Exchange, ...]:
        """The exchanges of round 0, 1, ...: what the parts ask for, then training."""
        before = [exchange for part in self.parts for exchange in part.before(round)]
        return (*before, Train(self.stepsize, self.direction, self.server, self.compression, self.proximal))
