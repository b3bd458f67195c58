"""FedAMS (Wang et al. 2022), the paper's main competitor: AMSGrad with max stabilisation on the server."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedsps.algorithm import Algorithm
from fedsps.checks import fraction, positive, truth
from fedsps.errors import ConfigurationError
from fedsps.server import ServerRule
from fedsps.shapes import Tensors
from fedsps.stepsize import Constant


@dataclass(frozen=True)
class AMSGrad(ServerRule):
    """AMSGrad on the server; m, v and vhat are 0 at the start.

        m <- b1 m + (1 - b1) Delta,    v <- b2 v + (1 - b2) Delta^2
        option 1:   vhat <- max(vhat, v, eps),   x <- x + stepsize m / sqrt(vhat)
        option 2:   vhat <- max(vhat, v),        x <- x + stepsize m / (sqrt(vhat) + eps)

    With `bias_correction` the form of the authors' public code: vhat starts at eps, and in round r = 1, 2, ...
    `m / (1 - b1^r)` stands for m and `sqrt(vhat) / sqrt(1 - b2^r)` for `sqrt(vhat)`.
    """

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
        """The moments, and the round for the bias correction."""
        zero = torch.zeros_like(x)
        if not self.bias_correction:
            return {"m": zero, "v": zero, "vhat": zero}
        rounds = torch.zeros(x.shape[:-1], dtype=torch.float64, device=x.device)
        return {"m": zero, "v": zero, "vhat": torch.full_like(x, self.eps), "rounds": rounds}

    def __call__(self, state: Tensors, x: Tensor, mean: Tensors) -> tuple[Tensor, Tensors]:
        """Move by the momentum over the root of the largest second moment so far."""
        delta = mean["delta"]
        m = self.b1 * state["m"] + (1 - self.b1) * delta
        v = self.b2 * state["v"] + (1 - self.b2) * delta**2
        vhat = torch.maximum(state["vhat"], v)
        if self.option == 1:
            vhat = vhat.clamp(min=self.eps)
        state = state | {"m": m, "v": v, "vhat": vhat}
        root = vhat.sqrt()
        if self.bias_correction:
            rounds = state["rounds"] + 1
            state = state | {"rounds": rounds}
            m = m / (1 - self.b1**rounds).unsqueeze(-1).to(m)
            root = root / (1 - self.b2**rounds).sqrt().unsqueeze(-1).to(m)
        return x + self.stepsize * m / (root if self.option == 1 else root + self.eps), state


class FedAMS(Algorithm):
    """FedAMS (Wang et al. 2022): AMSGrad on the server, stabilised by `max(., eps)`.

        m <- b1 m + (1 - b1) Delta,   v <- b2 v + (1 - b2) Delta^2,   vhat <- max(vhat, v, eps),
        x <- x + server_stepsize m / sqrt(vhat)

    `option=2` adds eps to the root instead; `bias_correction` is the form of the authors' public code (see `AMSGrad`).
    """

    def __init__(
        self,
        *,
        client_stepsize: float = 0.1,
        server_stepsize: float = 1.0,
        b1: float = 0.9,
        b2: float = 0.99,
        eps: float = 1e-3,
        option: int = 1,
        bias_correction: bool = False,
    ) -> None:
        server = AMSGrad(server_stepsize, b1, b2, eps, option, bias_correction)
        super().__init__(stepsize=Constant(client_stepsize), server=server)
