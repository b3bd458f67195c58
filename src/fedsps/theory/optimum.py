"""The minimum of a convex problem, by L-BFGS in float64 and a few steps of Newton's method; or that there is none."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsps.theory.bounds import Numbers
from fedsps.theory.curvature import Linear
from fedsps.theory.objective import Objective

GRADIENT = 1e-10
"""The largest entry of the gradient at which a point counts as the minimum."""

ITERATIONS = 2000
WORK = 10**11  # samples times parameters, over all iterations: a minute or two
STEP = 1e-4  # of the differences that stand for products with the Hessian
POLISHED = 5  # steps of Newton's method at the end
CHECKED = 10  # iterations between two looks at whether the data are separated


@dataclass(frozen=True, eq=False)
class Optimum:
    """Where a convex objective has its minimum.

    Attributes:
        x: x*, `[d]`; None if there is none.
        value: f*; the infimum where it is not attained.
        gradient: the largest entry of the gradient at x; 0 if there is no x.
        iterations: of L-BFGS.
    """

    x: Tensor | None
    value: float
    gradient: float
    iterations: int

    @property
    def is_exact(self) -> bool:
        """Whether the gradient came down to `GRADIENT`; else f* is at most `value`."""
        return self.gradient <= GRADIENT


def minimum(objective: Objective, model: Linear, most: int | None = None) -> Optimum:
    """f* and x* of a linear model, from the network's x on.

    As soon as all samples are on the right side of every boundary, the data are known to be separable: along that
    direction the loss falls to 0, and there is no x*.

    Args:
        objective: what is minimised.
        model: its linear form.
        most: iterations after which it gives up; if not given, 2000, or fewer where one takes long.

    >>> import numpy as np, torch.nn.functional as F
    >>> from fedsps.data.clients import ClientData
    >>> from fedsps.model.network import Network
    >>> network = Network(torch.nn.Linear(1, 1, bias=False).double(), F.mse_loss)
    >>> data = ClientData.of([(np.array([[1.0], [1.0]]), np.array([[0.0], [2.0]]))])
    >>> found = minimum(Objective(network, data, torch.ones(1).double(), None), Linear("least squares", 2.0, False))
    >>> round(found.x.item(), 9), round(found.value, 9), found.is_exact
    (1.0, 1.0, True)
    """
    from scipy.optimize import minimize

    if most is None:
        most = max(10, min(ITERATIONS, WORK // (len(objective.data.targets) * objective.network.x.numel())))
    iterations = 0

    def value_and_gradient(point: Numbers) -> tuple[float, Numbers]:
        loss, gradient = objective(torch.from_numpy(point.copy()))
        return loss.item(), gradient.numpy()

    def watch(intermediate_result: Any) -> None:
        nonlocal iterations
        iterations += 1
        if iterations % CHECKED == 0 and is_separated(objective, model, torch.from_numpy(intermediate_result.x)):
            raise StopIteration

    start = objective.network.x.numpy()
    options = {"gtol": GRADIENT, "ftol": 0.0, "maxiter": most, "maxfun": 2 * most, "maxcor": 30}
    end = minimize(value_and_gradient, start, jac=True, method="L-BFGS-B", callback=watch, options=options)
    x = torch.from_numpy(end.x.copy())
    if is_separated(objective, model, x):
        return Optimum(None, 0.0, 0.0, iterations)
    x = x if iterations >= most else _polished(objective, x)
    value, gradient = objective(x)
    return Optimum(x, value.item(), gradient.abs().max().item(), iterations)


def _polished(objective: Objective, x: Tensor) -> Tensor:
    """A few steps of Newton's method, as long as they make the gradient smaller.

    L-BFGS compares values, and so stalls where they differ by rounding alone, at gradients of about 1e-8.
    """
    from scipy.sparse.linalg import LinearOperator, minres

    gradient, d = objective(x)[1], x.numel()
    for _ in range(POLISHED):
        if gradient.abs().max() <= GRADIENT:
            break

        def product(vector: Numbers, x: Tensor = x) -> Numbers:
            along = torch.from_numpy(vector.ravel())
            step = STEP / along.norm().clamp(min=1e-300)
            slope = objective(x + step * along)[1] - objective(x - step * along)[1]
            return np.asarray(slope / (2 * step))

        step, _ = minres(
            LinearOperator((d, d), matvec=product, dtype=np.float64), -gradient.numpy(), rtol=1e-6, maxiter=200
        )
        after = x + torch.from_numpy(step)
        smaller = objective(after)[1]
        if smaller.norm() >= gradient.norm():
            break
        x, gradient = after, smaller
    return x


def is_separated(objective: Objective, model: Linear, x: Tensor) -> bool:
    """Whether each sample's own class has strictly the largest output at x; never for least squares."""
    if model.kind == "least squares":
        return False
    outputs = objective.network.outputs(x, {}, objective.data.inputs)
    targets = objective.data.targets
    if model.kind == "logistic regression":
        margins = outputs.flatten() * (2 * targets.flatten() - 1)
    else:
        own = outputs.gather(1, targets.unsqueeze(1))
        others = outputs.scatter(1, targets.unsqueeze(1), -torch.inf)
        margins = own.squeeze(1) - others.amax(1)
    return bool((margins > 0).all())
