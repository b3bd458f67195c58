"""Output rules: which point is evaluated and returned. Training always goes on from the server's x."""

from dataclasses import dataclass

from torch import Tensor

from fedsps.shapes import Tensors


@dataclass(frozen=True)
class OutputRule:
    """What every rule is."""

    def init(self, x: Tensor) -> Tensors:
        """The rule's state before the first round."""
        return {}

    def __call__(self, state: Tensors, x: Tensor, round: int) -> tuple[Tensor, Tensors]:
        """Return the output after round 1, 2, ..., given the server's x after it."""
        raise NotImplementedError


@dataclass(frozen=True)
class LastIterate(OutputRule):
    """The server's x itself."""

    def __call__(self, state: Tensors, x: Tensor, round: int) -> tuple[Tensor, Tensors]:
        """The last iterate."""
        return x, state
