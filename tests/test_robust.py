"""Robust means: what one bad vector can do is bounded by the honest ones."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsps.core.vectors import mean
from fedsps.errors import ConfigurationError
from fedsps.rules import aggregation as robust

EQUAL = torch.full((5,), 0.2, dtype=torch.float64)


@pytest.mark.parametrize("name", ["median", "trimmed:0.2", "trimmed:0.49"])
@settings(deadline=None)
@given(seed=st.integers(0, 1000), size=st.sampled_from([1e-3, 1.0, 1e9]), place=st.integers(0, 4))
def test_stays_within_the_honest(name, seed, size, place):
    values = torch.from_numpy(np.random.default_rng(seed).normal(size=(5, 7)))
    honest = torch.cat([values[:place], values[place + 1 :]])
    values[place] *= size
    found = robust.parse_mean(name)(values, EQUAL)
    assert ((honest.min(0).values <= found) & (found <= honest.max(0).values)).all()


def test_values():
    values = torch.tensor([[0.0, 5.0], [1.0, 1.0], [2.0, 2.0], [9.0, 3.0]])
    weights = torch.full((4,), 0.25)
    assert robust.median(values, weights).tolist() == [1.5, 2.5]
    assert robust.trimmed(values, weights, 0.25).tolist() == [1.5, 2.5]
    assert robust.median(values[:3], weights[:3]).tolist() == [1.0, 2.0]
    long, short = torch.tensor([[3.0, 4.0], [0.3, 0.4]]), torch.tensor([[0.6, 0.8], [0.3, 0.4]])
    assert torch.allclose(robust.clip(long, 1.0), short)
    weights = torch.tensor([0.25, 0.75])
    assert torch.allclose(robust.clipped(long, weights, 1.0), mean(short, weights))
    assert robust.clip(torch.zeros(2, 3), 1.0).tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize("share", [1e-12, 0.01, 0.2, 0.3, 0.49])
@pytest.mark.parametrize("n", [3, 4, 5, 100])
def test_trimming_bears_one_attacker_in_any_cohort(share, n):
    values = torch.arange(float(n)).unsqueeze(1)
    values[0] = 1e6
    found = robust.trimmed(values, torch.full((n,), 1 / n), share)
    assert 1 <= found.item() <= n - 1


@pytest.mark.parametrize(("share", "n", "drop"), [(0.2, 3, 1), (0.2, 5, 1), (0.2, 6, 2), (0.29, 100, 29), (0.07, 100, 7)])  # fmt: skip
def test_how_many_are_trimmed(share, n, drop):
    values = torch.arange(float(n)).unsqueeze(1) ** 2
    assert robust.trimmed(values, torch.full((n,), 1 / n), share).item() == values[drop : n - drop].mean().item()


@pytest.mark.parametrize(("share", "n"), [(0.4, 4), (0.49, 5), (0.2, 2), (0.2, 1)])
def test_trimming_that_leaves_nothing_is_the_median(share, n):
    values, weights = torch.arange(float(n)).unsqueeze(1) ** 2, torch.full((n,), 1 / n)
    assert robust.trimmed(values, weights, share).equal(robust.median(values, weights))


def test_mean_is_the_mean():
    assert robust.parse_mean("mean") is mean


@pytest.mark.parametrize("text", ["", "trimmed", "trimmed:0", "trimmed:0.5", "clipped:x", "clipped:-1", "krum"])
def test_bad_names_are_refused(text):
    with pytest.raises(ConfigurationError):
        robust.parse_mean(text)
