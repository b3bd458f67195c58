"""The only file that draws with matplotlib (the extra `plot`)."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedsps.errors import ConfigurationError

# One colour an algorithm throughout; variants of one algorithm differ in shade. From Okabe and Ito's palette, which
# readers with any colour vision can tell apart.
COLOURS = {
    "fedavg": "#0072B2",
    "fedsps": "#D55E00",
    "feddecsps": "#009E73",
    "fedsps-normalized": "#CC79A7",
    "fedsps-global": "#E69F00",
}
OTHERS = ("#56B4E9", "#000000", "#8C6D31", "#7570B3", "#666666", "#B8860B")
LINES = ("-", "--", "-.", ":")


PANELS = (  # column, heading, logarithmic
    ("train_loss", "training loss", True),
    ("test_accuracy", "test accuracy", False),
    ("stepsize_mean", "mean stepsize", True),
)


def check(path: Path) -> None:
    """Refuse, before hours of training, a figure that could not be written after them."""
    import matplotlib.figure

    known = matplotlib.figure.Figure().canvas.get_supported_filetypes()
    if path.suffix.removeprefix(".").lower() not in known:
        raise ConfigurationError(f"a figure cannot be written as {str(path)!r}: use .png, .pdf or .svg")
    if path.is_dir():
        raise ConfigurationError(f"{path} is a folder: name a file for the figure")


def is_available() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def comparison(runs: dict[str, list[pd.DataFrame]], names: dict[str, str], path: Path, title: str) -> Path:
    """Loss, test accuracy and stepsize against rounds: mean over seeds, band from the least to the largest.

    `runs` holds the histories of each line over the seeds, `names` the algorithm of each line.
    """
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(1, 3, figsize=(12.5, 4.2), layout="constrained")
    for axis, (column, heading, logarithmic) in zip(axes, PANELS, strict=True):
        for (line, histories), (colour, style) in zip(runs.items(), styles(names), strict=True):
            table = _across_seeds(histories, column)
            axis.plot(table.index, table["mean"], color=colour, linestyle=style, linewidth=1.6, label=line)
            if len(histories) > 1:
                axis.fill_between(table.index, table["min"], table["max"], color=colour, alpha=0.15, linewidth=0)
        axis.set_xlabel("round")
        axis.set_title(heading, fontsize=11)
        axis.grid(True, which="major", alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        if logarithmic:
            _logarithmic(axis)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)), frameon=False, fontsize=9)
    figure.suptitle(title, fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
    return path


def _logarithmic(axis: Any) -> None:
    """A log scale with plain numbers at 1, 2 and 5."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=12))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())


def styles(names: dict[str, str]) -> list[tuple[Any, str]]:
    """Colour and line style of each line (label -> algorithm); variants of one algorithm get darker in turn."""
    others = iter(OTHERS * (1 + len(names) // len(OTHERS)))
    colours = {name: COLOURS.get(name) or next(others) for name in dict.fromkeys(names.values())}
    order = list(names.values())
    chosen = []
    for place, name in enumerate(order):
        variant, variants = order[:place].count(name), order.count(name)
        chosen.append((_shade(colours[name], variant, variants), LINES[variant % len(LINES)]))
    return chosen


def _shade(colour: str, variant: int, variants: int) -> tuple[float, float, float]:
    """Variant 0 of several is the lightest, the last one the colour itself."""
    import matplotlib.colors

    rgb = np.array(matplotlib.colors.to_rgb(colour))
    light = 0.0 if variants == 1 else 0.55 * (1 - variant / (variants - 1))
    red, green, blue = (rgb + light * (1 - rgb)).tolist()
    return red, green, blue


def _across_seeds(histories: list[pd.DataFrame], column: str) -> pd.DataFrame:
    joined = pd.concat([history.set_index("round")[column].dropna() for history in histories], axis=1)
    joined = joined.replace([np.inf, -np.inf], np.nan)
    return pd.DataFrame({"mean": joined.mean(axis=1), "min": joined.min(axis=1), "max": joined.max(axis=1)})


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot

    return matplotlib.pyplot
