"""Figure 6: FedSPS against FedSPS-Normalized, which weighs clients by their inverse stepsizes.

The page asks whether normalisation changes nothing on i.i.d. data (A1: final losses within 2 %) and is slightly worse
on two classes a client (A2: between 1 and 1.25 times the loss), and whether it is of practical advantage anywhere (A6:
5 %), each with all clients and with a sample of them.
"""

from collections.abc import Sequence
from pathlib import Path

from fedsps.paper.claims import at_least, within
from fedsps.paper.figures import curves
from fedsps.paper.page import Claim, Line, Page, Panel, Records, Scale
from fedsps.paper.settings import KINDS, common, with_sampling
from fedsps.report import plot

SAMPLINGS = (("", "all clients", common), (" sampled", "10 of 100", with_sampling))
LINES = (Line("FedSPS", "fedsps"), Line("FedSPS-Normalized", "fedsps-normalized"))


def panels(scale: Scale) -> list[Panel]:
    """MNIST, logistic regression; the figure does not say whether clients are sampled, so both are run.

    The names are "iid" and "two-class", with " sampled" behind them where 10 of 100 clients take part.
    """
    return [
        Panel(f"{kind}{suffix}", f"MNIST, {words}, {who}", make(scale, data="mnist", partition=kind), LINES)
        for kind, words in KINDS
        for suffix, who, make in SAMPLINGS
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
            "final loss within 2 % of FedSPS's",
            "loss ratio",
            {who: within(f"iid{suffix}", "FedSPS-Normalized", "FedSPS", 0.98, 1.02) for suffix, who, _ in SAMPLINGS},
        ),
        Claim(
            "A2",
            "it is slightly worse on non-i.i.d. data",
            "figure 6b",
            "final loss between 1 and 1.25 times FedSPS's",
            "loss ratio",
            {
                who: within(f"two-class{suffix}", "FedSPS-Normalized", "FedSPS", 1.0, 1.25)
                for suffix, who, _ in SAMPLINGS
            },
            why="clients with long steps count less, as is meant; here that lowers the loss, by a hundredth",
        ),
        Claim(
            "A6",
            "no variant has practical advantages: FedSPS-Normalized",
            "section 3, remark",
            "final loss at least 0.95 times FedSPS's",
            "loss ratio",
            {
                f"{words}, {who}": at_least(f"{kind}{suffix}", "FedSPS-Normalized", 0.95, "FedSPS")
                for kind, words in KINDS
                for suffix, who, _ in SAMPLINGS
            },
        ),
    ),
)
