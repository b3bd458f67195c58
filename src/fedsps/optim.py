"""The Polyak stepsizes as ordinary PyTorch optimisers, for one machine and an ordinary training loop.

They need one thing more than other optimisers: the loss. It is handed to `step`, or set as `optimizer.loss` where a
library makes the call.
"""

import math
import sys
from collections.abc import Callable, Iterable
from typing import Any, get_args

import torch
from torch import Tensor
from torch.optim import Optimizer

from fedsps.checks import choice, is_number, positive
from fedsps.errors import ConfigurationError, LowerBoundError, NotFiniteError
from fedsps.rules.polyak import Smoothing

Closure = Callable[[], Tensor]
ACCUMULATION = (
    "as gradient accumulation does: its loss is that of all the batches together. Accumulate by hand and call "
    "step(loss=...) with the mean of their losses, or use larger batches; else clear the gradients with zero_grad()"
)


class _Polyak(Optimizer):
    """What SPS and DecSPS share: the loss, the norm over all groups, weight decay, and the watch on `lower`.

    The stepsize is a plain number, one for each group, kept in `group["stepsize"]`; it is 0 before the first step.
    """

    _loss: Tensor | float | None = None  # on the class: copies and pickles hold an optimiser's groups and state alone
    _awaits_step = False  # whether a loss was set and neither `step` nor `zero_grad` came after it
    _cleared = False  # whether `zero_grad` was called since a closure began

    @property
    def loss(self) -> Tensor | float | None:
        """The loss of the next plain `step()`, for training loops that make the call themselves; `step` forgets it.

        Set it once before each step. A second loss without a step or a `zero_grad` between them is gradient
        accumulation, whose loss is neither of the two, and is refused.
        """
        return self._loss

    @loss.setter
    def loss(self, loss: Tensor | float) -> None:
        if self._awaits_step:
            raise ConfigurationError(f"optimizer.loss was set twice before a step, {ACCUMULATION}")
        _value(loss)
        self._loss, self._awaits_step = loss.detach() if isinstance(loss, Tensor) else loss, True

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, as every optimiser does."""
        self._awaits_step, self._cleared = False, True
        super().zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters; its `lr`, the cap, and its `weight_decay` may differ from the others'."""
        self._check_group(self.defaults | param_group)
        if self.param_groups and param_group.get("lower", self._lower) != self._lower:
            raise ConfigurationError(
                f"lower is one bound for the whole loss: it cannot be {param_group['lower']} in a group"
            )
        super().add_param_group(param_group)

    def _check_group(self, group: dict[str, Any]) -> None:
        """Refuse a group whose `lr`, `scale`, `weight_decay` or `lower` cannot work."""
        positive("lr", group["lr"])
        positive("scale", group["scale"])
        for name, least in (("weight_decay", 0.0), ("lower", -math.inf)):
            value = group[name]
            if not is_number(value) or not least <= value < math.inf or value == -math.inf:
                raise ConfigurationError(
                    f"{name} must be a finite number{' of at least 0' * (least == 0)}; got {value!r}"
                )

    @property
    def _lower(self) -> float:
        return float(self.param_groups[0]["lower"])

    @torch.no_grad()
    def step(self, closure: Closure | None = None, *, loss: Tensor | float | None = None) -> Tensor | float:  # type: ignore[override]
        """Take one step and return the loss.

        Args:
            closure: clears the gradients, computes the loss, calls `backward` and returns the loss.
            loss: the loss whose `backward` was called already. Without either, `optimizer.loss` is used.

        Raises:
            ConfigurationError: no loss or two, one that is not a single real number, sparse or complex parameters, or a
                closure that adds to the gradients of an earlier one.
            LowerBoundError: the loss is below `lower` by more than rounding.
            NotFiniteError: the loss or the gradient is infinite or not a number.

        After an error the parameters are as they were.
        """
        held, self._loss, self._awaits_step = self._loss, None, False
        if closure is not None and (loss is not None or not callable(closure)):
            raise ConfigurationError(
                "the Polyak stepsize needs the loss once: call step(loss=loss), or step(closure), on this optimiser; a "
                "wrapper such as Lightning's adds a closure of its own: self.optimizers(use_pl_optimizer=False)"
            )
        if closure is not None:
            loss = self._evaluated(closure)
        elif loss is None:
            loss = held
        if loss is None:
            raise ConfigurationError(
                "the Polyak stepsize needs the loss: call step(loss=loss) or step(closure), or set"
                " optimizer.loss = loss on this optimiser, not on what wraps it, before step()"
            )
        value, size = _value(loss), 0.0
        moved = []
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if _moves(parameter)]
            directions = [parameter.grad for parameter in parameters if parameter.grad is not None]
            if group["weight_decay"] and parameters:
                value += group["weight_decay"] / 2 * _norm_sq(parameters)
                directions = list(torch._foreach_add(directions, parameters, alpha=group["weight_decay"]))
            size += _norm_sq(directions)
            moved.append((group, parameters, directions))
        if not any(parameters for _, parameters, _ in moved):
            return loss
        for name, number in (("loss", value), ("squared norm of the gradient", size)):
            if not math.isfinite(number):
                raise NotFiniteError(
                    f"the {name} is {number}: the parameters are as they were before this step; look for a division by "
                    "0, a logarithm of 0 or inputs that are not numbers, or lower lr, the cap of the stepsize"
                )
        gap = value - self._lower
        self._check_bound(value, gap, moved[0][1])
        ratio = max(gap, 0.0) / size if size > 0 else math.inf
        for group, parameters, directions in moved:
            group["stepsize"] = self._stepsize(group, gap, ratio)
            for parameter, direction in zip(parameters, directions, strict=True):
                _move(parameter, direction, group["stepsize"])
        return loss

    def _evaluated(self, closure: Closure) -> Tensor:
        """The closure's loss. A gradient that it adds to an earlier one is not the gradient of that loss."""
        before = [(parameter, parameter.grad) for group in self.param_groups for parameter in group["params"]]
        self._cleared = False
        with torch.enable_grad():
            loss = closure()
        if loss is None:
            raise ConfigurationError(
                "the closure returned None: it must return the loss. If it is that of a wrapper such as Lightning's, "
                "call step on the optimiser itself: self.optimizers(use_pl_optimizer=False)"
            )
        if not self._cleared and any(grad is not None and parameter.grad is grad for parameter, grad in before):
            raise ConfigurationError(f"the closure added to gradients that were there before it, {ACCUMULATION}")
        return loss

    def _stepsize(self, group: dict[str, Any], gap: float, ratio: float) -> float:
        """The group's stepsize; its state for the next step goes into the group.

        `gap` is the loss, weight decay included, minus `lower`, and `ratio` is the gap, at least 0, over the squared
        norm of the gradient of all groups: infinite for a zero gradient.
        """
        raise NotImplementedError

    def _check_bound(self, value: float, gap: float, parameters: list[Tensor]) -> None:
        """Raise where the gap is negative by more than ten units in the last place of the parameters' dtype."""
        precision = torch.finfo(parameters[0].dtype if parameters else torch.float32).eps
        if gap < -10 * precision * max(1.0, abs(value)):
            raise LowerBoundError(
                f"the loss is {value:.6g}, below its lower bound of {self._lower:.6g}: "
                f"set `lower` to {value:.6g} or lower"
            )


def _value(loss: Tensor | float) -> float:
    if isinstance(loss, Tensor) and (loss.numel() != 1 or loss.is_complex()):
        raise ConfigurationError(
            f"the loss must be one real number; got a tensor of shape {tuple(loss.shape)} and type {loss.dtype}: "
            "pass the mean whose backward was called"
        )
    if not isinstance(loss, Tensor) and not is_number(loss):
        raise ConfigurationError(f"the loss must be one real number; got {loss!r}: pass what backward was called on")
    return float(loss.item() if isinstance(loss, Tensor) else loss)


def _moves(parameter: Tensor) -> bool:
    if parameter.grad is None:
        return False
    if parameter.grad.is_sparse or parameter.is_complex():
        raise ConfigurationError("sparse gradients and complex parameters are not supported: use dense, real ones")
    return True


def _move(parameter: Tensor, direction: Tensor, stepsize: float) -> None:
    """`parameter -= stepsize * direction`; of half precision only the result is rounded."""
    half = parameter.dtype in (torch.float16, torch.bfloat16)
    stepsize = min(stepsize, torch.finfo(torch.float32 if half else parameter.dtype).max)
    if half:
        parameter.sub_((stepsize * direction.float()).to(parameter.dtype))
    else:
        parameter.sub_(direction, alpha=stepsize)


def _norm_sq(tensors: list[Tensor]) -> float:
    """The squared norm of all of them together, in float64, where no square of a float32 overflows."""
    if not tensors:
        return 0.0
    norms = torch._foreach_norm(tensors, 2, dtype=torch.float64)
    return float(torch.stack([norm.to(norms[0].device) for norm in norms]).square().sum())


class SPS(_Polyak):
    r"""Stochastic gradient descent with the stochastic Polyak stepsize.

    .. math::
        \gamma_t = \min\left\{ \frac{F(x_t) - \ell^\star}{c \, \lVert \nabla F(x_t) \rVert^2}, \, \mathrm{lr} \right\},
        \qquad x_{t+1} = x_t - \gamma_t \nabla F(x_t)

    The norm is over the parameters of all groups; the cap `lr` may differ between groups, and learning-rate schedulers
    act on it. A zero gradient leaves the parameters where they are, a loss equal to `lower` gives a zero step.

        optimizer = fedsps.optim.SPS(model.parameters())
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = loss_function(model(inputs), targets)
            loss.backward()
            optimizer.step(loss=loss)

    Args:
        params: parameters, or groups of them.
        lr: the largest stepsize (the paper's gamma_b).
        scale: the paper's c.
        lower: a lower bound of the loss (l*).
        smoothing: lets the cap move: "paper", `cap_t = 2^f cap_{t-1}`, or "loizou", `cap_t = 2^f gamma_{t-1}`,
            f being `batch_fraction`. A scheduler's change of `lr` changes the cap in proportion.
        batch_fraction: the share of the training samples in one batch, for the smoothing.
        weight_decay: w adds `w/2 ||x||^2` to the loss and `w x` to the gradient.

    With one client, one local step and no weight decay, FedSPS is this optimiser.

    References:
        Loizou, Vaswani, Laradji, Lacoste-Julien: Stochastic Polyak Step-size for SGD, AISTATS 2021.

    >>> x = torch.tensor([3.0], requires_grad=True)
    >>> optimizer = SPS([x], lr=10.0)
    >>> loss = (x**2).sum() / 2
    >>> loss.backward()
    >>> _ = optimizer.step(loss=loss)  # 4.5 / (0.5 * 9) = 1
    >>> optimizer.param_groups[0]["stepsize"], x.item()
    (1.0, 0.0)
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1.0,
        *,
        scale: float = 0.5,
        lower: float = 0.0,
        smoothing: Smoothing | None = None,
        batch_fraction: float = 1.0,
        weight_decay: float = 0.0,
    ) -> None:
        defaults = {
            "lr": lr,
            "scale": scale,
            "lower": lower,
            "smoothing": smoothing,
            "batch_fraction": batch_fraction,
            "weight_decay": weight_decay,
            "stepsize": 0.0,
            "growth": 1.0,  # the cap in units of lr, so that a scheduler still acts on it
        }
        super().__init__(params, defaults)

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        if group["smoothing"] is not None:
            choice("smoothing", group["smoothing"], get_args(Smoothing))
        share = group["batch_fraction"]
        if not is_number(share) or not 0 < share <= 1:
            raise ConfigurationError(f"batch_fraction must be above 0 and at most 1; got {share!r}")

    def _stepsize(self, group: dict[str, Any], gap: float, ratio: float) -> float:
        lr, growth, factor = float(group["lr"]), group["growth"], 2 ** group["batch_fraction"]
        stepsize = float(min(lr * growth, sys.float_info.max, ratio / group["scale"]))
        if group["smoothing"] == "paper":
            group["growth"] = min(growth * factor, sys.float_info.max)
        elif group["smoothing"] == "loizou" and stepsize > 0:
            group["growth"] = factor * stepsize / lr
        return stepsize


class DecSPS(_Polyak):
    r"""Stochastic gradient descent with the decreasing stochastic Polyak stepsize.

    .. math::
        \gamma_t = \frac{1}{c_t} \min\left\{ \frac{F(x_t) - \ell^\star}{\lVert \nabla F(x_t) \rVert^2}, \,
        c_{t-1} \gamma_{t-1} \right\}, \qquad c_t = c_0 \sqrt{t + 1}

    with :math:`c_{-1} = c_0` and :math:`\gamma_{-1} = \mathrm{lr}`. What is kept is the running minimum
    :math:`M = c_t \gamma_t`, one for each group, and :math:`\gamma_t = \min\{M / c_t, \mathrm{lr}\}`, so that
    learning-rate schedulers act on the cap. A loss equal to `lower` gives a zero step and leaves the minimum as it was.

    Args:
        params: parameters, or groups of them.
        lr: the largest stepsize.
        scale: c_0.
        lower: a lower bound of the loss (l*).
        weight_decay: w adds `w/2 ||x||^2` to the loss and `w x` to the gradient.

    With one client, one local step and no weight decay, FedDecSPS is this optimiser.

    References:
        Orvieto, Lacoste-Julien, Loizou: Dynamics of SGD with Stochastic Polyak Stepsizes, NeurIPS 2022.

    >>> x = torch.tensor([4.0], requires_grad=True)
    >>> optimizer = DecSPS([x], scale=1.0)
    >>> for _ in range(2):
    ...     optimizer.zero_grad()
    ...     loss = (x**2).sum() / 2
    ...     loss.backward()
    ...     _ = optimizer.step(loss=loss)
    >>> round(optimizer.param_groups[0]["stepsize"], 4), round(x.item(), 4)  # 0.5 / sqrt(2)
    (0.3536, 1.2929)
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1.0,
        *,
        scale: float = 0.5,
        lower: float = 0.0,
        weight_decay: float = 0.0,
    ) -> None:
        defaults = {"lr": lr, "scale": scale, "lower": lower, "weight_decay": weight_decay, "stepsize": 0.0}
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters; its minimum and its clock start now."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        group["minimum"], group["steps"] = group["scale"] * float(group["lr"]), 0

    def _stepsize(self, group: dict[str, Any], gap: float, ratio: float) -> float:
        group["steps"] += 1
        if gap <= 0:
            return 0.0
        group["minimum"] = min(group["minimum"], ratio)
        return float(min(group["minimum"] / (group["scale"] * group["steps"] ** 0.5), float(group["lr"])))
