"""Pages: their plans are valid, their figures and verdicts are pure functions of records; kinds of checks."""

import copy
import itertools
import json
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import get_args

import numpy as np
import pandas as pd
import pytest
from made_runs import ROUNDS, run

from fedsps.errors import ConfigurationError, DataError, FailedRunsError, Failure
from fedsps.methods.notation import Named, parse
from fedsps.paper import claims, execute
from fedsps.paper.document import document, verdict_table
from fedsps.paper.evidence import Evidence
from fedsps.paper.execute import search
from fedsps.paper.page import Claim, Cost, Job, Line, Page, Panel, Records, Scale, Tuned, Verdict
from fedsps.paper.pages import beyond, lenet, tuning
from fedsps.paper.reproduce import (
    PAGES,
    check_room,
    find,
    judge,
    judge_again,
    reproduce,
    reproduce_page,
    seeds_of,
    writing,
)
from fedsps.paper.stored import known
from fedsps.paper.written import Reproduction, table, write
from fedsps.report import plot
from fedsps.runs.files import only_one
from fedsps.runs.result import Result
from fedsps.runs.spec import Spec
from fedsps.runs.tuning import TuningResult

CLAIMS = [(name, claim) for name in PAGES for claim in find(name).claims]


def records(finals: Mapping[str, Mapping[str, list[float]]]) -> Records:
    """From panel -> label -> the final loss of each seed."""
    return Records(
        {
            panel: {label: [run(one, seed=s) for s, one in enumerate(some)] for label, some in lines.items()}
            for panel, lines in finals.items()
        }
    )


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (claims.at_most("p", "A", 1.1, "B"), {"A": 1.0, "B": 1.0}, {"A": 1.2, "B": 1.0}),
        (claims.within("p", "A", "B", 0.75, 1.0), {"A": 0.8, "B": 1.0}, {"A": 0.5, "B": 1.0}),
        (claims.at_least("p", "A", 2.0, "B"), {"A": 3.0, "B": 1.0}, {"A": 1.5, "B": 1.0}),
        (claims.as_accurate("p", "A", 0.01, "B"), {"A": 0.1, "B": 0.105}, {"A": 0.3, "B": 0.1}),
    ],
    ids=["at most", "within", "at least", "as accurate"],
)
def test_each_kind_of_check_has_three_outcomes(check, good, bad):
    def outcome(*seeds):
        found = records({"p": {label: [seed[label] for seed in seeds] for label in good}})
        return check(found, "train_loss").outcome

    assert outcome(good, good) == "holds"
    assert outcome(bad, bad) == "does not hold"
    assert outcome(good, bad) == "undecided"


def test_each_case_has_a_verdict_of_its_own():
    cases = {rival: claims.at_most("p", "A", 1.0, rival) for rival in ("B", "C")}
    claim = Claim("X1", "A is best", "nowhere", "at most the other's", "loss ratio", cases)
    found = claim.verdicts(records({"p": {"A": [1.0, 1.1], "B": [2.0, 2.1], "C": [0.5, 0.6]}}))
    assert [(one.case, one.column, one.outcome) for one in found] == [
        (case, column, outcome)
        for case, outcome in (("B", "holds"), ("C", "does not hold"))
        for column in ("train_loss", "cohort_loss")
    ]
    assert found[0].numbers == "loss ratio 0.512 [0.381, 0.688] (2 seeds)"


def test_a_diverged_run_ends_at_infinity():
    found = Records({"p": {"A": [run(0.5)] * 2, "B": [run(0.1, diverged=True)] * 2}})
    assert claims.at_most("p", "A", 1.0, "B")(found, "train_loss").outcome == "holds"
    assert claims.at_most("p", "B", 1.0, "A")(found, "train_loss").outcome == "does not hold"


def test_spread_and_trend():
    steady, falling = run(stepsize_mean=0.5), run(stepsize_mean=np.linspace(1.0, 0.1, ROUNDS))
    found = Records({"p": {"A": [steady], "B": [falling]}})
    assert claims.trend(found, "p", "A", "stepsize_mean") == pytest.approx([1.0])
    assert claims.trend(found, "p", "B", "stepsize_mean")[0] < 0.15
    small = claims.small_spread("p", "A", "stepsize_std_clients", "stepsize_mean", 0.25)
    assert small(found, "").effect == pytest.approx([0.1])
    assert small(found, "").high == 0.25


def test_the_table_has_a_hundred_rounds_and_all_evaluated_ones():
    def rounds(some, evaluated):
        numbers = np.arange(1, some + 1)
        history = pd.DataFrame({"round": numbers, "train_loss": np.where(numbers % evaluated, np.nan, 1.0)})
        one = replace(run(), history=history)
        return table(Records({"p": {"A": [one]}}))["round"].tolist()

    assert rounds(500, 125) == sorted({*range(5, 501, 5), *range(451, 501)})
    assert rounds(500, 3) == sorted({*range(3, 501, 3), *range(5, 501, 5), *range(451, 501)})
    assert rounds(20, 20) == list(range(1, 21))


def test_a_page_is_run_drawn_and_judged(tmp_path):
    own = Tuned("fedavg", grid={"client_stepsize": (0.001, 0.1)})
    panel = Panel("p", "digits", {"rounds": 2, "evaluate_every": 1}, [Line("FedAvg tuned", own)])
    claim = Claim("X1", "it learns", "", "loss below 2.3", "loss", lambda records, column: (
        Evidence(records.final("p", "FedAvg tuned", column), high=2.3)
    ))  # fmt: skip
    page = Page("small", "Small", lambda scale: [panel], lenet.PAGE.draw, [claim], seeds=2)
    for scale, seeds in {"smoke": 1, "paper": 2}.items():
        found = reproduce_page(page, Job("", scale, seeds_of(page, scale, None), tmp_path / "runs"), tmp_path / scale)
        chosen = found.records.of("p", "FedAvg tuned")
        assert [one.spec.plan.seed for one in chosen] == list(range(seeds))
        assert chosen[0].spec.parameters["client_stepsize"] == 0.1
        assert (found.records.cost.runs, found.records.cost.trials) == (seeds, 2)
        assert found.records.cost.search_seconds > 0
        assert {verdict.words for verdict in found.verdicts} == {"undecided" if seeds == 1 else "holds"}
        assert (tmp_path / scale / "small.csv").is_file()
        lines = json.loads((tmp_path / scale / "small.json").read_text())["panels"][0]["lines"]
        assert [line["tuned"] for line in lines] == [{"client_stepsize": 0.1}]
    with pytest.raises(ConfigurationError, match="holds the page small at paper scale, not smoke"):
        check_room(page, "smoke", tmp_path / "paper")
    with pytest.raises(ConfigurationError, match="holds the page small at paper scale, not smoke"):
        check_room(page, "smoke", tmp_path / "paper", add=True)
    check_room(page, "paper", tmp_path / "smoke", add=True)


def test_a_page_is_written_by_one_process_at_a_time(tmp_path):
    """Of two that add to its tables one would lose what the other added; other pages may be written meanwhile."""
    with only_one(tmp_path, "held", ".example1.lock"):
        with pytest.raises(ConfigurationError, match="another process writes the page example1 into .*: wait for it"):
            reproduce("example1", output=tmp_path, runs=tmp_path)
        assert not (tmp_path / "example1.json").exists()
        (tmp_path / "example1.json").write_text("{}")
        with pytest.raises(ConfigurationError, match="another process writes the page example1"):
            reproduce("example1", output=tmp_path, from_tables=True)
        with writing(find("convex"), tmp_path):
            pass


def two_panels():
    """A page of two panels, one of them with a search."""
    own = Tuned("fedavg", grid={"client_stepsize": (0.001, 0.1)})
    settings = {"rounds": 2, "evaluate_every": 1, "samples": 200}
    panels = [
        Panel("first", "first", settings, [Line("FedAvg tuned", own), Line("FedSPS", "fedsps")]),
        Panel("second", "second", settings, [Line("FedSPS", "fedsps"), Line("cap 2", "fedsps:cap=2")]),
    ]
    claim = Claim("X1", "it learns", "", "loss below 2.3", "loss", lambda records, column: (
        Evidence(records.final("second", "cap 2", column), high=2.3)
    ))  # fmt: skip
    return Page("convex", "Small", lambda scale: panels, lenet.PAGE.draw, [claim], seeds=2)


def test_a_page_is_run_in_stretches_that_share_nothing_but_its_tables(tmp_path, monkeypatch):
    page, job = two_panels(), Job("", "paper", 2, tmp_path / "runs")
    whole = reproduce_page(page, job, tmp_path / "whole")
    is_over = iter([False, True])
    monkeypatch.setattr(Job, "is_over", property(lambda self: next(is_over)))
    stretch = replace(job, runs=tmp_path / "other", until=60.0)
    part = reproduce_page(page, stretch, tmp_path / "parts")
    assert list(part.records.runs) == ["first"]
    assert {verdict.words for verdict in part.verdicts} == {"undecided (not run)"}
    assert "| convex | paper, 1 of 2 panels | 2 |" in document(tmp_path / "parts", tmp_path / "page.md", ["convex"])
    monkeypatch.undo()

    trained, searches = [], []
    run_all, run_search = execute.run_all, execute.run_search
    monkeypatch.setattr(execute, "run_all", lambda specs, *a, **k: trained.extend(specs) or run_all(specs, *a, **k))
    monkeypatch.setattr(execute, "run_search", lambda *a, **k: searches.append(a) or run_search(*a, **k))
    there = known([page], page, "paper", tmp_path / "parts")
    again = reproduce_page(page, replace(job, runs=tmp_path / "third", known=there), tmp_path / "parts")
    assert [(spec.parameters["cap"], spec.plan.seed) for spec in trained] == [(2.0, 0), (2.0, 1)], "FedSPS is shared"
    assert not searches
    tables = [pd.read_csv(tmp_path / folder / "convex.csv") for folder in ("parts", "whole")]
    pd.testing.assert_frame_equal(*tables, rtol=1e-4)  # other runs may have been computed together
    assert [verdict.words for verdict in again.verdicts] == [verdict.words for verdict in whole.verdicts]
    cost = again.records.cost
    assert (cost.runs, cost.trials) == (whole.records.cost.runs, whole.records.cost.trials) == (6, 2)
    assert cost.seconds > 0 and cost.search_seconds > 0

    judge_again(page, tmp_path / "parts")  # what is known is still known
    trained.clear()
    there = known([page], page, "paper", tmp_path / "parts")
    late = replace(job, runs=tmp_path / "fourth", known=there, until=0.0)
    assert reproduce_page(page, late, tmp_path / "parts").records.cost.runs == 6 and not trained and not searches
    fewer = {key: run for key, run in there.runs.items() if run.spec.parameters != {"client_stepsize": 0.1}}
    assert len(fewer) == 4
    late = replace(late, known=replace(there, runs=fewer))
    assert reproduce_page(page, late, tmp_path / "parts").records.cost.runs == 6, "what the tables hold is not lost"
    assert len(trained) == 2


def test_a_tuned_line_is_judged_on_a_loss_with_the_winner_by_that_loss(tmp_path, monkeypatch):
    page, job = two_panels(), Job("", "paper", 2, tmp_path / "runs")
    (panel, _), (line, *_) = page.panels("paper"), page.panels("paper")[0].lines
    found = execute.searched(panel, line, line.algorithm, job)
    by_cohort = found.scored_by("cohort_loss", job.runs).table
    for digest, score in zip(by_cohort["digest"], by_cohort["score"], strict=True):
        history = Result.load(job.runs / digest).history
        assert score == history["cohort_loss"].iloc[-1] != history["train_loss"].iloc[-1]

    def reversed_scores(tuned, column, runs):
        return replace(tuned, table=tuned.table.assign(score=-tuned.table["score"]))

    monkeypatch.setattr(TuningResult, "scored_by", reversed_scores)
    records = reproduce_page(page, job, tmp_path / "page").records
    chosen = {
        column: {run.spec.parameters["client_stepsize"] for run in records.of("first", "FedAvg tuned", column)}
        for column in ("train_loss", "cohort_loss", "test_accuracy")
    }
    assert chosen == {"train_loss": {0.1}, "cohort_loss": {0.001}, "test_accuracy": {0.1}}
    assert records.labels("first") == ["FedAvg tuned", "FedSPS"], "one line of the legend"
    other = records.runs["first"]["FedAvg tuned by cohort_loss"]
    ends = [run.history["cohort_loss"].iloc[-1] for run in other]
    np.testing.assert_array_equal(records.final("first", "FedAvg tuned", "cohort_loss"), ends)
    assert (records.cost.runs, records.cost.trials) == (8, 2)

    monkeypatch.setattr(execute, "run_search", None)  # both winners are known from the tables
    later = replace(job, runs=tmp_path / "other", known=known([page], page, "paper", tmp_path / "page"))
    again = reproduce_page(page, later, tmp_path / "page").records
    assert again.winners["first", "FedAvg tuned by cohort_loss"].chosen.parameters["client_stepsize"] == 0.001
    assert {winner.on for winner in again.winners.values()} == {("train_loss",), ("cohort_loss",)}


def test_what_a_search_chose_outlives_a_stretch_that_ends_before_its_panel_is_complete(tmp_path, monkeypatch):
    page, job, folder = two_panels(), Job("", "paper", 2, tmp_path / "runs"), tmp_path / "page"

    def ended(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(execute, "run_all", ended)
        reproduce_page(page, job, folder)
    assert [path.name for path in folder.iterdir()] == ["convex-searches.json"]
    there = known([page], page, "paper", folder)
    assert {(pick, column) for _, pick, column in there.winners} == {("best", "train_loss"), ("best", "cohort_loss")}
    search = execute.searched
    monkeypatch.setattr(execute, "searched", None)
    later = replace(job, runs=tmp_path / "other", known=there)
    again = reproduce_page(page, later, folder).records
    monkeypatch.setattr(execute, "searched", search)
    plain = reproduce_page(page, replace(job, runs=tmp_path / "third"), tmp_path / "plain").records
    assert {key: winner.chosen for key, winner in again.winners.items()} == {
        key: winner.chosen for key, winner in plain.winners.items()
    }
    assert again.cost.trials == plain.cost.trials and not (folder / "convex-searches.json").exists()


def test_damaged_notes_of_searches_are_refused_by_name(tmp_path):
    for text in ('{"searches": [{}]}', '{"searches": 3}', "[]", "{"):
        (tmp_path / "convex-searches.json").write_text(text)
        with pytest.raises(DataError, match="convex-searches.json"):
            known([two_panels()], two_panels(), "paper", tmp_path)


def test_a_page_is_judged_by_its_tables_alone(tmp_path):
    """What is judged first and what is judged again from the tables are the same numbers, to the last digit."""
    page = two_panels()
    first = reproduce_page(page, Job("", "paper", 2, tmp_path / "runs"), tmp_path)
    text = (tmp_path / "convex.json").read_bytes()
    again = judge_again(page, tmp_path)
    assert [verdict.numbers for verdict in again.verdicts] == [verdict.numbers for verdict in first.verdicts]
    assert (tmp_path / "convex.json").read_bytes() == text
    digits = pd.read_csv(tmp_path / "convex.csv").query("panel == 'second' and line == 'cap 2'")
    np.testing.assert_array_equal(first.verdicts[0].evidence.effect, digits.query("round == 2")["train_loss"])


def test_what_an_algorithm_was_made_of_is_part_of_what_is_known(tmp_path, monkeypatch):
    page, job = two_panels(), Job("", "paper", 1, tmp_path / "runs")
    reproduce_page(page, job, tmp_path / "page")
    there = known([page], page, "paper", tmp_path / "page")
    spec = Spec.of(parse("fedsps:cap=2")[0], seed=0, **page.panels("paper")[1].settings)
    later = replace(job, known=there)
    assert execute.known_run(spec, later).spec == spec and execute.known_run(spec, job) is None
    monkeypatch.setattr(Named, "parts", "composed otherwise")
    assert execute.known_run(spec, later) is None


def test_a_stretch_does_not_write_over_what_it_would_not_take(tmp_path):
    (tmp_path / "convex.json").write_text(json.dumps({"scale": "smoke"}))
    with pytest.raises(ConfigurationError, match=r"convex.json may hold panels .* would be lost: add to it"):
        reproduce("convex", output=tmp_path, runs=tmp_path / "runs", minutes=1.0)
    assert json.loads((tmp_path / "convex.json").read_text()) == {"scale": "smoke"}


def test_seeds_that_the_tables_have_are_not_given_up(tmp_path, monkeypatch):
    page = two_panels()
    monkeypatch.setattr("fedsps.paper.reproduce.find", lambda name: page if name == "convex" else find(name))
    reproduce("convex", scale="smoke", seeds=2, output=tmp_path / "page", runs=tmp_path / "runs")
    before = (tmp_path / "page" / "convex.csv").read_bytes()
    (again,) = reproduce("convex", scale="smoke", add=True, output=tmp_path / "page", runs=tmp_path / "other")
    assert again.seeds == 2 and (tmp_path / "page" / "convex.csv").read_bytes() == before
    assert not (tmp_path / "other").exists(), "nothing was trained"
    (tmp_path / "page" / "convex.json").unlink()
    with pytest.raises(ConfigurationError, match=r"convex.json is missing, which says what .*convex.csv holds"):
        reproduce("convex", scale="smoke", add=True, output=tmp_path / "page", runs=tmp_path / "other")
    assert (tmp_path / "page" / "convex.csv").read_bytes() == before


def test_runs_of_which_another_page_keeps_less_are_not_taken(tmp_path):
    page, job = two_panels(), Job("", "paper", 1, tmp_path / "runs")
    other = replace(page, name="lenet", kept=beyond.kept)
    reproduce_page(other, job, tmp_path / "page")
    assert known([other], other, "paper", tmp_path / "page").runs
    found = known([page, other], page, "paper", tmp_path / "page")
    assert not found.runs and len(found.winners) == 2 and not found.panels, "winners are the same on every page"


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("convex.csv", lambda text: text[: text.index("\nsecond")]),  # cut between two panels
        ("convex.csv", lambda text: ""),
        ("convex.csv", lambda text: text.splitlines()[0]),
        ("convex.csv", lambda text: text.replace("panel,", "pane,", 1)),
        ("convex.csv", lambda text: None),
        ("convex.json", lambda text: text.replace('"runs"', '"walks"')),
        ("convex.json", lambda text: text.replace('"diverged": {}', '"diverged": null')),
    ],
)
def test_damaged_tables_are_refused_by_name_and_stay_as_they_are(tmp_path, file, damage):
    page = two_panels()
    reproduce_page(page, Job("", "paper", 1, tmp_path / "runs"), tmp_path)
    text = damage((tmp_path / file).read_text())
    (tmp_path / file).unlink() if text is None else (tmp_path / file).write_text(text)
    for use in (lambda: judge_again(page, tmp_path), lambda: known([page], page, "paper", tmp_path)):
        with pytest.raises(DataError, match=r"convex"):
            use()
    assert text is None or (tmp_path / file).read_text() == text


def test_what_cannot_work_is_refused_before_anything_is_trained(tmp_path):
    with pytest.raises(ConfigurationError, match="from_tables trains nothing: leave out add, minutes and seeds"):
        reproduce(from_tables=True, add=True, output=tmp_path)
    with pytest.raises(DataError, match="no page lies in"):
        reproduce(from_tables=True, output=tmp_path)
    with pytest.raises(DataError, match="the page convex does not lie in .*: name the folder"):
        reproduce("convex", from_tables=True, output=tmp_path / "none")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"file.figures cannot be written to .*: name another output folder"):
        reproduce("convex", output=tmp_path / "file" / "figures", runs=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_a_panel_that_fails_does_not_keep_the_others_from_being_run(tmp_path, monkeypatch):
    page, begun = two_panels(), []
    together = execute.train_together

    def fails(panels, job):
        begun.append(panels[0].name)
        if len(begun) == 1:
            raise FailedRunsError([Failure("a run", "no such file", tmp_path)])
        return together(panels, job)

    monkeypatch.setattr(execute, "train_together", fails)
    with pytest.raises(FailedRunsError):
        reproduce_page(page, Job("", "paper", 1, tmp_path / "runs", until=time.monotonic() + 600), tmp_path)
    assert begun == ["first", "second"]


def test_a_stretch_too_short_for_one_panel_says_so(tmp_path):
    with pytest.raises(ConfigurationError, match="no panel of convex was complete when the time was up"):
        reproduce_page(two_panels(), Job("", "paper", 1, tmp_path / "runs", until=0.0), tmp_path)


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
    if page.name in ("example1", "theory"):
        return page.compute(panels, Job(page.name, "smoke", 2, None))
    if page.name == "tuning":
        point = {"algorithm": "FedAvg", "client_stepsize": 0.1, "server_stepsize": 1.0, "score": 0.5, "fedsps": 0.4}
        grid = pd.DataFrame([{"setting": p.name, "diverged": False, "dropped": False} | point for p in panels])
        return tuning.records(grid)
    made = Records(
        {p.name: {line.label: [run(0.5 + 0.01 * s, seed=s) for s in range(2)] for line in p.lines} for p in panels}
    )
    if page.name == "beyond":
        return replace(made, tables={beyond.CELLS: beyond.by_cell(made, "smoke" if len(panels) == 2 else "paper")})
    return made


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
    assert len(verdicts) == sum(len(claim.cases) * (2 if claim.on_loss else 1) for claim in page.claims)
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
        assert claim.statement.replace("|", r"\|") in text
    if scale == "paper":
        again = judge_again(page, tmp_path)
        assert [(one.claim.id, one.case, one.column, one.words) for one in again.verdicts] == [
            (one.claim.id, one.case, one.column, one.words) for one in verdicts
        ]
        assert document(tmp_path, tmp_path / "page.md", list(PAGES)).count(".png)") == len(again.figures)
    assert f"]({figures[0].name})" in text
    tuned = [line.label for panel in panels for line in panel.lines if isinstance(line.algorithm, Tuned)]
    assert all(f"| {label} | client_stepsize 0.1" in text for label in tuned if made.runs)
    assert all("| " + " | ".join(made.tables[name].columns) + " |" in text for name in page.shown)
    assert not made.runs or set(table(made, page.kept)["panel"]) == {p.name for p in panels}


def test_the_document_counts_verdicts_and_says_what_pages_took(tmp_path):
    claim = Claim("X1", "a number", "nowhere", "none", "nothing", lambda *_: Evidence(np.array([])))
    evidence = {"holds": Evidence(np.array([1.0, 1.0])), "does not hold": Evidence(np.array([1.0, 1.0]), low=2.0)}
    for name, outcomes, cost in [
        ("convex", ["holds", "holds"], Cost(3, 30.0, 40, 90000.0)),
        ("global", ["does not hold"], Cost()),
    ]:
        verdicts = [Verdict(claim, "", "", evidence[outcome]) for outcome in outcomes]
        page = Page(name, f"Title of {name}", lambda _: [], lambda *_: [], [claim])
        write(Reproduction(page, "laptop", 3, [], Records({}, cost=cost), [], verdicts), tmp_path / "figures")
    text = document(tmp_path / "figures", tmp_path / "page.md", list(PAGES))
    assert "1 statements, 3 verdicts: 2 *holds*, 1 *does not hold*, 0 *undecided*." in text
    assert "| convex | laptop | 3 of 10 | 3 | 0.5 min | 40 | 25.0 h | 2 | 0 | 0 |" in text
    assert text.index("Title of convex") < text.index("Title of global")
    found = json.loads((tmp_path / "figures" / "global.json").read_text())
    (tmp_path / "figures" / "global.json").write_text(json.dumps(found | {"shown": ["numbers"]}))
    with pytest.raises(DataError, match=r"numbers.csv is missing: run fedsps reproduce global again"):
        document(tmp_path / "figures", tmp_path / "page.md", list(PAGES))
    (tmp_path / "figures" / "global.json").write_text(json.dumps(found | {"verdicts": [{"id": "X1"}]}))
    with pytest.raises(
        DataError, match=r"another version: judge them again with fedsps reproduce global --from-tables"
    ):
        document(tmp_path / "figures", tmp_path / "page.md", list(PAGES))
    (tmp_path / "figures" / "convex.json").write_text("{}")
    with pytest.raises(DataError, match=r"convex.json was written by another version: run fedsps reproduce convex"):
        document(tmp_path / "figures", tmp_path / "page.md", list(PAGES))


def test_the_document_names_infinite_effects_and_statements_that_fail_where_they_are_decided(tmp_path):
    claim = Claim("X1", "a number", "nowhere", "none", "nothing", lambda *_: Evidence(np.array([])))
    effects = {"plain": np.array([3.0, 3.0]), "lost": np.array([np.inf, np.inf]), "idle": np.array([])}
    verdicts = [Verdict(claim, case, "", Evidence(effect, high=2.0)) for case, effect in effects.items()]
    page = Page("convex", "Title", lambda _: [], lambda *_: [], [claim])
    write(Reproduction(page, "paper", 2, [], Records({}), [], verdicts), tmp_path)
    text = document(tmp_path, tmp_path / "page.md", list(PAGES))
    assert "nothing 3, infinite in 1" in text and "- 1 do not hold in the cases that are decided: X1" in text
    assert "findings" not in text
    (tmp_path / "findings.md").touch()
    assert "[What it amounts to](findings.md)" in document(tmp_path, tmp_path / "page.md", list(PAGES))


def test_a_reduced_scale_leaves_the_paper_s_statement_undecided():
    claim = Claim("X1", "A is best", "nowhere", "at most B's", "loss ratio", claims.at_most("p", "A", 1.0, "B"))
    found = records({"p": {"A": [1.0, 1.1], "B": [2.0, 2.1]}})
    assert {one.words for one in claim.verdicts(found)} == {"holds"}
    (one, _) = claim.verdicts(found, "laptop")
    assert (one.outcome, one.words) == ("undecided", "undecided (at laptop scale: holds)")
    assert {name for name in PAGES if find(name).reduced("smoke") == ""} == {"example1"}  # which takes no time
    assert {find(name).reduced("paper") for name in PAGES} == {""}


def test_what_was_not_run_has_no_numbers():
    claim = Claim("X1", "A is best", "nowhere", "at most B's", "loss ratio", claims.at_most("p", "A", 1.0, "B"))
    (one, _) = claim.verdicts(records({"p": {"A": [1.0, 1.1]}}))
    assert (one.outcome, one.words, one.numbers) == ("undecided", "undecided (not run)", "no numbers")


def test_a_page_is_read_back_from_its_tables(tmp_path):
    """Verdicts and cost are the same; runs that diverged, even at once, are still there."""
    page = find("normalized")
    runs = {
        panel.name: {
            line.label: [run(0.5 + 0.1 * place + 0.01 * seed, seed=seed) for seed in range(3)]
            for place, line in enumerate(panel.lines)
        }
        for panel in page.panels("paper")
    }
    at_once = run(seed=2, diverged=True)
    runs["iid"]["FedSPS"][2] = replace(at_once, history=at_once.history.head(0), diverged_at=1)
    made = Records(runs, cost=Cost(24, 30.0, 5, 60.0))
    panels = page.panels("paper")
    first = judge(page, "paper", 3, panels, made, tmp_path)
    write(first, tmp_path)
    before = (tmp_path / "normalized.csv").read_bytes()
    again = judge_again(page, tmp_path)
    assert again.records.of("iid", "FedSPS")[2].diverged_at == 1
    assert again.records.cost == made.cost
    assert [(one.words, one.numbers) for one in again.verdicts] == [(one.words, one.numbers) for one in first.verdicts]
    assert (tmp_path / "normalized.csv").read_bytes() == before
    assert "undecided" in {one.words for one in again.verdicts}


def test_verdicts_as_a_table(tmp_path):
    page = find("normalized")
    panels = page.panels("paper")
    write(judge(page, "paper", 2, panels, made_up(page, panels), tmp_path), tmp_path)
    found = verdict_table(tmp_path, list(PAGES))
    assert len(found) == sum(2 * len(claim.cases) for claim in page.claims)
    first = found.iloc[0]
    assert (first["page"], first["id"], first["case"], first["loss"]) == (
        "normalized",
        "A1",
        "all clients",
        "train_loss",
    )
    assert (first["outcome"], first["mean"], first["least good"], first["largest good"]) == ("holds", 1.0, 0.98, 1.02)


def test_variants_of_one_algorithm_can_be_told_apart():
    for variants in (2, 4, 8):
        colours = [np.array(colour) for colour, _ in plot.styles({f"scale {n}": "fedsps" for n in range(variants)})]
        steps = [np.abs(a - b).sum() for a, b in itertools.pairwise(colours)]
        assert min(steps) > 0.1
        assert max(colour.mean() for colour in colours) < 0.8, "on white paper"
    one, two = plot.styles({"FedSPS": "fedsps", "FedAvg": "fedavg"})
    assert one == ((213 / 255, 94 / 255, 0.0), "-"), "alone it has the algorithm's own colour"
    assert two[0] != one[0]


def test_one_legend_for_axes_that_share_their_lines():
    """A line looks the same everywhere; where axes have lines of their own, each has its legend."""

    def axes(**algorithms):
        history = run(0.5).history
        return plot.Curves("a", "train_loss", {label: [history] for label in algorithms}, algorithms)

    few, all_of_them = axes(FedAvg="fedavg"), axes(FedSPS="fedsps", FedAvg="fedavg", other="fedavg")
    figure = plot.drawn([few, all_of_them])
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["FedSPS", "FedAvg", "other"]
    (alone,), (_, beside, _) = (one.get_lines() for one in figure.axes)
    assert alone.get_color() == beside.get_color() and alone.get_marker() == beside.get_marker()
    assert all(one.get_legend() is None for one in figure.axes)
    more = axes(FedSPS="fedsps", FedAMS="fedams")
    (legend,) = plot.drawn([more, all_of_them]).legends
    assert [text.get_text() for text in legend.get_texts()] == ["FedSPS", "FedAvg", "other", "FedAMS"]
    for others in (axes(FedAMS="fedams"), axes(FedSPS="fedsps", FedAvg="fedavgm")):
        apart = plot.drawn([all_of_them, others])
        assert not apart.legends and all(one.get_legend() is not None for one in apart.axes)


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
    never = Claim("X1", "a number", "nowhere", "none", "nothing", lambda *_: Evidence(np.array([np.nan])))
    page = Page(
        "small", "A title", lambda _: [Panel("p", "heading", settings, lines)], lambda *_: [], [never], "A note."
    )
    outcome = reproduce_page(page, Job("", "smoke", 2, tmp_path / "runs"), tmp_path)
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
