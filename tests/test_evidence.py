"""The rule that makes verdicts: intervals against closed forms, and what is decided by them, on numbers by hand."""

import numpy as np
import pytest

from fedsps.paper.evidence import Evidence

RANDOM = np.random.default_rng(0)


def evidence(*effect, low=-np.inf, high=np.inf, kind="ratio"):
    return Evidence(np.array(effect, float), low, high, kind)


def test_the_interval_is_student_s():
    """t of 2 degrees of freedom at 0.975 is 4.3027, by any table."""
    numbers = np.array([1.0, 2.0, 6.0])
    half = 4.30265 * numbers.std(ddof=1) / np.sqrt(3)
    assert evidence(*numbers, kind="difference").interval == pytest.approx((3 - half, 3 + half), rel=1e-5)
    logs = evidence(*np.exp(numbers))
    assert np.log(logs.interval) == pytest.approx((3 - half, 3 + half), rel=1e-5)
    assert logs.mean == pytest.approx(np.exp(3)), "the middle of its interval"


@pytest.mark.parametrize(
    ("effect", "outcome"),
    [
        ((0.90, 0.92, 0.91), "holds"),
        ((1.10, 1.12, 1.11), "does not hold"),
        ((0.90, 1.10, 1.00), "undecided"),
        ((0.70, 0.99, 0.95), "undecided"),  # all below, but too few to be sure
        ((1.0, 1.0, 1.0), "holds"),  # no variance, on the margin
    ],
)
def test_where_the_interval_lies_decides(effect, outcome):
    assert evidence(*effect, high=1.0).outcome == outcome
    inverse = 1 / np.array(effect)
    assert evidence(*inverse, low=1.0).outcome == outcome, "the same ratios, upside down"


def test_to_be_alike_has_to_be_shown():
    assert evidence(0.99, 1.0, 1.01, low=0.9, high=1.1).outcome == "holds"
    assert evidence(0.8, 1.0, 1.2, low=0.9, high=1.1).outcome == "undecided", "no difference was found, that is all"
    assert evidence(1.2, 1.21, 1.22, low=0.9, high=1.1).outcome == "does not hold"
    assert evidence(0.8, 0.81, 0.82, low=0.9, high=1.1).outcome == "does not hold"


def test_more_seeds_decide_more():
    """An effect that is true of two seeds in three: undecided for ever by counting seeds, decided by its mean."""
    effect = np.exp(RANDOM.normal(-0.2, 0.5, 400))
    assert 0.6 < (effect < 1).mean() < 0.75
    assert evidence(*effect[:5], high=1.0).outcome == "undecided"
    assert evidence(*effect, high=1.0).outcome == "holds"


def test_the_interval_covers_the_truth_in_95_of_100():
    covered = 0
    for _ in range(2000):
        low, high = evidence(*RANDOM.normal(0.3, 1, 5), kind="difference").interval
        covered += low <= 0.3 <= high
    assert covered / 2000 == pytest.approx(0.95, abs=3 * np.sqrt(0.95 * 0.05 / 2000))


def test_what_has_no_interval_is_undecided():
    for effect in [(), (0.5,), (0.5, np.nan), (np.inf,)]:
        assert evidence(*effect, high=1.0).outcome == "undecided"
        assert np.isnan(evidence(*effect, high=1.0).interval).all()


def test_diverged_runs_open_the_interval_on_their_side():
    assert evidence(0.5, 0.51, 0.0, high=1.0).outcome == "holds", "the other one diverged once"
    assert evidence(0.5, 0.51, np.inf, high=1.0).outcome == "undecided", "ours diverged once"
    assert evidence(1.5, 1.51, np.inf, high=1.0).outcome == "does not hold"
    assert evidence(0.5, 0.0, 0.0, high=1.0).outcome == "undecided", "one finite number says little"
    assert evidence(np.inf, np.inf, high=1.0).outcome == "does not hold"
    assert evidence(0.0, 0.0, high=1.0).outcome == "holds"
    assert evidence(0.0, np.inf, high=1.0).outcome == "undecided"
    assert evidence(-np.inf, -np.inf, low=0.0, kind="difference").outcome == "does not hold"


def test_exact_numbers_are_all_there_is():
    assert evidence(1.0, 5.0, low=1.0, kind="exact").outcome == "holds"
    assert evidence(0.99, 5.0, low=1.0, kind="exact").outcome == "does not hold", "one counterexample is enough"
    assert evidence(2.0, low=1.0, kind="exact").outcome == "holds", "one computation decides"
    assert evidence(2.0, np.nan, low=1.0, kind="exact").outcome == "undecided"
