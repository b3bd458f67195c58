"""From records to axes."""

from collections.abc import Sequence

from fedsps import plot
from fedsps.paper.page import Panel, Records


def curves(
    records: Records, panel: Panel, column: str | None = None, heading: str | None = None, across: str = "round"
) -> plot.Curves:
    """The lines of a panel; accuracies on a linear scale, everything else on a logarithmic one."""
    column = column or panel.column
    runs = records.runs[panel.name]
    return plot.Curves(
        heading=heading or panel.title,
        column=column,
        histories={label: [run.history for run in some] for label, some in runs.items()},
        algorithms={label: str(some[0].spec["algorithm"]) for label, some in runs.items()},
        logarithmic="accuracy" not in column,
        across=across,
    )


def pick(panels: Sequence[Panel], *names: str) -> list[Panel]:
    """The panels of these names that this scale has."""
    return [panel for name in names for panel in panels if panel.name == name]
