"""Figure 9: logistic regression on four LIBSVM data sets.

The page asks whether untuned FedSPS is as good as FedAvg and FedAdam at the best point of a search, in training loss
(L1, up to 10 %) and in test accuracy (L2, up to one point), and whether its stepsizes vary little (L3). A claim is true
of a seed only if it is true of all four data sets.

"L1 cap" is our own question: where the Polyak ratio is above the paper's cap of 1, every step is as long as the cap,
and a cap of 100 tells what that costs.
"""

from collections.abc import Sequence
from pathlib import Path

from fedsps.paper.claims import all_of, as_accurate, at_most, small_spread
from fedsps.paper.figures import curves
from fedsps.paper.page import Claim, Line, Page, Panel, Records, Scale, Tuned
from fedsps.paper.settings import with_sampling
from fedsps.report import plot

DATA = ("mushrooms", "ijcnn1", "phishing", "a9a")
LINES = (
    Line("FedSPS", "fedsps"),
    Line("FedSPS-Global", "fedsps-global"),
    Line("FedAvg tuned", Tuned("fedavg")),
    Line("FedAdam tuned", Tuned("fedadam")),
    Line("FedAMS tuned", Tuned("fedams")),
    Line("FedSPS cap 100", "fedsps:cap=100"),
)


def panels(scale: Scale) -> list[Panel]:
    """Each data set i.i.d. over 100 clients, 10 a round; features as published, without scaling."""
    return [Panel(name, name, with_sampling(scale, data=name), LINES) for name in DATA]


def draw(records: Records, panels: Sequence[Panel], folder: Path) -> list[Path]:
    """A row a data set: loss, accuracy, FedSPS's stepsizes over one client's local steps and over clients.

    The last two show FedSPS alone, with bands of a deviation instead of the seeds' least and largest.
    """
    chosen: list[plot.Curves] = []
    for panel in panels:
        alone = Records({panel.name: {"FedSPS": records.of(panel.name, "FedSPS")}})
        chosen += [
            curves(records, panel, "train_loss", f"{panel.name}: training loss"),
            curves(records, panel, "test_accuracy", f"{panel.name}: test accuracy"),
            curves(alone, panel, "stepsize_one_mean", f"{panel.name}: intra-client stepsizes"),
            curves(alone, panel, "stepsize_mean", f"{panel.name}: inter-client stepsizes"),
        ]
    bands = {"stepsize_one_mean": "stepsize_one_std", "stepsize_mean": "stepsize_std_clients"}
    plot.draw(chosen, [folder / "libsvm.png", folder / "libsvm.pdf"], bands=bands)
    return [folder / "libsvm.png"]


def _claims(names: Sequence[str]) -> tuple[Claim, ...]:
    """The claims, each about all of these data sets."""
    return (
        Claim(
            "L1",
            "untuned FedSPS is as good as or slightly better than tuned FedAvg and FedAdam on four LIBSVM sets",
            "figure 9",
            "final loss at most 1.1 times both, on every data set",
            "largest loss ratio",
            at_most(names, "FedSPS", 1.1, "FedAvg tuned", "FedAdam tuned"),
        ),
        Claim(
            "L1 cap",
            "the same with a cap of 100",
            "our question",
            "final loss at most 1.1 times both, on every data set",
            "largest loss ratio",
            at_most(names, "FedSPS cap 100", 1.1, "FedAvg tuned", "FedAdam tuned"),
        ),
        Claim(
            "L2",
            "and in test accuracy",
            "figure 9",
            "final accuracy at most one point below both, on every data set",
            "least lead",
            as_accurate(names, "FedSPS", 0.01, "FedAvg tuned", "FedAdam tuned"),
            on_loss=False,
        ),
        Claim(
            "L3",
            "low inter- and intra-client stepsize variance there too",
            "figure 9",
            "both deviations at most a quarter of the mean, averaged over the rounds, on every data set",
            "largest relative deviation",
            all_of(
                small_spread(names, "FedSPS", "stepsize_std_clients", "stepsize_mean", 0.25),
                small_spread(names, "FedSPS", "stepsize_one_std", "stepsize_one_mean", 0.25),
            ),
            on_loss=False,
        ),
    )


PAGE = Page(
    name="libsvm",
    title="Figure 9: LIBSVM",
    panels=panels,
    draw=draw,
    claims=_claims(DATA),
    note=(
        "Features are as published. Where the Polyak ratio is above the cap, FedSPS is FedAvg at that stepsize, so a "
        "cap of 100 is run beside the paper's cap of 1. Bands of stepsizes are deviations."
    ),
)
