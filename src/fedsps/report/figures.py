"""From runs and reproduced pages to figures: which curves go together, and their points.

Runs that differ in algorithm, parameters and seed alone are one figure, since only these can be compared; a reproduced
page brings its own panels. Trials of searches are no runs to compare: each is a point. Colours and dashes are those of
the figures on paper.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from fedsps.methods.notation import short
from fedsps.methods.registry import CATALOGUE
from fedsps.report import plot
from fedsps.report.collect import Reproduced, Run
from fedsps.report.format import run_title
from fedsps.runs.result import Result, number
from fedsps.runs.space import TUNING_SEED
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
        runs: those of each line, by label, if they were given.
    """

    heading: str
    column: str
    lines: Sequence[Curve]
    runs: Mapping[str, Sequence[Result]] = field(default_factory=dict)

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
                "costs": _costs(list(line.histories.values())),
            }
            for line, (colour, dash) in zip(self.lines, self.styles(), strict=True)
        ]


@dataclass(frozen=True)
class Scatter:
    """The trials of a search, a point each: a parameter across, what came of it upward.

    Attributes:
        heading: what stands above it.
        trials: of one algorithm on one task.
    """

    heading: str
    trials: Sequence[Run]

    @property
    def parameters(self) -> list[str]:
        """The numbers in which the trials differ."""
        asked = [run.result.spec.parameters for run in self.trials]
        names = [name for name, value in asked[0].items() if isinstance(value, float | int)]
        return [name for name in names if len({one.get(name) for one in asked}) > 1]

    @property
    def diverged(self) -> int:
        """How many trials have no final loss."""
        return sum(run.result.diverged_at is not None for run in self.trials)

    def data(self) -> dict[str, Any]:
        """The points as JSON: what was tried, and the final values of what is measured."""
        columns = ("train_loss", "test_loss", "test_accuracy")
        trials = [run.result for run in self.trials if run.result.diverged_at is None]
        up = {column: [number(one.final(column)) for one in trials] for column in columns}
        return {
            "across": {name: [one.spec.parameters[name] for one in trials] for name in self.parameters},
            "up": {column: values for column, values in up.items() if any(value is not None for value in values)},
            "labels": [label(one.spec, [run.result.spec for run in self.trials]) for one in trials],
            "colour": plot.COLOURS.get(self.trials[0].result.spec.algorithm, plot.OTHERS[0]),
        }


def is_trial(run: Run) -> bool:
    """Whether a run is a trial of a search, by the seed that searches have to themselves."""
    return run.result.spec.plan.seed == TUNING_SEED


def of_searches(trials: Sequence[Run]) -> list[Scatter]:
    """One figure for each task and algorithm that was searched."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in trials:
        key = json.dumps(_shared(run), sort_keys=True)
        groups.setdefault((run.result.spec.algorithm, key), []).append(run)
    return [
        Scatter(f"{short(algorithm)}: {run_title(group[0].result)}, {group[0].result.spec.plan.rounds} rounds", group)
        for (algorithm, _), group in groups.items()
    ]


def _costs(histories: Sequence[pd.DataFrame]) -> dict[str, list[float]]:
    """What had been spent by the end of some rounds, as the mean over the seeds; what was not recorded is left out."""
    needs = {
        "gradient_evaluations": ["gradient_evaluations"],
        "bytes": ["bytes_up", "bytes_down"],
        "seconds": ["seconds"],
    }
    known = [cost for cost, columns in needs.items() if all({*columns} <= {*table} for table in histories)]
    if not known or not histories:
        return {}
    spent = {cost: plot.costs(histories, cost) for cost in ("round", *known)}  # type: ignore[arg-type]
    places = thin(len(spent["round"]))
    return {cost: [float(f"{value:.5g}") for value in values.iloc[places]] for cost, values in spent.items()}


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
    alike: dict[str, list[Run]] = {}
    for run in runs:
        alike.setdefault(json.dumps(_shared(run), sort_keys=True), []).append(run)
    groups = [(_shared(group[0]) | start, group) for one in alike.values() for start, group in _by_start(one)]
    settings = [asked for asked, _ in groups]
    titles = [run_title(group[0].result) for _, group in groups]
    figures = []
    for (asked, group), name in zip(groups, titles, strict=True):
        namesakes = [other for other, its in zip(settings, titles, strict=True) if its == name]
        differ = [f"{key} {asked[key]}" for key in asked if any(other.get(key) != asked[key] for other in namesakes)]
        lines, results = _curves(group)
        figures.append(Figure(", ".join([name, *differ]), "train_loss", lines, results))
    return sorted(figures, key=lambda figure: figure.heading)


def _by_start(group: Sequence[Run]) -> list[tuple[dict[str, Any], list[Run]]]:
    """The runs by what training started from, if that tells runs of one algorithm and seed apart.

    Those are of different models, be they of one shape. Where a model was made anew for each seed there are none, and
    the start goes with the seed.
    """
    by_start: dict[str | None, list[Run]] = {}
    starts: dict[str, set[str | None]] = {}
    for run in group:
        start = run.result.data.get("start")
        by_start.setdefault(start, []).append(run)
        starts.setdefault(json.dumps(run.result.spec.json(), sort_keys=True), set()).add(start)
    if all(len(own) == 1 for own in starts.values()):
        return [({}, list(group))]
    return [({"start": start}, runs) for start, runs in by_start.items()]


def _shared(run: Run) -> dict[str, Any]:
    """What runs of one figure have in common, side by side: everything but algorithm, parameters and seed."""
    content, data = run.result.spec.json(), run.result.data
    files = {f"{key} file": digest for key, digest in content["files"].items() if key != "algorithm"}
    task = content["task"] or {key: data.get(key) for key in ("model", "clients", "train_samples", "fingerprint")}
    plan = {key: value for key, value in content["plan"].items() if key != "seed"}
    return {**task, **plan, **content["federation"], **files}


def _curves(group: Sequence[Run]) -> tuple[list[Curve], dict[str, list[Result]]]:
    """The curves of a figure, in the catalogue's order, the user's own algorithms after it; and their runs by label."""
    specs = [run.result.spec for run in group]
    curves: dict[str, list[Run]] = {}
    for run in sorted(group, key=lambda run: run.result.spec.plan.seed):
        curves.setdefault(label(run.result.spec, specs), []).append(run)
    order = list(CATALOGUE)

    def place(curve: Curve) -> tuple[int, str]:
        return order.index(curve.algorithm) if curve.algorithm in order else len(order), curve.label

    lines = sorted((_curve(name, runs[0].result.spec.algorithm, runs) for name, runs in curves.items()), key=place)
    return lines, {line.label: [run.result for run in curves[line.label]] for line in lines}


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
    """The algorithm with what tells it from others of its name, be it a version of its file, which is not imported.

    >>> label(Spec.of("fedsps:cap=10")), label(Spec.of("fedsps"), [Spec.of("fedsps:cap=10")])
    ('fedsps cap=10', 'fedsps cap=1')
    """
    others = list(others)
    alike = [other for other in others if other.algorithm == spec.algorithm]
    if ":" not in spec.algorithm:  # else its file would be imported
        return spec.named.label(*(other.named for other in alike))
    differ = [
        f"{key.rpartition(':')[2]}={value}"
        for key, value in spec.parameters.items()
        if any(other.parameters.get(key) != value for other in alike)
    ]
    code = spec.files.get("algorithm", "")[:8]
    versions = [f"({code})"] if any(other.files.get("algorithm", "")[:8] != code for other in alike) else []
    name = short(spec.algorithm)
    namesakes = any(other.algorithm != spec.algorithm and short(other.algorithm) == name for other in others)
    return " ".join([spec.algorithm if namesakes else name, *differ, *versions])


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
