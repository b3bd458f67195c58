"""Figure 1 and Example 1: the computations against closed forms and the package's own rule, and the claims by hand."""

import numpy as np
import pandas as pd
import pytest
import torch

from fedsps.core.contract import Seen
from fedsps.paper.page import Job, Records
from fedsps.paper.pages import example1
from fedsps.paper.pages.example1 import COMMON, COUNTS, LOCAL, PAGE, SHARES, STEEPNESS, steps, steps_needed
from fedsps.paper.pages.global_stepsize import formulas
from fedsps.rules.polyak import SPS
from fedsps.runs.result import Result


def test_polyak_is_the_package_s_rule():
    random = np.random.default_rng(0)
    rule = SPS(scale=example1.SCALE, cap=example1.CAP)
    for loss, gradient in [(0.5, random.normal(size=3)), (1e3, random.normal(size=3)), (0.0, np.ones(3)), (1.0, np.zeros(3))]:  # fmt: skip
        x = torch.zeros(3, dtype=torch.float64)
        seen = Seen(
            x=x, start=x, loss=torch.tensor(loss, dtype=torch.float64), gradient=torch.from_numpy(gradient), step=0, steps=1,
            iteration=0, fraction=torch.tensor(0.1), client=torch.tensor(0), received={}, probe=lambda x: (x, x),
        )  # fmt: skip
        expected, _ = rule(rule.begin(rule.client_init(x), x), seen)
        assert example1.polyak(loss, gradient) == pytest.approx(expected.item())


def test_without_noise_every_rule_but_the_small_constants_is_there_in_one_step():
    still = np.zeros((3, 2, 1))
    for rule in (example1.local, example1.common("c"), example1.constant(2 / 3)):
        assert example1.descend(example1.FIGURE, np.array([100.0]), rule, still)["train_loss"].iloc[0] < 1e-20
    slow = example1.descend(example1.FIGURE, np.array([100.0]), example1.constant(0.1), still)
    assert slow["train_loss"].tolist() == pytest.approx([0.75 * (100 * 0.85**t) ** 2 for t in (1, 2, 3)])


def test_noise_is_in_the_gradients_alone():
    noise = np.array([[[4.0], [-2.0]]])
    found = example1.descend(example1.FIGURE, np.array([1.0]), example1.local, noise)
    first, second = min(1 / (0.5 * 6**2), 1), min(0.5 / (0.5 * 1**2), 1)
    assert found["stepsize_mean"].item() == pytest.approx((first + second) / 2)
    assert found["train_loss"].item() == pytest.approx(0.75 * (1 - (first * 6 - second * 1) / 2) ** 2)


@pytest.mark.parametrize("a", [10, 1000])
def test_counts_follow_the_closed_forms(a):
    one, two = example1.problems(a).values()
    assert steps_needed(one, np.full(2, 2 / (1 + a))) == 1, "the best common stepsize in one dimension"
    factor = (a - 1) / (a + 1)
    assert steps_needed(two, np.full(2, 4 / (1 + a))) == np.ceil(np.log(1e-6) / np.log(factor))
    for share in (0.5, 1.0, 1.5):
        assert steps_needed(two, np.array([share / a, share])) == np.ceil(np.log(1e-6) / np.log(1 - share / 2))
    assert np.isnan(steps_needed(one, np.full(2, 4.1 / (1 + a)), most=1000)), "too large a stepsize never arrives"


def by_count(common, own):
    """The counts of both problems, made up."""
    rows = [
        {"problem": problem, "stepsizes": label} | {f"a = {a}": float(value(a)) for a in STEEPNESS}
        for problem in example1.problems(1)
        for label, value in ({COMMON: common} | dict.fromkeys(SHARES, own)).items()
    ]
    return Records({}, tables={COUNTS: pd.DataFrame(rows)})


CLAIMS = {claim.id: claim for claim in PAGE.claims}


@pytest.mark.parametrize("suffix", ["", " two"])
def test_step_claims_have_three_outcomes(suffix):
    def outcome(which, common, own):
        (verdict,) = CLAIMS[f"E1 {which}{suffix}"].verdicts(by_count(common, own))
        return verdict.outcome

    assert outcome("common", lambda a: 3 * a, lambda a: 20) == "holds"
    assert outcome("common", lambda a: 1, lambda a: 20) == "does not hold"
    assert outcome("common", lambda a: 3 * a if a < 1000 else np.nan, lambda a: 20) == "undecided", "a count is missing"
    assert outcome("local", lambda a: 3 * a, lambda a: 20) == "holds"
    assert outcome("local", lambda a: 3 * a, lambda a: 20 * a) == "does not hold"
    assert outcome("local", lambda a: 3 * a, lambda a: 20 if a < 1000 else np.nan) == "undecided"


def test_noise_claim_has_three_outcomes():
    def outcome(*seeds):
        def run(loss):
            return Result(None, pd.DataFrame({"round": range(1, 21), "train_loss": loss}), {})

        lines = {label: [run(other) for _, other in seeds] for label in CLAIMS["E2"].cases}
        lines[LOCAL] = [run(own) for own, _ in seeds]
        (found,) = {verdict.outcome for verdict in CLAIMS["E2"].verdicts(Records({"loss": lines}))}
        return found

    assert outcome((0.1, 0.2), (0.21, 0.4)) == "holds"
    assert outcome((0.2, 0.1), (0.42, 0.2)) == "does not hold"
    assert outcome((0.1, 0.2), (0.4, 0.3)) == "undecided"


def test_the_global_stepsizes_are_the_appendix_s():
    losses, gradients = np.array([1.0, 3.0]), np.array([[1.0], [-2.0]])
    expected = formulas(losses, gradients, example1.SCALE, example1.CAP)
    for formula, stepsize in zip("abc", expected, strict=True):
        assert example1.common(formula)(losses, gradients) == pytest.approx([stepsize] * 2)
    small = np.array([0.05, 0.1])
    for formula, stepsize in zip("abc", formulas(small, gradients, example1.SCALE, example1.CAP), strict=True):
        assert example1.common(formula)(small, gradients) == pytest.approx([stepsize] * 2)
        assert stepsize < example1.CAP


def test_the_page_computes_without_runs(tmp_path):
    found = example1.compute(PAGE.panels("smoke"), Job("example1", "smoke", 3, tmp_path))
    assert not list(tmp_path.iterdir())
    assert {len(some) for some in found.runs["loss"].values()} == {3}
    assert len(set(found.final("loss", LOCAL, "train_loss"))) == 3, "each seed has its noise"
    assert steps(found.tables[COUNTS], "one coordinate", COMMON).tolist() == [1] * 5
    outcomes = {claim.id: claim.verdicts(found)[0].outcome for claim in PAGE.claims}
    assert outcomes["E1 common"] == "does not hold"
    assert outcomes["E1 common two"] == outcomes["E1 local"] == outcomes["E1 local two"] == "holds"
