"""The HTML page itself: one file that needs no network.

Texts of users (labels, file names, settings) are escaped here, numbers go in as JSON. A policy in the page allows the
two scripts that it carries, by their hashes, and no other: a text that slipped through could not run.
"""

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd

from fedsps.engine.history import TITLES
from fedsps.errors import ConfigurationError
from fedsps.report.collect import Material, Reproduced
from fedsps.report.comparison import comparison
from fedsps.report.figures import POINTS, Figure, Scatter, is_trial, of_page, of_runs, of_searches
from fedsps.report.tables import clients_section, frame, runs_section, verdicts_section
from fedsps.version import __version__

SEARCHES = (
    "<p class=dim>Each point is a trial of <code>fedsps tune</code>, at its end. Trials are not in the means above.</p>"
)
ACROSS = {
    "round": "rounds",
    "gradient_evaluations": "gradient evaluations",
    "bytes": "bytes sent",
    "seconds": "seconds",
}
SCALES = "<option value=log>log</option><option value=linear>linear</option>"
CSV = "<button type=button class=csv>CSV</button>"
BAND = "<p class=dim>Line: the mean over the seeds. Band: from the least to the largest of them.</p>"
DASHES = {"solid": "", "dash": "6 3", "dashdot": "6 3 1 3", "dot": "2 3"}


def page(material: Material) -> str:
    """The report as the text of an HTML file that needs nothing else.

    Verdicts come first, then the reproduced pages, then the runs that are on none of them, then all settings.

    Args:
        material: what `collect` found.

    Raises:
        ConfigurationError: if plotly is not installed.
    """
    plotly, script = _plotly(), _part("page.js")
    data: dict[str, Any] = {}  # the numbers of each figure, by its id
    shown_on_pages = {digest for reproduced in material.pages for digest in reproduced.digests}
    rest = [run for run in material.runs if run.folder.name not in shown_on_pages]
    trials = [run for run in rest if is_trial(run)]
    runs = [run for run in rest if not is_trial(run)]
    body = [
        verdicts_section(material.pages),
        *(_section(reproduced, of_page(reproduced, material.runs), data) for reproduced in material.pages),
        _figures("Runs", of_runs(runs), data) if runs else "",
        _figures("Searches", of_searches(trials), data, SEARCHES) if trials else "",
        runs_section(material),
        clients_section(material),
    ]
    fields = {
        "title": "fedsps report",
        "summary": _summary(material),
        "hashes": " ".join(_hash(text) for text in (plotly, script)),
        "style": _part("page.css"),
        "body": "\n".join(body),
        "data": json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"),
        "plotly": plotly,
        "script": script,
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda field: fields[field[1]], _part("page.html"))


def _plotly() -> str:
    """The script that draws, from the installed plotly: most of the page's size, and why it needs no network."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise ConfigurationError("a report needs plotly: pip install 'fedsps[report]'") from None
    return str(get_plotlyjs())


def _part(name: str) -> str:
    """A file that lies beside this one: the frame, the style or the script of the page."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    """For the page's policy: these scripts run, and no other.

    >>> _hash("")
    "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
    """
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _summary(material: Material) -> str:
    """What the page holds, with what it was written and when, in a line."""
    verdicts = sum(len(reproduced.found["verdicts"]) for reproduced in material.pages)
    counts = f"Runs: {len(material.runs)}, verdicts: {verdicts}"
    now = datetime.now(UTC).isoformat(sep=" ", timespec="minutes").removesuffix("+00:00")
    return f"{counts}. Written by fedsps {__version__} at {now} UTC. Curves have at most {POINTS} points."


def _section(reproduced: Reproduced, figures: Sequence[Figure], data: dict[str, Any]) -> str:
    """A reproduced page: its figures, its note, what it took, and the tables that it shows."""
    content = reproduced.found
    spent = f", {content['seconds'] / 60:.1f} minutes of training" if content["seconds"] else ""
    facts = f"{content['page']}, {content['scale']} scale{spent}"
    words = f"<p>{escape(content['note'])}</p><p class=dim>{escape(facts)}</p>"
    tables = "".join(frame(name, table) for name, table in reproduced.shown.items())
    return _figures(content["title"], figures, data, words) + tables


def _figures(heading: str, figures: Sequence[Figure | Scatter], data: dict[str, Any], words: str = "") -> str:
    """A section of figures; a figure without any finite number says so instead of showing empty axes.

    Args:
        heading: of the section.
        figures: in their order.
        data: where the numbers of each figure go, under the id that it gets here.
        words: HTML below the heading.
    """
    boxes = []
    for figure in figures:
        caption = f"<figcaption>{escape(figure.heading)}</figcaption>"
        if not (figure.parameters if isinstance(figure, Scatter) else figure.columns):
            boxes.append(f"<div class=figure>{caption}<p class=dim>no numbers to draw</p></div>")
            continue
        name = f"figure-{len(data) + 1}"
        data[name] = figure.data()
        plot = f'<div class=plot role=img aria-label="{escape(figure.heading)}"></div>'
        if isinstance(figure, Scatter):
            lost = f"<p class=dim>{figure.diverged} diverged, and have no point.</p>" if figure.diverged else ""
            boxes.append(f'<figure id="{name}">{caption}{_points_controls(data[name])}{plot}{lost}</figure>')
            continue
        below = (
            _legend(figure)
            + (BAND if any(len(line.histories) > 1 for line in figure.lines) else "")
            + _table(name, figure)
        )
        boxes.append(f'<figure id="{name}">{caption}{_controls(figure, data[name])}{plot}{below}</figure>')
    return f"<section><h2>{escape(heading)}</h2>{words}<div class=figures>{''.join(boxes)}</div></section>"


def _table(name: str, figure: Figure) -> str:
    """What each algorithm came to over its seeds; nothing for the panels of a reproduction, whose page has its own."""
    if not figure.runs:
        return ""
    compared = comparison(figure.runs)
    rows = []
    for row in compared.table.to_dict("records"):
        cells: dict[str, Any] = {"algorithm": row["algorithm"], "seeds": row["seeds"]}
        for measure, heading in (
            ("final_train_loss", "final train loss"),
            ("final_test_accuracy", "final test accuracy"),
        ):
            if compared.table[measure].notna().any():
                cells[heading] = row[measure]
                if compared.statistics:
                    cells |= {
                        f"± {heading.removeprefix('final ')}": row[f"{measure}_std"],
                        f"p of {heading.removeprefix('final ')}": row[f"{measure}_p"],
                    }
        rows.append(cells | {"seconds": row["seconds"], "diverged": row["diverged"]})
    return frame(f"table-{name}", pd.DataFrame(rows)) + f"<p class=dim>{escape(compared.statistics)}</p>"


def _points_controls(data: dict[str, Any]) -> str:
    """What the reader of a search can choose: the parameter, what came of it, and the scale."""
    across = "".join(f'<option value="{escape(name)}">{escape(name)}</option>' for name in data["across"])
    up = "".join(
        f'<option value="{escape(name)}">final {escape(TITLES.get(name, name))}</option>' for name in data["up"]
    )
    return (
        f"<div class=controls><label>show <select class=column>{up}</select></label>"
        f"<label>across <select class=across>{across}</select></label>"
        f"<label>axis <select class=scale>{SCALES}</select></label>{CSV}</div>"
    )


def _controls(figure: Figure, lines: Sequence[dict[str, Any]]) -> str:
    """What the reader can choose: the column, what is across, the scale, and single seeds where there are several."""
    columns = "".join(
        f'<option value="{escape(column)}"{" selected" if column == figure.column else ""}>'
        f"{escape(TITLES.get(column, column))}</option>"
        for column in figure.columns
    )
    costs = [cost for cost in ACROSS if cost == "round" or all(cost in line["costs"] for line in lines)]
    across = "".join(f"<option value={cost}>{ACROSS[cost]}</option>" for cost in costs)
    several = any(len(line.histories) > 1 for line in figure.lines)
    return (
        f"<div class=controls><label>show <select class=column>{columns}</select></label>"
        f"<label>across <select class=across>{across}</select></label>"
        f"<label>axis <select class=scale>{SCALES}</select></label>"
        f"<label{'' if several else ' hidden'}><input type=checkbox class=single> single seeds</label>{CSV}</div>"
    )


def _legend(figure: Figure) -> str:
    """A box to tick for each line, with a sample of it and the rounds in which seeds diverged."""
    boxes = []
    for line, (colour, dash) in zip(figure.lines, figure.styles(), strict=True):
        sample = (
            "<svg width=28 height=10 aria-hidden=true><line x1=0 y1=5 x2=28 y2=5 "
            f'stroke="{colour}" stroke-width=2.5 stroke-dasharray="{DASHES[dash]}"/></svg>'
        )
        ends = ", ".join(f"seed {seed} in round {end}" for seed, end in line.diverged.items())
        ends = f" <span class=diverged>diverged: {escape(ends)}</span>" if ends else ""
        boxes.append(f"<label><input type=checkbox checked>{sample}<span>{escape(line.label)}{ends}</span></label>")
    return f"<div class=legend>{''.join(boxes)}</div>"
