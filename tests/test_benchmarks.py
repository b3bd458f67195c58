"""The scripts of the benchmarks can be read, their sections are on the page, and each writes its own alone."""

import ast
import importlib.util
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"
SCRIPTS = sorted((BENCHMARKS / "peers").glob("*_rounds.py"))
WRITERS = ["engines", "sweeps", "table1", "workers", "peers", "flower"]


def script(path, monkeypatch):
    monkeypatch.syspath_prepend(path.parent)
    description = importlib.util.spec_from_file_location(f"benchmark_{path.stem}", path)
    module = importlib.util.module_from_spec(description)
    monkeypatch.setitem(sys.modules, description.name, module)  # dataclasses look themselves up there
    description.loader.exec_module(module)
    return module


@pytest.fixture
def page(monkeypatch):
    return script(BENCHMARKS / "page.py", monkeypatch)


@pytest.fixture
def peers(monkeypatch):
    return script(BENCHMARKS / "peers.py", monkeypatch)


@pytest.fixture
def workload(monkeypatch):
    return script(BENCHMARKS / "peers" / "workload.py", monkeypatch)


# The page

TEXT = """# Page

<!-- measured: one -->
old
<!-- end -->

between

<!-- measured: other -->
kept
<!-- end -->
"""


def test_only_the_own_section_is_replaced(page):
    assert page.replaced(TEXT, "one", r"new \1") == TEXT.replace("old", r"new \1")
    assert page.replaced(TEXT, "other", "new") == TEXT.replace("kept", "new")


@pytest.mark.parametrize("text", ["no section", TEXT + TEXT])
def test_a_page_without_one_such_section_is_refused(text, page):
    with pytest.raises(SystemExit, match="measured: one"):
        page.replaced(text, "one", "new")


def test_what_is_printed_is_what_is_written(page, tmp_path, capsys):
    place = tmp_path / "page.md"
    place.write_text(TEXT)
    section = page.Section("one")
    section.line("a  1.0")
    assert capsys.readouterr().out == f"{page.machine()}\na  1.0\n"
    section.write(place)
    assert place.read_text() == TEXT.replace("old", f"```text\n{page.machine()}\na  1.0\n```")


@pytest.mark.parametrize("name", WRITERS)
def test_every_benchmark_has_its_section_on_the_page(name, page):
    assert f'Section("{name}")' in (BENCHMARKS / f"{name}.py").read_text()
    assert page.replaced(page.PAGE.read_text(), name, "new")


def test_every_section_has_its_benchmark(page):
    assert sorted(re.findall("<!-- measured: (.*) -->", page.PAGE.read_text())) == sorted(WRITERS)


# The other libraries


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_is_short_python_that_reports(path):
    text = path.read_text()
    called = {
        one.func.attr for one in ast.walk(ast.parse(text)) if isinstance(one, ast.Call) and hasattr(one.func, "attr")
    }
    assert {"round_ends", "finish"} <= called
    assert len(text.splitlines()) <= 60


def test_every_contestant_has_a_script_and_every_script_a_contestant(peers):
    assert {f"{one.script}_rounds" for one in peers.CONTESTANTS} == {path.stem for path in SCRIPTS}


def test_every_environment_takes_the_pinned_torch(peers):
    for one in peers.CONTESTANTS:
        words = [word for call in one.installs for word in call]
        assert all(word == peers.TORCH for word in words if re.match(r"torch\b", word))


def test_what_does_not_install_is_left_out_with_a_note(peers, monkeypatch, capsys):
    def install(one):
        if one.script == "pfl":
            raise RuntimeError("no such package")

    monkeypatch.setattr(peers, "install", install)
    monkeypatch.setattr(peers, "measure", lambda one, rounds, samples: {"difference": 1e-7})
    names = [one.name for one, _ in peers.ready(peers.Section("peers"))]
    assert names == [one.name for one in peers.CONTESTANTS if one.script != "pfl"]
    assert "left out: pfl (no such package)" in capsys.readouterr().out


def test_what_computes_something_else_stops_the_benchmark(peers, monkeypatch):
    monkeypatch.setattr(peers, "install", lambda one: None)
    monkeypatch.setattr(peers, "measure", lambda one, rounds, samples: {"difference": 1e-3})
    with pytest.raises(SystemExit, match="fedsps, FedAvg computes something else"):
        list(peers.ready(peers.Section("peers")))


@pytest.mark.parametrize("name", ["fedsps", "by_hand", "by_hand --fused"])
def test_what_runs_here_ends_where_the_exact_computation_ends(name, peers):
    (one,) = (one for one in peers.CONTESTANTS if " ".join((one.script, *one.options)) == name)
    found = peers.measure(one, rounds=3, samples=20)
    assert found["difference"] < peers.TOLERANCE
    assert len(found["seconds"]) == 2


def test_a_report_says_how_far_off_the_weights_are(workload, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["x", str(tmp_path / "report"), "--rounds", "2", "--samples", "20"])
    work = workload.Work()
    work.round_ends()
    weight, bias = workload.exact(2)
    with pytest.raises(SystemExit, match="1 rounds were run, not 2"):
        work.finish(weight, bias)
    work.round_ends()
    work.finish(weight, bias)
    assert json.loads((tmp_path / "report").read_text())["difference"] == 0
    work.finish(weight + np.abs(weight).max() / 10, bias)
    assert json.loads((tmp_path / "report").read_text())["difference"] == pytest.approx(0.1)


def test_batches_have_distinct_samples(workload):
    rows = workload.draw(np.random.default_rng(0), 25).reshape(workload.LOCAL_STEPS, workload.BATCH)
    assert all(len(set(batch)) == workload.BATCH for batch in rows.tolist())
    assert rows.max() < 25


# Scripts whose numbers stand in the documentation


@pytest.mark.parametrize("name", ["fedsps", "fedpolyak"])
def test_the_benchmark_of_privacy_takes_what_runs_with_noise_in_a_methods_place(name, monkeypatch):
    found = script(BENCHMARKS / "privacy.py", monkeypatch).accuracy(name, noise=0.5, seed=0, rounds=1)
    assert 0 < found < 1


@pytest.mark.parametrize("name", ["perceptron, 1 local step", "least squares"])
def test_the_benchmark_of_few_rounds_trains_its_own_problems(name, monkeypatch):
    few = script(BENCHMARKS / "few_rounds.py", monkeypatch)
    monkeypatch.setattr(few, "ROUNDS", (10, 20, 30))
    losses = few.of_own(name, "fedavg:client_stepsize=0.01", seed=0)
    assert losses == sorted(losses, reverse=True)
    assert np.isfinite(losses).all()
