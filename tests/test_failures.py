"""A run of several that fails: the others go on, it is named, and its traceback is kept."""

import errno

import pytest

import fedsps
from fedsps.core import files
from fedsps.paper import execute
from fedsps.paper.page import Job, Line, Panel, Tuned
from fedsps.runs import sweep, tune
from fedsps.runs.parallel import run_all
from fedsps.runs.run import is_done
from fedsps.runs.space import Search
from fedsps.runs.tune import run_search

QUICK = {"rounds": 3, "evaluate_every": 1}
BROKEN = """
import fedsps
from fedsps.rules import StepsizeRule

class Rule(StepsizeRule):
    def __call__(self, state, seen):
        return 1 / 0, state

class Broken(fedsps.Algorithm):
    def __init__(self, *, size: float = 1.0) -> None:
        super().__init__(stepsize=Rule())
"""


@pytest.fixture
def broken(tmp_path, monkeypatch):
    """An algorithm that always fails, in the file broken.py of the working folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.py").write_text(BROKEN)
    return tmp_path / "broken.py"


def specs_of(*words, **settings):
    return [fedsps.Spec.of(word, **(QUICK | settings)) for word in words]


def test_the_others_go_on_and_the_same_again_runs_what_failed_alone(broken):
    specs = specs_of("fedsps", "broken.py:Broken", "fedavg")
    with pytest.raises(fedsps.FailedRunsError, match="1 run failed, the others are done. .*it alone is run") as caught:
        run_all(specs)
    (failure,) = caught.value.failures
    assert (failure.what, failure.error) == ("Broken seed 0", "ZeroDivisionError: division by zero")
    kept = failure.file.read_text()
    assert kept.startswith("Traceback")
    assert "return 1 / 0, state" in kept
    assert [result is None for result in caught.value.finished] == [False, True, False]

    broken.write_text(BROKEN.replace("1 / 0", "seen.loss * 0 + 0.1"))
    (mended,) = specs_of("broken.py:Broken")
    assert mended.digest != specs[1].digest, "a spec knows its file"
    begun = []
    run_all([specs[0], mended, specs[2]], watch=lambda number, row: begun.append(number))
    assert set(begun) == {1}


def test_one_of_a_sweep_is_found_and_the_others_stay_together(tmp_path, monkeypatch):
    specs = specs_of(*(f"fedsps:lower={lower}" for lower in (0.0, -1.0, 5.0, -2.0, -3.0)))
    sizes = []
    advance = sweep.Sweep.__init__
    monkeypatch.setattr(sweep.Sweep, "__init__", lambda self, *what: sizes.append(len(what[1])) or advance(self, *what))
    with pytest.raises(fedsps.FailedRunsError) as caught:
        run_all(specs, tmp_path, fresh=True)
    (failure,) = caught.value.failures
    assert failure.what == "fedsps lower=5 seed 0"
    assert failure.file == tmp_path / specs[2].digest / "failure.txt"
    assert [is_done(spec, tmp_path) for spec in specs] == [True, True, False, True, True]
    assert sizes == [5, 2, 3, 2], "halves, not one by one"


def test_a_run_that_is_finished_has_no_failure(tmp_path):
    (spec,) = specs_of("fedsps")
    left = tmp_path / spec.digest / "failure.txt"
    left.parent.mkdir()
    left.write_text("Traceback")
    run_all([spec], tmp_path)
    assert not left.exists()


def test_what_would_refuse_all_is_raised_at_once(tmp_path):
    specs = specs_of("fedsps", "fedavg", "feddecsps", cohort=99)
    with pytest.raises(fedsps.ConfigurationError, match="cohort is 99, but there are only"):
        run_all(specs, tmp_path)
    assert not list(tmp_path.glob("*/failure.txt"))


def test_a_setting_that_only_one_algorithm_refuses_is_its_own_failure(tmp_path):
    specs = specs_of("fedsps:lower=0;0;0", "fedsps")
    with pytest.raises(fedsps.FailedRunsError, match="lower") as caught:
        run_all(specs, tmp_path)
    assert len(caught.value.failures) == 1


def test_a_full_disk_ends_all(tmp_path, monkeypatch):
    def full(path):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "_flush", full)
    with pytest.raises(fedsps.DiskFullError, match="no space left for .* make room there"):
        run_all(specs_of("fedsps", "fedavg"), tmp_path)


def test_a_comparison_has_the_algorithms_of_which_no_run_failed(broken):
    words = ["fedsps", "broken.py:Broken", "fedavg"]
    with pytest.raises(fedsps.FailedRunsError) as caught:
        fedsps.compare(words, spec=fedsps.Spec.of(**QUICK), seeds=2, runs="runs")
    assert list(caught.value.finished.table["algorithm"]) == ["fedsps", "fedavg"]
    assert [failure.what for failure in caught.value.failures] == ["Broken seed 0", "Broken seed 1"]
    with pytest.raises(fedsps.FailedRunsError) as caught:
        fedsps.compare(words[1], spec=fedsps.Spec.of(**QUICK), runs="runs")
    assert caught.value.finished is None


def search_of(**settings):
    space = {"lower": (0.0, 5.0, -1.0)}
    return Search(fedsps.Spec.of("fedsps", **(QUICK | settings)), space)


def test_a_search_ends_and_tries_what_failed_again_only_if_asked(tmp_path, monkeypatch):
    asked = []
    run_trials = tune._run_trials

    def counted(search, runs, url, numbers, points):
        asked.extend(point["lower"] for point in points)
        return run_trials(search, runs, url, numbers, points)

    monkeypatch.setattr(tune, "_run_trials", counted)
    for again, expected in (({}, [0.0, 5.0, -1.0]), ({}, []), ({"retry": True}, [5.0])):
        asked.clear()
        with pytest.raises(fedsps.FailedRunsError, match=r"Ask for the same again with retry=True") as caught:
            run_search(search_of(), tmp_path, **again)
        assert asked == expected
        (failure,) = caught.value.failures
        assert failure.what == "fedsps lower=5 seed 0"
        assert "lower bound of 5" in failure.file.read_text()
        assert sorted(caught.value.finished.table["lower"]) == [-1.0, 0.0]


def test_a_search_whose_retry_succeeds_has_no_failures(tmp_path, monkeypatch):
    with pytest.raises(fedsps.FailedRunsError):
        run_search(search_of(), tmp_path)
    monkeypatch.setattr(tune, "_run_trials", lambda search, runs, url, numbers, points: [1.0] * len(points))
    assert len(run_search(search_of(), tmp_path, retry=True).table) == 3
    assert len(run_search(search_of(), tmp_path).table) == 3


def test_a_bayesian_search_in_which_all_fail_ends(tmp_path, monkeypatch):
    search = Search(fedsps.Spec.of("fedsps", **QUICK), {"lower": (5.0, 6.0)}, sampler="tpe", trials=3)
    with pytest.raises(fedsps.FailedRunsError) as caught:
        run_search(search, tmp_path)
    assert caught.value.finished is None
    ran = []
    monkeypatch.setattr(
        tune, "_run_trials", lambda search, runs, url, numbers, points: ran.extend(points) or [1.0] * len(points)
    )
    run_search(search, tmp_path, retry=True)
    assert len(ran) == 3
    assert {point["lower"] for point in ran} <= {5.0, 6.0}


def test_a_search_that_cannot_work_is_refused_at_once(tmp_path):
    with pytest.raises(fedsps.ConfigurationError, match="cohort is 99"):
        run_search(search_of(cohort=99), tmp_path)


def test_a_page_runs_all_others_and_is_not_judged(tmp_path):
    panel = Panel(
        "a",
        "(a)",
        QUICK | {"data": "digits"},
        [
            Line("good", "fedsps"),
            Line("bad", "fedsps:lower=5"),
            Line("tuned", Tuned("fedavg", grid={"client_stepsize": (0.1, 1.0)})),
        ],
    )
    with pytest.raises(fedsps.FailedRunsError, match="fedsps lower=5 seed 0"):
        execute.train([panel], Job("made up", "smoke", 1, tmp_path, 1, None))
    assert len(list(tmp_path.glob("*/summary.json"))) == 2 + 2, "two trials, the winner and the other line"
