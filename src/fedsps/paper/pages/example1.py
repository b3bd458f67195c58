"""Figure 1 and Example 1: quadratics small enough to be computed here, without runs.

Client i has `f_i(x) = 1/2 sum_j h_ij x_j^2`, so a problem is its curvatures `h [clients, coordinates]`. All steps are
`x <- x - mean_i gamma_i g_i`, with one stepsize a client; the minimum is 0, at 0.

Example 1 has two clients of curvatures a and 1. The page counts exact steps against a (E1): with one stepsize for both
clients they should grow like a, with a stepsize for each they should not. Figure 1 is the case a = 2 with noise in the
gradients (E2).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from fedsps.core.plan import Plan
from fedsps.paper.claims import ratio
from fedsps.paper.evidence import Evidence, Numbers
from fedsps.paper.figures import curves
from fedsps.paper.page import OUR_QUESTION, Check, Claim, Job, Line, Page, Panel, Records, Scale
from fedsps.report import plot
from fedsps.runs.result import Result
from fedsps.runs.spec import Spec

Rule = Callable[[Numbers, Numbers], Numbers]  # the clients' losses and gradients in, their stepsizes out

FIGURE = np.array([[2.0], [1.0]])  # x^2 and x^2 / 2
START, STEPS, NOISE = 100.0, 100, 10.0
SCALE, CAP = 0.5, 1.0
CONSTANTS = {"2/3": 2 / 3, "0.1": 0.1, "0.01": 0.01}  # 2/3 is 1/L of the mean
LOCAL = "locally adaptive SPS"
GLOBAL = {formula: f"global SPS ({formula})" for formula in "abc"}

STEEPNESS = (1, 10, 100, 1000, 10000)  # the example's a
ACCURACY = 1e-6
COMMON = "best common stepsize"
SHARES = {"half the optimum": 0.5, "the optimum (Polyak)": 1.0, "3/2 of the optimum": 1.5}
COUNTS, FINAL = "example1-counts", "example1-final"


def constant(stepsize: float) -> Rule:
    """The rule that gives all clients the same stepsize, whatever they see.

    >>> constant(0.1)(np.array([1.0, 2.0]), np.array([[1.0], [2.0]]))
    array([0.1, 0.1])
    """
    return lambda losses, gradients: np.full(len(losses), stepsize)


def local(losses: Numbers, gradients: Numbers) -> Numbers:
    """Each client's own stochastic Polyak stepsize, of its own loss and its own noisy gradient."""
    return np.array([polyak(loss, gradient) for loss, gradient in zip(losses, gradients, strict=True)])


def common(formula: str) -> Rule:
    """One Polyak stepsize for all, by the appendix's aggregation formula.

    (a) is the mean of the clients' stepsizes, (b) is of the mean loss and the mean of the squared gradients, (c) of the
    mean loss and the mean gradient.
    """

    def rule(losses: Numbers, gradients: Numbers) -> Numbers:
        if formula == "a":
            stepsize = local(losses, gradients).mean()
        else:
            size = np.sqrt((gradients**2).mean(0)) if formula == "b" else gradients.mean(0)
            stepsize = polyak(losses.mean(), size)
        return np.full(len(losses), stepsize)

    return rule


def polyak(loss: float, gradient: Numbers) -> float:
    """`min(loss / (scale ||g||^2), cap)`; the cap where the gradient is 0.

    >>> polyak(0.5, np.array([2.0])), polyak(8.0, np.array([1.0]))
    (0.25, 1.0)
    """
    size = float((gradient**2).sum())
    return min(loss / (SCALE * size), CAP) if size > 0 else CAP


def descend(curvatures: Numbers, start: Numbers, rule: Rule, noise: Numbers) -> pd.DataFrame:
    """Loss after each step, mean stepsize in it. Losses in the stepsizes are exact.

    Args:
        curvatures: `[clients, coordinates]`.
        start: `[coordinates]`.
        rule: the clients' losses and gradients in, their stepsizes out.
        noise: `[steps, clients, coordinates]`, added to gradients only; one step for each entry.

    >>> descend(np.array([[2.0], [2.0]]), np.array([1.0]), constant(0.25), np.zeros((2, 2, 1)))["train_loss"].tolist()
    [0.25, 0.0625]
    """
    x, rows = start, []
    for number, extra in enumerate(noise, 1):
        gradients = curvatures * x + extra
        stepsizes = rule(curvatures @ x**2 / 2, gradients)
        x = x - (stepsizes[:, None] * gradients).mean(0)
        rows.append((number, float((curvatures @ x**2 / 2).mean()), float(stepsizes.mean())))
    return pd.DataFrame(rows, columns=["round", "train_loss", "stepsize_mean"])


def steps_needed(curvatures: Numbers, stepsizes: Numbers, most: int = 10**6) -> float:
    """Exact steps with these stepsizes until the distance to the minimum is 1e-6 of what it was; nan if never.

    Each step multiplies coordinate j by `1 - mean_i gamma_i h_ij`.

    >>> steps_needed(np.array([[2.0], [2.0]]), np.array([0.25, 0.25]))
    20
    """
    factor = 1 - (stepsizes[:, None] * curvatures).mean(0)
    x = np.ones(curvatures.shape[1])
    for number in range(1, most + 1):
        x = x * factor
        if np.linalg.norm(x) <= ACCURACY * np.sqrt(len(x)):
            return number
    return np.nan


def problems(a: float) -> dict[str, Numbers]:
    """The example as written, and with a coordinate for each client.

    As written both clients pull on the same coordinate, and one common stepsize, 2 / (1 + a), ends it in a single step.
    With two coordinates the mean has condition number a, and no common stepsize is right for both.
    """
    return {"one coordinate": np.array([[a], [1.0]]), "two coordinates": np.array([[a, 0.0], [0.0, 1.0]])}


def counts() -> pd.DataFrame:
    """Steps needed: a row for each problem and kind of stepsizes, a column for each a.

    The best common stepsize is `2 / (L + mu)` of the mean. Local ones are 1/2, 1 and 3/2 of a client's own optimum, the
    inverse of its curvature: the Polyak stepsize is the optimum, and the others tell how exact it has to be.
    """
    columns = {}
    for a in STEEPNESS:
        steps = {}
        for name, curvatures in problems(a).items():
            mean = curvatures.mean(0)
            steps[name, COMMON] = steps_needed(curvatures, np.full(2, 2 / (mean.max() + mean.min())))
            for label, share in SHARES.items():
                steps[name, label] = steps_needed(curvatures, share / curvatures.max(1))
        columns[f"a = {a}"] = pd.Series(steps)
    return pd.DataFrame(columns).rename_axis(["problem", "stepsizes"]).reset_index()


def panels(scale: Scale) -> list[Panel]:
    """The same at every scale: all of it is computed in seconds. The lines' algorithms decide their colours alone."""
    lines = [
        *(Line(f"constant {words}", f"fedavg:client_stepsize={value}") for words, value in CONSTANTS.items()),
        *(Line(label, "fedsps-global") for label in GLOBAL.values()),
        Line(LOCAL, "fedsps"),
    ]
    return [
        Panel("loss", "(a) loss, noisy gradients", {}, lines),
        Panel("stepsize", "(b) stepsizes", {}, lines, "stepsize_mean"),
    ]


def compute(panels: Sequence[Panel], job: Job) -> Records:
    """Figure 1 on each seed, the same noise for every rule, and the counts of Example 1."""
    rules = {f"constant {words}": constant(value) for words, value in CONSTANTS.items()}
    rules |= {label: common(formula) for formula, label in GLOBAL.items()} | {LOCAL: local}
    results: dict[str, list[Result]] = {}
    for seed in range(job.seeds):
        noise = np.random.default_rng(seed).normal(0, NOISE, (STEPS, *FIGURE.shape))
        for line in panels[0].lines:
            history = descend(FIGURE, np.array([START]), rules[line.label], noise)
            name = str(line.algorithm).partition(":")[0]
            spec = Spec(algorithm=name, parameters={}, plan=Plan(seed=seed, rounds=STEPS))
            results.setdefault(line.label, []).append(Result(None, history, spec))
    records = Records({panel.name: results for panel in panels})
    return replace(records, tables={FINAL: final(records), COUNTS: counts()})


def final(records: Records) -> pd.DataFrame:
    """The loss that each rule ends with: least, median and largest over the seeds."""
    losses = {label: records.final("loss", label, "train_loss") for label in records.labels("loss")}
    rows = [(label, ends.min(), np.median(ends), ends.max()) for label, ends in losses.items()]
    return pd.DataFrame(rows, columns=["stepsize", "least final loss", "median", "largest"])


def kept(label: str, history: pd.DataFrame) -> pd.DataFrame:
    """Every fifth step and the last ten, which are judged: there are many seeds."""
    rounds = history["round"]
    return history[(rounds % 5 == 0) | (rounds > 0.9 * STEPS)]


def draw(records: Records, panels: Sequence[Panel], folder: Path) -> list[Path]:
    """The figure, and the steps needed against a."""
    plot.draw(
        [curves(records, panel, across="step") for panel in panels], [folder / "example1.png", folder / "example1.pdf"]
    )
    table = records.tables[COUNTS]
    series = {
        f"Example 1, {name}": {
            label: (list(STEEPNESS), steps(table, name, label)[:, None]) for label in (COMMON, *SHARES)
        }
        for name in problems(1)
    }
    place = folder / f"{COUNTS}.png"
    looks = {COMMON: "fedavg"} | dict.fromkeys(SHARES, "fedsps")
    plot.points(series, looks, "a", "steps needed", [place, place.with_suffix(".pdf")])
    return [folder / "example1.png", place]


def steps(table: pd.DataFrame, problem: str, label: str) -> Numbers:
    """A row of the counts, for one problem and one kind of stepsizes: a number for each a."""
    row = table[(table["problem"] == problem) & (table["stepsizes"] == label)]
    by_steepness: Numbers = row[[f"a = {a}" for a in STEEPNESS]].to_numpy(float)[0]
    return by_steepness


def common_needs_linear_steps(problem: str) -> Check:
    """E1: a common stepsize needs a number of steps linear in a.

    The effect is the slope of log steps over log a for the best common stepsize; NaN, so undecided, if a count never
    ends.

    Args:
        problem: the example "one coordinate", as written, or with "two coordinates", our own question.
    """

    def check(records: Records, column: str) -> Evidence:
        many = steps(records.tables[COUNTS], problem, COMMON)
        slope = np.polyfit(np.log(STEEPNESS), np.log(many), 1)[0] if np.isfinite(many).all() else np.nan
        return Evidence(np.array([slope]), low=0.9, kind="exact")

    return check


def local_needs_few_steps(problem: str) -> Check:
    """E1: local stepsizes need a nearly constant one; the effect is the most over the fewest steps over all a."""

    def check(records: Records, column: str) -> Evidence:
        taken = np.array([steps(records.tables[COUNTS], problem, label) for label in SHARES])
        return Evidence(taken.max(1) / taken.min(1), high=2, kind="exact")

    return check


def local_is_faster(label: str) -> Check:
    """E2: with noise too, locally adaptive SPS ends lower than this line, in the mean of the last 10 of 100 steps."""
    return lambda records, column: Evidence(ratio(records, "loss", LOCAL, label, "train_loss"), high=1.0)


def _example(problem: str, id: str = "", place: str = "Example 1", words: str = "") -> tuple[Claim, Claim]:
    """E1 of one of the two problems."""
    return (
        Claim(
            f"E1 common{id}",
            f"with a common stepsize Example 1 needs a number of steps linear in a{words}",
            place,
            "slope of log steps over log a at least 0.9 for the best common stepsize",
            "slope",
            common_needs_linear_steps(problem),
            on_loss=False,
            over="computation",
            why="in one dimension the common stepsize 2/(1 + a) ends it in one step; with a coordinate each it is true",
        ),
        Claim(
            f"E1 local{id}",
            f"with local stepsizes it needs a near-constant one{words}",
            place,
            "steps with local ones of 1/2, 1 and 3/2 of the optimum at most doubled over all a",
            "most over fewest steps",
            local_needs_few_steps(problem),
            on_loss=False,
            over="computation",
        ),
    )


PAGE = Page(
    name="example1",
    title="Figure 1 and Example 1: local stepsizes on quadratics",
    panels=panels,
    draw=draw,
    claims=(
        *_example("one coordinate"),
        Claim(
            "E2",
            "the same is seen with noise: locally adaptive SPS converges faster than constant and global SPS",
            "figure 1",
            "mean loss over the last 10 of 100 steps below the other's",
            "loss ratio",
            {
                label: local_is_faster(label)
                for label in (*(f"constant {words}" for words in CONSTANTS), *GLOBAL.values())
            },
            on_loss=False,
            why="the three formulas differ: local stepsizes end below (b), above (c), and are not told from (a)",
        ),
        *_example("two coordinates", " two", OUR_QUESTION, ", where each client has its own: f1 = a/2 u^2, f2 = v^2/2"),
    ),
    note=(
        "The source does not say what the two panels of figure 1 are: here the loss and the stepsizes. We chose x0 = "
        "100, 100 steps, the constant stepsizes 2/3 (1/L of the mean), 0.1 and 0.01, and 100 seeds; noise is added to "
        "the gradients, the losses in the stepsizes are exact. Global SPS has one stepsize for both clients, by each "
        "of the appendix's formulas: the paper does not say which. Example 1 as written is in one dimension, where the "
        "common stepsize 1/L = 2/(1 + a) reaches the minimum in one step for every a; beside it is the version with a "
        "coordinate for each client. Steps are counted until the distance to the minimum is 1e-6 of the first; the "
        "best common stepsize is 2/(L + mu)."
    ),
    seeds=100,
    compute=compute,
    kept=kept,
    shown=(FINAL, COUNTS),
)
