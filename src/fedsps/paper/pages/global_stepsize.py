"""The appendix on FedSPS-Global: its aggregation formulas, its first stepsize, and how much stepsizes vary.

A3 to A5 are judged on runs. T8 is the appendix's proposition on the formulas, which needs no run: its first part is
tried on random clients, its second on two counterexamples, and then under a condition that makes it true.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from fedsps.paper.claims import Check
from fedsps.paper.figures import curves
from fedsps.paper.page import Claim, Evidence, Line, Numbers, Page, Panel, Records, Scale
from fedsps.paper.settings import common
from fedsps.report import plot

FORMULAS = [Line(f"formula ({formula})", f"fedsps-global:formula={formula}") for formula in "abc"]
FIRST = [
    Line("first stepsize of client 0", "fedsps-global"),
    *(Line(f"first stepsize {value}", f"fedsps-global:initial={value}") for value in (0.01, 0.1, 1)),
]
SETTINGS = (("iid", "i.i.d."), ("two-class", "two classes"))


def panels(scale: Scale) -> list[Panel]:
    """MNIST, logistic regression, all 10 clients; the appendix names no setting, so both partitions are run.

    The cap is 1 as everywhere, and 1000 in the panels "free", since a cap of 1 would hide an explosion.
    """
    chosen = []
    for kind, words in SETTINGS:
        setting = common(scale, data="mnist", partition=kind)
        free = [Line(line.label, f"{line.algorithm},cap=1000") for line in FORMULAS]
        chosen += [
            Panel(kind, f"formulas, {words}", setting, [Line("FedSPS", "fedsps"), *FORMULAS]),
            Panel(f"{kind} free", f"formulas, {words}, cap 1000", setting, free),
            Panel(f"{kind} first", f"first stepsize, {words}", setting, FIRST),
        ]
    return chosen


def draw(records: Records, panels: Sequence[Panel], folder: Path) -> list[Path]:
    """One row a partition: the formulas, the formulas with a cap of 1000, and first stepsizes."""
    chosen = [curves(records, panel) for panel in panels]
    plot.draw(chosen, [folder / "global.png", folder / "global.pdf"], columns=3)
    return [folder / "global.png"]


def formula_a_is_best(suffix: str) -> Check:
    """A3: of the three formulas (a) works best, (b) follows closely, and (c) explodes.

    True of a seed where, on both partitions, the final loss of (a) is at most that of (b), that of (b) at most 1.1
    times (a)'s, and that of (c) at least twice (a)'s; the effect is the least of the ratios to (a).

    Args:
        suffix: " free" for the panels with a cap of 1000, "" for the usual cap.
    """

    def check(records: Records, column: str) -> Evidence:
        true, effect = [], []
        for kind, _ in SETTINGS:
            a, b, c = (records.final(f"{kind}{suffix}", f"formula ({formula})", column) for formula in "abc")
            true.append((a <= b) & (b <= 1.1 * a) & (c >= 2 * a))
            effect += [b / a, c / a]
        return Evidence(np.logical_and.reduce(true), np.stack(effect).min(0))

    return check


def first_stepsize_works(records: Records, column: str) -> Evidence:
    """A4: client 0's first SPS stepsize works well as the first global one.

    True of a seed where, on both partitions, its final loss is at most 1.1 times the best of the first stepsizes 0.01,
    0.1 and 1; the effect is the larger ratio.
    """
    ratios = []
    for kind, _ in SETTINGS:
        panel = f"{kind} first"
        others = [records.final(panel, line.label, column) for line in FIRST[1:]]
        ratios.append(records.final(panel, FIRST[0].label, column) / np.stack(others).min(0))
    return Evidence(np.stack(ratios).max(0) <= 1.1, np.stack(ratios).max(0))


def stepsizes_change_little(records: Records, column: str) -> Evidence:
    """A5: stepsizes vary little between consecutive rounds, so that one from the last round still fits.

    True of a seed where, on both partitions, the median relative change of FedSPS's mean stepsize from round to round
    is at most 0.1; the effect is the larger median.
    """

    def change(table: pd.DataFrame) -> float:
        stepsizes = table["stepsize_mean"]
        return float((stepsizes.diff().abs() / stepsizes).median())

    worst = np.stack([records.each(kind, "FedSPS", change) for kind, _ in SETTINGS]).max(0)
    return Evidence(worst <= 0.1, worst)


def formulas(gaps: Numbers, gradients: Numbers, scale: float, cap: float) -> tuple[float, float, float]:
    """The stepsizes (a), (b) and (c) of clients' gaps `[n]` and gradients `[n, d]`, as `GlobalStepsize` has them.

    >>> [float(stepsize) for stepsize in formulas(np.array([1.0, 3.0]), np.array([[1.0], [-2.0]]), 1.0, 10.0)]
    [0.875, 0.8, 8.0]
    """
    sizes, size = (gradients**2).sum(1), (gradients.mean(0) ** 2).sum()
    ratios = gaps.mean() / (scale * sizes.mean()), gaps.mean() / (scale * size)
    return float(np.minimum(gaps / (scale * sizes), cap).mean()), min(ratios[0], cap), min(ratios[1], cap)


def draws() -> Iterator[tuple[Numbers, Numbers, float, float]]:
    """Made-up clients, always the same: 2 to 10 of them, in 3 dimensions, of very different sizes."""
    random = np.random.default_rng(0)
    for _ in range(1000):
        clients = random.integers(2, 11)
        gradients = random.normal(size=(clients, 3)) * random.lognormal(size=(clients, 1))
        yield random.lognormal(sigma=2, size=clients), gradients, random.lognormal(), random.lognormal(sigma=2)


def c_is_no_smaller_than_b(records: Records, column: str) -> Evidence:
    """T8 (1): formula (c)'s stepsize is never smaller than (b)'s, whatever the runs.

    It must be true of 1000 random draws of gaps, gradients, scale and cap: the squared norm of a mean is at most the
    mean of the squared norms. The effect is (c) over (b).
    """
    stepsizes = np.array([formulas(*draw) for draw in draws()])
    return Evidence(stepsizes[:, 2] >= stepsizes[:, 1], stepsizes[:, 2] / stepsizes[:, 1])


def a_is_no_smaller_than_b(records: Records, column: str) -> Evidence:
    """T8 (2): formula (a)'s stepsize is never smaller than (b)'s, put to two counterexamples.

    The first has no cap, the second a cap of 1 and the larger gap with the smaller gradient. The effect is (a) over
    (b).
    """
    free = np.array([1.0, 20.0]), np.sqrt([[1.0], [10.0]]), 1.0, np.inf
    capped = np.array([10.0, 1.0]), np.sqrt([[1.0], [10.0]]), 1.0, 1.0
    stepsizes = np.array([formulas(*example) for example in (free, capped)])
    return Evidence(stepsizes[:, 0] >= stepsizes[:, 1], stepsizes[:, 0] / stepsizes[:, 1])


def a_is_no_smaller_if_ordered(records: Records, column: str) -> Evidence:
    """T8 (2) ordered: it is true where clients with larger gaps have smaller gradients, and there is no cap.

    That is Chebyshev's sum inequality. It must be true of 1000 random draws, put in that order; the effect is (a) over
    (b).
    """
    ratios = []
    for gaps, gradients, scale, _ in draws():
        ordered = gradients[np.argsort((gradients**2).sum(1))[::-1]]
        a, b, _ = formulas(np.sort(gaps), ordered, scale, np.inf)
        ratios.append(a / b)
    return Evidence(np.array(ratios) >= 1, np.array(ratios))


PAGE = Page(
    name="global",
    title="Appendix: FedSPS-Global",
    panels=panels,
    draw=draw,
    claims=(
        Claim(
            "A3",
            "of the global formulas (a) works best, (b) follows closely, (c) explodes",
            "appendix, choice of aggregation",
            "with a cap of 1000: loss of (a) at most that of (b), (b) at most 1.1 times (a), (c) at least twice (a)",
            "least loss ratio of (b), (c) to (a)",
            formula_a_is_best(" free"),
        ),
        Claim(
            "A3 cap",
            "the same at the usual cap",
            "our question",
            "as A3, with a cap of 1",
            "least loss ratio of (b), (c) to (a)",
            formula_a_is_best(""),
        ),
        Claim(
            "A4",
            "client 0's first SPS stepsize works well as the first global one",
            "appendix, FedSPS-Global details",
            "final loss at most 1.1 times the best of the first stepsizes 0.01, 0.1 and 1",
            "loss ratio",
            first_stepsize_works,
        ),
        Claim(
            "A5",
            "stepsizes vary little between consecutive rounds",
            "appendix, FedSPS-Global",
            "median relative change of FedSPS's mean stepsize from round to round at most 0.1",
            "median change",
            stepsizes_change_little,
            on_loss=False,
        ),
        Claim(
            "T8 (1)",
            "formula (c)'s stepsize is never smaller than (b)'s",
            "proposition 2 (1)",
            "true of 1000 random draws of gaps, gradients, scale and cap",
            "(c) over (b)",
            c_is_no_smaller_than_b,
            on_loss=False,
            over="draw",
        ),
        Claim(
            "T8 (2)",
            "formula (a)'s stepsize is never smaller than (b)'s",
            "proposition 2 (2)",
            "true of gaps 1, 20 and squared norms 1, 10 without a cap, and of 10, 1 and 1, 10 with a cap of 1",
            "(a) over (b)",
            a_is_no_smaller_than_b,
            on_loss=False,
            over="counterexample",
        ),
        Claim(
            "T8 (2) ordered",
            "it is not where clients with larger gaps have smaller gradients, and there is no cap",
            "our question",
            "true of 1000 random draws",
            "(a) over (b)",
            a_is_no_smaller_if_ordered,
            on_loss=False,
            over="draw",
        ),
    ),
    note="The appendix names no data set or cap for the formulas: MNIST, both partitions, caps 1 and 1000 are run.",
)
