"""From records to axes: the curves of a panel, and a layout that several pages share."""

from collections.abc import Sequence
from pathlib import Path

from fedsps.paper.page import Panel, Records
from fedsps.report import plot


def curves(
    records: Records, panel: Panel, column: str | None = None, heading: str | None = None, across: str = "round"
) -> plot.Curves:
    """The lines of a panel; accuracies on a linear scale, everything else on a logarithmic one.

    Args:
        records: the results of the page.
        panel: whose lines are drawn.
        column: of the histories; the panel's own if not given.
        heading: above the axes; the panel's title if not given.
        across: what the rounds are called.
    """
    column = column or panel.column
    runs = {label: records.of(panel.name, label, column) for label in records.labels(panel.name)}
    return plot.Curves(
        heading=heading or panel.title,
        column=column,
        histories={label: [run.history for run in seeds] for label, seeds in runs.items()},
        algorithms={label: seeds[0].spec.algorithm for label, seeds in runs.items()},
        logarithmic="accuracy" not in column,
        across=across,
    )


def pick(panels: Sequence[Panel], *names: str) -> list[Panel]:
    """The panels of these names that this scale has; names that it does not have are passed over.

    >>> [panel.name for panel in pick([Panel("a", "(a)", {}, []), Panel("b", "(b)", {}, [])], "b", "z")]
    ['b']
    """
    return [panel for name in names for panel in panels if panel.name == name]


def losses_and_accuracy(name: str, records: Records, panels: Sequence[Panel], folder: Path) -> list[Path]:
    """Both training losses and the test accuracy, a row a panel, written under this name.

    It is written as PNG and PDF; the PNG is returned, for the document.
    """
    columns = {"train_loss": "training loss", "cohort_loss": "cohort loss", "test_accuracy": "test accuracy"}
    chosen = [
        curves(records, panel, column, f"{panel.title}: {words}")
        for panel in panels
        for column, words in columns.items()
    ]
    plot.draw(chosen, [folder / f"{name}.png", folder / f"{name}.pdf"], columns=3)
    return [folder / f"{name}.png"]
