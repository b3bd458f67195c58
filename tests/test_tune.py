"""The search: its space, its score, its winner, and that nothing is run twice."""

import itertools
import platform
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from filelock import FileLock, Timeout

import fedsps
from fedsps.methods.notation import named
from fedsps.runs import tune
from fedsps.runs.result import Result
from fedsps.runs.run import run
from fedsps.runs.space import PAPER_GRID, TUNING_SEED, Range, Search, parse_space
from fedsps.runs.spec import Spec
from fedsps.runs.storage import open_storage, optuna_itself
from fedsps.runs.tune import run_search
from fedsps.runs.tuning import TuningResult, score

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

    monkeypatch.setattr(tune, "run", lambda *_, **__: pytest.fail("nothing is run twice"))
    assert run_search(search, tmp_path / "runs").table.equals(found.table)


def test_trials_are_taken_by_one_process_at_a_time(tmp_path, monkeypatch):
    """SQLite lets two that ask at the same moment have the same trial, and the second would fail at its run's lock."""
    original, turns = tune._claim, []

    def claim(*given, **settings):
        with pytest.raises(Timeout):
            FileLock(tmp_path / tune.CLAIMS).acquire(timeout=0)
        turns.append(original(*given, **settings))
        return turns[-1]

    monkeypatch.setattr(tune, "_claim", claim)
    fedsps.tune("fedavg:client_stepsize=0.01/0.1", runs=tmp_path, **SETTINGS)
    assert sum(len(trials) for trials in turns) == 2
    with FileLock(tmp_path / tune.CLAIMS).acquire(timeout=0):
        pass


def test_tuning_has_a_seed_of_its_own(monkeypatch):
    monkeypatch.setattr(tune, "run_search", lambda search, *_, **__: search.spec.plan.seed)
    assert tune.tune("fedavg:client_stepsize=0.1/1") == TUNING_SEED == 1000
    assert tune.tune("fedavg:client_stepsize=0.1/1", seed=3) == 3


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


GRID = {"client_stepsize": (0.01, 0.1)}


@pytest.fixture
def search():
    return Search(Spec.of(named("fedavg"), **SETTINGS), GRID)


@pytest.fixture
def study(search, tmp_path):
    """What another machine sees of the search in `tmp_path`."""
    with open_storage(f"sqlite:///{tmp_path / 'tune.db'}") as storage:
        yield tune._study(search, storage)


def claimed(study, owner="elsewhere:1", point=0.1):
    """A trial that somebody else runs."""
    study.enqueue_trial({"client_stepsize": point})
    trial = study.ask()
    trial.suggest_categorical("client_stepsize", list(GRID["client_stepsize"]))
    if owner is not None:
        trial.set_user_attr("owner", owner)
    return trial


def states(study):
    return Counter(trial.state.name for trial in study.get_trials())


def score_quickly(monkeypatch, first=lambda points: None):
    """Trials that are not trained: their score is the stepsize. Returns the points in the order that they are run."""
    ran = []

    def run_trials(search, runs, url, numbers, points):
        ran.extend(point["client_stepsize"] for point in points)
        if len(ran) == len(points):
            first(points)
        return [point["client_stepsize"] for point in points]

    monkeypatch.setattr(tune, "_run_trials", run_trials)
    return ran


def test_the_last_point_of_another_machine_is_waited_for(search, study, tmp_path, monkeypatch):
    """It takes longer than the silence that counts as death, but it is heard of."""
    monkeypatch.setattr(tune, "SILENCE", 2.0)
    trial = claimed(study)

    def finish():
        for beat in range(6):
            study.set_user_attr("elsewhere:1", beat)
            time.sleep(0.7)
        study.tell(trial, 1e-9)

    other = threading.Thread(target=finish)
    other.start()
    found = run_search(search, tmp_path)
    other.join()
    assert found.best.parameters["client_stepsize"] == 0.1
    assert states(study) == {"COMPLETE": 2}


@pytest.mark.parametrize("owner", ["elsewhere:1", None], ids=["silent", "killed-before-it-said-its-name"])
def test_the_points_of_a_dead_machine_are_taken_over(owner, search, study, tmp_path, monkeypatch):
    monkeypatch.setattr(tune, "SILENCE", 2.0)
    claimed(study, owner)
    study.set_user_attr("elsewhere:1", time.time() + 1e6)  # its clock is wrong, and does not matter
    start = time.monotonic()
    assert sorted(run_search(search, tmp_path).table["client_stepsize"]) == [0.01, 0.1]
    assert time.monotonic() - start >= 2.0
    assert states(study) == {"COMPLETE": 2, "FAIL": 1}


def test_a_process_of_this_machine_is_dead_when_it_is_gone(search, study, tmp_path, monkeypatch):
    monkeypatch.setattr(tune, "SILENCE", 20.0)
    score_quickly(monkeypatch)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    claimed(study, f"{platform.node()}:{gone.pid}")
    start = time.monotonic()
    assert len(run_search(search, tmp_path).table) == 2
    assert time.monotonic() - start < 20


def test_what_another_machine_gives_back_at_the_end_is_run(search, study, tmp_path, monkeypatch):
    trial = claimed(study)

    def interrupt(points):
        study.tell(trial, state=optuna_itself().trial.TrialState.FAIL)

    ran = score_quickly(monkeypatch, first=interrupt)
    assert len(run_search(search, tmp_path).table) == 2
    assert ran == [0.01, 0.1]


def test_a_machine_that_was_asleep_leaves_its_trials_to_those_that_took_them_over(search, study, tmp_path, monkeypatch):
    def oversleep(points):
        for trial in study.get_trials():
            study.tell(trial.number, state=optuna_itself().trial.TrialState.FAIL)

    ran = score_quickly(monkeypatch, first=oversleep)
    assert len(run_search(search, tmp_path).table) == 2
    assert ran == [0.01, 0.1, 0.01, 0.1]
    assert states(study) == {"FAIL": 2, "COMPLETE": 2}


def test_halving_goes_on_where_trials_were_taken_over(tmp_path, monkeypatch):
    search = Search(Spec.of(named("fedavg"), **SETTINGS), GRID, halve_from=2)
    with open_storage(f"sqlite:///{tmp_path / 'tune.db'}") as storage:
        study = tune._study(search, storage)
        trial = claimed(study)
        study.tell(trial, state=optuna_itself().trial.TrialState.FAIL)
        scores = tune._run_trials(
            search, str(tmp_path), str(storage.url), [trial._trial_id], [{"client_stepsize": 0.1}]
        )
    assert scores[0] is not None


def test_a_search_is_heard_of_while_it_trains(search, study, tmp_path, monkeypatch):
    monkeypatch.setattr(tune, "BEAT", 0.1)
    beats = []

    def look(points):
        for _ in range(3):
            time.sleep(0.5)
            beats.append(study.user_attrs[tune.OWNER])

    score_quickly(monkeypatch, first=look)
    run_search(search, tmp_path)
    assert beats[0] < beats[1] < beats[2]
    last = study.user_attrs[tune.OWNER]
    time.sleep(0.5)
    assert study.user_attrs[tune.OWNER] == last, "not after its end"


def test_a_search_that_fails_gives_its_trials_back(search, study, tmp_path, monkeypatch):
    trial = claimed(study)

    def fail(points):
        raise KeyboardInterrupt

    score_quickly(monkeypatch, first=fail)
    with pytest.raises(KeyboardInterrupt):
        run_search(search, tmp_path)
    assert states(study) == {"FAIL": 1, "RUNNING": 1}
    assert study.get_trials()[trial.number].state.name == "RUNNING", "that of another machine is left alone"


def test_points_that_two_machines_put_in_line_are_run_once(search, study, tmp_path, monkeypatch):
    for point in (0.01, 0.01, 0.1, 0.1):
        study.enqueue_trial({"client_stepsize": point})
    ran = score_quickly(monkeypatch)
    assert len(run_search(search, tmp_path).table) == 2
    assert ran == [0.01, 0.1]
    assert states(study) == {"COMPLETE": 2, "FAIL": 2}


def test_nothing_is_drawn_when_another_machine_was_quicker(search, study, monkeypatch):
    study.enqueue_trial({"client_stepsize": 0.01})
    ask = study.ask

    def late():
        monkeypatch.setattr(study, "ask", ask)
        ask()  # the other machine's
        return ask()

    monkeypatch.setattr(study, "ask", late)
    assert tune._claim(search, study, 1, is_shared=True) == []
    assert states(study) == {"RUNNING": 1, "FAIL": 1}


def test_machines_share_a_grid_in_portions(tmp_path):
    search = Search(
        Spec.of(named("fedavg"), **SETTINGS), {"client_stepsize": tuple(np.geomspace(0.01, 1, 40).tolist())}
    )
    with open_storage(f"sqlite:///{tmp_path / 'tune.db'}") as storage:
        study = tune._study(search, storage)
        tune._queue(search, study, {})
        shared = [len(tune._claim(search, study, jobs, is_shared=True)) for jobs in (1, 1, 2, 2)]
        assert shared == [10, 8, 4, 4], "a quarter of what is left, by the jobs, but not less than is worth a process"
        assert len(tune._claim(search, study, 2, is_shared=False)) == 14, "all that is left: it is less than a half"


def test_two_machines_draw_different_points_and_no_more_than_asked_for(tmp_path):
    search = Search(
        Spec.of(named("fedavg"), **SETTINGS), {"client_stepsize": Range(1e-3, 1.0)}, sampler="tpe", trials=2
    )
    with open_storage(f"sqlite:///{tmp_path / 'tune.db'}") as storage:
        both = [tune._study(search, storage) for _ in range(2)]
        trials = [tune._claim(search, study, 1, is_shared=True)[0] for study in both]
        assert len({tune._point(search, trial)["client_stepsize"] for trial in trials}) == 2
        late = both[0].ask()
        everyone = both[0].get_trials()
        assert [tune._is_needless(search, one, everyone[: one.number]) for one in everyone] == [False, False, True]
        assert late.number == 2


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


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sqlite:////no/such/folder/x.db", "sqlite:////no/such/folder/x.db cannot be opened: .*unable to open"),
        ("postgresql://me:secret@127.0.0.1:1/base", "postgresql://me:.*@127.0.0.1:1/base cannot be opened: .*refused"),
        ("mysql://me:secret@host/base", "mysql://me:.*@host/base needs a driver .*No module named 'MySQLdb'"),
        ("nonsense", "must be a URL, such as"),
        ("postgres://me:secret@host/base", "must be a URL, such as .*postgresql://"),
        ("postgresql://me:a@secret@host/base", "an @ in its password written as %40"),
        ("postgresql://me:a@secret?b@host/base", "an @ in its password written as %40"),
        ("postgresql://me:a@1:secret@host/base", "an @ in its password written as %40"),
    ],
)
def test_a_storage_that_cannot_be_opened(url, message, tmp_path, search):
    with pytest.raises(fedsps.ConfigurationError, match=message) as caught:
        run_search(search, tmp_path, storage=url)
    assert "secret" not in "".join(traceback.format_exception(caught.value))


def test_a_missing_driver_is_named(tmp_path, search, monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(fedsps.ConfigurationError, match=r"needs a driver .*: pip install 'fedsps\[storage\]'"):
        run_search(search, tmp_path, storage="postgresql://me:secret@host/base")
