"""Pages as one Markdown document, from the files that `reproduce` wrote: verdicts first, then each page.

It reads files, not results, so that pages which were run at different times, and at different scales, stand side by
side, each with the command that wrote it.
"""

import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from fedsps.errors import DataError
from fedsps.paper.page import OUTCOMES
from fedsps.runs.files import read_json

KEYS = {"title", "note", "scale", "seeds", "runs", "trials", "figures", "shown", "verdicts", "panels"}
INTRODUCTION = """\
A verdict is *holds* where the criterion is met on every seed, *does not hold* where it is met on none, and *undecided*
where the seeds disagree or a number is missing. The criteria were written before the numbers were seen, but for "A3
cap", which puts A3's to runs that were there. The paper does not say which training loss it plots: `train_loss` is the
objective over all clients, `cohort_loss` the mini-batch losses that the active clients saw. Runs are those that a page
shows, trials those of its searches, which pages may share. Times are sums, one thread a run: of the rounds without
evaluations, and of whole trials."""


def document(folder: Path, place: Path, order: Sequence[str]) -> str:
    """The text of `place` on all pages of this order that lie in the folder; figures are linked relative to it.

    Args:
        folder: where `reproduce` wrote its pages.
        place: the file that the text is for; it is not written here.
        order: names of pages; those that are not in the folder are left out.

    Raises:
        DataError: if a page's file is damaged or of another version, or one of its tables is missing.
    """
    pages = [read(folder / f"{name}.json") for name in order if (folder / f"{name}.json").is_file()]
    verdicts = [verdict | {"scale": page["scale"]} for page in pages for verdict in page["verdicts"]]
    counted = Counter(verdict["outcome"] for verdict in verdicts)
    where = os.path.relpath(folder, place.parent)
    parts = [
        "# The paper, re-run",
        INTRODUCTION,
        _table(["page", "scale", "seeds", "runs", "training", "trials", "searches", *OUTCOMES], map(_facts, pages)),
        f"{len(verdicts)} verdicts: " + ", ".join(f"{counted[outcome]} *{outcome}*" for outcome in OUTCOMES) + ".",
        _table(["id", "statement", "place", "scale", "loss", "verdict", "numbers", "criterion"], map(_cells, verdicts)),
    ]
    for page in pages:
        command = f"`fedsps reproduce {page['page']} --scale {page['scale']} --seeds {page['seeds']}`"
        parts += [f"## {page['title']}", " ".join([page["note"], f"Written by {command}."]).strip()]
        winners = list(_winners(page))
        if winners:
            parts.append(_table(["panel", "line", "what the search chose"], winners))
        parts += [f"![{page['title']}]({Path(where, figure).as_posix()})" for figure in page["figures"]]
        for name in page["shown"]:
            table = _read_table(folder / f"{name}.csv", page["page"])
            parts.append(_table(table.columns, table.itertuples(index=False)))
    return "\n\n".join(parts) + "\n"


def read(path: Path) -> dict[str, Any]:
    """The content of a page's file, PAGE.json.

    Raises:
        DataError: if it cannot be read, or lacks what the document needs, as files of other versions do.
    """
    page = read_json(path)
    lines = [line for panel in page.get("panels", ()) for line in panel["lines"]]
    if not page.keys() >= KEYS or any("tuned" not in line for line in lines):
        raise DataError(f"{path} was written by another version: run fedsps reproduce {path.stem} again")
    return page


def _winners(page: Mapping[str, Any]) -> Iterator[Sequence[object]]:
    """The parameters of the lines that were searched for: panel, line, and what the search chose."""
    for panel in page["panels"]:
        for line in panel["lines"]:
            if line["tuned"]:
                values = ", ".join(f"{name} {value:g}" for name, value in line["tuned"].items())
                yield panel["heading"], line["label"], values


def _read_table(path: Path, page: str) -> pd.DataFrame:
    """A table that the page shows; an error names the command that writes it."""
    if not path.is_file():
        raise DataError(f"{path} is missing: run fedsps reproduce {page} again")
    return pd.read_csv(path)


def _facts(page: Mapping[str, Any]) -> Sequence[object]:
    """A page in the first table: its scale and seeds, what it took, and how many verdicts of each kind it has."""
    counted = Counter(verdict["outcome"] for verdict in page["verdicts"])
    name, scale, seeds, runs, trials = (page[key] for key in ("page", "scale", "seeds", "runs", "trials"))
    times = duration(page["seconds"]), duration(page["search_seconds"])
    return name, scale, seeds, runs, times[0], trials, times[1], *(counted[outcome] for outcome in OUTCOMES)


def duration(seconds: float) -> str:
    """A time in minutes, or in hours from two hours on.

    >>> duration(90), duration(7200)
    ('1.5 min', '2.0 h')
    """
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _cells(verdict: Mapping[str, Any]) -> Sequence[object]:
    """A verdict as a row; the outcome is bold, and the loss a word of code."""
    loss = f"`{verdict['loss']}`" if verdict["loss"] else ""
    bold = f"**{verdict['outcome']}**"
    what = (verdict[key] for key in ("id", "statement", "place", "scale"))
    return *what, loss, bold, verdict["numbers"], verdict["criterion"]


def _table(headings: Any, rows: Any) -> str:
    """A Markdown table.

    >>> print(_table(["claim", "ratio"], [["C1", 0.98765]]))
    | claim | ratio |
    | --- | --- |
    | C1 | 0.9877 |
    """
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(_text(cell) for cell in line) + " |" for line in lines)


def _text(cell: object) -> str:
    """Numbers to four digits, whole ones in full; what is missing is empty."""
    if not isinstance(cell, float):
        return str(cell)
    if math.isnan(cell):
        return ""
    return f"{cell:.0f}" if cell.is_integer() else f"{cell:.4g}"
