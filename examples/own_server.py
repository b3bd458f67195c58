"""A server rule of your own: Nesterov's momentum. `fedsps compare sps+momentum sps+examples/own_server.py:Nesterov`."""

from dataclasses import dataclass

from torch import Tensor, zeros_like

import fedsps
from fedsps.rules import SPS, ServerRule, Tensors


@dataclass(frozen=True)
class Nesterov(ServerRule):
    """Nesterov's momentum on the server: the step looks ahead.

    m <- beta m + Delta;  x <- x + beta m + Delta
    """

    beta: float = 0.5

    def server_init(self, x: Tensor) -> Tensors:
        return {"momentum": zeros_like(x)}  # kept from round to round, on the server

    def __call__(self, state: Tensors, x: Tensor, mean: Tensors) -> tuple[Tensor, Tensors]:
        momentum = self.beta * state["momentum"] + mean["delta"]
        return x + self.beta * momentum + mean["delta"], state | {"momentum": momentum}


class FedSPSNesterov(fedsps.Algorithm):
    """FedSPS under Nesterov's momentum on the server."""

    def __init__(self, *, cap: float = 1.0, beta: float = 0.5) -> None:
        super().__init__(stepsize=SPS(cap=cap), server=Nesterov(beta))
