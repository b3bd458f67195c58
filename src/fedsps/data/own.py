"""The user's own files as arrays: `.npz` and `.csv`.

Each problem is a `DataError` that names the file, the array or column, and the first sample with a bad value. Nothing
is repaired or dropped in silence, and nothing is ever unpickled.
"""

import warnings
import zipfile
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedsps.data.load import Array, Inputs, LabelledData, Labels, hold_out
from fedsps.errors import ConfigurationError, DataError, unknown


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
    path: str | Path, client_column: str | None = None, target_column: str | None = None, regression: bool = False
) -> LabelledData:
    """The user's own data, `.npz` or `.csv`.

    `.npz`: arrays `inputs` and `targets`, if wanted `clients` (an id for each sample), `test_inputs` and
    `test_targets`. `.csv`: the target column is the one named, or "target", or the last; all others but the
    client column are inputs. Without a test part a fifth is held out, of each client if there are clients.

    Targets become classes 0..K-1 in sorted order; they stay as they are if some are fractions, or for `regression`.

    Args:
        path: the file; its suffix tells the format.
        client_column: the column of client ids; for `.csv` alone.
        target_column: the column of targets; for `.csv` alone.
        regression: keep whole-numbered targets as numbers instead of making classes of them.

    Raises:
        DataError: the file is not there or cannot be read, arrays or columns are missing or do not fit together, or
            values are missing, infinite or no numbers.
        ConfigurationError: columns were named for an `.npz`.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     file = Path(folder) / "mine.npz"
    ...     np.savez(file, inputs=np.eye(5), targets=["no", "yes", "no", "yes", "no"], clients=[1, 1, 1, 2, 2])
    ...     data = from_file(file)
    >>> data.name, data.classes, data.inputs.shape, data.test_inputs.shape
    ('mine', 2, (3, 5), (2, 5))
    """
    path = Path(path)
    if path.suffix.lower() not in (".npz", ".csv"):
        raise DataError(f"{path}: only .npz and .csv can be read; convert it to one of them")
    if not path.is_file():
        raise DataError(f"{path}: there is no such file")
    if path.suffix.lower() == ".csv":
        samples = _csv(path, client_column, target_column)
    elif client_column or target_column:
        raise ConfigurationError(f"{path}: columns are for .csv; name the arrays 'targets' and 'clients'")
    else:
        samples = _npz(path)

    inputs, (targets, classes) = samples.inputs, _class_numbers(samples.targets, f"{path}: the target", regression)
    rows = np.arange(len(inputs))
    train, test = np.split(rows, [-samples.tests]) if samples.tests else hold_out(len(rows), samples.clients)
    parts = inputs[train], targets[train], inputs[test], targets[test]
    clients = None if samples.clients is None else samples.clients[train]
    return LabelledData(path.stem, *parts, classes, "published", clients)


def _npz(path: Path) -> _Own:
    """The arrays of an `.npz`; a test part is put behind the training part, so that both get the same class numbers."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays: dict[str, Array] = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path} is no .npz of plain arrays ({error}): write it with numpy.savez") from error

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


def _csv(path: Path, client_column: str | None, target_column: str | None) -> _Own:
    """The columns of a `.csv`: one is the target, one may say whose sample it is, all others are inputs.

    A line with more values than there are columns is an error; pandas alone would warn and drop them.
    """
    import pandas
    from pandas.errors import EmptyDataError, ParserError, ParserWarning

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", ParserWarning)  # lines with more values than there are columns
            frame = pandas.read_csv(path, index_col=False, low_memory=False)
    except (EmptyDataError, ParserError, ParserWarning, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read ({error}): write a header, then one line a sample") from error
    if frame.empty:
        raise DataError(f"{path} has no samples: below the header write one line a sample")
    columns = list(frame.columns)
    for column in (client_column, target_column):
        if column is not None and column not in columns:
            raise DataError(f"{path}: {unknown('column', column, columns)}")
    columns = [column for column in columns if column != client_column]
    target = target_column or ("target" if "target" in columns else columns[-1] if columns else "")
    if target not in columns or len(columns) == 1:
        raise DataError(f"{path}: besides target {target!r} and client {client_column!r} it needs input columns")
    columns.remove(target)

    def labels(column: str) -> Array:
        """A column as it is, numbers or words; a missing value is refused with the number of its sample."""
        missing = frame[column].isna()
        if missing.any():
            where = f"column {column!r} has no value in sample {missing.argmax()}"
            raise DataError(f"{path}: {where}: fill it in, or drop the sample")
        values = frame[column].to_numpy()
        return values if values.dtype.kind in "fiub" else values.astype(str)

    inputs = [_numbers(frame[column].to_numpy(), f"{path}: column {column!r}") for column in columns]
    return _Own(np.column_stack(inputs), labels(target), labels(client_column) if client_column else None)


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


def _class_numbers(targets: Array, what: str, regression: bool) -> tuple[Labels | Inputs, int]:
    """The targets as class numbers with the number of classes, or as float32 with 0 for regression.

    Class numbers follow the sorted order of the values. Numbers with a fraction are targets of a regression.
    """
    if targets.dtype.kind not in "fiubUS":
        raise DataError(f"{what} holds {targets.dtype}: use numbers or names")
    if targets.dtype.kind == "f" or regression:
        numbers = _numbers(targets, what)
        if regression or (targets % 1).any():
            return numbers, 0
    names, classes = np.unique(targets, return_inverse=True)
    return classes.astype(np.int64), len(names)
