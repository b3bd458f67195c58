"""The convergence theorems of the paper: their conditions, and their right-hand sides at every T.

Theorems are cited by the labels of the paper's source, since its shared counter prints them as 3, 6 and 18. T counts
local iterations, `local_steps` to a round. A bound is refused where its theorem's conditions are not met. Where the
paper's statement and its proof disagree, the bound is what the proof gives once it is mended, and `as_stated` is what
the paper says; docs/theory.md has the counterexamples.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedsps.errors import ConfigurationError
from fedsps.theory.constants import Constants

Numbers = npt.NDArray[np.float64]
Bound = Callable[[Constants, Numbers], Numbers]
Condition = tuple[str, Callable[[Constants], bool]]


@dataclass(frozen=True)
class Theorem:
    """One statement: what it bounds, when, and by how much.

    Attributes:
        label: in the paper's source.
        left: what is bounded.
        conditions: in words, with the test of each.
        right: the bound with explicit constants, for an array of T.
        as_stated: what the paper's text says, where it differs; of an O(.) with the constants of the proof.
    """

    label: str
    left: str
    conditions: tuple[Condition, ...]
    right: Bound
    as_stated: Bound | None = None

    def unmet(self, constants: Constants) -> list[str]:
        """The conditions that these constants do not meet, in words; none if the theorem applies."""
        return [words.format(**_numbers(constants)) for words, is_met in self.conditions if not is_met(constants)]

    def bound(self, constants: Constants, iterations: npt.ArrayLike) -> Numbers:
        """The right-hand side after T iterations, for each T; infinity is allowed, and gives the neighbourhood.

        Raises:
            ConfigurationError: a condition of the theorem is not met.
        """
        if unmet := self.unmet(constants):
            raise ConfigurationError(f"{self.label} does not apply: it needs {' and '.join(unmet)}")
        return self.right(constants, np.asarray(iterations, dtype=float))

    def neighbourhood(self, constants: Constants) -> float:
        """What is left of the bound as T grows."""
        return float(self.bound(constants, np.inf))


def _numbers(k: Constants) -> dict[str, float]:
    """What the words of conditions refer to."""
    tau, L = k.local_steps, k.smoothness
    return {
        "scale": k.scale,
        "cap": k.cap,
        "convexity": k.convexity,
        "gap": k.gap,
        "two": 2 * tau**2,
        "four": 4 * tau**2,
        "twenty": min(k.least_ratio, 1 / (20 * L * tau)),
        "twentyfive": min(k.least_ratio, 1 / (25 * L * tau)),
    }


STRONG: Condition = ("mu > 0", lambda k: k.convexity > 0)
TWICE: Condition = ("scale >= 2 tau^2 = {two:g} (it is {scale:g})", lambda k: k.scale >= 2 * k.local_steps**2)
FOURFOLD: Condition = ("scale >= 4 tau^2 = {four:g} (it is {scale:g})", lambda k: k.scale >= 4 * k.local_steps**2)
INTERPOLATION: Condition = ("interpolation, sigma_f^2 = 0 (it is {gap:.3g})", lambda k: k.gap == 0)
SMALL: Condition = (
    "cap <= min(1/(2 c L), 1/(20 L tau)) = {twenty:.3g} (it is {cap:g})",
    lambda k: k.cap <= min(k.least_ratio, 1 / (20 * k.smoothness * k.local_steps)),
)
SMALLER: Condition = (
    "cap < min(1/(2 c L), 1/(25 L tau)) = {twentyfive:.3g} (it is {cap:g})",
    lambda k: k.cap < min(k.least_ratio, 1 / (25 * k.smoothness * k.local_steps)),
)


def _decay(rate: float, iterations: Numbers) -> Numbers:
    """`(1 - rate)^T`, without the rounding of 1 - rate."""
    if rate >= 1:
        return np.where(iterations > 0, 0.0, 1.0)
    decayed: Numbers = np.exp(iterations * np.log1p(-rate))
    return decayed


def _convex(k: Constants, T: Numbers) -> Numbers:
    return 2 * k.distance / (T * k.alpha) + 4 * k.cap * k.gap / k.alpha


def _strongly_convex(k: Constants, T: Numbers) -> Numbers:
    rate = k.convexity * k.alpha
    return _decay(rate, T) * k.distance + 2 * k.cap * k.gap / rate


def _strongly_convex_as_stated(k: Constants, T: Numbers) -> Numbers:
    rate = k.convexity * k.alpha
    return _decay(rate, T) * k.distance / rate + 2 * k.cap * k.gap / rate


def _small(k: Constants, T: Numbers) -> Numbers:
    step, drift = k.cap * k.smoothness, k.cap * k.smoothness * k.local_steps
    return 3 * k.distance / (T * k.cap) + 12 * (step + 32 * drift**2) * k.gap


def _small_as_stated(k: Constants, T: Numbers) -> Numbers:
    step, drift = k.cap * k.smoothness, k.cap**2 * k.smoothness * k.local_steps**2
    return 3 * k.distance / (T * k.cap) + 12 * (step + 32 * drift) * k.gap


def _small_strongly_convex(k: Constants, T: Numbers) -> Numbers:
    step, drift = k.cap * k.smoothness, k.cap * k.smoothness * k.local_steps
    return _decay(k.convexity * k.cap, T) * k.distance + (4 * step + 128 * drift**2) * k.gap / k.convexity


def _small_strongly_convex_as_stated(k: Constants, T: Numbers) -> Numbers:
    step, drift = k.cap * k.smoothness, k.cap**2 * k.smoothness * k.local_steps**2
    rate = k.convexity * k.cap
    return _decay(rate, T) * k.distance / rate + (4 * step + 128 * drift) * k.gap / k.convexity


def _non_convex(k: Constants, T: Numbers) -> Numbers:
    return _gradients(k, T, k.variance + k.heterogeneity)


def _non_convex_as_stated(k: Constants, T: Numbers) -> Numbers:
    return _gradients(k, T, k.variance / k.local_steps + k.heterogeneity)


def _gradients(k: Constants, T: Numbers, drift: float) -> Numbers:
    step = k.cap * k.smoothness
    return 8 * (k.excess / (T * k.cap) + step * k.variance / (2 * k.clients) + 64 * step**2 * k.local_steps**2 * drift)


CONVEX = Theorem("thm:fedsps_local_convex (a)", "mean over t < T and i of E[f_i(x_t^i) - l_i*]", (TWICE,), _convex)
"""`2/(T alpha) ||x_0 - x*||^2 + 4 gamma_b sigma_f^2 / alpha`."""

STRONGLY_CONVEX = Theorem(
    "thm:fedsps_local_convex (b)",
    "E||mean_i x_T^i - x*||^2",
    (STRONG, FOURFOLD),
    _strongly_convex,
    _strongly_convex_as_stated,
)
"""`A (1 - mu alpha)^T ||x_0 - x*||^2 + 2 gamma_b sigma_f^2 / (mu alpha)`.

Stated with A = 1/(mu alpha). The mended proof (the stepsizes' lower bound, then Jensen) gives A = 1.
"""

LINEAR = Theorem(
    "corollary of thm:fedsps_local_convex",
    "E||mean_i x_T^i - x*||^2",
    (STRONG, FOURFOLD, INTERPOLATION),
    _strongly_convex,
    _strongly_convex_as_stated,
)
"""The same without a neighbourhood: `A (1 - mu alpha)^T ||x_0 - x*||^2`."""

SMALL_CONVEX = Theorem(
    "thm:fedsps_local_convex_small (a)",
    "mean over t < T of E[f(mean_i x_t^i) - f*]",
    (SMALL,),
    _small,
    _small_as_stated,
)
"""`3/(T gamma_b) ||x_0 - x*||^2 + 12 (gamma_b L + 32 gamma_b^2 L^2 tau^2) sigma_f^2`; stated with L in place of L^2."""

SMALL_STRONGLY_CONVEX = Theorem(
    "thm:fedsps_local_convex_small (b)",
    "E||mean_i x_T^i - x*||^2",
    (STRONG, SMALL),
    _small_strongly_convex,
    _small_strongly_convex_as_stated,
)
"""`A (1 - mu gamma_b)^T ||x_0 - x*||^2 + (4 gamma_b L + 128 gamma_b^2 L^2 tau^2) sigma_f^2 / mu`.

Stated with A = 1/(mu gamma_b) and with L in place of L^2. The paper gives no constants here: A = 1, 4 and 128 follow
from its recursion with Jensen's inequality in place of (eq:425).
"""

NON_CONVEX = Theorem(
    "thm:non-convex",
    "mean over t < T of E||grad f(mean_i x_t^i)||^2",
    (SMALLER,),
    _non_convex,
    _non_convex_as_stated,
)
"""`8 (F_0/(T gamma_b) + gamma_b L sigma^2/(2n) + 64 gamma_b^2 L^2 tau^2 (sigma^2 + zeta^2))`; stated with sigma^2/tau.

The paper states it of the least gradient over t, which is at most the mean.
"""

THEOREMS = (CONVEX, STRONGLY_CONVEX, LINEAR, SMALL_CONVEX, SMALL_STRONGLY_CONVEX, NON_CONVEX)
