"""Data sets as arrays: the named ones, and the user's own files.

scikit-learn and pandas are imported where they are used: they are slow to import, and few runs need both.
"""

import warnings
import zipfile
import zlib
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedsps.data import sources
from fedsps.data.partition import natural
from fedsps.errors import ConfigurationError, DataError, unknown
from fedsps.streams import Rows, generator

Array = npt.NDArray[Any]
Inputs = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]
Parts = tuple[Array, ...]  # inputs, targets, test inputs, test targets

SPLIT_SEED = 0
FEATURES = {"w8a": 300, "a9a": 123, "mushrooms": 112, "ijcnn1": 22, "phishing": 68}
STATISTICS = {  # mean and standard deviation of each channel over the training images, pixels in [0, 1]
    "mnist": ((0.1307,), (0.3081,)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
}


@dataclass(frozen=True, eq=False)
class LabelledData:
    """A training and a test part; `classes` is 0 for regression, where the targets are float32."""

    name: str
    inputs: Inputs  # [M, *shape]
    targets: Labels | Inputs  # [M]
    test_inputs: Inputs
    test_targets: Labels | Inputs
    classes: int
    scaling: str
    clients: Array | None = None  # [M]  natural client ids of the training samples


def load(name: str, scaling: str | None = None) -> LabelledData:
    """A data set by name.

    Scalings: "unit" (pixels in [0, 1]), "published" (as the file has it), and everywhere "standard" (mean 0,
    standard deviation 1: by channel for images, by feature for tables, measured on the training part).
    """
    if name not in _LOADERS:
        raise unknown("data set", name, _LOADERS)
    read, classes, *scalings = _LOADERS[name]
    scaling = scalings[0] if scaling is None else scaling
    if scaling not in scalings:
        raise ConfigurationError(f"scaling {scaling!r} is not for {name}: use {' or '.join(scalings)}")
    inputs, targets, test_inputs, test_targets = read(name)
    if scaling == "standard":
        _standardise(name, inputs, test_inputs)
    return LabelledData(name, inputs, targets, test_inputs, test_targets, classes, scaling)


def _standardise(name: str, inputs: Inputs, test_inputs: Inputs) -> None:
    if name in STATISTICS:
        mean, deviation = (np.array(values).reshape(-1, 1, 1) for values in STATISTICS[name])
    else:
        mean, deviation = inputs.mean(0, dtype=np.float64), inputs.std(0, dtype=np.float64)
        deviation[deviation == 0] = 1  # a constant feature becomes 0, not NaN
    for values in (inputs, test_inputs):  # in place: CIFAR-10 is 600 MB
        np.subtract(values, mean.astype(np.float32), out=values)
        np.divide(values, deviation.astype(np.float32), out=values)


def _mnist(name: str) -> Parts:
    content = sources.contents(name)
    arrays: list[Array] = []
    for part in ("train", "t10k"):
        images = idx(content[f"{part}-images-idx3-ubyte"], dimensions=3)
        labels = idx(content[f"{part}-labels-idx1-ubyte"], dimensions=1)
        arrays += _pixels(images[:, None]), labels.astype(np.int64)
    return tuple(arrays)


def idx(content: bytes, dimensions: int) -> npt.NDArray[np.uint8]:
    """An IDX file of bytes: 0, 0, 8, how many dimensions, each dimension (4 bytes, big-endian), the data."""
    begin = 4 + 4 * dimensions
    if content[:4] != bytes([0, 0, 8, dimensions]) or len(content) < begin:
        raise DataError(f"not an IDX file of {dimensions} dimensions: it begins with {content[:4].hex(' ')}")
    shape = np.frombuffer(content, ">u4", dimensions, offset=4).tolist()
    if len(content) != begin + np.prod(shape, dtype=object):  # exact, whatever the header says
        raise DataError(f"the IDX header says {shape}, but {len(content) - begin} bytes follow: it is damaged")
    return np.frombuffer(content, np.uint8, offset=begin).reshape(shape)


def _cifar10(name: str) -> Parts:
    content = sources.contents(name)
    images, labels = cifar(b"".join(content[f"data_batch_{number}.bin"] for number in range(1, 6)))
    test_images, test_labels = cifar(content["test_batch.bin"])
    return _pixels(images), labels, _pixels(test_images), test_labels


def cifar(content: bytes) -> tuple[npt.NDArray[np.uint8], Labels]:
    """Images and labels of CIFAR-10's binary version: records of a label byte and 3 x 32 x 32 pixel bytes."""
    if len(content) % 3073:
        raise DataError(f"CIFAR-10 records have 3073 bytes, and {len(content)} is no multiple: it is damaged")
    records = np.frombuffer(content, np.uint8).reshape(-1, 3073)
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].astype(np.int64)


def _pixels(images: npt.NDArray[np.uint8]) -> Inputs:
    return images.astype(np.float32) / np.float32(255)


def _libsvm(name: str) -> Parts:
    from sklearn.datasets import load_svmlight_file

    arrays: list[Array] = []
    for content in sources.contents(name).values():
        form = {"n_features": FEATURES[name], "dtype": np.float32, "zero_based": False}
        matrix, labels = load_svmlight_file(BytesIO(content), **form)
        arrays += matrix.toarray(), labels
    positive = arrays[1].max()  # published as -1/+1, 0/1 or 1/2
    arrays[1::2] = [(labels == positive).astype(np.int64) for labels in arrays[1::2]]
    return tuple(arrays) if len(arrays) == 4 else _held_out(*arrays)


def _digits(_: str) -> Parts:
    from sklearn.datasets import load_digits

    inputs, targets = load_digits(return_X_y=True)
    return _held_out((inputs / 16).astype(np.float32), targets.astype(np.int64))


_LOADERS: dict[str, tuple[Any, ...]] = {
    "mnist": (_mnist, 10, "unit", "standard"),
    "cifar10": (_cifar10, 10, "standard", "unit"),
    **dict.fromkeys(FEATURES, (_libsvm, 2, "published", "standard")),
    "digits": (_digits, 10, "unit", "standard"),
}
"""How to read each data set, its number of classes, and its scalings, the default first."""


def _held_out(inputs: Inputs, targets: Labels) -> Parts:
    train, test = _split(len(inputs), None)
    return inputs[train], targets[train], inputs[test], targets[test]


def _split(samples: int, clients: Array | None) -> tuple[Rows, Rows]:
    """Training and test rows, 80/20, the same on every machine; within each client if there are clients.

    Whoever has two samples gives one to the test part; a single sample is for training.
    """
    if clients is None:
        orders = [generator(SPLIT_SEED, "test split").permutation(samples)]
    else:
        owned = enumerate(natural(clients).rows)
        orders = [generator(SPLIT_SEED, "test split", number).permutation(rows) for number, rows in owned]
    test = np.concatenate([order[: max(len(order) // 5, min(len(order) - 1, 1))] for order in orders])
    return np.setdiff1d(np.arange(samples), test), np.sort(test)


class _Own(NamedTuple):
    """The samples of a user's file, the last `tests` of them for testing."""

    inputs: Inputs
    targets: Array
    clients: Array | None
    tests: int = 0


def from_file(path: str | Path, client_column: str | None = None, target_column: str | None = None) -> LabelledData:
    """The user's own data, `.npz` or `.csv`.

    `.npz`: arrays `inputs` and `targets`, if wanted `clients` (an id for each sample), `test_inputs` and
    `test_targets`. `.csv`: the target column is the one named, or "target", or the last; all others but the
    client column are inputs. Without a test part a fifth is held out, of each client if there are clients.

    Targets become classes 0..K-1 in sorted order, unless some are fractions: then they stay, for regression.
    """
    path = Path(path)
    if path.suffix.lower() not in (".npz", ".csv"):
        raise DataError(f"{path}: only .npz and .csv can be read; convert it to one of them")
    if not path.is_file():
        raise DataError(f"{path}: there is no such file")
    if path.suffix.lower() == ".csv":
        own = _csv(path, client_column, target_column)
    elif client_column or target_column:
        raise ConfigurationError(f"{path}: columns are for .csv; name the arrays 'targets' and 'clients'")
    else:
        own = _npz(path)

    inputs, (targets, classes) = own.inputs, _class_numbers(own.targets, f"{path}: the target")
    rows = np.arange(len(inputs))
    train, test = np.split(rows, [-own.tests]) if own.tests else _split(len(rows), own.clients)
    parts = inputs[train], targets[train], inputs[test], targets[test]
    clients = None if own.clients is None else own.clients[train]
    return LabelledData(path.stem, *parts, classes, "published", clients)


def _npz(path: Path) -> _Own:
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
        missing = frame[column].isna()
        if missing.any():
            where = f"column {column!r} has no value in sample {missing.argmax()}"
            raise DataError(f"{path}: {where}: fill it in, or drop the sample")
        values = frame[column].to_numpy()
        return values if values.dtype.kind in "fiub" else values.astype(str)

    inputs = [_numbers(frame[column].to_numpy(), f"{path}: column {column!r}") for column in columns]
    return _Own(np.column_stack(inputs), labels(target), labels(client_column) if client_column else None)


def _numbers(values: Array, what: str) -> Inputs:
    if values.dtype.kind not in "fiub":
        raise DataError(f"{what} holds {values.dtype}, not numbers: encode it as numbers, or leave it out")
    with np.errstate(over="ignore"):  # beyond float32 counts as infinite
        numbers = values.astype(np.float32)
    bad = np.argwhere(~np.isfinite(numbers))
    if len(bad):
        found = f"{len(bad)} missing or infinite values, the first in sample {bad[0][0]}"
        raise DataError(f"{what} has {found}: fill them in, or drop those samples")
    return numbers


def _class_numbers(targets: Array, what: str) -> tuple[Labels | Inputs, int]:
    if targets.dtype.kind not in "fiubUS":
        raise DataError(f"{what} holds {targets.dtype}: use numbers or names")
    if targets.dtype.kind == "f":
        numbers = _numbers(targets, what)
        if (targets % 1).any():
            return numbers, 0
    names, classes = np.unique(targets, return_inverse=True)
    return classes.astype(np.int64), len(names)
