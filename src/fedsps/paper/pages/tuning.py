"""Table 1: what the searches of the other pages found, and what they cost until they equal untuned FedSPS.

The page trains nothing but FedSPS on the searches' own seed: its records are the points of searches that convex, libsvm
and lenet need anyway. G1 asks whether the paper's best points are as good as ours, G2 how many runs a search takes
before it equals untuned FedSPS.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedsps.errors import FailedRunsError, Failure
from fedsps.methods.notation import parse
from fedsps.paper.evidence import Evidence
from fedsps.paper.execute import cost, noting, search_settings, searched, winner_of
from fedsps.paper.page import Check, Claim, Job, Page, Panel, Records, Scale, Tuned
from fedsps.paper.pages import convex, lenet, libsvm
from fedsps.paper.settings import KINDS, TABLE_1
from fedsps.report import plot
from fedsps.runs.parallel import run_all
from fedsps.runs.space import PAPER_GRID
from fedsps.runs.spec import Spec
from fedsps.runs.tuning import score

GRID, WINNERS, PRICE = "tuning-grid", "tuning", "tuning-price"
POOLED = "LIBSVM pooled"
ALGORITHMS = {"fedavg": "FedAvg", "fedams": "FedAMS", "fedadam": "FedAdam", "mime": "MIME"}
COMPARED = ("FedAvg", "FedAMS")  # those that table 1 and the text speak of
AS_GOOD = 1.05  # times FedSPS's loss, or the best one's
MANY = 5  # runs, as many as the grid has client stepsizes


def panels(scale: Scale) -> list[Panel]:
    """The settings of the pages convex, libsvm and lenet with FedSPS and everything that is searched for there."""
    mnist = {panel.name: panel for panel in convex.panels(scale)}
    logistic = {panel.name: panel for panel in libsvm.panels(scale)}
    networks = {panel.name: panel for panel in lenet.panels(scale)}
    sources = {"MNIST i.i.d.": mnist["a"], "MNIST two classes": mnist["c"], "LIBSVM w8a": mnist["b"]}
    sources |= {f"LIBSVM {name}": logistic[name] for name in libsvm.DATA}
    sources |= {f"LeNet {words}": networks[kind] for kind, words in KINDS}
    return [
        Panel(name, name, source.settings, [line for line in source.lines if _is_wanted(line.label)])
        for name, source in sources.items()
    ]


def _is_wanted(label: str) -> bool:
    """FedSPS, and every line that is the winner of a search; not the worst points."""
    return label == "FedSPS" or label.endswith(" tuned")


def compute(panels: Sequence[Panel], job: Job) -> Records:
    """Every point of every search, with the loss of untuned FedSPS on the same setting and seed.

    Args:
        panels: as `panels` gives them, FedSPS's line in each.
        job: the folder where the searches lie, or are made; pages share them.
    """
    specs = [
        Spec.of(parse(line.algorithm)[0], **search_settings(panel, line, job.scale))
        for panel in panels
        for line in panel.lines
        if isinstance(line.algorithm, str)
    ]
    untuned = run_all(specs, job.runs, jobs=job.jobs)
    searches, parts = [], []
    failures: list[Failure] = []
    for panel, fedsps in zip(panels, untuned, strict=True):
        for line in panel.lines:
            if isinstance(line.algorithm, Tuned):
                with noting(failures):
                    searches.append(searched(panel, line, line.algorithm, job))
                if failures:
                    continue
                name = ALGORITHMS[line.algorithm.algorithm]
                table = searches[-1].table.drop(columns=["digest", "seconds"])
                parts.append(table.assign(setting=panel.name, algorithm=name, fedsps=score(fedsps)))
    if failures:
        raise FailedRunsError(failures)
    grid = pd.concat(parts, ignore_index=True)
    grid = grid[["setting", "algorithm", *grid.columns.drop(["setting", "algorithm"])]]
    return replace(records(grid), cost=cost(untuned, [winner_of(search, "best") for search in searches]))


def records(grid: pd.DataFrame) -> Records:
    """What there is to say about the points of all searches: winners, prices, and the points themselves."""
    return Records({}, tables={WINNERS: winners(grid), PRICE: prices(grid), GRID: grid})


def final(points: pd.DataFrame) -> pd.Series:
    """The points' losses; infinite for those that diverged or were dropped early.

    >>> final(pd.DataFrame({"score": [0.5, 0.4, np.nan], "dropped": [False, True, False]})).tolist()
    [0.5, inf, inf]
    """
    return points["score"].where(~points["dropped"] & points["score"].notna(), np.inf)


def pooled(grid: pd.DataFrame) -> pd.DataFrame:
    """The LIBSVM sets as one: a point's score is the geometric mean of its loss over the best loss on each set.

    Losses below `libsvm.FLOOR` count as that, as on the page libsvm: ratios of what is next to 0 say nothing.
    """
    points = grid[grid["setting"].str.startswith("LIBSVM")]
    points = points.assign(loss=final(points).clip(lower=libsvm.FLOOR))
    points = points.assign(relative=points["loss"] / points.groupby(["setting", "algorithm"])["loss"].transform("min"))
    names = [name for name in PAPER_GRID if name in points]
    # only algorithms that were searched on every set, and a point's eps may be missing
    sets = points.groupby("algorithm")["setting"].transform("nunique")
    points = points[sets == points["setting"].nunique()]
    means = points.groupby(["algorithm", *names], dropna=False, sort=False)["relative"].agg(
        lambda ratios: np.exp(np.log(ratios).mean())
    )
    return means.rename("score").reset_index().assign(setting=POOLED, dropped=False, diverged=False)


def winners(grid: pd.DataFrame) -> pd.DataFrame:
    """The best point of each search next to the paper's; the last column is the loss there over the best one.

    It is infinite where the search dropped the paper's point, and empty for algorithms that the paper's table is not
    about.
    """
    rows = []
    whole = pd.concat([grid, pooled(grid)], ignore_index=True)
    for (setting, algorithm), points in whole.groupby(["setting", "algorithm"], sort=False):
        names = [name for name in PAPER_GRID if name in points and points[name].notna().all()]
        theirs = [TABLE_1[str(setting).split()[0]][name] for name in names]
        losses = final(points).to_numpy(float)
        there = losses[(points[names] == theirs).all(axis=1)]
        is_compared = algorithm in COMPARED
        rows.append(
            {
                "setting": setting,
                "algorithm": algorithm,
                "best": _point(points[names].iloc[int(losses.argmin())]),
                "paper's": _point(theirs) if is_compared else "",
                "loss ratio": there[0] / losses.min() if is_compared and len(there) else np.nan,
            }
        )
    return pd.DataFrame(rows)


def _point(values: Any) -> str:
    """A point as the table shows it: its values in the order of the grid."""
    return ", ".join(f"{value:g}" for value in values)


def prices(grid: pd.DataFrame) -> pd.DataFrame:
    """How many points are as good as untuned FedSPS, and the runs of a random search until the first of them.

    Of N points in random order, K of them good, the first good one comes after (N + 1) / (K + 1) runs on average. With
    none this is N + 1: all of them, in vain. A point is good if its loss is at most `AS_GOOD` times FedSPS's.

    >>> point = {"setting": "MNIST", "algorithm": "FedAvg", "dropped": False, "diverged": False, "fedsps": 0.5}
    >>> grid = pd.DataFrame([point | {"score": score} for score in (0.4, 0.6, 0.7)])
    >>> prices(grid)[["points", "as good", "expected runs"]].values.tolist()
    [[3.0, 1.0, 2.0]]
    """
    rows = []
    for (setting, algorithm), points in grid.groupby(["setting", "algorithm"], sort=False):
        losses, fedsps = final(points), points["fedsps"].iloc[0]
        good = int((losses <= AS_GOOD * fedsps).sum())
        rows.append(
            {
                "setting": setting,
                "algorithm": algorithm,
                "FedSPS": fedsps,
                "best": losses.min(),
                "points": len(points),
                "diverged": int(points["diverged"].sum()),
                "dropped": int(points["dropped"].sum()),
                "as good": good,
                "expected runs": (len(points) + 1) / (good + 1),
            }
        )
    return pd.DataFrame(rows)


def draw(records: Records, panels: Sequence[Panel], folder: Path) -> list[Path]:
    """On each setting the share of the grid that ends below each multiple of FedSPS's loss.

    A curve that is low at 1 says that few points are as good as FedSPS; one that ends below 1, that some diverged.
    """
    grid = records.tables[GRID]
    series: dict[str, dict[str, Any]] = {}
    for (setting, algorithm), points in grid.groupby(["setting", "algorithm"], sort=False):
        ratios = (final(points) / points["fedsps"]).to_numpy(float)
        series.setdefault(str(setting), {})[str(algorithm)] = ratios
    looks = {name: key for key, name in ALGORITHMS.items()}
    place = folder / "tuning.png"
    plot.shares(series, looks, "final loss / FedSPS's", "FedSPS, untuned", [place, place.with_suffix(".pdf")])
    return [place]


def table_1_is_right(algorithm: str, *settings: str) -> Check:
    """G1: the paper's best point is among the best of our grid.

    The effect is the loss at the paper's point over the least of the grid, one number for each search.

    Args:
        algorithm: which one was searched for.
        *settings: whose searches the claim is about.
    """

    def check(records: Records, column: str) -> Evidence:
        table = records.tables[WINNERS]
        ratios = table[table["setting"].isin(settings) & (table["algorithm"] == algorithm)]["loss ratio"]
        return Evidence(ratios.to_numpy(float), high=AS_GOOD, kind="exact")

    return check


def tuning_is_extensive(algorithm: str) -> Check:
    """G2: FedAvg and FedAMS need extensive tuning, FedSPS minimal.

    The effect is how many runs a random order of the grid is expected to take until it is as good as untuned FedSPS,
    among the searches that drop nothing early.
    """

    def check(records: Records, column: str) -> Evidence:
        table = records.tables[PRICE]
        whole = (table["algorithm"] == algorithm) & (table["dropped"] == 0)  # the dropped might have become as good
        return Evidence(table[whole]["expected runs"].to_numpy(float), low=MANY, kind="exact")

    return check


def _best_point(family: str, words: str, *settings: str, floor: str = "", why: str = "") -> Claim:
    """G1 for one row of the paper's table: its family, in words, and the settings that belong to it."""
    point = _point(TABLE_1[family].values())
    return Claim(
        f"G1 {family}",
        f"the best client stepsize, server stepsize and eps of FedAvg and FedAMS are {point} {words}",
        "table 1",
        f"the loss there at most {AS_GOOD} times the least of the grid, in every search{floor}",
        "loss ratio",
        {algorithm: table_1_is_right(algorithm, *settings) for algorithm in COMPARED},
        on_loss=False,
        over="search",
        why=why,
    )


PAGE = Page(
    name="tuning",
    title="Table 1: the grid search and its price",
    panels=panels,
    draw=draw,
    claims=(
        _best_point("LIBSVM", "for LIBSVM", POOLED, floor=f"; losses below {libsvm.FLOOR} count as that on each set"),
        _best_point(
            "MNIST",
            "for MNIST, logistic regression",
            "MNIST i.i.d.",
            "MNIST two classes",
            why=(
                "i.i.d. FedAvg's stepsize of 1 ends lower by more than that; FedAMS is unstable at its point with two "
                "classes a client; the paper does not say on what data it chose"
            ),
        ),
        _best_point(
            "LeNet",
            "for MNIST, LeNet",
            "LeNet i.i.d.",
            "LeNet two classes",
            why="at its point FedAMS is still near ln 10 after 50 rounds, where the search drops it",
        ),
        Claim(
            "G2",
            "FedAvg and FedAMS need extensive tuning, FedSPS minimal",
            "section 5, remark 2",
            f"a random search over the grid expects {MANY} runs or more until the loss is at most {AS_GOOD} times that "
            "of untuned FedSPS, in every search that drops nothing early",
            "expected runs",
            {algorithm: tuning_is_extensive(algorithm) for algorithm in COMPARED},
            on_loss=False,
            over="search",
            why="FedAMS has many settings that are as good as FedSPS, so a random search finds one soon",
        ),
    ),
    note=(
        "The searches are those of the pages convex, libsvm and lenet: final train loss on one seed that no figure "
        "shows. FedSPS runs on the same seed, untuned, as those pages have it. LIBSVM is pooled by the geometric "
        "mean, over the data sets, of a point's loss over the least loss there. Of N points in random order, K as "
        "good as FedSPS, the first good one comes after (N + 1) / (K + 1) runs on average; where K is 0 it never "
        "comes, and N + 1 is shown. Points that diverged count as not as good; so do those that the LeNet searches "
        "dropped early, which makes their numbers of runs upper bounds. The paper's table is for FedAvg and FedAMS; "
        "the loss ratio is infinite where the search dropped the paper's point. The figure shows the share of the "
        "grid that ends at or below a multiple of FedSPS's loss. The verdicts are about these "
        "searches, all of them."
    ),
    seeds=1,
    is_seeded=False,
    compute=compute,
    shown=(WINNERS, PRICE),
)
