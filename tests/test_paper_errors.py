"""Statements of the paper, and steps of its proofs, that do not hold as written: the smallest counterexample of each.

docs/theory.md says of each what remains true. Labels are those of the paper's source.
"""

from itertools import pairwise

import numpy as np
import pytest
import torch

import fedsps
from fedsps.core.plan import Plan
from fedsps.methods.fedsps import FedSPS
from fedsps.model.network import Network
from fedsps.paper.pages.global_stepsize import formulas
from fedsps.theory.bounds import SMALL_CONVEX, SMALL_STRONGLY_CONVEX, STRONGLY_CONVEX
from fedsps.theory.constants import Constants
from fedsps.theory.counterexamples import two_clients
from fedsps.theory.quadratics import Quadratics, random_quadratics
from fedsps.theory.trajectory import follow


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

    The inequality that is cited has 2 ||x_i - x*||^2. (eq:425) has L/mu in place of the other 2. Averaged over clients,
    no such term is needed (Jensen).
    """
    for factor, k in ((2.0, 1.0), (10.0, 5.0), (1000.0, 500.0)):
        points, star = np.array([k, k + 2]), 0.0
        mean = points.mean()
        slack = (points[0] - star) ** 2 + factor * (mean - points[0]) ** 2 - (mean - star) ** 2
        assert slack == factor - (2 * k + 1) == -1
        assert (mean - star) ** 2 <= ((points - star) ** 2).mean()


class AtMinimum(Network):
    """A network that keeps the loss of every batch at x*; another one does the work."""

    def __init__(self, inner, star):
        self.__dict__.update(inner.__dict__)
        self.inner, self.star, self.losses = inner, torch.from_numpy(star), []

    def loss_and_gradient(self, x, *batch, **options):
        self.losses.append(self.inner.loss_and_gradient(self.star.expand_as(x), *batch, **options)[0])
        return self.inner.loss_and_gradient(x, *batch, **options)


def sides_of_a_step(seed, scale, cap, tau):
    """`||mean x_{t+1} - x*||^2` and what the mended proof bounds it by, for each t of a run from far away.

    Strong convexity of every F_i(., batch), gamma >= alpha, and Jensen's inequality in place of gamma mu <= 1/2 and of
    the false average give, without any expectation,

        (1 - mu alpha) ||mean x_t - x*||^2 - 2 mean_i gamma (F_i(x_t^i) - F_i(x*)) + 2/c mean_i gamma (F_i(x_t^i) - l*) + R_t
    """
    problem = random_quadratics(seed, offset=0.1)
    k = problem.constants(scale, cap, tau)
    network = AtMinimum(problem.network, problem.minimum)
    plan = Plan(rounds=20, local_steps=tau, batch_size=1, seed=seed)
    run = follow(network, problem.data, FedSPS(scale=scale, cap=cap), plan)
    at_minimum = torch.stack(network.losses[-len(run.losses) :]).numpy()
    distances = ((run.means - problem.minimum) ** 2).sum(-1)
    falls = (run.stepsizes * (run.losses - at_minimum)).mean(1)
    rest = -2 * falls + 2 / scale * run.gains.mean(1) + run.differences
    return k, distances, rest, 2 * (run.stepsizes * at_minimum).mean(1)


@pytest.mark.parametrize("cap", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("tau", [1, 3])
def test_the_strongly_convex_theorem_survives(cap, tau):
    """thm:fedsps_local_convex (b): the mended step is true of every iteration, and so is its sum with A = 1.

    With thirty times the decrease it is not: the test could fail. For c >= 4 tau^2 the sum over t is at most the bound with
    the noise that was drawn in place of its expectation.
    """
    for seed in range(3):
        k, distances, rest, noise = sides_of_a_step(seed, 4.0 * tau**2, cap, tau)
        rate = k.convexity * k.alpha
        assert (distances[1:] <= (1 - rate) * distances[:-1] + rest + 1e-12).all()
        weights = (1 - rate) ** np.arange(len(rest))[::-1]
        assert distances[-1] <= (1 - rate) ** len(rest) * distances[0] + weights @ noise
        assert (STRONGLY_CONVEX.bound(k, range(1, 100)) <= STRONGLY_CONVEX.as_stated(k, np.arange(1.0, 100))).all()
    k, distances, rest, _ = sides_of_a_step(0, 4.0, 100.0, 1)
    assert (distances[1:] > (1 - 30 * k.convexity * k.alpha) * distances[:-1] + rest).any()


def test_the_small_stepsize_theorem_drops_a_factor():
    """thm:fedsps_local_convex_small (a): gamma_b^2 L tau^2 sigma_f^2 must be gamma_b^2 L^2 tau^2 sigma_f^2.

    Two clients, L x^2/2 and 0.3 L (x - 1)^2/2, full gradients, started at x*, so that the first term is 0.
    """
    found = two_clients(smoothness=1e6, local_steps=10**5, rounds=10**5)
    left, as_stated, mended = found.convex
    assert left / found.gap == pytest.approx(5.4e-5, rel=0.01)
    assert as_stated / found.gap == pytest.approx(7.0e-6, rel=0.01)
    assert as_stated < left <= mended
    smaller = two_clients(1e5, 10**5, 1000).convex
    assert smaller.left > smaller.as_stated


def test_its_strongly_convex_part_drops_it_too():
    """thm:fedsps_local_convex_small (b): gamma_b^2 L tau^2 sigma_f^2 / mu, on the same two clients, mu = 0.3 L."""
    left, as_stated, mended = two_clients(smoothness=1e6, local_steps=10**5, rounds=10**5).strongly_convex
    assert left == pytest.approx(9.6e-6, rel=0.01)
    assert as_stated == pytest.approx(4.46e-7, rel=0.01)
    assert as_stated < left <= mended


def test_two_clients_are_what_a_run_gives():
    L, tau = 10.0, 20
    problem = Quadratics(
        L * np.array([[[1.0]], [[0.3]]]), np.array([[[0.0]], [[1.0]]]), np.zeros((2, 1)), np.array([0.3 / 1.3])
    )
    cap = 1 / (20 * L * tau)
    run = follow(problem.network, problem.data, FedSPS(cap=cap), Plan(rounds=50, local_steps=tau, batch_size=None))
    found = two_clients(L, tau, rounds=50)
    assert found.gap == pytest.approx(problem.gap)
    assert found.convex.left == pytest.approx((problem.value(run.means[:-1]) - problem.gap).mean(), rel=1e-6)
    assert found.strongly_convex.left == pytest.approx((run.final[0] - 0.3 / 1.3) ** 2, rel=1e-6)


@pytest.mark.parametrize("part", ["convex", "strongly_convex"])
def test_no_constant_saves_the_small_stepsize_theorem(part):
    """With L = tau growing, what is stated goes to 0 against the left side."""
    found = [getattr(two_clients(10.0**p, 10**p, 1000), part) for p in (2, 3, 4, 5)]
    assert all(later.left / later.as_stated > 9 * one.left / one.as_stated for one, later in pairwise(found))


@pytest.mark.parametrize("L", [2.0, 50.0])
def test_the_mended_theorem_has_no_unit(L):
    """Measuring x in other units multiplies L and mu and divides gamma_b and squared distances. As stated it does not."""
    one = Constants(smoothness=1.0, convexity=0.1, scale=0.5, cap=0.01, local_steps=2, gap=1.0)
    other = Constants(smoothness=L, convexity=0.1 * L, scale=0.5, cap=0.01 / L, local_steps=2, gap=1.0)
    infinite = np.array(np.inf)
    for theorem, unit in ((SMALL_CONVEX, 1.0), (SMALL_STRONGLY_CONVEX, L)):
        assert theorem.bound(one, np.inf) == pytest.approx(unit * theorem.bound(other, np.inf))
        assert theorem.as_stated(one, infinite) != pytest.approx(unit * theorem.as_stated(other, infinite))


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


def test_feddecsps_need_not_converge_to_the_minimum():
    """Section 5: FedDecSPS "achieves exact convergence". 2 x^2 and (x - 1)^2/2, one local step, full gradients.

    The Polyak ratio of h (x - b)^2/2 is 1/(2 h) at every x, so client i's stepsizes are 1/(2 h_i c_t) from the first
    one on, and the mean step is that of the plain mean of (x - b_i)^2/4: its minimum is 1/2, whatever c_t is. That of f
    is 1/5. A cap of 1/(2 c_0 L) makes the stepsizes alike, and the limit x*.
    """
    problem = Quadratics(np.array([[[4.0]], [[1.0]]]), np.array([[[0.0]], [[1.0]]]), np.zeros((2, 1)), np.array([3.0]))
    assert problem.minimum == pytest.approx(0.2)

    def limit(cap):
        found = fedsps.train(
            problem.model,
            problem.data,
            algorithm=fedsps.FedDecSPS(cap=cap),
            loss=problem.loss,
            rounds=600,
            local_steps=1,
            batch_size=None,
            evaluate_every=0,
        )
        return found.model.x.item()

    assert limit(1.0) == pytest.approx(0.5, abs=1e-6)
    assert problem.value(np.array([0.5])) - problem.gap == pytest.approx(0.1125)
    assert limit(1 / (2 * 0.5 * 4)) == pytest.approx(0.2, abs=1e-6)
