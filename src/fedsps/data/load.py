"""The named data sets as arrays.

A file format becomes float32 inputs and int64 class numbers here; where the files come from is the affair of `sources`.
scikit-learn and pandas are imported where they are used: they are slow to import, and few runs need both.
"""

from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedsps.core.streams import Indices, generator
from fedsps.data import sources
from fedsps.data.partition import natural
from fedsps.errors import ConfigurationError, DataError, unknown

if TYPE_CHECKING:
    from fedsps.data.columns import Columns

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
    """A data set in memory: a training part, a test part, and what is known about them.

    Attributes:
        name: of the data set, or of the user's file without its suffix.
        inputs: training samples, `[M, *shape]`, float32.
        targets: `[M]`; class numbers 0 .. classes - 1 as int64, or float32 for regression.
        test_inputs: held-out samples of the same shape.
        test_targets: theirs.
        classes: how many classes there are; 0 for regression.
        scaling: which scaling the inputs have, see `load`.
        clients: a client id for each training sample, `[M]`, if the data come with natural clients.
        test_clients: the same for each test sample, if it is known.
        class_names: what the classes are called, by their numbers; empty if they have no names.
        columns: how rows of a table became inputs, if they did.
    """

    name: str
    inputs: Inputs  # [M, *shape]
    targets: Labels | Inputs  # [M]
    test_inputs: Inputs
    test_targets: Labels | Inputs
    classes: int
    scaling: str
    clients: Array | None = None  # [M]  natural client ids of the training samples
    test_clients: Array | None = None
    class_names: tuple[str, ...] = ()
    columns: "Columns | None" = None


def load(name: str, scaling: str | None = None) -> LabelledData:
    """A data set by name, from this machine or from its public home, checked against its hash.

    Scalings: "unit" (pixels in [0, 1]), "published" (as the file has it), and everywhere "standard" (mean 0,
    standard deviation 1: by channel for images, by feature for tables, measured on the training part).

    Args:
        name: one of `data_sets()`.
        scaling: one that the data set has; its first one if None, "unit" for MNIST and "standard" for CIFAR-10.

    Raises:
        ConfigurationError: there is no such data set, or it has no such scaling.
        DataError: a file is damaged, or could not be downloaded.

    >>> load("minst")
    Traceback (most recent call last):
    fedsps.errors.ConfigurationError: unknown data set 'minst': did you mean mnist?
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
    """Subtract the training part's mean and divide by its standard deviation, in place, in both parts.

    Image sets have the constants in `STATISTICS`, one for each channel; a feature that is constant becomes 0.
    """
    if name in STATISTICS:
        mean, deviation = (np.array(values).reshape(-1, 1, 1) for values in STATISTICS[name])
    else:
        mean, deviation = inputs.mean(0, dtype=np.float64), inputs.std(0, dtype=np.float64)
        deviation[deviation == 0] = 1  # a constant feature becomes 0, not NaN
    for values in (inputs, test_inputs):  # in place: CIFAR-10 is 600 MB
        np.subtract(values, mean.astype(np.float32), out=values)
        np.divide(values, deviation.astype(np.float32), out=values)


def _mnist(name: str) -> Parts:
    """Both parts of MNIST, images as `[M, 1, 28, 28]`."""
    content = sources.contents(name)
    arrays: list[Array] = []
    for part in ("train", "t10k"):
        images = idx(content[f"{part}-images-idx3-ubyte"], dimensions=3)
        labels = idx(content[f"{part}-labels-idx1-ubyte"], dimensions=1)
        arrays += _pixels(images[:, None]), labels.astype(np.int64)
    return tuple(arrays)


def idx(content: bytes, dimensions: int) -> npt.NDArray[np.uint8]:
    """An IDX file of bytes: 0, 0, 8, how many dimensions, each dimension (4 bytes, big-endian), the data.

    Args:
        content: the unpacked file.
        dimensions: how many the file must have: 3 for images, 1 for labels.

    Raises:
        DataError: another kind of file, or one whose length does not fit its header.

    >>> idx(bytes([0, 0, 8, 1]) + bytes([0, 0, 0, 3]) + bytes([7, 8, 9]), dimensions=1)
    array([7, 8, 9], dtype=uint8)
    """
    begin = 4 + 4 * dimensions
    if content[:4] != bytes([0, 0, 8, dimensions]) or len(content) < begin:
        raise DataError(f"not an IDX file of {dimensions} dimensions: it begins with {content[:4].hex(' ')}")
    shape = np.frombuffer(content, ">u4", dimensions, offset=4).tolist()
    if len(content) != begin + np.prod(shape, dtype=object):  # exact, whatever the header says
        raise DataError(f"the IDX header says {shape}, but {len(content) - begin} bytes follow: it is damaged")
    return np.frombuffer(content, np.uint8, offset=begin).reshape(shape)


def _cifar10(name: str) -> Parts:
    """Both parts of CIFAR-10, images as `[M, 3, 32, 32]`; the five training batches become one."""
    content = sources.contents(name)
    images, labels = cifar(b"".join(content[f"data_batch_{number}.bin"] for number in range(1, 6)))
    test_images, test_labels = cifar(content["test_batch.bin"])
    return _pixels(images), labels, _pixels(test_images), test_labels


def cifar(content: bytes) -> tuple[npt.NDArray[np.uint8], Labels]:
    """Images and labels of CIFAR-10's binary version: records of a label byte and 3 x 32 x 32 pixel bytes.

    >>> images, labels = cifar(bytes([6]) + bytes(3072))
    >>> images.shape, labels
    ((1, 3, 32, 32), array([6]))
    """
    if len(content) % 3073:
        raise DataError(f"CIFAR-10 records have 3073 bytes, and {len(content)} is no multiple: it is damaged")
    records = np.frombuffer(content, np.uint8).reshape(-1, 3073)
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].astype(np.int64)


def _pixels(images: npt.NDArray[np.uint8]) -> Inputs:
    return images.astype(np.float32) / np.float32(255)


def _libsvm(name: str) -> Parts:
    """A LIBSVM table with two classes; where no test file is published, a fifth is held out.

    The larger label becomes class 1, the other 0. The number of features is fixed, since a file may lack the last ones.
    """
    arrays: list[Array] = []
    for content in sources.contents(name).values():
        arrays += libsvm(content, FEATURES[name])
    positive = arrays[1].max()  # published as -1/+1, 0/1 or 1/2
    arrays[1::2] = [(labels == positive).astype(np.int64) for labels in arrays[1::2]]
    return tuple(arrays) if len(arrays) == 4 else _held_out(*arrays)


def libsvm(content: bytes, features: int) -> tuple[Inputs, Array]:
    """A LIBSVM file, lines of a label and `number:value` pairs counted from 1, as a dense table and its labels.

    Raises:
        DataError: no line, or one that is not of this form or has a feature beyond the last.

    >>> libsvm(b"+1 1:0.5 3:2", features=3)
    (array([[0.5, 0. , 2. ]], dtype=float32), array([1.]))
    """
    from sklearn.datasets import load_svmlight_file

    try:
        matrix, labels = load_svmlight_file(BytesIO(content), n_features=features, dtype=np.float32, zero_based=False)
    except Exception as error:  # whatever a damaged file makes it raise
        raise DataError(f"not a LIBSVM file of {features} features ({error}): it is damaged") from error
    if not len(labels):
        raise DataError("the LIBSVM file has no samples: it is damaged")
    return matrix.toarray(), labels


def _digits(_: str) -> Parts:
    """The 8 x 8 digits that come with scikit-learn, as `[M, 64]`; their values 0 .. 16 become [0, 1]."""
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
    """The four arrays of a data set that is published without a test part, by `hold_out`."""
    train, test = hold_out(len(inputs), None)
    return inputs[train], targets[train], inputs[test], targets[test]


def hold_out(samples: int, clients: Array | None) -> tuple[Indices, Indices]:
    """Training and test rows, 80/20, the same on every machine; within each client if there are clients.

    Whoever has two samples gives one to the test part; a single sample is for training. Both arrays are ascending, and
    each row is in one of them.

    Args:
        samples: how many there are.
        clients: a client id for each sample, or None.

    >>> train, test = hold_out(3, np.array(["anna", "anna", "ben"]))
    >>> len(train), len(test), 2 in train
    (2, 1, True)
    """
    if clients is None:
        orders = [generator(SPLIT_SEED, "test split").permutation(samples)]
    else:
        owned = enumerate(natural(clients).rows)
        orders = [generator(SPLIT_SEED, "test split", number).permutation(rows) for number, rows in owned]
    test = np.concatenate([order[: max(len(order) // 5, min(len(order) - 1, 1))] for order in orders])
    return np.setdiff1d(np.arange(samples), test), np.sort(test)
