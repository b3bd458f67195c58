"""Figures 4 and 5: LeNet on MNIST, ResNet-18 on CIFAR-10."""

from collections.abc import Sequence
from pathlib import Path

from fedsps import plot
from fedsps.paper.claims import all_of, as_accurate, at_most, within
from fedsps.paper.figures import curves
from fedsps.paper.page import Claim, Line, Page, Panel, Records, Scale, Tuned
from fedsps.paper.settings import with_sampling

KINDS = (("iid", "i.i.d."), ("two-class", "two classes"))
NAMES = [kind for kind, _ in KINDS]
FEDSPS = Line("FedSPS", "fedsps:smoothing=paper")
FEDAVG, FEDAMS = (
    Line("FedAvg tuned", Tuned("fedavg", halve_from=50)),
    Line("FedAMS tuned", Tuned("fedams", halve_from=50)),
)


def lenet_panels(scale: Scale) -> list[Panel]:
    """MNIST, LeNet, 10 of 100 clients, smoothing of the cap as the paper writes it."""
    lines = [FEDSPS, Line("FedSPS-Global", "fedsps-global:smoothing=paper"), FEDAVG, FEDAMS]
    every = {"rounds": 4, "evaluate_every": 4} if scale == "smoke" else {"evaluate_every": 10}
    return [
        Panel(
            kind, f"MNIST, {words}", with_sampling(scale, data="mnist", model="lenet", partition=kind, **every), lines
        )
        for kind, words in KINDS
    ]


def draw_as(name: str, records: Records, panels: Sequence[Panel], folder: Path) -> list[Path]:
    """Training loss and test accuracy of both partitions."""
    chosen = [
        curves(records, panel, column, f"{panel.title}: {words}")
        for panel in panels
        for column, words in (("train_loss", "training loss"), ("test_accuracy", "test accuracy"))
    ]
    plot.draw(chosen, [folder / f"{name}.png", folder / f"{name}.pdf"])
    return [folder / f"{name}.png"]


LENET = Page(
    name="lenet",
    title="Figure 4: LeNet on MNIST",
    panels=lenet_panels,
    draw=lambda records, panels, folder: draw_as("lenet", records, panels, folder),
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
            "final loss below tuned FedAMS's on both",
            "largest loss ratio",
            at_most(NAMES, "FedSPS", 1.0, "FedAMS tuned"),
        ),
        Claim(
            "N4",
            "FedSPS generalises better than FedAMS",
            "figure 4",
            "final test accuracy above tuned FedAMS's on both",
            "least lead",
            as_accurate(NAMES, "FedSPS", 0.0, "FedAMS tuned"),
            on_loss=False,
        ),
        Claim(
            "N5",
            "FedSPS and FedSPS-Global converge almost identically",
            "figure 4, appendix",
            "final losses within 10 % of each other on both",
            "loss ratio, i.i.d.",
            all_of(*(within(kind, "FedSPS-Global", "FedSPS", 0.9, 1.1) for kind in NAMES)),
        ),
    ),
    note="The searches drop all but the best quarter of the settings at rounds 50 and 200.",
)
