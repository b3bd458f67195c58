"""Splits over clients: laws that hold for every kind, and each kind's own promise."""

import os
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsps.data import sources
from fedsps.data.load import idx
from fedsps.data.partition import KINDS, Partition, dirichlet, iid, natural, partition, shards, two_class
from fedsps.errors import ConfigurationError, DataError

Labels = npt.NDArray[np.int64]
seeds = st.integers(0, 2**63)
labels = st.lists(st.integers(0, 4), min_size=1, max_size=80).map(np.array)


def check(split: Partition, samples: int, clients: int) -> None:
    """What every partition promises."""
    assert len(split.rows) == clients
    rows = np.concatenate(split.rows)
    assert rows.dtype == np.int64
    assert len(set(rows.tolist())) == len(rows) == samples - split.dropped
    assert set(rows.tolist()) <= set(range(samples))
    assert all(len(mine) > 0 and (np.diff(mine) > 0).all() for mine in split.rows)


def balanced(classes: int, each: int) -> Labels:
    return np.tile(np.arange(classes), each)


@given(labels, st.integers(1, 90), seeds)
def test_iid_is_equal_and_drops_less_than_one_each(targets: Labels, clients: int, seed: int) -> None:
    if clients > len(targets):
        with pytest.raises(DataError, match=rf"at least {clients} samples; there are {len(targets)}: use fewer"):
            iid(targets, clients, seed)
        return
    split = iid(targets, clients, seed)
    check(split, len(targets), clients)
    assert {len(mine) for mine in split.rows} == {len(targets) // clients}
    assert split.dropped == len(targets) % clients


@given(st.lists(st.integers(1, 40), min_size=2, max_size=6), st.integers(1, 30), seeds)
def test_two_class_gives_exactly_two_classes_equally(counts: list[int], clients: int, seed: int) -> None:
    targets = np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)) * 3, counts))
    try:
        split = two_class(targets, clients, seed)
    except DataError as error:
        assert "use fewer clients" in str(error)
        most = -(-2 * clients // len(counts))
        assert min(counts) < most
        return
    check(split, len(targets), clients)
    (size,) = {len(mine) // 2 for mine in split.rows}
    for mine in split.rows:
        assert np.unique(targets[mine], return_counts=True)[1].tolist() == [size, size]
    given_away = np.unique(targets[np.concatenate(split.rows)], return_counts=True)[1] // size
    assert given_away.max() - given_away.min() <= 1
    assert given_away.max() <= -(-2 * clients // len(counts))


def test_two_class_by_hand() -> None:
    split = two_class([0] * 7 + [1] * 5, 2, seed=0)  # 2 shards a class, of min(7 // 2, 5 // 2) = 2
    assert split.dropped == 12 - 4 * 2
    assert all((mine < 7).sum() == 2 and (mine >= 7).sum() == 2 for mine in split.rows)


def test_two_class_takes_the_extra_shards_from_the_largest_classes() -> None:
    targets = np.repeat([0, 1, 2], [10, 30, 20])  # 4 shards: one each and one more, which class 1 can best spare
    for seed in range(10):
        split = two_class(targets, 2, seed)
        assert split.dropped == 60 - 4 * 10
        assert np.bincount(targets[np.concatenate(split.rows)]).tolist() == [10, 20, 10]


def test_two_class_with_fewer_clients_than_classes_uses_some_of_them() -> None:
    split = two_class(balanced(10, 4), 1, seed=0)
    check(split, 40, 1)
    assert len(split.rows[0]) == 8


def test_two_class_mixes_all_pairs_of_classes() -> None:
    """A pairing that kept its starting order would meet 5 or so of the 45 pairs."""
    targets = balanced(10, 20)
    split = two_class(targets, 100, seed=1)
    pairs = {tuple(np.unique(targets[mine])) for mine in split.rows}
    assert len(pairs) > 30
    firsts = [int(targets[mine].min()) for mine in split.rows]
    assert firsts != sorted(firsts)


def test_two_class_says_what_it_lacks() -> None:
    with pytest.raises(DataError, match="at least two classes; the targets hold 1: use iid"):
        two_class([1, 1, 1], 1, 0)
    with pytest.raises(DataError, match="over 3 clients needs 3 samples of class 7; there are 2: use fewer"):
        two_class([5, 5, 5, 7, 7], 3, 0)


@given(labels, st.integers(1, 12), st.integers(1, 4), seeds)
def test_shards_have_few_labels(targets: Labels, clients: int, each: int, seed: int) -> None:
    if clients * each > len(targets):
        with pytest.raises(DataError, match="use fewer clients"):
            shards(targets, clients, seed, each)
        return
    split = shards(targets, clients, seed, each)
    check(split, len(targets), clients)
    size = len(targets) // (clients * each)
    assert {len(mine) for mine in split.rows} == {each * size}
    assert split.dropped == len(targets) - clients * each * size
    borders = len(np.unique(targets)) - 1  # of the sorted labels; each is within one shard at most
    assert sum(len(np.unique(targets[mine])) for mine in split.rows) <= clients * each + borders


def test_shards_are_cut_from_the_sorted_labels() -> None:
    targets = np.random.default_rng(0).permutation(balanced(10, 60))
    split = shards(targets, 100, seed=0)  # 200 shards of 3, 20 a class, none across a border
    for mine in split.rows:
        assert set(np.unique(targets[mine], return_counts=True)[1].tolist()) <= {3, 6}
    assert any(len(np.unique(targets[mine])) == 1 for mine in split.rows), "dealt at random, some get a class twice"


alphas = st.one_of(st.floats(1e-300, 1e300), st.floats(0.01, 100), st.sampled_from([5e-324, 1e-300, 1e300, 1.7e308]))


@given(labels, st.integers(1, 90), seeds, alphas)
def test_dirichlet_always_ends_and_uses_everything(targets: Labels, clients: int, seed: int, alpha: float) -> None:
    if clients > len(targets):
        with pytest.raises(DataError, match="use fewer clients"):
            dirichlet(targets, clients, seed, alpha)
        return
    split = dirichlet(targets, clients, seed, alpha)
    check(split, len(targets), clients)
    assert split.dropped == 0


def test_dirichlet_at_its_two_ends() -> None:
    targets = balanced(5, 400)
    even = dirichlet(targets, 20, 0, alpha=1e300)
    assert all(np.bincount(targets[mine]).tolist() == [20] * 5 for mine in even.rows)
    skewed = dirichlet(targets, 20, 0, alpha=1e-300)
    sizes = sorted(len(mine) for mine in skewed.rows)
    assert sizes[:15] == [1] * 15, "5 classes have at most 5 owners; the others were given one sample each"
    assert sum(sizes[15:]) == 2000 - 15


@pytest.mark.parametrize("seed", range(5))
def test_dirichlet_takes_for_the_empty_ones_from_whoever_has_most_by_then(seed: int) -> None:
    split = dirichlet(balanced(2, 10), 20, seed, alpha=1e-300)  # 18 empty clients, as many samples as clients
    assert [len(mine) for mine in split.rows] == [1] * 20


@pytest.mark.parametrize("alpha", [0.1, 1.0, 10.0])
def test_dirichlet_proportions_have_the_right_variance(alpha: float) -> None:
    """Var p = (1/n)(1 - 1/n) / (n alpha + 1) for a symmetric Dirichlet over n."""
    clients, classes, each = 5, 2000, 1000
    targets = np.repeat(np.arange(classes), each)
    split = dirichlet(targets, clients, seed=0, alpha=alpha)
    shares = np.array([np.bincount(targets[mine], minlength=classes) for mine in split.rows]) / each
    expected = (1 / clients) * (1 - 1 / clients) / (clients * alpha + 1)
    squares = (shares - 1 / clients) ** 2
    error = squares.mean(0).std() / np.sqrt(classes)
    assert abs(squares.mean() - expected) < 5 * error


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan"), float("inf")])
def test_dirichlet_refuses_an_alpha_that_is_none(alpha: float) -> None:
    with pytest.raises(ConfigurationError, match="alpha must be a finite number above 0"):
        dirichlet([0, 1], 2, 0, alpha)


def test_natural_has_one_client_for_each_id_in_order() -> None:
    split = natural(["b", "a", "c", "a", "b", "a"])
    assert [mine.tolist() for mine in split.rows] == [[1, 3, 5], [0, 4], [2]]
    assert split.dropped == 0
    with pytest.raises(DataError, match=r"got an array of shape \(0,\)"):
        natural([])


RANDOM = sorted(set(KINDS) - {"natural"})


@pytest.mark.parametrize("kind", RANDOM)
def test_the_seed_decides(kind: str) -> None:
    targets = balanced(10, 50)
    splits = [partition(kind, targets, 10, seed) for seed in (0, 1, 2, 0)]
    flat = [[mine.tolist() for mine in split.rows] for split in splits]
    assert flat[0] == flat[3]
    assert all(one != other for one, other in pairwise(flat))


@pytest.mark.parametrize("kind", RANDOM)
@pytest.mark.parametrize("clients", [0, -1, 2.5])
def test_the_number_of_clients_is_checked(kind: str, clients: int) -> None:
    with pytest.raises(ConfigurationError, match=f"clients must be a whole number of at least 1; got {clients}"):
        partition(kind, balanced(10, 50), clients, 0)


@pytest.mark.parametrize("kind", ["two-class", "shards", "dirichlet"])
def test_numbers_to_regress_are_no_classes(kind: str) -> None:
    with pytest.raises(DataError, match=r"float64 of shape .*: use iid or natural"):
        partition(kind, [0.5, 1.5, 2.5, 3.5], 2, 0)
    assert len(partition("iid", [0.5, 1.5, 2.5, 3.5], 2, 0).rows) == 2


def test_partition_passes_each_kind_its_own_options() -> None:
    targets = balanced(10, 50)
    same = [
        (partition("iid", targets, 5, 1), iid(targets, 5, 1)),
        (partition("two-class", targets, 5, 1), two_class(targets, 5, 1)),
        (partition("shards", targets, 5, 1, shards_per_client=3), shards(targets, 5, 1, 3)),
        (partition("dirichlet", targets, 5, 1, alpha=7.0), dirichlet(targets, 5, 1, 7.0)),
        (partition("natural", targets, 5, 1, ids=targets % 3), natural(targets % 3)),
    ]
    for one, other in same:
        assert [mine.tolist() for mine in one.rows] == [mine.tolist() for mine in other.rows]
        assert one.dropped == other.dropped


def test_partition_refuses_what_it_cannot_do() -> None:
    with pytest.raises(ConfigurationError, match="unknown partition 'dirichelt': did you mean dirichlet"):
        partition("dirichelt", [0, 1], 1, 0)
    with pytest.raises(ConfigurationError, match=r"'natural' needs data with client ids.*: use iid, two-class"):
        partition("natural", [0, 1], 1, 0)
    with pytest.raises(DataError, match="3 client ids for 2 samples"):
        partition("natural", [0, 1], 1, 0, ids=[1, 2, 3])
    with pytest.raises(ConfigurationError, match="shards_per_client must be"):
        partition("shards", [0, 1], 1, 0, shards_per_client=0)


@settings(max_examples=5)
@given(seeds)
def test_real_mnist_over_100_clients(seed: int) -> None:
    """The paper's setting: 20 shards a class, of 271 since the smallest class has 5421 samples."""
    if not os.environ.get("FEDSPS_DATA") or sources.status("mnist")[1].where != "FEDSPS_DATA":
        pytest.skip("no MNIST in FEDSPS_DATA")
    targets = idx(sources.read(sources.files("mnist")[1]), 1).astype(np.int64)
    split = two_class(targets, 100, seed)
    check(split, 60_000, 100)
    assert split.dropped == 60_000 - 200 * 271 == 5_800
    for mine in split.rows:
        assert np.unique(targets[mine], return_counts=True)[1].tolist() == [271, 271]
    assert np.bincount(targets[np.concatenate(split.rows)]).tolist() == [20 * 271] * 10
