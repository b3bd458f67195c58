"""The theorems held against runs: what is measured at every T, and the bound.

The runs are small: quadratics, whose constants are known exactly, and logistic regression on overlapping classes. A
batch is one sample, as in the paper's notation, and every local iterate is kept. Strongly convex statements are held
against quadratics alone, since logistic regression has mu = 0. T8 is on the page `global`, Example 1 on `example1`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import pandas as pd

from fedsps.core.plan import Plan
from fedsps.data.clients import ClientData
from fedsps.methods.fedsps import FedSPS
from fedsps.model.network import Network
from fedsps.paper.evidence import Evidence, Numbers
from fedsps.paper.figures import curves
from fedsps.paper.page import Check, Claim, Job, Line, Page, Panel, Records, Scale
from fedsps.report import plot
from fedsps.report.compare import compare
from fedsps.runs.result import Result
from fedsps.runs.spec import Spec
from fedsps.theory.bounds import (
    CONVEX,
    LINEAR,
    NON_CONVEX,
    SMALL_CONVEX,
    SMALL_STRONGLY_CONVEX,
    STRONGLY_CONVEX,
    Theorem,
)
from fedsps.theory.constants import Constants
from fedsps.theory.logistic import overlapping
from fedsps.theory.quadratics import Bowl, Quadratics, mean_with_offsets, random_quadratics
from fedsps.theory.trajectory import Trajectory, follow

TAU = 2
LEFT = "left side"
MEASURED, BOUND, STATED = "measured", "bound", "bound as stated"
LEMMAS, NEIGHBOURHOODS, PROPOSITION = "theory-lemmas", "theory-neighbourhood", "theory-proposition"
CAPS = (0.001, 0.002, 0.004, 0.008, 0.016, 0.03, 0.1, 0.3, 1.0)
SMALLEST = 4  # caps that slopes are fitted to
SEED = 0  # of the problems; a page's seeds decide the batches
CURVED = (0.5, 2.0)


class Problem(Protocol):
    """What a bound is held against."""

    @property
    def network(self) -> Network:
        """The model and the loss, at the start."""

    @property
    def data(self) -> ClientData:
        """The samples of all clients, as many of each."""

    @property
    def minimum(self) -> Numbers:
        """The point x*, `[d]`."""

    def value(self, x: Numbers) -> Numbers:
        """`f` at points `[..., d]`."""

    def constants(self, scale: float, cap: float, local_steps: int) -> Constants:
        """L, mu and the rest of what the theorems need, in this setting."""


Left = Callable[[Problem, Trajectory], Numbers]


def mean_gap(problem: Problem, run: Trajectory) -> Numbers:
    """Mean over t < T and clients of `F_i(x_t^i, batch) - l*`, whose expectation is that of `f_i(x_t^i) - l*`."""
    return running_mean(run.losses.mean(1) - run.lower)


def distance(problem: Problem, run: Trajectory) -> Numbers:
    """`||mean_i x_T^i - x*||^2`."""
    return np.asarray(((run.means[1:] - problem.minimum) ** 2).sum(-1))


def mean_excess(problem: Problem, run: Trajectory) -> Numbers:
    """Mean over t < T of `f(mean_i x_t^i) - f*`."""
    return running_mean(problem.value(run.means[:-1]) - problem.value(problem.minimum))


def mean_gradient(problem: Problem, run: Trajectory) -> Numbers:
    """Mean over t < T of `||grad f(mean_i x_t^i)||^2`."""
    if not isinstance(problem, Quadratics):
        raise TypeError("the gradient is that of quadratics")
    return running_mean((problem.gradient(run.means[:-1]) ** 2).sum(-1))


def running_mean(values: Numbers) -> Numbers:
    """The mean of the first T values, for T = 1, 2, ...

    >>> running_mean(np.array([4.0, 2.0, 0.0])).tolist()
    [4.0, 3.0, 2.0]
    """
    return np.asarray(values.cumsum() / np.arange(1, len(values) + 1))


@dataclass(frozen=True)
class Case:
    """One pair of axes: a theorem on a problem.

    Attributes:
        title: above them.
        theorem: whose bound is drawn.
        left: what is measured.
        problem: made when the page is.
        scale: c.
        cap: gamma_b; None for the largest that the theorem allows.
    """

    title: str
    theorem: Theorem
    left: Left
    problem: Callable[[], Problem]
    scale: float
    cap: float | None = 1.0

    def constants(self, problem: Problem) -> Constants:
        """Of the problem in this setting."""
        if self.cap is not None:
            return problem.constants(self.scale, self.cap, TAU)
        L = problem.constants(self.scale, 1.0, TAU).smoothness
        return problem.constants(self.scale, 0.999 / (25 * L * TAU), TAU)


def noisy() -> Quadratics:
    """Clients and samples that disagree, and a lower bound of 0 that is below every loss."""
    return random_quadratics(SEED, curvatures=CURVED, offset=0.1)


def interpolating() -> Quadratics:
    """All samples of all clients have their minimum at 0, with curvatures of their own."""
    return random_quadratics(SEED, curvatures=CURVED, spread=0.0, noise=0.0)


def bumpy() -> Quadratics:
    """Not convex: `3 (1 - cos x)` on bowls of curvature 1, so that gradients differ by the same everywhere."""
    return random_quadratics(SEED, curvatures=(1.0, 1.0), same_curvatures=True, bumps=3.0)


CASES = {
    "convex": Case("thm:fedsps_local_convex (a), quadratics", CONVEX, mean_gap, noisy, 2.0 * TAU**2),
    "convex logistic": Case(
        "thm:fedsps_local_convex (a), logistic", CONVEX, mean_gap, lambda: overlapping(SEED), 2.0 * TAU**2
    ),
    "strong": Case("thm:fedsps_local_convex (b), quadratics", STRONGLY_CONVEX, distance, noisy, 4.0 * TAU**2, 0.05),
    "interpolation": Case("corollary, interpolation", LINEAR, distance, interpolating, 4.0 * TAU**2),
    "small": Case("thm:..._small (a), quadratics", SMALL_CONVEX, mean_excess, noisy, 0.5, None),
    "small logistic": Case(
        "thm:..._small (a), logistic", SMALL_CONVEX, mean_excess, lambda: overlapping(SEED), 0.5, None
    ),
    "small strong": Case("thm:..._small (b), quadratics", SMALL_STRONGLY_CONVEX, distance, noisy, 0.5, None),
    "non-convex": Case("thm:non-convex", NON_CONVEX, mean_gradient, bumpy, 0.5, None),
}


def rounds_of(scale: Scale) -> int:
    """How long the runs are; the smoke scale shows that it works."""
    return 4 if scale == "smoke" else 300


def panels(scale: Scale) -> list[Panel]:
    """One for each case; the lines' algorithms decide their colours alone."""
    chosen = []
    for name, case in CASES.items():
        lines = [Line(MEASURED, "fedsps"), Line(BOUND, "fedavg")]
        lines += [Line(STATED, "fedams")] if case.theorem.as_stated is not None else []
        chosen.append(Panel(name, case.title, {}, lines, LEFT))
    return chosen


def compute(panels: Sequence[Panel], job: Job) -> Records:
    """Every case on each seed, the lemmas along its iterates, neighbourhoods against the cap, and proposition 1."""
    runs: dict[str, dict[str, list[Result]]] = {}
    lemmas = []
    for number, panel in enumerate(panels):
        job.tell("runs", number, len(panels) + 2)
        case = CASES[panel.name]
        problem = case.problem()
        k = case.constants(problem)
        rounds = rounds_of(job.scale)
        T = np.arange(1, rounds * TAU + 1)
        lines = {BOUND: case.theorem.bound(k, T)}
        if case.theorem.as_stated is not None:
            lines[STATED] = case.theorem.as_stated(k, T.astype(float))
        found = runs.setdefault(panel.name, {})
        for seed in range(job.seeds):
            plan = Plan(rounds=rounds, local_steps=TAU, batch_size=1, seed=seed)
            run = follow(problem.network, problem.data, FedSPS(scale=k.scale, cap=k.cap), plan)
            lemmas.append({"case": panel.name, "seed": seed} | lemmas_of(problem, run, k))
            for line in panel.lines:
                if seed and line.label != MEASURED:
                    continue  # a bound is the same for all seeds
                values = lines.get(line.label)
                values = case.left(problem, run) if values is None else values
                history = pd.DataFrame({"round": T, "train_loss": np.nan, LEFT: values})
                spec = Spec(algorithm=str(line.algorithm), parameters={}, plan=plan)
                found.setdefault(line.label, []).append(Result(None, history, spec))
    job.tell("neighbourhoods", len(panels), len(panels) + 2)
    tables = {LEMMAS: pd.DataFrame(lemmas), NEIGHBOURHOODS: neighbourhoods(job), PROPOSITION: proposition()}
    return Records(runs, tables=tables)


def lemmas_of(problem: Problem, run: Trajectory, k: Constants) -> dict[str, float]:
    """The lemmas along one run, each as the largest or the least of a ratio that is to be at most or at least 1.

    The second bound of R_t is that for small caps, (eq:443), which the paper has in expectation.
    """
    moved, started = run.gains > 0, run.difference_bounds > 0
    L, tau = k.smoothness, k.local_steps
    excess = problem.value(run.means[:-1]) - problem.value(problem.minimum)
    small = run.since_round(excess / (3 * L * tau) + 64 * L * k.cap**2 * tau * k.gap)
    return {
        "least stepsize over alpha": float(run.stepsizes.min() / k.alpha),
        "largest stepsize over the cap": float(run.stepsizes.max() / k.cap),
        "fundamental inequality": float((k.scale * run.stepsizes**2 * run.sizes / run.gains)[moved].max()),
        "R_t over its bound": float((run.differences[started] / run.difference_bounds[started]).max()),
        "R_t over its bound for small caps": float((run.differences[started] / small[started]).max()),
    }


def neighbourhoods(job: Job) -> pd.DataFrame:
    """How far above f* FedSPS and FedAvg end, by cap and seed, with noisy batches and with a client's whole data.

    With c = 1/2, as in the experiments. A cap that is small needs more rounds, so all start at x*, where every run is
    close to where it ends.
    """
    rounds = 4 if job.scale == "smoke" else 1500
    rows = []
    for words, batch in (("one sample", 1), ("whole data", None)):
        problem = noisy()
        bowl = Bowl(problem.network.x.new_tensor(problem.minimum))
        floor = problem.gap
        named = {f"{method}:{key}={cap:g}": (method, cap) for method, key in KEYS.items() for cap in CAPS}
        done = compare(
            list(named),
            model=bowl,
            clients=problem.data,
            loss=mean_with_offsets,
            rounds=rounds,
            local_steps=5,
            batch_size=batch,
            seeds=1 if batch is None else job.seeds,
            evaluate_every=max(1, rounds // 400),
            evaluate_from=rounds // 2,
        )
        for (method, cap), results in zip(named.values(), done.results.values(), strict=True):
            for seed, run in enumerate(results):
                end = run.history.loc[run.history["round"] > rounds // 2, "train_loss"].mean()
                rows.append((words, method, cap, seed, float(end) - floor))
    return pd.DataFrame(rows, columns=["batch", "method", "cap", "seed", "f - f*"])


KEYS = {"fedsps": "cap", "fedavg": "client_stepsize"}


def proposition() -> pd.DataFrame:
    """Proposition 1 on 1000 random quadratics: `zeta*^2` and `sigma*^2` over `2 L sigma_f^2`."""
    rows = []
    for seed in range(1000):
        problem = random_quadratics(seed, clients=3, samples=3, dimension=2, noise=0.1 * (seed % 20))
        gradients = problem.gradients(problem.minimum)
        means = gradients.mean(1)
        within = ((gradients - means[:, None]) ** 2).sum(-1).mean()
        roof = 2 * problem.curvatures.max() * problem.gap
        rows.append(((means**2).sum(-1).mean() / roof, within / roof))
    return pd.DataFrame(rows, columns=["zeta*^2", "sigma*^2"])


class TwoClients(NamedTuple):
    """The small-stepsize theorem on two clients, both sides of it as T grows.

    Attributes:
        left: mean of `f(mean_i x_t^i) - f*`.
        as_stated: the bound with the paper's third term.
        mended: the bound with L^2 in it.
        gap: `sigma_f^2`.
    """

    left: float
    as_stated: float
    mended: float
    gap: float


def two_clients(smoothness: float, local_steps: int, rounds: int) -> TwoClients:
    """FedSPS on `L x^2/2` and `0.3 L (x - 1)^2/2` from x* on, with full gradients and `gamma_b = 1/(20 L tau)`.

    A cap so small binds at every step, so a client's k-th iterate is affine in the server's point X, and the sums over
    k and over rounds have closed forms.
    """
    L, tau, least = smoothness, local_steps, 0.3 / 1.3
    cap = 1 / (20 * L * tau)
    steps = np.arange(tau + 1)
    first, second = (1 - cap * L) ** steps, (1 - 0.3 * cap * L) ** steps
    slope, constant = (first + second) / 2, (1 - second) / 2  # mean_i x_t^i = slope X + constant
    fixed = constant[-1] / (1 - slope[-1])
    X = fixed + slope[-1] ** np.arange(rounds) * (least - fixed)
    a, b = slope[:-1], constant[:-1] - least
    square = (a @ a) * (X**2).mean() + 2 * (a @ b) * X.mean() + b @ b
    gap = (L * least**2 / 2 + 0.3 * L * (1 - least) ** 2 / 2) / 2
    k = Constants(smoothness=L, scale=0.5, cap=cap, local_steps=tau, clients=2, gap=gap)
    stated = SMALL_CONVEX.as_stated
    return TwoClients(
        left=float(1.3 * L / 4 * square / tau),
        as_stated=float(stated(k, np.array(np.inf))) if stated is not None else np.nan,
        mended=SMALL_CONVEX.neighbourhood(k),
        gap=float(gap),
    )


def draw(records: Records, panels: Sequence[Panel], folder: Path) -> list[Path]:
    """Both sides of every theorem against T, and neighbourhoods against the cap."""
    chosen = [curves(records, panel, across="iteration T") for panel in panels]
    plot.draw(chosen, [folder / "theory.png", folder / "theory.pdf"])
    table = records.tables[NEIGHBOURHOODS]
    series: dict[str, dict[str, tuple[Sequence[float], Numbers]]] = {}
    names = {"fedsps": "FedSPS", "fedavg": "FedAvg with that stepsize"}
    for (batch, method), part in table.groupby(["batch", "method"], sort=False):
        by_cap = part.pivot(index="cap", columns="seed", values="f - f*").clip(lower=1e-16)
        series.setdefault(f"batches of {batch}", {})[names[str(method)]] = (list(by_cap.index), by_cap.to_numpy())
    k = noisy().constants(0.5, 1.0, 5)
    caps = [cap for cap in CAPS if cap <= 1 / (20 * k.smoothness * 5)]
    roof = [SMALL_CONVEX.neighbourhood(noisy().constants(0.5, cap, 5)) for cap in caps]
    for lines in series.values():
        lines["bound, thm:..._small (a)"] = (caps, np.array(roof)[:, None])
    place = folder / f"{NEIGHBOURHOODS}.png"
    looks = {"FedSPS": "fedsps", names["fedavg"]: "fedavg", "bound, thm:..._small (a)": "fedams"}
    plot.points(series, looks, "cap", "f - f*", [place, place.with_suffix(".pdf")])
    return [folder / "theory.png", place]


def below(case: str, bound: str = BOUND) -> Check:
    """The left side is at most the bound at every T; the effect is the largest ratio over T."""

    def check(records: Records, column: str) -> Evidence:
        roof = records.of(case, bound)[0].history[LEFT]
        ratios = [float((run.history[LEFT] / roof).max()) for run in records.of(case, MEASURED)]
        return Evidence(np.array(ratios), high=1.0)

    return check


def lemma(name: str, low: float = -np.inf, high: float = np.inf, cases: Sequence[str] = ()) -> Check:
    """A lemma along every run; of some cases where only they meet its condition."""

    def check(records: Records, column: str) -> Evidence:
        table = records.tables[LEMMAS]
        chosen = table[table["case"].isin(list(cases))] if cases else table
        return Evidence(chosen[name].to_numpy(float), low, high, "exact")

    return check


def linear_rate(records: Records, column: str) -> Evidence:
    """The corollary's rate: the slope of `log ||mean x_T - x*||^2` over T, in units of `log(1 - mu alpha)`."""
    case = CASES["interpolation"]
    k = case.constants(case.problem())
    slopes = []
    for run in records.of("interpolation", MEASURED):
        seen = run.history[run.history[LEFT] > 1e-25]  # below that it is rounding
        slopes.append(np.polyfit(seen["round"], np.log(seen[LEFT]), 1)[0])
    return Evidence(np.array(slopes) / np.log1p(-k.convexity * k.alpha), low=1.0)


def exponent(batch: str, low: float, high: float) -> Check:
    """The slope of `log (f - f*)` over the logarithm of the smallest caps."""

    def check(records: Records, column: str) -> Evidence:
        table = records.tables[NEIGHBOURHOODS]
        part = table[(table["batch"] == batch) & (table["method"] == "fedsps")]
        by_cap = part.pivot(index="cap", columns="seed", values="f - f*").sort_index().iloc[:SMALLEST]
        slopes = np.polyfit(np.log(by_cap.index), np.log(by_cap.to_numpy()), 1)[0]
        return Evidence(slopes, low, high, "difference" if len(slopes) > 1 else "exact")

    return check


def proposition_1(name: str) -> Check:
    """One of its two inequalities, on every draw."""
    return lambda records, column: Evidence(records.tables[PROPOSITION][name].to_numpy(float), high=1.0, kind="exact")


def dropped_factor(mended: bool) -> Check:
    """The left side over the bound on two clients with L = 1e6 and 1e5 local steps."""

    def check(records: Records, column: str) -> Evidence:
        found = two_clients(1e6, 10**5, 10**5)
        return Evidence(np.array([found.left / (found.mended if mended else found.as_stated)]), high=1.0, kind="exact")

    return check


def _claim(
    id: str,
    statement: str,
    place: str,
    criterion: str,
    effect: str,
    check: Check | Mapping[str, Check],
    over: str = "seed",
) -> Claim:
    return Claim(id, statement, place, criterion, effect, check, on_loss=False, over=over)


ROUNDING = 1e-9
AT_EVERY_T = "left side at most the bound at every T"
LARGEST = "largest ratio over T"
SCALED = ("convex", "convex logistic", "strong", "interpolation")
CAPPED = ("small", "small logistic", "small strong")

PAGE = Page(
    name="theory",
    title="The theorems against runs",
    panels=panels,
    draw=draw,
    claims=(
        _claim(
            "T1",
            "every stepsize is at least alpha = min(1/(2cL), gamma_b) and at most gamma_b",
            "lemma:sps_main_ineq",
            "true of every step of every run on this page",
            "least or largest ratio",
            {
                "at least alpha": lemma("least stepsize over alpha", low=1 - ROUNDING),
                "at most the cap": lemma("largest stepsize over the cap", high=1 + ROUNDING),
            },
            "run",
        ),
        _claim(
            "T2",
            "||gamma g||^2 is at most gamma/c (F - l*)",
            "lemma:sps_main_ineq_2",
            "true of every step of every run on this page",
            "largest ratio",
            lemma("fundamental inequality", high=1 + ROUNDING),
            "run",
        ),
        _claim(
            "T3",
            "R_t is at most 1/(2 n tau) sum gamma (F - l*) since the round began, for c >= 2 tau^2",
            "lemma:convex_difference",
            "true of every iteration of the runs with c >= 2 tau^2",
            "largest ratio",
            lemma("R_t over its bound", high=1 + ROUNDING, cases=SCALED),
            "run",
        ),
        _claim(
            "T3 small",
            "R_t is at most 1/(3 L tau) sum (f - f*) + 64 L gamma_b^2 tau sum sigma_f^2, for gamma_b <= 1/(20 L tau)",
            "eq:443",
            "true of every iteration of the runs with such a cap, which is more than the expectation of the lemma",
            "largest ratio",
            lemma("R_t over its bound for small caps", high=1 + ROUNDING, cases=CAPPED),
            "run",
        ),
        _claim(
            "T4 (a)",
            "FedSPS converges to a neighbourhood for convex losses",
            "thm:fedsps_local_convex (a)",
            AT_EVERY_T,
            LARGEST,
            {"quadratics": below("convex"), "logistic regression": below("convex logistic")},
        ),
        _claim(
            "T4 (b)",
            "and linearly for strongly convex ones",
            "thm:fedsps_local_convex (b)",
            AT_EVERY_T,
            LARGEST,
            below("strong", STATED),
        ),
        _claim(
            "T4 corollary",
            "without a neighbourhood under interpolation",
            "corollary of thm:fedsps_local_convex",
            AT_EVERY_T,
            LARGEST,
            below("interpolation", STATED),
        ),
        _claim(
            "T5 (a)",
            "small caps give FedAvg's convergence, with a third term of gamma_b^2 L tau^2 sigma_f^2",
            "thm:fedsps_local_convex_small (a)",
            "left side at most the stated bound, with the proof's constants, on two clients with L = 1e6, tau = 1e5",
            "ratio",
            dropped_factor(mended=False),
            "counterexample",
        ),
        _claim(
            "T5 (b)",
            "the same for strongly convex losses",
            "thm:fedsps_local_convex_small (b)",
            AT_EVERY_T,
            LARGEST,
            below("small strong"),
        ),
        _claim(
            "T5 exact",
            "an appropriately small cap reaches any accuracy",
            "thm:fedsps_local_convex_small",
            "slope of log (f - f*) over log cap at the four smallest caps at least 0.8",
            "slope",
            {"batches of one sample": exponent("one sample", 0.8, np.inf)},
        ),
        _claim(
            "T6",
            "small caps converge for losses that are not convex",
            "thm:non-convex",
            AT_EVERY_T,
            LARGEST,
            below("non-convex", STATED),
        ),
        _claim(
            "T7",
            "zeta*^2 and sigma*^2 are at most 2 L sigma_f^2",
            "lem:heterogeinity_comparison (proposition 1)",
            "true of 1000 random quadratics",
            "largest ratio",
            {"(a) zeta*^2": proposition_1("zeta*^2"), "(b) sigma*^2": proposition_1("sigma*^2")},
            "draw",
        ),
        _claim(
            "T4 (b) mended",
            "with A = 1 in place of 1/(mu alpha), as the mended proof has it",
            "our question",
            AT_EVERY_T,
            LARGEST,
            {"quadratics": below("strong"), "interpolation": below("interpolation")},
        ),
        _claim(
            "T4 rate",
            "under interpolation the distance falls at least as fast as (1 - mu alpha)^T",
            "our question",
            "slope of log distance over T at least that of the bound",
            "slope over log(1 - mu alpha)",
            linear_rate,
        ),
        _claim(
            "T5 (a) mended",
            "the small-stepsize theorem with gamma_b^2 L^2 tau^2 sigma_f^2",
            "our question",
            AT_EVERY_T,
            LARGEST,
            {"quadratics": below("small"), "logistic regression": below("small logistic")},
        ),
        _claim(
            "T5 order",
            "with noise the neighbourhood is of order gamma_b, with full gradients of order gamma_b^2",
            "our question",
            "slope of log (f - f*) over log cap within 0.2 of 1, and of 2",
            "slope",
            {
                "batches of one sample": exponent("one sample", 0.8, 1.2),
                "full gradients": exponent("whole data", 1.8, 2.2),
            },
        ),
        _claim(
            "T6 mended",
            "the non-convex theorem with sigma^2 in place of sigma^2/tau, as its proof has it",
            "our question",
            AT_EVERY_T,
            LARGEST,
            below("non-convex"),
        ),
    ),
    note=(
        "Four clients with a few samples each, two local steps, batches of one sample, 10 seeds of the batches; "
        "quadratics have curvatures from 0.5 to 2 and l* = 0 below every loss. The theorems are cited by the labels of "
        "the paper's source. Bounds have the constants of the proofs; a second one is drawn where the paper's "
        "statement and a correct proof differ (docs/theory.md). Neighbourhoods are means of f - f* over the second "
        "half of 1500 rounds of five local steps with c = 1/2, from x* on. T8, on the global stepsizes, is on the page "
        "of FedSPS-Global."
    ),
    seeds=10,
    compute=compute,
)
