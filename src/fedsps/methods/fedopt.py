"""Adaptive steps on the server: FedAdagrad, FedAdam, FedYogi (Reddi et al. 2021, algorithm 2).

All three keep a momentum and move by it, coordinate by coordinate, without bias correction:

    m <- b1 m + (1 - b1) Delta,    x <- x + stepsize m / (sqrt(v) + eps),    m = 0 and v = eps^2 at the start
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedsps.algorithm import Algorithm
from fedsps.checks import fraction, positive
from fedsps.server import ServerRule
from fedsps.shapes import Tensors
from fedsps.stepsize import Constant


@dataclass(frozen=True)
class Adagrad(ServerRule):
    """`v <- v + Delta^2`."""

    stepsize: float = 0.1
    b1: float = 0.9
    eps: float = 1e-3

    def __post_init__(self) -> None:
        positive("server_stepsize", self.stepsize)
        fraction("b1", self.b1)
        positive("eps", self.eps)

    def server_init(self, x: Tensor) -> Tensors:
        """Both moments."""
        return {"m": torch.zeros_like(x), "v": torch.full_like(x, self.eps**2)}

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """The recursion that tells the three rules apart."""
        return v + square

    def __call__(self, state: Tensors, x: Tensor, mean: Tensors) -> tuple[Tensor, Tensors]:
        """Move by the momentum over the root of the second moment."""
        delta = mean["delta"]
        m = self.b1 * state["m"] + (1 - self.b1) * delta
        v = self.second_moment(state["v"], delta**2)
        return x + self.stepsize * m / (v.sqrt() + self.eps), state | {"m": m, "v": v}


@dataclass(frozen=True)
class Adam(Adagrad):
    """`v <- b2 v + (1 - b2) Delta^2`."""

    b2: float = 0.99

    def __post_init__(self) -> None:
        super().__post_init__()
        fraction("b2", self.b2)

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """An exponential mean."""
        return self.b2 * v + (1 - self.b2) * square


@dataclass(frozen=True)
class Yogi(Adam):
    """`v <- v - (1 - b2) Delta^2 sign(v - Delta^2)`."""

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """Additive, so that v shrinks slowly."""
        return v - (1 - self.b2) * square * torch.sign(v - square)


class FedAdagrad(Algorithm):
    """FedAdagrad (Reddi et al. 2021): Adagrad on the server.

    m <- b1 m + (1 - b1) Delta,    v <- v + Delta^2,    x <- x + server_stepsize m / (sqrt(v) + eps)
    """

    def __init__(
        self, *, client_stepsize: float = 0.1, server_stepsize: float = 0.1, b1: float = 0.9, eps: float = 1e-3
    ) -> None:
        super().__init__(stepsize=Constant(client_stepsize), server=Adagrad(server_stepsize, b1, eps))


class FedAdam(Algorithm):
    """FedAdam (Reddi et al. 2021): Adam on the server, without bias correction.

    m <- b1 m + (1 - b1) Delta,    v <- b2 v + (1 - b2) Delta^2,    x <- x + server_stepsize m / (sqrt(v) + eps)
    """

    def __init__(
        self,
        *,
        client_stepsize: float = 0.1,
        server_stepsize: float = 0.1,
        b1: float = 0.9,
        b2: float = 0.99,
        eps: float = 1e-3,
    ) -> None:
        super().__init__(stepsize=Constant(client_stepsize), server=Adam(server_stepsize, b1, eps, b2))


class FedYogi(Algorithm):
    """FedYogi (Reddi et al. 2021): Yogi on the server.

    v <- v - (1 - b2) Delta^2 sign(v - Delta^2),    m and x as FedAdam
    """

    def __init__(
        self,
        *,
        client_stepsize: float = 0.1,
        server_stepsize: float = 0.1,
        b1: float = 0.9,
        b2: float = 0.99,
        eps: float = 1e-3,
    ) -> None:
        super().__init__(stepsize=Constant(client_stepsize), server=Yogi(server_stepsize, b1, eps, b2))
