"""The pages that are kept in docs say what today's code makes of their tables: verdicts, reasons, and the document."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedsps.paper import reproduce
from fedsps.paper.document import document, verdict_table
from fedsps.paper.reproduce import PAGES, find, judge_again

DOCS = Path(__file__).parents[1] / "docs"
KEPT = DOCS / "images" / "reproduction"
AGAIN = "fedsps reproduce PAGE --from-tables --output docs/images/reproduction --text docs/reproduction.md"


@pytest.mark.parametrize("name", [name for name in PAGES if (KEPT / f"{name}.json").is_file()])
def test_the_kept_verdicts_are_those_of_today(name, tmp_path, monkeypatch):
    monkeypatch.setattr(reproduce, "draw_intervals", lambda verdicts, path: False)
    for path in KEPT.glob(f"{name}*.csv"):
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / f"{name}.json").write_bytes((KEPT / f"{name}.json").read_bytes())
    judge_again(replace(find(name), draw=lambda *given: []), tmp_path)
    now, kept = (json.loads((folder / f"{name}.json").read_text()) for folder in (tmp_path, KEPT))
    words = [key for key in kept["verdicts"][0] if key not in ("mean", "effect", "interval", "numbers")]
    for verdict, before in zip(now["verdicts"], kept["verdicts"], strict=True):
        assert {key: verdict[key] for key in words} == {key: before[key] for key in words}, AGAIN
    means = [[verdict["mean"] for verdict in page["verdicts"]] for page in (now, kept)]  # None: infinite, or undefined
    np.testing.assert_allclose(*np.array(means, dtype=float), rtol=1e-3, atol=1e-6)


def test_the_document_is_that_of_the_kept_pages():
    assert document(KEPT, DOCS / "reproduction.md", list(PAGES)) == (DOCS / "reproduction.md").read_text(), AGAIN


def test_the_table_of_verdicts_is_that_of_the_kept_pages(tmp_path):
    verdict_table(KEPT, list(PAGES)).to_csv(tmp_path / "verdicts.csv", index=False, float_format="%.6g")
    now, kept = (pd.read_csv(folder / "verdicts.csv") for folder in (tmp_path, KEPT))
    pd.testing.assert_frame_equal(now, kept)
