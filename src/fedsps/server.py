"""Server rules: the mean of the clients' messages goes in, the next point comes out."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedsps.checks import positive
from fedsps.output import LastIterate, OutputRule
from fedsps.parts import Part, Trace
from fedsps.shapes import Tensors


@dataclass(frozen=True)
class ServerRule(Part):
    """What every rule is. `report` runs on the client, `__call__` on the server.

    `delta = x_i - x` is what a client's local steps changed; the server sees only means over the cohort.
    """

    output: ClassVar[OutputRule] = LastIterate()  # what goes with the rule where no other output is asked for

    def report(self, delta: Tensor, trace: Trace) -> Tensors:
        """What a client sends: its change `[..., d]`, unless the rule needs something else."""
        return {"delta": delta}

    def __call__(self, state: Tensors, x: Tensor, mean: Tensors) -> tuple[Tensor, Tensors]:
        """Return the next point and the server's new state."""
        raise NotImplementedError


@dataclass(frozen=True)
class Average(ServerRule):
    """`x <- x + stepsize * mean_i(x_i - x)`; with a stepsize of 1 the plain mean of the clients' points."""

    stepsize: float = 1.0

    def __post_init__(self) -> None:
        positive("server_stepsize", self.stepsize)

    def __call__(self, state: Tensors, x: Tensor, mean: Tensors) -> tuple[Tensor, Tensors]:
        """Move by the mean change."""
        return x + self.stepsize * mean["delta"], state
