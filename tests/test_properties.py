"""The paper's lemmas on random inputs."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fedsps.core.contract import Seen
from fedsps.core.vectors import norm_sq
from fedsps.rules.polyak import SPS, DecSPS

positive = st.floats(1e-3, 1e3)
# the lemmas are on real numbers: squares below 1e-308 are not
numbers = st.floats(-1e3, 1e3).map(lambda value: 0.0 if abs(value) < 1e-140 else value)
vectors = arrays.arrays("float64", st.integers(1, 6), elements=numbers)


def one_step(rule, loss, gradient, iteration=0):
    gradient = torch.from_numpy(gradient)
    point = torch.zeros_like(gradient)
    seen = Seen(
        x=point, start=point, loss=torch.tensor(loss, dtype=torch.float64), gradient=gradient, step=0, steps=1,
        iteration=iteration, fraction=torch.tensor(0.5, dtype=torch.float64), client=torch.tensor(0), received={},
        probe=lambda x: (x.sum(), x),
    )  # fmt: skip
    gamma, state = rule(rule.begin(rule.client_init(point), point), seen)
    return gamma.item(), state, norm_sq(gradient).item()


@given(scale=positive, cap=positive, smooth=positive, point=vectors)
def test_stepsize_bounds(scale, cap, smooth, point):
    """Lemma (stepsize bounds): alpha <= gamma <= cap with alpha = min(1 / (2 c L), cap), on F = L/2 ||x||^2."""
    gamma, _, _ = one_step(SPS(scale, cap), smooth / 2 * float(point @ point), smooth * point)
    alpha = min(1 / (2 * scale * smooth), cap)
    assert alpha * (1 - 1e-12) <= gamma <= cap


@given(scale=positive, cap=positive, gap=st.floats(0, 1e6), lower=st.floats(-1e3, 1e3), gradient=vectors)
def test_fundamental_inequality(scale, cap, gap, lower, gradient):
    """||gamma g||^2 <= gamma / c (F - l*), for a gradient that is not zero."""
    loss = lower + gap
    gamma, _, size = one_step(SPS(scale, cap, lower), loss, gradient)
    assert 0 <= gamma <= cap
    if size > 0:
        assert gamma**2 * size <= gamma / scale * (loss - lower) * (1 + 1e-9) + 1e-300


@given(scale=positive, cap=positive, ratios=st.lists(st.floats(1e-6, 1e6), min_size=2, max_size=8))
def test_decsps_never_increases(scale, cap, ratios):
    """gamma_t <= gamma_{t-1}, and gamma_t <= ratio_t / c_t."""
    rule = DecSPS(scale, cap)
    unit = torch.ones(1, dtype=torch.float64)
    state = rule.begin(rule.client_init(unit), unit)
    before = cap
    for t, ratio in enumerate(ratios):
        seen = Seen(
            x=unit, start=unit, loss=torch.tensor(ratio, dtype=torch.float64), gradient=unit, step=0, steps=1,
            iteration=t, fraction=unit[0], client=torch.tensor(0), received={}, probe=lambda x: (x.sum(), x),
        )  # fmt: skip
        gamma, state = rule(state, seen)
        assert 0 < gamma.item() <= before * (1 + 1e-12)
        assert gamma.item() <= ratio / (scale * (t + 1) ** 0.5) * (1 + 1e-12)
        before = gamma.item()


@given(scale=positive, cap=positive, loss=st.floats(allow_nan=False, allow_infinity=False, width=32), gradient=vectors)
def test_no_finite_input_gives_nan(scale, cap, loss, gradient):
    for rule in (
        SPS(scale, cap),
        SPS(scale, cap, smoothing="paper"),
        SPS(scale, cap, smoothing="loizou"),
        DecSPS(scale, cap),
    ):
        gamma, state, _ = one_step(rule, loss, gradient)
        assert 0 <= gamma < float("inf")
        assert not any(value.isnan().any() for value in state.values())
