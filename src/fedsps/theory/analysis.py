"""What is known of a problem before it is trained on, or after: numbers with notes, and advice in words."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from fedsps.theory.bounds import CONVEX, SMALL_CONVEX, Theorem
from fedsps.theory.constants import Constants
from fedsps.theory.curvature import Curvature
from fedsps.theory.objective import Noise
from fedsps.theory.optimum import Optimum

MOSTLY, HARDLY = 0.9, 0.1  # of the steps, for a cap that binds


class Fact(NamedTuple):
    """A line of the table.

    Attributes:
        name: what it is.
        value: the number.
        note: how well it is known, or what it is held against.
    """

    name: str
    value: float
    note: str = ""


@dataclass(frozen=True, eq=False)
class Analysis:
    """A model, clients' data and an algorithm, seen by the theory.

    Attributes:
        model: "softmax regression" and the like, or the module's name.
        is_convex: whether the losses are known to be.
        curvature: L and mu.
        first_loss: f at the start.
        optimum: f* and x*; None where the losses are not known to be convex.
        noise: how much gradients differ between clients and between batches.
        where: at which point they were compared: "x*", "the start" or "the trained model".
        gap: `sigma_f^2 = f* - mean_i l_i*`; NaN where f* is not known.
        constants: what the theorems need; None where they are not about the algorithm.
        capped: the share of the first steps at which the cap binds; NaN where there is no fixed cap.
        capped_at_end: the same from the trained model on; NaN before training.
        last_loss: f at the trained model; NaN before training.
        iterations: T, that the plan asks for.
        batch: samples of a local step; None for all.
        cohort: clients of a round; None for all.
    """

    model: str
    is_convex: bool
    curvature: Curvature
    first_loss: float
    optimum: Optimum | None
    noise: Noise
    where: str
    gap: float
    constants: Constants | None
    capped: float
    capped_at_end: float
    last_loss: float
    iterations: int
    batch: int | None
    cohort: int | None

    @property
    def facts(self) -> list[Fact]:
        """All numbers, each with a note."""
        star = "*" if self.where == "x*" else ""
        roof = 2 * self.curvature.smoothness * self.gap
        held = f"at most 2 L sigma_f^2 = {roof:.4g} (proposition 1): {{}}" if star else f"at {self.where}"
        found = [
            Fact("L", self.curvature.smoothness, f"{self.curvature.smoothness_is}, of every F_i(., batch)"),
            Fact("mu", self.curvature.convexity, f"{self.curvature.convexity_is}, of every F_i(., batch)"),
            Fact("f at the start", self.first_loss),
        ]
        if not np.isnan(self.last_loss):
            found.append(Fact("f at the trained model", self.last_loss))
        if self.optimum is not None:
            found += [
                Fact("f*", self.optimum.value, _known(self.optimum)),
                Fact("sigma_f^2", self.gap, "f* - mean l_i*"),
            ]
        for name, value in ((f"zeta{star}^2", self.noise.clients), (f"sigma{star}^2", self.noise.batches)):
            found.append(Fact(name, value, held.format("true" if value <= roof * (1 + 1e-9) else "not true")))
        if not np.isnan(self.capped):
            found.append(Fact("share of first steps at the cap", self.capped))
        if not np.isnan(self.capped_at_end):
            found.append(Fact("share of last steps at the cap", self.capped_at_end))
        for theorem, what in ((CONVEX, "mean of f_i(x_t^i) - l_i*"), (SMALL_CONVEX, "mean of f - f*")):
            if self._applies(theorem) and self.constants is not None:
                value = float(theorem.bound(self.constants, self.iterations))
                far = f"{theorem.neighbourhood(self.constants):.4g} as T grows"
                found.append(Fact(f"bound of the {what}", value, f"{theorem.label}, T = {self.iterations}; {far}"))
        return found

    def _applies(self, theorem: Theorem) -> bool:
        known = self.is_convex and self.optimum is not None and self.optimum.x is not None and self.cohort is None
        return known and self.constants is not None and not theorem.unmet(self.constants)

    @property
    def advice(self) -> list[str]:
        """What the numbers mean for a run, a sentence or two each."""
        return [*self._of_the_minimum(), *self._of_the_clients(), *self._of_the_cap(), *self._of_the_theorems()]

    def _of_the_minimum(self) -> list[str]:
        if self.optimum is None:
            return ["the losses are not known to be convex: there is no f* to compare with"]
        if self.optimum.x is None:
            return [
                "the data are separable: there is no x*, f falls to 0 on the way to infinity. Nothing is left to "
                "average out, so FedSPS needs no small cap and no decreasing stepsizes"
            ]
        if self.gap <= 1e-9 * self.first_loss:
            return ["one model fits all clients (sigma_f^2 = 0): FedSPS converges to it with any cap"]
        share = self.gap / self.first_loss
        return [
            f"no model fits all clients: sigma_f^2 is {percent(share)} of the first loss. With a fixed cap FedSPS ends "
            "in a neighbourhood of x*; a smaller cap makes it smaller, feddecsps makes it vanish"
        ]

    def _of_the_clients(self) -> list[str]:
        clients, batches = self.noise
        if np.isnan(batches) or clients + batches <= 0:
            return []
        share = clients / (clients + batches)
        batch = "a client's whole data" if self.batch is None else f"batches of {self.batch}"
        if share > 0.5:
            most = f"most of it ({percent(share)}) from how the data are split over the clients"
        else:
            most = f"most of it ({percent(1 - share)}) from drawing {batch}: larger batches help, other splits hardly"
        return [f"gradients differ at {self.where}, {most}"]

    def _of_the_cap(self) -> list[str]:
        if self.constants is None or np.isnan(self.capped):
            return ["the algorithm has no fixed cap that could bind"]
        cap, said = self.constants.cap, []
        for share, when in ((self.capped, ""), (self.capped_at_end, " at the end")):
            if share >= MOSTLY:
                said.append(
                    f"your cap binds in {percent(share)} of the steps{when}: this is FedAvg with stepsize {cap:g}. "
                    "A larger cap lets the stepsizes adapt"
                )
            elif share <= HARDLY:
                said.append(
                    f"your cap binds in {percent(share)} of the steps{when}: the stepsizes are the clients' own"
                )
            elif not np.isnan(share):
                said.append(
                    f"your cap binds in {percent(share)} of the steps{when}: these are steps of FedAvg with {cap:g}"
                )
        if cap <= self.constants.least_ratio:
            said.append(f"the cap is at most 1/(2 c L) = {self.constants.least_ratio:.3g}: it binds at every step")
        return said

    def _of_the_theorems(self) -> list[str]:
        if self.constants is None or not self.is_convex:
            return ["the paper's theorems for convex losses do not apply"]
        if self.cohort is not None:
            return ["the paper's theorems are about runs in which all clients take part"]
        tau, k = self.constants.local_steps, self.constants
        small = min(k.least_ratio, 1 / (20 * k.smoothness * tau))
        nearest = (
            (CONVEX, replace(k, scale=max(k.scale, 2.0 * tau**2))),
            (SMALL_CONVEX, replace(k, cap=min(k.cap, small))),
        )
        said = []
        for theorem, met in nearest:
            unmet = theorem.unmet(k)
            words = f"needs {' and '.join(unmet)}: with that" if unmet else "applies:"
            roof = theorem.neighbourhood(met)
            said.append(f"{theorem.label} {words}, {theorem.left} ends at or below {roof:.3g}")
        return said


def percent(share: float) -> str:
    """A share in whole percent.

    >>> percent(0.984)
    '98 %'
    """
    return f"{100 * share:.0f} %"


def _known(optimum: Optimum) -> str:
    if optimum.x is None:
        return f"infimum, not attained: a model that separates the classes was found in {optimum.iterations} iterations"
    if optimum.is_exact:
        return f"L-BFGS, {optimum.iterations} iterations, largest gradient entry {optimum.gradient:.1g}"
    return (
        f"at most: after {optimum.iterations} iterations of L-BFGS the largest gradient entry is {optimum.gradient:.1g}"
    )
