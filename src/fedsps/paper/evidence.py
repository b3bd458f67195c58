"""From numbers to a verdict: one confidence interval, held against the margin that a claim stated before.

The rule is the same for every claim. A check gives one number a seed, the *effect*: two lines that saw the same seed
are compared with each other, so the numbers are paired. Their mean has a 95 % confidence interval by Student's t, of
the logarithms for a ratio and of the numbers as they are for a difference. The claim states which effects are good,
from `low` to `high`. It *holds* where the whole interval is good, *does not hold* where none of it is, and is
*undecided* where it lies across a margin. So more seeds make more claims decided, and a statement that two lines are
alike has to be shown: it holds where the interval fits between two margins, not where no difference was found.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

Numbers = npt.NDArray[np.float64]
Outcome = Literal["holds", "does not hold", "undecided"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Evidence:
    """The effect on each seed, and the effects that the claim calls good: `low` to `high`, both included.

    What has no interval is undecided: a single seed, or a number that is missing (NaN), as where both runs of a ratio
    diverged. Where one did, the effect is infinite (of a ratio: or 0). The interval is then that of the other seeds,
    opened on that side. Effects that are the same on every seed have an interval of length 0.

    With the kind "exact" nothing is sampled: the numbers are all that there are, as of a computation without noise or
    of the members of a list. Their interval goes from the least to the largest, and one bad number is enough for *does
    not hold*.

    Attributes:
        effect: a number a seed.
        low: the least good effect.
        high: the largest good effect.
        kind: "ratio", "difference" or "exact".

    >>> Evidence(np.array([0.8, 0.9, 0.85]), high=1.0).outcome
    'holds'
    >>> Evidence(np.array([0.8, 0.9, 1.3]), high=1.0).outcome
    'undecided'
    >>> Evidence(np.array([0.03, 0.02, 0.025]), low=-0.01, high=0.01, kind="difference").outcome
    'does not hold'
    """

    effect: Numbers
    low: float = -np.inf
    high: float = np.inf
    kind: Literal["ratio", "difference", "exact"] = "ratio"

    @property
    def interval(self) -> tuple[float, float]:
        """The confidence interval of the mean effect; NaN where there is none."""
        effect = self.effect
        if len(effect) == 0 or np.isnan(effect).any() or (len(effect) == 1 and self.kind != "exact"):
            return np.nan, np.nan
        if self.kind == "exact":
            return float(effect.min()), float(effect.max())
        if self.kind == "ratio":
            low, high = _interval(_logs(effect))
            return float(np.exp(low)), float(np.exp(high))
        return _interval(effect)

    @property
    def mean(self) -> float:
        """The mean effect: geometric of ratios, which is the middle of their interval."""
        if len(self.effect) == 0:
            return np.nan
        with np.errstate(invalid="ignore"):  # both runs of a ratio may have diverged, on different seeds
            return float(np.exp(_logs(self.effect).mean()) if self.kind == "ratio" else self.effect.mean())

    @property
    def outcome(self) -> Outcome:
        """Where the interval lies: among the good effects, outside of them, or across a margin."""
        low, high = self.interval
        if np.isnan(low):
            return "undecided"
        if self.low <= low and high <= self.high:
            return "holds"
        return "does not hold" if self.kind == "exact" or high < self.low or low > self.high else "undecided"


def _logs(ratios: Numbers) -> Numbers:
    """The logarithms; that of 0, where the run under the fraction bar diverged, is minus infinity."""
    with np.errstate(divide="ignore"):
        logs: Numbers = np.log(ratios)
    return logs


def _interval(numbers: Numbers) -> tuple[float, float]:
    """Student's interval of the mean; infinite numbers open it on their side.

    >>> [round(end, 3) for end in _interval(np.array([0.0, 1.0, 2.0]))]
    [-1.484, 3.484]
    >>> _interval(np.array([-np.inf, 1.0, 1.0]))
    (-inf, 1.0)
    """
    finite = numbers[np.isfinite(numbers)]
    if len(finite) == 0:
        return float(numbers.min()), float(numbers.max())
    if len(finite) == 1:
        return -np.inf, np.inf
    half = stdtrit(len(finite) - 1, (1 + CONFIDENCE) / 2) * finite.std(ddof=1) / np.sqrt(len(finite))
    low, high = finite.mean() - half, finite.mean() + half
    return -np.inf if -np.inf in numbers else float(low), np.inf if np.inf in numbers else float(high)
