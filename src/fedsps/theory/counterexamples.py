"""Counterexamples of the paper's statements that are more than a line of arithmetic; docs/theory.md has them all."""

from typing import NamedTuple

import numpy as np

from fedsps.theory.bounds import SMALL_CONVEX, SMALL_STRONGLY_CONVEX, Theorem
from fedsps.theory.constants import Constants


class Sides(NamedTuple):
    """Both sides of a theorem as T grows.

    Attributes:
        left: what is bounded.
        as_stated: the bound that the paper states, with the constants of the proof.
        mended: the bound that the proof gives.
    """

    left: float
    as_stated: float
    mended: float


class TwoClients(NamedTuple):
    """The small-stepsize theorem on two clients.

    Attributes:
        convex: (a), whose left side is the mean of `f(mean_i x_t^i) - f*`.
        strongly_convex: (b), whose left side is `||mean_i x_T^i - x*||^2`.
        gap: `sigma_f^2`.
    """

    convex: Sides
    strongly_convex: Sides
    gap: float


def two_clients(smoothness: float, local_steps: int, rounds: int) -> TwoClients:
    """FedSPS on `L x^2/2` and `0.3 L (x - 1)^2/2` from x* on, with full gradients and `gamma_b = 1/(20 L tau)`.

    A cap so small binds at every step, so a client's k-th iterate is affine in the server's point X, and the sums over
    k and over rounds have closed forms. From x* on, the first term of both bounds is 0, so that they are the same at
    every T.
    """
    L, tau, least = smoothness, local_steps, 0.3 / 1.3
    cap = 1 / (20 * L * tau)
    steps = np.arange(tau + 1)
    first, second = (1 - cap * L) ** steps, (1 - 0.3 * cap * L) ** steps
    slope, constant = (first + second) / 2, (1 - second) / 2  # mean_i x_t^i = slope X + constant
    fixed = constant[-1] / (1 - slope[-1])
    X = fixed + slope[-1] ** np.arange(rounds + 1) * (least - fixed)
    a, b = slope[:-1], constant[:-1] - least
    square = (a @ a) * (X[:-1] ** 2).mean() + 2 * (a @ b) * X[:-1].mean() + b @ b
    gap = float((L * least**2 / 2 + 0.3 * L * (1 - least) ** 2 / 2) / 2)
    k = Constants(smoothness=L, convexity=0.3 * L, scale=0.5, cap=cap, local_steps=tau, clients=2, gap=gap)

    def sides(theorem: Theorem, left: float) -> Sides:
        assert theorem.as_stated is not None, "both statements differ from their proofs"
        return Sides(float(left), float(theorem.as_stated(k, np.array(np.inf))), theorem.neighbourhood(k))

    return TwoClients(
        convex=sides(SMALL_CONVEX, 1.3 * L / 4 * square / tau),
        strongly_convex=sides(SMALL_STRONGLY_CONVEX, (X[-1] - least) ** 2),
        gap=gap,
    )
