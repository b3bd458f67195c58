"""Figure 4: LeNet on MNIST, i.i.d. and with two classes a client.

The page asks whether FedSPS, untuned, comes close to FedAvg at the best point of a search (N1, N2), ends below tuned
FedAMS in loss (N3) and above it in test accuracy (N4), and goes together with FedSPS-Global (N5). "Close" is a final
loss of at most 1.25 times the other's, "together" one within 10 %. N1 and N2 are about one partition each, the others
must be true of both.
"""

from collections.abc import Sequence
from pathlib import Path

from fedsps.paper.claims import all_of, as_accurate, at_most, farthest, within
from fedsps.paper.figures import losses_and_accuracy
from fedsps.paper.page import Claim, Line, Page, Panel, Records, Scale
from fedsps.paper.settings import FEDAMS, FEDAVG, FEDSPS, KINDS, with_sampling

NAMES = [kind for kind, _ in KINDS]


def panels(scale: Scale) -> list[Panel]:
    """MNIST, LeNet, 10 of 100 clients, smoothing of the cap as the paper writes it.

    There is an evaluation in 25 rounds, to save time: the last tenth of 500 rounds has two of them, and claims look at
    their mean.
    """
    lines = [FEDSPS, Line("FedSPS-Global", "fedsps-global:smoothing=paper"), FEDAVG, FEDAMS]
    every = {"rounds": 2, "evaluate_every": 2} if scale == "smoke" else {"evaluate_every": 25}
    return [
        Panel(
            kind, f"MNIST, {words}", with_sampling(scale, data="mnist", model="lenet", partition=kind, **every), lines
        )
        for kind, words in KINDS
    ]


def draw(records: Records, panels: Sequence[Panel], folder: Path) -> list[Path]:
    """Both training losses and the test accuracy, a row a partition."""
    return losses_and_accuracy("lenet", records, panels, folder)


PAGE = Page(
    name="lenet",
    title="Figure 4: LeNet on MNIST",
    panels=panels,
    draw=draw,
    claims=(
        Claim(
            "N1",
            "LeNet, MNIST i.i.d.: FedSPS is very close to best tuned FedAvg",
            "figure 4a",
            "final loss at most 1.25 times tuned FedAvg's",
            "loss ratio",
            at_most("iid", "FedSPS", 1.25, "FedAvg tuned"),
        ),
        Claim(
            "N2",
            "the same for non-i.i.d.",
            "figure 4b",
            "final loss at most 1.25 times tuned FedAvg's",
            "loss ratio",
            at_most("two-class", "FedSPS", 1.25, "FedAvg tuned"),
        ),
        Claim(
            "N3",
            "FedSPS converges better than FedAMS, i.i.d. and non-i.i.d.",
            "figure 4",
            "final loss at most tuned FedAMS's on both",
            "largest loss ratio",
            at_most(NAMES, "FedSPS", 1.0, "FedAMS tuned"),
        ),
        Claim(
            "N4",
            "FedSPS generalises better than FedAMS",
            "figure 4",
            "final test accuracy at least tuned FedAMS's on both",
            "least lead",
            as_accurate(NAMES, "FedSPS", 0.0, "FedAMS tuned"),
            on_loss=False,
        ),
        Claim(
            "N5",
            "FedSPS and FedSPS-Global converge almost identically",
            "figure 4, appendix",
            "final losses within 10 % of each other on both",
            "most unequal loss ratio",
            all_of(*(within(kind, "FedSPS-Global", "FedSPS", 0.9, 1.1) for kind in NAMES), effect=farthest),
        ),
    ),
    note=(
        "The searches drop a setting at rounds 50 and 200 if it is not in the best quarter of those that have come as "
        "far. They evaluate every 50 rounds, so their score is the loss after the last one; the figure's runs are "
        "evaluated every 25."
    ),
)
