"""The intervals of verdicts as a figure: a pair of axes a claim, a row a case, beside the margins."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedsps.report import plot

COLOURS = {"holds": "#0072B2", "does not hold": "#D55E00", "undecided": "#7F7F7F"}
ROW, HEAD, WIDTH = 0.19, 0.75, 7.5  # inches: a row, what axes have around their rows, a column
LONGEST = 30  # rows of one column before a second is begun


@dataclass(frozen=True)
class Interval:
    """A verdict's interval, one row.

    Attributes:
        label: its case.
        column: the loss that it was judged on; its rows have open marks on the second loss.
        outcome: which decides the colour.
        mean: the middle.
        low: one end.
        high: the other end.
        margins: the least and the largest effect that is good; infinite where there is none.
        is_ratio: whether a logarithmic axis suits it.
    """

    label: str
    column: str
    outcome: str
    mean: float
    low: float
    high: float
    margins: tuple[float, float]
    is_ratio: bool


def draw(claims: Mapping[str, Sequence[Interval]], paths: Sequence[Path]) -> None:
    """Intervals as bars, one row each, beside the margins that they are held against, drawn as ticks.

    Each claim has an axis of its own: an effect of 1.1 is not to be seen on one that reaches to 1000.

    Args:
        claims: rows by the claim's id.
        paths: where the figure goes.
    """
    plot.check_available()
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    columns = in_columns({claim: len(rows) for claim, rows in claims.items()})
    heights = [sum(HEAD + ROW * len(claims[claim]) for claim in column) for column in columns]
    figure = Figure(figsize=(WIDTH * len(columns), 0.4 + max(heights)), layout="constrained")
    sides = figure.subfigures(1, len(columns), squeeze=False)[0]
    for side, column, height in zip(sides, columns, heights, strict=True):
        sizes = [HEAD + ROW * len(claims[claim]) for claim in column]
        rest = max(heights) - height  # beneath a shorter column
        grid = side.subplots(len(column) + (rest > 0), 1, squeeze=False, height_ratios=sizes + [rest] * (rest > 0))
        for axis, claim in zip(grid.flat, column, strict=False):
            _rows(axis, claim, claims[claim])
        for axis in grid.flat[len(column) :]:
            axis.set_axis_off()
    marks = [Line2D([], [], color=colour, linewidth=2, label=name) for name, colour in COLOURS.items()]
    marks += [
        Line2D([], [], color="black", marker="|", linestyle="", label="margin"),
        Line2D([], [], color="black", marker="o", markerfacecolor="white", linestyle="", label="cohort_loss"),
    ]
    figure.legend(handles=marks, loc="outside upper center", ncols=len(marks), frameon=False, fontsize=8)
    plot.write(figure, paths)


def in_columns(rows: Mapping[str, int]) -> list[list[str]]:
    """The claims in one column, or in two of about the same height if they have many rows.

    >>> in_columns({"A": 3, "B": 4}), in_columns({"A": 40, "B": 10, "C": 25})
    ([['A', 'B']], [['A'], ['B', 'C']])
    """
    names = list(rows)
    if sum(rows.values()) <= LONGEST or len(names) == 1:
        return [names]
    before = np.cumsum([HEAD + ROW * rows[name] for name in names])
    cut = int(np.argmin(np.maximum(before[:-1], before[-1] - before[:-1]))) + 1
    return [names[:cut], names[cut:]]


def _rows(axis: Any, claim: str, rows: Sequence[Interval]) -> None:
    """One claim's intervals."""
    for place, row in enumerate(rows):
        colour = COLOURS[row.outcome]
        axis.plot([row.low, row.high], [place, place], color=colour, linewidth=2)
        fill = "white" if row.column == "cohort_loss" else colour
        axis.plot(row.mean, place, "o", color=colour, markerfacecolor=fill, markersize=4)
        good = [margin for margin in row.margins if np.isfinite(margin)]
        axis.plot(good, [place] * len(good), "|", color="black", markersize=9)
    labels = [row.label for row in rows]
    once = ["" if label == before else label for label, before in zip(labels, [None, *labels], strict=False)]
    axis.set_yticks(range(len(rows)), once, fontsize=6)
    axis.set_ylim(len(rows) - 0.3, -0.7)
    low, high = min(row.low for row in rows), max(row.high for row in rows)
    if all(row.is_ratio for row in rows) and 0 < 2 * low < high:
        plot.logarithmic(axis, "x")
    plot.dress(axis, claim, "", "")
    axis.tick_params(axis="x", labelsize=7)
