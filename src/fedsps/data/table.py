"""A table as it is in life: looked at once, all findings together, and made into clients' inputs and targets."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from fedsps.core.streams import Indices
from fedsps.data.columns import (
    Category,
    Columns,
    Number,
    has_fractions,
    is_number_like,
    looks_like,
    numbers_of,
    words_of,
)
from fedsps.data.load import LabelledData, hold_out
from fedsps.data.read import read_frame
from fedsps.errors import ConfigurationError, DataError, unknown

Pairs = dict[str, tuple[npt.NDArray[np.float32], npt.NDArray[Any]]]


class Table:
    """A data frame whose rows are samples, with a column to predict and one that says whose row it is.

    A fifth of the rows is held out for testing, of each client if there are clients. On the others the columns are
    fitted (see `fedsps.data.Columns`): numbers are standardised, words become one input each, gaps are filled in and
    marked. Columns that look like an index or an id are left out. `findings` says all that.

    Args:
        frame: the rows, with a column of its name for each value.
        target: the column to predict; "target" if there is one, else the last.
        client: the column that says whose row it is.
        drop: columns to leave out.
        regression: keep whole-numbered targets as numbers, instead of making classes of them.
        raw: take numbers as they are, and refuse words and gaps.
        name: what messages call it.
        notes: findings of whoever read the file.

    Attributes:
        frame: the rows that are used.
        target: the column to predict.
        client: the column that says whose row it is, or None.
        columns: how rows become inputs and targets.
        findings: what was found and what is done about it, in sentences.
        train: the numbers of the rows to train on.
        test: the numbers of those that are held out.

    Raises:
        ConfigurationError: a column that was named is not there.
        DataError: the table cannot be used; all reasons are named at once.

    >>> rows = {"site": ["north", "south"] * 10, "age": [30, 51, 42, 67] * 5, "ill": ["no", "yes"] * 10}
    >>> table = Table(pd.DataFrame(rows), target="ill", client="site")
    >>> table.columns.classes, {name: len(targets) for name, (_, targets) in table.clients.items()}
    (('no', 'yes'), {'north': 8, 'south': 8})
    """

    def __init__(
        self,
        frame: pd.DataFrame,
        *,
        target: str | None = None,
        client: str | None = None,
        drop: Iterable[str] = (),
        regression: bool = False,
        raw: bool = False,
        name: str = "the table",
        notes: Iterable[str] = (),
    ) -> None:
        names = [str(column) for column in frame.columns]
        frame = frame.set_axis(names, axis=1)
        drop = [drop] if isinstance(drop, str) else list(drop)
        for column in (client, target, *drop):
            if column is not None and column not in names:
                raise DataError(f"{name}: {unknown('column', column, names)}")
        usable = [column for column in names if column != client and column not in drop]
        if target is None and usable:
            target = "target" if "target" in usable else usable[-1]
        if target is None or target == client or target in drop or len(usable) < 2:
            raise DataError(f"{name}: besides target {target!r} and client {client!r} it needs input columns")
        self.name, self.target, self.client, self.findings = name, target, client, list(notes)
        self.frame = self._whole_rows(frame, regression)
        self.train, self.test = hold_out(len(self.frame), self.owners)
        if raw:
            self.columns = self._as_they_are([one for one in usable if one != target], regression)
            return
        reasons = dict.fromkeys(drop, "was dropped") | {
            column: why for column in usable if column != target and (why := looks_like(self.frame[column]))
        }
        training = self.frame.iloc[self.train]
        try:
            fitted = Columns.of(training, target, client=client, drop=reasons, regression=regression)
        except DataError as error:
            raise DataError(f"{name}: {error}") from error
        self.columns = fitted
        self._tell(drop, regression)

    @classmethod
    def read(cls, path: str | Path, **settings: Any) -> "Table":
        """From a .csv, .tsv, .parquet or .feather file.

        Separators, decimal commas and encodings are recognised, and told among the findings.

        Args:
            path: the file; its suffix tells the format.
            **settings: those of `Table`.
        """
        frame, notes = read_frame(Path(path))
        return cls(frame, name=str(path), notes=notes, **settings)

    @property
    def owners(self) -> npt.NDArray[Any] | None:
        """Whose row it is, `[M]`: numbers as such, anything else as words; None without a client column."""
        if self.client is None:
            return None
        column = self.frame[self.client]
        if column.dtype.kind not in "iufb":
            return words_of(column).astype(str)
        numbers = column.to_numpy()
        # a gap elsewhere in the column made 1.0 of 1; a client has the name that it has in other tables
        return numbers.astype(np.int64) if numbers.dtype.kind == "f" and not (numbers % 1).any() else numbers

    @property
    def clients(self) -> Pairs:
        """Each client's inputs and targets to train on, by its name: what `fedsps.train` takes."""
        return self._pairs(self.train)

    @property
    def held_out(self) -> Pairs:
        """Each client's inputs and targets to test on: what `fedsps.train` takes as `test`.

        A client of a single row has none.
        """
        return {name: pair for name, pair in self._pairs(self.test).items() if len(pair[1])}

    @property
    def look(self) -> pd.DataFrame:
        """One row a column: its role, its kind, gaps, different values, and what becomes of it."""
        roles = {one.name: one for one in self.columns.inputs}
        rows = []
        for name in map(str, self.frame):
            column = self.frame[name]
            kind, becomes = "numbers" if is_number_like(column) else "words", ""
            if name == self.target:
                role = "target"
                becomes = f"{len(self.columns.classes)} classes" if self.columns.classes else "numbers: a regression"
            elif name == self.client:
                role, becomes = "client", f"{column.nunique()} clients"
            elif name in roles:
                count = len(roles[name].features)
                role, becomes = "input", "1 input" if count == 1 else f"{count} inputs"
            else:
                role, becomes = "left out", self.columns.left_out.get(name, "was dropped")
            gaps, values = int(column.isna().sum()), int(column.nunique())
            rows.append(
                {"column": name, "role": role, "kind": kind, "gaps": gaps, "values": values, "becomes": becomes}
            )
        return pd.DataFrame(rows)

    def labelled(self, name: str) -> LabelledData:
        """The table as a data set of this name: a training part and a test part."""
        train, test = self.frame.iloc[self.train], self.frame.iloc[self.test]
        owners = self.owners
        return LabelledData(
            name,
            self.columns(train),
            self.columns.targets(train),
            self.columns(test),
            self.columns.targets(test),
            len(self.columns.classes),
            "published",
            None if owners is None else owners[self.train],
            None if owners is None else owners[self.test],
            self.columns.classes,
            self.columns,
        )

    def _pairs(self, rows: Indices) -> Pairs:
        owners = self.owners
        if owners is None:
            raise ConfigurationError(
                f"{self.name} has no client column: name one, client=..., or split the rows yourself"
            )
        inputs, targets = self.columns(self.frame.iloc[rows]), self.columns.targets(self.frame.iloc[rows])
        owned = owners[rows]
        return {str(one): (inputs[owned == one], targets[owned == one]) for one in np.unique(owners)}

    def _whole_rows(self, frame: pd.DataFrame, regression: bool) -> pd.DataFrame:
        """The rows that have a target and a client; the others are left out, with a finding.

        A word, or an infinite value, is no target of a regression.
        """
        for column in (self.target, self.client):
            if column is None:
                continue
            missing, what = frame[column].isna(), "value"
            if missing.all():
                raise DataError(f"{self.name}: column {column!r} is empty")
            if column == self.target and (regression or has_fractions(frame[column])):
                if not is_number_like(frame[column]):
                    raise DataError(
                        f"{self.name}: target {column!r} holds words, and a regression (loss squared) needs numbers: "
                        "leave that loss out, for classes, or write numbers"
                    )
                missing, what = missing | np.isnan(numbers_of(frame[column])), "number"
            if missing.any():
                first = int(missing.argmax())
                count = int(missing.sum())
                self.findings.append(
                    f"column {column!r} has no {what} in {_rows(count)}, the first is sample {first}: left out"
                )
                frame = frame[~missing]
        return frame.reset_index(drop=True)

    def _as_they_are(self, inputs: list[str], regression: bool) -> Columns:
        """Columns of numbers, taken as they are; what else there is, is refused, all of it at once."""
        problems = []
        for name in inputs:
            column = self.frame[name]
            bad = int(np.isnan(numbers_of(column)).sum())
            if not is_number_like(column):
                problems.append(f"column {name!r} holds words")
            elif bad:
                first = int(np.isnan(numbers_of(column)).argmax())
                problems.append(f"column {name!r} has {bad} missing or infinite values, the first in sample {first}")
        if problems:
            raise DataError(f"{self.name}: {'; '.join(problems)}: leave raw out, or encode, fill in or drop them")
        return Columns.raw(self.frame, self.target, inputs, self.client, regression)

    def _tell(self, drop: list[str], regression: bool) -> None:
        """Say what was found."""
        for name, why in self.columns.left_out.items():
            if name not in drop:
                self.findings.append(f"column {name!r} {why}: left out")
        for one in self.columns.inputs:
            column = self.frame[one.name]
            gaps = int(column.isna().sum())
            if isinstance(one, Category):
                filled = f"; {_rows(gaps)} without a value have none of them" if gaps else ""
                self.findings.append(f"column {one.name!r} holds words: {len(one.values)} categories{filled}")
            elif gaps or one.gaps:
                strange = int(np.isnan(numbers_of(column)).sum()) - gaps
                words = f", and {strange} that are no finite numbers" if strange else ""
                self.findings.append(f"column {one.name!r} has {gaps} gaps{words}: filled with the mean, and marked")
        stds = [one.std for one in self.columns.inputs if isinstance(one, Number)]
        if stds:
            spread = f"of standard deviations from {min(stds):.3g} to {max(stds):.3g}"
            self.findings.append(f"{len(stds)} columns of numbers, {spread}, are standardised")
        values = self.frame[self.target].nunique()
        if not self.columns.classes:
            self.findings.append(f"target {self.target!r} holds numbers: a regression")
        elif values > 20 and values > len(self.frame) // 10:
            self.findings.append(
                f"target {self.target!r} has {values} different values in {len(self.frame)} rows, taken as classes: "
                "loss squared makes it a regression"
            )
        elif values == 1:
            self.findings.append(f"target {self.target!r} has one value alone: there is nothing to learn")


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"
