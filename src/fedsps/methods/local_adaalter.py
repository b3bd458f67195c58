"""Local-AdaAlter (Xie et al. 2019): AdaGrad on the clients with a lazily shared denominator."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedsps.algorithm import Algorithm
from fedsps.checks import positive
from fedsps.direction import Direction
from fedsps.parts import Seen
from fedsps.server import Average
from fedsps.shapes import Tensors
from fedsps.stepsize import Constant


@dataclass(frozen=True)
class LazyAdagrad(Direction):
    """`g / sqrt(A + k eps^2)` at the local step k = 1 .. tau since the last communication.

    A is the shared sum of squares, `start` in each coordinate at first; a client's own squares of the round are kept
    aside, stood in for by `k eps^2`, and averaged into A at the communication.
    """

    start: float = 1.0
    eps: float = 1.0
    receives: ClassVar[tuple[str, ...]] = ("squares",)
    sends: ClassVar[tuple[str, ...]] = ("local_squares",)
    method: ClassVar[str] = "Local-AdaAlter"

    def __post_init__(self) -> None:
        positive("start", self.start)
        positive("eps", self.eps)

    def server_init(self, x: Tensor) -> Tensors:
        """The shared sum."""
        return {"squares": torch.full_like(x, self.start)}

    def begin(self, state: Tensors, x: Tensor) -> Tensors:
        """The client's own sum of the round."""
        return state | {"own_squares": torch.zeros_like(x)}

    def __call__(self, state: Tensors, seen: Seen) -> tuple[Tensor, Tensors]:
        """The direction, and the own sum."""
        direction = seen.gradient / (seen.received["squares"] + (seen.step + 1) * self.eps**2).sqrt()
        return direction, state | {"own_squares": state["own_squares"] + seen.gradient**2}

    def conclude(self, state: Tensors, seen: Seen, delta: Tensor) -> tuple[Tensors, Tensors]:
        """Send the own sum."""
        return {"local_squares": state["own_squares"]}, state

    def absorb(self, state: Tensors, mean: Tensors, participation: float) -> Tensors:
        """The mean of the clients' A_i = A + own squares."""
        return state | {"squares": state["squares"] + mean["local_squares"]}


class LocalAdaAlter(Algorithm):
    """Local-AdaAlter (Xie et al. 2019): AdaGrad on the clients, its denominator shared at each communication.

    x_i <- x_i - client_stepsize g / sqrt(A + k eps^2)   for k = 1 .. tau,    A <- A + mean_i sum_k g^2
    """

    def __init__(self, *, client_stepsize: float = 0.1, start: float = 1.0, eps: float = 1.0) -> None:
        super().__init__(stepsize=Constant(client_stepsize), direction=LazyAdagrad(start, eps), server=Average())
