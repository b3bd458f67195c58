"""Pages: their plans are valid, their figures and verdicts are pure functions of records; kinds of checks."""

import copy
import itertools
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import get_args

import numpy as np
import pandas as pd
import pytest
from made_runs import ROUNDS, run

from fedsps.errors import ConfigurationError, DataError
from fedsps.methods.notation import parse
from fedsps.paper import claims
from fedsps.paper.document import document
from fedsps.paper.execute import search
from fedsps.paper.page import Claim, Cost, Evidence, Job, Line, Page, Panel, Records, Scale, Tuned, Verdict, decide
from fedsps.paper.pages import lenet, tuning
from fedsps.paper.reproduce import PAGES, Reproduction, find, reproduce_page, table, write
from fedsps.report import plot
from fedsps.runs.spec import Spec

CLAIMS = [(name, claim) for name in PAGES for claim in find(name).claims]


def records(finals: Mapping[str, Mapping[str, list[float]]]) -> Records:
    """From panel -> label -> the final loss of each seed."""
    return Records(
        {
            panel: {label: [run(one, seed=s) for s, one in enumerate(some)] for label, some in lines.items()}
            for panel, lines in finals.items()
        }
    )


def test_decide():
    yes, no = np.array([True, True]), np.array([False, False])
    numbers = np.array([1.0, 2.0])
    assert decide(Evidence(yes, numbers))[0] == "holds"
    assert decide(Evidence(no, numbers))[0] == "does not hold"
    assert decide(Evidence(np.array([True, False]), numbers))[0] == "undecided"
    assert decide(Evidence(np.array([], bool), np.array([])))[0] == "undecided"
    assert decide(Evidence(yes, np.array([1.0, np.nan])))[0] == "undecided"


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (claims.at_most("p", "A", 1.1, "B", "C"), {"A": 1.0, "B": 1.0, "C": 2.0}, {"A": 1.2, "B": 1.0, "C": 2.0}),
        (claims.within("p", "A", "B", 0.75, 1.0), {"A": 0.8, "B": 1.0}, {"A": 0.5, "B": 1.0}),
        (claims.at_least("p", "A", 2.0, "B"), {"A": 3.0, "B": 1.0}, {"A": 1.5, "B": 1.0}),
        (claims.as_accurate("p", "A", 0.01, "B"), {"A": 0.1, "B": 0.105}, {"A": 0.3, "B": 0.1}),
    ],
    ids=["at most", "within", "at least", "as accurate"],
)
def test_each_kind_of_check_has_three_outcomes(check, good, bad):
    def outcome(*seeds):
        found = records({"p": {label: [seed[label] for seed in seeds] for label in good}})
        return decide(check(found, "train_loss"))[0]

    assert outcome(good, good) == "holds"
    assert outcome(bad, bad) == "does not hold"
    assert outcome(good, bad) == "undecided"


def test_checks_combine():
    both = claims.all_of(claims.at_most("p", "A", 1.0, "B"), claims.at_most("p", "A", 1.0, "C"))
    assert both(records({"p": {"A": [1.0], "B": [2.0], "C": [3.0]}}), "train_loss").true.all()
    failed = both(records({"p": {"A": [1.0], "B": [2.0], "C": [0.5]}}), "train_loss")
    assert not failed.true.any()
    assert failed.effect == pytest.approx([2.0]), "the ratio that fails, not the first one"
    ratios = np.array([[1.1, 1.2], [0.5, 1.0]])
    assert claims.farthest(ratios) == pytest.approx([0.5, 1.2])
    assert claims.least(ratios) == pytest.approx([0.5, 1.0])


def test_a_diverged_run_ends_at_infinity():
    found = Records({"p": {"A": [run(0.5)], "B": [run(0.1, diverged=True)]}})
    assert claims.at_most("p", "A", 1.0, "B")(found, "train_loss").true.all()
    assert not claims.at_most("p", "B", 1.0, "A")(found, "train_loss").true.any()


def test_spread_and_trend():
    steady, falling = run(stepsize_mean=0.5), run(stepsize_mean=np.linspace(1.0, 0.1, ROUNDS))
    found = Records({"p": {"A": [steady], "B": [falling]}})
    assert claims.trend(found, "p", "A", "stepsize_mean") == pytest.approx([1.0])
    assert claims.trend(found, "p", "B", "stepsize_mean")[0] < 0.15
    small = claims.small_spread(["p"], "A", "stepsize_std_clients", "stepsize_mean", 0.25)
    assert small(found, "").effect == pytest.approx([0.1])
    assert small(found, "").true.all()
    wide = Records({"p": {"A": [run(stepsize_std_clients=0.4)]}})
    assert not small(wide, "").true.any()


def test_the_table_has_a_hundred_rounds_and_all_evaluated_ones():
    def rounds(some, evaluated):
        numbers = np.arange(1, some + 1)
        history = pd.DataFrame({"round": numbers, "train_loss": np.where(numbers % evaluated, np.nan, 1.0)})
        one = replace(run(), history=history)
        return table(Records({"p": {"A": [one]}}))["round"].tolist()

    assert rounds(500, 125) == list(range(5, 501, 5))
    assert rounds(500, 3) == sorted({*range(3, 501, 3), *range(5, 501, 5)})
    assert rounds(20, 20) == list(range(1, 21))


def test_a_page_is_run_drawn_and_judged(tmp_path):
    own = Tuned("fedavg", grid={"client_stepsize": (0.001, 0.1)})
    panel = Panel("p", "digits", {"rounds": 2, "evaluate_every": 1}, [Line("FedAvg tuned", own)])
    claim = Claim("X1", "it learns", "", "loss below 2.3", "loss", lambda records, column: (
        Evidence(records.final("p", "FedAvg tuned", column) < 2.3, records.final("p", "FedAvg tuned", column))
    ))  # fmt: skip
    page = Page("small", "Small", lambda scale: [panel], lenet.PAGE.draw, [claim], seeds=2)
    for scale, seeds in {"smoke": 1, "paper": 2}.items():
        found = reproduce_page(page, scale, seeds=None, runs=tmp_path / "runs", folder=tmp_path / scale)
        chosen = found.records.of("p", "FedAvg tuned")
        assert [one.spec.plan.seed for one in chosen] == list(range(seeds))
        assert chosen[0].spec.parameters["client_stepsize"] == 0.1
        assert (found.records.cost.runs, found.records.cost.trials) == (seeds, 2)
        assert found.records.cost.search_seconds > 0
        assert {verdict.outcome for verdict in found.verdicts} == {"holds"}
        assert (tmp_path / scale / "small.csv").is_file()
        lines = json.loads((tmp_path / scale / "small.json").read_text())["panels"][0]["lines"]
        assert [line["tuned"] for line in lines] == [{"client_stepsize": 0.1}]
    with pytest.raises(ConfigurationError, match="holds the page small at paper scale, not smoke"):
        reproduce_page(page, "smoke", seeds=None, runs=tmp_path / "runs", folder=tmp_path / "paper")


@pytest.mark.parametrize("name", PAGES)
def test_plans_are_valid(name):
    page = find(name)
    for scale in get_args(Scale):
        for panel in page.panels(scale):
            for line in panel.lines:
                if isinstance(line.algorithm, Tuned):
                    search(panel, line, line.algorithm, scale)
                else:
                    Spec.of(parse(line.algorithm)[0], **(dict(panel.settings) | dict(line.settings)))


def made_up(page, panels):
    """Two runs a line, or what the page computes."""
    if page.name == "example1":
        return page.compute(panels, Job("example1", "smoke", 2, None))
    if page.name == "tuning":
        point = {"algorithm": "FedAvg", "client_stepsize": 0.1, "server_stepsize": 1.0, "score": 0.5, "fedsps": 0.4}
        grid = pd.DataFrame([{"setting": p.name, "diverged": False, "dropped": False} | point for p in panels])
        return tuning.records(grid)
    return Records(
        {p.name: {line.label: [run(0.5 + 0.01 * s, seed=s) for s in range(2)] for line in p.lines} for p in panels}
    )


@pytest.mark.parametrize("scale", ["smoke", "paper"])
@pytest.mark.parametrize("name", PAGES)
def test_every_page_judges_and_draws_made_up_records(name, scale, tmp_path):
    page = find(name)
    panels = page.panels(scale)
    made = made_up(page, panels)
    before = copy.deepcopy(
        {p: {label: [one.history for one in some] for label, some in lines.items()} for p, lines in made.runs.items()}
    )
    verdicts = [verdict for claim in page.claims for verdict in claim.verdicts(made)]
    assert len(verdicts) == sum(2 if claim.on_loss else 1 for claim in page.claims)
    figures = page.draw(made, panels, tmp_path)
    for figure in figures:
        assert figure.read_bytes().startswith(b"\x89PNG")
        assert figure.with_suffix(".pdf").exists()
    for panel, lines in made.runs.items():
        for label, some in lines.items():
            for number, one in enumerate(some):
                pd.testing.assert_frame_equal(one.history, before[panel][label][number])
    write(Reproduction(page, scale, 2, panels, made, figures, verdicts), tmp_path)
    text = document(tmp_path, tmp_path / "page.md", list(PAGES))
    for claim in page.claims:
        assert claim.criterion in text
    assert f"]({figures[0].name})" in text
    tuned = [line.label for panel in panels for line in panel.lines if isinstance(line.algorithm, Tuned)]
    assert all(f"| {label} | client_stepsize 0.1" in text for label in tuned if made.runs)
    assert all("| " + " | ".join(made.tables[name].columns) + " |" in text for name in page.shown)
    assert not made.runs or set(table(made)["panel"]) == {p.name for p in panels}


def test_the_document_counts_verdicts_and_says_what_pages_took(tmp_path):
    claim = Claim("X1", "a number", "nowhere", "none", "nothing", lambda *_: Evidence(np.array([]), np.array([])))
    for name, outcomes, cost in [
        ("convex", ["holds", "holds"], Cost(3, 30.0, 40, 90000.0)),
        ("global", ["does not hold"], Cost()),
    ]:
        verdicts = [Verdict(claim, "", outcome, np.array([1.0])) for outcome in outcomes]
        page = Page(name, f"Title of {name}", lambda _: [], lambda *_: [], [claim])
        write(Reproduction(page, "laptop", 3, [], Records({}, cost=cost), [], verdicts), tmp_path / "figures")
    text = document(tmp_path / "figures", tmp_path / "page.md", list(PAGES))
    assert "3 verdicts: 2 *holds*, 1 *does not hold*, 0 *undecided*." in text
    assert "| convex | laptop | 3 | 3 | 0.5 min | 40 | 25.0 h | 2 | 0 | 0 |" in text
    assert text.index("Title of convex") < text.index("Title of global")
    found = json.loads((tmp_path / "figures" / "global.json").read_text())
    (tmp_path / "figures" / "global.json").write_text(json.dumps(found | {"shown": ["numbers"]}))
    with pytest.raises(DataError, match=r"numbers.csv is missing: run fedsps reproduce global again"):
        document(tmp_path / "figures", tmp_path / "page.md", list(PAGES))
    (tmp_path / "figures" / "convex.json").write_text("{}")
    with pytest.raises(DataError, match=r"convex.json was written by another version: run fedsps reproduce convex"):
        document(tmp_path / "figures", tmp_path / "page.md", list(PAGES))


def test_variants_of_one_algorithm_can_be_told_apart():
    for variants in (2, 4, 8):
        colours = [np.array(colour) for colour, _ in plot.styles({f"scale {n}": "fedsps" for n in range(variants)})]
        steps = [np.abs(a - b).sum() for a, b in itertools.pairwise(colours)]
        assert min(steps) > 0.1
        assert max(colour.mean() for colour in colours) < 0.8, "on white paper"
    one, two = plot.styles({"FedSPS": "fedsps", "FedAvg": "fedavg"})
    assert one == ((213 / 255, 94 / 255, 0.0), "-"), "alone it has the algorithm's own colour"
    assert two[0] != one[0]


def test_no_two_claims_share_a_name():
    identifiers = [claim.id for _, claim in CLAIMS]
    assert sorted(set(identifiers)) == sorted(identifiers)


def test_unknown_pages_get_a_hint():
    with pytest.raises(ConfigurationError, match="unknown page 'convexx': did you mean convex"):
        find("convexx")
    assert find("convex").name == "convex"


def test_a_page_is_written_as_json_with_the_digests_of_its_runs(tmp_path):
    settings = {"rounds": 2, "samples": 200}
    lines = [Line("FedSPS", "fedsps"), Line("cap 2", "fedsps:cap=2")]
    never = Claim(
        "X1", "a number", "nowhere", "none", "nothing", lambda *_: Evidence(np.array([True]), np.array([np.nan]))
    )
    page = Page(
        "small", "A title", lambda _: [Panel("p", "heading", settings, lines)], lambda *_: [], [never], "A note."
    )
    outcome = reproduce_page(page, "smoke", seeds=2, runs=tmp_path / "runs", folder=tmp_path)
    found = json.loads((tmp_path / "small.json").read_text(), parse_constant=lambda word: pytest.fail(word))
    assert (found["page"], found["title"], found["note"], found["scale"]) == ("small", "A title", "A note.", "smoke")
    assert found["seconds"] == outcome.records.cost.seconds > 0
    assert (found["runs"], found["trials"], found["search_seconds"]) == (4, 0, 0.0)
    assert [(one["id"], one["loss"], one["effect"]) for one in found["verdicts"]] == [
        ("X1", "train_loss", [None]), ("X1", "cohort_loss", [None]),
    ]  # fmt: skip
    (panel,) = found["panels"]
    assert (panel["name"], panel["heading"], panel["column"]) == ("p", "heading", "train_loss")
    assert [(line["label"], line["algorithm"]) for line in panel["lines"]] == [
        ("FedSPS", "fedsps"),
        ("cap 2", "fedsps"),
    ]
    for line, cap in zip(panel["lines"], (1.0, 2.0), strict=True):
        specs = [json.loads((tmp_path / "runs" / digest / "spec.json").read_text()) for digest in line["runs"]]
        assert [(spec["plan"]["seed"], spec["parameters"]["cap"]) for spec in specs] == [(0, cap), (1, cap)]
