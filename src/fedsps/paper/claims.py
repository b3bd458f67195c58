"""Comparisons that several claims make, as functions of records.

Most of them return a `Check`: given the records and, for a statement about a training loss, which of the two losses to
look at, it says for each seed whether the statement is true and by how much (`Evidence`). A final value is the mean
over the last tenth of the rounds; that of a diverged run is infinite, so that it loses every comparison. What verdict
the evidence of all seeds gives is decided by `fedsps.paper.page.decide`.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from fedsps.paper.page import Evidence, Numbers, Records

Check = Callable[[Records, str], Evidence]


def ratio(records: Records, panel: str, over: str, under: str, column: str) -> Numbers:
    """For each seed one line's final value over another's.

    Args:
        records: the results of a page.
        panel: where both lines are.
        over: the label of the line above the fraction bar.
        under: the label of the line below it.
        column: which column of the histories.
    """
    return records.final(panel, over, column) / records.final(panel, under, column)


def all_of(*checks: Check, effect: Callable[[Numbers], Numbers] = lambda effects: effects.max(0)) -> Check:
    """True of a seed where every check is; the effect is the largest of theirs, or what `effect` makes of them.

    Args:
        *checks: those that must all be true.
        effect: from `[checks, seeds]` numbers to one for each seed, as `least` and `farthest`.

    >>> def says(*ratios):
    ...     return lambda records, column: Evidence(np.array(ratios) <= 1, np.array(ratios))
    >>> all_of(says(0.5, 0.9), says(0.8, 1.2))(Records({}), "train_loss")
    Evidence(true=array([ True, False]), effect=array([0.8, 1.2]))
    """

    def check(records: Records, column: str) -> Evidence:
        pieces = [part(records, column) for part in checks]
        return Evidence(
            np.logical_and.reduce([piece.true for piece in pieces]),
            effect(np.stack([piece.effect for piece in pieces])),
        )

    return check


def farthest(ratios: Numbers) -> Numbers:
    """Of `[checks, seeds]` ratios, for each seed the one that is farthest from 1, by its logarithm.

    >>> farthest(np.array([[0.5, 1.1], [1.5, 0.99]]))
    array([0.5, 1.1])
    """
    place = np.abs(np.log(ratios)).argmax(0)
    return np.array([column[row] for column, row in zip(ratios.T, place, strict=True)])


def least(found: Numbers) -> Numbers:
    """For each seed the least of `[checks, seeds]` numbers: of leads in accuracy, the one that decides.

    >>> least(np.array([[0.5, 1.1], [1.5, 0.99]]))
    array([0.5 , 0.99])
    """
    smallest: Numbers = found.min(0)
    return smallest


def at_most(panels: str | Sequence[str], label: str, factor: float, *others: str) -> Check:
    """`label` ends at no more than `factor` times each other one, on every panel; the effect is the largest ratio.

    Args:
        panels: the name of one panel, or several.
        label: the line that the statement is about.
        factor: 1 for "as good as", more for "close to".
        *others: the lines that it is compared with.
    """
    names = [panels] if isinstance(panels, str) else list(panels)

    def check(records: Records, column: str) -> Evidence:
        ratios = np.stack([ratio(records, panel, label, other, column) for panel in names for other in others])
        return Evidence(ratios.max(0) <= factor, ratios.max(0))

    return check


def within(panel: str, label: str, other: str, low: float, high: float) -> Check:
    """`label` ends between `low` and `high` times the other, both included; the effect is the ratio.

    It is for statements that two lines are alike, or that one is slightly better.
    """

    def check(records: Records, column: str) -> Evidence:
        ratios = ratio(records, panel, label, other, column)
        return Evidence((low <= ratios) & (ratios <= high), ratios)

    return check


def at_least(panel: str, label: str, factor: float, other: str) -> Check:
    """`label` ends at `factor` times the other or more; the effect is the ratio."""

    def check(records: Records, column: str) -> Evidence:
        ratios = ratio(records, panel, label, other, column)
        return Evidence(ratios >= factor, ratios)

    return check


def as_accurate(panels: str | Sequence[str], label: str, slack: float, *others: str) -> Check:
    """The final test accuracy of `label` is at most `slack` below each of the others; the effect is the least lead.

    Accuracies are compared by difference, 0.01 being one point, whichever loss the claim is about.
    """
    names = [panels] if isinstance(panels, str) else list(panels)

    def check(records: Records, column: str) -> Evidence:
        leads = np.stack(
            [
                records.final(panel, label, "test_accuracy") - records.final(panel, other, "test_accuracy")
                for panel in names
                for other in others
            ]
        )
        return Evidence(leads.min(0) >= -slack, leads.min(0))

    return check


def small_spread(panels: Sequence[str], label: str, spread: str, size: str, bound: float) -> Check:
    """The mean over rounds of one column over another is at most `bound`, on every panel; the effect is the largest.

    Args:
        panels: the names of the panels.
        label: the line that the statement is about.
        spread: the column of a deviation.
        size: the column of the mean that it belongs to.
        bound: the largest relative deviation that counts as small.
    """

    def check(records: Records, column: str) -> Evidence:
        worst = np.stack(
            [records.each(panel, label, lambda table: float((table[spread] / table[size]).mean())) for panel in panels]
        ).max(0)
        return Evidence(worst <= bound, worst)

    return check


def trend(records: Records, panel: str, label: str, column: str) -> Numbers:
    """For each seed the mean of a column over the last tenth of the rounds, over that over the first tenth.

    Below 1 the column falls in the course of training; NaN if the run diverged.
    """

    def change(table: pd.DataFrame) -> float:
        tenth = max(1, len(table) // 10)
        return float(table[column].iloc[-tenth:].mean() / table[column].iloc[:tenth].mean())

    return records.each(panel, label, change)
