"""Server rules that adapt to each coordinate: Adagrad, Adam, Yogi, AMSGrad.

The first three are algorithm 2 of Reddi et al. 2021: a momentum, and a step by it over the root of a second moment,
coordinate by coordinate and without bias correction. They differ in the second moment alone:

    m <- b1 m + (1 - b1) Delta,    x <- x + stepsize m / (sqrt(v) + eps),    m = 0 and v = eps^2 at the start
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedsps.checks import fraction, positive, truth
from fedsps.core.kinds import ServerRule
from fedsps.core.vectors import Tensors, along, filled, widest
from fedsps.errors import ConfigurationError

__all__ = ["AMSGrad", "Adagrad", "Adam", "Yogi"]


@dataclass(frozen=True, kw_only=True)
class Adagrad(ServerRule):
    """Adagrad on the server: `v <- v + Delta^2`, the recursion of m and x as above.

    Args:
        stepsize: the server's stepsize (eta).
        b1: decay of the momentum.
        eps: added to the root, and the root of v at the start.

    References:
        Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan: Adaptive Federated Optimization, ICLR 2021.
    """

    in_span: ClassVar[bool] = True
    in_sweep: ClassVar[bool] = True
    word: ClassVar[str] = "adagrad"
    stepsize: float = 0.1
    b1: float = 0.9
    eps: float = 1e-3

    def __post_init__(self) -> None:
        positive("server_stepsize", self.stepsize)
        fraction("b1", self.b1)
        positive("eps", self.eps)

    def server_init(self, x: Tensor) -> Tensors:
        """Both moments: `m = 0`, `v = eps^2`."""
        return {"m": torch.zeros_like(x), "v": filled(x, self.eps**2)}

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """The recursion that tells the three rules apart; here `v + Delta^2`."""
        return v + square

    def __call__(self, state: Tensors, x: Tensor, mean: Tensors) -> tuple[Tensor, Tensors]:
        """Move by the momentum over the root of the second moment."""
        delta = mean["delta"]
        b1 = along(self.b1)
        m = b1 * state["m"] + (1 - b1) * delta
        v = self.second_moment(state["v"], delta**2)
        return x + along(self.stepsize) * m / (v.sqrt() + along(self.eps)), state | {"m": m, "v": v}


@dataclass(frozen=True, kw_only=True)
class Adam(Adagrad):
    """Adam on the server, without bias correction: `v <- b2 v + (1 - b2) Delta^2`.

    Args:
        stepsize: the server's stepsize (eta).
        b1: decay of the momentum.
        b2: decay of the second moment.
        eps: added to the root, and the root of v at the start.
    """

    in_span: ClassVar[bool] = True
    in_sweep: ClassVar[bool] = True
    word: ClassVar[str] = "adam"
    b2: float = 0.99

    def __post_init__(self) -> None:
        super().__post_init__()
        fraction("b2", self.b2)

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """An exponential mean of the squares."""
        b2 = along(self.b2)
        return b2 * v + (1 - b2) * square


@dataclass(frozen=True, kw_only=True)
class Yogi(Adam):
    """Yogi on the server: `v <- v - (1 - b2) Delta^2 sign(v - Delta^2)`; the parameters are Adam's."""

    in_span: ClassVar[bool] = True
    in_sweep: ClassVar[bool] = True
    word: ClassVar[str] = "yogi"

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """Additive, so that v shrinks slowly where the changes are small."""
        return v - (1 - along(self.b2)) * square * torch.sign(v - square)


@dataclass(frozen=True, kw_only=True)
class AMSGrad(ServerRule):
    """FedAMS's server: AMSGrad, with a maximum as stabiliser; m, v and vhat are 0 at the start.

        m <- b1 m + (1 - b1) Delta,    v <- b2 v + (1 - b2) Delta^2
        option 1:   vhat <- max(vhat, v, eps),   x <- x + stepsize m / sqrt(vhat)
        option 2:   vhat <- max(vhat, v),        x <- x + stepsize m / (sqrt(vhat) + eps)

    Args:
        stepsize: the server's stepsize (eta).
        b1: decay of the momentum.
        b2: decay of the second moment.
        eps: the stabiliser: the least vhat in option 1, added to its root in option 2.
        option: 1 or 2, see above.
        bias_correction: the form of the authors' public code: vhat starts at eps, and in round r = 1, 2, ...
            `m / (1 - b1^r)` stands for m and `sqrt(vhat) / sqrt(1 - b2^r)` for `sqrt(vhat)`.

    References:
        Wang, Lin, Chen: Communication-Efficient Adaptive Federated Learning, ICML 2022.
    """

    in_span: ClassVar[bool] = True
    in_sweep: ClassVar[bool] = True
    word: ClassVar[str] = "amsgrad"
    stepsize: float = 1.0
    b1: float = 0.9
    b2: float = 0.99
    eps: float = 1e-3
    option: int = 1
    bias_correction: bool = False

    def __post_init__(self) -> None:
        positive("server_stepsize", self.stepsize)
        fraction("b1", self.b1)
        fraction("b2", self.b2)
        positive("eps", self.eps)
        truth("bias_correction", self.bias_correction)
        if isinstance(self.option, bool) or self.option not in (1, 2):
            raise ConfigurationError(f"option must be 1 (max stabilisation) or 2 (added eps); got {self.option!r}")

    def server_init(self, x: Tensor) -> Tensors:
        """The moments, and the number of rounds for the bias correction."""
        zero = torch.zeros_like(x)
        if not self.bias_correction:
            return {"m": zero, "v": zero, "vhat": zero}
        rounds = torch.zeros(x.shape[:-1], dtype=widest(x.device), device=x.device)
        return {"m": zero, "v": zero, "vhat": filled(x, self.eps), "rounds": rounds}

    def __call__(self, state: Tensors, x: Tensor, mean: Tensors) -> tuple[Tensor, Tensors]:
        """Move by the momentum over the root of the largest second moment so far."""
        delta = mean["delta"]
        b1, b2, eps = along(self.b1), along(self.b2), along(self.eps)
        m = b1 * state["m"] + (1 - b1) * delta
        v = b2 * state["v"] + (1 - b2) * delta**2
        vhat = torch.maximum(state["vhat"], v)
        if self.option == 1:
            vhat = vhat.clamp(min=eps)
        state = state | {"m": m, "v": v, "vhat": vhat}
        root = vhat.sqrt()
        if self.bias_correction:
            rounds = state["rounds"] + 1
            state = state | {"rounds": rounds}
            m = m / (1 - self.b1**rounds).unsqueeze(-1).to(m)
            root = root / (1 - self.b2**rounds).sqrt().unsqueeze(-1).to(m)
        return x + along(self.stepsize) * m / (root if self.option == 1 else root + eps), state
