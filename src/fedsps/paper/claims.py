"""How to write a claim, and the comparisons that several claims make.

A claim states an effect and a margin before the numbers are seen. Its check takes the records and, for a statement
about a training loss, which of the two losses to look at, and gives `Evidence`: the effect on each seed, the effects
that are good (`low` to `high`), and whether the effect is a "ratio" or a "difference". What verdict that gives is said
once, in `fedsps.paper.evidence`: a 95 % interval over the seeds, against the margin. Write checks by the functions
below where they fit:

    Claim("X1", "FedSPS is close to tuned FedAvg", "figure 4", "final loss at most 1.25 times tuned FedAvg's",
          "loss ratio", at_most("iid", "FedSPS", 1.25, "FedAvg tuned"))

or as a function of your own:

    def falls(records, column):
        return Evidence(trend(records, "iid", "FedDecSPS", "stepsize_mean"), high=0.5)

A statement about several things gets a check for each, by name, and not a conjunction:

    check={words: at_most(kind, "FedSPS", 1.25, "FedAvg tuned") for kind, words in KINDS}

A final value is the mean over the last tenth of the rounds; that of a diverged run is infinite (an accuracy: minus
infinite), so that it loses every comparison. The effect of a seed must be a number that more seeds estimate better, and
not whether something was true of the seed. One seed has no interval, and its claims are undecided.
"""

import pandas as pd

from fedsps.paper.evidence import Evidence, Numbers
from fedsps.paper.page import Check, Records, evenly


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


def within(panel: str, label: str, other: str, low: float, high: float) -> Check:
    """`label` ends between `low` and `high` times the other; the effect is the ratio.

    It is for statements that two lines are alike, or that one is slightly better.
    """
    return lambda records, column: Evidence(ratio(records, panel, label, other, column), low, high)


def at_most(panel: str, label: str, factor: float, other: str) -> Check:
    """`label` ends at no more than `factor` times the other; the effect is the ratio.

    Args:
        panel: where both lines are.
        label: the line that the statement is about.
        factor: 1 for "as good as", more for "close to".
        other: the line that it is compared with.
    """
    return lambda records, column: Evidence(ratio(records, panel, label, other, column), high=factor)


def at_least(panel: str, label: str, factor: float, other: str) -> Check:
    """`label` ends at `factor` times the other or more; the effect is the ratio."""
    return lambda records, column: Evidence(ratio(records, panel, label, other, column), low=factor)


def as_accurate(panel: str, label: str, slack: float, other: str) -> Check:
    """The final test accuracy of `label` is at most `slack` below the other's; the effect is its lead.

    Accuracies are compared by difference, 0.01 being one point, whichever loss the claim is about.
    """

    def check(records: Records, column: str) -> Evidence:
        ours, theirs = (records.final(panel, name, "test_accuracy") for name in (label, other))
        return Evidence(ours - theirs, low=-slack, kind="difference")

    return check


def small_spread(panel: str, label: str, spread: str, size: str, bound: float) -> Check:
    """The mean over the rounds of one column over another is at most `bound`; the effect is that mean.

    Args:
        panel: where the line is.
        label: the line that the statement is about.
        spread: the column of a deviation.
        size: the column of the mean that it belongs to.
        bound: the largest relative deviation that counts as small.
    """

    def relative(table: pd.DataFrame) -> float:
        some = evenly(table)
        return float((some[spread] / some[size]).mean())

    return lambda records, column: Evidence(records.each(panel, label, relative), high=bound, kind="difference")


def trend(records: Records, panel: str, label: str, column: str) -> Numbers:
    """For each seed the mean of a column over the last tenth of the rounds, over that over the first tenth.

    Below 1 the column falls in the course of training; NaN if the run diverged.
    """

    def change(table: pd.DataFrame) -> float:
        some = evenly(table)
        tenth = max(1, len(some) // 10)
        return float(some[column].iloc[-tenth:].mean() / some[column].iloc[:tenth].mean())

    return records.each(panel, label, change)
