"""A table file as a data frame, however it was exported: separators, decimal commas, encodings, missing headers.

What was guessed is told in notes; what cannot be read is refused by name.
"""

import csv
import io
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype
from pandas.errors import EmptyDataError, ParserError, ParserWarning

from fedsps.errors import DataError

TEXTS = (".csv", ".tsv", ".txt")
TABLES = (*TEXTS, ".parquet", ".feather")
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
GAPS = ("?", "-", ".")  # beside those that pandas knows: an empty cell, NA, NaN, null, ...
DECIMAL = re.compile(r"[+-]?(\d+|\d{1,3}(\.\d{3})+)(,\d+)?([eE][+-]?\d+)?")  # 3,7 and 1.234,5 and 4,2e-05
THOUSAND = re.compile(r"[+-]?\d{1,3}(,\d{3})+")  # 1,234: in a file with commas it may be a thousand


def read_frame(path: Path, as_written: bool = False) -> tuple[pd.DataFrame, list[str]]:
    """The table in a file, and what had to be guessed to read it.

    Args:
        path: .csv (.tsv, .txt), .parquet or .feather.
        as_written: keep the cells of a text as texts: an id 007 stays what it is.

    Raises:
        DataError: the file is not there, is no table, has no header or no rows.
    """
    suffix = path.suffix.lower()
    if not path.is_file():
        raise DataError(f"{path}: there is no such file")
    if suffix in TEXTS:
        frame, notes = _text(path, as_written)
    elif suffix in TABLES:
        read = pd.read_parquet if suffix == ".parquet" else pd.read_feather
        try:
            frame, notes = read(path), []
            for name in frame.select_dtypes("object"):  # lists cannot be counted, their texts can
                if frame[name].map(lambda value: isinstance(value, list | dict | np.ndarray)).any():
                    frame[name] = frame[name].map(str, na_action="ignore")
        except (OSError, ValueError) as error:
            raise DataError(f"{path} cannot be read ({error}): write it again as {suffix}, or as .csv") from error
    elif suffix == ".npz":
        raise DataError(f"{path} holds arrays, and a table is needed here: {', '.join(TABLES)}")
    else:
        raise DataError(f"{path}: only {', '.join(TABLES)} and .npz can be read; save it as one of them")
    frame.columns = [str(name).strip() for name in frame.columns]
    twice = sorted({name for name in frame.columns if list(frame.columns).count(name) > 1})
    if twice:
        raise DataError(f"{path}: two columns are called {twice[0]!r}: rename one")
    if frame.empty:
        raise DataError(f"{path} has no samples: below the header write one line a sample")
    return frame, notes


def _text(path: Path, as_written: bool) -> tuple[pd.DataFrame, list[str]]:
    """A table of text; a line with more values than there are columns is an error, pandas alone would drop them."""
    text, notes = _decoded(path)
    if (told := re.match(r"sep=.\r?\n", text)) is not None:  # what Excel writes for itself
        text = text[told.end() :]
    lines = [line for line in text.splitlines()[:50] if line.strip()]
    separator = _separator(lines)
    if separator != ",":
        notes.append(f"its values are separated by {SEPARATORS[separator]}")
    header = [cell.strip() for cell in next(csv.reader(lines[:1], delimiter=separator), [])]
    _check_header(path, header)
    if twice := [name for name in dict.fromkeys(header) if name and header.count(name) > 1]:
        raise DataError(f"{path}: two columns are called {twice[0]!r}: rename one")  # pandas would rename it
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", ParserWarning)
            frame: pd.DataFrame = pd.read_csv(
                io.StringIO(text),
                sep=separator,
                index_col=False,
                low_memory=False,
                skipinitialspace=True,
                na_values=list(GAPS),
                na_filter=not as_written,
                dtype=str if as_written else None,
            )
    except (EmptyDataError, ParserError, ParserWarning) as error:
        raise DataError(f"{path} cannot be read ({error}): write a header, then one line a sample") from error
    for name in [] if as_written else frame:
        numbers = _decimals(frame[name], separator)
        if numbers is not None:
            frame[name] = numbers
            notes.append(f"column {str(name).strip()!r} has decimal commas")
    return frame, notes


def _decoded(path: Path) -> tuple[str, list[str]]:
    """The text of a file: UTF-8, UTF-16 with its mark, or Latin-1, which every file could be."""
    content = path.read_bytes()
    for mark, encoding in ((b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16")):
        if content.startswith(mark):
            return content.decode(encoding, errors="replace"), ["it is encoded in UTF-16"]
    if b"\0" in content:
        raise DataError(f"{path} is no text: save it as .csv, or give it the suffix that it should have")
    try:
        return content.decode("utf-8-sig"), []
    except UnicodeDecodeError:
        pass
    try:
        return content.decode("cp1252"), ["it is no UTF-8: read as Latin-1 (Windows-1252)"]
    except UnicodeDecodeError:
        return content.decode("latin-1"), ["it is no UTF-8: read as Latin-1"]


def _separator(lines: list[str]) -> str:
    """The separator by which the header has the most cells, and the other lines as many."""
    cells = {}
    for one in SEPARATORS:
        lengths = [len(row) for row in csv.reader(lines, delimiter=one)]
        if lengths and lengths[0] > 1 and sum(length == lengths[0] for length in lengths) > 0.8 * len(lengths):
            cells[one] = lengths[0]
    return max(cells, key=lambda one: cells[one], default=",")


def _check_header(path: Path, header: list[str]) -> None:
    """Refuse a first line that looks like data: half of its cells or more are numbers, or one has a fraction."""
    numbers = [cell for cell in header if re.fullmatch(r"\s*[+-]?\d+([.,]\d+)?([eE][+-]?\d+)?\s*", cell)]
    counted = [cell.strip() for cell in header] == [str(number) for number in range(len(header))]
    if counted or not numbers:
        return
    if 2 * len(numbers) >= len(header) or any(re.search(r"[.,+-]", cell) for cell in numbers):
        first = ", ".join(header[:5]) + (", ..." if len(header) > 5 else "")
        raise DataError(
            f"{path} has no header: its first line, {first}, looks like data: write the columns' names above it"
        )


def _decimals(column: "pd.Series[str]", separator: str) -> "pd.Series[Any] | None":
    """A column of texts as numbers if nine in ten are written with decimal commas; None if not.

    What is no number stays the word that it is. In a file with commas between its values, one that could be thousands,
    1,234, stays a word too.
    """
    if is_numeric_dtype(column):
        return None
    words = column.dropna().astype(str).str.strip()
    written = words.str.fullmatch(DECIMAL.pattern)
    if not len(words) or written.mean() < 0.9 or not words[written].str.contains(",").any():
        return None
    if separator == "," and words.str.fullmatch(THOUSAND.pattern).any():
        return None
    plain = words[written].str.replace(".", "", regex=False).str.replace(",", ".", regex=False).astype(float)
    numbers = plain if written.all() else pd.concat([plain, words[~written]])
    return numbers.reindex(column.index)
