"""Comparisons that several claims make, as functions of records."""

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from fedsps.paper.page import Evidence, Numbers, Records

Check = Callable[[Records, str], Evidence]


def ratio(records: Records, panel: str, over: str, under: str, column: str) -> Numbers:
    """For each seed one line's final value over another's."""
    return records.final(panel, over, column) / records.final(panel, under, column)


def all_of(*checks: Check, effect: Callable[[Numbers], Numbers] = lambda found: found.max(0)) -> Check:
    """True of a seed where every check is; the effect is the largest of theirs, or what `effect` makes of them."""

    def check(records: Records, column: str) -> Evidence:
        found = [one(records, column) for one in checks]
        return Evidence(
            np.logical_and.reduce([one.true for one in found]), effect(np.stack([one.effect for one in found]))
        )

    return check


def farthest(ratios: Numbers) -> Numbers:
    """Of `[checks, seeds]` ratios, for each seed the one that is farthest from 1."""
    place = np.abs(np.log(ratios)).argmax(0)
    return np.array([column[row] for column, row in zip(ratios.T, place, strict=True)])


def least(found: Numbers) -> Numbers:
    """For each seed the least of `[checks, seeds]` numbers."""
    smallest: Numbers = found.min(0)
    return smallest


def at_most(panels: str | Sequence[str], label: str, factor: float, *others: str) -> Check:
    """`label` ends at no more than `factor` times each other one, on every panel; the effect is the largest ratio."""
    names = [panels] if isinstance(panels, str) else list(panels)

    def check(records: Records, column: str) -> Evidence:
        ratios = np.stack([ratio(records, panel, label, other, column) for panel in names for other in others])
        return Evidence(ratios.max(0) <= factor, ratios.max(0))

    return check


def within(panel: str, label: str, other: str, low: float, high: float) -> Check:
    """`label` ends between `low` and `high` times the other."""

    def check(records: Records, column: str) -> Evidence:
        found = ratio(records, panel, label, other, column)
        return Evidence((low <= found) & (found <= high), found)

    return check


def at_least(panel: str, label: str, factor: float, other: str) -> Check:
    """`label` ends at `factor` times the other or more."""

    def check(records: Records, column: str) -> Evidence:
        found = ratio(records, panel, label, other, column)
        return Evidence(found >= factor, found)

    return check


def as_accurate(panels: str | Sequence[str], label: str, slack: float, *others: str) -> Check:
    """The final test accuracy of `label` is at most `slack` below each of the others; the effect is the least lead."""
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
    """The mean over rounds of one column over another is at most `bound`, on every panel; the effect is the largest."""

    def check(records: Records, column: str) -> Evidence:
        worst = np.stack(
            [records.each(panel, label, lambda table: float((table[spread] / table[size]).mean())) for panel in panels]
        ).max(0)
        return Evidence(worst <= bound, worst)

    return check


def trend(records: Records, panel: str, label: str, column: str) -> Numbers:
    """For each seed the mean of a column over the last tenth of the rounds, over that over the first tenth."""

    def change(table: pd.DataFrame) -> float:
        tenth = max(1, len(table) // 10)
        return float(table[column].iloc[-tenth:].mean() / table[column].iloc[:tenth].mean())

    return records.each(panel, label, change)
