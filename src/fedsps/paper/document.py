"""The pages as one Markdown document: verdicts first, then each page with its figures."""

import os
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from fedsps.paper.page import Scale, Verdict
from fedsps.paper.reproduce import Outcome


def document(outcomes: Sequence[Outcome], scale: Scale, seeds: int | None, place: Path) -> str:
    """The text of `place`; figures are linked relative to it."""
    spent = sum(outcome.seconds for outcome in outcomes)
    words = " ".join(outcome.page.name for outcome in outcomes) + f" --scale {scale}"
    words += f" --seeds {seeds}" if seeds else ""
    lines = [
        "# The paper, re-run",
        "",
        f"Written by `fedsps reproduce {words}`; the runs shown took "
        f"{spent / 60:.0f} minutes of training on one core, without the searches.",
        "",
        "A verdict is *holds* where the criterion is met on every seed, *does not hold* where it is met on none,",
        "and *undecided* where the seeds disagree. The criteria were written before the numbers were seen. The",
        "paper does not say which training loss it plots: `train_loss` is the objective over all clients,",
        "`cohort_loss` the mini-batch losses that the active clients saw.",
        "",
        *_table([verdict for outcome in outcomes for verdict in outcome.verdicts]),
    ]
    for outcome in outcomes:
        lines += ["", f"## {outcome.page.title}", ""]
        if outcome.page.note:
            lines += [outcome.page.note, ""]
        lines += [
            f"![{outcome.page.title}]({Path(os.path.relpath(figure, place.parent)).as_posix()})"
            for figure in outcome.figures
        ]
        for name in outcome.page.shown:
            lines += ["", *_markdown(outcome.records.tables[name])]
    return "\n".join(lines) + "\n"


def _markdown(table: pd.DataFrame) -> list[str]:
    rows = [
        [f"{value:.4g}" if isinstance(value, float) else str(value) for value in row]
        for row in table.itertuples(index=False)
    ]
    cells = [list(table.columns), ["---"] * len(table.columns), *rows]
    return ["| " + " | ".join(row) + " |" for row in cells]


def _table(verdicts: Sequence[Verdict]) -> list[str]:
    rows = [
        "| id | statement | place | loss | verdict | numbers | criterion |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for verdict in verdicts:
        claim = verdict.claim
        loss = f"`{verdict.column}`" if verdict.column else ""
        cells = (
            claim.id,
            claim.statement,
            claim.place,
            loss,
            f"**{verdict.outcome}**",
            verdict.numbers,
            claim.criterion,
        )
        rows.append("| " + " | ".join(cells) + " |")
    return rows
