"""Sites whose data is a table: one exchange of sums before the first round, of which all learn the same columns.

    each site      counts, gaps, sums, squares and words of its training rows, by column     -> server
    the server     adds them up to `Columns`, means, standard deviations, words and classes  -> each site

No row leaves a site. The columns then are the setting `table.columns` of the run (JSON), for the model function and for
the sites, and part of its digest. A run that has the setting already, as where sites agreed on it beforehand, asks for
nothing.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import ConfigRecord, Context, RecordDict
from torch import Tensor, from_numpy

from fedsps.errors import ConfigurationError, DataError
from fedsps.flower import wire
from fedsps.flower.config import COLUMNS

if TYPE_CHECKING:  # pandas takes longer to import than a round of a site without tables
    import pathlib

    import pandas

    from fedsps.data.columns import Columns, Sums
    from fedsps.data.table import Table

log = logging.getLogger("flwr.fedsps")
RECORD = "table"  # of a message that brings the columns


@dataclass(frozen=True)
class SiteTable:
    """A site's rows, where the data function returns them instead of `SiteData`; a fifth is for its own test.

    Attributes:
        rows: a data frame, or the file that it is in: .csv, .tsv, .parquet or .feather.
        target: the column to predict.
        drop: columns that are not used, and of which nothing is told.
        regression: whether whole-numbered targets are numbers, and no classes.
    """

    rows: "pandas.DataFrame | str | pathlib.Path"
    target: str
    drop: Sequence[str] = ()
    regression: bool = False

    @cached_property
    def table(self) -> "Table":
        """The rows, looked at, with what was found and which of them are for testing."""
        from fedsps.data.table import Table

        how: dict[str, Any] = {"target": self.target, "drop": self.drop, "regression": self.regression}
        return Table.read(self.rows, **how) if isinstance(self.rows, str | Path) else Table(self.rows, **how)

    @property
    def sums(self) -> "Sums":
        """What the site tells of its training rows; of dropped columns their names alone."""
        from fedsps.data.columns import sums

        training = self.table.frame.iloc[self.table.train]
        return sums(training, self.target, drop=self.drop) | {"regression": self.regression}

    def pairs(self, columns: "Columns") -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor] | None]:
        """The rows to train on and those to test on, as inputs and targets; None where none are left to test on."""

        def pair(rows: Any) -> tuple[Tensor, Tensor]:
            frame = self.table.frame.iloc[rows]
            return from_numpy(columns(frame)), from_numpy(columns.targets(frame))

        return pair(self.table.train), pair(self.table.test) if len(self.table.test) else None


def columns_of(context: Context) -> "Columns":
    """The columns that all sites' rows become inputs by: `len(columns_of(context).features)` is the model's width.

    Args:
        context: Flower's, as the model function gets it.

    Raises:
        ConfigurationError: the run has none: the data are no tables, or the server was not told so (`table=True`).
    """
    from fedsps.data.columns import Columns

    text = context.run_config.get(COLUMNS)
    if text is None:
        raise ConfigurationError(
            f"the run has no {COLUMNS}: make the server by server_app(..., table=True), and return SiteTable as data"
        )
    return Columns.from_json(json.loads(str(text)))


def take(context: Context, content: RecordDict) -> None:
    """Put the columns that a message brings into the run configuration, where the app's functions look."""
    if RECORD in content.config_records:
        context.run_config = {**context.run_config, COLUMNS: str(wire.values(content, RECORD)["columns"])}


def given(columns: "Columns") -> dict[str, ConfigRecord]:
    """The record that brings the columns to a site."""
    return {RECORD: wire.facts(columns=json.dumps(columns.json()))}


def together(told: Mapping[int, str]) -> "Columns":
    """The columns of all sites' tables, by what each told of its own.

    Args:
        told: JSON, by client.

    Raises:
        ConfigurationError: what a site told cannot be used, or sites do not fit together; it is named.
    """
    from fedsps.data.columns import Columns

    sites = []
    for client, text in sorted(told.items()):
        try:
            sites.append(_checked(json.loads(text)))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigurationError(
                f"client {client}: the sums of its table cannot be used ({type(error).__name__})"
            ) from error
    try:
        return Columns.from_sums(sites, regression=any(site["regression"] for site in sites))
    except DataError as error:
        raise ConfigurationError(f"the sites' tables do not go together: {wire.plain_text(error)}") from error


def _checked(site: Any) -> "Sums":
    """What a site sent, as `sums` makes it: names are texts, counts are whole, and all is finite."""
    columns = {}
    for name, one in site["columns"].items():
        columns[str(name)] = _numbers(one) | {"words": [str(word) for word in one["words"]]} if one else {}
    target = site["target"]
    values = {"fractions": bool(target["fractions"]), "words": [str(word) for word in target["words"]]}
    return {
        "client": None,
        "columns": columns,
        "left out": {str(name): wire.plain_text(why) for name, why in site["left out"].items()},
        "target": {"name": str(target["name"]), **values},
        "regression": bool(site["regression"]),
    }


def _numbers(one: Mapping[str, Any]) -> dict[str, Any]:
    """Count, gaps, sum and squares of a column; squares are at least what such a sum needs."""
    count, gaps, total, squares = int(one["count"]), int(one["gaps"]), float(one["sum"]), float(one["squares"])
    sound = min(count, gaps) >= 0 and np.isfinite([total, squares]).all()
    if not sound or total**2 > squares * count * (1 + 1e-6) + 1e-6:
        raise ValueError("no such numbers")
    return {"count": count, "gaps": gaps, "sum": total, "squares": squares}
