"""Pages: their plans are valid, their verdicts are pure functions of records, and each claim can come out all three ways."""

import copy
import itertools
import json
from collections.abc import Mapping
from typing import get_args

import numpy as np
import pandas as pd
import pytest

from fedsps import plot
from fedsps.catalogue import parse
from fedsps.errors import ConfigurationError, DataError
from fedsps.paper import claims, networks, sensitivity, tuning
from fedsps.paper.document import document
from fedsps.paper.page import Claim, Cost, Evidence, Line, Page, Panel, Records, Scale, Tuned, Verdict, Work, decide
from fedsps.paper.reproduce import PAGES, Outcome, find, reproduce, table, write
from fedsps.paper.train import search
from fedsps.result import Result
from fedsps.spec import Spec

ROUNDS = 20
CLAIMS = [(name, claim) for name in PAGES for claim in find(name).claims]


def run(final=0.5, *, algorithm="fedsps", seed=0, diverged=False, **columns):
    """A made-up run whose columns are constant, or as given."""
    rounds = np.arange(1, ROUNDS + 1)
    numbers = {
        "train_loss": final, "cohort_loss": final, "test_loss": final, "test_accuracy": 1 - final, "stepsize_mean": 0.5,
        "stepsize_std_clients": 0.05, "stepsize_one_mean": 0.5, "stepsize_one_std": 0.05, "seconds": 0.1, "exchanges": 1,
        "gradient_evaluations": 50, "bytes_up": 8, "bytes_down": 8,
    } | columns  # fmt: skip
    return Result(
        None,
        pd.DataFrame({"round": rounds} | numbers),
        {"algorithm": algorithm, "seed": seed},
        ROUNDS if diverged else None,
    )


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
    assert not both(records({"p": {"A": [1.0], "B": [2.0], "C": [0.5]}}), "train_loss").true.any()


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


def cap_page(caps, fedavg=(3.0, 1.0)):
    lines = {f"FedSPS cap {cap}": [value] for cap, value in zip((0.1, 1, 5, 10), caps, strict=True)}
    return records({"cap": lines | {"FedAvg 0.01": [fedavg[0]], "FedAvg 0.1": [fedavg[1]]}})


def by_scale(method, best):
    """Losses with their minimum at the given scale for each number of local steps."""
    scales = sensitivity.SCALES
    return records(
        {
            f"{method} {tau}": {
                f"{sensitivity.NAMES[method]} scale {c}": [1 + abs(np.log(c / best(tau)))] for c in scales
            }
            for tau in sensitivity.LOCAL_STEPS
        }
    )


def test_sensitivity_claims_by_hand():
    column = "train_loss"
    assert sensitivity.fedavg_is_sensitive(cap_page([1, 1, 1, 1]), column).true.all()
    assert not sensitivity.fedavg_is_sensitive(cap_page([1, 1, 1, 1], (1.1, 1.0)), column).true.any()
    assert sensitivity.neighbourhood_grows(cap_page([1, 0.3, 0.4, 0.5]), column).true.all()
    assert not sensitivity.neighbourhood_grows(cap_page([1, 0.5, 0.4, 0.3]), column).true.any()
    assert not sensitivity.neighbourhood_grows(cap_page([1, 0.3, 0.4, 2.0]), column).true.any(), "it must converge"
    assert sensitivity.less_sensitive_than_fedavg(cap_page([9, 0.3, 0.4, 0.5]), column).true.all()
    assert not sensitivity.less_sensitive_than_fedavg(cap_page([9, 0.1, 0.4, 0.5]), column).true.any()
    flat, square = by_scale("fedsps", lambda tau: 0.5), by_scale("fedsps", lambda tau: 0.01 * tau**2)
    assert sensitivity.no_square_law(flat, column).true.all()
    assert not sensitivity.no_square_law(square, column).true.any()
    assert sensitivity.small_scale_is_better(by_scale("fedsps", lambda tau: 0.01), column).true.all()
    assert not sensitivity.small_scale_is_better(by_scale("fedsps", lambda tau: 40), column).true.any()
    assert sensitivity.best_scales(flat, "fedsps", 10) == pytest.approx([0.5])


def test_standardised_inputs_have_verdicts_of_their_own():
    """The same criteria, each on its own panel: what holds for pixels in [0, 1] may fail beside it."""
    good, bad = (dict(cap_page(caps).runs)["cap"] for caps in ([9, 0.3, 0.4, 0.5], [9, 0.1, 0.4, 0.9]))
    scales = by_scale("fedsps", lambda tau: 0.01).runs["fedsps 5"]
    alike = records({"": {label: [1.0] for label in scales}}).runs[""]
    found = Records({"cap": good, "fedsps 5": alike, "cap standard": bad, "scale standard": scales})
    checks = {claim.id: claim.check for claim in sensitivity.PAGE.claims}
    for name, plain, standard in (("S3", True, False), ("S5", False, True), ("S6", True, False)):
        assert checks[name](found, "train_loss").true.all() == plain
        assert checks[f"{name} standard"](found, "train_loss").true.all() == standard


def cifar_records(*seeds):
    """From the final losses of FedSPS, FedDecSPS, FedAvg and FedAMS on each seed, alike on both partitions."""
    labels = ("FedSPS", "FedDecSPS", "FedAvg tuned", "FedAMS tuned")
    lines = {label: [seed[place] for seed in seeds] for place, label in enumerate(labels)}
    return records(dict.fromkeys(networks.NAMES, lines))


@pytest.mark.parametrize("claim", networks.CIFAR.claims, ids=lambda claim: claim.id)
def test_cifar_claims_have_three_outcomes(claim):
    good, one_behind = (0.1, 0.2, 0.3, 0.4), (0.1, 0.35, 0.3, 0.4)
    for expected, seeds in {
        "holds": [good, good],
        "does not hold": [one_behind, one_behind],
        "undecided": [good, one_behind],
    }.items():
        assert {verdict.outcome for verdict in claim.verdicts(cifar_records(*seeds))} == {expected}


def test_a_page_is_run_drawn_and_judged(tmp_path):
    own = Tuned("fedavg", grid={"client_stepsize": (0.001, 0.1)})
    panel = Panel("p", "digits", {"rounds": 2, "evaluate_every": 1}, [Line("FedAvg tuned", own)])
    claim = Claim("X1", "it learns", "", "loss below 2.3", "loss", lambda records, column: (
        Evidence(records.final("p", "FedAvg tuned", column) < 2.3, records.final("p", "FedAvg tuned", column))
    ))  # fmt: skip
    page = Page("small", "Small", lambda scale: [panel], networks.LENET.draw, [claim], seeds=2)
    for scale, seeds in {"smoke": 1, "paper": 2}.items():
        found = reproduce(page, scale, seeds=None, runs=tmp_path / "runs", folder=tmp_path / scale)
        chosen = found.records.of("p", "FedAvg tuned")
        assert [one.spec["seed"] for one in chosen] == list(range(seeds))
        assert chosen[0].spec["parameters"]["client_stepsize"] == 0.1
        assert (found.records.cost.runs, found.records.cost.trials) == (seeds, 2)
        assert found.records.cost.search_seconds > 0
        assert {verdict.outcome for verdict in found.verdicts} == {"holds"}
        assert (tmp_path / scale / "small.csv").is_file()
        assert (tmp_path / scale / "small.json").is_file()


@pytest.mark.parametrize("name", PAGES)
def test_plans_are_valid_and_claims_speak_of_lines_that_exist(name):
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
        return page.compute(panels, Work("example1", "smoke", 2, None))
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
    assert {verdict.outcome for verdict in verdicts} <= {"holds", "does not hold", "undecided"}
    assert len(verdicts) == sum(2 if claim.on_loss else 1 for claim in page.claims)
    figures = page.draw(made, panels, tmp_path)
    for figure in figures:
        assert figure.read_bytes().startswith(b"\x89PNG")
        assert figure.with_suffix(".pdf").exists()
    for panel, lines in made.runs.items():
        for label, some in lines.items():
            for number, one in enumerate(some):
                pd.testing.assert_frame_equal(one.history, before[panel][label][number])
    write(Outcome(page, scale, 2, panels, made, figures, verdicts), tmp_path)
    text = document(tmp_path, tmp_path / "page.md")
    for claim in page.claims:
        assert claim.criterion in text
    assert f"]({figures[0].name})" in text
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
        write(Outcome(page, "laptop", 3, [], Records({}, cost=cost), [], verdicts), tmp_path / "figures")
    text = document(tmp_path / "figures", tmp_path / "page.md")
    assert "3 verdicts: 2 *holds*, 1 *does not hold*, 0 *undecided*." in text
    assert "| convex | laptop | 3 | 3 | 0.5 min | 40 | 25.0 h | 2 | 0 | 0 |" in text
    assert text.index("Title of convex") < text.index("Title of global")
    (tmp_path / "figures" / "convex.json").write_text("{}")
    with pytest.raises(DataError, match=r"convex.json was written by another version: run fedsps reproduce convex"):
        document(tmp_path / "figures", tmp_path / "page.md")


def test_variants_of_one_algorithm_can_be_told_apart():
    for variants in (2, 4, 8):
        colours = [np.array(colour) for colour, _ in plot.styles({f"scale {n}": "fedsps" for n in range(variants)})]
        steps = [np.abs(a - b).sum() for a, b in itertools.pairwise(colours)]
        assert min(steps) > 0.1
        assert max(colour.mean() for colour in colours) < 0.8, "on white paper"
    one, two = plot.styles({"FedSPS": "fedsps", "FedAvg": "fedavg"})
    assert one == ((213 / 255, 94 / 255, 0.0), "-"), "alone it has the algorithm's own colour"
    assert two[0] != one[0]


def test_every_claim_has_its_words():
    identifiers = [claim.id for _, claim in CLAIMS]
    assert len(set(identifiers)) == len(identifiers)
    for _, claim in CLAIMS:
        assert isinstance(claim, Claim)
        assert claim.statement
        assert claim.place
        assert claim.criterion


def test_unknown_pages_get_a_hint():
    with pytest.raises(ConfigurationError, match="unknown page 'convexx': did you mean convex"):
        find("convexx")
    assert isinstance(find("convex"), Page)


def test_a_page_is_written_as_json_with_the_digests_of_its_runs(tmp_path):
    settings = {"rounds": 2, "samples": 200}
    lines = [Line("FedSPS", "fedsps"), Line("cap 2", "fedsps:cap=2")]
    never = Claim(
        "X1", "a number", "nowhere", "none", "nothing", lambda *_: Evidence(np.array([True]), np.array([np.nan]))
    )
    page = Page(
        "small", "A title", lambda _: [Panel("p", "heading", settings, lines)], lambda *_: [], [never], "A note."
    )
    outcome = reproduce(page, "smoke", seeds=2, runs=tmp_path / "runs", folder=tmp_path)
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
        assert [(spec["seed"], spec["parameters"]["cap"]) for spec in specs] == [(0, cap), (1, cap)]
