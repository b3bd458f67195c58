"""Statements of the paper, and steps of its proofs, that do not hold as written: the smallest counterexample of each.

docs/theory.md says of each what remains true. Labels are those of the paper's source.
"""

from itertools import pairwise

import numpy as np
import pytest

from fedsps.paper.pages.global_stepsize import formulas
from fedsps.paper.pages.theory import two_clients
from fedsps.theory.bounds import SMALL_CONVEX, STRONGLY_CONVEX
from fedsps.theory.constants import Constants


@pytest.mark.parametrize("a", [10.0, 1e6])
def test_example_1_needs_one_step_in_one_dimension(a):
    """example:local_adaptivity: a common stepsize is said to need Omega(a log 1/eps) steps; 2/(1 + a) needs one."""
    gamma = 2 / (1 + a)
    assert gamma <= 2 / ((1 + a) / 2), "the condition of the example"
    assert 1 - gamma / 2 * (a + 1.0) == pytest.approx(0, abs=1e-15)


def test_proposition_2_second_part():
    """lem:sps_aggregation_formula (2): two quadratics h x^2/2 with gamma(a) below gamma(b)."""
    h, x = np.array([10.0, 1.0]), np.array([0.1, 10.0])
    a, b, c = formulas(h * x**2 / 2, (h * x)[:, None], 1.0, np.inf)
    assert (a, b) == pytest.approx((0.275, 50.05 / 101))
    assert a < b <= c
    same = formulas(np.array([1.0, 1.0]), np.array([[1.0], [1.0]]), 1.0, np.inf)
    assert same[0] == same[1] == same[2], "nor is gamma(b) < min(gamma(a), gamma(c)) strict"


def test_upper_bound_of_the_polyak_ratio():
    """lemma:lsmoothineq: (f - l*) / (c ||grad f||^2) <= 1/(2 c mu) fails for l* < f*: f = x^2/2 + 1, l* = 0, x = 0.1."""
    x, c, mu = 0.1, 1.0, 1.0
    assert (x**2 / 2 + 1 - 0) / (c * x**2) == pytest.approx(100.5)
    assert 1 / (2 * c * mu) < 100.5
    assert (x**2 / 2 + 1 - 1) / (c * x**2) == pytest.approx(1 / (2 * c * mu)), "with l* = f* it is true"


def test_the_averages_of_the_strongly_convex_proofs():
    """(eq:425) and its like: ||mean - x*||^2 <= ||x_i - x*||^2 + 2 ||mean - x_i||^2 is used, and is not true.

    The inequality that is cited has 2 ||x_i - x*||^2. Averaged over clients, no such term is needed (Jensen).
    """
    points, star = np.array([1.0, 3.0]), 0.0
    mean = points.mean()
    slack = (points[0] - star) ** 2 + 2 * (mean - points[0]) ** 2 - (mean - star) ** 2
    assert slack == -1
    assert (mean - star) ** 2 <= ((points - star) ** 2).mean()


def test_the_strongly_convex_theorem_survives():
    """Once gamma >= alpha and Jensen take the place of both steps, A = 1 is enough, so A = 1/(mu alpha) is too."""
    k = Constants(smoothness=2.0, convexity=0.5, scale=16.0, cap=1.0, local_steps=2, gap=1.0, distance=3.0)
    T = np.arange(1, 100)
    assert (STRONGLY_CONVEX.bound(k, T) <= STRONGLY_CONVEX.as_stated(k, T)).all()


def test_the_small_stepsize_theorem_drops_a_factor():
    """thm:fedsps_local_convex_small (a): gamma_b^2 L tau^2 sigma_f^2 must be gamma_b^2 L^2 tau^2 sigma_f^2.

    Two clients, L x^2/2 and 0.3 L (x - 1)^2/2, full gradients, started at x*, so that the first term is 0.
    """
    found = two_clients(smoothness=1e6, local_steps=10**5, rounds=10**5)
    assert found.left / found.gap == pytest.approx(5.4e-5, rel=0.01)
    assert found.as_stated / found.gap == pytest.approx(7.0e-6, rel=0.01)
    assert found.left > found.as_stated
    assert found.left <= found.mended
    assert two_clients(1e5, 10**5, 1000).left > two_clients(1e5, 10**5, 1000).as_stated, "a smaller one"


def test_no_constant_saves_the_small_stepsize_theorem():
    """With L = tau growing, what is stated goes to 0 and the left side does not."""
    ratios = [found.left / found.as_stated for found in (two_clients(10.0**p, 10**p, 1000) for p in (2, 3, 4, 5))]
    assert all(later > 9 * before for before, later in pairwise(ratios))


@pytest.mark.parametrize("L", [2.0, 50.0])
def test_the_mended_theorem_has_no_unit(L):
    """Measuring x in other units multiplies L and divides gamma_b: a bound of f - f* must not care. As stated it does."""
    one = Constants(smoothness=1.0, scale=0.5, cap=0.01, local_steps=2, gap=1.0)
    other = Constants(smoothness=L, scale=0.5, cap=0.01 / L, local_steps=2, gap=1.0)
    assert SMALL_CONVEX.bound(one, np.inf) == pytest.approx(SMALL_CONVEX.bound(other, np.inf))
    infinite = np.array(np.inf)
    assert SMALL_CONVEX.as_stated(one, infinite) != pytest.approx(SMALL_CONVEX.as_stated(other, infinite))


def test_the_non_convex_proof_gives_sigma_squared():
    """thm:non-convex: E||grad F_i(x, xi)||^2 <= ||grad f(x)||^2 + sigma^2/tau + zeta^2 is used, and is not true.

    One client, F = (x - xi)^2/2 with xi = -1 or 1, at x = 0, tau = 2: the left side is sigma^2 = 1. What the step is
    used for, the bound of R_t, is not contradicted: the variance of two steps is far below its 32 gamma_b^2 tau sigma^2.
    """
    gradients, tau = np.array([1.0, -1.0]), 2
    sigma, zeta, at_mean = gradients.var(), 0.0, gradients.mean() ** 2
    assert (gradients**2).mean() == sigma == 1
    assert (gradients**2).mean() > at_mean + sigma / tau + zeta
    assert (gradients**2).mean() <= at_mean + sigma + zeta
