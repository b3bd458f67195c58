"""Direction rules: what a client multiplies its stepsize with."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedsps.errors import ConfigurationError
from fedsps.parts import Part, Seen
from fedsps.server import ServerRule
from fedsps.shapes import Tensors
from fedsps.stepsize import Constant, StepsizeRule


@dataclass(frozen=True)
class Direction(Part):
    """What every rule is."""

    method: ClassVar[str] = ""  # the name of the method that it belongs to

    def check_with(self, stepsize: StepsizeRule, server: ServerRule) -> None:
        """Refuse other parts that are not defined with this direction.

        The paper defines the Polyak stepsize for the gradient alone: the ratio of a loss gap and the squared norm of
        a corrected direction bounds nothing. So any other direction takes a constant stepsize only.
        """
        if not isinstance(stepsize, Constant):
            raise ConfigurationError(
                f"the stepsize rule {type(stepsize).__name__} is not defined with the corrected direction of "
                f"{self.method or type(self).__name__}: use a constant stepsize with it, or the plain gradient"
            )

    def __call__(self, state: Tensors, seen: Seen) -> tuple[Tensor, Tensors]:
        """Return the direction `[..., d]` and the client's new state."""
        raise NotImplementedError


@dataclass(frozen=True)
class Gradient(Direction):
    """Plain stochastic gradient descent: the direction is the mini-batch gradient."""

    def check_with(self, stepsize: StepsizeRule, server: ServerRule) -> None:
        """Any other parts will do."""

    def __call__(self, state: Tensors, seen: Seen) -> tuple[Tensor, Tensors]:
        """The gradient as it is."""
        return seen.gradient, state
