"""What becomes of a table's columns: which are inputs, how they become numbers, and what the classes are called.

It is fitted to sums over the training samples alone, which add up over sites:

    numbers      (v - mean) / std; a gap becomes the mean, with an indicator beside it if the training samples have gaps
    categories   one input for each word of the training samples; a gap, or a word that they do not have, is all zeros

and it is saved as JSON.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pandas as pd
from pandas.api.types import is_bool_dtype, is_datetime64_any_dtype, is_numeric_dtype

from fedsps.errors import DataError

Sums = dict[str, Any]
"""What a site tells of its training samples: counts, sums, squares and words by column. JSON, and it adds up."""

MOST_CATEGORIES = 50
FEW = 10  # rows: with fewer, any column may look like an id
ID = re.compile(r"(?i:(^|[_\W])(id|uuid|guid|mrn)|^(p|patient|person|subject|case|record|visit|user)id)$|[a-z](ID|Id)$")
COUNTER = re.compile(r"(?i:(^|[_\W])(index|idx|key|nr|no|number))$|[a-z](Index|Key|Nr|No|Number)$")


@dataclass(frozen=True)
class Number:
    """A column of numbers.

    Attributes:
        name: of the column.
        mean: over the training samples that have a value.
        std: the population standard deviation of them.
        gaps: whether some have none.
    """

    name: str
    mean: float
    std: float
    gaps: bool

    @property
    def features(self) -> list[str]:
        """The names of the inputs that the column becomes."""
        return [self.name, f"{self.name} is missing"] if self.gaps else [self.name]

    def inputs(self, column: "pd.Series[Any]") -> npt.NDArray[np.float64]:
        """The column as inputs `[M, 1 or 2]`."""
        values = numbers_of(column)
        missing = np.isnan(values)
        scaled = np.where(missing, 0.0, (values - self.mean) / self.std)
        return np.column_stack([scaled, missing]) if self.gaps else scaled[:, None]


@dataclass(frozen=True)
class Category:
    """A column of words.

    Attributes:
        name: of the column.
        values: its words in the training samples, sorted.
    """

    name: str
    values: tuple[str, ...]

    @property
    def features(self) -> list[str]:
        """The names of the inputs that the column becomes."""
        return [f"{self.name}={value}" for value in self.values]

    def inputs(self, column: "pd.Series[Any]") -> npt.NDArray[np.float64]:
        """The column as inputs `[M, words]`, of which one at most is 1."""
        hot: npt.NDArray[np.bool_] = words_of(column)[:, None] == np.array(self.values, dtype=object)
        return hot.astype(np.float64)


@dataclass(frozen=True)
class Columns:
    """How a table's rows become inputs and targets.

    Attributes:
        inputs: the columns that are used, in the table's order.
        target: the column to predict.
        classes: what the classes are called, by their numbers; empty for a regression.
        client: the column that says whose row it is, if there is one.
        left_out: columns that are not used, and why.

    >>> frame = pd.DataFrame({"age": [30, 50, None], "sex": ["f", "m", "f"], "ill": ["no", "yes", "no"]})
    >>> columns = Columns.of(frame, target="ill")
    >>> columns.features
    ['age', 'age is missing', 'sex=f', 'sex=m']
    >>> columns(frame)[2].tolist(), columns.targets(frame).tolist()
    ([0.0, 1.0, 1.0, 0.0], [0, 1, 0])
    >>> Columns.from_json(columns.json()) == columns
    True
    """

    inputs: tuple[Number | Category, ...]
    target: str
    classes: tuple[str, ...] = ()
    client: str | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def features(self) -> list[str]:
        """The names of the inputs."""
        return [name for one in self.inputs for name in one.features]

    def __call__(self, frame: pd.DataFrame) -> npt.NDArray[np.float32]:
        """The rows as inputs `[M, features]`.

        Raises:
            DataError: the table lacks columns, or has words where there were numbers; all of them are named.
        """
        missing = [one.name for one in self.inputs if one.name not in frame]
        if missing:
            raise DataError(f"the table has no column {', '.join(map(repr, missing))}, which the model was trained on")
        numbers = [frame[one.name] for one in self.inputs if isinstance(one, Number)]
        wrong = [repr(one.name) for one in numbers if one.notna().any() and np.isnan(numbers_of(one)).all()]
        if wrong:
            raise DataError(f"column {', '.join(wrong)} holds words, but the model was trained on numbers there")
        return np.hstack([one.inputs(frame[one.name]) for one in self.inputs]).astype(np.float32)

    def surprises(self, frame: pd.DataFrame) -> list[str]:
        """What new rows have that the training rows had not, and what becomes of it, in sentences."""
        found = []
        for one in self.inputs:
            column = frame[one.name]
            if isinstance(one, Category):
                strange = sorted({word for word in words_of(column) if word is not None} - set(one.values))
                if strange:
                    some = ", ".join(map(repr, strange[:5])) + (", ..." if len(strange) > 5 else "")
                    known = ", ".join(one.values[:5]) + (", ..." if len(one.values) > 5 else "")
                    found.append(
                        f"column {one.name!r} has {some}, and the training rows {known}: taken as none of them"
                    )
                continue
            missing = np.isnan(numbers_of(column))
            words = int((missing & column.notna()).sum())
            if words:
                found.append(f"column {one.name!r} has {words} values that are no finite numbers: taken as the mean")
            elif missing.any() and not one.gaps:
                found.append(f"column {one.name!r} has {missing.sum()} gaps, the training rows none: taken as the mean")
        return found

    def targets(self, frame: pd.DataFrame) -> npt.NDArray[np.int64] | npt.NDArray[np.float32]:
        """The rows' class numbers, or numbers for a regression.

        Raises:
            DataError: the table has no such column, or a value that is no class of the training samples.
        """
        if self.target not in frame:
            raise DataError(f"the table has no column {self.target!r}, which is to be predicted")
        if not self.classes:
            values = numbers_of(frame[self.target])
            if np.isnan(values).any():
                first = int(np.isnan(values).argmax())
                raise DataError(f"column {self.target!r} has no number in sample {first}, and is to be predicted")
            return values.astype(np.float32)
        numbers = {name: number for number, name in enumerate(self.classes)}
        words = words_of(frame[self.target])
        strange = sorted({str(word) for word in words if word not in numbers})
        if strange:
            some = ", ".join(map(repr, strange[:5])) + (f" and {len(strange) - 5} more" if len(strange) > 5 else "")
            raise DataError(f"column {self.target!r} has {some}; the classes are {', '.join(self.classes)}")
        return np.array([numbers[word] for word in words], dtype=np.int64)

    @classmethod
    def raw(cls, frame: pd.DataFrame, target: str, names: Iterable[str], client: str | None, regression: bool) -> Self:
        """Columns of numbers, taken as they are."""
        numbers = tuple(Number(name, 0.0, 1.0, gaps=False) for name in names)
        rest = [str(name) for name in frame if name not in (target, client)]
        left_out = {name: "was dropped" for name in rest if name not in {one.name for one in numbers}}
        return cls(numbers, target, class_names([_values(frame[target])], regression), client, left_out)

    @classmethod
    def of(
        cls,
        frame: pd.DataFrame,
        target: str,
        *,
        client: str | None = None,
        drop: Iterable[str] = (),
        regression: bool = False,
    ) -> Self:
        """Fitted to one table of training samples; `sums` has the arguments."""
        return cls.from_sums([sums(frame, target, client=client, drop=drop)], regression=regression)

    @classmethod
    def from_sums(cls, sites: Sequence[Sums], *, regression: bool = False) -> Self:
        """Fitted to the sums of several sites: the same as on their rows together.

        Args:
            sites: of each site.
            regression: whether whole-numbered targets are numbers, and no classes.

        Raises:
            DataError: sites have other columns, or words where others have numbers.
        """
        first = sites[0]
        for site in sites:
            if [*site["columns"]] != [*first["columns"]] or site["target"]["name"] != first["target"]["name"]:
                raise DataError(
                    f"sites have different columns: {', '.join(first['columns'])}; {', '.join(site['columns'])}"
                )
        left_out = {name: why for site in sites for name, why in site["left out"].items()}
        inputs: list[Number | Category] = []
        for name in first["columns"]:
            if name in left_out:
                continue
            found = _together([site["columns"][name] for site in sites], name)
            why = _useless(found)
            if why:
                left_out[name] = why
            elif found["words"]:
                inputs.append(Category(name, tuple(sorted(found["words"]))))
            else:
                mean = found["sum"] / found["count"]
                variance = found["squares"] / found["count"] - mean**2
                constant = variance <= 1e-12 * mean**2
                inputs.append(Number(name, mean, 1.0 if constant else float(np.sqrt(variance)), found["gaps"] > 0))
        if not inputs:
            why = "; ".join(f"{name!r} {reason}" for name, reason in left_out.items())
            raise DataError(f"no column is left to predict {first['target']['name']!r} from: {why or 'add some'}")
        classes = class_names([site["target"] for site in sites], regression)
        return cls(tuple(inputs), first["target"]["name"], classes, first["client"], left_out)

    def json(self) -> dict[str, Any]:
        """The columns as plain JSON values."""
        kinds = [{"kind": type(one).__name__.lower(), **asdict(one)} for one in self.inputs]
        return asdict(self) | {"inputs": kinds, "classes": list(self.classes), "left_out": dict(self.left_out)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """The inverse of `json`.

        Raises:
            DataError: something is missing or of the wrong kind.
        """
        try:
            inputs = tuple(_input(dict(one)) for one in content["inputs"])
            target, client = content["target"], content["client"]
            return cls(inputs, str(target), tuple(content["classes"]), client, dict(content["left_out"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(
                f"the description of a table's columns is damaged ({type(error).__name__}: {error})"
            ) from error


def sums(frame: pd.DataFrame, target: str, *, client: str | None = None, drop: Iterable[str] = ()) -> Sums:
    """What a site tells of its training samples: for each column counts, gaps, sums, squares and words.

    Args:
        frame: the site's training samples.
        target: the column to predict.
        client: the column that says whose row it is.
        drop: columns that are not used.
    """
    reasons = drop if isinstance(drop, Mapping) else dict.fromkeys(drop, "was dropped")
    chosen = [str(name) for name in frame if name not in (target, client)]
    left_out = {name: reasons.get(name) or looks_like(frame[name]) for name in chosen}
    return {
        "client": client,
        "columns": {name: {} if left_out[name] else _sums(frame[name]) for name in chosen},
        "left out": {name: why for name, why in left_out.items() if why},
        "target": {"name": target, **_values(frame[target])},
    }


def class_names(targets: Sequence[dict[str, Any]], regression: bool = False) -> tuple[str, ...]:
    """What the classes are called, sorted, of the sums of a target at each site; none for a regression."""
    if regression or any(one["fractions"] for one in targets):
        return ()
    return tuple(sorted({name for one in targets for name in one["words"]}, key=_rank))


def _values(target: "pd.Series[Any]") -> dict[str, Any]:
    words = {str(word) for word in words_of(target) if word is not None}
    fractions = has_fractions(target)
    return {"fractions": fractions, "words": [] if fractions else sorted(words)}


def looks_like(column: "pd.Series[Any]") -> str:
    """Why a column is no input, from its name and values; empty if it may be one.

    >>> looks_like(pd.Series(range(100, 140, 2), name="patient id"))
    'has another value in every row: an id'
    >>> looks_like(pd.Series([7 * (number // 2) for number in range(140)], name="PatientID"))  # two visits each
    'is called an id, and has 70 different values'
    >>> looks_like(pd.Series([1.5, 2.5], name="dose"))
    ''
    """
    name, present = str(column.name), column.dropna()
    if not name.strip() or name.startswith("Unnamed:"):
        return "has no name: an index"
    if len(present) == 0:
        return "is empty"
    all_differ = len(column) >= FEW and len(present) == len(column) and present.is_unique
    if not is_number_like(column):
        if all_differ:
            return "has another value in every row: an id"
        words = len(set(words_of(present)))
        return f"has {words} different words: too many for categories" if words > MOST_CATEGORIES else ""
    values = numbers_of(column)
    if all_differ and not (values % 1).any():
        if (np.diff(values) == 1).all():
            return "counts the rows: an index"
        if ID.search(name) or COUNTER.search(name):
            return "has another value in every row: an id"
    if ID.search(name) and not has_fractions(column) and present.nunique() > MOST_CATEGORIES:
        return f"is called an id, and has {present.nunique()} different values"
    return ""


def is_number_like(column: "pd.Series[Any]") -> bool:
    """Whether it holds numbers, truth values or dates, or nearly so: nine in ten of its words are numbers."""
    if is_numeric_dtype(column) or is_bool_dtype(column) or is_datetime64_any_dtype(column):
        return True
    words = column.dropna()
    return len(words) == 0 or bool(pd.to_numeric(words, errors="coerce").notna().mean() >= 0.9)


def has_fractions(column: "pd.Series[Any]") -> bool:
    """Whether it holds numbers, some with a fraction: as a target it is a regression's."""
    return is_number_like(column) and bool((np.nan_to_num(numbers_of(column)) % 1).any())


def numbers_of(column: "pd.Series[Any]") -> npt.NDArray[np.float64]:
    """A column as numbers, NaN where there is none or it is infinite; dates in days."""
    if is_datetime64_any_dtype(column):
        since = (column - pd.Timestamp(0, tz=column.dt.tz)) / pd.Timedelta(days=1)
        days: npt.NDArray[np.float64] = np.asarray(since, dtype=np.float64)
        return days
    values = pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    return np.where(np.isfinite(values), values, np.nan)


def words_of(column: "pd.Series[Any]") -> npt.NDArray[np.object_]:
    """A column as words, None where there is none; 1 and 1.0 are the same."""
    return np.array([_word(value) for value in column], dtype=object)


def _word(value: Any) -> str | None:
    if pd.isna(value):
        return None
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()


def _sums(column: "pd.Series[Any]") -> dict[str, Any]:
    gaps = int(column.isna().sum())
    if is_number_like(column):
        values = numbers_of(column)
        present = values[~np.isnan(values)]
        parts = {"sum": float(present.sum()), "squares": float((present**2).sum()), "words": []}
        return {"count": len(present), "gaps": len(values) - len(present), **parts}
    words = sorted({word for word in words_of(column) if word is not None})
    return {"count": len(column) - gaps, "gaps": gaps, "sum": 0.0, "squares": 0.0, "words": words}


def _together(parts: Sequence[dict[str, Any]], name: str) -> dict[str, Any]:
    """The sums of all sites of one column."""
    kinds = {bool(part["words"]) for part in parts if part["count"]}
    if len(kinds) > 1:
        raise DataError(f"column {name!r} holds words at one site and numbers at another: write it the same everywhere")
    added = {key: sum(part[key] for part in parts) for key in ("count", "gaps", "sum", "squares")}
    return added | {"words": sorted({word for part in parts for word in part["words"]})}


def _useless(found: dict[str, Any]) -> str:
    """Why a column says nothing, from its sums; empty if it does."""
    count, words = found["count"], found["words"]
    if count == 0:
        return "is empty"
    if len(words) > MOST_CATEGORIES:
        return f"has {len(words)} different words: too many for categories"
    mean = found["sum"] / count
    constant = len(words) == 1 if words else found["squares"] / count - mean**2 <= 1e-12 * mean**2
    return "has one value alone" if constant and not found["gaps"] else ""


def _rank(name: str) -> tuple[bool, float, str]:
    """Numbers by their size, then words."""
    try:
        return False, float(name), name
    except ValueError:
        return True, 0.0, name


def _input(one: dict[str, Any]) -> Number | Category:
    kind = one.pop("kind")
    if kind == "category":
        return Category(str(one["name"]), tuple(map(str, one["values"])))
    return Number(str(one["name"]), float(one["mean"]), float(one["std"]), bool(one["gaps"]))
