"""What the page `theory` runs: theorems along small runs, neighbourhoods by cap, and how f falls to f* as T grows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from fedsps.core.plan import Plan
from fedsps.methods.fedsps import FedSPS
from fedsps.paper.page import Job, Panel, Records, Scale
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
from fedsps.theory.left_sides import Left, Problem, distance, lemmas_of, mean_excess, mean_gap, mean_gradient
from fedsps.theory.logistic import Overlapping, overlapping
from fedsps.theory.quadratics import Quadratics, random_quadratics
from fedsps.theory.trajectory import follow

TAU = 2
LEFT = "left side"
MEASURED, BOUND, STATED = "measured", "bound", "bound as stated"
LEMMAS, NEIGHBOURHOODS, PROPOSITION, EXACT = (
    "theory-lemmas", "theory-neighbourhood", "theory-proposition", "theory-exact"
)  # fmt: skip
CAPS = (0.001, 0.002, 0.004, 0.008, 0.016, 0.03, 0.1, 0.3, 1.0)
KEYS = {"fedsps": "cap", "fedavg": "client_stepsize"}  # where each has its cap
SEED = 0  # of the problems; a page's seeds decide the batches
CURVED = (0.5, 2.0)
ONE, WHOLE = "one sample", "whole data"  # batches


def noisy() -> Quadratics:
    """Clients and samples that disagree, and a lower bound of 0 that is below every loss."""
    return random_quadratics(SEED, curvatures=CURVED, offset=0.1)


def interpolating() -> Quadratics:
    """All samples of all clients have their minimum at 0, with curvatures of their own."""
    return random_quadratics(SEED, curvatures=CURVED, spread=0.0, noise=0.0)


def bumpy() -> Quadratics:
    """Not convex: `3 (1 - cos x)` on bowls of curvature 1, so that gradients differ by the same everywhere."""
    return random_quadratics(SEED, curvatures=(1.0, 1.0), same_curvatures=True, bumps=3.0)


def logistic() -> Overlapping:
    """Logistic regression on classes that overlap."""
    return overlapping(SEED)


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


CASES = {
    "convex": Case("thm:fedsps_local_convex (a), quadratics", CONVEX, mean_gap, noisy, 2.0 * TAU**2),
    "convex logistic": Case("thm:fedsps_local_convex (a), logistic", CONVEX, mean_gap, logistic, 2.0 * TAU**2),
    "strong": Case("thm:fedsps_local_convex (b), quadratics", STRONGLY_CONVEX, distance, noisy, 4.0 * TAU**2, 0.05),
    "interpolation": Case("corollary, interpolation", LINEAR, distance, interpolating, 4.0 * TAU**2),
    "small": Case("thm:..._small (a), quadratics", SMALL_CONVEX, mean_excess, noisy, 0.5, None),
    "small logistic": Case("thm:..._small (a), logistic", SMALL_CONVEX, mean_excess, logistic, 0.5, None),
    "small strong": Case("thm:..._small (b), quadratics", SMALL_STRONGLY_CONVEX, distance, noisy, 0.5, None),
    "non-convex": Case("thm:non-convex", NON_CONVEX, mean_gradient, bumpy, 0.5, None),
}


def rounds_of(scale: Scale) -> int:
    """How long the runs are; the smoke scale shows that it works."""
    return 4 if scale == "smoke" else 300


def compute(panels: Sequence[Panel], job: Job) -> Records:
    """Every case on each seed, the lemmas along its iterates, and the tables beside them."""
    runs: dict[str, dict[str, list[Result]]] = {}
    lemmas = []
    steps = len(panels) + 2
    for number, panel in enumerate(panels):
        job.tell("runs", number, steps)
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
                spec = Spec(algorithm=str(line.algorithm), parameters={}, plan=plan)
                found.setdefault(line.label, []).append(Result(None, pd.DataFrame({"round": T, LEFT: values}), spec))
    job.tell("neighbourhoods", len(panels), steps)
    around = neighbourhoods(job)
    job.tell("growing T", len(panels) + 1, steps)
    tables = {LEMMAS: pd.DataFrame(lemmas), NEIGHBOURHOODS: around, PROPOSITION: proposition(), EXACT: excesses(job)}
    return Records(runs, tables=tables)


def neighbourhoods(job: Job) -> pd.DataFrame:
    """How far above f* FedSPS and FedAvg end, by cap and seed, with noisy batches and with a client's whole data.

    With c = 1/2, as in the experiments. A cap that is small needs more rounds, so all start at x*, where every run is
    close to where it ends.
    """
    rounds = 4 if job.scale == "smoke" else 1500
    problem = noisy()
    problem = replace(problem, start=problem.minimum)
    named = {f"{method}:{key}={cap:g}": (method, cap) for method, key in KEYS.items() for cap in CAPS}
    rows = []
    for batch in (ONE, WHOLE):
        done = trained(problem, list(named), batch, rounds, job.seeds, max(1, rounds // 400), rounds // 2)
        for (method, cap), results in zip(named.values(), done.values(), strict=True):
            for seed, run in enumerate(results):
                rows.append((batch, method, cap, seed, mean_loss(run, rounds // 2, rounds) - problem.gap))
    return pd.DataFrame(rows, columns=["batch", "method", "cap", "seed", "f - f*"])


FEDSPS, FEDDECSPS, SMALL_CAP = "FedSPS", "FedDecSPS", "FedDecSPS, cap 1/(2 c L)"
GROWING: Mapping[str, tuple[Callable[[], Quadratics | Overlapping], str]] = {
    "quadratics": (noisy, ONE),
    "logistic regression": (logistic, ONE),
    "quadratics with full gradients": (noisy, WHOLE),
}
"""Problems that no model fits, with the batches of the runs whose T grows."""


def horizons(scale: Scale) -> list[int]:
    """The numbers of rounds at which f is compared with f*, each twice the one before."""
    return [4, 8, 16] if scale == "smoke" else [32, 64, 128, 256, 512, 1024]


def excesses(job: Job) -> pd.DataFrame:
    """Mean of f - f* over the second half of so many rounds, for FedSPS, FedDecSPS, and FedDecSPS with a small cap.

    With c = 1/2 and gamma_b = 1, as in the experiments, and five local steps. The small cap is `1/(2 c L)`: no Polyak
    ratio over c is below it, so all clients keep the same stepsizes. Slopes are noisy, so there are twice the page's
    seeds: they are computed together, and cost little.
    """
    many = horizons(job.scale)
    rows = []
    for name, (made, batch) in GROWING.items():
        problem = made()
        k = problem.constants(0.5, 1.0, 5)
        least = float(problem.value(problem.minimum))
        words = {FEDSPS: "fedsps", FEDDECSPS: "feddecsps:cap=1.0", SMALL_CAP: f"feddecsps:cap={k.least_ratio!r}"}
        done = trained(problem, list(words.values()), batch, many[-1], 2 * job.seeds, 2, 1)
        for method, results in zip(words, done.values(), strict=True):
            for seed, run in enumerate(results):
                rows += [(name, method, seed, end, mean_loss(run, end // 2, end) - least) for end in many]
    return pd.DataFrame(rows, columns=["problem", "method", "seed", "rounds", "f - f*"])


def trained(
    problem: Problem, algorithms: Sequence[str], batch: str, rounds: int, seeds: int, every: int, first: int
) -> Mapping[str, Sequence[Result]]:
    """Runs of five local steps by label; of full gradients there is one seed.

    Args:
        problem: what is trained on, from its start.
        algorithms: in the command line's notation.
        batch: `ONE` or `WHOLE`.
        rounds: how many.
        seeds: of the batches.
        every: rounds between two evaluations.
        first: round from which on there are any.
    """
    return compare(
        algorithms,
        model=problem.model,
        clients=problem.data,
        loss=problem.loss,
        rounds=rounds,
        local_steps=5,
        batch_size=1 if batch == ONE else None,
        seeds=seeds if batch == ONE else 1,
        evaluate_every=every,
        evaluate_from=first,
    ).results


def mean_loss(run: Result, after: int, until: int) -> float:
    """The mean of f over the evaluated rounds of a stretch."""
    rounds = run.history["round"]
    return float(run.history.loc[(rounds > after) & (rounds <= until), "train_loss"].mean())


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
