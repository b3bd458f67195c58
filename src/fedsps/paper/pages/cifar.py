"""Figure 5: ResNet-18 on CIFAR-10, i.i.d. and with two classes a client.

The page asks whether untuned FedSPS and FedDecSPS are at least as good as FedAvg and FedAMS at the best point of a
search, in training loss (N6) and in test accuracy (N7). Each claim is true of a seed only if it is true of both
algorithms, against both rivals, on both partitions: its number is that of the worst of these eight comparisons.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedsps.paper.claims import all_of, as_accurate, at_most, least
from fedsps.paper.figures import losses_and_accuracy
from fedsps.paper.page import Claim, Line, Page, Panel, Records, Scale, Tuned
from fedsps.paper.settings import FEDAMS, FEDAVG, FEDSPS, KINDS, with_sampling

NAMES = [kind for kind, _ in KINDS]


def panels(scale: Scale) -> list[Panel]:
    """CIFAR-10, ResNet-18, 10 of 100 clients, smoothing on.

    The paper scale needs a GPU. The laptop scale keeps clients, cohort, local steps and batch, and has a narrower
    network, fewer rounds and a coarser grid. The smoke scale tries one point of the grid, on a network two channels
    wide: it shows that everything runs, and its verdicts say nothing about the paper.
    """
    changes: dict[str, Any] = {"evaluate_every": 10}
    tuned = FEDAVG, FEDAMS
    if scale == "laptop":
        changes = {"width": 8, "rounds": 100, "evaluate_every": 20}
        stepsizes = {"client_stepsize": (0.01, 0.1, 1.0)}
        adaptive = {"client_stepsize": (0.01, 0.1), "server_stepsize": (0.1, 1.0), "eps": (1e-3, 1e-2)}
        tuned = (
            Line("FedAvg tuned", Tuned("fedavg", halve_from=20, grid=stepsizes)),
            Line("FedAMS tuned", Tuned("fedams", halve_from=20, grid=adaptive)),
        )
    elif scale == "smoke":
        changes = {"width": 2, "rounds": 2, "evaluate_every": 2, "local_steps": 2, "cohort": 2, "samples": 500}
        single = {"client_stepsize": (0.1,)}
        tuned = Line("FedAvg tuned", Tuned("fedavg", grid=single)), Line("FedAMS tuned", Tuned("fedams", grid=single))
    lines = [FEDSPS, Line("FedDecSPS", "feddecsps"), *tuned]
    return [
        Panel(
            kind,
            f"CIFAR-10, {words}",
            with_sampling(scale, **({"data": "cifar10", "model": "resnet18", "partition": kind} | changes)),
            lines,
        )
        for kind, words in KINDS
    ]


def draw(records: Records, panels: Sequence[Panel], folder: Path) -> list[Path]:
    """Both training losses and the test accuracy, a row a partition.

    Both, since the paper does not say which of them it plots.
    """
    return losses_and_accuracy("cifar", records, panels, folder)


PAGE = Page(
    name="cifar",
    title="Figure 5: ResNet-18 on CIFAR-10",
    panels=panels,
    draw=draw,
    claims=(
        Claim(
            "N6",
            "CIFAR-10, ResNet-18: FedSPS and FedDecSPS beat tuned FedAvg and FedAMS in train loss, "
            "i.i.d. and non-i.i.d.",
            "figure 5",
            "both final losses no higher than both tuned ones, on both partitions",
            "largest loss ratio",
            all_of(*(at_most(NAMES, label, 1.0, "FedAvg tuned", "FedAMS tuned") for label in ("FedSPS", "FedDecSPS"))),
        ),
        Claim(
            "N7",
            "and in test accuracy",
            "figure 5",
            "both final test accuracies no lower than both tuned ones, on both partitions",
            "least lead",
            all_of(
                *(as_accurate(NAMES, label, 0.0, "FedAvg tuned", "FedAMS tuned") for label in ("FedSPS", "FedDecSPS")),
                effect=least,
            ),
            on_loss=False,
        ),
    ),
    note=(
        "The paper scale (width 64, 500 rounds, the whole grid, one seed) needs a GPU. Reduced at laptop scale: "
        "ResNet-18 is 8 channels wide instead of 64; 100 rounds instead of 500; evaluated every 20 rounds; the grid "
        "is client stepsize 0.01, 0.1, 1 for FedAvg (server stepsize 1), and client stepsize 0.01, 0.1, server "
        "stepsize 0.1, 1, eps 0.001, 0.01 for FedAMS, of which the searches drop at rounds 20 and 80 (50 and 200 at "
        "paper scale) what is not in the best quarter of those that have come as far. Clients, cohort, local steps, "
        "batch and data are the paper's. It says nothing about normalisation: batch norm, as in the code it builds "
        "on, its running statistics averaged like the weights. FedDecSPS has no cap to smooth: its own last stepsize "
        "bounds it."
    ),
    seeds=1,
)
