"""Figure 9: logistic regression on four LIBSVM data sets.

The page asks whether untuned FedSPS is as good as FedAvg and FedAdam at the best point of a search, in training loss
(L1, up to 10 %) and in test accuracy (L2, up to one point), and whether its stepsizes vary little (L3), on each of the
data sets.

FedAvg also stands at the paper's own table 1 point. On mushrooms, which a linear model separates, losses fall towards 0
for ever and their ratios say nothing: a loss below 0.01 counts as 0.01.

"L1 cap" is our own question: where the Polyak ratio is above the paper's cap of 1, every step is as long as the cap,
and a cap of 100 tells what that costs.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedsps.paper.claims import as_accurate, small_spread, within
from fedsps.paper.evidence import Evidence
from fedsps.paper.figures import curves, pick
from fedsps.paper.page import OUR_QUESTION, Check, Claim, Line, Page, Panel, Records, Scale, Tuned
from fedsps.paper.settings import AGAINST_FEDAMS, FEDAVG_THERE, SMOOTHINGS, smoothings, table_1, with_sampling
from fedsps.report import plot

DATA = ("mushrooms", "ijcnn1", "phishing", "a9a")
LINES = (
    Line("FedSPS", "fedsps"),
    Line("FedSPS-Global", "fedsps-global"),
    Line("FedAvg tuned", Tuned("fedavg")),
    Line("FedAdam tuned", Tuned("fedadam")),
    Line("FedAMS tuned", Tuned("fedams")),
    Line("FedSPS cap 100", "fedsps:cap=100"),
    *table_1("LIBSVM"),
)
FLOOR = 0.01


def panels(scale: Scale) -> list[Panel]:
    """Each data set i.i.d. over 100 clients, 10 a round; features as published, without scaling."""
    settings = {name: with_sampling(scale, data=name) for name in DATA}
    return [
        *(Panel(name, name, settings[name], LINES) for name in DATA),
        *(smoothings(name, name, settings[name], LINES[2]) for name in DATA),
    ]


def draw(records: Records, panels: Sequence[Panel], folder: Path) -> list[Path]:
    """A row a data set: loss, accuracy, FedSPS's stepsizes over one client's local steps and over clients.

    The last two show FedSPS alone, with bands of a deviation instead of the seeds' least and largest.
    """
    chosen: list[plot.Curves] = []
    for panel in pick(panels, *DATA):
        alone = Records({panel.name: {"FedSPS": records.of(panel.name, "FedSPS")}})
        chosen += [
            curves(records, panel, "train_loss", f"{panel.name}: training loss"),
            curves(records, panel, "test_accuracy", f"{panel.name}: test accuracy"),
            curves(alone, panel, "stepsize_one_mean", f"{panel.name}: intra-client stepsizes"),
            curves(alone, panel, "stepsize_mean", f"{panel.name}: inter-client stepsizes"),
        ]
    bands = {"stepsize_one_mean": "stepsize_one_std", "stepsize_mean": "stepsize_std"}
    plot.draw(chosen, [folder / "libsvm.png", folder / "libsvm.pdf"], bands=bands)
    readings = [curves(records, panel) for panel in panels if panel.name not in DATA]
    if readings:
        plot.draw(readings, [folder / "libsvm-smoothing.png", folder / "libsvm-smoothing.pdf"])
    return [folder / "libsvm.png", *([folder / "libsvm-smoothing.png"] if readings else [])]


def above_floor(panel: str, label: str, factor: float, other: str) -> Check:
    """`label` ends at no more than `factor` times the other, both losses being at least `FLOOR`."""

    def check(records: Records, column: str) -> Evidence:
        ours, theirs = (np.maximum(records.final(panel, name, column), FLOOR) for name in (label, other))
        return Evidence(ours / theirs, high=factor)

    return check


RIVALS = {
    f"{name}, {words}": (name, rival)
    for name in DATA
    for words, rival in {
        "FedAvg tuned": "FedAvg tuned",
        "FedAvg at table 1": FEDAVG_THERE,
        "FedAdam tuned": "FedAdam tuned",
    }.items()
}
BINDS = "FedSPS's stepsize is its cap of 1, as is FedAvg's best, the largest of the grid; "
SPREADS = {"inter": ("stepsize_std", "stepsize_mean"), "intra": ("stepsize_one_std", "stepsize_one_mean")}
CLAIMS = (
    Claim(
        "L1",
        "untuned FedSPS is as good as or slightly better than tuned FedAvg and FedAdam on four LIBSVM sets",
        "figure 9",
        "final loss at most 1.1 times the other's, losses below 0.01 counted as 0.01",
        "loss ratio",
        {case: above_floor(name, "FedSPS", 1.1, rival) for case, (name, rival) in RIVALS.items()},
        why=BINDS + "tuned FedAdam finds longer steps on phishing (and on mushrooms, below the floor of 0.01)",
    ),
    Claim(
        "L1 cap",
        "the same with a cap of 100",
        OUR_QUESTION,
        "as L1",
        "loss ratio",
        {case: above_floor(name, "FedSPS cap 100", 1.1, rival) for case, (name, rival) in RIVALS.items()},
        why="where no model fits all data, longer steps end in a larger neighbourhood",
    ),
    Claim(
        "L2",
        "and in test accuracy",
        "figure 9",
        "final accuracy at most one point below the other's",
        "lead",
        {case: as_accurate(name, "FedSPS", 0.01, rival) for case, (name, rival) in RIVALS.items()},
        on_loss=False,
    ),
    Claim(
        "L3",
        "low inter- and intra-client stepsize variance there too",
        "figure 9",
        "deviation at most a quarter of the mean, averaged over the rounds",
        "relative deviation",
        {
            f"{name}, {kind}": small_spread(name, "FedSPS", *columns, bound=0.25)
            for name in DATA
            for kind, columns in SPREADS.items()
        },
        on_loss=False,
    ),
    Claim(
        "N5 LIBSVM",
        "FedSPS and FedSPS-Global converge almost identically",
        "figure 9, appendix",
        "FedSPS-Global's final loss within 10 % of FedSPS's",
        "loss ratio",
        {name: within(name, "FedSPS-Global", "FedSPS", 0.9, 1.1) for name in DATA},
    ),
    Claim(
        "L1 FedAMS",
        "untuned FedSPS is as good as FedAMS on them",
        OUR_QUESTION,
        "as L1",
        "loss ratio",
        {
            f"{name}, {words}": above_floor(name, "FedSPS", 1.1, rival)
            for name in DATA
            for words, rival in AGAINST_FEDAMS.items()
        },
        why="as L1: its steps are longer",
    ),
    Claim(
        "L1 smoothing",
        "and under each reading of the smoothing",
        OUR_QUESTION,
        "as L1, against tuned FedAvg",
        "loss ratio",
        {
            f"{name}, {reading}": above_floor(f"{name} smoothing", reading, 1.1, "FedAvg tuned")
            for name in DATA
            for reading in SMOOTHINGS
        },
        why=(
            "where no model fits all data, longer steps end in a larger neighbourhood; on mushrooms, which a linear "
            "model separates, a cap of 100 does well and one that grows without end does not: the cause is not tested"
        ),
    ),
)

PAGE = Page(
    name="libsvm",
    title="Figure 9: LIBSVM",
    panels=panels,
    draw=draw,
    claims=CLAIMS,
    note=(
        "Features are as published. Where the Polyak ratio is above the cap, FedSPS is FedAvg at that stepsize, so a "
        "cap of 100 is run beside the paper's cap of 1. Bands of stepsizes are deviations."
    ),
)
