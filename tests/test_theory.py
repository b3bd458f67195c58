"""The constants of problems against brute force, the theorems against runs, and what `fedsps analyse` says of both."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import make_clients
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import fedsps
from fedsps import FedSPS, Plan
from fedsps.data.clients import ClientData
from fedsps.engine.setup import Setup
from fedsps.errors import ConfigurationError
from fedsps.model.logistic import network_of
from fedsps.model.models import LogisticRegression
from fedsps.model.network import Network
from fedsps.rules import PolynomialAverage
from fedsps.theory import bounds
from fedsps.theory.analyse import fixed_cap, theorems_about
from fedsps.theory.analysis import OF_FEDAVG, OF_FEDSPS
from fedsps.theory.bounds import CONVEX, LINEAR, NON_CONVEX, SMALL_CONVEX, SMALL_STRONGLY_CONVEX, STRONGLY_CONVEX
from fedsps.theory.constants import Constants
from fedsps.theory.curvature import estimated, linear_form, of_linear
from fedsps.theory.objective import Objective
from fedsps.theory.optimum import minimum
from fedsps.theory.quadratics import Bowl, mean_with_offsets, random_quadratics
from fedsps.theory.trajectory import follow


def hessian(network, x, inputs, targets):
    """Column by column, from exact gradients of a model whose gradient is linear or smooth enough."""
    d, step = len(x), 1e-5
    columns = [
        network.loss_and_gradient(x + step * e, {}, inputs, targets)[1]
        - network.loss_and_gradient(x - step * e, {}, inputs, targets)[1]
        for e in torch.eye(d, dtype=x.dtype)
    ]
    return torch.stack(columns) / (2 * step)


def gaussian_clients(seed=0, clients=3, samples=6, features=2, classes=3):
    random = np.random.default_rng(seed)
    return ClientData.of(
        [(random.normal(size=(samples, features)), random.integers(0, classes, samples)) for _ in range(clients)]
    )


# L and mu


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("batch", [1, None])
def test_smoothness_of_logistic_regression_is_never_exceeded_and_approached(classes, batch):
    module = LogisticRegression(2, classes).double()
    loss = F.binary_cross_entropy_with_logits if classes == 2 else F.cross_entropy
    network, data = network_of(module, loss), gaussian_clients(classes=classes)
    data = data.to(network.x, network.accepted)
    found = of_linear(linear_form(module, loss), data, batch)
    assert found.smoothness_is == "exact"
    assert found.convexity == 0
    random, largest = np.random.default_rng(1), 0.0
    parts = [
        (inputs[some], targets[some])
        for inputs, targets in data.pairs()
        for some in ([slice(None)] if batch is None else [slice(j, j + 1) for j in range(len(inputs))])
    ]
    flat = torch.zeros_like(network.x)
    if classes == 3:
        flat[-1] = -40.0  # the third class has no probability, the others share it
    for x in [flat, *(torch.from_numpy(random.normal(size=len(flat))) for _ in range(5))]:
        largest = max(largest, *(torch.linalg.eigvalsh(hessian(network, x, *part)).max().item() for part in parts))
    assert largest == pytest.approx(found.smoothness, rel=1e-5)


def test_curvature_of_least_squares():
    module = nn.Linear(2, 1).double()
    random = np.random.default_rng(0)
    data = ClientData.of([(random.normal(size=(6, 2)), random.normal(size=(6, 1))) for _ in range(3)])
    network, form = Network(module, F.mse_loss), linear_form(module, F.mse_loss)
    values = torch.stack([torch.linalg.eigvalsh(hessian(network, network.x, *pair)) for pair in data.pairs()])
    found = of_linear(form, data, None)
    assert (found.smoothness, found.convexity) == pytest.approx((values.max().item(), values.min().item()), rel=1e-5)
    assert (found.smoothness_is, found.convexity_is) == ("exact", "exact")
    assert of_linear(form, data, 2).convexity == 0, "two samples do not span three directions"
    assert of_linear(form, data, 2).convexity_is == "exact"
    between = of_linear(form, data, 4)
    assert (between.smoothness_is, between.convexity_is) == ("upper bound", "lower bound")
    assert between.smoothness >= found.smoothness


def test_what_is_not_a_linear_model():
    assert linear_form(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), nn.CrossEntropyLoss()) is not None
    frozen = nn.Linear(4, 3)
    frozen.bias.requires_grad_(False)
    for module, loss in [
        (frozen, F.cross_entropy),
        (nn.Linear(4, 3), nn.CrossEntropyLoss(label_smoothing=0.1)),
        (nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), F.cross_entropy),
        (fedsps.LeNet(), F.cross_entropy),
    ]:
        assert linear_form(module, loss) is None


def test_power_iteration_finds_both_ends():
    problem = random_quadratics(0, clients=2, samples=1, dimension=4, curvatures=(0.2, 3.0))
    found = estimated(problem.network, problem.data, 1)
    assert found.smoothness == pytest.approx(3.0, rel=1e-2)
    assert found.convexity == pytest.approx(0.2, rel=0.2)
    saddle = replace(problem, start=np.zeros(4), bumps=-5.0)  # the Hessian of -5 (1 - cos x) at 0 is -5
    found = estimated(saddle.network, saddle.data, 1)
    assert found.convexity == pytest.approx(0.2 - 5.0, rel=1e-2)
    assert found.smoothness == pytest.approx(4.8, rel=1e-2)


def test_the_closed_form_of_quadratics_is_what_autograd_gives():
    problem = random_quadratics(3, offset=0.2, bumps=1.5)
    plain = Network(Bowl(torch.from_numpy(problem.start), 1.5), mean_with_offsets)
    inputs, targets = (
        torch.stack([a for a, _ in problem.data.pairs()]),
        torch.stack([b for _, b in problem.data.pairs()]),
    )
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(4, 3)))
    for ours, theirs in zip(
        problem.network.loss_and_gradient(x, {}, inputs, targets)[:2],
        plain.loss_and_gradient(x, {}, inputs, targets)[:2],
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-13, atol=1e-13)


# f*, x* and what differs there


def objective_of(module, data, loss=F.cross_entropy, **plan):
    network = network_of(module.double(), loss)
    return Objective.of(Setup(Plan(**plan), network, data.to(network.x, network.accepted), FedSPS()), network)


def test_minimum_of_least_squares_is_the_closed_form():
    random = np.random.default_rng(0)
    data = ClientData.of([(random.normal(size=(m, 2)), random.normal(size=(m, 1))) for m in (4, 9)])
    module = nn.Linear(2, 1)
    for weights in ("uniform", "samples"):
        objective = objective_of(module, data, F.mse_loss, weights=weights)
        found = minimum(objective, linear_form(module, F.mse_loss))
        u = np.hstack([data.inputs.numpy(), np.ones((13, 1))])
        share = np.repeat([1 / 8, 1 / 18], [4, 9]) if weights == "uniform" else np.full(13, 1 / 13)
        best = np.linalg.lstsq(u * share[:, None] ** 0.5, data.targets.numpy()[:, 0] * share**0.5, rcond=None)[0]
        assert found.is_exact
        np.testing.assert_allclose(found.x, best, atol=1e-8)


def test_separable_data_have_no_minimum():
    module = LogisticRegression(2, 2)
    apart = ClientData.of([(np.array([[1.0, 0.0], [-1.0, 0.0]]), np.array([1, 0]))])
    loss = F.binary_cross_entropy_with_logits
    found = minimum(objective_of(module, apart, loss), linear_form(module, loss))
    assert found.x is None
    assert found.value == 0
    mixed = ClientData.of([(np.array([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]]), np.array([1, 0, 0]))])
    found = minimum(objective_of(LogisticRegression(2, 2), mixed, loss), linear_form(module, loss))
    assert found.x is not None
    assert found.value == pytest.approx(2 / 3 * np.log(2), abs=1e-4), "the third sample can be fitted, two cannot"


def test_noise_is_what_all_batches_give():
    """Against every batch of two out of five, drawn without replacement."""
    data, module = gaussian_clients(samples=5), LogisticRegression(2, 3)
    objective = objective_of(module, data, batch_size=2)
    x = torch.from_numpy(np.random.default_rng(2).normal(size=9))
    found = objective.noise(x)
    means, within = [], []
    for inputs, targets in objective.data.pairs():
        pairs = [[i, j] for i in range(5) for j in range(i)]
        drawn = torch.stack([objective.network.loss_and_gradient(x, {}, inputs[p], targets[p])[1] for p in pairs])
        means.append(drawn.mean(0))
        within.append((drawn - drawn.mean(0)).square().sum(1).mean())
    means = torch.stack(means)
    assert found.clients == pytest.approx((means - means.mean(0)).square().sum(1).mean().item())
    assert found.batches == pytest.approx(torch.stack(within).mean().item())


# The theorems

FITS = Constants(smoothness=2.0, convexity=0.5, scale=4.0, cap=1 / 40, local_steps=1, gap=1.0, distance=3.0, excess=2.0)


def test_bounds_by_hand():
    k = FITS
    assert k.alpha == 1 / 40
    assert CONVEX.bound(k, 10) == pytest.approx(2 * 3 / (10 / 40) + 4)
    rate = 0.5 / 40
    assert STRONGLY_CONVEX.bound(k, 10) == pytest.approx((1 - rate) ** 10 * 3 + 2 / 0.5)
    assert STRONGLY_CONVEX.as_stated(k, 10) == pytest.approx((1 - rate) ** 10 * 3 / rate + 2 / 0.5)
    assert LINEAR.bound(replace(k, gap=0.0), 10) == pytest.approx((1 - rate) ** 10 * 3)
    assert SMALL_CONVEX.bound(k, 10) == pytest.approx(3 * 3 * 40 / 10 + 12 * (0.05 + 32 * 0.05**2))
    assert SMALL_CONVEX.as_stated(k, np.float64(10)) == pytest.approx(36 + 12 * (0.05 + 32 * 0.05 / 40))
    assert SMALL_STRONGLY_CONVEX.bound(k, 10) == pytest.approx((1 - rate) ** 10 * 3 + (0.2 + 128 * 0.05**2) / 0.5)
    stated = SMALL_STRONGLY_CONVEX.as_stated(k, np.float64(10))
    assert stated == pytest.approx((1 - rate) ** 10 * 3 / rate + (0.2 + 128 * 0.05 / 40) / 0.5)
    noisy = replace(k, cap=0.01, variance=2.0, heterogeneity=5.0, clients=4)
    by_hand = 8 * (2 / (10 * 0.01) + 0.02 * 2 / 8 + 64 * 0.02**2 * 7)
    assert NON_CONVEX.bound(noisy, 10) == pytest.approx(by_hand)
    assert SMALL_CONVEX.neighbourhood(k) == pytest.approx(12 * (0.05 + 32 * 0.05**2))


@pytest.mark.parametrize(
    ("theorem", "change", "words"),
    [
        (CONVEX, {"local_steps": 2}, "scale >= 2 tau^2 = 8 (it is 4)"),
        (STRONGLY_CONVEX, {"scale": 3.9}, "scale >= 4 tau^2 = 4 (it is 3.9)"),
        (STRONGLY_CONVEX, {"convexity": 0.0}, "mu > 0"),
        (LINEAR, {}, "interpolation, sigma_f^2 = 0 (it is 1)"),
        (SMALL_CONVEX, {"local_steps": 2}, "cap <= min(1/(2 c L), 1/(20 L tau)) = 0.0125 (it is 0.025)"),
        (SMALL_CONVEX, {"scale": 20.0}, "cap <= min(1/(2 c L), 1/(20 L tau)) = 0.0125 (it is 0.025)"),
        (NON_CONVEX, {}, "cap < min(1/(2 c L), 1/(25 L tau)) = 0.02 (it is 0.025)"),
    ],
)
def test_conditions_are_checked(theorem, change, words):
    with pytest.raises(ConfigurationError, match=re.escape(f"{theorem.label} does not apply: it needs {words}")):
        theorem.bound(replace(FITS, **change), 10)


def test_constants_check_themselves():
    for change in ({"smoothness": 0.0}, {"gap": -1.0}, {"distance": np.nan}, {"convexity": 3.0}, {"local_steps": 0}):
        with pytest.raises(ConfigurationError, match=next(iter(change))):
            replace(FITS, **change)


# Runs


def test_a_trajectory_is_the_run_that_train_makes():
    data = ClientData.of(make_clients(sizes=(6, 6, 6)))
    algorithm, plan = FedSPS(cap=0.7), Plan(rounds=4, local_steps=3, batch_size=2, seed=5)
    model = LogisticRegression(4, 3).double()
    found = follow(network_of(model), data, algorithm, plan)
    trained = fedsps.train(model, data, algorithm=algorithm, engine="stacked", **vars(plan))
    weights = torch.cat([parameter.detach().flatten() for parameter in trained.model.parameters()])
    np.testing.assert_array_equal(found.final, weights)
    np.testing.assert_allclose(found.losses.reshape(4, -1).mean(1), trained.history["cohort_loss"], rtol=1e-12)
    np.testing.assert_allclose(found.stepsizes.reshape(4, -1).mean(1), trained.history["stepsize_mean"], rtol=1e-12)
    assert (found.points[::3] == found.points[::3, :1]).all(), "a round begins at one point"
    assert found.points.shape == (12, 3, 15)


def test_theorems_are_not_about_every_run():
    problem = random_quadratics(0)
    for algorithm in (fedsps.FedAvg(), FedSPS(smoothing="paper")):
        with pytest.raises(ConfigurationError, match="fixed cap"):
            follow(problem.network, problem.data, algorithm, Plan(rounds=1))
    with pytest.raises(ConfigurationError, match="all clients"):
        follow(problem.network, problem.data, FedSPS(), Plan(rounds=1, cohort=2))


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    tau=st.integers(1, 6),
    more=st.floats(1, 3),
    cap=st.floats(1e-3, 1e3),
    offset=st.floats(0, 3),
)
def test_difference_lemma(seed, tau, more, cap, offset):
    """lemma:convex_difference: R_t is at most what it says, for every c >= 2 tau^2; and both stepsize lemmas."""
    problem = random_quadratics(seed, clients=3, samples=3, dimension=2, offset=offset)
    scale = more * 2 * tau**2
    found = follow(
        problem.network,
        problem.data,
        FedSPS(scale=scale, cap=cap),
        Plan(rounds=3, local_steps=tau, batch_size=1, seed=seed),
    )
    assert (found.differences <= found.difference_bounds * (1 + 1e-9) + 1e-15).all()
    alpha = problem.constants(scale, cap, tau).alpha
    assert (found.stepsizes >= alpha * (1 - 1e-9)).all()
    assert (found.stepsizes <= cap).all()
    assert (found.stepsizes**2 * found.sizes <= found.gains / scale * (1 + 1e-9)).all()


def test_the_difference_lemma_needs_its_condition():
    """With c far below 2 tau^2 the same inequality fails: the property test above could."""
    problem = random_quadratics(0, clients=3, samples=3, dimension=2)
    found = follow(
        problem.network, problem.data, FedSPS(scale=0.5, cap=1e3), Plan(rounds=3, local_steps=6, batch_size=1)
    )
    assert (found.differences > found.difference_bounds).any()


# fedsps.analyse


def test_analysis_of_a_convex_problem():
    data = gaussian_clients(samples=20)
    found = fedsps.analyse(LogisticRegression(2, 3), data.pairs(), batch_size=4, algorithm=FedSPS(scale=60.0))
    assert found.model == "softmax regression"
    assert found.where == "x*"
    assert found.optimum.is_exact
    assert found.gap == found.optimum.value, "l* is 0"
    roof = 2 * found.curvature.smoothness * found.gap
    assert 0 < found.noise.clients <= roof, "proposition 1 (a)"
    assert 0 < found.noise.batches <= roof, "proposition 1 (b)"
    by_name = {fact.name: fact for fact in found.facts}
    assert by_name["zeta*^2"].note.endswith("true")
    assert by_name["bound of the mean of f_i(x_t^i) - l_i*"].value > 4 * found.gap
    (promised,) = said(found, "thm:fedsps_local_convex (a)")
    assert promised.startswith(
        "thm:fedsps_local_convex (a) applies: mean over t < T and i of E[f_i(x_t^i) - l_i*] ends"
    )


def said(found, start):
    """The sentences of the advice that begin so."""
    return [sentence for sentence in found.advice if sentence.startswith(start)]


def notes(found):
    return {fact.name: fact.note for fact in found.facts}


@pytest.mark.parametrize(
    ("cap", "words"),
    [
        (1e-4, "your cap binds in 100 % of the steps: this is FedAvg with stepsize 0.0001"),
        (1e6, "your cap binds in 0 % of the steps: the stepsizes are the clients' own"),
    ],
)
def test_the_cap_in_words(cap, words):
    found = fedsps.analyse(LogisticRegression(4, 3), make_clients(), algorithm=FedSPS(cap=cap))
    assert any(sentence.startswith(words) for sentence in found.advice)
    assert any("it binds at every step" in sentence for sentence in found.advice) == (cap == 1e-4)


def test_share_of_capped_steps_is_counted_step_by_step():
    data = ClientData.of(make_clients(sizes=(6, 6, 6)))
    plan = Plan(rounds=7, local_steps=3, batch_size=2)
    algorithm = FedSPS(cap=0.5)
    steps = follow(network_of(LogisticRegression(4, 3).double()), data, algorithm, plan).stepsizes
    model = LogisticRegression(4, 3).double()
    found = fedsps.analyse(model, data, algorithm=algorithm, trial_rounds=7, **vars(plan))
    assert 0 < found.capped < 1
    assert found.capped == (steps == 0.5).mean()


def test_analysis_of_other_algorithms_models_and_of_what_was_trained():
    clients = make_clients()
    found = fedsps.analyse(LogisticRegression(4, 3), clients, algorithm=fedsps.FedAvg())
    assert np.isnan(found.capped)
    assert "the algorithm has no fixed cap that could bind" in found.advice
    assert found.theorems == OF_FEDAVG
    network = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    trained = fedsps.train(network, clients, rounds=3).model
    found = fedsps.analyse(network, clients, trained=trained, trial_rounds=2)
    assert found.optimum is None
    assert (found.model, found.where) == ("Sequential", "the trained model")
    assert found.last_loss < found.first_loss
    assert 0 <= found.capped_at_end <= 1
    assert found.curvature.smoothness_is == "estimate"
    assert any("not known to be convex" in sentence for sentence in found.advice)


@pytest.mark.parametrize(
    ("algorithm", "cap", "theorems"),
    [
        (FedSPS(cap=3.0), 3.0, OF_FEDSPS),
        (FedSPS().with_parts(output=PolynomialAverage()), 1.0, OF_FEDSPS),
        (fedsps.FedAvg(), None, OF_FEDAVG),
        (FedSPS(smoothing="paper"), None, ()),
        (FedSPS(server_stepsize=2.0), 1.0, ()),
        (fedsps.FedSPSNormalized(cap=3.0), 3.0, ()),
        (fedsps.FedSPSGlobal(cap=3.0), 3.0, ()),
        (fedsps.FedDecSPS(), None, ()),
        (fedsps.FedAdam(), None, ()),
    ],
)
def test_theorems_are_said_of_the_algorithms_that_they_are_about(algorithm, cap, theorems):
    assert fixed_cap(algorithm.stepsize) == cap
    assert theorems_about(algorithm) == theorems


def test_analysis_of_variants_of_fedsps():
    for algorithm in (fedsps.FedSPSGlobal(cap=1e-4), fedsps.FedSPSNormalized(cap=1e-4)):
        found = fedsps.analyse(LogisticRegression(4, 3), make_clients(), algorithm=algorithm, trial_rounds=3)
        assert found.capped == 1
        assert said(found, "your cap binds in 100 % of the steps: this is FedAvg with stepsize 0.0001")
        assert found.constants is None
        assert said(found, "the paper's theorems are about FedSPS with a fixed cap, and about FedAvg")
        assert not said(found, "thm:")


def test_fedavg_has_the_theorems_for_small_stepsizes():
    found = fedsps.analyse(LogisticRegression(4, 3), make_clients(), algorithm=fedsps.FedAvg(client_stepsize=1e-4))
    (promised,) = said(found, "thm:")
    assert promised.startswith("thm:fedsps_local_convex_small (a), with the stepsize as the cap, applies: mean over")
    same = fedsps.analyse(LogisticRegression(4, 3), make_clients(), algorithm=FedSPS(cap=1e-4))
    assert found.constants == same.constants, "FedSPS with that cap is FedAvg"
    network = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    (promised,) = said(fedsps.analyse(network, make_clients(), algorithm=fedsps.FedAvg(), trial_rounds=1), "thm:")
    assert promised.startswith("thm:non-convex, with the stepsize as the cap, ")
    assert promised.endswith("it gives no number")


def test_least_squares_have_the_strongly_convex_bounds():
    random = np.random.default_rng(0)
    clients = [(random.normal(size=(9, 2)), random.normal(size=(9, 1))) for _ in range(3)]

    def analysed(**parameters):
        model = nn.Linear(2, 1).double()
        return fedsps.analyse(model, clients, loss=F.mse_loss, batch_size=None, algorithm=FedSPS(**parameters))

    found = analysed(scale=100.0)
    assert [sentence.split(" ", 2)[0:2] for sentence in said(found, "thm:")] == [
        ["thm:fedsps_local_convex", "(a)"],
        ["thm:fedsps_local_convex", "(b)"],
        ["thm:fedsps_local_convex_small", "(a)"],
        ["thm:fedsps_local_convex_small", "(b)"],
    ]
    bound = {fact.name: fact.value for fact in found.facts}["bound of the squared distance to x*"]
    assert bound == STRONGLY_CONVEX.bound(found.constants, found.iterations)
    assert len(said(analysed(scale=0.5, cap=1e-4), "thm:fedsps_local_convex_small (b) applies:")) == 1


def test_a_bound_above_the_start_says_nothing():
    data = gaussian_clients(samples=20)
    found = fedsps.analyse(LogisticRegression(2, 3), data.pairs(), batch_size=4, algorithm=FedSPS(scale=60.0))
    (promised,) = said(found, "thm:fedsps_local_convex (a)")
    assert promised.endswith(f"which says nothing: it is {found.first_loss:.3g} at the start")
    assert notes(found)["bound of the mean of f_i(x_t^i) - l_i*"].endswith("at the start")
    small = fedsps.analyse(LogisticRegression(2, 3), data.pairs(), batch_size=4, algorithm=FedSPS(cap=1e-6))
    (promised,) = said(small, "thm:fedsps_local_convex_small (a)")
    assert "says nothing" not in promised


def test_advice_on_the_cap_does_not_contradict_itself():
    data = gaussian_clients(samples=20)
    found = fedsps.analyse(LogisticRegression(2, 3), data.pairs(), batch_size=4, algorithm=FedSPS(cap=1e-3))
    (minimum_said,) = said(found, "no model fits all clients")
    assert "neighbourhood of x*, the smaller the smaller the cap" in minimum_said
    assert f"at most 1/(2 c L) = {1 / found.curvature.smoothness:.3g} (c = 0.5)" in minimum_said, "of FedDecSPS"
    assert "vanish" not in minimum_said
    (cap_said,) = said(found, "your cap binds")
    assert cap_said.endswith("A larger cap lets the stepsizes adapt, and makes that neighbourhood larger")


def test_separable_data_and_the_theorems():
    apart = [(np.array([[1.0, 0.0], [-1.0, 0.0]], dtype=np.float32), np.array([1, 0]))] * 2
    found = fedsps.analyse(LogisticRegression(2, 2), apart, loss=F.binary_cross_entropy_with_logits, batch_size=None)
    assert found.optimum.x is None
    for sentence in said(found, "thm:"):
        assert sentence.endswith("goes to 0 (its proof with any other point in place of x*, since there is none)")
    assert said(found, "your cap binds")[0].endswith("adapt") or "adapt" not in said(found, "your cap binds")[0]


def test_any_cap_is_said_to_do_only_where_the_scale_makes_every_step_safe():
    """With scale 0.1 a step on a parabola goes five times as far as the minimum is."""
    random = np.random.default_rng(0)
    inputs = random.normal(size=(3, 30, 5))
    weights = random.normal(size=5)
    clients = [(torch.from_numpy(own), torch.from_numpy(own @ weights)) for own in inputs]
    model = nn.Linear(5, 1, bias=False).double()
    settings = {"loss": "squared", "batch_size": 1, "local_steps": 5}
    for scale, cap, is_safe in ((0.5, 1000.0, True), (0.1, 1000.0, False), (0.1, 1e-3, True)):
        algorithm = FedSPS(scale=scale, cap=cap)
        (sentence,) = said(fedsps.analyse(model, clients, algorithm=algorithm, **settings), "one model fits all")
        assert sentence.endswith("with any cap") == is_safe
        assert ("scale is 0.5 or more: with 0.1 steps overshoot" in sentence) != is_safe
        result = fedsps.train(model, clients, algorithm=algorithm, rounds=30, **settings)
        assert is_safe == (result.diverged_at is None and result.history["train_loss"].iloc[-1] < 10)


def test_what_is_not_exact_is_not_called_so():
    data = gaussian_clients(samples=20)
    found = fedsps.analyse(LogisticRegression(2, 3), data.pairs(), batch_size=4, iterations=1)
    assert not found.optimum.is_exact
    assert found.where == "the best point found"
    known = notes(found)
    assert known["sigma_f^2"].startswith("at most: ")
    assert known["zeta^2"] == known["sigma^2"] == "at the best point found"
    assert said(found, "no model was found that fits all clients: sigma_f^2 is at most")
    assert not any(name.startswith("bound") for name in known)
    network = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 3))
    found = fedsps.analyse(network, data.pairs(), trial_rounds=1)
    assert notes(found)["L"] == "estimate, of one batch each of 3 clients, at the start"


# Lower bounds that are none


def test_a_lower_bound_above_what_a_batch_comes_down_to():
    """Batches of four can be fitted, so no l* above 0 is one; of all data at once f_i* is."""
    data = gaussian_clients(samples=20)

    def analysed(batch, lower):
        algorithm = FedSPS(lower=lower, cap=1e-3)
        return fedsps.analyse(
            LogisticRegression(2, 3), data.pairs(), batch_size=batch, algorithm=algorithm, trial_rounds=1
        )

    right = analysed(4, 0.0)
    for lower in (0.01, (0.0, 0.01, 0.0)):
        found = analysed(4, lower)
        client = "0" if lower == 0.01 else "1"
        assert found.too_high == (client, 0.01, 0.0)
        assert said(found, f"lower = 0.01 is no lower bound: the loss of a batch of client {client} comes down to 0.")
        assert np.isnan(found.gap)
        assert not {"sigma_f^2", "bound of the mean of f - f*"} & notes(found).keys()
        assert {"sigma_f^2", "bound of the mean of f - f*"} <= notes(right).keys()
        assert "at x*" in notes(found)["zeta*^2"]
        assert not said(found, "thm:")
        assert not said(found, "one model fits")
        assert not said(found, "the cap is at most")
        assert said(right, "the cap is at most")
    module = LogisticRegression(2, 3)
    best = [
        minimum(objective_of(module, ClientData.of([pair])), linear_form(module, F.cross_entropy)).value
        for pair in data.pairs()
    ]
    assert analysed(None, tuple(0.999 * value for value in best)).too_high is None
    found = analysed(None, (0.999 * best[0], 1.001 * best[1], 0.0))
    assert found.too_high == ("1", pytest.approx(1.001 * best[1]), pytest.approx(best[1]))


def test_the_batch_that_is_looked_at_is_the_one_that_fits_best():
    """At x* = 3.5 the samples 5 and 0 have the smallest errors; their own best is 2.5, with 6.25 each."""
    client = (np.ones((4, 1)), np.array([[0.0], [0.0], [9.0], [5.0]]))

    def analysed(lower):
        model = nn.Linear(1, 1, bias=False).double()
        return fedsps.analyse(model, [client], loss=F.mse_loss, batch_size=2, algorithm=FedSPS(lower=lower))

    assert analysed(6.3).too_high == ("0", 6.3, pytest.approx(6.25))
    assert analysed(6.2).too_high is None


def test_a_lower_bound_of_other_models_is_held_against_the_losses_at_hand():
    clients = make_clients()
    network = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    assert fedsps.analyse(network, clients, algorithm=FedSPS(lower=0.01), trial_rounds=1).too_high is None
    found = fedsps.analyse(network, clients, algorithm=FedSPS(lower=20.0), trial_rounds=1)
    assert found.too_high.lower == 20
    assert not said(found, "thm:")


def test_analyse_refuses():
    with pytest.raises(ConfigurationError, match="model must be"):
        fedsps.analyse("logistic", make_clients())
    with pytest.raises(ConfigurationError, match="algorithm must be"):
        fedsps.analyse(nn.Linear(4, 3), make_clients(), algorithm="fedsps")
    with pytest.raises(ConfigurationError, match="trial_rounds"):
        fedsps.analyse(nn.Linear(4, 3), make_clients(), trial_rounds=0)
    with pytest.raises(ConfigurationError, match="did you mean rounds"):
        fedsps.analyse(nn.Linear(4, 3), make_clients(), round=3)


def test_bounds_are_cited_by_label():
    labels = [theorem.label for theorem in bounds.THEOREMS]
    assert len(set(labels)) == len(labels)
    assert all("thm:" in label for label in labels)


def test_analysis_as_json_has_no_nan():
    found = fedsps.analyse(LogisticRegression(4, 3), make_clients(), trial_rounds=1)
    json.dumps([fact._asdict() for fact in found.facts], allow_nan=False)
