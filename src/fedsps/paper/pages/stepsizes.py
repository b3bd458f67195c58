"""Figure 7: the spread of FedSPS's stepsizes within and between clients.

The page asks whether stepsizes vary little over one client's local steps (V1) and over all local steps of all clients
(V2), on i.i.d. data and with two classes a client. "Little" is a standard deviation of at most a quarter of the mean,
averaged over the rounds. The one client is the lowest-numbered active one of each round.
"""

from collections.abc import Sequence
from pathlib import Path

from fedsps.paper.claims import small_spread
from fedsps.paper.figures import curves
from fedsps.paper.page import Claim, Line, Page, Panel, Records, Scale
from fedsps.paper.settings import KINDS, with_sampling
from fedsps.report import plot


def panels(scale: Scale) -> list[Panel]:
    """MNIST, logistic regression, 10 of 100 clients, i.i.d. and two classes a client.

    FedSPS runs alone: the claims compare its stepsizes with one another, not with another algorithm's.
    """
    return [
        Panel(kind, f"MNIST, {words}", with_sampling(scale, data="mnist", partition=kind), [Line("FedSPS", "fedsps")])
        for kind, words in KINDS
    ]


def draw(records: Records, panels: Sequence[Panel], folder: Path) -> list[Path]:
    """A row a partition: loss, accuracy, one client's stepsizes over its local steps, all clients' stepsizes.

    The bands of the last two are the deviation that the claims are about; those of the others are the least and the
    largest of the seeds.
    """
    chosen: list[plot.Curves] = []
    for panel in panels:
        chosen += [
            curves(records, panel, "train_loss", f"{panel.title}: training loss"),
            curves(records, panel, "test_accuracy", "test accuracy"),
            curves(records, panel, "stepsize_one_mean", "intra-client: mean and deviation"),
            curves(records, panel, "stepsize_mean", "inter-client: mean and deviation"),
        ]
    bands = {"stepsize_one_mean": "stepsize_one_std", "stepsize_mean": "stepsize_std"}
    plot.draw(chosen, [folder / "stepsizes.png", folder / "stepsizes.pdf"], bands=bands)
    return [folder / "stepsizes.png"]


PAGE = Page(
    name="stepsizes",
    title="Figure 7: stepsize statistics",
    panels=panels,
    draw=draw,
    claims=(
        Claim(
            "V1",
            "intra-client stepsize variance is small, i.i.d. and non-i.i.d.",
            "figure 7",
            "deviation over one client's local steps at most a quarter of its mean, averaged over the rounds",
            "relative deviation",
            {
                words: small_spread(kind, "FedSPS", "stepsize_one_std", "stepsize_one_mean", 0.25)
                for kind, words in KINDS
            },
            on_loss=False,
            why="a third of the mean with two classes a client, our margin is a quarter; the paper gives no number",
        ),
        Claim(
            "V2",
            "inter-client stepsize variance is small, i.i.d. and non-i.i.d.",
            "figure 7",
            "deviation over all stepsizes of all clients at most a quarter of the mean, averaged over the rounds",
            "relative deviation",
            {words: small_spread(kind, "FedSPS", "stepsize_std", "stepsize_mean", 0.25) for kind, words in KINDS},
            on_loss=False,
            why="a third of the mean with two classes a client, our margin is a quarter; the paper gives no number",
        ),
    ),
    note="The figure does not say whether clients are sampled: 10 of 100 are.",
)
