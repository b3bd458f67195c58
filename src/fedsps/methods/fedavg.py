"""FedAvg, and its variant with momentum on the server."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedsps.algorithm import Algorithm
from fedsps.checks import fraction, positive
from fedsps.server import Average, ServerRule
from fedsps.shapes import Tensors
from fedsps.stepsize import Constant


class FedAvg(Algorithm):
    """Federated averaging (McMahan et al. 2017), also called local SGD: constant stepsizes.

    x_i <- x_i - client_stepsize g_i    tau times,    x <- x + server_stepsize mean_i(x_i - x)
    """

    def __init__(self, *, client_stepsize: float = 0.1, server_stepsize: float = 1.0) -> None:
        super().__init__(stepsize=Constant(client_stepsize), server=Average(server_stepsize))


@dataclass(frozen=True)
class Momentum(ServerRule):
    """Server momentum (Hsu et al. 2019): `m <- beta m + Delta;  x <- x + stepsize m`, with m = 0 at the start."""

    stepsize: float = 1.0
    beta: float = 0.9

    def __post_init__(self) -> None:
        positive("server_stepsize", self.stepsize)
        fraction("beta", self.beta)

    def server_init(self, x: Tensor) -> Tensors:
        """The momentum."""
        return {"momentum": torch.zeros_like(x)}

    def __call__(self, state: Tensors, x: Tensor, mean: Tensors) -> tuple[Tensor, Tensors]:
        """Move by the momentum."""
        momentum = self.beta * state["momentum"] + mean["delta"]
        return x + self.stepsize * momentum, state | {"momentum": momentum}


class FedAvgM(Algorithm):
    """FedAvg with momentum on the server (Hsu et al. 2019).

    m <- beta m + Delta,    x <- x + server_stepsize m
    """

    def __init__(self, *, client_stepsize: float = 0.1, server_stepsize: float = 1.0, beta: float = 0.9) -> None:
        super().__init__(stepsize=Constant(client_stepsize), server=Momentum(server_stepsize, beta))
