"""`Work` without data, which tells what a message looks like before there is one."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedsps.core.contract import LossAndGradient
from fedsps.core.vectors import scalars


@dataclass(frozen=True)
class Rehearsal:
    """Every loss, and every coordinate of a gradient, is the same number. It tells the names and shapes of a message.

    Attributes:
        steps: the number of batches.
        iteration: the global iteration of the first step.
        client: the number of the client; any will do.
        fraction: the share of a batch in the client's data; any will do.
        value: the number.
    """

    steps: int
    iteration: int
    client: Tensor
    fraction: Tensor
    value: float = 0.0

    def loss_and_gradient(self, x: Tensor, step: int) -> LossAndGradient:
        """Loss and gradient in the shapes and dtypes of real ones."""
        return scalars(x, self.value), torch.full_like(x, self.value)

    probe = loss_and_gradient
