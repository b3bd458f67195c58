"""A page read back from the files that `reproduce` wrote, so that it can be judged and drawn again without training.

A verdict is a pure function of records, and the tables of a page hold its records: of every run a hundred rounds and
those that were evaluated, in six digits. So a claim that is written anew can be put to numbers that took days, and a
page that takes days can be run in stretches, on machines that share nothing but its tables.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pandas as pd

from fedsps.core.plan import Plan
from fedsps.errors import DataError
from fedsps.methods.notation import Named, named
from fedsps.paper.document import read
from fedsps.paper.page import LOSSES, PARTS, SECONDS, Cost, Known, Page, Records, Scale, Winner
from fedsps.runs.files import read_json, write_json
from fedsps.runs.result import Result
from fedsps.runs.spec import Spec

KEYS = ["panel", "line", "seed"]
SEARCHES = "{}-searches.json"  # by page: what searches chose whose panels were not complete when that was known


def stored(page: Page, folder: Path) -> tuple[Mapping[str, Any], Records]:
    """The content of `PAGE.json`, and the records that lie beside it in `PAGE.csv` and its other tables.

    Args:
        page: which one.
        folder: where `reproduce` wrote it.

    Raises:
        DataError: if PAGE.json or a table is missing or damaged.
    """
    found = read(folder / f"{page.name}.json")
    try:
        return found, _records(page, found, folder)
    except (KeyError, ValueError, TypeError, AttributeError, StopIteration) as error:  # whatever damage leads to
        raise DataError(
            f"{folder / page.name}.json does not go with the tables beside it ({type(error).__name__}: {error}): bring "
            f"them back as they were written, or remove them and run fedsps reproduce {page.name} again"
        ) from error


def _records(page: Page, found: Mapping[str, Any], folder: Path) -> Records:
    """The records in the tables of a page."""
    paths = [path for path in sorted(folder.glob("*.csv")) if path.stem.split("-")[0] == page.name]
    tables = {path.stem: pd.read_csv(path) for path in paths}
    histories = {}
    if set(KEYS) <= set(tables.get(page.name, pd.DataFrame()).columns):
        histories = dict(iter(tables.pop(page.name).groupby(KEYS)))
    runs: dict[str, dict[str, list[Result]]] = {}
    digests, winners = {}, {}
    for panel in found["panels"]:
        for line in panel["lines"]:
            name, label = panel["name"], line["label"]
            digests[name, label] = line["runs"]
            runs.setdefault(name, {})[label] = [
                _run(line, histories, (name, label, seed))
                for seed in range(len(line.get("seconds", ())) or found["seeds"])
            ]
            if line.get("search"):
                winners[name, label] = _winner(line)
    cost = Cost(**{one.name: found[one.name] for one in fields(Cost)})
    return Records(runs, digests, winners, tables, cost)


def known(pages: Sequence[Page], asked: Page, scale: Scale, folder: Path) -> Known:
    """What the tables in the folder hold that a page can be made of: runs, and the winners of searches.

    Lines that an earlier version wrote do not say of which parts their algorithm was: their runs are left out. So are
    those of pages that keep other rounds of a run. Searches that were noted when their panel was not complete count.

    Args:
        pages: all that may lie there.
        asked: the one that is to be run.
        scale: at which.
        folder: where `reproduce` wrote them.
    """
    seeds = 0
    runs: dict[tuple[str, str], Result] = {}
    winners: dict[tuple[str, str, str], Winner] = {}
    panels: set[tuple[str, str]] = set()
    for page in pages:
        for noted in _noted(folder / SEARCHES.format(page.name)):
            winner = _winner(noted)
            if noted["parts"] == winner.chosen.parts:
                winners |= {(winner.search, noted["search"]["pick"], column): winner for column in winner.on}
        if not (folder / f"{page.name}.json").is_file():
            continue
        found, records = stored(page, folder)
        if page.name == asked.name and found["scale"] == scale:
            panels |= {(page.name, panel["name"]) for panel in found["panels"]}
            seeds = found["seeds"]
        for panel in found["panels"]:
            for line in panel["lines"]:
                if line.get("parts") and page.kept is asked.kept:
                    of_line = zip(line["runs"], records.of(panel["name"], line["label"]), strict=True)
                    runs |= {(digest, line["parts"]): run for digest, run in of_line}
                if line.get("search") and line.get("parts", "") in ("", _winner(line).chosen.parts):
                    winner, search = _winner(line), line["search"]
                    winners |= {(search["name"], search["pick"], column): winner for column in winner.on}
    return Known(runs, winners, frozenset(panels), seeds)


def note_winner(path: Path, winner: Winner, pick: str) -> None:
    """Add to a file what a search chose, so that it is not lost with a panel that is not completed.

    Args:
        path: the file, of the page's own.
        winner: what was chosen.
        pick: which of the search's points that is.
    """
    search = {"name": winner.search, "pick": pick, "on": list(winner.on)}
    found = {
        "algorithm": winner.chosen.name,
        "tuned": dict(winner.chosen.parameters),
        "parts": winner.chosen.parts,
        "search": search | {"trials": winner.trials, "seconds": round(winner.seconds, 3)},
    }
    write_json(path, {"searches": [*_noted(path), found]})


def forget_winners(path: Path, written: Iterable[Winner]) -> None:
    """Remove such a file when all that it holds is among the winners that a page's tables have."""
    there = {winner.search for winner in written}
    if path.is_file() and all(noted["search"]["name"] in there for noted in _noted(path)):
        path.unlink()


def _noted(path: Path) -> list[dict[str, Any]]:
    """The searches in such a file, if it is there.

    Raises:
        DataError: it is damaged.
    """
    if not path.is_file():
        return []
    noted: Any = read_json(path).get("searches")
    try:
        return [one for one in noted if _winner(one) and one["parts"] and one["search"]["pick"]]
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path} does not hold searches as they were noted ({type(error).__name__}: {error}): bring it back as it "
            "was written, or remove it, and they are made again"
        ) from error


def _winner(line: Mapping[str, Any]) -> Winner:
    """What a search chose for a line."""
    search, start = line["search"], named(line["algorithm"])
    chosen = Named(start.name, start.parameters | line["tuned"])
    return Winner(search["name"], chosen, search["trials"], search["seconds"], tuple(search.get("on", LOSSES[:1])))


def _run(line: Mapping[str, Any], histories: Mapping[Any, pd.DataFrame], key: tuple[str, str, int]) -> Result:
    """One run of a line; a run that diverged in its first round has an empty history.

    Raises:
        ValueError: the run did not diverge, and has no rows.
    """
    seed = key[2]
    diverged_at = line["diverged"].get(str(seed))
    if key not in histories and diverged_at is None and line.get("seconds"):
        raise ValueError(f"no rows of {key}")
    history = histories[key] if key in histories else next(iter(histories.values())).head(0)
    seconds = line["seconds"][seed] if line.get("seconds") else 0.0
    return Result(
        model=None,
        history=history.drop(columns=KEYS).reset_index(drop=True),
        spec=Spec(algorithm=line["algorithm"], parameters=line["tuned"], plan=Plan(seed=seed)),
        diverged_at=diverged_at,
        provenance={SECONDS: seconds, PARTS: line.get("parts", "")},
    )
