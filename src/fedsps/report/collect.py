"""Find what a report shows: run folders, folders of them, and the pages that `fedsps reproduce` wrote."""

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
    """A finished run; the name of its folder is the digest, unless it was saved from Python."""

    folder: Path
    result: Result


@dataclass(frozen=True)
class Reproduced:
    """A page of the reproduction: PAGE.json, the rows of PAGE.csv if it is there, and the tables that it shows."""

    found: dict[str, Any]
    table: pd.DataFrame | None
    shown: dict[str, pd.DataFrame]

    @property
    def digests(self) -> set[str]:
        """The runs that its figures show."""
        return {digest for panel in self.found["panels"] for line in panel["lines"] for digest in line["runs"]}


@dataclass(frozen=True)
class Material:
    """Everything found; `left_out` counts the runs that lie next to those of a page but are not on it."""

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
    """
    found = {place: (_run_folders(place), _pages(place, order)) for place in places}
    pages = [page for _, some in found.values() for page in some]
    wanted = {digest for page in pages for digest in page.digests}
    chosen: dict[Path, Path] = {}  # by its true path, so that a run named twice is there once
    left_out = 0
    for place, (folders, own) in found.items():
        if not folders and not own:
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
    """The reproduced pages in a folder, in the paper's order; other JSON files are none."""
    if (place / SUMMARY).is_file():
        return []
    pages = []
    places = list(order)
    for path in sorted(place.glob("*.json"), key=lambda path: places.index(path.stem) if path.stem in places else -1):
        try:
            found = read_json(path)
        except DataError as error:
            if path.stem not in order:
                continue
            raise DataError(f"{error}: run fedsps reproduce again, or take the file out of the folder") from error
        if not found.keys() >= KEYS:
            if path.stem in order and "verdicts" in found:
                raise DataError(f"{path} was written by another version: run fedsps reproduce {path.stem} again")
            continue
        table = path.with_suffix(".csv")
        shown = {name: _table(place / f"{name}.csv") for name in found["shown"]}
        pages.append(Reproduced(found, _table(table) if table.is_file() else None, shown))
    return pages


def _table(path: Path) -> pd.DataFrame:
    try:
        return pd.read_csv(path, dtype={"panel": str, "line": str})
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error})") from error
