"""Find what a report shows: run folders, folders of them, and the pages that `fedsps reproduce` wrote.

Nothing is trained or written here. A place that holds nothing to show is an error, not an empty report.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from fedsps.errors import DataError
from fedsps.runs.files import read_json
from fedsps.runs.result import SUMMARY, Result

KEYS = {"page", "title", "note", "scale", "seconds", "shown", "verdicts", "panels"}  # of PAGE.json


@dataclass(frozen=True)
class Run:
    """A finished run and where it lies.

    Attributes:
        folder: as it was found; its name is the digest, unless it was saved from Python.
        result: its numbers, without the model.
    """

    folder: Path
    result: Result


@dataclass(frozen=True)
class Reproduced:
    """A page of the reproduction, as it lies in its folder.

    Attributes:
        found: the content of PAGE.json.
        table: the rows of PAGE.csv, if it is there.
        shown: the tables that the page shows beside its figures, by name.
    """

    found: dict[str, Any]
    table: pd.DataFrame | None
    shown: dict[str, pd.DataFrame]

    @property
    def digests(self) -> set[str]:
        """The runs that its figures show, by the names of their folders."""
        return {digest for panel in self.found["panels"] for line in panel["lines"] for digest in line["runs"]}


@dataclass(frozen=True)
class Material:
    """All that a report shows.

    Attributes:
        runs: each once, even if it was named twice.
        pages: in the paper's order.
        left_out: how many runs lie next to those of a page but are not on it, as the trials of a search.
    """

    runs: Sequence[Run]
    pages: Sequence[Reproduced]
    left_out: int


def collect(places: Sequence[Path], order: Sequence[str] = ()) -> Material:
    """What the folders hold.

    The runs of a reproduction share their folder with the trials of its searches: of such a folder only the runs that
    a page shows are taken.

    Args:
        places: run folders, folders of such, and output folders of `fedsps reproduce`.
        order: the names of the pages of a reproduction, as they are to be shown.

    Raises:
        DataError: for a place that is not there, holds neither a run nor a page, or holds something damaged.
    """
    contents = {place: (_run_folders(place), _pages(place, order)) for place in places}
    pages = [page for _, pages_there in contents.values() for page in pages_there]
    wanted = {digest for page in pages for digest in page.digests}
    chosen: dict[Path, Path] = {}  # by its true path, so that a run named twice is there once
    left_out = 0
    for place, (folders, pages_there) in contents.items():
        if not folders and not pages_there:
            raise DataError(
                f"{place} holds no finished run and no reproduced page: give run folders (they have a {SUMMARY}), "
                "folders of such folders, or the output folder of fedsps reproduce"
            )
        on_pages = [folder for folder in folders if folder.name in wanted]
        if on_pages:
            left_out += len(folders) - len(on_pages)
        chosen |= {folder.resolve(): folder for folder in on_pages or folders}
    return Material([Run(folder, Result.load(folder)) for folder in chosen.values()], pages, left_out)


def _run_folders(place: Path) -> list[Path]:
    """The folder itself if it is a finished run, else the finished runs right below it."""
    if not place.is_dir():
        what = "is a file, not a folder" if place.exists() else "does not exist"
        raise DataError(f"{place} {what}: give run folders, or the output folder of fedsps reproduce")
    if (place / SUMMARY).is_file():
        return [place]
    return sorted(summary.parent for summary in place.glob(f"*/{SUMMARY}"))


def _pages(place: Path, order: Sequence[str]) -> list[Reproduced]:
    """The reproduced pages in a folder, in the paper's order; other JSON files are none.

    A file of a page's name that cannot be read, or lacks what a report needs, is an error: left out, nobody would
    miss it.
    """
    if (place / SUMMARY).is_file():
        return []
    pages = []
    places = list(order)
    for path in sorted(place.glob("*.json"), key=lambda path: places.index(path.stem) if path.stem in places else -1):
        try:
            content = read_json(path)
        except DataError as error:
            if path.stem not in order:
                continue
            raise DataError(f"{error}: run fedsps reproduce again, or take the file out of the folder") from error
        if not content.keys() >= KEYS:
            if path.stem in order and "verdicts" in content:
                raise DataError(f"{path} was written by another version: run fedsps reproduce {path.stem} again")
            continue
        table = path.with_suffix(".csv")
        shown = {name: _table(place / f"{name}.csv") for name in content["shown"]}
        pages.append(Reproduced(content, _table(table) if table.is_file() else None, shown))
    return pages


def _table(path: Path) -> pd.DataFrame:
    """A table as CSV; panels and lines are names, even where they look like numbers."""
    try:
        return pd.read_csv(path, dtype={"panel": str, "line": str})
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error})") from error
