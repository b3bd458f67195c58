"""AdaGrad-Norm on every client: fedsps compare fedsps examples/own_stepsize.py:FedAdaGradNorm:strength=0.5/1/2"""

from dataclasses import dataclass

from torch import Tensor, where

import fedsps
from fedsps.rules import Seen, StepsizeRule, Tensors, norm_sq, scalars


@dataclass(frozen=True)
class AdaGradNorm(StepsizeRule):
    strength: float = 1.0

    def client_init(self, x: Tensor) -> Tensors:
        return {"total": scalars(x, 0.0)}  # one number a client, kept between rounds

    def __call__(self, state: Tensors, seen: Seen) -> tuple[Tensor, Tensors]:
        total = state["total"] + norm_sq(seen.gradient)
        return where(total > 0, self.strength / total.sqrt(), 0.0), state | {"total": total}


class FedAdaGradNorm(fedsps.Algorithm):
    def __init__(self, *, strength: float = 1.0) -> None:
        super().__init__(stepsize=AdaGradNorm(strength))
