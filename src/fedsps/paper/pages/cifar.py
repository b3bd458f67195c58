"""Figure 5: ResNet-18 on CIFAR-10, i.i.d. and with two classes a client.

The page asks whether untuned FedSPS and FedDecSPS are at least as good as FedAvg and FedAMS at the best point of a
search, in training loss (N6) and in test accuracy (N7): each against each, on both partitions; and whether FedDecSPS
does better than FedSPS with two classes a client (N8). Table 1 has no point for CIFAR-10.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedsps.paper.claims import as_accurate, at_most
from fedsps.paper.figures import losses_and_accuracy
from fedsps.paper.page import OUR_QUESTION, Claim, Line, Page, Panel, Records, Scale, Tuned
from fedsps.paper.settings import FEDAMS, FEDAVG, FEDSPS, KINDS, SMOOTHINGS, smoothings, with_sampling

DUELS = {  # case -> partition, our line, tuned line
    f"{ours} against {rival}, {words}": (kind, ours, f"{rival} tuned")
    for kind, words in KINDS
    for ours in ("FedSPS", "FedDecSPS")
    for rival in ("FedAvg", "FedAMS")
}
REDUCED = "not the paper's network, nor its horizon: the paper scale needs a GPU"


def panels(scale: Scale) -> list[Panel]:
    """CIFAR-10, ResNet-18, 10 of 100 clients, smoothing on.

    The paper scale needs a GPU. The laptop scale keeps clients, cohort, local steps and batch, and has a narrower
    network, fewer rounds and a coarser grid. The smoke scale tries one point of the grid, on a network two channels
    wide: it shows that everything runs, and its verdicts say nothing about the paper.
    """
    changes: dict[str, Any] = {"evaluate_every": 10, "augment": "crop-flip"}
    tuned = FEDAVG, FEDAMS
    if scale == "laptop":
        changes |= {"width": 8, "rounds": 100}
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
    settings = {
        kind: with_sampling(scale, **({"data": "cifar10", "model": "resnet18", "partition": kind} | changes))
        for kind, _ in KINDS
    }
    return [
        *(Panel(kind, f"CIFAR-10, {words}", settings[kind], lines) for kind, words in KINDS),
        *(smoothings(kind, f"CIFAR-10, {words}", settings[kind], tuned[0]) for kind, words in KINDS),
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
            "final loss no higher",
            "loss ratio",
            {case: at_most(kind, ours, 1.0, rival) for case, (kind, ours, rival) in DUELS.items()},
            why=REDUCED,
        ),
        Claim(
            "N7",
            "and in test accuracy",
            "figure 5",
            "final test accuracy no lower",
            "lead",
            {case: as_accurate(kind, ours, 0.0, rival) for case, (kind, ours, rival) in DUELS.items()},
            on_loss=False,
            why=REDUCED,
        ),
        Claim(
            "N8",
            "with two classes a client FedDecSPS does better than FedSPS",
            "figure 5",
            "FedDecSPS's final loss at most FedSPS's",
            "loss ratio",
            at_most("two-class", "FedDecSPS", 1.0, "FedSPS"),
            why=REDUCED,
        ),
        Claim(
            "N6 smoothing",
            "FedSPS is as good as tuned FedAvg under another reading of the smoothing",
            OUR_QUESTION,
            "final loss no higher",
            "loss ratio",
            {
                f"{reading}, {words}": at_most(f"{kind} smoothing", reading, 1.0, "FedAvg tuned")
                for kind, words in KINDS
                for reading in SMOOTHINGS
            },
        ),
    ),
    note=(
        "The paper scale (width 64, 500 rounds, the whole grid) needs a GPU. Reduced at laptop scale: "
        "ResNet-18 is 8 channels wide instead of 64; 100 rounds instead of 500; the grid "
        "is client stepsize 0.01, 0.1, 1 for FedAvg (server stepsize 1), and client stepsize 0.01, 0.1, server "
        "stepsize 0.1, 1, eps 0.001, 0.01 for FedAMS, of which the searches drop at rounds 20 and 80 (50 and 200 at "
        "paper scale) what is not in the best quarter of those that have come as far. Clients, cohort, local steps, "
        "batch and data are the paper's; images are cropped and flipped at random, as in the code it builds on. It "
        "says nothing about normalisation: batch norm, as in that code, its running statistics averaged like the "
        "weights. FedDecSPS has no cap to smooth: its own last stepsize bounds it."
    ),
    seeds=3,
)
