"""A page read back from the files that `reproduce` wrote, so that it can be judged and drawn again without training.

A verdict is a pure function of records, and the tables of a page hold its records: of every run a hundred rounds and
those that were evaluated, in six digits. So a claim that is written anew can be put to numbers that took days.
"""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pandas as pd

from fedsps.core.plan import Plan
from fedsps.paper.document import read
from fedsps.paper.page import Cost, Page, Records
from fedsps.runs.result import Result
from fedsps.runs.spec import Spec

KEYS = ["panel", "line", "seed"]


def stored(page: Page, folder: Path) -> tuple[Mapping[str, Any], Records]:
    """The content of `PAGE.json`, and the records that lie beside it in `PAGE.csv` and its other tables.

    Args:
        page: which one.
        folder: where `reproduce` wrote it.

    Raises:
        DataError: if PAGE.json is missing or damaged.
    """
    found = read(folder / f"{page.name}.json")
    paths = [path for path in sorted(folder.glob("*.csv")) if path.stem.split("-")[0] == page.name]
    tables = {path.stem: pd.read_csv(path) for path in paths}
    histories = {}
    if set(KEYS) <= set(tables.get(page.name, pd.DataFrame()).columns):
        histories = dict(iter(tables.pop(page.name).groupby(KEYS)))
    runs: dict[str, dict[str, list[Result]]] = {}
    digests = {}
    for panel in found["panels"]:
        for line in panel["lines"]:
            name, label = panel["name"], line["label"]
            digests[name, label] = line["runs"]
            runs.setdefault(name, {})[label] = [
                _run(line, histories, (name, label, seed)) for seed in range(found["seeds"])
            ]
    cost = Cost(**{one.name: found[one.name] for one in fields(Cost)})
    return found, Records(runs, digests, tables, cost)


def _run(line: Mapping[str, Any], histories: Mapping[Any, pd.DataFrame], key: tuple[str, str, int]) -> Result:
    """One run of a line; a run that diverged in its first round has an empty history."""
    history = histories[key] if key in histories else next(iter(histories.values())).head(0)
    spec = Spec(algorithm=line["algorithm"], parameters=line["tuned"], plan=Plan(seed=key[2]))
    return Result(None, history.drop(columns=KEYS).reset_index(drop=True), spec, line["diverged"].get(str(key[2])))
