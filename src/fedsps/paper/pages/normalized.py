"""Figure 6: FedSPS against FedSPS-Normalized, which weighs clients by their inverse stepsizes.

The page asks whether normalisation changes nothing on i.i.d. data (A1: final losses within 2 %) and is slightly worse
on two classes a client (A2: between 1 and 1.25 times the loss). Both must be true with all clients and with a sample of
them; the number is the ratio that is farthest from 1.
"""

from collections.abc import Sequence
from pathlib import Path

from fedsps.paper.claims import all_of, farthest, within
from fedsps.paper.figures import curves
from fedsps.paper.page import Claim, Line, Page, Panel, Records, Scale
from fedsps.paper.settings import common, with_sampling
from fedsps.report import plot

LINES = (Line("FedSPS", "fedsps"), Line("FedSPS-Normalized", "fedsps-normalized"))


def panels(scale: Scale) -> list[Panel]:
    """MNIST, logistic regression; the figure does not say whether clients are sampled, so both are run.

    The names are "iid" and "two-class", with " sampled" behind them where 10 of 100 clients take part.
    """
    return [
        Panel(f"{kind}{suffix}", f"MNIST, {words}, {who}", make(scale, data="mnist", partition=kind), LINES)
        for kind, words in (("iid", "i.i.d."), ("two-class", "two classes"))
        for suffix, who, make in (("", "all clients", common), (" sampled", "10 of 100", with_sampling))
    ]


def draw(records: Records, panels: Sequence[Panel], folder: Path) -> list[Path]:
    """All four settings side by side, in training loss."""
    plot.draw([curves(records, panel) for panel in panels], [folder / "normalized.png", folder / "normalized.pdf"])
    return [folder / "normalized.png"]


PAGE = Page(
    name="normalized",
    title="Figure 6: FedSPS-Normalized",
    panels=panels,
    draw=draw,
    claims=(
        Claim(
            "A1",
            "normalisation has no effect on i.i.d. data",
            "figure 6a",
            "final losses within 2 % of each other, with and without sampling",
            "most unequal loss ratio",
            all_of(
                *(within(name, "FedSPS-Normalized", "FedSPS", 0.98, 1.02) for name in ("iid", "iid sampled")),
                effect=farthest,
            ),
        ),
        Claim(
            "A2",
            "it is slightly worse on non-i.i.d. data",
            "figure 6b",
            "FedSPS-Normalized's final loss between 1 and 1.25 times FedSPS's, with and without sampling",
            "most unequal loss ratio",
            all_of(
                *(
                    within(name, "FedSPS-Normalized", "FedSPS", 1.0, 1.25)
                    for name in ("two-class", "two-class sampled")
                ),
                effect=farthest,
            ),
        ),
    ),
)
