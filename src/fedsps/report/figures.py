"""From runs and reproduced pages to figures: which curves go together, and their points.

Runs that differ in algorithm, parameters and seed alone are one figure, since only these can be compared; a reproduced
page brings its own panels. Colours and dashes are those of the figures on paper.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from fedsps.methods.registry import CATALOGUE
from fedsps.report import plot
from fedsps.report.collect import Reproduced, Run
from fedsps.report.format import run_title
from fedsps.runs.spec import Spec

POINTS = 500  # of a curve at most, so that the page stays small
COSTS = ("seconds", "exchanges", "gradient_evaluations", "bytes_up", "bytes_down")  # recorded, but not drawn
DASHES = dict(zip(plot.LINES, ("solid", "dash", "dashdot", "dot"), strict=True))


@dataclass(frozen=True)
class Curve:
    """One curve: an algorithm over its seeds.

    Attributes:
        label: what the legend says.
        algorithm: its name, which decides the colour.
        histories: a table for each seed.
        diverged: the round in which a seed diverged; those that did not are not in it.
    """

    label: str
    algorithm: str
    histories: Mapping[str, pd.DataFrame]
    diverged: Mapping[str, int]


@dataclass(frozen=True)
class Figure:
    """One pair of axes of the page; the reader chooses which column it shows.

    Attributes:
        heading: what stands above it.
        column: the one that is shown at first.
        lines: its curves, in the order of the legend.
    """

    heading: str
    column: str
    lines: Sequence[Curve]

    @property
    def columns(self) -> list[str]:
        """What there is to draw: every column of numbers that has any, costs aside."""
        numeric = dict.fromkeys(
            str(column)
            for line in self.lines
            for history in line.histories.values()
            for column, values in history.items()
            if pd.api.types.is_numeric_dtype(values) and np.isfinite(values).any()
        )
        return [column for column in numeric if column not in ("round", "seed", *COSTS)]

    def styles(self) -> list[tuple[str, str]]:
        """Colour and dash of each line, those of the figures on paper."""
        looks = plot.styles({line.label: line.algorithm for line in self.lines})
        return [
            ("#" + "".join(f"{round(255 * part):02x}" for part in colour), DASHES[style]) for colour, style in looks
        ]

    def data(self) -> list[dict[str, Any]]:
        """For each line its points by column, as JSON; what is not finite is null.

        Every column is there, so that the reader's choice needs no file beside the page.
        """
        return [
            {
                "label": line.label,
                "colour": colour,
                "dash": dash,
                "seeds": list(line.histories),
                "diverged": [line.diverged.get(seed) for seed in line.histories],
                "points": {column: _points(list(line.histories.values()), column) for column in self.columns},
            }
            for line, (colour, dash) in zip(self.lines, self.styles(), strict=True)
        ]


def _points(histories: Sequence[pd.DataFrame], column: str) -> dict[str, Any]:
    """The rounds where any seed has a value, and the values of each seed there, in five digits.

    A run that stopped early, or was not evaluated in a round, has null there.
    """
    values = [history.set_index("round")[column] for history in histories if column in history]
    if not values:
        return {"rounds": [], "seeds": []}
    joined = pd.concat(values, axis=1).replace([np.inf, -np.inf], np.nan).dropna(how="all").sort_index()
    joined = joined.iloc[thin(len(joined))]
    rows = [
        [None if np.isnan(value) else float(f"{value:.5g}") for value in joined.iloc[:, n]] for n in range(len(values))
    ]
    return {"rounds": joined.index.tolist(), "seeds": rows}


def thin(size: int, most: int = POINTS) -> list[int]:
    """At most so many places of a curve, evenly spread, the first and the last among them.

    >>> thin(3), thin(1000, most=4)
    ([0, 1, 2], [0, 333, 666, 999])
    """
    return [int(place) for place in np.unique(np.linspace(0, size - 1, min(size, most)).round())]


def of_runs(runs: Sequence[Run]) -> list[Figure]:
    """Runs that share every setting but algorithm, parameters and seed are one figure.

    Where two figures would have the same title, each says the settings in which they differ.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(json.dumps(_shared(run), sort_keys=True), []).append(run)
    settings = [_shared(group[0]) for group in groups.values()]
    titles = [run_title(group[0].result) for group in groups.values()]
    figures = []
    for group, asked, name in zip(groups.values(), settings, titles, strict=True):
        namesakes = [other for other, its in zip(settings, titles, strict=True) if its == name]
        differ = [f"{key} {asked[key]}" for key in asked if any(other.get(key) != asked[key] for other in namesakes)]
        figures.append(Figure(", ".join([name, *differ]), "train_loss", _curves(group)))
    return sorted(figures, key=lambda figure: figure.heading)


def _shared(run: Run) -> dict[str, Any]:
    """What runs of one figure have in common, side by side: everything but algorithm, parameters and seed."""
    content, data = run.result.spec.json(), run.result.data
    files = {f"{key} file": digest for key, digest in content["files"].items() if key != "algorithm"}
    task = content["task"] or {key: data.get(key) for key in ("model", "clients", "train_samples")}
    plan = {key: value for key, value in content["plan"].items() if key != "seed"}
    return {**task, **plan, **content["federation"], **files}


def _curves(group: Sequence[Run]) -> list[Curve]:
    """The curves of a figure: in the catalogue's order, the user's own algorithms after it."""
    specs = [run.result.spec for run in group]
    curves: dict[str, list[Run]] = {}
    for run in sorted(group, key=lambda run: run.result.spec.plan.seed):
        curves.setdefault(label(run.result.spec, specs), []).append(run)
    order = list(CATALOGUE)

    def place(curve: Curve) -> tuple[int, str]:
        return order.index(curve.algorithm) if curve.algorithm in order else len(order), curve.label

    return sorted((_curve(name, runs[0].result.spec.algorithm, runs) for name, runs in curves.items()), key=place)


def _curve(name: str, algorithm: str, runs: Sequence[Run]) -> Curve:
    """Runs with the same seed, saved from Python into several folders, go by their folders."""
    seeds = [str(run.result.spec.plan.seed) for run in runs]
    names = [
        seed if seeds.count(seed) == 1 else f"{seed} ({run.folder})" for seed, run in zip(seeds, runs, strict=True)
    ]
    results = {seed: run.result for seed, run in zip(names, runs, strict=True)}
    histories = {seed: result.history for seed, result in results.items()}
    ends = {seed: result.diverged_at for seed, result in results.items() if result.diverged_at}
    return Curve(name, algorithm, histories, ends)


def label(spec: Spec, others: Iterable[Spec] = ()) -> str:
    """The algorithm with what tells it from others of its name. A user's own file is not imported for it.

    >>> label(Spec.of("fedsps:cap=10")), label(Spec.of("fedsps"), [Spec.of("fedsps:cap=10")])
    ('fedsps cap=10', 'fedsps cap=1')
    """
    alike = [other for other in others if other.algorithm == spec.algorithm]
    if ":" not in spec.algorithm:
        return spec.named.label(*(other.named for other in alike))
    differ = [
        f"{key}={value}"
        for key, value in spec.parameters.items()
        if any(other.parameters.get(key) != value for other in alike)
    ]
    return " ".join([spec.algorithm, *differ])


def of_page(page: Reproduced, runs: Sequence[Run]) -> list[Figure]:
    """The panels of a page, drawn from its table, or from the runs if it has none.

    A page whose table holds no curves, such as that of the searches, has no figures here: its tables are shown.
    """
    if page.table is None:
        by_digest = {run.folder.name: run for run in runs}
        return [_panel_of_runs(panel, by_digest) for panel in page.found["panels"]]
    if not {"panel", "line", "round"} <= set(page.table.columns):
        return []  # the table of a page without curves
    panels = {str(name): {"heading": str(name), "column": "", "lines": []} for name in page.table["panel"].unique()}
    panels |= {panel["name"]: panel for panel in page.found["panels"]}
    return [_panel_of_table(panel, page.table[page.table["panel"] == name]) for name, panel in panels.items()]


def _panel_of_table(panel: dict[str, Any], rows: pd.DataFrame) -> Figure:
    """A panel from the rows of a table; lines that PAGE.json does not know are drawn by their names."""
    lines: dict[str, Any] = {str(name): {"algorithm": str(name), "diverged": {}} for name in rows["line"].unique()}
    lines |= {line["label"]: line for line in panel["lines"]}
    drawn = []
    for name, line in lines.items():
        points = rows[rows["line"] == name]
        histories = (
            {str(seed): points[points["seed"] == seed] for seed in points["seed"].unique()}
            if "seed" in points
            else {"": points}
        )
        drawn.append(Curve(name, line["algorithm"], histories, line["diverged"]))
    return Figure(panel["heading"], panel["column"], drawn)


def _panel_of_runs(panel: dict[str, Any], runs: dict[str, Run]) -> Figure:
    """A panel from run folders; runs that were not given are left out of their lines."""
    lines = [
        _curve(line["label"], line["algorithm"], [runs[digest] for digest in line["runs"] if digest in runs])
        for line in panel["lines"]
    ]
    return Figure(panel["heading"], panel["column"], lines)
