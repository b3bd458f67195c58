"""The task of a run: which data, split how over the clients, and which model."""

import zipfile
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedsps.checks import choice, count
from fedsps.core import streams
from fedsps.core.addresses import import_object, source_digest
from fedsps.core.plan import knob
from fedsps.core.vectors import DTYPES
from fedsps.data import LabelledData, from_file
from fedsps.data import load as load_data
from fedsps.data import partition as deal
from fedsps.data.clients import ClientData
from fedsps.errors import ConfigurationError, DataError, FedspsError
from fedsps.model.models import LeNet, LogisticRegression, Norm, ResNet18
from fedsps.model.network import Loss
from fedsps.runs.files import file_digest

MODELS = ("logistic", "lenet", "resnet18")
LOSSES: dict[str, Loss] = {
    "cross-entropy": F.cross_entropy,
    "binary": F.binary_cross_entropy_with_logits,
    "squared": F.mse_loss,
}
LossName = Literal["auto", "cross-entropy", "binary", "squared"]
DtypeName = Literal["float32", "float64"]


@dataclass(frozen=True, kw_only=True)
class Task:
    """Data, its split over clients, and a model: what a run trains on, whatever trains it.

    Attributes:
        data: a data set by name, or a .npz or .csv file of the user's own.
        scaling: of the inputs, "unit", "standard" or "published"; None: by data set.
        client_column: the column of a .csv file that says whose sample it is.
        target_column: the column of a .csv file to predict; None: "target", else the last.
        partition: "iid", "two-class", "shards", "dirichlet" or "natural"; None is decided by the data: natural where
            it says whose sample is whose, else two-class.
        clients: how many.
        alpha: the concentration of the dirichlet partition.
        shards_per_client: in the shards partition.
        samples: training samples to use, drawn at random before they are dealt; None for all.
        flipped: the share of the training labels that are changed to another class at random.
        model: "logistic", "lenet", "resnet18", or the user's own, "file.py:name" or "package.module:name".
        width: channels of resnet18's first stage.
        norm: resnet18's normalisation.
        loss: "auto" is the squared loss for regression, and the model's own otherwise.
        dtype: of the model and the inputs.

    >>> Task(data="mnist", model="lenet", dtype="float46")
    Traceback (most recent call last):
    fedsps.errors.ConfigurationError: unknown dtype 'float46': did you mean float64 or float32?
    """

    data: str = knob("digits", "Data", "A data set (see fedsps data list), or a .npz or .csv file of your own.")
    scaling: str | None = knob(None, "Data", "Scaling of the inputs: unit, standard, published. Default: by data set.")
    client_column: str | None = knob(None, "Data", "The column of a .csv file that says whose sample it is.")
    target_column: str | None = knob(
        None, "Data", "The column of a .csv file to predict. Default: target, else the last."
    )
    partition: str | None = knob(
        None, "Data", "How samples go to clients: iid, two-class (the paper's non-i.i.d.), shards, dirichlet, natural."
    )
    clients: int = knob(10, "Data", "Number of clients.")
    alpha: float = knob(0.5, "Data", "Concentration of the dirichlet partition; small is more unequal.")
    shards_per_client: int = knob(2, "Data", "Shards for each client in the shards partition.")
    samples: int | None = knob(None, "Data", "Training samples to use, drawn at random before they are dealt.")
    flipped: float = knob(0.0, "Data", "Share of the training labels that are changed to another class at random.")
    model: str = knob("logistic", "Model", "logistic, lenet, resnet18, or your own: file.py:name, package:name.")
    width: int = knob(64, "Model", "Channels of resnet18's first stage.")
    norm: Norm = knob("batch", "Model", "resnet18's normalisation: batch or group.")
    loss: LossName = knob("auto", "Model", "auto, cross-entropy, binary (one logit), or squared.")
    dtype: DtypeName = knob("float32", "Model", "float32 or float64.")

    def __post_init__(self) -> None:
        for name in ("clients", "shards_per_client", "width"):
            object.__setattr__(self, name, count(name, getattr(self, name)))
        if self.samples is not None:
            object.__setattr__(self, "samples", count("samples (None: all)", self.samples))
        if not 0 <= self.flipped < 1:
            raise ConfigurationError(f"flipped must be at least 0 and below 1; got {self.flipped!r}")
        choice("norm", self.norm, get_args(Norm))
        choice("loss", self.loss, get_args(LossName))
        choice("dtype", self.dtype, get_args(DtypeName))
        if ":" not in self.model:
            choice("model", self.model, MODELS)
        if self.partition is None:
            object.__setattr__(self, "partition", "natural" if self._names_clients() else "two-class")

    def _names_clients(self) -> bool:
        """Whether the data itself says whose sample is whose: by a column of a table, or an array `clients`."""
        if Path(self.data).suffix.lower() != ".npz" or not zipfile.is_zipfile(self.data):
            return self.client_column is not None
        with zipfile.ZipFile(self.data) as archive:
            return "clients.npy" in archive.namelist()

    def digests(self) -> dict[str, str]:
        """Of the user's own files, so that an edited file is another run."""
        own = {}
        if ":" in self.model:
            own["model"] = source_digest(self.model)
        if Path(self.data).suffix:
            own["data"] = file_digest(Path(self.data))
        return own

    def load(self, seed: int, digest: str | None = None) -> "Loaded":
        """Load and split the data, and build the model.

        Args:
            seed: decides the split and the model's start.
            digest: of the user's own data file, which must not have changed since.
        """
        columns = (self.client_column, self.target_column)
        data = _data(self.data, self.scaling, *columns, self.loss == "squared", digest)
        loss = self.loss_name(data.classes)
        model = self.build_model(data.inputs.shape[1:], data.classes, seed)
        options = {name: getattr(self, name) for name in ("clients", "alpha", "shards_per_client")}
        clients, test, dropped = _split(
            data, loss, self.dtype, self.partition or "", self.samples, self.flipped, seed, **options
        )
        facts = {
            "clients": clients.clients,
            "train_samples": len(clients.targets),
            "dropped_samples": dropped,
            "test_samples": len(test.targets),
            "shape": list(data.inputs.shape[1:]),
            "classes": data.classes,
            "model": self.model,
        }
        return Loaded(model, clients, test if len(test.targets) else None, LOSSES[loss], facts)

    def loss_name(self, classes: int) -> str:
        """The loss; "auto" is the squared loss for regression (no classes), the model's own otherwise."""
        if self.loss != "auto":
            return self.loss
        if classes == 0:
            return "squared"
        return "binary" if self.model == "logistic" and classes == 2 else "cross-entropy"

    def build_model(self, shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
        """A built-in model that fits inputs of this shape, or the user's own; its start is decided by the seed."""
        with streams.torch_seed(seed, "model"):
            return self._build_model(shape, classes).to(DTYPES[self.dtype])

    def _build_model(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        if ":" in self.model:
            return _own_model(self.model)
        if classes < 2:
            raise ConfigurationError(
                f"{self.model} needs at least 2 classes; {self.data} has {classes}: name a model of your own, "
                "file.py:name"
            )
        if self.model == "logistic":
            return LogisticRegression(prod(shape), classes)
        if len(shape) != 3 or shape[1] != shape[2] or shape[1] < 16:
            raise ConfigurationError(
                f"{self.model} needs square images, 16 pixels wide or more; those of {self.data} are {shape}: "
                "use logistic"
            )
        if self.model == "lenet":
            return LeNet(shape[0], shape[1], classes)
        return ResNet18(shape[0], classes, self.width, self.norm)


@dataclass(frozen=True)
class Loaded:
    """A task made real.

    Attributes:
        model: before training.
        clients: the training samples of each.
        test: the held-out samples, if there are any.
        loss: of the model's outputs and the targets.
        facts: sizes, shape and classes, for the record.
    """

    model: nn.Module
    clients: ClientData
    test: ClientData | None
    loss: Loss
    facts: dict[str, Any]


def _own_model(address: str) -> nn.Module:
    try:
        made = import_object(address)()
    except FedspsError:
        raise
    except Exception as error:
        raise ConfigurationError(f"{address}() failed: {type(error).__name__}: {error}") from error
    if not isinstance(made, nn.Module):
        raise ConfigurationError(f"{address}() must return a torch.nn.Module; got {type(made).__name__}")
    return made


@lru_cache(maxsize=2)  # runs on one split follow one another
def _split(
    data: LabelledData,
    loss: str,
    dtype: str,
    partition: str,
    samples: int | None,
    flipped: float,
    seed: int,
    **options: Any,
) -> tuple[ClientData, ClientData, int]:
    """Deal the samples; then change labels, so that who holds which samples does not depend on that."""
    data = some(data, samples, seed)
    split = deal(partition, data.targets, seed=seed, ids=data.clients, **options)
    targets = flip(data.targets, data.classes, flipped, seed)
    kind = torch.int64 if loss == "cross-entropy" else DTYPES[dtype]
    rows = np.concatenate(split.rows)

    def pair(inputs: Any, targets: Any) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(inputs).to(DTYPES[dtype]), torch.from_numpy(targets).to(kind)

    sizes = np.array([len(own) for own in split.rows], dtype=np.int64)
    clients = ClientData(*pair(data.inputs[rows], targets[rows]), sizes)
    test = ClientData(*pair(data.test_inputs, data.test_targets), np.array([len(data.test_targets)]))
    return clients, test, split.dropped


def some(data: LabelledData, samples: int | None, seed: int) -> LabelledData:
    """The data with only so many of its training samples, drawn at random; all of them for None."""
    if samples is None or samples >= len(data.targets):
        return data
    rows = np.sort(streams.generator(seed, "samples").permutation(len(data.targets))[:samples])
    ids = None if data.clients is None else data.clients[rows]
    return replace(data, inputs=data.inputs[rows], targets=data.targets[rows], clients=ids)


def flip(targets: Any, classes: int, share: float, seed: int) -> Any:
    """The labels with this share of them, drawn at random, changed to another class."""
    if share == 0:
        return targets
    if classes < 2:
        raise ConfigurationError("flipped is for data with classes: set it to 0")
    random = streams.generator(seed, "flipped labels")
    chosen = random.permutation(len(targets))[: round(share * len(targets))]
    flipped = targets.copy()
    flipped[chosen] = (targets[chosen] + random.integers(1, classes, len(chosen))) % classes
    return flipped


@lru_cache(maxsize=2)
def _data(
    name: str,
    scaling: str | None,
    client_column: str | None,
    target_column: str | None,
    regression: bool,
    digest: str | None,
) -> LabelledData:
    """The data set; a file is told apart by its digest too, so that an edited one is read again."""
    if not Path(name).suffix:
        return load_data(name, scaling)
    if scaling is not None:
        raise ConfigurationError(f"scaling {scaling!r} is for the named data sets: scale {name} yourself")
    if digest is not None and file_digest(Path(name)) != digest:
        raise DataError(f"{name} has changed since this run was asked for: run it again")
    return from_file(name, client_column, target_column, regression)
