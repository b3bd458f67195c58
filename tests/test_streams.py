"""Addressed randomness: reproducible, independent of grouping, and uniform up to computed standard errors."""

import itertools

import numpy as np
import pytest
import torch

from fedsps.core import streams

CLIENTS = np.arange(4)
SIZES = np.array([9, 25, 6, 100])


def test_batches_are_distinct_samples_of_each_client():
    rows = streams.batches(0, 3, CLIENTS, SIZES, 50, 6)
    assert rows.shape == (50, 4, 6)
    assert (rows >= 0).all()
    assert (rows < SIZES[:, None]).all()
    assert all(len(set(row)) == 6 for row in rows.reshape(-1, 6))


def test_a_client_draws_the_same_alone_and_among_others():
    rows = streams.batches(5, 3, CLIENTS, SIZES, 7, 5)
    for place, client in enumerate(CLIENTS):
        alone = streams.batches(5, 3, np.array([client]), SIZES[place : place + 1], 7, 5)
        assert np.array_equal(rows[:, place], alone[:, 0])


def test_addresses_decide_the_draws():
    draw = lambda seed, round: streams.batches(seed, round, CLIENTS, SIZES, 3, 5)  # noqa: E731
    assert np.array_equal(draw(1, 2), draw(1, 2))
    assert not np.array_equal(draw(1, 2), draw(2, 2))
    assert not np.array_equal(draw(1, 2), draw(1, 3))
    rows = draw(1, 2)
    assert not np.array_equal(rows[0], rows[1]), "steps are independent"


def test_the_whole_data_comes_in_order():
    assert np.array_equal(streams.batches(0, 0, np.array([3]), np.array([4]), 2, 4), np.tile(np.arange(4), (2, 1, 1)))


@pytest.mark.parametrize(("size", "batch"), [(5, 2), (6, 4), (5, 5 - 1)])
def test_every_subset_is_equally_likely(size, batch):
    """Pearson's chi-square over all subsets; its standard deviation is sqrt(2 k), and 5 of them are allowed."""
    draws = 40_000
    rows = np.sort(streams.batches(11, 0, np.array([2]), np.array([size]), draws, batch)[:, 0], axis=-1)
    subsets = list(itertools.combinations(range(size), batch))
    counts = np.array([(rows == subset).all(-1).sum() for subset in subsets])
    assert counts.sum() == draws
    expected = draws / len(subsets)
    chi_square, freedom = ((counts - expected) ** 2 / expected).sum(), len(subsets) - 1
    assert abs(chi_square - freedom) < 5 * np.sqrt(2 * freedom)


def test_consecutive_steps_are_uncorrelated():
    rows = streams.batches(3, 0, np.array([0]), np.array([1000]), 20_001, 1)[:, 0, 0]
    correlation = np.corrcoef(rows[1:], rows[:-1])[0, 1]
    assert abs(correlation) < 5 / np.sqrt(20_000)


def test_cohorts_are_ascending_distinct_and_fair():
    rounds = 5000
    cohorts = np.stack([streams.cohort(0, round, 20, 5) for round in range(rounds)])
    assert (np.diff(cohorts) > 0).all()
    counts = np.bincount(cohorts.ravel(), minlength=20)
    share = 5 / 20
    assert (abs(counts - rounds * share) < 5 * np.sqrt(rounds * share * (1 - share))).all()
    pairs = (cohorts[:-1, :, None] == cohorts[1:, None, :]).sum((1, 2)).mean()  # members of two rounds in a row
    assert abs(pairs - 5 * share) < 5 * np.sqrt(5 * share / rounds)


def test_another_seed_draws_other_cohorts():
    assert not np.array_equal(*([streams.cohort(seed, round, 20, 5) for round in range(3)] for seed in (0, 1)))


def test_everybody_takes_part_when_the_cohort_is_everybody():
    assert np.array_equal(streams.cohort(0, 9, 4, 4), np.arange(4))


def test_torch_seed_leaves_the_global_generator_as_it_was():
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    with streams.torch_seed(0, "test", 4):
        inside = torch.rand(3)
    assert torch.equal(torch.rand(3), expected)
    with streams.torch_seed(0, "test", 4):
        assert torch.equal(torch.rand(3), inside)
    with pytest.raises(RuntimeError), streams.torch_seed(0, "test"):
        raise RuntimeError


def test_draws_are_uniform_in_every_bit():
    bits = np.unpackbits(
        streams.draws(streams.keys(0, "bits", np.arange(200)), 100).view(np.uint8).reshape(-1, 8), axis=1
    )
    assert bits.shape == (20_000, 64)
    assert (abs(bits.mean(0) - 0.5) < 5 * 0.5 / np.sqrt(len(bits))).all()
