"""The table of a comparison, on runs made by hand."""

import numpy as np
import pytest
from made_runs import ROUNDS, run

from fedsps.report.compare import comparison


def falling(final):
    """From 1 above its end to its end, by 0.1 a round, which it reaches in round 11."""
    return run(train_loss=final + np.maximum(1 - 0.1 * np.arange(ROUNDS), 0))


def test_the_target_is_the_best_final_loss_times_1_1_unless_it_is_given():
    runs = {"good": [falling(2.0)], "bad": [falling(2.5)], "gone": [run(0.1, diverged=True)]}
    found = comparison(runs)
    assert found.target == pytest.approx(2.2)
    assert found.note == "target loss: 2.2, the best final train loss of these runs times 1.1"
    assert found.table["rounds_to_target"].tolist() == [9, np.inf, 1]
    assert found.table["final_train_loss"].tolist() == [2.0, 2.5, np.inf]
    given = comparison(runs, target=2.5)
    assert given.note == "target loss: 2.5, as given"
    assert given.table["rounds_to_target"].tolist() == [6, 11, 1], "a loss that is the target has reached it"


def test_the_target_is_that_of_the_best_mean_over_seeds():
    runs = {"steady": [falling(1.0), falling(1.0)], "lucky": [falling(0.5), falling(3.5)]}
    found = comparison(runs)
    assert found.target == pytest.approx(1.1)
    assert found.table["final_train_loss"].tolist() == [1.0, 2.0]


def test_where_all_runs_diverged_there_is_no_target():
    found = comparison({"gone": [run(diverged=True)]})
    assert np.isnan(found.target)
    assert found.table["rounds_to_target"].tolist() == [np.inf]
    assert found.table["diverged"].tolist() == [1]
