"""Who holds which samples: the training rows split over clients.

Every kind of split is a function of the targets, the number of clients and a seed. No row goes to two
clients; rows that an equal split leaves over are dropped and counted.

| kind | clients have | sizes |
| --- | --- | --- |
| `iid` | all classes alike | equal |
| `two-class` | two classes, half of each | equal |
| `shards` | about as many classes as shards | equal |
| `dirichlet` | all classes in random proportions | differ |
| `natural` | whatever the data says | differ |
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsps import checks
from fedsps.core.streams import Indices, generator
from fedsps.errors import ConfigurationError, DataError, unknown

SWAPS_PER_SHARD = 20


@dataclass(frozen=True, eq=False)
class Partition:
    """The rows of each client, ascending, and how many rows no client has.

    Attributes:
        rows: one array of row numbers a client; no row is in two of them.
        dropped: rows that are in none, since equal shares left them over.
    """

    rows: tuple[Indices, ...]
    dropped: int


def iid(targets: npt.ArrayLike, clients: int, seed: int) -> Partition:
    """Shuffle and deal equally; at most `clients - 1` rows are left over and dropped.

    >>> split = iid(np.zeros(7), clients=3, seed=0)
    >>> [len(rows) for rows in split.rows], split.dropped
    ([2, 2, 2], 1)
    """
    total = len(np.asarray(targets))
    size = _share(total, clients, clients)
    order = generator(seed, "iid partition").permutation(total)
    return _partition(order[: clients * size].reshape(clients, size), total)


def two_class(targets: npt.ArrayLike, clients: int, seed: int) -> Partition:
    """The paper's non-i.i.d. split: every client has two different classes, equally many samples of each.

    2N shards of equal size are cut from the K classes, 2N/K each; where K does not divide 2N the largest
    classes give one more. The pairing begins from one that is valid (shards in class order, client i has
    shards i and i + N: a class has at most N shards) and is shuffled by random swaps that keep it valid, so
    it always ends.

    Raises:
        DataError: fewer than two classes, or a class with fewer samples than the shards it must give.

    >>> targets = np.repeat([0, 1, 2], 8)
    >>> [np.bincount(targets[rows], minlength=3).tolist() for rows in two_class(targets, 3, seed=1).rows]
    [[0, 4, 4], [4, 0, 4], [4, 4, 0]]
    """
    labels, counts = _classes(targets)
    checks.count("clients", clients)
    if len(labels) < 2:
        raise DataError(f"two-class needs at least two classes; the targets hold {len(labels)}: use iid")
    random = generator(seed, "two-class partition")
    order = random.permutation(len(labels))
    order = order[np.argsort(-counts[order], kind="stable")]  # the largest first, equal ones at random
    number = np.full(len(labels), 2 * clients // len(labels))
    number[order[: 2 * clients % len(labels)]] += 1
    size = int(min(counts[number > 0] // number[number > 0]))
    if size == 0:
        worst = np.argmax(number > counts)
        raise DataError(
            f"two-class over {clients} clients needs {number[worst]} samples of class {labels[worst]}; "
            f"there are {counts[worst]}: use fewer clients"
        )

    order = random.permutation(order)
    owed = np.repeat(order, number[order]).tolist()  # [2N]  the class of each shard
    for p, q in random.integers(2 * clients, size=(SWAPS_PER_SHARD * 2 * clients, 2)).tolist():
        if owed[p] != owed[q - clients] and owed[q] != owed[p - clients]:
            owed[p], owed[q] = owed[q], owed[p]

    held = np.empty((2 * clients, size), dtype=np.int64)
    for label in range(len(labels)):
        rows = random.permutation(np.flatnonzero(np.asarray(targets) == labels[label]))
        held[np.array(owed) == label] = rows[: number[label] * size].reshape(-1, size)
    return _partition(np.hstack([held[:clients], held[clients:]]), int(counts.sum()))


def shards(targets: npt.ArrayLike, clients: int, seed: int, shards_per_client: int = 2) -> Partition:
    """Sort by label, cut into equal shards, deal `shards_per_client` to each at random: few classes each.

    A shard may cross from one class to the next. The order within a class is random.

    References:
        McMahan, Moore, Ramage, Hampson, Aguera y Arcas: Communication-Efficient Learning of Deep Networks from
        Decentralized Data, AISTATS 2017.

    >>> targets = np.repeat([0, 1, 2, 3], 5)
    >>> [len(np.unique(targets[rows])) for rows in shards(targets, 2, seed=0).rows]
    [2, 2]
    """
    targets = _labels(targets)
    checks.count("shards_per_client", shards_per_client)
    size = _share(len(targets), clients, clients * shards_per_client)
    random = generator(seed, "shards partition")
    order = random.permutation(len(targets))
    order = order[np.argsort(targets[order], kind="stable")]
    cut = order[: clients * shards_per_client * size].reshape(-1, size)
    return _partition(random.permutation(cut).reshape(clients, -1), len(targets))


def dirichlet(targets: npt.ArrayLike, clients: int, seed: int, alpha: float = 0.5) -> Partition:
    """Each class is split over the clients in proportions drawn from Dir(alpha); small alpha, skewed split.

    No sample is dropped. A client that would have none takes one from whoever has most: drawing again until
    all have some would not end for a small alpha.

    >>> split = dirichlet(np.repeat([0, 1], 50), clients=4, seed=0, alpha=0.1)
    >>> min(len(rows) for rows in split.rows) > 0, sum(len(rows) for rows in split.rows), split.dropped
    (True, 100, 0)
    """
    targets = _labels(targets)
    checks.positive("alpha", alpha)
    _share(len(targets), clients, clients)
    random = generator(seed, "dirichlet partition")
    held: list[list[int]] = [[] for _ in range(clients)]
    for label in np.unique(targets):
        rows = random.permutation(np.flatnonzero(targets == label))
        cumulative = np.cumsum(_dirichlet_weights(random, alpha, clients))
        cuts = np.rint(cumulative / cumulative[-1] * len(rows)).astype(np.int64)
        for mine, part in zip(held, np.split(rows, cuts[:-1]), strict=True):
            mine.extend(part.tolist())

    sizes = np.array([len(mine) for mine in held])
    for empty in np.flatnonzero(sizes == 0):
        donor = int(np.argmax(sizes))
        held[empty].append(held[donor].pop(int(random.integers(sizes[donor]))))
        sizes[empty] += 1
        sizes[donor] -= 1
    return _partition([np.array(mine) for mine in held], len(targets))


def natural(ids: npt.ArrayLike) -> Partition:
    """One client for each distinct id, in the order of the ids.

    >>> [rows.tolist() for rows in natural(["ben", "anna", "ben"]).rows]
    [[1], [0, 2]]
    """
    ids = np.asarray(ids)
    if ids.ndim != 1 or len(ids) == 0:
        raise DataError(f"client ids must be one for each sample; got an array of shape {ids.shape}")
    _, number = np.unique(ids, return_inverse=True)
    cuts = np.cumsum(np.bincount(number))[:-1]
    return _partition(np.split(np.argsort(number, kind="stable"), cuts), len(ids))


KINDS: dict[str, Callable[..., Partition]] = {
    "iid": iid,
    "two-class": two_class,
    "shards": shards,
    "dirichlet": dirichlet,
    "natural": natural,
}


def partition(
    kind: str,
    targets: npt.ArrayLike,
    clients: int,
    seed: int,
    *,
    alpha: float = 0.5,
    shards_per_client: int = 2,
    ids: npt.ArrayLike | None = None,
) -> Partition:
    """Split by the kind's name; `alpha` is for dirichlet, `shards_per_client` for shards, `ids` for natural.

    A natural partition has the clients that the data has: `clients` and `seed` say nothing there.

    Args:
        kind: "iid", "two-class", "shards", "dirichlet" or "natural".
        targets: one for each row, `[M]`; class numbers, unless the kind is "iid" or "natural".
        clients: how many.
        seed: the same seed gives the same split on every machine.
        alpha: the concentration, above 0; for a large one all clients have the same mix of classes.
        shards_per_client: about how many classes a client has.
        ids: a client id for each row, `[M]`.

    Raises:
        ConfigurationError: there is no such kind, or "natural" without ids.
        DataError: too few samples for so many clients, or targets that are no class numbers.
    """
    if kind not in KINDS:
        raise unknown("partition", kind, KINDS)
    if kind == "natural":
        if ids is None:
            others = ", ".join(other for other in KINDS if other != kind)
            raise ConfigurationError(f"partition 'natural' needs data with client ids, and this has none: use {others}")
        if len(np.asarray(ids)) != len(np.asarray(targets)):
            raise DataError(
                f"{len(np.asarray(ids))} client ids for {len(np.asarray(targets))} samples: give one for each"
            )
        return natural(ids)
    options: dict[str, dict[str, float]] = {
        "shards": {"shards_per_client": shards_per_client},
        "dirichlet": {"alpha": alpha},
    }
    return KINDS[kind](targets, clients, seed, **options.get(kind, {}))


def _partition(rows: Sequence[Indices] | Indices, total: int) -> Partition:
    """A partition of `total` rows out of each client's rows, which are sorted here."""
    taken = tuple(np.sort(mine) for mine in rows)
    return Partition(taken, total - sum(len(mine) for mine in taken))


def _share(samples: int, clients: int, parts: int) -> int:
    """The size of each of `parts` equal parts, at least 1."""
    checks.count("clients", clients)
    if samples < parts:
        raise DataError(f"{clients} clients need at least {parts} samples; there are {samples}: use fewer clients")
    return samples // parts


def _labels(targets: npt.ArrayLike) -> npt.NDArray[Any]:
    """The targets as an array of class numbers, `[M]`; a `DataError` says which kinds need none."""
    targets = np.asarray(targets)
    if targets.ndim != 1 or targets.dtype.kind not in "iub":
        raise DataError(
            f"this partition needs a class number for each sample; the targets are {targets.dtype} of shape "
            f"{targets.shape}: use iid or natural"
        )
    return targets


def _classes(targets: npt.ArrayLike) -> tuple[npt.NDArray[Any], Indices]:
    labels, counts = np.unique(_labels(targets), return_counts=True)
    return labels, counts


def _dirichlet_weights(random: np.random.Generator, alpha: float, clients: int) -> npt.NDArray[np.float64]:
    """A Dir(alpha) draw up to a factor, the largest weight being 1, for any alpha > 0.

    For small alpha Gamma(alpha) draws underflow to 0, for all clients at once, so their logarithms are drawn:
    log Gamma(alpha) = log Gamma(alpha + 1) - E / alpha with E ~ Exp(1). Taking the smallest E off all of them
    first (a common factor) leaves one exponent at 0, so that the weights are never 0 / 0.
    """
    exponents = random.standard_exponential(clients)
    with np.errstate(over="ignore"):  # infinitely below the largest: a weight of 0
        logs = np.log(random.standard_gamma(alpha + 1, clients)) - (exponents - exponents.min()) / alpha
    weights: npt.NDArray[np.float64] = np.exp(logs - logs.max())
    return weights
