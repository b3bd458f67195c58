"""The table of a comparison, on runs made by hand."""

import numpy as np
import pytest
from made_runs import ROUNDS, run
from scipy import stats

from fedsps.report.comparison import comparison


def falling(final, seed=0):
    """From 1 above its end to its end, by 0.1 a round, which it reaches in round 11."""
    return run(train_loss=final + np.maximum(1 - 0.1 * np.arange(ROUNDS), 0), seed=seed)


def over_seeds(*finals):
    return [falling(final, seed) for seed, final in enumerate(finals)]


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


def test_deviations_over_seeds_and_how_many_reach_the_target():
    runs = {"even": [falling(1.0), falling(1.2), falling(1.4)], "odd": [falling(1.0), falling(1.0), falling(4.0)]}
    found = comparison(runs, target=1.3)
    even, odd = found.table.to_dict("records")
    assert even["final_train_loss_std"] == pytest.approx(0.2), "that of a sample: divided by n - 1"
    assert (even["reached"], even["rounds_to_target"]) == (2, 9), "after 8 and 10 rounds; one seed never"
    assert even["rounds_to_target_std"] == pytest.approx(2**0.5)
    assert (odd["reached"], odd["seeds"]) == (2, 3)
    assert len(found.seeds) == 6 and found.seeds["rounds_to_target"].tolist()[2] == np.inf
    assert found.note.endswith("3 seeds: mean ± standard deviation; p: paired t-test against the best, Holm-corrected")
    alone = comparison({"one": [falling(1.0)]})
    assert np.isnan(alone.table["final_train_loss_std"][0]) and "seeds" not in alone.note


def test_each_is_tested_against_the_best_of_its_measure():
    finals = {
        "a": [1.0, 1.1, 1.2, 1.0],
        "b": [1.5, 1.7, 1.65, 1.4],
        "c": [1.1, 1.0, 1.3, 0.95],
        "gone": [1.0, 1.0, 1.0],
    }
    runs = {name: over_seeds(*values) for name, values in finals.items()}
    runs["gone"].append(run(diverged=True, seed=3))
    found = comparison(runs).table.set_index("algorithm")["final_train_loss_p"]
    b, c = (stats.ttest_rel(finals[name], finals["a"]).pvalue for name in "bc")
    assert found["b"] == pytest.approx(2 * b) and found["c"] == pytest.approx(max(2 * b, c))
    assert np.isnan(found[["a", "gone"]]).all(), "the best itself, and what has no mean"
    accuracies = {
        name: [run(test_accuracy=value / 2, seed=seed) for seed, value in enumerate(values)]
        for name, values in finals.items()
    }
    best = comparison(accuracies).table.set_index("algorithm")["final_test_accuracy_p"]
    assert np.isnan(best["b"]) and best["a"] < 0.05, "of accuracies the highest is the best"
    signed = comparison(runs, test="wilcoxon").table.set_index("algorithm")["final_train_loss_p"]
    assert signed["b"] == pytest.approx(2 * 0.125), "the least that four pairs can give"


def test_runs_of_other_seeds_are_no_pairs():
    best = over_seeds(1.0, 1.1, 1.2)
    others = {
        "elsewhere": [falling(2.0 + seed / 10, seed) for seed in (3, 4, 5)],
        "twice": [falling(2.0, 0), falling(2.1, 0), falling(2.2, 1)],
        "fewer": over_seeds(2.0, 2.1),
    }
    found = comparison({"best": best, "same": over_seeds(2.0, 2.1, 2.3)} | others).table.set_index("algorithm")
    assert np.isnan(found.loc[[*others], "final_train_loss_p"]).all()
    alone = stats.ttest_rel([2.0, 2.1, 2.3], [1.0, 1.1, 1.2]).pvalue
    assert found.loc["same", "final_train_loss_p"] == pytest.approx(alone), "nor do they count in Holm's correction"


def test_too_few_seeds_for_wilcoxon_are_named_with_how_many_would_do():
    runs = {name: over_seeds(*(start + seed / 10 for seed in range(6))) for start, name in enumerate("abc", 1)}
    found = comparison(runs, test="wilcoxon")
    assert found.table["final_train_loss_p"].dropna().tolist() == [0.0625, 0.0625]
    assert "6 seeds and 2 tests cannot give a p below 0.062, whatever the runs: take 7 seeds or more" in found.note
    assert "cannot" not in comparison(runs).note, "the t-test can"
    assert "cannot" not in comparison({name: runs[name] for name in "ab"}, test="wilcoxon").note
    assert all(line.startswith("%") for line in found.latex().splitlines()[:1]) and "\n6 seeds" not in found.latex()


def test_numbers_with_an_exponent_and_deviations_below_a_round_in_latex():
    tiny = comparison({"one": over_seeds(1e-5, 3e-5), "two": over_seeds(2.0, 2.0)}, target=0.25)
    assert "\\mathbf{2 \\cdot 10^{-5} \\pm 1.4 \\cdot 10^{-5}}" in tiny.latex()
    near = comparison({"one": [*over_seeds(1.0, 1.0, 1.0, 1.0), falling(1.1, 4)]}, target=1.2)
    assert near.table["rounds_to_target_std"][0] == pytest.approx(0.894, abs=1e-3)
    assert "$9 \\pm 0.89$" in near.latex()


def test_a_table_for_a_paper():
    runs = {
        "fedavg client_stepsize=0.1": over_seeds(2.0, 2.1, 2.2),
        "mine": over_seeds(1.0, 1.01, 1.03),
        "near": over_seeds(1.01, 1.0, 1.05),
        "gone": [run(diverged=True)] * 3,
    }
    lines = comparison(runs, target=1.02).latex().splitlines()
    assert lines[0].startswith("% needs \\usepackage{booktabs}. target loss: 1.02, as given 3 seeds: mean +/-")
    assert lines[3] == "algorithm & final train loss & final test accuracy & rounds to target \\\\"
    cells = [[cell.strip(" \\") for cell in line.split("&")] for line in lines[5:9]]
    assert [row[0] for row in cells] == ["fedavg client\\_stepsize=0.1", "mine", "near", "gone"]
    assert [row[1] for row in cells] == [
        "$2.1 \\pm 0.1$",
        "$\\mathbf{1.013 \\pm 0.015}$",
        "$\\mathbf{1.02 \\pm 0.026}$",  # not to be told from the best
        "$\\infty$",
    ]
    assert [row[3] for row in cells] == ["never", "$11 \\pm 0$ (2 of 3)", "$11 \\pm 0$ (2 of 3)", "$1 \\pm 0$"]


def test_where_all_runs_diverged_there_is_no_target():
    found = comparison({"gone": [run(diverged=True)]})
    assert np.isnan(found.target)
    assert found.table["rounds_to_target"].tolist() == [np.inf]
    assert found.table["diverged"].tolist() == [1]
