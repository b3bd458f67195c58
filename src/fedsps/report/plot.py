"""Figures on paper: the only file that draws with matplotlib (the extra `plot`).

Every curve is the mean over seeds, its band goes from the least to the largest. An algorithm has one colour in all
figures, and the files carry no date, so that a figure kept in a repository changes with its numbers.
"""

import importlib.util
import itertools
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from fedsps.checks import choice, positive
from fedsps.engine.history import TITLES
from fedsps.errors import ConfigurationError
from fedsps.methods.registry import CATALOGUE

# One colour an algorithm throughout; variants of one algorithm differ in shade and line style. Readers with any colour
# vision can tell the first ones apart: they are Okabe and Ito's.
COLOURS = {name: kind.colour for name, kind in CATALOGUE.items() if kind.colour}
OTHERS = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#0072B2", "#D55E00", "#000000")  # theirs too, for own methods
LINES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LEGEND: dict[str, Any] = {"fontsize": 7, "framealpha": 0.8, "edgecolor": "none"}  # readable over curves
Colour = tuple[float, float, float]
Across = Literal["round", "gradient_evaluations", "bytes", "seconds"]
ACROSS = {"round": "round", "gradient_evaluations": "gradient evaluations", "bytes": "bytes sent", "seconds": "seconds"}
# Type 3 fonts, matplotlib's usual choice, are refused by many journals
FONTS: dict[Any, Any] = {"pdf.fonttype": 42, "ps.fonttype": 42}


@dataclass(frozen=True)
class Curves:
    """One pair of axes: a column of the histories of each line, over the seeds, against rounds.

    Attributes:
        heading: what stands above the axes.
        column: which column of the histories is drawn.
        histories: by label, one table for each seed.
        algorithms: by label, the name of the algorithm, which decides the colour.
        logarithmic: whether the upward axis is.
        across: what the other axis is called.
        cost: what it counts: rounds, or a cost summed up over them.
    """

    heading: str
    column: str
    histories: Mapping[str, Sequence[pd.DataFrame]]
    algorithms: Mapping[str, str]
    logarithmic: bool = True
    across: str = "round"
    cost: Across = "round"


def comparison(
    histories: Mapping[str, Sequence[pd.DataFrame]],
    algorithms: Mapping[str, str],
    title: str,
    path: Path | None = None,
    across: Across = "round",
    size: tuple[float, float] | None = None,
) -> Any:
    """Loss, test accuracy if there is any, and stepsize, with one legend; written if there is a path.

    Args:
        histories: by label, one table for each seed.
        algorithms: by label, the name of the algorithm, which decides the colour.
        title: of the whole figure.
        path: where it is written too; its ending decides the format.
        across: what the axis across counts.
        size: of the figure, in inches.

    Raises:
        ConfigurationError: if matplotlib is not installed, or the axis or the size cannot be.
    """
    choice("across", across, ACROSS)
    if size is not None:
        for name, inches in zip(("width", "height"), size, strict=True):
            positive(f"the {name} of the figure", inches)
    name = ACROSS[across]
    panels = [
        Curves("training loss", "train_loss", histories, algorithms, across=name, cost=across),
        Curves("test accuracy", "test_accuracy", histories, algorithms, False, across=name, cost=across),
        Curves("mean stepsize", "stepsize_mean", histories, algorithms, across=name, cost=across),
    ]
    tables = [table for seeds in histories.values() for table in seeds]
    known = [panel for panel in panels if any(table[panel.column].notna().any() for table in tables)]
    columns = 4 if size is None else max(1, int(size[0] // 2))  # panels narrower than two inches write over another
    figure = drawn(known or panels[:1], title, columns)
    if size is not None:
        figure.set_size_inches(size)
    _fit(figure, title)
    if path is not None:
        write(figure, [path])
    return figure


def draw(
    panels: Sequence[Curves],
    paths: Sequence[Path],
    title: str = "",
    columns: int = 4,
    bands: Mapping[str, str] | None = None,
) -> None:
    """Write axes side by side; see `drawn`."""
    write(drawn(panels, title, columns, bands), paths)


def drawn(panels: Sequence[Curves], title: str = "", columns: int = 4, bands: Mapping[str, str] | None = None) -> Any:
    """Axes side by side: mean over seeds, band from the least to the largest; one legend if it is true of all.

    It is, where no label has two meanings and every panel shares at least half of its lines with the one that has most;
    a line then looks the same everywhere.

    Args:
        panels: one pair of axes each.
        title: of the whole figure.
        columns: how many axes a row has at most.
        bands: for some columns another one that holds their deviation: the band is then the mean of that.
    """
    names = [{label: panel.algorithms[label] for label in panel.histories} for panel in panels]
    every = {label: name for some in sorted(names, key=len, reverse=True) for label, name in some.items()}
    fullest = max(names, key=len)
    shared = all(some.items() <= every.items() and 2 * len(some.keys() & fullest.keys()) >= len(some) for some in names)
    one_legend = len(panels) > 1 and shared
    rows = -(-len(every) // 4)
    figure, axes = _side_by_side(len(panels), columns, beneath=0.3 + 0.15 * max(2, rows) if one_legend else 0.0)
    for axis, panel, some in zip(axes, panels, names, strict=True):
        _curves(axis, panel, (bands or {}).get(panel.column), every if one_legend else some)
        if not one_legend:
            axis.legend(**LEGEND)
    if one_legend:
        _legend_beneath(figure, columns=4, fontsize=9)
    if title:
        figure.suptitle(title, fontsize=11)
    return figure


def _legend_beneath(figure: Any, columns: int, fontsize: float) -> Any:
    """The one legend of all axes, in at most so many columns."""
    found = sorted((axis.get_legend_handles_labels() for axis in figure.axes), key=lambda one: -len(one[1]))
    lines = {label: handle for handles, labels in found for handle, label in zip(handles, labels, strict=True)}
    place: dict[str, Any] = {"loc": "outside lower center", "frameon": False}
    return figure.legend(lines.values(), lines.keys(), ncols=min(columns, len(lines)), fontsize=fontsize, **place)


def _fit(figure: Any, title: str) -> None:
    """Make the legend beneath and the title as narrow as the figure: of a width for a paper both would be cut off.

    First the legend gets fewer columns and the letters get smaller, then the title is broken into lines.
    """
    width = 0.98 * figure.get_size_inches()[0] * figure.dpi

    def fits(part: Any) -> bool:
        return bool(part.get_window_extent().width <= width)

    if figure.legends and not fits(figure.legends[0]):
        for columns, fontsize in ((4, 7), (3, 7), (2, 7), (1, 7), (1, 5)):
            figure.legends[0].remove()
            if fits(_legend_beneath(figure, columns, fontsize)):
                break
    for fontsize, letters in ((11, len(title)), (9, len(title)), *((8, width) for width in range(len(title), 10, -5))):
        if not title or fits(figure.suptitle(textwrap.fill(title, max(letters, 1)), fontsize=fontsize)):
            break


def _side_by_side(count: int, columns: int, beneath: float = 0.0) -> tuple[Any, list[Any]]:
    """A figure with so many axes, in rows of at most so many, and room beneath them in inches."""
    columns = min(columns, count)
    rows = -(-count // columns)
    size = (4.15 * columns, 3.4 * rows + beneath)
    figure, grid = _axes(rows, columns, size)
    axes = list(grid.flat)
    for axis in axes[count:]:
        axis.remove()
    return figure, axes[:count]


def dress(axis: Any, heading: str, across: str, up: str) -> None:
    """What all axes have: heading, names of both axes, a faint grid, and no frame above and to the right."""
    axis.set_title(heading, fontsize=10)
    axis.set_xlabel(across)
    axis.set_ylabel(up)
    axis.grid(True, which="major", alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)


def write(figure: Any, paths: Sequence[Path]) -> None:
    """Write a figure in every format that the paths' endings name, and make the folders that it needs.

    A PDF gets no date, so that the same figure is the same file.
    """
    import matplotlib

    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        undated = {"CreationDate": None} if path.suffix.lower() == ".pdf" else {}  # equal figures are equal files
        with matplotlib.rc_context(FONTS):
            figure.savefig(path, dpi=150, metadata=undated)


def _curves(axis: Any, panel: Curves, deviation: str | None, names: Mapping[str, str]) -> None:
    """Draw a panel. Earlier lines are wider, so that of curves that coincide both are seen.

    Axes of accuracies begin below the least value after the first tenth of the rounds: the start would take most of the
    room. A band of deviations may reach 0, so its axis is never logarithmic.

    Args:
        axis: where.
        panel: what.
        deviation: the column with the deviation, if the band is to be that.
        names: by label the algorithm of all lines that the legend has: they decide how each one looks.
    """
    looks = styles(names)
    widths = np.linspace(2.6, 1.6, len(names)) if len(names) > 1 else [1.6]  # curves that coincide show their edges
    for label, tables in panel.histories.items():
        number = list(names).index(label)
        colour, style = looks[number]
        table = across_seeds(tables, panel.column)
        places = costs(tables, panel.cost).loc[table.index]
        look = {"color": colour, "linestyle": style, "linewidth": widths[number], "label": label}
        if len(names) > 1:  # and each has its own marker, at places of its own
            step = max(1, len(table) // 6)
            first = min(number * step // len(names), max(0, len(table) - 1))
            look |= {"marker": MARKERS[number % len(MARKERS)], "markersize": 4, "markevery": (first, step)}
        axis.plot(places, table["mean"], **look)
        low, high = table["min"], table["max"]
        if deviation is not None and all(deviation in one for one in tables):  # tables of older runs may lack it
            spread = across_seeds(tables, deviation)["mean"]
            low, high = (table["mean"] - spread).clip(lower=0), table["mean"] + spread
        axis.fill_between(places, low, high, color=colour, alpha=0.15, linewidth=0)
    dress(axis, panel.heading, panel.across, TITLES.get(panel.column, panel.column))
    axis.ticklabel_format(axis="y", useOffset=False)  # whole numbers, and none to add in the corner
    if panel.logarithmic and deviation is None:
        logarithmic(axis)
    elif "accuracy" in panel.column:  # the first rounds would stretch the axis
        rounds, drawn = np.concatenate([line.get_xydata() for line in axis.get_lines()]).T
        later = drawn[(rounds > 0.1 * rounds.max()) & np.isfinite(drawn)]
        if later.size:
            axis.set_ylim(bottom=later.min() - 0.01)


def logarithmic(axis: Any, which: Literal["x", "y"] = "y") -> None:
    """A log scale with plain numbers at 1, 2 and 5; powers of ten on wide ranges, more on narrow ones."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set(**{f"{which}scale": "log"})
    low, high = axis.get_xlim() if which == "x" else axis.get_ylim()
    scale = axis.xaxis if which == "x" else axis.yaxis
    widest = 1e3 if which == "x" else 1e4  # side by side, numbers need more room
    wide = high / max(low, 1e-300)
    subs = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0) if wide < 6 else (1.0, 2.0, 5.0) if wide < widest else (1.0,)
    scale.set_major_locator(LogLocator(subs=subs, numticks=12))
    scale.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    scale.set_minor_formatter(NullFormatter())


def styles(algorithms: Mapping[str, str]) -> list[tuple[Any, str]]:
    """Colour and line style of each line (label -> algorithm).

    Variants of one algorithm get lighter in turn; where there are more than line styles, they begin darker. A method
    that is not in the catalogue takes the first of `OTHERS` that no other line has.

    >>> [style for _, style in styles({"cap 1": "fedsps", "cap 10": "fedsps", "FedAvg": "fedavg"})]
    ['-', '--', '-']
    """
    names = dict.fromkeys(algorithms.values())
    taken = {COLOURS[name] for name in names if name in COLOURS}
    free = [colour for colour in OTHERS if colour not in taken] or list(OTHERS)
    others = itertools.cycle(free)
    colours = {name: COLOURS.get(name) or next(others) for name in names}
    order = list(algorithms.values())
    chosen = []
    for place, name in enumerate(order):
        variant, variants = order[:place].count(name), order.count(name)
        share = variant / max(1, variants - 1)
        plain = _rgb(colours[name])
        dark, light = _between((plain, (0.0, 0.0, 0.0)), 0.7), _between((plain, (1.0, 1.0, 1.0)), 0.45)
        shades = (dark, plain, light) if variants > len(LINES) else (plain, light)
        chosen.append((_between(shades, share), LINES[variant % len(LINES)]))
    return chosen


def _rgb(colour: str) -> Colour:
    """From #RRGGBB to three shares.

    >>> _rgb("#00ff33")
    (0.0, 1.0, 0.2)
    """
    red, green, blue = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    return red, green, blue


def _between(colours: Sequence[Colour], share: float) -> Colour:
    """The colour at this share of the way through several.

    >>> _between([(0.0, 0.0, 0.0), (1.0, 0.5, 0.0)], 0.5)
    (0.5, 0.25, 0.0)
    """
    place = share * (len(colours) - 1)
    red, green, blue = (float(np.interp(place, range(len(colours)), part)) for part in zip(*colours, strict=True))
    return red, green, blue


def across_seeds(histories: Sequence[pd.DataFrame], column: str) -> pd.DataFrame:
    """Mean, least and largest value of a column by round; what was not evaluated or not finite is left out.

    >>> first = pd.DataFrame({"round": [1, 2], "train_loss": [2.0, 1.0]})
    >>> second = pd.DataFrame({"round": [1, 2], "train_loss": [4.0, np.inf]})
    >>> across_seeds([first, second], "train_loss").to_dict("list")
    {'mean': [3.0, 1.0], 'min': [2.0, 1.0], 'max': [4.0, 1.0]}
    """
    joined = pd.concat([history.set_index("round")[column].dropna() for history in histories], axis=1)
    joined = joined.replace([np.inf, -np.inf], np.nan)
    return pd.DataFrame({"mean": joined.mean(axis=1), "min": joined.min(axis=1), "max": joined.max(axis=1)})


def costs(histories: Sequence[pd.DataFrame], cost: Across) -> pd.Series:
    """What had been spent by the end of each round, as the mean over the seeds that came as far.

    >>> first = pd.DataFrame({"round": [1, 2], "seconds": [1.0, 1.0]})
    >>> costs([first, first.assign(seconds=3.0)], "seconds").tolist()
    [2.0, 4.0]
    """
    tables = [history.set_index("round", drop=False) for history in histories]
    if cost == "round":
        spent = [table["round"] for table in tables]
    elif cost == "bytes":
        spent = [(table["bytes_up"] + table["bytes_down"]).cumsum() for table in tables]
    else:
        spent = [table[cost].cumsum() for table in tables]
    return pd.concat(spent, axis=1).mean(axis=1)


def check(path: Path) -> None:
    """Refuse, before hours of training, a figure that could not be written after them.

    Raises:
        ConfigurationError: for an ending that matplotlib cannot write, or a path that is a folder.
    """
    import matplotlib.figure

    known = matplotlib.figure.Figure().canvas.get_supported_filetypes()
    if path.suffix.removeprefix(".").lower() not in known:
        raise ConfigurationError(f"a figure cannot be written as {str(path)!r}: use .png, .pdf or .svg")
    if path.is_dir():
        raise ConfigurationError(f"{path} is a folder: name a file for the figure")


def is_available() -> bool:
    """Whether matplotlib is installed; asked without importing it, which is slow."""
    return importlib.util.find_spec("matplotlib") is not None


def check_available() -> None:
    """Refuse to go on without matplotlib, before anything is trained."""
    if not is_available():
        raise ConfigurationError("figures need matplotlib: pip install 'fedsps[plot]'")


def empty(size: tuple[float, float]) -> Any:
    """An empty figure of this size, in inches.

    Not one of pyplot's, which would open windows, keep every figure, and change how the caller's own are shown.
    """
    check_available()
    from matplotlib.figure import Figure

    return Figure(figsize=size, layout="constrained")


def mark(label: str, **look: Any) -> Any:
    """An entry of a legend that stands for no line of its own."""
    from matplotlib.lines import Line2D

    return Line2D([], [], label=label, **look)


def _axes(rows: int, columns: int, size: tuple[float, float]) -> tuple[Any, Any]:
    """A figure and its axes `[rows, columns]`."""
    figure = empty(size)
    return figure, figure.subplots(rows, columns, squeeze=False)


def points(
    panels: Mapping[str, Mapping[str, tuple[Sequence[float], Any]]],
    algorithms: Mapping[str, str],
    across: str,
    up: str,
    paths: Sequence[Path],
) -> None:
    """Points on log axes, drawn one by one for each seed, with a line through the medians.

    Each line has its own marker, and earlier ones are wider and have larger ones: of those that coincide all are seen.

    Args:
        panels: by heading and label, places and `[places, seeds]` values.
        algorithms: by label, the name of the algorithm, which decides the colour.
        across: what the places are.
        up: what the values are.
        paths: where the figure goes.
    """
    figure, axes = _side_by_side(len(panels), len(panels))
    looks = dict(zip(algorithms, styles(algorithms), strict=True))
    for axis, (heading, series) in zip(axes, panels.items(), strict=True):
        sizes = np.linspace(2.6, 1.0, len(series)) if len(series) > 1 else [1.0]
        for size, marker, (label, (places, values)) in zip(
            sizes, itertools.cycle(MARKERS), series.items(), strict=False
        ):
            colour, style = looks[label]
            look = {"color": colour, "linestyle": style, "marker": marker, "label": label}
            axis.plot(places, np.median(values, axis=1), linewidth=1.2 * size, markersize=3.5 * size, **look)
            axis.scatter(np.repeat(places, values.shape[1]), values.ravel(), color=colour, s=14, alpha=0.6, linewidth=0)
        logarithmic(axis, "x")
        logarithmic(axis, "y")
        dress(axis, heading, across, up)
        axis.legend(**LEGEND)
    write(figure, paths)


def shares(
    panels: Mapping[str, Mapping[str, Any]],
    algorithms: Mapping[str, str],
    across: str,
    reference: str,
    paths: Sequence[Path],
    most: float | None = None,
) -> None:
    """By heading and label, the share of values up to each one; the reference is a line at 1.

    Args:
        panels: by heading and label, the values. Those that are not finite count in the whole but are never reached, so
            a line may end below 1.
        algorithms: by label, the name of the algorithm, which decides the colour.
        across: what the values are.
        reference: what has the value 1.
        paths: where the figure goes.
        most: the largest value that is shown; lines that are lower at the right edge have larger ones.
    """
    figure, axes = _side_by_side(len(panels), 3)
    for axis, (heading, series) in zip(axes, panels.items(), strict=True):
        looks = styles({label: algorithms[label] for label in series})
        for (label, values), (colour, style) in zip(series.items(), looks, strict=True):
            reached = np.sort(values[np.isfinite(values)])
            heights = np.arange(1, len(reached) + 1) / len(values)
            axis.step(reached, heights, where="post", color=colour, linestyle=style, linewidth=1.5, label=label)
        axis.axvline(1.0, color=COLOURS["fedsps"], linestyle=":", linewidth=1.2, label=reference)
        logarithmic(axis, "x")
        if most is not None:
            axis.set_xlim(0.95, most)
            axis.set_xticks([tick for tick in (1, 1.5, 2, 3, 5, 10) if tick <= most])
            axis.xaxis.set_major_formatter("{x:g}")
            axis.minorticks_off()
        axis.set_ylim(0, 1.02)
        dress(axis, heading, across, "share")
        axis.legend(**LEGEND)
    write(figure, paths)
