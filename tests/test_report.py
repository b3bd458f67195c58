"""The report as text: what it holds, how runs are grouped, and that nothing of a user's can be code in it."""

import json
import sys
from dataclasses import replace
from functools import partial
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import make_clients
from made_runs import EVIL, VERDICT, history, line, rows, save, save_page
from torch import nn
from torch.nn import functional as F

import fedsps
from fedsps.cli.main import main
from fedsps.errors import ConfigurationError, DataError
from fedsps.flower.config import RunConfig
from fedsps.methods.notation import named
from fedsps.model.logistic import network_of
from fedsps.model.models import LogisticRegression
from fedsps.paper.reproduce import PAGES
from fedsps.report import plot
from fedsps.report.collect import collect
from fedsps.report.figures import label, of_page, of_runs, of_searches, thin
from fedsps.report.page import page
from fedsps.runs.result import Result
from fedsps.runs.spec import Spec


class Page(HTMLParser):
    """The texts, tables, options and scripts of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.scripts, self.rows, self.headings, self.words, self.stack = [], [], [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.stack.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag == "td":
            self.rows[-1].append("")
        if tag == "script":
            self.scripts.append("")
        if tag in ("h1", "h2", "figcaption"):
            self.headings.append("")

    def handle_endtag(self, tag):
        while self.stack and self.stack.pop() != tag:
            pass

    def handle_data(self, text):
        if "script" in self.stack:
            self.scripts[-1] += text
            return
        self.words.append(text)
        if "td" in self.stack:
            self.rows[-1][-1] += text
        if self.stack and self.stack[-1] in ("h1", "h2", "figcaption"):
            self.headings[-1] += text

    @property
    def text(self):
        return " ".join(self.words)

    @property
    def data(self):
        return json.loads(self.scripts[0], parse_constant=lambda word: pytest.fail(word))

    def all(self, tag, **wanted):
        return [found for name, found in self.tags if name == tag and wanted.items() <= found.items()]


def report(*places):
    return Page(page(collect(places)))


# Runs


def test_runs_of_one_task_share_a_figure(tmp_path):
    for seed in range(2):
        save(tmp_path, "fedsps", seed=seed)
        save(tmp_path, "fedavg:client_stepsize=0.01", seed=seed)
        save(tmp_path, "fedavg", seed=seed)
    save(tmp_path, "fedsps", local_steps=7)
    found = report(tmp_path)
    assert found.headings[2:-1] == [
        "digits, logistic, two-class, 10 clients, 5 local steps, batch 20",
        "digits, logistic, two-class, 10 clients, 7 local steps, batch 20",
    ]
    first, second = found.data.values()
    assert [one["label"] for one in second] == ["fedsps"]
    assert [(one["label"], one["seeds"]) for one in first] == [
        ("fedsps", ["0", "1"]),
        ("fedavg client_stepsize=0.01", ["0", "1"]),
        ("fedavg client_stepsize=0.1", ["0", "1"]),
    ]


def test_figures_with_the_same_title_say_in_what_they_differ(tmp_path):
    for rounds in (20, 30):
        save(tmp_path, rounds=rounds)
    save(tmp_path, rounds=20, flipped=0.2)
    headings = {figure.heading.partition("batch 20, ")[2] for figure in of_runs(collect([tmp_path]).runs)}
    assert headings == {"flipped 0.0, rounds 20", "flipped 0.0, rounds 30", "flipped 0.2, rounds 20"}


def test_colours_are_those_of_the_figures_on_paper(tmp_path):
    for algorithm in ("fedsps", "fedavg:client_stepsize=0.01", "fedavg:client_stepsize=0.1"):
        save(tmp_path, algorithm)
    (figure,) = of_runs(collect([tmp_path]).runs)
    (first, second, third) = figure.styles()
    assert first == (plot.COLOURS["fedsps"].lower(), "solid")
    assert second == (plot.COLOURS["fedavg"].lower(), "solid")
    assert third[1] == "dash"
    assert third[0] > second[0], "a lighter shade"


def test_runs_saved_from_python(tmp_path):
    model, clients = LogisticRegression(4, 3).double(), make_clients()
    for number, algorithm in enumerate((fedsps.FedSPS(), fedsps.FedSPS(cap=2), fedsps.FedAvg())):
        fedsps.train(model, clients, algorithm=algorithm, rounds=2).save(tmp_path / str(number))
    fedsps.train(model, clients, algorithm=fedsps.FedAvg(), rounds=2).save(tmp_path / "again")
    (figure,) = of_runs(collect([tmp_path]).runs)
    assert figure.heading == "LogisticRegression, 5 clients, 5 local steps, batch 20"
    assert [one.algorithm for one in figure.lines] == ["fedsps", "fedsps", "fedavg"]
    assert figure.lines[2].label == "fedavg"
    assert len(figure.lines[2].histories) == 2, "two folders with one seed are two curves"
    assert "cap=2" in "".join(one.label for one in figure.lines[:2])
    assert "test_accuracy" not in figure.columns, "it was not measured"
    assert "fedavg" in report(tmp_path).text


def test_runs_of_a_federation(tmp_path):
    table = history().assign(clients=3, events="site 2: late", epsilon=np.linspace(0.1, 2, 20))
    network = network_of(nn.Sequential(nn.Linear(2, 2)))
    for algorithm in ("fedavg:client_stepsize=0.5", "fedavg:client_stepsize=1"):
        spec = RunConfig(algorithm=algorithm).spec(network, 3)
        Result(None, table, spec, data={"model": "Sequential", "clients": 3}).save(tmp_path / algorithm)
    (figure,) = of_runs(collect([tmp_path]).runs)
    assert figure.heading == "Sequential, 3 clients, 5 local steps, batch 20"
    assert [one.label for one in figure.lines] == ["fedavg client_stepsize=0.5", "fedavg client_stepsize=1"]
    assert "epsilon" in figure.columns
    assert "events" not in figure.columns
    assert "Linear(" in report(tmp_path).text


def test_an_own_algorithm_is_named_without_its_file():
    spec = Spec(algorithm="gone.py:Mine", parameters={"a": 1, "b": 2}, plan=fedsps.Plan())
    other = replace(spec, parameters={"a": 1, "b": 3})
    assert label(spec, [spec, other]) == "Mine b=2"


def test_settings_and_provenance_are_listed(tmp_path):
    folder = save(tmp_path, "fedsps:cap=2", seed=3)
    found = report(folder)
    text = found.text
    assert len(found.all("details")) == 1
    for word in ("parameters cap", "local_steps", "provenance", "torch", "machine", "finished", "data classes"):
        assert word in text
    assert [folder.name, "fedsps cap=2", "3", "20"] in [row[:4] for row in found.rows]


def test_diverged_runs_are_marked(tmp_path):
    table = history(5, train_loss=[1.0, 2.0, 4.0, np.inf, np.nan])
    save(tmp_path, "fedavg", table=table, diverged_at=5)
    found = report(tmp_path)
    assert "diverged: seed 0 in round 5" in found.text
    (lines,) = found.data.values()
    assert lines[0]["diverged"] == [5]
    assert lines[0]["points"]["train_loss"] == {"rounds": [1, 2, 3], "seeds": [[1.0, 2.0, 4.0]]}


def test_thin_keeps_the_ends_and_bounds_the_size(tmp_path):
    assert thin(3) == [0, 1, 2]
    assert thin(0) == []
    places = thin(12345, 500)
    assert len(places) == 500
    assert (places[0], places[-1]) == (0, 12344)
    assert max(np.diff(places)) <= 25
    save(tmp_path, rounds=5000, table=history(5000, train_loss=np.linspace(1, 0.1, 5000)))
    (lines,) = report(tmp_path).data.values()
    points = lines[0]["points"]["train_loss"]
    assert len(points["rounds"]) == len(points["seeds"][0]) == 500
    assert (points["rounds"][0], points["rounds"][-1]) == (1, 5000)


def test_rounds_that_were_not_evaluated_are_left_out(tmp_path):
    save(tmp_path, table=history(6, train_loss=[np.nan, 1.0] * 3))
    (lines,) = report(tmp_path).data.values()
    assert lines[0]["points"]["train_loss"]["rounds"] == [2, 4, 6]
    assert lines[0]["points"]["cohort_loss"]["rounds"] == [1, 2, 3, 4, 5, 6]


def test_a_run_named_twice_is_there_once(tmp_path):
    folder = save(tmp_path / "runs")
    assert len(collect([tmp_path / "runs", folder, tmp_path / "runs" / ".." / "runs"]).runs) == 1


# Pages of the reproduction


def test_a_page_is_drawn_from_its_table(tmp_path):
    table = pd.concat([rows("FedSPS", train_loss=0.25), rows("FedAvg tuned")])
    lines = [line(runs=["digest"]), line("FedAvg tuned", "fedavg")]
    found = report(save_page(tmp_path / "out", table=table, lines=lines))
    assert found.headings == ["fedsps report", "Verdicts", "Figure 3", "(a) MNIST", "Settings and provenance"]
    assert "A note." in found.text
    assert "convex, smoke scale, 1.5 minutes of training" in found.text
    (lines,) = found.data.values()
    assert [(one["label"], one["seeds"]) for one in lines] == [("FedSPS", ["0", "1"]), ("FedAvg tuned", ["0", "1"])]
    assert lines[0]["points"]["train_loss"]["seeds"] == [[0.25] * 20] * 2
    assert lines[1]["colour"] == plot.COLOURS["fedavg"].lower()
    assert [one["value"] for one in found.all("option") if "selected" in one] == ["cohort_loss"]
    assert found.rows[1] == [
        "C1", "", "figure 3a", "FedSPS matches FedAvg", "at most 1.1 times", "train_loss", "does not hold",
        "loss ratio 1.5 (1 seed)",
    ]  # fmt: skip
    assert "Give the folder of the runs too" in found.text


def test_a_line_that_diverged_at_once_is_still_named(tmp_path):
    lines = [line(), line("FedAvg 9", "fedavg", (), **{"0": 3})]
    found = report(save_page(tmp_path / "out", table=rows(), lines=lines))
    assert "FedAvg 9" in found.text
    assert "diverged: seed 0 in round 3" in found.text
    assert [one["seeds"] for one in next(iter(found.data.values()))] == [["0", "1"], []]


def test_a_page_without_panels_or_without_curves(tmp_path):
    computed = rows("constant", panel="x^2", distance=0.125)
    found = report(save_page(tmp_path / "one", table=computed, panels=[]))
    assert "x^2" in found.headings
    assert "distance" in next(iter(found.data.values()))[0]["points"]
    found = report(save_page(tmp_path / "two", table=pd.DataFrame({"a": [1, 10], "steps": [1, 1]}), panels=[]))
    assert found.data == {}
    assert "FedSPS matches FedAvg" in found.text
    assert "no numbers to draw" in report(save_page(tmp_path / "three", lines=[line()])).text


def test_the_tables_of_a_page(tmp_path):
    out = save_page(tmp_path / "out", panels=[], shown=["prices"], verdicts=[])
    pd.DataFrame({"data <set>": ["a9a", "w8a"], "runs": [123456, 3], "loss": [0.123456, np.nan]}).to_csv(
        out / "prices.csv", index=False
    )
    found = report(out)
    assert found.rows == [[], ["a9a", "123456", "0.1235"], ["w8a", "3", "-"]]
    assert "data <set>" in found.text
    assert "Settings and provenance" not in found.headings, "there are no runs"
    (out / "prices.csv").unlink()
    with pytest.raises(DataError, match="prices.csv cannot be read"):
        collect([out])


def test_pages_come_in_the_order_of_the_paper(tmp_path):
    for name in ("tuning", "convex", "example1"):
        save_page(tmp_path / "out", name)
    assert [one.found["page"] for one in collect([tmp_path / "out"], list(PAGES)).pages] == [
        "example1",
        "convex",
        "tuning",
    ]


def test_a_page_is_drawn_from_its_runs_if_it_has_no_table(tmp_path):
    folders = [save(tmp_path / "runs", seed=seed) for seed in range(2)]
    out = save_page(tmp_path / "out", lines=[line(runs=[folder.name for folder in folders])])
    (figure,) = of_page(collect([out]).pages[0], collect([tmp_path / "runs"]).runs)
    assert list(figure.lines[0].histories) == ["0", "1"]
    assert len(report(out, tmp_path / "runs").data) == 1


def test_the_trials_of_a_search_are_left_out(tmp_path):
    shown = save(tmp_path / "runs")
    save(tmp_path / "runs", seed=1000)
    own = save(tmp_path / "own", seed=5)
    out = save_page(tmp_path / "out", table=rows(), lines=[line(runs=[shown.name])])
    material = collect([out, tmp_path / "runs", tmp_path / "own"])
    assert {run.folder for run in material.runs} == {shown, own}
    assert material.left_out == 1
    found = Page(page(material))
    assert len(found.data) == 2, "the page's panel, and the user's own run"
    assert len(found.all("details")) == 2


# Safety


def test_nothing_of_a_user_is_code_in_the_page(tmp_path):
    verdict = {key: EVIL if isinstance(value, str) else value for key, value in VERDICT.items()}
    table = rows(EVIL, panel=EVIL).assign(**{EVIL: 1.0})
    panels = [{"name": EVIL, "heading": EVIL, "column": EVIL, "lines": [line(EVIL, EVIL, **{EVIL: 3})]}]
    out = save_page(tmp_path / "out", table=table, verdicts=[verdict], panels=panels, title=EVIL, note=EVIL, scale=EVIL)
    spec = Spec.of(named("fedsps"))
    task = replace(spec.task, data=f"/{EVIL}.csv", model=f"{EVIL}:net")
    spec = replace(spec, task=task, algorithm=f"{EVIL}:Mine")
    Result(None, history(), spec, None, {EVIL: EVIL}, {EVIL: EVIL}).save(tmp_path / "runs" / "<b>evil")
    found = report(out, tmp_path / "runs")
    assert not found.all("img")
    assert not found.all("b")
    assert len(found.scripts) == 3, "numbers, plotly, ours"
    assert not [name for _, attributes in found.tags for name in attributes if name.startswith("on")]
    assert EVIL in found.headings
    assert EVIL in found.rows[1]
    assert "<b>evil" in found.text
    assert [one["label"] for lines in found.data.values() for one in lines] == [EVIL, "Mine"]


def test_the_page_names_no_other_place(tmp_path):
    save(tmp_path)
    found = report(tmp_path)
    assert not [attributes for _, attributes in found.tags if attributes.keys() & {"src", "href", "action"}]
    (policy,) = [one["content"] for one in found.all("meta") if "http-equiv" in one]
    assert policy.startswith("default-src 'none';")
    assert policy.count("'sha256-") == 2
    assert "http" not in policy


# The command


@pytest.fixture
def fed(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["fedsps", *map(str, words)])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
        shown = capsys.readouterr()
        return code, " ".join(shown.out.split()), " ".join(shown.err.split())

    return call


def test_the_command_writes_and_says_where(fed, tmp_path):
    folder = save(tmp_path / "runs")
    save(tmp_path / "runs", seed=1000)
    save_page(tmp_path / "out", table=rows(), lines=[line(runs=[folder.name])])
    code, out, _ = fed("report", "runs", "-o", "new/place/page.html")
    assert (code, out) == (0, "report: new/place/page.html (runs: 2, verdicts: 0)")
    assert (tmp_path / "new/place/page.html").read_text().startswith("<!doctype html>")
    out = fed("report", "runs", "out")[1]
    assert out.startswith("left out: 1 runs that lie beside")
    assert out.endswith("report: report.html (runs: 1, verdicts: 1)")
    assert "one interactive HTML page" in fed("report", "--help")[1]


def test_errors_name_the_place_and_the_remedy(fed, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "convex.json").write_text("[]")
    (tmp_path / "older").mkdir()
    (tmp_path / "older" / "convex.json").write_text('{"verdicts": []}')
    save_page(tmp_path / "torn", table=rows(), lines=[line()])
    (tmp_path / "torn" / "convex.csv").write_text("")
    save(tmp_path / "runs")
    for words, message in [
        (["gone"], "gone does not exist: give run folders"),
        (["file"], "file is a file, not a folder: give run folders"),
        (["empty"], "empty holds no finished run and no reproduced page: give run folders (they have a summary.json)"),
        (["old"], "convex.json does not hold a JSON object: run fedsps reproduce again"),
        (["older"], "convex.json was written by another version: run fedsps reproduce convex again"),
        (["torn"], "convex.csv cannot be read"),
        (["runs", "-o", "empty"], "empty is a folder: name a file for the report"),
    ]:
        code, out, err = fed("report", *words)
        assert (code, out) == (2, "")
        assert message in err
        assert "Traceback" not in err
    assert fed("report")[0] == 2, "nothing to show"


def test_a_broken_run_is_named(tmp_path):
    folder = save(tmp_path)
    (folder / "history.parquet").unlink()
    with pytest.raises(DataError, match="it has no history.parquet"):
        collect([tmp_path])


def change(folder, file, without=None, **changes):
    """Rewrite a JSON file of a run."""
    found = json.loads((folder / file).read_text()) | changes
    found.pop(without, None)
    (folder / file).write_text(json.dumps(found))


def without_columns(folder):
    history()[["round"]].to_parquet(folder / "history.parquet")


@pytest.mark.parametrize(
    ("damage", "file", "what"),
    [
        (lambda folder: (folder / "summary.json").write_text("{}"), "summary.json", "no diverged_at"),
        (lambda folder: (folder / "summary.json").write_text(""), "summary.json", "cannot be read"),
        (lambda folder: (folder / "spec.json").write_text("{}"), "spec.json", "no algorithm"),
        (lambda folder: (folder / "spec.json").write_text("[]"), "spec.json", "JSON object"),
        (lambda folder: change(folder, "spec.json", without="plan"), "spec.json", "no plan"),
        (lambda folder: change(folder, "spec.json", plan=5), "spec.json", "int"),
        (lambda folder: change(folder, "spec.json", parameters=[1]), "spec.json", "list"),
        (lambda folder: change(folder, "summary.json", provenance=[]), "summary.json", r"its provenance is \[\]"),
        (lambda folder: (folder / "history.parquet").write_text("?"), "history.parquet", "cannot be read"),
        (without_columns, "history.parquet", "no numbers for train_loss, cohort_loss"),
        (lambda folder: (folder / "spec.json").unlink(), "", "no spec.json"),
    ],
)
def test_a_damaged_run_is_named_with_the_remedy(tmp_path, damage, file, what):
    folder = save(tmp_path)
    damage(folder)
    with pytest.raises(DataError, match=rf"{folder.name}.*{file}.*{what}.*: delete the folder and run again") as found:
        page(collect([tmp_path]))
    assert "\n" not in str(found.value)


def test_runs_of_another_version_are_shown_with_what_is_recorded(tmp_path):
    save(tmp_path / "runs")
    newer = save(tmp_path / "runs", seed=1)
    change(newer, "spec.json", parameters={"cap": 2.0, "fresh": 1.5})
    other = save(tmp_path / "runs", seed=2)
    change(other, "spec.json", algorithm="fednew", parameters={"power": 2})
    part = save(tmp_path / "runs", seed=3)
    change(part, "spec.json", algorithm="sps+newpart", parameters={"sps.cap": 2})
    found = report(tmp_path / "runs")
    labels = {row[1] for row in found.rows if len(row) > 7}
    assert labels == {"fedsps", "fedsps cap=2 fresh=1.5", "fednew", "sps+newpart"}
    drawn = {one["label"] for lines in found.data.values() for one in lines}
    assert drawn == {"fedsps cap=1", "fedsps cap=2 fresh=1.5", "fednew", "sps+newpart"}


def test_a_run_with_settings_that_are_unknown_here_is_named(tmp_path):
    change(save(tmp_path / "runs"), "spec.json", novelty=3)
    with pytest.raises(DataError, match="spec.json is of another version of fedsps .unknown setting 'novelty'"):
        report(tmp_path / "runs")


def test_foreign_json_files_are_no_pages(tmp_path):
    out = save_page(tmp_path / "out", table=rows(), lines=[line()])
    for name, text in [("list", "[]"), ("torn", "{"), ("other", '{"verdicts": 5}'), ("tune", "{}")]:
        (out / f"{name}.json").write_text(text)
    assert [one.found["page"] for one in collect([out]).pages] == ["convex"]


def test_without_plotly_the_extra_is_named(tmp_path, monkeypatch):
    save(tmp_path)
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'fedsps\[report\]'"):
        page(collect([tmp_path]))


# Trials, other models, costs


def test_trials_of_a_search_are_points_and_not_seeds(tmp_path):
    for seed in range(3):
        save(tmp_path, "fedavg", seed=seed)
    for stepsize in (0.01, 0.1, 1):
        save(tmp_path, f"fedavg:client_stepsize={stepsize}", seed=1000, diverged_at=7 if stepsize == 1 else None)
    found = report(tmp_path)
    (line,), search = found.data.values()
    assert line["seeds"] == ["0", "1", "2"], "the trial with the same parameters is not a fourth seed"
    assert sorted(search["across"]["client_stepsize"]) == [0.01, 0.1] and search["up"]["train_loss"] == [0.5, 0.5]
    assert "1 diverged, and have no point." in found.text
    assert "Searches" in found.headings


def test_other_models_and_other_data_never_share_a_line(tmp_path):
    clients = make_clients()
    moved = [(inputs + 1, targets) for inputs, targets in clients]
    deep = [nn.Sequential(nn.Linear(4, width), nn.Linear(width, 3)).double() for width in (5, 6)]
    cases = [(deep[0], clients, 0), (deep[0], clients, 1), (deep[1], clients, 0), (deep[0], moved, 0)]
    for number, (model, data, seed) in enumerate(cases):
        fedsps.train(model, data, rounds=1, seed=seed).save(tmp_path / str(number))
    figures = of_runs(collect([tmp_path]).runs)
    assert sorted(len(figure.lines[0].histories) for figure in figures) == [1, 1, 2]
    assert len({figure.heading for figure in figures}) == 3


def test_trials_of_an_own_method_say_what_was_tried(tmp_path):
    for strength in (0.5, 2.0):
        spec = Spec.of("fedsps", rounds=3, seed=1000)
        own = replace(
            spec,
            algorithm="mine.py:Mine",
            parameters={"strength": strength, "beta": 0.9},
            files={"algorithm": "1" * 64},
        )
        Result(None, history(3), own, None, {}).save(tmp_path / str(strength))
    (found,) = of_searches(collect([tmp_path]).runs)
    assert found.data()["labels"] == ["Mine strength=0.5", "Mine strength=2.0"]


def test_models_of_one_shape_and_other_losses_never_share_a_line(tmp_path):
    clients = make_clients()
    one, other = (nn.Linear(4, 3).double() for _ in range(2))
    losses = [F.cross_entropy, lambda outputs, targets: 10 * F.cross_entropy(outputs, targets)]
    losses += [lambda outputs, targets: 9 * F.cross_entropy(outputs, targets), nn.CrossEntropyLoss(label_smoothing=0.5)]
    losses += [partial(F.cross_entropy, label_smoothing=0.1), partial(F.cross_entropy, label_smoothing=0.2)]
    cases = [(one, loss) for loss in losses] + [(other, F.cross_entropy)]
    for number, (model, loss) in enumerate(cases):
        for seed in range(2):
            fedsps.train(model, clients, rounds=1, seed=seed, loss=loss).save(tmp_path / f"{number}-{seed}")
    figures = of_runs(collect([tmp_path]).runs)
    assert [list(figure.lines[0].histories) for figure in figures] == [["0", "1"]] * len(cases)
    assert len({figure.heading for figure in figures}) == len(cases), "each says what it is"


def test_seeds_share_a_line_whatever_else_goes_with_the_seed(tmp_path):
    clients = make_clients(sizes=(20, 30, 40))
    for seed in range(3):
        torch.manual_seed(seed)
        made = nn.Linear(4, 3).double()
        fedsps.train(made, clients, rounds=1, seed=seed, validation=0.2, test=0.2).save(tmp_path / str(seed))
    (figure,) = of_runs(collect([tmp_path]).runs)
    assert list(figure.lines[0].histories) == ["0", "1", "2"], "a start and held back samples of their own"
    swept = fedsps.compare("fedsps", model=made, clients=clients, test=clients[0], rounds=1, seeds=2)
    alone = fedsps.train(made, clients, test=clients[0], rounds=1)
    for result in swept.results["fedsps"]:
        assert (result.data["fingerprint"], result.data["start"]) == (alone.data["fingerprint"], alone.data["start"])
    untested = fedsps.train(made, clients, rounds=1)
    assert untested.data["fingerprint"] != alone.data["fingerprint"], "test accuracies of other data are not one mean"


def test_versions_of_a_file_and_namesakes_are_lines_of_their_own(tmp_path):
    specs = [
        Spec.of("fedsps"),
        replace(Spec.of("fedsps"), algorithm="a.py:Mine", files={"algorithm": "1" * 64}),
        replace(Spec.of("fedsps"), algorithm="a.py:Mine", files={"algorithm": "2" * 64}),
        replace(Spec.of("fedsps"), algorithm="b.py:Other", files={"algorithm": "3" * 64}),
        replace(Spec.of("fedsps"), algorithm="c.py:Other", files={"algorithm": "3" * 64}),
    ]
    assert [label(spec, specs) for spec in specs] == [
        "fedsps", "Mine (11111111)", "Mine (22222222)", "b.py:Other", "c.py:Other",
    ]  # fmt: skip


def test_costs_the_table_and_what_the_band_is(tmp_path):
    for seed in range(2):
        save(tmp_path, "fedsps", seed=seed, table=history(train_loss=0.25 + 0.25 * seed, gradient_evaluations=10))
        save(tmp_path, "fedavg", seed=seed)
    found = report(tmp_path)
    first, _ = found.data["figure-1"]
    assert first["costs"]["round"][-1] == 20 and first["costs"]["gradient_evaluations"][-1] == 200
    assert [option["value"] for option in found.all("option") if option["value"] in first["costs"]] == [
        "round", "gradient_evaluations", "bytes", "seconds",
    ]  # fmt: skip
    assert ["fedsps", "2", "0.375", "0.1768"] in [row[:4] for row in found.rows]
    assert "Band: from the least to the largest of them." in found.text
    assert "2 seeds: mean ± standard deviation" in found.text
