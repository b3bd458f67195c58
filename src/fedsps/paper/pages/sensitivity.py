"""Figures 2 and 8: how sensitive FedSPS is to its cap and its scale, and the same of FedDecSPS.

S1 to S4 are about the cap, beside FedAvg's stepsize, S5 and S6 about the scale, S7 and S8 about how the best scale
depends on the number of local steps, S9 about FedDecSPS. The paper does not say how it scales its inputs, which decides
how large gradients are, and so what a cap or a scale does: S2, S3, S5 and S6 are also put to standardised inputs.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from fedsps.paper.claims import Check, ratio
from fedsps.paper.figures import curves, pick
from fedsps.paper.page import Claim, Evidence, Line, Numbers, Page, Panel, Records, Scale
from fedsps.paper.settings import common
from fedsps.report import plot

CAPS = (0.1, 1, 5, 10)
SCALES = (0.01, 0.1, 0.5, 1, 5, 10, 20, 40)
LOCAL_STEPS = (5, 10, 20, 50, 100)
NAMES = {"fedsps": "FedSPS", "feddecsps": "FedDecSPS"}
CAP = "feddecsps cap"
STANDARD = ("cap standard", "scale standard")  # the same on inputs of mean 0 and standard deviation 1


def panels(scale: Scale) -> list[Panel]:
    """MNIST, logistic regression, i.i.d., all 10 clients take part; the smoke scale has fewer points.

    The panels by scale are named by method and local steps, "fedsps 5" or "feddecsps 100".
    """
    setting = common(scale, data="mnist")
    scales = (0.1, 0.5, 10) if scale == "smoke" else SCALES
    by_cap = {method: [Line(f"{NAMES[method]} cap {cap}", f"{method}:cap={cap}") for cap in CAPS] for method in NAMES}
    fedavg = [Line(f"FedAvg {stepsize}", f"fedavg:client_stepsize={stepsize}") for stepsize in (0.01, 0.1)]
    lines = {method: [Line(f"{NAMES[method]} scale {c}", f"{method}:scale={c}") for c in scales] for method in NAMES}
    by_scale = [
        Panel(
            f"{method} {tau}",
            f"{'(c) ' if (method, tau) == ('fedsps', 5) else ''}scale of {NAMES[method]}, {tau} local steps",
            setting | {"local_steps": tau},
            lines[method],
        )
        for method in NAMES
        for tau in ((5, 10) if scale == "smoke" else LOCAL_STEPS)
    ]
    return [
        Panel("cap", "(a) cap of FedSPS, stepsize of FedAvg", setting, [*by_cap["fedsps"], *fedavg]),
        Panel("stepsize", "(b) stepsizes of FedSPS", setting, by_cap["fedsps"], "stepsize_mean"),
        *by_scale,
        Panel(CAP, "cap of FedDecSPS", setting, by_cap["feddecsps"]),
        *(
            Panel(name, f"{title}, standardised inputs", setting | {"scaling": "standard"}, chosen)
            for name, title, chosen in zip(
                STANDARD, ("caps", "scales"), ([*by_cap["fedsps"], *fedavg], lines["fedsps"]), strict=True
            )
        ),
    ]


def draw(records: Records, panels: Sequence[Panel], folder: Path) -> list[Path]:
    """Figure 2 without (d), figure 8, FedDecSPS's ablations, standardised inputs, and figure 2 (d).

    The last one shows each seed's best scale as a point, with a line through the medians.
    """
    groups = {
        "sensitivity": pick(panels, "cap", "stepsize", "fedsps 5"),
        "sensitivity-tau": [panel for panel in panels if panel.name.startswith("fedsps ") and panel.name != "fedsps 5"],
        "sensitivity-feddecsps": [
            panel for panel in panels if panel.name.startswith("feddecsps ") and panel.name != CAP
        ],
        "sensitivity-feddecsps-cap": pick(panels, CAP),
        "sensitivity-standard": pick(panels, *STANDARD),
    }
    drawn = []
    for name, members in groups.items():
        plot.draw([curves(records, panel) for panel in members], [folder / f"{name}.png", folder / f"{name}.pdf"])
        drawn.append(folder / f"{name}.png")
    best = {
        name: (taus(records, method), np.array([best_scales(records, method, tau) for tau in taus(records, method)]))
        for method, name in NAMES.items()
    }
    place = folder / "sensitivity-optimal.png"
    plot.points(
        {"(d) the best scale against local steps": best},
        {name: method for method, name in NAMES.items()},
        "local steps",
        "best scale",
        [place, place.with_suffix(".pdf")],
    )
    return [*drawn, place]


def taus(records: Records, method: str) -> list[int]:
    """The numbers of local steps that were run, as the names of the panels say.

    >>> taus(Records({"fedsps 5": {}, "fedsps 10": {}, "feddecsps cap": {}}), "fedsps")
    [5, 10]
    """
    return [
        int(name.split()[1]) for name in records.runs if name.startswith(f"{method} ") and name.split()[1].isdigit()
    ]


def losses(records: Records, panel: str, column: str = "train_loss") -> dict[float, Numbers]:
    """The final losses by scale, each over the seeds; a line's scale is the last word of its label."""
    return {float(label.split()[-1]): records.final(panel, label, column) for label in records.labels(panel)}


def best_scales(records: Records, method: str, tau: int, column: str = "train_loss") -> Numbers:
    """For each seed the scale with the lowest final loss; NaN if all diverged."""
    by_scale = losses(records, f"{method} {tau}", column)
    finals = np.stack(list(by_scale.values()))
    best = np.array(list(by_scale))[np.argmin(finals, axis=0)]
    return np.where(np.isfinite(finals).any(0), best, np.nan)


def _spread(values: Sequence[Numbers]) -> Numbers:
    """For each seed the largest value over the smallest one."""
    stacked = np.stack(values)
    ratio: Numbers = stacked.max(0) / stacked.min(0)
    return ratio


def fedavg_is_sensitive(records: Records, column: str) -> Evidence:
    """S1: FedAvg is not robust to its stepsize; 0.1 converges well, 0.01 very slowly.

    True of a seed where the final loss at 0.01 is at least 1.5 times that at 0.1; the effect is the ratio.
    """
    ratios = ratio(records, "cap", "FedAvg 0.01", "FedAvg 0.1", column)
    return Evidence(ratios >= 1.5, ratios)


def neighbourhood_grows(records: Records, column: str, panel: str = "cap") -> Evidence:
    """S2: with a cap of 1, 5 or 10 FedSPS converges to a neighbourhood, whose size grows with the cap.

    True of a seed where the final losses are in the order of the caps, that at 10 above that at 1, and all below half
    of the loss at the start, log 10 (ten classes, equally likely there). The effect is the loss at 10 over that at 1.
    """
    at_1, at_5, at_10 = (records.final(panel, f"FedSPS cap {cap}", column) for cap in (1, 5, 10))
    return Evidence((at_1 <= at_5) & (at_5 <= at_10) & (at_1 < at_10) & (at_10 < np.log(10) / 2), at_10 / at_1)


def less_sensitive_than_fedavg(records: Records, column: str, panel: str = "cap") -> Evidence:
    """S3: FedSPS is insensitive to its cap, compared with FedAvg and its stepsize.

    True of a seed where the largest over the smallest final loss for caps 1, 5 and 10 is below FedAvg's ratio in S1;
    the effect is FedSPS's ratio.
    """
    spread = _spread([records.final(panel, f"FedSPS cap {cap}", column) for cap in (1, 5, 10)])
    return Evidence(spread < ratio(records, panel, "FedAvg 0.01", "FedAvg 0.1", column), spread)


def small_cap_loses_adaptivity(records: Records, column: str) -> Evidence:
    """S4: if the cap is too small, adaptivity is lost, for every stepsize is the cap.

    True of a seed where the mean stepsize is the cap (up to 0.1 %) in 99 % of the rounds at cap 0.1, and in less than
    half of them at cap 10; the effect is the share at 0.1.
    """

    def share(cap: float) -> Numbers:
        return records.each(
            "stepsize", f"FedSPS cap {cap}", lambda table: float((table["stepsize_mean"] >= 0.999 * cap).mean())
        )

    small, large = share(0.1), share(10)
    return Evidence((small >= 0.99) & (large < 0.5), np.where(np.isnan(large), np.nan, small))


def small_scale_is_better(records: Records, column: str, panel: str = "fedsps 5") -> Evidence:
    """S5: small scales work better and larger ones are slower, from 0.01 to 40.

    True of a seed where Spearman's rank correlation of scale and final loss is at least 0.7, and the loss at the
    largest scale at least 1.5 times the least. The effect is the correlation; NaN where a run diverged.
    """
    by_scale = losses(records, panel, column)
    order = np.argsort(np.argsort(np.stack(list(by_scale.values())), axis=0), axis=0)
    ranks = np.arange(len(by_scale))[:, None]
    centred = (order - order.mean(0)) * (ranks - ranks.mean(0))
    rho = centred.sum(0) / ((ranks - ranks.mean(0)) ** 2).sum(0)
    rho = np.where(np.isfinite(np.stack(list(by_scale.values()))).all(0), rho, np.nan)  # diverged runs have no order
    return Evidence((rho >= 0.7) & (by_scale[max(by_scale)] >= 1.5 * np.stack(list(by_scale.values())).min(0)), rho)


def small_scales_are_alike(records: Records, column: str, panel: str = "fedsps 5") -> Evidence:
    """S6: the scales 0.01, 0.1, 0.5 and 1 converge similarly well.

    True of a seed where their largest over their smallest final loss is at most 1.25; the effect is that ratio.
    """
    by_scale = losses(records, panel, column)
    ratio = _spread([values for scale, values in by_scale.items() if scale <= 1])
    return Evidence(ratio <= 1.25, ratio)


def _slope(records: Records, method: str, column: str) -> Numbers:
    """For each seed the slope of log best scale over log local steps; NaN where all scales diverged somewhere."""
    steps = taus(records, method)
    best = np.stack([best_scales(records, method, tau, column) for tau in steps])
    return np.array(
        [np.polyfit(np.log(steps), np.log(scales), 1)[0] if np.isfinite(scales).all() else np.nan for scales in best.T]
    )


def no_square_law(records: Records, column: str) -> Evidence:
    """S7: the best scale of FedSPS does not grow with the local steps.

    True of a seed where the slope of log best scale over log local steps is at most 0.5; under a square law it would be
    2. The effect is the slope.
    """
    slope = _slope(records, "fedsps", column)
    return Evidence(slope <= 0.5, slope)


def any_small_scale_works(records: Records, column: str) -> Evidence:
    """S8: any scale up to 0.5 works well for more than 5 local steps too.

    True of a seed where the final losses of these scales are at most 1.25 times the least of all scales, for each
    number of local steps; the effect is the worst ratio.
    """
    worst = []
    for tau in taus(records, "fedsps"):
        if tau > 5:
            by_scale = losses(records, f"fedsps {tau}", column)
            small = np.stack([values for scale, values in by_scale.items() if scale <= 0.5])
            worst.append(small.max(0) / np.stack(list(by_scale.values())).min(0))
    ratio: Numbers = np.stack(worst).max(0)
    return Evidence(ratio <= 1.25, ratio)


def feddecsps_likewise(records: Records, column: str) -> Evidence:
    """S9: FedDecSPS's best scale does not depend on the local steps either, and a cap of 1 is fine.

    True of a seed where the slope as in S7 is from -0.5 to 0.5, and the final loss at cap 1 at most 1.1 times the least
    over the caps; the effect is the slope.
    """
    slope = _slope(records, "feddecsps", column)
    caps = [records.final(CAP, f"FedDecSPS cap {cap}", column) for cap in CAPS]
    return Evidence((np.abs(slope) <= 0.5) & (caps[1] <= 1.1 * np.stack(caps).min(0)), slope)


CLAIMS = (
    Claim(
        "S1",
        "FedAvg is not robust to its stepsize: 0.1 converges well, 0.01 very slowly",
        "figure 2a",
        "final loss at 0.01 at least 1.5 times that at 0.1",
        "loss ratio",
        fedavg_is_sensitive,
    ),
    Claim(
        "S2",
        "FedSPS with cap 1, 5, 10 converges to a neighbourhood, whose size grows with the cap",
        "figure 2a",
        "final losses in the order of the caps, all below half of the loss at the start",
        "loss at 10 over loss at 1",
        neighbourhood_grows,
    ),
    Claim(
        "S3",
        "FedSPS is insensitive to its cap, compared with FedAvg's sensitivity to its stepsize",
        "figure 2a",
        "largest over smallest final loss for caps 1, 5, 10 below FedAvg's ratio for 0.01 and 0.1",
        "FedSPS's ratio",
        less_sensitive_than_fedavg,
    ),
    Claim(
        "S4",
        "if the cap is too small, adaptivity is lost",
        "figure 2b",
        "at cap 0.1 the mean stepsize is the cap in 99 % of the rounds, at cap 10 in less than half",
        "share of rounds at cap 0.1",
        small_cap_loses_adaptivity,
        on_loss=False,
    ),
    Claim(
        "S5",
        "small scales work better, larger ones are slower (0.01 to 40, 5 local steps)",
        "figure 2c",
        "rank correlation of scale and final loss at least 0.7, and the loss at 40 at least 1.5 times the least",
        "rank correlation",
        small_scale_is_better,
    ),
    Claim(
        "S6",
        "scales 0.01, 0.1, 0.5 and 1 converge similarly well",
        "figure 2c",
        "largest over smallest final loss at most 1.25",
        "loss ratio",
        small_scales_are_alike,
    ),
    Claim(
        "S7",
        "the best scale does not grow with the local steps (no square law)",
        "figures 2d, 8",
        "slope of log best scale over log local steps at most 0.5 (the square law has 2)",
        "slope",
        no_square_law,
    ),
    Claim(
        "S8",
        "any scale up to 0.5 works well for 10, 20, 50, 100 local steps",
        "figure 8",
        "their final losses at most 1.25 times the least of all scales, for each number of local steps",
        "worst ratio",
        any_small_scale_works,
    ),
    Claim(
        "S9",
        "for FedDecSPS too the best scale does not depend on the local steps, and cap 1 is fine",
        "section 5",
        "slope as in S7 from -0.5 to 0.5, and the loss at cap 1 at most 1.1 times the least over the caps",
        "slope",
        feddecsps_likewise,
    ),
)
ON_STANDARD: dict[str, Check] = {
    "S2": partial(neighbourhood_grows, panel=STANDARD[0]),
    "S3": partial(less_sensitive_than_fedavg, panel=STANDARD[0]),
    "S5": partial(small_scale_is_better, panel=STANDARD[1]),
    "S6": partial(small_scales_are_alike, panel=STANDARD[1]),
}

PAGE = Page(
    name="sensitivity",
    title="Figures 2 and 8: sensitivity to cap and scale",
    panels=panels,
    draw=draw,
    claims=(
        *CLAIMS,
        *(
            replace(
                claim,
                id=f"{claim.id} standard",
                statement=f"{claim.statement}; on standardised inputs",
                place="our question",
                check=ON_STANDARD[claim.id],
            )
            for claim in CLAIMS
            if claim.id in ON_STANDARD
        ),
    ),
    note=(
        "Pixels are in [0, 1]. The paper does not say how it scales them, which matters to cap and scale, so four "
        "statements are also put to inputs of mean 0 and standard deviation 1. It gives no setting for FedDecSPS's "
        "ablation: that is run like FedSPS's."
    ),
)
