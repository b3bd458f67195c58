"""The only file that knows `nn.Module`: it turns a module and a loss into functions of one flat vector x."""

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedsps.errors import ConfigurationError
from fedsps.shapes import Tensors

Loss = Callable[[Tensor, Tensor], Tensor]


class Network:
    """A module and a loss as an `Objective`.

    x holds the module's trainable parameters one after another, in the order of `named_parameters`; frozen ones
    (`requires_grad=False`) stay what they are. The module given is copied and never touched.
    """

    def __init__(self, module: nn.Module, loss: Loss = F.cross_entropy) -> None:
        self._module = copy.deepcopy(module)
        self._loss = loss
        trained = trainable(self._module)
        self._names = list(trained)
        self._shapes = [parameter.shape for parameter in trained.values()]
        self._sizes = [parameter.numel() for parameter in trained.values()]
        self._x = torch.cat([parameter.detach().flatten() for parameter in trained.values()])
        self._buffers = {name: buffer.detach().clone() for name, buffer in self._module.named_buffers()}
        self._plain_mean = plain_mean(loss)

    @property
    def x(self) -> Tensor:
        """The starting point: the given module's parameters, `[d]`."""
        return self._x

    @property
    def buffers(self) -> Tensors:
        """The given module's buffers."""
        return self._buffers

    def loss_and_gradient(
        self, x: Tensor, buffers: Tensors, inputs: Tensor, targets: Tensor
    ) -> tuple[Tensor, Tensor, Tensors]:
        """Training mode; one backward of the summed loss, since each client's loss depends on its own x alone."""
        self._module.train()
        buffers = {name: value.clone() for name, value in buffers.items()}  # batch norm updates them in place
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            loss = self._losses(x, buffers, inputs, targets)
        if loss.shape != x.shape[:-1]:
            raise ConfigurationError(
                f"the loss function must return one number for a batch; it returned a tensor of shape "
                f"{tuple(loss.shape[x.ndim - 1 :])}: use reduction='mean'"
            )
        (gradient,) = torch.autograd.grad(loss.sum(), x)
        return loss.detach(), gradient, {name: value.detach() for name, value in buffers.items()}

    def _losses(self, x: Tensor, buffers: Tensors, inputs: Tensor, targets: Tensor) -> Tensor:
        """Each client's loss, `[...]`; a plain mean is taken over all clients at once, which is faster."""
        leading, parameters = x.ndim - 1, self._parameters(x)
        if self.is_plain_mean and targets.ndim == leading + 1:
            outputs = stacked(self._forward, leading)(parameters, buffers, inputs)
            losses = self.sample_losses(outputs.flatten(0, leading), targets.flatten())
            if losses is not None:
                means: Tensor = losses.unflatten(0, targets.shape).mean(-1)
                return means
        return stacked(self._batch_loss, leading)(parameters, buffers, inputs, targets)

    def _forward(self, parameters: Tensors, buffers: Tensors, inputs: Tensor) -> Tensor:
        outputs = functional_call(self._module, (parameters, buffers), (inputs,))
        if not isinstance(outputs, Tensor):
            raise ConfigurationError(
                f"the model must return a tensor; {type(self._module).__name__} returned {type(outputs).__name__}: "
                "wrap it in a module that returns its logits"
            )
        return outputs

    def _batch_loss(self, parameters: Tensors, buffers: Tensors, inputs: Tensor, targets: Tensor) -> Tensor:
        return self._loss(self._forward(parameters, buffers, inputs), targets)

    def _parameters(self, x: Tensor) -> Tensors:
        pieces = x.split(self._sizes, dim=-1)
        return {
            name: piece.unflatten(-1, shape) if shape else piece.squeeze(-1)
            for name, piece, shape in zip(self._names, pieces, self._shapes, strict=True)
        }

    def outputs(self, x: Tensor, buffers: Tensors, inputs: Tensor) -> Tensor:
        """Evaluation mode, without gradients."""
        self._module.eval()
        with torch.no_grad():
            return self._forward(self._parameters(x), buffers, inputs)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The given loss."""
        return self._loss(outputs, targets)

    @property
    def description(self) -> str:
        """The module as it prints itself, and the loss's name, or how it prints itself."""
        loss = self._loss
        return (
            f"{self._module!r} under {loss if isinstance(loss, nn.Module) else getattr(loss, '__qualname__', loss)!r}"
        )

    @property
    def is_plain_mean(self) -> bool:
        """True for cross-entropies without weights or smoothing."""
        return self._plain_mean is not None

    def sample_losses(self, outputs: Tensor, targets: Tensor) -> Tensor | None:
        """The losses of the samples, for losses known to be their mean."""
        ignored = not targets.is_floating_point() and bool((targets < 0).any())
        if self._plain_mean is None or targets.ndim != 1 or ignored:
            return None
        return self._plain_mean(outputs, targets, reduction="none")

    def hits(self, outputs: Tensor, targets: Tensor) -> Tensor | None:
        """Class with the largest output, or the sign of a single logit under a binary cross-entropy."""
        if not targets.is_floating_point() and outputs.ndim == targets.ndim + 1:
            return outputs.argmax(1) == targets
        if is_binary(self._loss) and outputs.shape == targets.shape:
            return (outputs > 0) == (targets > 0.5)
        return None

    def sample_bytes(self, inputs: Tensor, targets: Tensor) -> int:
        """Measured by watching what autograd saves."""
        kept: dict[int, int] = {}

        def watch(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(watch, lambda tensor: tensor):
            self.loss_and_gradient(self.x, self.buffers, inputs, targets)
        return sum(kept.values()) // len(inputs)

    def module(self, x: Tensor, buffers: Tensors) -> nn.Module:
        """A copy of the module with these parameters and buffers, in evaluation mode."""
        module = copy.deepcopy(self._module).eval()
        with torch.no_grad():
            own = dict(module.named_parameters())
            for name, value in self._parameters(x).items():
                own[name].copy_(value)
            for name, buffer in module.named_buffers():
                buffer.copy_(buffers[name])
        return module


def stacked(function: Callable[..., Tensor], axes: int) -> Callable[..., Tensor]:
    """The function over so many leading axes of all its arguments; each client draws its own dropout."""
    for _ in range(axes):
        function = vmap(function, randomness="different")
    return function


def trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    """The module's trainable parameters, once it is sure that they make one vector."""
    lazy = [name for name, parameter in module.named_parameters() if nn.parameter.is_lazy(parameter)]
    if lazy:
        raise ConfigurationError(
            f"parameter {lazy[0]!r} is not initialised yet: pass one batch through the model first"
        )
    parameters = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    if not parameters:
        raise ConfigurationError(f"{type(module).__name__} has no trainable parameter: nothing to train")
    kinds = {(parameter.dtype, parameter.device) for parameter in parameters.values()}
    if len(kinds) > 1 or not next(iter(kinds))[0].is_floating_point:
        found = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
        raise ConfigurationError(
            f"all trainable parameters must have one floating dtype and device; found {found}: "
            "convert the model with model.to(...)"
        )
    return parameters


def plain_mean(loss: Loss) -> Callable[..., Tensor] | None:
    """The functional form of a loss that is the plain mean of its samples' losses; None if it is not known to be."""
    if isinstance(loss, nn.CrossEntropyLoss | nn.BCEWithLogitsLoss):
        weighted = loss.weight is not None or getattr(loss, "pos_weight", None) is not None
        altered = loss.reduction != "mean" or getattr(loss, "label_smoothing", 0.0) != 0.0
        if weighted or altered:
            return None
        return F.cross_entropy if isinstance(loss, nn.CrossEntropyLoss) else F.binary_cross_entropy_with_logits
    return loss if loss in (F.cross_entropy, F.binary_cross_entropy_with_logits) else None


def is_binary(loss: Loss) -> bool:
    """Whether the loss takes logits of a yes or no."""
    return loss is F.binary_cross_entropy_with_logits or isinstance(loss, nn.BCEWithLogitsLoss)
