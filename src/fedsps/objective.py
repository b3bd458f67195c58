"""What the engines need to know of a model: its loss and gradient as a function of one flat vector x."""

from typing import Protocol

from torch import Tensor, nn

from fedsps.shapes import Tensors


class Objective(Protocol):
    """A model and a loss. Buffers (batch-norm statistics) are not part of x and no rule sees them."""

    @property
    def x(self) -> Tensor:
        """The starting point, `[d]`."""
        ...

    @property
    def buffers(self) -> Tensors:
        """The buffers at the start."""
        ...

    @property
    def prefers_loop(self) -> bool:
        """Whether one client after another is faster than all at once."""
        ...

    def loss_and_gradient(
        self, x: Tensor, buffers: Tensors, inputs: Tensor, targets: Tensor
    ) -> tuple[Tensor, Tensor, Tensors]:
        """Loss `[...]`, gradient `[..., d]` and updated buffers of one batch each, `inputs [..., B, *]`."""
        ...

    def outputs(self, x: Tensor, buffers: Tensors, inputs: Tensor) -> Tensor:
        """The model's outputs in evaluation mode for `inputs [B, *]` at one point `x [d]`, without gradients."""
        ...

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The scalar loss of a batch, given the model's outputs."""
        ...

    @property
    def description(self) -> str:
        """The model's and the loss's names, to tell runs apart."""
        ...

    @property
    def is_plain_mean(self) -> bool:
        """Whether `loss` is known to be the plain mean of its samples' losses."""
        ...

    def sample_losses(self, outputs: Tensor, targets: Tensor) -> Tensor | None:
        """The losses `[B]` whose mean `loss` is, or None where the loss is not known to be such a mean."""
        ...

    def hits(self, outputs: Tensor, targets: Tensor) -> Tensor | None:
        """1 for right predictions, 0 for wrong ones, NaN where the target does not count; None without a meaning."""
        ...

    def accepted(self, targets: Tensor) -> Tensor:
        """The targets in the dtype that the loss wants."""
        ...

    def check_targets(self, outputs: Tensor, targets: Tensor) -> None:
        """Refuse targets that do not fit the outputs."""
        ...

    def sample_bytes(self, inputs: Tensor, targets: Tensor) -> int:
        """What the forward pass of one sample keeps in memory for the backward, measured on a batch `[B, *]`."""
        ...

    def module(self, x: Tensor, buffers: Tensors) -> nn.Module:
        """A module of its own with these parameters and buffers."""
        ...
