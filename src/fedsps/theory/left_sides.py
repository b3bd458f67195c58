"""What the theorems and the lemmas bound, measured along a run: one number for each T, or one for the whole run."""

from collections.abc import Callable
from typing import Protocol

import numpy as np
from torch import nn

from fedsps.data.clients import ClientData
from fedsps.model.network import Loss, Network
from fedsps.theory.bounds import Numbers
from fedsps.theory.constants import Constants
from fedsps.theory.quadratics import Quadratics
from fedsps.theory.trajectory import Trajectory


class Problem(Protocol):
    """What a bound is held against."""

    @property
    def model(self) -> nn.Module:
        """A new model of the problem, as each run begins with it."""

    @property
    def loss(self) -> Loss:
        """Of the model's outputs."""

    @property
    def network(self) -> Network:
        """The model and the loss as the engines see them."""

    @property
    def data(self) -> ClientData:
        """The samples of all clients, as many of each."""

    @property
    def minimum(self) -> Numbers:
        """The point x*, `[d]`."""

    def value(self, x: Numbers) -> Numbers:
        """`f` at points `[..., d]`."""

    def constants(self, scale: float, cap: float, local_steps: int) -> Constants:
        """L, mu and the rest of what the theorems need, in this setting."""


Left = Callable[[Problem, Trajectory], Numbers]


def mean_gap(problem: Problem, run: Trajectory) -> Numbers:
    """Mean over t < T and clients of `F_i(x_t^i, batch) - l*`, whose expectation is that of `f_i(x_t^i) - l*`."""
    return running_mean(run.losses.mean(1) - run.lower)


def distance(problem: Problem, run: Trajectory) -> Numbers:
    """`||mean_i x_T^i - x*||^2`."""
    return np.asarray(((run.means[1:] - problem.minimum) ** 2).sum(-1))


def mean_excess(problem: Problem, run: Trajectory) -> Numbers:
    """Mean over t < T of `f(mean_i x_t^i) - f*`."""
    return running_mean(problem.value(run.means[:-1]) - problem.value(problem.minimum))


def mean_gradient(problem: Problem, run: Trajectory) -> Numbers:
    """Mean over t < T of `||grad f(mean_i x_t^i)||^2`."""
    if not isinstance(problem, Quadratics):
        raise TypeError("the gradient is that of quadratics")
    return running_mean((problem.gradient(run.means[:-1]) ** 2).sum(-1))


def running_mean(values: Numbers) -> Numbers:
    """The mean of the first T values, for T = 1, 2, ...

    >>> running_mean(np.array([4.0, 2.0, 0.0])).tolist()
    [4.0, 3.0, 2.0]
    """
    return np.asarray(values.cumsum() / np.arange(1, len(values) + 1))


def lemmas_of(problem: Problem, run: Trajectory, k: Constants) -> dict[str, float]:
    """The lemmas along one run, each as the largest or the least of a ratio that is to be at most or at least 1.

    The second bound of R_t is that for small caps, (eq:443), which the paper has in expectation.
    """
    moved, started = run.gains > 0, run.difference_bounds > 0
    L, tau = k.smoothness, k.local_steps
    excess = problem.value(run.means[:-1]) - problem.value(problem.minimum)
    small = run.since_round(excess / (3 * L * tau) + 64 * L * k.cap**2 * tau * k.gap)
    return {
        "least stepsize over alpha": float(run.stepsizes.min() / k.alpha),
        "largest stepsize over the cap": float(run.stepsizes.max() / k.cap),
        "fundamental inequality": float((k.scale * run.stepsizes**2 * run.sizes / run.gains)[moved].max()),
        "R_t over its bound": float((run.differences[started] / run.difference_bounds[started]).max()),
        "R_t over its bound for small caps": float((run.differences[started] / small[started]).max()),
    }
