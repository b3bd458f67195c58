"""Figures 2 and 8: how sensitive FedSPS is to its cap and its scale, and the same of FedDecSPS.

S1 to S4 are about the cap, beside FedAvg's stepsize, S5 and S6 about the scale, S7 and S8 about how the best scale
depends on the number of local steps, S9 about FedDecSPS. The paper does not say how it scales its inputs, which decides
how large gradients are, and so what a cap or a scale does: S2, S3, S5 and S6 are also put to standardised inputs.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from fedsps.paper.claims import at_least, ratio
from fedsps.paper.evidence import Evidence, Numbers
from fedsps.paper.figures import curves, pick
from fedsps.paper.page import OUR_QUESTION, Check, Claim, Line, Page, Panel, Records, Scale, evenly
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

    The panels by scale are named by method and local steps, "fedsps 5" or "feddecsps 100". There is an evaluation in
    10 rounds, as they take most of the time of these 1010 runs.
    """
    setting = common(scale, data="mnist", evaluate_every=1 if scale == "smoke" else 10)
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
    ratio: Numbers = np.max(values, axis=0) / np.min(values, axis=0)
    return ratio


def converges(panel: str, cap: int) -> Check:
    """S2: FedSPS with this cap converges to a neighbourhood.

    The effect is the final loss over that at the start, log 10 (ten classes, equally likely there), at most a half.
    """
    return lambda records, column: Evidence(records.final(panel, f"FedSPS cap {cap}", column) / np.log(10), high=0.5)


def grows_in_proportion(panel: str) -> Check:
    """S2: the neighbourhood is proportional to the cap: `loss = f* + k cap`, whatever f* is.

    The effect is (loss at 10 - loss at 1) / (loss at 5 - loss at 1), which is then 9/4.
    """

    def check(records: Records, column: str) -> Evidence:
        at_1, at_5, at_10 = (records.final(panel, f"FedSPS cap {cap}", column) for cap in (1, 5, 10))
        return Evidence((at_10 - at_1) / (at_5 - at_1), low=2.0, high=2.5, kind="difference")

    return check


def less_sensitive_than_fedavg(panel: str) -> Check:
    """S3: FedSPS is insensitive to its cap, compared with FedAvg and its stepsize.

    The effect is the largest over the smallest final loss for caps 1, 5 and 10, over FedAvg's ratio in S1.
    """

    def check(records: Records, column: str) -> Evidence:
        spread = _spread([records.final(panel, f"FedSPS cap {cap}", column) for cap in (1, 5, 10)])
        return Evidence(spread / ratio(records, panel, "FedAvg 0.01", "FedAvg 0.1", column), high=1)

    return check


def bound_share(cap: float, low: float = -np.inf, high: float = np.inf) -> Check:
    """S4: in what share of the rounds the mean stepsize is the cap, up to 0.1 %: all if the cap is too small."""

    def share(table: pd.DataFrame) -> float:
        return float((evenly(table)["stepsize_mean"] >= 0.999 * cap).mean())

    return lambda records, column: Evidence(
        records.each("stepsize", f"FedSPS cap {cap}", share), low, high, kind="difference"
    )


def small_scale_is_better(panel: str) -> Check:
    """S5: small scales work better and larger ones are slower, from 0.01 to 40.

    The effect is Spearman's rank correlation of scale and final loss, NaN where a run diverged.
    """

    def check(records: Records, column: str) -> Evidence:
        finals = np.stack(list(losses(records, panel, column).values()))
        order = np.argsort(np.argsort(finals, axis=0), axis=0)
        ranks = np.arange(len(finals))[:, None]
        centred = (order - order.mean(0)) * (ranks - ranks.mean(0))
        rho = centred.sum(0) / ((ranks - ranks.mean(0)) ** 2).sum(0)
        rho = np.where(np.isfinite(finals).all(0), rho, np.nan)  # diverged runs have no order
        return Evidence(rho, low=0.7, kind="difference")

    return check


def largest_scale_is_slow(panel: str) -> Check:
    """S5: the loss at the largest scale over the least of all, at least 1.5."""

    def check(records: Records, column: str) -> Evidence:
        by_scale = losses(records, panel, column)
        return Evidence(by_scale[max(by_scale)] / np.min(list(by_scale.values()), axis=0), low=1.5)

    return check


def small_scales_are_alike(panel: str) -> Check:
    """S6: the scales 0.01, 0.1, 0.5 and 1 converge similarly well; largest over smallest loss at most 1.25."""

    def check(records: Records, column: str) -> Evidence:
        by_scale = losses(records, panel, column)
        return Evidence(_spread([values for scale, values in by_scale.items() if scale <= 1]), high=1.25)

    return check


def slope(method: str, low: float, high: float) -> Check:
    """S7, S9: the slope of log best scale over log local steps.

    NaN where all scales diverged somewhere, or where the best one is the grid's least or largest: the grid decides.
    It is 0 if the best scale does not depend on the local steps, and 2 under a square law. From 5 to 100 local steps a
    slope of 0.25 is a factor of 2, the least that neighbours on the grid of scales are apart.
    """

    def check(records: Records, column: str) -> Evidence:
        steps = taus(records, method)
        best = np.stack([best_scales(records, method, tau, column) for tau in steps])
        edges = [(min(scales), max(scales)) for scales in (losses(records, f"{method} {tau}") for tau in steps)]
        best = np.where([np.isin(one, ends) for one, ends in zip(best, edges, strict=True)], np.nan, best)
        slopes = [np.polyfit(np.log(steps), np.log(one), 1)[0] if np.isfinite(one).all() else np.nan for one in best.T]
        return Evidence(np.array(slopes), low, high, kind="difference")

    return check


def any_small_scale_works(tau: int) -> Check:
    """S8: any scale up to 0.5 works well for this number of local steps too.

    The effect is the largest final loss of these scales over the least of all.
    """

    def check(records: Records, column: str) -> Evidence:
        by_scale = losses(records, f"fedsps {tau}", column)
        small = np.max([values for scale, values in by_scale.items() if scale <= 0.5], axis=0)
        return Evidence(small / np.min(list(by_scale.values()), axis=0), high=1.25)

    return check


def cap_1_is_fine(records: Records, column: str) -> Evidence:
    """S9: FedDecSPS's final loss at cap 1 over the least over the caps, at most 1.1."""
    caps = [records.final(CAP, f"FedDecSPS cap {cap}", column) for cap in CAPS]
    return Evidence(caps[1] / np.min(caps, axis=0), high=1.1)


def _on_inputs(cap: str, scale: str) -> tuple[Claim, ...]:
    """The claims that are judged on pixels in [0, 1] and, as our own question, on standardised inputs.

    Args:
        cap: the panel of the caps.
        scale: the panel of the scales.
    """
    return (
        Claim(
            "S2",
            "FedSPS with cap 1, 5, 10 converges to a neighbourhood",
            "figure 2a",
            "final loss at most half of that at the start",
            "final loss over log 10",
            {f"cap {value}": converges(cap, value) for value in (1, 5, 10)},
        ),
        Claim(
            "S2 grows",
            "whose size grows with the cap",
            "figure 2a",
            "final loss at cap 10 above that at cap 1",
            "loss ratio",
            at_least(cap, "FedSPS cap 10", 1.0, "FedSPS cap 1"),
        ),
        Claim(
            "S2 proportional",
            "whose size is proportional to the cap",
            "figure 2a",
            "(loss at cap 10 - loss at cap 1) / (loss at 5 - loss at 1) from 2 to 2.5; 9/4 if f* + k cap",
            "ratio of differences",
            grows_in_proportion(cap),
            why="already at a cap of 5 the Polyak ratio, and not the cap, is what bounds most steps",
        ),
        Claim(
            "S3",
            "FedSPS is insensitive to its cap, compared with FedAvg's sensitivity to its stepsize",
            "figure 2a",
            "largest over smallest final loss for caps 1, 5, 10 at most FedAvg's ratio for 0.01 and 0.1",
            "FedSPS's ratio over FedAvg's",
            less_sensitive_than_fedavg(cap),
        ),
        Claim(
            "S5",
            "small scales work better, larger ones are slower (0.01 to 40, 5 local steps)",
            "figure 2c",
            "rank correlation of scale and final loss at least 0.7",
            "rank correlation",
            small_scale_is_better(scale),
            why="the best scale is about 1: losses fall and then rise with the scale",
        ),
        Claim(
            "S5 large",
            "the largest scale is much slower than the best",
            "figure 2c",
            "final loss at scale 40 at least 1.5 times the least",
            "loss ratio",
            largest_scale_is_slow(scale),
            why="it is slower, by about the margin: after 500 rounds all scales have come far",
        ),
        Claim(
            "S6",
            "scales 0.01, 0.1, 0.5 and 1 converge similarly well",
            "figure 2c",
            "largest over smallest final loss at most 1.25",
            "loss ratio",
            small_scales_are_alike(scale),
        ),
    )


CLAIMS = (
    Claim(
        "S1",
        "FedAvg is not robust to its stepsize: 0.1 converges well, 0.01 very slowly",
        "figure 2a",
        "final loss at 0.01 at least 1.5 times that at 0.1",
        "loss ratio",
        at_least("cap", "FedAvg 0.01", 1.5, "FedAvg 0.1"),
        why="it is slower, by about the margin: after 500 rounds 0.01 has come far too",
    ),
    *_on_inputs("cap", "fedsps 5"),
    Claim(
        "S4",
        "if the cap is too small, adaptivity is lost",
        "figure 2b",
        "the mean stepsize is the cap in at least 99 % of the rounds at cap 0.1, in at most half at cap 10",
        "share of rounds",
        {"cap 0.1": bound_share(0.1, low=0.99), "cap 10": bound_share(10, high=0.5)},
        on_loss=False,
    ),
    Claim(
        "S7",
        "the best scale does not depend on the local steps",
        "figures 2d, 8",
        "slope of log best scale over log local steps from -0.25 to 0.25, the best ones being inside the grid",
        "slope",
        slope("fedsps", -0.25, 0.25),
        why="on the objective it does not; on their own batches clients that take more steps do best with shorter ones",
    ),
    Claim(
        "S7 square",
        "it does not follow the square law of the theory",
        "figures 2d, 8",
        "slope at most 1, nearer to 0 than to the square law's 2",
        "slope",
        slope("fedsps", -np.inf, 1.0),
    ),
    Claim(
        "S8",
        "any scale up to 0.5 works well for 10, 20, 50, 100 local steps",
        "figure 8",
        "the largest of their final losses at most 1.25 times the least of all scales",
        "loss ratio",
        {f"{tau} local steps": any_small_scale_works(tau) for tau in LOCAL_STEPS if tau > 5},
        why="scale 1 is best or next to it for all of them; smaller ones end higher, on the clients' own batches most",
    ),
    Claim(
        "S9",
        "for FedDecSPS too the best scale does not depend on the local steps",
        "section 5",
        "slope as in S7 from -0.25 to 0.25",
        "slope",
        slope("feddecsps", -0.25, 0.25),
        why="the best one is the grid's least, 0.01, for all of them: so small a scale leaves all to the cap of 1",
    ),
    Claim(
        "S9 cap",
        "for FedDecSPS a cap of 1 is fine",
        "section 5",
        "final loss at cap 1 at most 1.1 times the least over the caps",
        "loss ratio",
        cap_1_is_fine,
    ),
    *(
        replace(
            claim,
            id=f"{claim.id} standard",
            statement=f"{claim.statement}; on standardised inputs",
            place=OUR_QUESTION,
        )
        for claim in _on_inputs(*STANDARD)
    ),
)

PAGE = Page(
    name="sensitivity",
    title="Figures 2 and 8: sensitivity to cap and scale",
    panels=panels,
    draw=draw,
    claims=CLAIMS,
    note=(
        "Pixels are in [0, 1]. The paper does not say how it scales them, which matters to cap and scale, so four "
        "statements are also put to inputs of mean 0 and standard deviation 1. It gives no setting for FedDecSPS's "
        "ablation: that is run like FedSPS's."
    ),
)
