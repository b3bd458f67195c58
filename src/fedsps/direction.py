"""Direction rules: what a client multiplies its stepsize with."""

from dataclasses import dataclass

from torch import Tensor

from fedsps.parts import Part, Seen
from fedsps.shapes import Tensors


@dataclass(frozen=True)
class Direction(Part):
    """What every rule is. A direction other than the gradient goes with a constant stepsize only (see `Algorithm`)."""

    def __call__(self, state: Tensors, seen: Seen) -> tuple[Tensor, Tensors]:
        """Return the direction `[..., d]` and the client's new state."""
        raise NotImplementedError


@dataclass(frozen=True)
class Gradient(Direction):
    """Plain stochastic gradient descent: the direction is the mini-batch gradient."""

    def __call__(self, state: Tensors, seen: Seen) -> tuple[Tensor, Tensors]:
        """The gradient as it is."""
        return seen.gradient, state
