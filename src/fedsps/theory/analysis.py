"""What is known of a problem before it is trained on, or after: numbers with notes, and advice in words."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from fedsps.theory.bounds import (
    CONVEX,
    NON_CONVEX,
    SMALL_CONVEX,
    SMALL_STRONGLY_CONVEX,
    STRONG,
    STRONGLY_CONVEX,
    Theorem,
)
from fedsps.theory.constants import Constants
from fedsps.theory.curvature import Curvature
from fedsps.theory.lower_bounds import TooHigh
from fedsps.theory.objective import Noise
from fedsps.theory.optimum import Optimum

MOSTLY, HARDLY = 0.9, 0.1  # of the steps, for a cap that binds
BOUNDED = {
    CONVEX: "mean of f_i(x_t^i) - l_i*",
    STRONGLY_CONVEX: "squared distance to x*",
    SMALL_CONVEX: "mean of f - f*",
    SMALL_STRONGLY_CONVEX: "squared distance to x*",
}
"""What the theorems for convex losses bound, in short."""
OF_FEDSPS = (*BOUNDED, NON_CONVEX)
OF_FEDAVG = (SMALL_CONVEX, SMALL_STRONGLY_CONVEX, NON_CONVEX)  # FedSPS with caps so small is FedAvg


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
        where: at which point they were compared: "x*", "the best point found", "the start" or "the trained model".
        too_high: a client's l* that is no lower bound; None if none is known.
        gap: `sigma_f^2 = f* - mean_i l_i*`; NaN where f* is not known, or l* is no lower bound.
        cap: gamma_b; None where it is not the same at every step.
        theorems: those that are about the algorithm.
        constants: what they need; None where there are none. Where there is no x*, the distance to it is 0, and bounds
            are true as T grows alone.
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
    too_high: TooHigh | None
    gap: float
    cap: float | None
    theorems: tuple[Theorem, ...]
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
        found = [
            Fact("L", self.curvature.smoothness, f"{self.curvature.smoothness_is}, of {self.curvature.of}"),
            Fact("mu", self.curvature.convexity, f"{self.curvature.convexity_is}, of {self.curvature.of}"),
            Fact("f at the start", self.first_loss),
        ]
        if not np.isnan(self.last_loss):
            found.append(Fact("f at the trained model", self.last_loss))
        if self.optimum is not None:
            found.append(Fact("f*", self.optimum.value, _known(self.optimum)))
        if self.too_high is not None:
            client, lower, least = self.too_high
            found.append(Fact("lower", lower, f"no lower bound: a batch of client {client} comes down to {least:.4g}"))
        if self.optimum is not None and not np.isnan(self.gap):
            most = "" if self.optimum.is_exact else "at most: "
            found.append(Fact("sigma_f^2", self.gap, f"{most}f* - mean l_i*"))
        star, roof = "*" if self.where == "x*" else "", 2 * self.curvature.smoothness * self.gap
        for name, value in ((f"zeta{star}^2", self.noise.clients), (f"sigma{star}^2", self.noise.batches)):
            is_true = "true" if value <= roof * (1 + 1e-9) else "not true"
            held = f"at most 2 L sigma_f^2 = {roof:.4g} (proposition 1): {is_true}"
            found.append(Fact(name, value, held if star and not np.isnan(roof) else f"at {self.where}"))
        if not np.isnan(self.capped):
            found.append(Fact("share of first steps at the cap", self.capped))
        if not np.isnan(self.capped_at_end):
            found.append(Fact("share of last steps at the cap", self.capped_at_end))
        for theorem, what in BOUNDED.items():
            if self._applies(theorem) and self.constants is not None:
                value = float(theorem.bound(self.constants, self.iterations))
                far = f"{theorem.neighbourhood(self.constants):.4g} as T grows{self._vacuous(theorem, value)}"
                found.append(Fact(f"bound of the {what}", value, f"{theorem.label}, T = {self.iterations}; {far}"))
        return found

    def _applies(self, theorem: Theorem) -> bool:
        known = self.optimum is not None and self.optimum.x is not None and self.optimum.is_exact
        is_met = self.constants is not None and not theorem.unmet(self.constants)
        return known and is_met and theorem in self.theorems and self.too_high is None and self.cohort is None

    def _vacuous(self, theorem: Theorem, bound: float) -> str:
        """That a bound says nothing, where what it bounds is no larger at the start; else no words."""
        assert self.optimum is not None, "bounds are of convex problems"
        excess = self.first_loss - self.optimum.value
        start = {CONVEX: excess + self.gap, SMALL_CONVEX: excess}.get(theorem)
        if start is None:
            start = 0.0 if self.constants is None else self.constants.distance
        return f", which says nothing: it is {start:.3g} at the start" if bound >= start else ""

    @property
    def advice(self) -> list[str]:
        """What the numbers mean for a run, a sentence or two each."""
        return [
            *self._of_the_lower_bound(),
            *self._of_the_minimum(),
            *self._of_the_clients(),
            *self._of_the_cap(),
            *self._of_the_theorems(),
        ]

    def _of_the_lower_bound(self) -> list[str]:
        if self.too_high is None:
            return []
        client, lower, least = self.too_high
        return [
            f"lower = {lower:g} is no lower bound: the loss of a batch of client {client} comes down to {least:.3g}. "
            "Give one that no batch goes below, as 0 for cross-entropies and squared errors. Until then sigma_f^2 and "
            "the theorems say nothing, and a run stops where it comes to such a loss"
        ]

    def _of_the_minimum(self) -> list[str]:
        if self.optimum is None:
            return ["the losses are not known to be convex: there is no f* to compare with"]
        if self.optimum.x is None:
            return [
                "the data are separable: there is no x*, f falls to 0 on the way to infinity. Nothing is left to "
                f"average out, so FedSPS needs no small cap and no decreasing stepsizes{self._but_for_the_scale()}"
            ]
        if np.isnan(self.gap) or self.curvature.smoothness <= 0:
            return []
        if self.gap <= 1e-9 * self.first_loss:
            fits = "one model fits all clients (sigma_f^2 = 0): FedSPS converges to it with any cap"
            return [fits + self._but_for_the_scale()]
        share = percent(self.gap / self.first_loss)
        if self.optimum.is_exact:
            known = f"no model fits all clients: sigma_f^2 is {share} of the first loss"
        else:
            known = f"no model was found that fits all clients: sigma_f^2 is at most {share} of the first loss"
        return [
            f"{known}. With a fixed cap FedSPS ends in a neighbourhood of x*, the smaller the smaller the cap. "
            "feddecsps lets the noise die out, and comes to x* itself with a cap of at most 1/(2 c L) = "
            f"{1 / self.curvature.smoothness:.3g} (c = 0.5), where all clients keep the same stepsizes"
        ]

    def _but_for_the_scale(self) -> str:
        """Below 1/2 a step goes beyond the minimum of a parabola, and below 1/4 farther than it came from."""
        k = self.constants
        if k is None or CONVEX not in self.theorems or k.scale >= 0.5 or k.cap <= 2 / self.curvature.smoothness:
            return ""
        return (
            f" if scale is 0.5 or more: with {k.scale:g} steps overshoot, and the run may diverge. Take 0.5, or a cap "
            f"of at most 2/L = {2 / self.curvature.smoothness:.3g}"
        )

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
        if self.cap is None or np.isnan(self.capped):
            return ["the algorithm has no fixed cap that could bind"]
        price = ", and makes that neighbourhood larger" if self.gap > 1e-9 * self.first_loss else ""
        said = []
        for share, when in ((self.capped, ""), (self.capped_at_end, " at the end")):
            binds = f"your cap binds in {percent(share)} of the steps{when}"
            if share >= MOSTLY:
                said.append(
                    f"{binds}: this is FedAvg with stepsize {self.cap:g}. A larger cap lets the stepsizes adapt{price}"
                )
            elif share <= HARDLY:
                said.append(f"{binds}: the stepsizes are the clients' own")
            elif not np.isnan(share):
                said.append(f"{binds}: these are steps of FedAvg with {self.cap:g}")
        k = self.constants
        sure = self.curvature.smoothness_is != "estimate" and self.too_high is None
        if k is not None and sure and self.cap <= k.least_ratio:
            said.append(f"the cap is at most 1/(2 c L) = {k.least_ratio:.3g}: it binds at every step")
        return said

    def _of_the_theorems(self) -> list[str]:
        k = self.constants
        if k is None:
            return ["the paper's theorems are about FedSPS with a fixed cap, and about FedAvg: they say nothing here"]
        if self.too_high is not None:
            return []
        if self.cohort is not None:
            return ["the paper's theorems are about runs in which all clients take part"]
        if not self.is_convex:
            return [self._of_the_non_convex_one(k)]
        return [
            self._promised(theorem, k)
            for theorem in BOUNDED
            if theorem in self.theorems and (k.convexity > 0 or STRONG not in theorem.conditions)
        ]

    def _promised(self, theorem: Theorem, k: Constants) -> str:
        """What a theorem for convex losses says as T grows, in the nearest setting that meets its conditions."""
        tau = k.local_steps
        if theorem in (CONVEX, STRONGLY_CONVEX):
            met = replace(k, scale=max(k.scale, (2.0 if theorem is CONVEX else 4.0) * tau**2))
        else:
            met = replace(k, cap=min(k.cap, k.least_ratio, 1 / (20 * k.smoothness * tau)))
        unmet, roof = theorem.unmet(k), theorem.neighbourhood(met)
        words = f"needs {' and '.join(unmet)}: with that," if unmet else "applies:"
        end = f"ends at or below {roof:.3g}{self._vacuous(theorem, roof)}" if roof > 0 else "goes to 0"
        if self.optimum is not None and self.optimum.x is None:
            end += " (its proof with any other point in place of x*, since there is none)"
        return f"{self._cited(theorem)} {words} {theorem.left} {end}"

    def _of_the_non_convex_one(self, k: Constants) -> str:
        unmet = NON_CONVEX.unmet(k)
        words = f"needs {' and '.join(unmet)}" if unmet else f"has its cap of {k.cap:g}"
        return (
            f"{self._cited(NON_CONVEX)} {words}, as far as L is known, and bounds of zeta^2 and sigma^2 at every "
            "point, which are not known here: it gives no number"
        )

    def _cited(self, theorem: Theorem) -> str:
        return theorem.label if CONVEX in self.theorems else f"{theorem.label}, with the stepsize as the cap,"


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
