"""The search: its space, its score, its winner, and that nothing is run twice."""

import itertools
import threading
import time

import numpy as np
import pandas as pd
import pytest

import fedsps
from fedsps.methods.notation import named
from fedsps.runs import tune as tuning
from fedsps.runs.result import Result
from fedsps.runs.run import run
from fedsps.runs.spec import Spec
from fedsps.runs.tune import PAPER_GRID, TUNING_SEED, Range, Search, TuningResult, parse_space, run_search, score

SETTINGS = {"rounds": 10, "evaluate_every": 1, "seed": TUNING_SEED}


def test_spaces_from_words():
    chosen, space = parse_space("fedavg:client_stepsize=0.01/0.1/1")
    assert (chosen.name, space) == ("fedavg", {"client_stepsize": (0.01, 0.1, 1)})
    _, space = parse_space("fedams:client_stepsize=0.1/1,eps=1e-3..1")
    assert space == {"eps": Range(1e-3, 1.0), "client_stepsize": (0.1, 1)}
    chosen, space = parse_space("sps:cap=0.1..10+amsgrad:eps=1e-3..1e+2,b1=0.5/0.9")
    assert space == {"sps.cap": Range(0.1, 10), "amsgrad.eps": Range(1e-3, 100), "amsgrad.b1": (0.5, 0.9)}
    assert chosen.parameters["sps.cap"] == 0.1
    assert parse_space("fedams")[1] == PAPER_GRID
    assert parse_space("fedavg")[1] == {key: PAPER_GRID[key] for key in ("client_stepsize", "server_stepsize")}
    assert parse_space("mime")[1] == {"client_stepsize": PAPER_GRID["client_stepsize"]}
    assert Search(Spec.of(named("fedams")), parse_space("fedams")[1]).size == 5 * 4 * 6


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: parse_space("fedavg:client_stepsize=1..x"), "not a range of numbers"),
        (lambda: parse_space("fedavg:client_stepsize=1..0.1"), "from a number above 0 to a larger one; got 1.0..0.1"),
        (lambda: parse_space("fedavg:client_stepsize=1..inf"), "from a number above 0 to a larger one; got 1.0..inf"),
        (lambda: parse_space("fedavg:client_stepsize=0.1..1/2"), "both a range, a..b, and values"),
        (lambda: Search(Spec.of(named("fedsps")), {"lower": (0.0, (0.0, 1.0))}), "lower cannot be searched"),
        (lambda: parse_space("sps:cap=0.1..x+amsgrad"), "'sps.cap=0.1..x' is not a range of numbers"),
        (lambda: Search(Spec.of(named("fedsps")), {}), "nothing to search: give fedsps several values"),
        (
            lambda: Search(Spec.of(named("fedavg")), {"client_stepsize": Range(0.1, 1)}),
            "ranges, a..b, are for the sampler tpe",
        ),
    ],
)
def test_wrong_searches_are_refused(make, message):
    with pytest.raises(fedsps.ConfigurationError, match=message):
        make()


def result(losses, diverged_at=None):
    table = pd.DataFrame({"round": np.arange(1, len(losses) + 1), "train_loss": losses})
    return Result(None, table, Spec.of("fedavg"), diverged_at)


def test_score_is_the_mean_loss_of_the_last_tenth():
    assert score(result([9.0] * 18 + [2.0, 4.0])) == 3.0
    assert score(result([9.0] * 18 + [2.0, np.nan])) == 2.0, "of the rounds that were evaluated"
    assert score(result([1.0, np.inf], diverged_at=2)) == np.inf
    with pytest.raises(fedsps.ConfigurationError, match="evaluate_every"):
        score(result([9.0] * 18 + [np.nan, np.nan]))


def test_best_and_worst_leave_out_the_diverged_and_the_dropped():
    search = Search(Spec.of(named("fedavg")), {"client_stepsize": (0.01, 0.1, 1.0, 10.0)})
    table = pd.DataFrame(
        {"client_stepsize": [0.01, 0.1, 1.0, 10.0], "score": [0.2, 0.5, 0.9, np.inf], "diverged": [False] * 3 + [True], "dropped": [True] + [False] * 3}
    )  # fmt: skip
    found = TuningResult(search, table)
    assert found.best.parameters["client_stepsize"] == 0.1
    assert found.worst.parameters["client_stepsize"] == 1.0
    assert found.diverged == 1
    with pytest.raises(fedsps.ConfigurationError, match="all 1 trials of fedavg diverged"):
        _ = TuningResult(search, table.iloc[3:]).best


def test_grid_finds_what_trying_all_finds_and_resumes(tmp_path, monkeypatch):
    space = {"client_stepsize": (0.01, 1.0), "server_stepsize": (0.1, 1.0)}
    search = Search(Spec.of(named("fedavg"), **SETTINGS), space)
    by_hand = {
        point: score(run(search.at(dict(zip(space, point, strict=True))), tmp_path / "hand"))
        for point in itertools.product(*space.values())
    }
    seen = []
    found = run_search(search, tmp_path / "runs", progress=lambda done, size: seen.append((done, size)))
    assert seen[-1] == (4, 4)
    assert len(found.table) == 4
    for row in found.table.to_dict("records"):
        assert row["score"] == pytest.approx(by_hand[row["client_stepsize"], row["server_stepsize"]], rel=1e-5)
    best = min(by_hand, key=by_hand.get)
    assert (found.best.parameters["client_stepsize"], found.best.parameters["server_stepsize"]) == best

    monkeypatch.setattr(tuning, "run", lambda *_, **__: pytest.fail("nothing is run twice"))
    assert run_search(search, tmp_path / "runs").table.equals(found.table)


def test_tuning_has_a_seed_of_its_own(monkeypatch):
    monkeypatch.setattr(tuning, "run_search", lambda search, *_, **__: search.spec.plan.seed)
    assert tuning.tune("fedavg:client_stepsize=0.1/1") == TUNING_SEED == 1000
    assert tuning.tune("fedavg:client_stepsize=0.1/1", seed=3) == 3


def test_a_grid_may_have_one_point(tmp_path):
    search = Search(Spec.of(named("fedavg"), **SETTINGS), {"client_stepsize": (0.1,)})
    assert run_search(search, tmp_path).best.parameters["client_stepsize"] == 0.1


def test_divergence_is_counted(tmp_path):
    search = Search(Spec.of(named("fedavg"), **SETTINGS), {"client_stepsize": (0.1, 1e38)})
    found = run_search(search, tmp_path)
    assert found.diverged == 1
    assert found.best.parameters["client_stepsize"] == found.worst.parameters["client_stepsize"] == 0.1


def test_bayesian_search_and_halving(tmp_path):
    spec = Spec.of(named("fedavg"), **SETTINGS)
    search = Search(spec, {"client_stepsize": Range(1e-3, 1.0)}, sampler="tpe", trials=8, halve_from=2)
    found = run_search(search, tmp_path)
    assert len(found.table) == 8
    assert found.table["client_stepsize"].between(1e-3, 1.0).all()
    assert found.table["dropped"].any(), "some trials are dropped early"
    assert not found.table["dropped"].all()
    assert not found.table.loc[
        found.table["score"] == score(run(search.at(found.best.parameters), tmp_path)), "dropped"
    ].any()


def test_a_range_of_a_part_is_searched(tmp_path):
    chosen, space = parse_space("sps:cap=0.001..1")
    found = run_search(Search(Spec.of(chosen, **SETTINGS), space, sampler="tpe", trials=3), tmp_path)
    assert found.table["score"].nunique() == 3
    assert found.best.label() == f"sps sps.cap={found.table['sps.cap'][0]}", "all digits, so that it can be repeated"


def test_two_processes(tmp_path):
    search = Search(Spec.of(named("fedavg"), **SETTINGS), {"client_stepsize": (0.01, 0.1, 1.0)})
    assert run_search(search, tmp_path / "two", jobs=2).best == run_search(search, tmp_path / "one").best


def owned(search, runs, owner, **facts):
    """A study in which somebody else runs the point 0.1."""
    study = tuning._study(search, f"sqlite:///{runs / 'tune.db'}")
    study.enqueue_trial({"client_stepsize": 0.1})
    trial = study.ask()
    trial.suggest_categorical("client_stepsize", list(search.space["client_stepsize"]))
    trial.set_user_attr("owner", owner)
    for name, value in facts.items():
        trial.set_user_attr(name, value)
    return study, trial


def test_the_last_point_of_another_machine_is_waited_for(tmp_path):
    search = Search(Spec.of(named("fedavg"), **SETTINGS), {"client_stepsize": (0.01, 0.1)})
    study, trial = owned(search, tmp_path, "othermachine:1")

    def finish():
        time.sleep(2)
        study.tell(trial, 1e-9)

    other = threading.Thread(target=finish)
    other.start()
    found = run_search(search, tmp_path)
    other.join()
    assert found.best.parameters["client_stepsize"] == 0.1
    assert sorted(found.table["client_stepsize"]) == [0.01, 0.1]


def test_the_points_of_a_dead_machine_are_taken_over(tmp_path):
    search = Search(Spec.of(named("fedavg"), **SETTINGS), {"client_stepsize": (0.01, 0.1)})
    owned(search, tmp_path, "othermachine:1", seen=time.time() - 2 * tuning.SILENT * tuning.BEAT)
    assert sorted(run_search(search, tmp_path).table["client_stepsize"]) == [0.01, 0.1]


def test_a_bayesian_search_that_goes_on_draws_new_points(tmp_path):
    spec = Spec.of(named("fedavg"), **SETTINGS | {"rounds": 1})
    first, more = (
        Search(spec, {"client_stepsize": Range(1e-3, 1.0)}, sampler="tpe", trials=trials) for trials in (3, 6)
    )
    assert len(run_search(first, tmp_path).table) == 3
    assert run_search(more, tmp_path).table["client_stepsize"].nunique() == 6


def test_halving_takes_a_grid_in_no_particular_order(tmp_path):
    """In ascending order every client stepsize would be the best so far, and none would be dropped."""
    spec = Spec.of(named("fedavg"), **SETTINGS | {"rounds": 20})
    search = Search(spec, {"client_stepsize": tuple(np.geomspace(1e-4, 0.1, 8).tolist())}, halve_from=2)
    found = run_search(search, tmp_path)
    assert found.table["dropped"].sum() >= 3
    assert found.best.parameters["client_stepsize"] == pytest.approx(0.1)


def test_words_and_nothing_are_values_too(tmp_path):
    spec = Spec.of(named("fedsps-global"), **SETTINGS | {"rounds": 2})
    found = run_search(Search(spec, {"formula": ("a", "b"), "initial": (None, 0.1)}), tmp_path)
    points = {(row["formula"], row["initial"]) for row in found.table.to_dict("records")}
    assert points == {("a", None), ("a", 0.1), ("b", None), ("b", 0.1)}
    first = found.table.to_dict("records")[0]
    assert (found.best.parameters["formula"], found.best.parameters["initial"]) == (first["formula"], first["initial"])


@pytest.mark.parametrize("url", ["nonsense", "sqlite:////no/such/folder/x.db", "postgresql://me:secret@nowhere/base"])
def test_a_storage_that_cannot_be_opened(url, tmp_path):
    search = Search(Spec.of(named("fedavg"), **SETTINGS), {"client_stepsize": (0.1,)})
    with pytest.raises(fedsps.ConfigurationError, match="cannot be opened") as caught:
        run_search(search, tmp_path, storage=url)
    assert "secret" not in str(caught.value)
