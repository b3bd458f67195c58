"""The user's own files as arrays: tables, and `.npz`.

Each problem is a `DataError` that names the file, the array or column, and the first sample with a bad value. Nothing
is repaired or dropped in silence, and nothing is ever unpickled.
"""

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedsps.data.load import Array, Inputs, LabelledData, Labels, hold_out
from fedsps.errors import ConfigurationError, DataError, TableWarning


class _Own(NamedTuple):
    """The samples of a user's file, the last `tests` of them for testing.

    Attributes:
        inputs: `[samples, *]`, float32 and finite.
        targets: `[samples]`, as the file has them: numbers or words.
        clients: an id for each training sample, or None.
        tests: how many samples at the end are for testing; 0 if the file says nothing of it.
    """

    inputs: Inputs
    targets: Array
    clients: Array | None
    tests: int = 0


def from_file(
    path: str | Path,
    client_column: str | None = None,
    target_column: str | None = None,
    regression: bool = False,
    *,
    drop: Iterable[str] = (),
    raw: bool = False,
) -> LabelledData:
    """The user's own data: a table (`.csv`, `.tsv`, `.parquet`, `.feather`), or arrays (`.npz`).

    `.npz`: arrays `inputs` and `targets`, if wanted `clients` (an id for each sample), `test_inputs` and
    `test_targets`. Tables are read as `fedsps.data.Table` says; each of its findings is a warning. Without a test part
    a fifth is held out, of each client if there are clients.

    Targets become classes 0..K-1 in sorted order; they stay as they are if some are fractions, or for `regression`.

    Args:
        path: the file; its suffix tells the format.
        client_column: the column of client ids; for tables alone.
        target_column: the column of targets; for tables alone.
        regression: keep whole-numbered targets as numbers instead of making classes of them.
        drop: columns to leave out; for tables alone.
        raw: take a table's numbers as they are, and refuse words and gaps.

    Raises:
        DataError: the file is not there or cannot be read, arrays or columns are missing or do not fit together, or
            values are missing, infinite or no numbers.
        ConfigurationError: columns were named for an `.npz`.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     file = Path(folder) / "mine.npz"
    ...     np.savez(file, inputs=np.eye(5), targets=["no", "yes", "no", "yes", "no"], clients=[1, 1, 1, 2, 2])
    ...     data = from_file(file)
    >>> data.name, data.class_names, data.inputs.shape, data.test_inputs.shape
    ('mine', ('no', 'yes'), (3, 5), (2, 5))
    """
    path = Path(path)
    if path.suffix.lower() != ".npz":
        from fedsps.data.table import Table  # pandas takes a while

        roles = {"client": client_column, "target": target_column, "drop": drop}
        table = Table.read(path, **roles, regression=regression, raw=raw)
        for finding in table.findings:
            warnings.warn(f"{path}: {finding}", TableWarning, stacklevel=2)
        return table.labelled(path.stem)
    if client_column or target_column or drop:
        raise ConfigurationError(f"{path}: columns are for tables; name the arrays 'targets' and 'clients'")
    samples = _npz(path)
    inputs, (targets, names) = samples.inputs, _class_numbers(samples.targets, f"{path}: the target", regression)
    rows = np.arange(len(inputs))
    train, test = np.split(rows, [-samples.tests]) if samples.tests else hold_out(len(rows), samples.clients)
    parts = inputs[train], targets[train], inputs[test], targets[test]
    clients = None if samples.clients is None else samples.clients[train]
    owners = None if samples.clients is None or samples.tests else samples.clients[test]
    return LabelledData(path.stem, *parts, len(names), "published", clients, owners, names)


def inputs_of(path: Path) -> Inputs:
    """The array `inputs` of an `.npz`, for predictions: it needs no targets.

    Raises:
        DataError: it is no `.npz`, has no such array, or that holds something else than numbers.
    """
    if path.suffix.lower() != ".npz":
        raise DataError(f"{path}: the run trained on arrays: give an .npz with an array 'inputs'")
    arrays = _arrays(path)
    if "inputs" not in arrays:
        raise DataError(f"{path} has no array 'inputs', only {', '.join(arrays)}: add it, or rename one")
    return _numbers(arrays["inputs"], f"{path}: array 'inputs'")


def _arrays(path: Path) -> dict[str, Array]:
    """All arrays of an `.npz`."""
    if not path.is_file():
        raise DataError(f"{path}: there is no such file")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays: dict[str, Array] = {name: archive[name] for name in archive.files}
            if other := [name for name, value in arrays.items() if not isinstance(value, np.ndarray)]:
                raise ValueError(f"{other[0]!r} is no array")
            return arrays
    except Exception as error:  # whatever a damaged file makes it raise, lack of memory for what it claims included
        raise DataError(f"{path} is no .npz of plain arrays ({error}): write it with numpy.savez") from error


def _npz(path: Path) -> _Own:
    """The arrays of an `.npz`; a test part is put behind the training part, so that both get the same class numbers."""
    arrays = _arrays(path)
    inputs, targets = _samples(path, arrays, "inputs", "targets")
    clients = arrays.get("clients")
    if clients is not None and clients.shape != targets.shape:
        raise DataError(f"{path}: 'clients' has shape {clients.shape}: give one id for each 'targets'")
    if clients is not None and clients.dtype.kind == "f":
        _numbers(clients, f"{path}: array 'clients'")
    if "test_inputs" not in arrays and "test_targets" not in arrays:
        return _Own(inputs, targets, clients)

    test_inputs, test_targets = _samples(path, arrays, "test_inputs", "test_targets")
    if test_inputs.shape[1:] != inputs.shape[1:]:
        shapes = f"{test_inputs.shape[1:]} in 'test_inputs', {inputs.shape[1:]} in 'inputs'"
        raise DataError(f"{path}: a sample has shape {shapes}: make them equal")
    both = np.concatenate([inputs, test_inputs]), np.concatenate([targets, test_targets])
    return _Own(*both, clients, tests=len(test_inputs))


def _samples(path: Path, arrays: dict[str, Array], inputs: str, targets: str) -> tuple[Inputs, Array]:
    """A pair of arrays of the file, by their names, as float32 inputs `[samples, *]` and targets `[samples]`."""
    for name in (inputs, targets):
        if name not in arrays:
            raise DataError(f"{path} has no array {name!r}, only {', '.join(arrays)}: add it, or rename one")
    x, y = arrays[inputs], arrays[targets]
    if x.ndim < 2 or x.size == 0:
        raise DataError(f"{path}: {inputs!r} has shape {x.shape}: make it [samples, features ...], not empty")
    if y.shape != (len(x),):
        raise DataError(f"{path}: {targets!r} has shape {y.shape}: give one for each of the {len(x)} {inputs!r}")
    return _numbers(x, f"{path}: array {inputs!r}"), y


def _numbers(values: Array, what: str) -> Inputs:
    """The values as float32; what is no number, missing, infinite or beyond float32 is refused as `what`."""
    if values.dtype.kind not in "fiub":
        raise DataError(f"{what} holds {values.dtype}, not numbers: encode it as numbers, or leave it out")
    with np.errstate(over="ignore"):  # beyond float32 counts as infinite
        numbers = values.astype(np.float32)
    bad = np.argwhere(~np.isfinite(numbers))
    if len(bad):
        problem = f"{len(bad)} missing or infinite values, the first in sample {bad[0][0]}"
        raise DataError(f"{what} has {problem}: fill them in, or drop those samples")
    return numbers


def _class_numbers(targets: Array, what: str, regression: bool) -> tuple[Labels | Inputs, tuple[str, ...]]:
    """The targets as class numbers with the names of the classes, or as float32 with none for regression.

    Class numbers follow the sorted order of the values. Numbers with a fraction are targets of a regression.
    """
    if targets.dtype.kind not in "fiubUS":
        raise DataError(f"{what} holds {targets.dtype}: use numbers or names")
    if targets.dtype.kind == "f" or regression:
        numbers = _numbers(targets, what)
        if regression or (targets % 1).any():
            return numbers, ()
    names, classes = np.unique(targets, return_inverse=True)
    return classes.astype(np.int64), tuple(map(str, names.tolist()))
