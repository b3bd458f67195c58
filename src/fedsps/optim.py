"""The Polyak stepsizes as ordinary PyTorch optimisers, for one machine and an ordinary training loop."""

from collections.abc import Callable, Iterable
from typing import Any, get_args

import torch
from torch import Tensor
from torch.optim import Optimizer

from fedsps.checks import choice, positive
from fedsps.errors import ConfigurationError, LowerBoundError
from fedsps.shapes import norm_sq
from fedsps.stepsize import Smoothing

Closure = Callable[[], Tensor]


class _Polyak(Optimizer):
    """What SPS and DecSPS share: the loss, the norm over all groups, weight decay, and the watch on `lower`."""

    def __init__(self, params: Any, defaults: dict[str, Any], lower: float) -> None:
        positive("scale", defaults["scale"])
        if not defaults["weight_decay"] >= 0:
            raise ConfigurationError(f"weight_decay must be at least 0; got {defaults['weight_decay']!r}")
        if not torch.tensor(float(lower)).isfinite():
            raise ConfigurationError(f"lower must be a finite number; got {lower!r}")
        self.lower = lower
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, with an `lr` (its cap) of its own if wanted."""
        super().add_param_group(param_group)
        positive("lr", self.param_groups[-1]["lr"])

    @torch.no_grad()
    def step(self, closure: Closure | None = None, *, loss: Tensor | float | None = None) -> Tensor | float:  # type: ignore[override]
        """Take one step and return the loss.

        Args:
            closure: clears the gradients, computes the loss, calls `backward` and returns the loss.
            loss: the loss whose `backward` was called already. Exactly one of the two is needed.
        """
        if (closure is None) == (loss is None):
            raise ConfigurationError("the Polyak stepsize needs the loss: call step(loss=loss), or step(closure)")
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        assert loss is not None
        moved = [
            (group, parameter) for group in self.param_groups for parameter in group["params"] if _moves(parameter)
        ]
        if not moved:
            return loss
        home = moved[0][1].device
        value = torch.as_tensor(loss, device=home).detach()
        value = value.float() if value.dtype in (torch.float16, torch.bfloat16) else value
        size = torch.zeros((), dtype=value.dtype, device=home)
        directions = []
        for group, parameter in moved:
            decay, gradient = group["weight_decay"], parameter.grad
            if decay:
                value = value + decay / 2 * norm_sq(parameter.flatten()).to(home)
                gradient = gradient + decay * parameter
            directions.append(gradient)
            size = size + norm_sq(gradient.flatten()).to(home)
        gap = value - self.lower
        self._check(value, gap)
        gap = gap.clamp(min=0)
        ratio = torch.where(size > 0, gap / size, torch.inf)
        for group in self.param_groups:
            group["stepsize"] = self._stepsize(group, gap, ratio)
        for (group, parameter), direction in zip(moved, directions, strict=True):
            parameter.sub_((group["stepsize"].to(parameter.device) * direction).to(parameter.dtype))
        return loss

    def _stepsize(self, group: dict[str, Any], gap: Tensor, ratio: Tensor) -> Tensor:
        """The group's stepsize; its state for the next step goes into the group."""
        raise NotImplementedError

    def _check(self, value: Tensor, gap: Tensor) -> None:
        tolerance = 10 * torch.finfo(gap.dtype).eps * max(1.0, abs(value.item()))
        if gap.item() < -tolerance:
            raise LowerBoundError(
                f"the loss is {value.item():.6g}, below its lower bound of {self.lower:.6g}: "
                f"set `lower` to {value.item():.6g} or lower"
            )


def _moves(parameter: Tensor) -> bool:
    if parameter.grad is None:
        return False
    if parameter.grad.is_sparse:
        raise ConfigurationError("sparse gradients are not supported: use dense ones (sparse=False)")
    return True


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

    Reference: Loizou, Vaswani, Laradji, Lacoste-Julien, *Stochastic Polyak Step-size for SGD*, AISTATS 2021.
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
        if smoothing is not None:
            choice("smoothing", smoothing, get_args(Smoothing))
        if not 0 < batch_fraction <= 1:
            raise ConfigurationError(f"batch_fraction must be above 0 and at most 1; got {batch_fraction!r}")
        defaults = {
            "lr": lr,
            "scale": scale,
            "smoothing": smoothing,
            "batch_fraction": batch_fraction,
            "weight_decay": weight_decay,
            "growth": 1.0,  # the cap in units of lr, so that a scheduler still acts on it
        }
        super().__init__(params, defaults, lower)

    def _stepsize(self, group: dict[str, Any], gap: Tensor, ratio: Tensor) -> Tensor:
        largest = torch.finfo(ratio.dtype).max
        growth = torch.as_tensor(group["growth"], dtype=ratio.dtype, device=ratio.device)
        cap = (group["lr"] * growth).clamp(max=largest)
        stepsize = torch.minimum(ratio / group["scale"], cap)
        factor = 2 ** group["batch_fraction"]
        if group["smoothing"] == "paper":
            group["growth"] = (growth * factor).clamp(max=largest)
        elif group["smoothing"] == "loizou":
            group["growth"] = torch.where(stepsize > 0, factor * stepsize / group["lr"], growth)
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

    Reference: Orvieto, Lacoste-Julien, Loizou, *Dynamics of SGD with Stochastic Polyak Stepsizes*, NeurIPS 2022.
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
        super().__init__(params, {"lr": lr, "scale": scale, "weight_decay": weight_decay}, lower)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters; its minimum and its clock start now."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        group["minimum"], group["steps"] = group["scale"] * group["lr"], 0

    def _stepsize(self, group: dict[str, Any], gap: Tensor, ratio: Tensor) -> Tensor:
        before = torch.as_tensor(group["minimum"], dtype=ratio.dtype, device=ratio.device)
        group["minimum"] = torch.where(gap > 0, torch.minimum(before, ratio), before)
        group["steps"] += 1
        c = group["scale"] * group["steps"] ** 0.5
        cap = torch.as_tensor(group["lr"], dtype=ratio.dtype, device=ratio.device)
        return torch.where(gap > 0, torch.minimum(group["minimum"] / c, cap), 0.0)
