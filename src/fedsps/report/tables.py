"""The tables of the page: verdicts, and runs with all their settings.

They are plain HTML, to be read without the page's script; the script sorts and filters them. Every text is escaped, in
`_cell` and `_table`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
import pandas as pd

from fedsps.report.collect import Material, Reproduced, Run
from fedsps.report.figures import label
from fedsps.report.format import run_title, shown
from fedsps.runs.result import number

VERDICT_HEADINGS = ("claim", "case", "place", "statement", "criterion", "loss", "verdict", "numbers")
RUN_HEADINGS = (
    *("run", "algorithm", "seed", "rounds"),
    *("final train loss", "final test accuracy", "best test accuracy", "diverged in round", "finished"),
)


def verdicts_section(pages: Sequence[Reproduced]) -> str:
    """What was claimed and what came of it, to be filtered by verdict; nothing if there are no claims.

    The column of numbers sorts by the mean effect over the seeds.
    """
    verdicts = [verdict for page in pages for verdict in page.found["verdicts"]]
    if not verdicts:
        return ""
    counts = Counter(verdict["outcome"] for verdict in verdicts)
    options = "".join(
        f'<option value="{escape(name)}">{escape(name)} ({size})</option>' for name, size in counts.items()
    )
    rows = []
    for verdict in verdicts:
        outcome = verdict["outcome"]
        effect = [value for value in verdict["effect"] if value is not None]
        cells = [
            _cell(verdict["id"]),
            _cell(verdict["case"] or ""),
            _cell(verdict["place"]),
            _cell(verdict["statement"], "wide"),
            _cell(verdict["criterion"], "wide"),
            _cell(verdict["loss"] or ""),
            _cell(verdict["words"], f"verdict {outcome.replace(' ', '-')}"),
            _cell(verdict["numbers"], "wide", _sortable(float(np.mean(effect)) if effect else None)),
        ]
        rows.append(f'<tr data-outcome="{escape(outcome)}">{"".join(cells)}</tr>')
    return (
        "<section><h2>Verdicts</h2><p>A verdict is <em>holds</em> where the whole 95 % confidence interval of the "
        "effect meets the criterion, <em>does not hold</em> where none of it does, and <em>undecided</em> where it "
        "lies across the margin or there is none.</p>"
        f'<p><label>show <select id=outcome><option value="">all ({len(verdicts)})</option>{options}</select></label>'
        f"</p>{_table('verdicts', VERDICT_HEADINGS, rows)}</section>"
    )


def frame(name: str, table: pd.DataFrame) -> str:
    """A table of a page, as it is: numbers in four digits, sorted by their full value.

    Args:
        name: the id of the table.
        table: a row a record.
    """
    rows = []
    for record in table.itertuples(index=False):
        cells = [
            _cell(shown(value), "number", _sortable(number(value)))
            if isinstance(value, float)
            else _cell(value, "number" if isinstance(value, int) else "")
            for value in record
        ]
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return _table(name, [str(column) for column in table.columns], rows)


def runs_section(material: Material) -> str:
    """Every run with its settings and provenance, by task, algorithm and seed.

    Where pages name runs but no folder of runs was given, it says how to give one; for pages that were computed without
    any run there is no section.
    """
    if not material.runs and not any(page.digests for page in material.pages):
        return ""  # computed, without a run
    if not material.runs:
        return (
            "<section><h2>Settings and provenance</h2><p>Give the folder of the runs too, as in <code>fedsps report "
            "reproduction runs</code>, and their settings and provenance are listed here.</p></section>"
        )
    rows = [_run(run) for run in sorted(material.runs, key=_order)]
    return f"<section><h2>Settings and provenance</h2>{_table('runs', RUN_HEADINGS, rows)}</section>"


def clients_section(material: Material) -> str:
    """What each run came to on each of its clients; nothing beside a reproduction, whose runs are many."""
    if material.pages:
        return ""
    tables = [
        f"<details><summary>{escape(f'{label(run.result.spec)}, {run.folder.name}')}</summary>"
        f"{frame(f'clients-{run.folder.name}', run.result.clients)}</details>"
        for run in sorted(material.runs, key=_order)
        if run.result.clients is not None
    ]
    return f"<section><h2>Clients</h2>{''.join(tables)}</section>" if tables else ""


def _order(run: Run) -> tuple[str, str, int]:
    """What runs are sorted by: their title, the algorithm, and the seed."""
    spec = run.result.spec
    return run_title(run.result), label(spec), spec.plan.seed


def _run(run: Run) -> str:
    """A row with the run in short, and one with all there is to know about it."""
    spec, summary, end = run.result.spec, dict(run.result.summary), run.result.diverged_at
    provenance = summary.pop("provenance")
    parts = {"settings": spec.json(), "summary": summary, "provenance": {"folder": run.folder} | provenance}
    lists = "".join(f"<div><h3>{name}</h3>{_list(values)}</div>" for name, values in parts.items())
    cells = [
        _cell(run.folder.name),
        _cell(label(spec)),
        _cell(spec.plan.seed, "number"),
        _cell(summary["rounds"], "number"),
        _cell(
            shown(summary["final_train_loss"]) + (" (rose)" if summary["loss_rose"] else ""),
            "number",
            _sortable(summary["final_train_loss"]),
        ),
        _cell(shown(summary["final_test_accuracy"]), "number", _sortable(summary["final_test_accuracy"])),
        _cell(shown(summary["best_test_accuracy"]), "number", _sortable(summary["best_test_accuracy"])),
        _cell(end or "", "number diverged"),
        _cell(str(provenance.get("finished", "")).replace("T", " ").removesuffix("+00:00")),
    ]
    details = f"<details><summary>{escape(run_title(run.result))}</summary><div class=lists>{lists}</div></details>"
    return f"<tr>{''.join(cells)}</tr><tr><td colspan={len(cells)}>{details}</td></tr>"


def _list(values: Mapping[str, Any]) -> str:
    """Names and values; those of a value that has some itself are named after it."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= {f"{name} {key}": part for key, part in value.items()} if isinstance(value, Mapping) else {name: value}
    return "<dl>" + "".join(f"<dt>{escape(name)}<dd>{escape(str(value))}" for name, value in flat.items()) + "</dl>"


def _sortable(value: float | None) -> str:
    """What a cell with a number is sorted by; empty where there is none."""
    return "" if value is None else str(value)


def _table(name: str, headings: Sequence[str], rows: Sequence[str]) -> str:
    """A table that sorts: a button in each heading, and each record in a row group of its own."""
    head = "".join(f"<th scope=col><button type=button>{escape(heading)}</button></th>" for heading in headings)
    name = escape(name)
    return (
        f'<div class=scroll tabindex=0 role=region aria-label="{name}"><table id="{name}"><thead><tr>{head}</tr>'
        f"</thead>{''.join(f'<tbody>{row}</tbody>' for row in rows)}</table></div>"
    )


def _cell(text: object, kind: str = "", value: object = None) -> str:
    """A cell; `value` is what it is sorted by, if that is not its text.

    >>> _cell("a < b", "wide")
    '<td class="wide">a &lt; b</td>'
    """
    sort = "" if value is None else f' data-value="{escape(str(value))}"'
    return f'<td class="{escape(kind)}"{sort}>{escape(str(text))}</td>'
