"""Pages as one Markdown document, from the files that `reproduce` wrote: a row a claim first, then each page.

It reads files, not results, so that pages which were run at different times, and at different scales, stand side by
side, each with the command that wrote it.
"""

import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from fedsps.errors import DataError
from fedsps.paper.evidence import OUTCOMES
from fedsps.paper.page import OUR_QUESTION
from fedsps.runs.files import read_json

KEYS = {"title", "note", "scale", "seeds", "runs", "trials", "figures", "shown", "verdicts", "panels"}
NAMED = 4  # cases of one outcome that a row names; of more it says how many they are
VERDICT = {
    "case",
    "why",
    "words",
    "seen",
    "what",
    "mean",
    "interval",
    "margins",
    "effect",
}  # since verdicts have intervals
INTRODUCTION = """\
A verdict compares an effect with a written margin: a paired 95 % confidence interval over the seeds (Student's t, of
logarithms for ratios) lies where the criterion is met (*holds*), where it is not (*does not hold*), or across the
margin (*undecided*, as is what is random and ran on one seed). What ran at a reduced scale leaves the paper's
statement undecided, and says what was seen there. The intervals are of single statements: of a hundred that are just
true, two or three would be said not to hold by chance. The paper does not say which training loss it plots:
`train_loss` is the objective over all clients, `cohort_loss` the mini-batch losses that the active clients saw.
Searches choose a winner by each of the two, and a tuned line is judged on a loss with the winner by that loss. Every
verdict with its numbers is in `verdicts.csv`, beside the figures."""
FINDINGS = "findings.md"  # beside the document: what someone makes of it
COSTS = """\
Runs are those that a page shows, trials those of its searches, which pages may share. Times are sums: of the rounds,
without evaluations, and of whole trials; those that run at the same moment share its time."""


def document(folder: Path, place: Path, order: Sequence[str]) -> str:
    """The text of `place` on all pages of this order that lie in the folder; figures are linked relative to it.

    Args:
        folder: where `reproduce` wrote its pages.
        place: the file that the text is for; it is not written here.
        order: names of pages; those that are not in the folder are left out.

    Raises:
        DataError: if a page's file is damaged or of another version, or one of its tables is missing.
    """
    pages = _pages(folder, order)
    claims: dict[str, list[Mapping[str, Any]]] = {}
    for page in pages:
        for verdict in page["verdicts"]:
            claims.setdefault(verdict["id"], []).append(verdict)
    theirs = [verdicts for verdicts in claims.values() if verdicts[0]["place"] != OUR_QUESTION]
    ours = [verdicts for verdicts in claims.values() if verdicts[0]["place"] == OUR_QUESTION]
    parts = ["# The paper, re-run", INTRODUCTION]
    if (place.parent / FINDINGS).is_file():
        parts.insert(1, f"[What it amounts to]({FINDINGS}), in two minutes. This page is written by the command alone.")
    for heading, says, chosen in [
        ("What the paper says", "the paper says", theirs),
        ("Our own questions", "we ask", ours),
    ]:
        if chosen:
            found = [verdict for verdicts in chosen for verdict in verdicts]
            parts += [f"## {heading}", f"{len(chosen)} statements, {len(found)} verdicts: {_counted(found)}."]
            parts += [_in_short(chosen)]
            parts.append(_table(["id", says, "we find", "verdict", "why"], map(_summary, chosen)))
    facts = ["page", "scale", "seeds", "runs", "training", "trials", "searches", *OUTCOMES]
    parts += ["## What was run", COSTS, _table(facts, map(_facts, pages))]
    where = os.path.relpath(folder, place.parent)
    for page in pages:
        parts += _page(page, folder, where)
    return "\n\n".join(parts) + "\n"


def verdict_table(folder: Path, order: Sequence[str]) -> pd.DataFrame:
    """Every verdict of the pages that lie in the folder, a row each, for other programs."""
    rows = []
    for page in _pages(folder, order):
        for verdict in page["verdicts"]:
            (low, high), (least, largest) = verdict["interval"], verdict["margins"]
            rows.append(
                {"page": page["page"], "scale": page["scale"], "seeds": page["seeds"], "seeds wanted": page["wanted"]}
                | {key: verdict[key] for key in ("id", "case", "loss", "outcome", "words", "seen", "what", "mean")}
                | {"low": low, "high": high, "least good": least, "largest good": largest}
                | {"numbers": len(verdict["effect"])}
                | {key: verdict[key] for key in ("place", "statement", "criterion", "why")}
            )
    return pd.DataFrame(rows)


def _pages(folder: Path, order: Sequence[str]) -> list[dict[str, Any]]:
    """The pages of this order that lie in the folder, with verdicts as this version writes them."""
    pages = [read(folder / f"{name}.json") for name in order if (folder / f"{name}.json").is_file()]
    for page in pages:
        if any(not verdict.keys() >= VERDICT for verdict in page["verdicts"]):
            name = page["page"]
            raise DataError(
                f"the verdicts of {folder / name}.json are of another version: judge them again with "
                f"fedsps reproduce {name} --from-tables --output {folder}"
            )
    return pages


def _page(page: Mapping[str, Any], folder: Path, where: str) -> list[str]:
    """The section of a page: what was run, figures, verdicts case by case, the numbers of every panel, its tables."""
    command = f"`fedsps reproduce {page['page']} --scale {page['scale']} --seeds {page['seeds']}`"
    fewer = f" The page asks for {page['wanted']} seeds." if page["seeds"] < page["wanted"] else ""
    if missing := panels_missing(page):
        fewer += f" Of its {missing + len(page['panels'])} panels {missing} are not run yet."
    parts = [f"## {page['title']}", " ".join([page["note"], f"Written by {command}.{fewer}"]).strip()]
    winners = list(_winners(page))
    if winners:
        parts.append(_table(["panel", "line", "what the search chose"], winners))
    parts += [f"![{page['title']}]({Path(where, figure).as_posix()})" for figure in page["figures"]]
    parts.append(_table(["id", "case", "loss", "verdict", "numbers", "criterion"], map(_cells, page["verdicts"])))
    for panel in page["panels"]:
        known = {column for line in panel["lines"] for column in line["final"]}
        columns = {name: title for name, title in FINAL.items() if name in known} or {
            name: name for name in sorted(known)
        }
        rows = [_finals(line, columns) for line in panel["lines"]]
        parts += [f"**{panel['heading']}**, final values", _table(["line", *columns.values()], rows)]
    for name in page["shown"]:
        table = _read_table(folder / f"{name}.csv", page["page"])
        parts.append(_table(table.columns, table.itertuples(index=False)))
    return parts


FINAL = {"train_loss": "`train_loss`", "cohort_loss": "`cohort_loss`", "test_accuracy": "test accuracy"}


def _finals(line: Mapping[str, Any], columns: Iterable[str]) -> Sequence[object]:
    """A line of a panel: mean and standard deviation of its final values over the seeds."""

    def cell(mean: float | None, deviation: float | None) -> str:
        if mean is None:
            return "diverged" if line["diverged"] else ""
        is_rounding = deviation is not None and deviation < 1e-9 * abs(mean)
        return f"{mean:.4g}" + ("" if deviation is None else " ± 0" if is_rounding else f" ± {deviation:.2g}")

    return line["label"], *(cell(*line["final"].get(column, (None, None))) for column in columns)


def _counted(verdicts: Sequence[Mapping[str, Any]]) -> str:
    """How many verdicts there are of each kind."""
    counted = Counter(verdict["outcome"] for verdict in verdicts)
    idle = sum(not verdict["effect"] for verdict in verdicts)
    return ", ".join(f"{counted[outcome]} *{outcome}*" for outcome in OUTCOMES) + (f" ({idle} not run)" if idle else "")


def _summary(verdicts: Sequence[Mapping[str, Any]]) -> Sequence[object]:
    """A claim as a row of the summary: all its cases, and both losses."""
    first = verdicts[0]
    says = first["statement"] + ("" if first["place"] == OUR_QUESTION else f" ({first['place']})")
    losses = {verdict["loss"]: [one for one in verdicts if one["loss"] == verdict["loss"]] for verdict in verdicts}
    found = {loss: _found(some) for loss, some in losses.items()}
    said = {loss: _said(some) for loss, some in losses.items()}
    why = "" if all(verdict["outcome"] == "holds" for verdict in verdicts) else first["why"]
    return first["id"], says, f"{first['what']} {_by_loss(found)}", _by_loss(said), why


def _by_loss(texts: Mapping[str | None, str]) -> str:
    """What is true of both losses is said once, else each has a line of the cell.

    >>> _by_loss({"train_loss": "holds", "cohort_loss": "holds"}), _by_loss({"train_loss": "1", "cohort_loss": "2"})
    ('holds', '`train_loss`: 1<br>`cohort_loss`: 2')
    """
    if len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return "<br>".join(f"`{loss}`: {text}" for loss, text in texts.items())


def _found(verdicts: Sequence[Mapping[str, Any]]) -> str:
    """The effect: of one case with its interval, of several from the least to the largest.

    One that is no number is infinite where it decides, and undefined where it does not.
    """
    known = [verdict for verdict in verdicts if verdict["mean"] is not None]
    means = [verdict["mean"] for verdict in known]
    others = [verdict["seen"] for verdict in verdicts if verdict["mean"] is None and verdict["effect"]]
    undefined = others.count("undecided")
    many = {"infinite": len(others) - undefined, "undefined": undefined}
    rest = "".join(f", {word} in {number}" for word, number in many.items() if number)
    if not known:
        return " and ".join(word for word, number in many.items() if number) or "unknown"
    if len(known) > 1:
        return f"{_short(min(means))} to {_short(max(means))} in {len(known)} cases{rest}"
    low, high = known[0]["interval"]
    is_wide = low is not None and high is not None and low < high
    return _short(means[0]) + (f" [{_short(low)}, {_short(high)}]" if is_wide else "") + rest


def _short(value: float) -> str:
    """Three digits; what is nothing but rounding is 0.

    >>> _short(0.98765), _short(-3e-16)
    ('0.988', '0')
    """
    return "0" if abs(value) < 1e-12 else f"{value:.3g}"


def _said(verdicts: Sequence[Mapping[str, Any]]) -> str:
    """The outcome, or for each outcome the cases that have it; of many cases it names those that are fewer.

    >>> _said([{"case": case, "words": "holds"} for case in "abcd"] + [{"case": "e, f", "words": "undecided"}])
    '**holds** in 4 of 5 cases; **undecided**: e, f'
    """
    cases: dict[str, list[str]] = {}
    for verdict in verdicts:
        cases.setdefault(verdict["words"], []).append(verdict["case"] or "all")
    if len(cases) == 1:
        return f"**{next(iter(cases))}**"
    most = max(cases, key=lambda words: len(cases[words]))
    parts = []
    for words, some in sorted(cases.items(), key=lambda item: -len(item[1])):
        is_many = len(some) > NAMED or (words == most and len(some) > 2)
        named = f" in {len(some)} of {len(verdicts)} cases" if is_many else f": {' / '.join(some)}"
        parts.append(f"**{words}**{named}")
    return "; ".join(parts)


def _in_short(claims: Sequence[Sequence[Mapping[str, Any]]]) -> str:
    """The statements by what became of them, in a list."""
    kinds: dict[str, list[str]] = {}
    for verdicts in claims:
        outcomes = {verdict["outcome"] for verdict in verdicts}
        mixed = "holds in part" if "holds" in outcomes else "does not hold in part"
        kind = mixed if len(outcomes) > 1 else next(iter(outcomes))
        kinds.setdefault(kind, []).append(verdicts[0]["id"])
    words = {
        "holds": "hold in every case, on both losses",
        "holds in part": "hold in some cases, or on one of the two losses",
        "does not hold": "do not hold",
        "does not hold in part": "do not hold in the cases that are decided",
        "undecided": "are not decided",
    }
    return "\n".join(
        f"- {len(kinds[kind])} {said}: {', '.join(kinds[kind])}" for kind, said in words.items() if kind in kinds
    )


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
    if seeds < page["wanted"]:
        seeds = f"{seeds} of {page['wanted']}"
    if missing := panels_missing(page):
        scale = f"{scale}, {len(page['panels'])} of {missing + len(page['panels'])} panels"
    times = duration(page["seconds"]), duration(page["search_seconds"])
    return name, scale, seeds, runs, times[0], trials, times[1], *(counted[outcome] for outcome in OUTCOMES)


def panels_missing(page: Mapping[str, Any]) -> int:
    """How many panels of a page are not run yet; none where it is not said how many there are to be.

    >>> panels_missing({"panels": [{}, {}], "panels_wanted": 5}), panels_missing({"panels": [{}, {}]})
    (3, 0)
    """
    there = len(page["panels"])
    return page.get("panels_wanted", there) - there if there else 0


def duration(seconds: float) -> str:
    """A time in minutes, or in hours from two hours on.

    >>> duration(90), duration(7200)
    ('1.5 min', '2.0 h')
    """
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _cells(verdict: Mapping[str, Any]) -> Sequence[object]:
    """A verdict as a row; the outcome is bold, and the loss a word of code."""
    loss = f"`{verdict['loss']}`" if verdict["loss"] else ""
    return (
        verdict["id"], verdict["case"] or "", loss, f"**{verdict['words']}**", verdict["numbers"], verdict["criterion"]
    )  # fmt: skip


def _table(headings: Any, rows: Any) -> str:
    """A Markdown table.

    >>> print(_table(["claim", "ratio"], [["C1", 0.98765]]))
    | claim | ratio |
    | --- | --- |
    | C1 | 0.9877 |
    """
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(_text(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def _text(cell: object) -> str:
    """Numbers to four digits, whole ones in full; what is missing is empty."""
    if not isinstance(cell, float):
        return str(cell)
    if math.isnan(cell):
        return ""
    return f"{cell:.0f}" if cell.is_integer() else f"{cell:.4g}"
