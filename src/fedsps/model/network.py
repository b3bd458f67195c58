"""The only file that knows `nn.Module`: it turns a module and a loss into functions of one flat vector x.

Everything is functional: parameters and buffers go in, and a new value comes out. So one network serves all clients, in
turn or at once, and a round that is broken off leaves nothing behind.
"""

import copy
import hashlib
import itertools
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from fedsps.core.vectors import Tensors
from fedsps.errors import ConfigurationError
from fedsps.model.chain import chain_of

Loss = Callable[[Tensor, Tensor], Tensor]
"""Outputs and targets of a batch in, one number out."""

MOST_SWEPT = 200_000  # parameters: beyond them a client alone keeps a core busy
ONE_NUMBER = (
    *(F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss),
    *(F.binary_cross_entropy_with_logits, F.binary_cross_entropy),
)
ONE_NUMBER_MODULES = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.BCEWithLogitsLoss, nn.BCELoss)
IGNORED = -100  # cross-entropy's mark for a sample that does not count


class Network:
    """A module and a loss as functions of one flat vector x: what the engines know of a model.

    x holds the module's trainable parameters one after another, in the order of `named_parameters`; frozen ones
    (`requires_grad=False`) stay what they are. Buffers (batch-norm statistics) are not part of x, and no rule sees
    them. The module given is copied and never touched.

    A module of convolutions may say that it takes images in any memory layout by an attribute `channels_last = True`:
    on a CPU, convolutions and pooling are faster in that layout, and so is one client after another, since stacked
    convolutions know no such layout.

    Args:
        module: any module that maps a batch of inputs to a tensor.
        loss: maps outputs and targets of a batch to one number.

    >>> network = Network(nn.Linear(2, 3))
    >>> network.x.shape
    torch.Size([9])
    >>> inputs, targets = torch.ones(5, 4, 2), torch.zeros(5, 4, dtype=torch.long)  # 5 clients, batches of 4
    >>> loss, gradient, _ = network.loss_and_gradient(network.x.expand(5, -1), {}, inputs, targets)
    >>> loss.shape, gradient.shape
    (torch.Size([5]), torch.Size([5, 9]))
    """

    def __init__(self, module: nn.Module, loss: Loss = F.cross_entropy) -> None:
        if isinstance(loss, nn.Module) and any(parameter.requires_grad for parameter in loss.parameters()):
            raise ConfigurationError(
                f"{type(loss).__name__} has trainable parameters, which would not be trained: put them into the model"
            )
        self._module = copy.deepcopy(module).train()
        self._threads = threading.local()
        self._loss = loss
        trained = trainable(self._module)
        self._names = list(trained)
        self._shapes = [parameter.shape for parameter in trained.values()]
        self._sizes = [parameter.numel() for parameter in trained.values()]
        self._x = torch.cat([parameter.detach().flatten() for parameter in trained.values()])
        self._buffers = {name: buffer.detach().clone() for name, buffer in self._module.named_buffers()}
        self._plain_mean = plain_mean(loss)
        tensors = [
            *self._module.named_parameters(remove_duplicate=False),
            *self._module.named_buffers(remove_duplicate=False),
        ]
        self.squeezed = False  # whether a column of outputs goes with targets [B]
        self._has_ties = len({id(tensor) for _, tensor in tensors}) < len(tensors)  # looking for them takes a while
        self._chain = None if self._has_ties else chain_of(self._module)

    def has_column(self, inputs: Tensor, targets: Tensor) -> bool:
        """Whether the outputs are one column, `[B, 1]`, where the targets are `[B]` and no class numbers.

        torch's own losses of numbers would broadcast the two against each other: set `squeezed`, and the column is
        taken as `[B]`. A loss of the user's own gets the outputs as they are.
        """
        if targets.ndim != 1 or not (self._loss in ONE_NUMBER or isinstance(self._loss, ONE_NUMBER_MODULES)):
            return False
        try:
            return tuple(self.outputs(self.x, self.buffers, inputs[:1]).shape) == (1, 1)
        except Exception:  # whoever tries the model on a batch says what is wrong with it
            return False

    @property
    def x(self) -> Tensor:
        """The starting point: the given module's parameters, `[d]`."""
        return self._x

    @property
    def buffers(self) -> Tensors:
        """The given module's buffers by name, each `[*]`: what clients start from in the first round."""
        return self._buffers

    @property
    def batch_norm(self) -> tuple[dict[str, slice], list[str]]:
        """Where in x the parameters of batch-norm layers are, by name, and the names of these layers' buffers."""
        layers = {name for name, layer in self._module.named_modules() if isinstance(layer, _BatchNorm)}
        ends = itertools.accumulate(self._sizes)
        places = {name: slice(end - size, end) for name, size, end in zip(self._names, self._sizes, ends, strict=True)}
        own = {name: place for name, place in places.items() if name.rpartition(".")[0] in layers}
        return own, [name for name in self._buffers if name.rpartition(".")[0] in layers]

    @property
    def prefers_loop(self) -> bool:
        """Whether one client after another is faster than all at once: on a CPU, for modules of convolutions."""
        return bool(getattr(self._module, "channels_last", False)) and self._x.device.type == "cpu"

    def loss_and_gradient(
        self,
        x: Tensor,
        buffers: Tensors,
        inputs: Tensor,
        targets: Tensor,
        shared: int = 0,
        masked: bool | None = None,
    ) -> tuple[Tensor, Tensor, Tensors]:
        """Loss `[...]`, gradient `[..., d]` and updated buffers of one batch for each client, in training mode.

        One backward of the summed loss gives all gradients, since each client's loss depends on its own x alone.

        Args:
            x: the clients' points, `[..., d]`.
            buffers: theirs, each `[..., *]`.
            inputs: a batch for each, `[..., B, *]`.
            targets: of the batch, `[..., B, *]`.
            shared: so many of the first leading axes of x and the buffers share the batches, which do not have them.
            masked: whether a target does not count; None: it is looked for, and the device is waited for.
        """
        masked = is_masked(targets) if masked is None else masked
        own = self._own
        if not own.module.training:  # setting it takes a while
            own.module.train()
        buffers = {name: value.clone() for name, value in buffers.items()}  # batch norm updates them in place
        with torch.enable_grad():
            if x.ndim == 1:
                own.x.copy_(x)
                loss, buffers = self._losses(x, None, buffers, inputs, targets, shared, masked)
                pieces = torch.autograd.grad(loss, own.parameters, allow_unused=True, materialize_grads=True)
                gradient = torch.cat([piece.flatten() for piece in pieces])
            else:
                x = x.detach().requires_grad_()
                loss, buffers = self._losses(x, x, buffers, inputs, targets, shared, masked)
                (gradient,) = torch.autograd.grad(loss.sum(), x)
        return loss.detach(), gradient, {name: value.detach() for name, value in buffers.items()}

    def _losses(
        self,
        x: Tensor,
        point: Tensor | None,
        buffers: Tensors,
        inputs: Tensor,
        targets: Tensor,
        shared: int,
        masked: bool,
    ) -> tuple[Tensor, Tensors]:
        """Each client's loss, `[...]`, and buffers; a plain mean is taken over all clients at once, which is faster.

        `point` is x, or None where it has been written into the thread's own module.
        """
        leading = x.ndim - 1
        if self._plain_mean is not None and targets.ndim == leading - shared + 1 and not masked:
            if point is not None and self._chain is not None and self._chain.takes(inputs, leading - shared):
                outputs, after = self._chain(self._parameters(point), inputs, leading - shared), buffers
                outputs = outputs.squeeze(-1) if self.squeezed else outputs
            else:
                outputs, after = stacked(self._forward, leading, shared)(point, buffers, self._layout(inputs))
            targets = targets.expand(*x.shape[:-1], -1)
            losses = self._plain_mean(outputs.flatten(0, leading), targets.flatten(), reduction="none")
            return losses.unflatten(0, targets.shape).mean(-1), after
        losses, after = stacked(self._batch_loss, leading, shared)(point, buffers, self._layout(inputs), targets)
        if losses.shape != x.shape[:-1]:
            raise ConfigurationError(
                f"the loss function must return one number for a batch; it returned a tensor of shape "
                f"{tuple(losses.shape[leading:])}: use reduction='mean'"
            )
        return losses, after

    def _forward(self, x: Tensor | None, buffers: Tensors, inputs: Tensor) -> tuple[Tensor, Tensors]:
        """The outputs at `x [d]`, or where the thread's own module stands, and the buffers after them.

        Buffers may be changed in place by the module, or replaced by new ones.
        """
        state = buffers if x is None else self._parameters(x) | buffers
        named = {f"module.{name}": value for name, value in state.items()}
        module = self._own.module
        outputs, after = (
            functional_call(module, named, (inputs,), tie_weights=self._has_ties) if named else module(inputs)
        )
        if self.squeezed and isinstance(outputs, Tensor):
            outputs = outputs.squeeze(1)
        if not isinstance(outputs, Tensor):
            raise ConfigurationError(
                f"the model must return a tensor; {type(self._module).__name__} returned {type(outputs).__name__}: "
                "wrap it in a module that returns its logits"
            )
        return outputs, after

    def _batch_loss(
        self, x: Tensor | None, buffers: Tensors, inputs: Tensor, targets: Tensor
    ) -> tuple[Tensor, Tensors]:
        """The loss of one client's batch and the buffers after it, for losses that must see a batch whole."""
        outputs, after = self._forward(x, buffers, inputs)
        return self.loss(outputs, targets), after

    def _parameters(self, x: Tensor) -> Tensors:
        """The module's parameters by name out of x, `[..., d]` to `[..., *shape]` each, as views."""
        pieces = x.split(self._sizes, dim=-1)
        return {
            name: piece.unflatten(-1, shape) if shape else piece.squeeze(-1)
            for name, piece, shape in zip(self._names, pieces, self._shapes, strict=True)
        }

    @property
    def _own(self) -> "_Copy":
        """The calling thread's copy of the module: a call puts parameters into it, which no two threads may do."""
        if not hasattr(self._threads, "copy"):
            self._threads.copy = _Copy(self._module)
        own: _Copy = self._threads.copy
        return own

    @property
    def can_sweep(self) -> bool:
        """Whether many settings can be computed at once with the numbers that each has alone, and faster.

        Not where the module keeps statistics or is large. (Nor where it draws random numbers: `Setup.is_random`.)
        """
        half = self._x.dtype in (torch.float16, torch.bfloat16)  # has no place for the settings' parameters
        return not (self._buffers or self.prefers_loop or half) and self._x.numel() <= MOST_SWEPT

    def outputs(self, x: Tensor, buffers: Tensors, inputs: Tensor) -> Tensor:
        """The module's outputs for `inputs [B, *]` at one point `x [d]`, in evaluation mode and without gradients."""
        self._own.module.eval()
        with torch.no_grad():
            return self._forward(x, buffers, self._layout(inputs))[0]

    def _layout(self, inputs: Tensor) -> Tensor:
        """A batch of images with channels last in memory, if the module may have it so."""
        return inputs.to(memory_format=torch.channels_last) if self.prefers_loop and inputs.ndim == 4 else inputs

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of a batch, given the module's outputs; a cross-entropy of samples none of which counts is 0."""
        if self._plain_mean is not F.cross_entropy or targets.is_floating_point():
            return self._loss(outputs, targets)
        return F.cross_entropy(outputs, targets, reduction="sum") / (targets != IGNORED).sum().clamp(min=1)

    @property
    def description(self) -> str:
        """What tells models apart: the module as it prints itself, its frozen parameters, and the loss."""
        frozen = hashlib.sha256()
        for parameter in self._module.parameters():
            if not parameter.requires_grad:
                frozen.update(parameter.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
        prints_itself = isinstance(self._loss, nn.Module | partial)
        loss = repr(self._loss) if prints_itself else getattr(self._loss, "__qualname__", "loss")
        return f"{self._module!r} with {frozen.hexdigest()} under {loss}"

    @property
    def kind(self) -> str:
        """What the outputs are under the loss: see `kind_of_outputs`."""
        return kind_of_outputs(self._loss)

    @property
    def is_plain_mean(self) -> bool:
        """Whether the loss is known to be the plain mean of its samples' losses: cross-entropies without weights."""
        return self._plain_mean is not None

    def sample_losses(self, outputs: Tensor, targets: Tensor, masked: bool) -> Tensor | None:
        """The losses `[B]` whose mean `loss` is; None where it is not known to be one, as where a target is masked."""
        if self._plain_mean is None or targets.ndim != 1 or masked:
            return None
        if self._plain_mean is F.cross_entropy and outputs.ndim == 2 and not targets.is_floating_point():
            # faster than torch's own; the true class first, or a small loss would be a difference of large numbers
            return (outputs - outputs.gather(1, targets.unsqueeze(1))).logsumexp(1)
        return self._plain_mean(outputs, targets, reduction="none")

    def hits(self, outputs: Tensor, targets: Tensor) -> Tensor | None:
        """1 for right predictions, 0 for wrong ones, NaN where the target does not count; None where it has no meaning.

        The prediction is the class with the largest output; under a binary cross-entropy whether a single logit is
        above 0, or a probability above 0.5.

        >>> network = Network(nn.Linear(2, 3))
        >>> network.hits(torch.tensor([[0.1, 0.9, 0.0], [0.2, 0.1, 0.0]]), torch.tensor([1, 2]))
        tensor([1., 0.])
        """
        if self.kind in ("binary", "probability"):
            yes = outputs > (0.0 if self.kind == "binary" else 0.5)
            return (yes == (targets > 0.5)).to(outputs.dtype) if outputs.shape == targets.shape else None
        if targets.is_floating_point() or outputs.ndim != targets.ndim + 1 or outputs.shape[0] != targets.shape[0]:
            return None
        if not is_cross_entropy(self._loss) and not (outputs.ndim == 2 and bool((targets < outputs.shape[1]).all())):
            return None
        counted = targets != getattr(self._loss, "ignore_index", IGNORED)
        return (outputs.argmax(1) == targets).to(outputs.dtype).where(counted, torch.nan)

    def accepted(self, targets: Tensor) -> Tensor:
        """The targets in the dtype that the loss wants: class numbers as int64, yes and no as floats."""
        if self.kind in ("binary", "probability"):
            return targets.to(self._x.dtype)
        return targets.long() if is_cross_entropy(self._loss) and not targets.is_floating_point() else targets

    def check_targets(self, outputs: Tensor, targets: Tensor) -> None:
        """Refuse class numbers that the model has no output for.

        Raises:
            ConfigurationError: a target is below 0 or not below the number of outputs; ignored ones do not count.
        """
        if isinstance(self._loss, nn.NLLLoss) or self._loss is F.nll_loss:
            _check_log_probabilities(outputs)
        if not is_cross_entropy(self._loss) or targets.is_floating_point() or outputs.ndim < 2:
            return
        counted = targets[targets != getattr(self._loss, "ignore_index", IGNORED)]
        if counted.numel() and not 0 <= counted.min() <= counted.max() < outputs.shape[1]:
            raise ConfigurationError(
                f"the model has {outputs.shape[1]} outputs, but targets go from {counted.min()} to {counted.max()}: "
                "it needs one output for each class, and targets that count from 0"
            )

    def sample_bytes(self, inputs: Tensor, targets: Tensor) -> int:
        """What the forward pass of one sample keeps for the backward, measured on a batch by watching autograd.

        The stacked engine divides its memory by this. Storages are counted once, however many views of them are kept.
        """
        kept: dict[int, int] = {}

        def watch(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(watch, lambda tensor: tensor):
            self.loss_and_gradient(self.x, self.buffers, inputs, targets)
        return sum(kept.values()) // len(inputs)

    def check_left_alone(self) -> None:
        """Refuse a module that changed its own parameters, or made buffers, when it was called at `x`.

        Raises:
            ConfigurationError: nobody could say what is trained.
        """
        own = self._own
        given = torch.cat([parameter.detach().flatten() for parameter in trainable(self._module).values()])
        if not torch.equal(own.x.nan_to_num(), given.nan_to_num()):
            raise ConfigurationError("the model changes its own parameters when it is called: leave them as they are")
        made = [name for name, _ in own.module.module.named_buffers() if name not in self._buffers]
        if made:
            raise ConfigurationError(f"the model makes the buffer {made[0]} when it is called: make it in __init__")

    def module(self, x: Tensor, buffers: Tensors) -> nn.Module:
        """A copy of the module with these parameters `x [d]` and buffers, in evaluation mode.

        >>> network = Network(nn.Linear(2, 1))
        >>> network.module(torch.tensor([1.0, 2.0, 3.0]), {})(torch.ones(1, 2)).item()
        6.0
        """
        module = copy.deepcopy(self._module).eval()
        with torch.no_grad():
            parameters = dict(module.named_parameters())
            for name, value in self._parameters(x).items():
                parameters[name].copy_(value)
            for name, buffer in module.named_buffers():
                buffer.copy_(buffers[name])
        return module


class _Copy:
    """A copy of a module whose trainable parameters are views of one flat vector `x [d]`.

    One client's step writes its point there and calls the module as anyone would, which is faster than handing it its
    parameters with every call.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = _WithBuffers(copy.deepcopy(module))
        self.parameters = list(trainable(self.module.module).values())
        self.x = torch.cat([parameter.detach().flatten() for parameter in self.parameters])
        pieces = self.x.split([parameter.numel() for parameter in self.parameters])
        for parameter, piece in zip(self.parameters, pieces, strict=True):
            parameter.data = piece.view(parameter.shape)


class _WithBuffers(nn.Module):
    """A module that returns its buffers beside its outputs, so that `functional_call` hands out those that it made."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.has_buffers = any(True for _ in module.buffers())  # looking for them in each pass takes a while

    def forward(self, inputs: Tensor) -> tuple[Any, Tensors]:
        outputs = self.module(inputs)
        return outputs, dict(self.module.named_buffers()) if self.has_buffers else {}


def stacked(function: Callable[..., Any], axes: int, shared: int = 0) -> Callable[..., Any]:
    """The function over so many leading axes of all its arguments; each client draws its own dropout.

    Args:
        function: of parameters, buffers, and what is in a batch.
        axes: of the parameters and the buffers.
        shared: of these the first ones, which batches do not have.
    """
    for axis in reversed(range(axes)):
        own = vmap(function, randomness="different")
        function = own if axis >= shared else _over_parameters(function)
    return function


def _over_parameters(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function over the first axis of parameters and buffers, with the same batch for each place."""

    def over(parameters: Tensors, buffers: Tensors, *batch: Tensor) -> Any:
        same = (None,) * len(batch)
        return vmap(function, in_dims=(0, 0, *same), randomness="different")(parameters, buffers, *batch)

    return over


def trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    """The module's trainable parameters, once it is sure that they make one vector.

    Raises:
        ConfigurationError: a parameter is not initialised yet (a lazy module), none is trainable, or they differ in
            dtype or device.
    """
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
        mixed = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
        raise ConfigurationError(
            f"all trainable parameters must have one floating dtype and device; found {mixed}: "
            "convert the model with model.to(...)"
        )
    return parameters


def _check_log_probabilities(outputs: Tensor) -> None:
    """Refuse outputs that are no logarithms of probabilities over dimension 1, for losses that want those."""
    if outputs.ndim > 1 and bool((outputs.double().logsumexp(1).abs() > 1e-2).any()):
        raise ConfigurationError(
            "the loss (nll_loss) takes log-probabilities, and the model's outputs are none: end the model with "
            "LogSoftmax(1), or use the cross-entropy, which takes outputs as they are"
        )


def plain_mean(loss: Loss) -> Callable[..., Tensor] | None:
    """The functional form of a loss that is the plain mean of its samples' losses; None if it is not known to be.

    Such a loss can be taken sample by sample, over all clients at once and in pieces. Only torch's two cross-entropies
    without weights, smoothing or another reduction are known to be such; a subclass is not.

    >>> plain_mean(nn.CrossEntropyLoss()) is F.cross_entropy, plain_mean(nn.CrossEntropyLoss(label_smoothing=0.1))
    (True, None)
    """
    if type(loss) is nn.CrossEntropyLoss:
        plain = loss.weight is None and loss.reduction == "mean" and loss.label_smoothing == 0
        return F.cross_entropy if plain and loss.ignore_index == IGNORED else None
    if type(loss) is nn.BCEWithLogitsLoss:
        plain = loss.weight is None and loss.pos_weight is None and loss.reduction == "mean"
        return F.binary_cross_entropy_with_logits if plain else None
    return loss if loss in (F.cross_entropy, F.binary_cross_entropy_with_logits) else None


def is_masked(targets: Tensor) -> bool:
    """Whether some class numbers mark samples that do not count."""
    return not targets.is_floating_point() and bool((targets < 0).any())


def is_cross_entropy(loss: Loss) -> bool:
    """Whether the loss takes one output for each class, and class numbers."""
    return loss is F.cross_entropy or isinstance(loss, nn.CrossEntropyLoss)


def is_binary(loss: Loss) -> bool:
    """Whether the loss takes logits of a yes or no."""
    return loss is F.binary_cross_entropy_with_logits or isinstance(loss, nn.BCEWithLogitsLoss)


def kind_of_outputs(loss: Loss) -> str:
    """What outputs are under a loss: "classes", a "binary" logit, the "probability" of a yes, or "numbers".

    Under a loss of the user's own it is "unknown": it may well take logits.

    >>> kind_of_outputs(nn.BCELoss()), kind_of_outputs(F.mse_loss), kind_of_outputs(lambda outputs, targets: outputs)
    ('probability', 'numbers', 'unknown')
    """
    if is_binary(loss):
        return "binary"
    if isinstance(loss, nn.BCELoss) or loss is F.binary_cross_entropy:
        return "probability"
    if is_cross_entropy(loss) or isinstance(loss, nn.NLLLoss) or loss is F.nll_loss:
        return "classes"
    return "numbers" if loss in ONE_NUMBER or isinstance(loss, ONE_NUMBER_MODULES) else "unknown"
