"""Every claim of a page with runs, on hand-made records: it holds, does not hold, and is undecided as it should be."""

import fnmatch

import numpy as np
import pytest
from made_runs import run

from fedsps.paper.page import Records
from fedsps.paper.reproduce import PAGES, find

FALLING = np.geomspace(1.0, 0.01, 20)
TUNED = {"*|Fed*tuned": 1.0, "*|Mime tuned": 1.0}
CAPS = {"cap*|FedSPS cap 0.1": 0.9, "cap*|FedSPS cap 1": 0.3, "cap*|FedSPS cap 5": 0.4, "cap*|FedSPS cap 10": 0.5}
CAPS |= {"cap*|FedAvg 0.01": 0.9, "cap*|FedAvg 0.1": 0.3}
SCALES = {f"*|Fed*SPS scale {c}": 0.3 + 0.001 * c for c in (0.01, 0.1, 0.5, 1)}
SCALES |= {f"*|Fed*SPS scale {c}": 0.3 + 0.01 * c for c in (5, 10, 20, 40)}
GROWING = {f"*|Fed*SPS scale {c}": 0.5 for c in (0.01, 0.1, 0.5, 1, 5, 10, 20, 40)} | {
    f"* {tau}|Fed*SPS scale {c}": 0.1 for tau, c in {5: 0.01, 10: 0.1, 20: 0.5, 50: 5, 100: 40}.items()
}
BOUND, FREE = {"stepsize_mean": 0.1}, {"stepsize_mean": 1.0}
DIVERGED = object()
STILL, JUMPING = {"stepsize_mean": 0.5}, {"stepsize_mean": np.tile([0.5, 1.0], 10)}

# claim -> what makes it true of a seed, and what makes it false of one: "panel|line" (the last that matches counts) to
# the final loss, or to columns of the history
CASES = {
    "S1": (CAPS, CAPS | {"cap|FedAvg 0.01": 0.31}),
    "S2": (CAPS, CAPS | {"cap|FedSPS cap 5": 0.6}),
    "S3": (CAPS, CAPS | {"cap|FedSPS cap 10": 2.0}),
    "S4": (
        {"stepsize|FedSPS cap 0.1": BOUND, "stepsize|FedSPS cap 10": FREE},
        {"stepsize|FedSPS cap 0.1": {"stepsize_mean": 0.05}, "stepsize|FedSPS cap 10": FREE},
    ),
    "S5": (SCALES, SCALES | {"fedsps 5|FedSPS scale 0.01": 5.0}),
    "S6": (SCALES, SCALES | {"fedsps 5|FedSPS scale 0.1": 0.6}),
    "S7": (SCALES, GROWING),
    "S8": (SCALES, SCALES | {"fedsps 50|FedSPS scale 0.5": 0.6}),
    "S9": (SCALES, SCALES | {"feddecsps cap|FedDecSPS cap 10": 0.2}),
    "S2 standard": (CAPS, CAPS | {"cap standard|FedSPS cap 5": 0.6}),
    "S3 standard": (CAPS, CAPS | {"cap standard|FedSPS cap 10": 2.0}),
    "S5 standard": (SCALES, SCALES | {"scale standard|FedSPS scale 0.01": 5.0}),
    "S6 standard": (SCALES, SCALES | {"scale standard|FedSPS scale 0.1": 0.6}),
    "C1": (TUNED | {"a|FedSPS": 1.05}, TUNED | {"a|FedSPS": 1.2}),
    "C2": ({"a|FedSPS": 1.1, "a|FedAMS tuned": 1.0}, {"a|FedSPS": 1.0, "a|FedAMS tuned": 1.1}),
    "C3": ({"a|FedAMS worst": 2.5, "a|FedAMS tuned": 1.0}, {"a|FedAMS worst": 1.5, "a|FedAMS tuned": 1.0}),
    "C4": (TUNED | {"b|FedSPS": 0.9}, TUNED | {"b|FedSPS": 0.9, "b|FedAMS tuned": 0.8}),
    "C5": ({"c|FedDecSPS": 0.4}, {"c|FedDecSPS": 0.6}),
    "C6": (TUNED, TUNED | {"c|Mime tuned": 0.4}),
    "C7": (
        {"d|FedDecSPS": {"stepsize_mean": FALLING}, "d|FedSPS": STILL},
        {"d|FedDecSPS": {"stepsize_mean": FALLING}, "d|FedSPS": {"stepsize_mean": FALLING}},
    ),
    "C5 noise": ({"*|FedDecSPS": 0.4}, {"*|FedDecSPS": 0.4, "a9a 40|FedDecSPS": 0.6}),
    "N1": (TUNED | {"iid|FedSPS": 1.2}, TUNED | {"iid|FedSPS": 1.3}),
    "N2": (TUNED | {"two-class|FedSPS": 1.2}, TUNED | {"two-class|FedSPS": 1.3}),
    "N3": (TUNED, TUNED | {"two-class|FedAMS tuned": 0.4}),
    "N4": (TUNED, TUNED | {"iid|FedAMS tuned": 0.4}),
    "N5": ({"*|FedSPS-Global": 0.52}, {"*|FedSPS-Global": 0.52, "two-class|FedSPS-Global": 0.6}),
    "N6": (TUNED, TUNED | {"iid|FedDecSPS": 1.1}),
    "N7": (TUNED, TUNED | {"two-class|FedSPS": 1.1}),
    "A1": ({}, {"iid sampled|FedSPS-Normalized": 0.55}),
    "A2": ({"two-class*|FedSPS-Normalized": 0.55}, {"two-class*|FedSPS-Normalized": 0.45}),
    "A3": (
        {"* free|formula (b)": 0.52, "* free|formula (c)": 5.0},
        {"* free|formula (b)": 0.52, "* free|formula (c)": 0.6},
    ),
    "A3 cap": (
        {"iid|formula (c)": 5.0, "two-class|formula (c)": 5.0},
        {"iid|formula (c)": 5.0, "two-class|formula (c)": 5.0, "iid|formula (b)": 0.4},
    ),
    "A4": ({}, {"two-class first|first stepsize 0.1": 0.4}),
    "A5": ({"*|FedSPS": STILL}, {"*|FedSPS": STILL, "two-class|FedSPS": JUMPING}),
    "V1": ({}, {"iid|FedSPS": {"stepsize_one_std": 0.4}}),
    "V2": ({}, {"two-class|FedSPS": {"stepsize_std_clients": 0.4}}),
    "L1": (TUNED | {"*|FedSPS": 1.05}, TUNED | {"*|FedSPS": 1.05, "mushrooms|FedAdam tuned": 0.1}),
    "L1 cap": (TUNED, TUNED | {"a9a|FedSPS cap 100": 1.2}),
    "L2": ({"*|FedSPS": 0.505}, {"phishing|FedSPS": 0.52}),
    "L3": ({}, {"ijcnn1|FedSPS": {"stepsize_one_std": 0.4}}),
}
ELSEWHERE = {"E1", "E1 two", "E2", "G1 LIBSVM", "G1 MNIST", "G1 LeNet", "G2", "T8 (1)", "T8 (2)", "T8 (2) ordered"}
CLAIMS = {claim.id: (find(name), claim) for name in PAGES for claim in find(name).claims}


def test_no_claim_is_forgotten():
    assert CASES.keys() | ELSEWHERE == CLAIMS.keys()


def made(page, *seeds):
    """Records of a page whose final losses are 0.5 where a seed does not say otherwise."""

    def one(panel, line, number, seed):
        wanted = 0.5
        for pattern, value in seed.items():
            if fnmatch.fnmatchcase(f"{panel.name}|{line.label}", pattern):
                wanted = value
        if wanted is DIVERGED:
            return run(seed=number, diverged=True)
        return run(**wanted, seed=number) if isinstance(wanted, dict) else run(wanted, seed=number)

    return Records(
        {
            panel.name: {
                line.label: [one(panel, line, number, seed) for number, seed in enumerate(seeds)]
                for line in panel.lines
            }
            for panel in page.panels("paper")
        }
    )


@pytest.mark.parametrize("name", CASES)
def test_every_claim_has_three_outcomes(name):
    (page, claim), (good, bad) = CLAIMS[name], CASES[name]
    for expected, seeds in {"holds": [good, good], "does not hold": [bad, bad], "undecided": [good, bad]}.items():
        assert {verdict.outcome for verdict in claim.verdicts(made(page, *seeds))} == {expected}


@pytest.mark.parametrize("name", CASES)
def test_nothing_holds_if_all_runs_diverged(name):
    page, claim = CLAIMS[name]
    outcomes = {verdict.outcome for verdict in claim.verdicts(made(page, {"*": DIVERGED}, {"*": DIVERGED}))}
    assert "holds" not in outcomes


@pytest.mark.parametrize("name", ["N4", "N7", "L2"])
def test_a_diverged_run_has_the_worst_accuracy(name):
    page, claim = CLAIMS[name]
    for diverged, expected in {"*|FedSPS": "does not hold", "*|FedA* tuned": "holds"}.items():
        (verdict,) = claim.verdicts(made(page, CASES[name][0] | {diverged: DIVERGED}))
        assert verdict.outcome == expected
