"""Is a difference between two algorithms more than chance? Paired tests over seeds, corrected for their number.

Two algorithms with the same seed see the same split, batches and start, so their runs go in pairs, and what is tested
is the differences of the pairs. Each algorithm is tested against the best one; the more tests, the likelier that one of
them is passed by chance, which Holm's correction makes up for.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

Test = Literal["t", "wilcoxon"]
LEVEL = 0.05
"""Below this p-value a difference counts as more than chance."""


def against_best(values: Mapping[str, Sequence[float]], best: str, test: Test = "t") -> dict[str, float]:
    """Each algorithm's p-value against the best one, after Holm's correction; NaN where there is nothing to test.

    That is the best itself, fewer than two seeds, seeds that do not go in pairs, and runs that diverged.

    Args:
        values: of each algorithm, one for each seed, in the order of the seeds.
        best: which one the others are tested against.
        test: Student's t-test of the differences, or Wilcoxon's signed-rank test, which assumes less of them but cannot
            give less than 0.0625 for five seeds, and 0.031 for six, times the number of tests; see `least`.

    >>> values = {"a": [1.0, 1.1, 1.2], "b": [1.5, 1.7, 1.6], "c": [1.2, 1.0, 1.3]}
    >>> {name: round(p, 4) for name, p in against_best(values, "a").items()}
    {'a': nan, 'b': 0.0261, 'c': 0.5286}
    """
    return holm({name: np.nan if name == best else paired(own, values[best], test) for name, own in values.items()})


def paired(one: Sequence[float], other: Sequence[float], test: Test = "t") -> float:
    """The two-sided p-value of the differences of pairs.

    >>> round(paired([1, 2, 3, 4], [2, 4, 4, 6]), 4)
    0.0138
    >>> paired([1, 2], [1, 2]), paired([1], [2]), paired([1.1, 1.2, 1.3], [1.0, 1.1, 1.2])
    (1.0, nan, 0.0)
    """
    if len(one) != len(other) or len(one) < 2:
        return np.nan
    with np.errstate(invalid="ignore"):
        differences = np.subtract(one, other, dtype=float)
    if not np.isfinite(differences).all():
        return np.nan
    if not differences.any():
        return 1.0
    from scipy import stats  # slow to import

    if test == "wilcoxon":
        return float(stats.wilcoxon(differences).pvalue)
    if np.ptp(differences) <= 1e-12 * np.abs(differences).max():
        return 0.0  # the same in all pairs, up to rounding, of which scipy would warn
    return float(stats.ttest_1samp(differences, 0).pvalue)


def least(seeds: int, tests: int) -> float:
    """The least p-value that Wilcoxon's test can give, after Holm's correction: all differences have the same sign.

    >>> least(5, 1), least(6, 1), least(6, 2), least(9, 7)
    (0.0625, 0.03125, 0.0625, 0.02734375)
    """
    return min(1.0, tests * 2.0 ** (1 - seeds))


def holm(values: Mapping[str, float]) -> dict[str, float]:
    """Holm's step-down correction: the smallest of m p-values times m, the next one times m - 1, ..., never falling.

    >>> holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": np.nan})
    {'a': 0.03, 'b': 0.06, 'c': 0.06, 'd': nan}

    References:
        Holm: A simple sequentially rejective multiple test procedure, Scandinavian Journal of Statistics, 1979.
    """
    order = sorted((name for name, value in values.items() if not np.isnan(value)), key=lambda name: values[name])
    corrected = dict(values)
    least = 0.0
    for place, name in enumerate(order):
        least = max(least, min(1.0, (len(order) - place) * values[name]))
        corrected[name] = least
    return corrected
