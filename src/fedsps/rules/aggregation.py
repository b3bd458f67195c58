"""Means over clients that a few bad ones cannot move far, for algorithms that send the change of the model alone.

The plain weighted mean, which every other run takes, is `fedsps.core.vectors.mean`.
"""

import math
from collections.abc import Callable
from functools import partial

from torch import Tensor

from fedsps.checks import positive
from fedsps.core.vectors import mean, norm_sq, times
from fedsps.errors import ConfigurationError

__all__ = ["clip", "clipped", "median", "parse_mean", "trimmed"]

Mean = Callable[[Tensor, Tensor], Tensor]
"""`[clients, d]` vectors and `[clients]` weights to one vector `[d]`."""


def median(values: Tensor, weights: Tensor) -> Tensor:
    """Coordinate by coordinate, whatever the weights; of an even number the mean of the middle two."""
    ordered, n = values.sort(0).values, len(values)
    return (ordered[(n - 1) // 2] + ordered[n // 2]) / 2


def trimmed(values: Tensor, weights: Tensor, share: float) -> Tensor:
    """Coordinate by coordinate the mean without the `share` largest and smallest, whatever the weights.

    At each end the share is rounded up, and is one at least; where nothing would be left, it is the median.
    """
    n = len(values)
    drop = max(1, math.ceil(share * n - 1e-9))  # 0.07 * 100 is a little above 7
    return values.sort(0).values[drop : n - drop].mean(0) if n > 2 * drop else median(values, weights)


def clipped(values: Tensor, weights: Tensor, norm: float) -> Tensor:
    """The weighted mean of the vectors, each shortened to at most this norm."""
    return mean(clip(values, norm), weights)


def clip(v: Tensor, norm: float) -> Tensor:
    """`v min(1, norm / ||v||)`."""
    shortened: Tensor = times((norm / norm_sq(v).sqrt()).clamp(max=1.0), v)
    return shortened


def parse_mean(text: str) -> Mean:
    """`mean`, `median`, `trimmed:0.2` (a fifth from each end) or `clipped:1.0` (norms of at most 1)."""
    kind, _, number = text.partition(":")
    if text in ("mean", "median"):
        return mean if text == "mean" else median
    try:
        value = float(number)
    except ValueError:
        value = float("nan")
    if kind == "trimmed" and 0 < value < 0.5:
        return partial(trimmed, share=value)
    if kind == "clipped":
        positive("the norm of mean = clipped", value)
        return partial(clipped, norm=value)
    raise ConfigurationError(
        f"mean = {text!r} is none: use mean, median, trimmed:SHARE (above 0, below 0.5) or clipped:NORM"
    )
