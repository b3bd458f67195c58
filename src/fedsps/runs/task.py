"""The task of a run: which data, split how over the clients, and which model."""

import copy
import zipfile
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from fedsps.checks import choice, count, fraction
from fedsps.core import streams
from fedsps.core.addresses import import_object, source_digest
from fedsps.core.plan import knob, late_knob
from fedsps.core.streams import Indices
from fedsps.core.vectors import DTYPES
from fedsps.data import LabelledData, from_file
from fedsps.data import load as load_data
from fedsps.data import partition as deal
from fedsps.data.clients import ClientData
from fedsps.engine.metrics import named_metrics
from fedsps.errors import ConfigurationError, DataError, FedspsError
from fedsps.model.losses import LOSSES
from fedsps.model.models import LeNet, LogisticRegression, Norm, ResNet18
from fedsps.model.network import Loss
from fedsps.runs.files import file_digest

if TYPE_CHECKING:  # pandas comes with it, which a client of a federation does without
    from fedsps.data.columns import Columns

MODELS = ("logistic", "linear", "lenet", "resnet18")
PREPARATION = "2"  # how tables are prepared: another way of it is another run
LossName = Literal["auto", "cross-entropy", "binary", "squared"]
DtypeName = Literal["float32", "float64"]


@dataclass(frozen=True, kw_only=True)
class Task:
    """Data, its split over clients, and a model: what a run trains on, whatever trains it.

    Attributes:
        data: a data set by name, or the user's own file: .csv, .tsv, .parquet, .feather or .npz.
        scaling: of the inputs, "unit", "standard" or "published"; None: by data set.
        client_column: the column of a table that says whose sample it is.
        target_column: the column of a table to predict; None: "target", else the last.
        drop: columns of a table to leave out, with commas between them.
        raw: take a table's numbers as they are, instead of standardising them and filling gaps.
        partition: "iid", "two-class", "shards", "dirichlet" or "natural"; None is decided by the data: natural where
            it says whose sample is whose, else two-class.
        clients: how many.
        alpha: the concentration of the dirichlet partition.
        shards_per_client: in the shards partition.
        samples: training samples to use, drawn at random before they are dealt; None for all.
        flipped: the share of the training labels that are changed to another class at random.
        model: "logistic", "linear" (for regressions too), "lenet", "resnet18", or the user's own, "file.py:name" or
            "package.module:name": a class or function without arguments, or a module.
        width: channels of resnet18's first stage.
        norm: resnet18's normalisation.
        loss: "auto" is the squared loss for regression, and the model's own otherwise.
        dtype: of the model and the inputs.
        validation: the share of each client's training samples that is held back, for `validation_loss` and the like.
        metrics: by name, with commas between them: auc, f1, balanced_accuracy, rmse, r2.

    >>> Task(data="mnist", model="lenet", dtype="float46")
    Traceback (most recent call last):
    fedsps.errors.ConfigurationError: unknown dtype 'float46': did you mean float64 or float32?
    """

    data: str = knob("digits", "Data", "A data set (see fedsps data list), or a .csv, .parquet, .feather, .npz file.")
    scaling: str | None = knob(None, "Data", "Scaling of the inputs: unit, standard, published. Default: by data set.")
    client_column: str | None = knob(None, "Data", "The column of a table that says whose sample it is.")
    target_column: str | None = knob(None, "Data", "The column of a table to predict. Default: target, else the last.")
    drop: str = late_knob("", "Data", "Columns of a table to leave out, with commas between them.")
    raw: bool = late_knob(False, "Data", "Take a table's numbers as they are: not standardised, no gaps, no words.")
    partition: str | None = knob(
        None, "Data", "How samples go to clients: iid, two-class (the paper's non-i.i.d.), shards, dirichlet, natural."
    )
    clients: int = knob(10, "Data", "Number of clients.")
    alpha: float = knob(0.5, "Data", "Concentration of the dirichlet partition; small is more unequal.")
    shards_per_client: int = knob(2, "Data", "Shards for each client in the shards partition.")
    samples: int | None = knob(None, "Data", "Training samples to use, drawn at random before they are dealt.")
    flipped: float = knob(0.0, "Data", "Share of the training labels that are changed to another class at random.")
    model: str = knob("logistic", "Model", "logistic, linear, lenet, resnet18, or your own: file.py:name, pack:name.")
    width: int = knob(64, "Model", "Channels of resnet18's first stage.")
    norm: Norm = knob("batch", "Model", "resnet18's normalisation: batch or group.")
    loss: LossName = knob("auto", "Model", "auto, cross-entropy, binary (one logit), or squared.")
    dtype: DtypeName = knob("float32", "Model", "float32 or float64.")
    validation: float = late_knob(0.0, "Data", "Share of each client's training samples held back for validation.")
    metrics: str = late_knob("", "Model", "Beside loss and accuracy: auc, f1, balanced_accuracy, rmse, r2 (by commas).")

    def __post_init__(self) -> None:
        for name in ("clients", "shards_per_client", "width"):
            object.__setattr__(self, name, count(name, getattr(self, name)))
        if self.samples is not None:
            object.__setattr__(self, "samples", count("samples (None: all)", self.samples))
        if not 0 <= self.flipped < 1:
            raise ConfigurationError(f"flipped must be at least 0 and below 1; got {self.flipped!r}")
        fraction("validation", self.validation)
        object.__setattr__(self, "metrics", ",".join(named_metrics(self.metrics)))
        choice("norm", self.norm, get_args(Norm))
        choice("loss", self.loss, get_args(LossName))
        choice("dtype", self.dtype, get_args(DtypeName))
        if self.model.endswith(".py"):
            raise ConfigurationError(
                f"model {self.model!r} names a file: write {self.model}:name, of a class or function"
            )
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
            if Path(self.data).suffix != ".npz" and not self.raw:
                own["preparation"] = PREPARATION
        return own

    def load(self, seed: int, digest: str | None = None) -> "Loaded":
        """Load and split the data, and build the model.

        Args:
            seed: decides the split and the model's start.
            digest: of the user's own data file, which must not have changed since.
        """
        columns = (self.client_column, self.target_column, self.drop, self.raw)
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
        if data.class_names:
            facts["class_names"] = list(data.class_names)
        return Loaded(model, clients, test if len(test.targets) else None, LOSSES[loss], facts, data.columns)

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
        if self.model == "linear":
            return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), max(classes, 1)))
        if classes == 0:
            raise ConfigurationError(
                f"{self.model} needs classes, but the targets of {self.data} are numbers, some with a fraction: for a "
                "regression use model linear or your own, file.py:name; for classes write whole numbers or words"
            )
        if classes == 1:
            raise ConfigurationError(
                f"{self.model} needs at least 2 classes; the targets of {self.data} are all the same"
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
        columns: how rows of a table became inputs, if they did.
    """

    model: nn.Module
    clients: ClientData
    test: ClientData | None
    loss: Loss
    facts: dict[str, Any]
    columns: "Columns | None" = None


def _own_model(address: str) -> nn.Module:
    try:
        named = import_object(address)
        made = copy.deepcopy(named) if isinstance(named, nn.Module) else named()
    except FedspsError:
        raise
    except Exception as error:
        said = f"{address}() failed: {type(error).__name__}: {error}"
        raise ConfigurationError(f"{said}: it is called without arguments, and must return a module") from error
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
    data, chosen = some(data, samples, seed)
    split = deal(partition, data.targets, seed=seed, ids=data.clients, **options)
    targets = flip(data.targets, data.classes, flipped, seed)
    kind = torch.int64 if loss == "cross-entropy" else DTYPES[dtype]
    rows = np.concatenate(split.rows)

    def pair(inputs: Any, targets: Any) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(inputs).to(DTYPES[dtype]), torch.from_numpy(targets).to(kind)

    sizes = np.array([len(own) for own in split.rows], dtype=np.int64)
    named = partition == "natural" and data.clients is not None
    names = np.unique(data.clients) if named and data.clients is not None else None
    labels = None if names is None else tuple(map(str, names.tolist()))
    clients = ClientData(*pair(data.inputs[rows], targets[rows]), sizes, chosen[rows], labels)
    held, counts, owned = np.arange(len(data.test_targets)), np.array([len(data.test_targets)]), None
    # those of a client that has no training samples left (samples) are in nobody's row: then they are of all together
    if names is not None and data.test_clients is not None and np.isin(data.test_clients, names).all():
        owner = np.searchsorted(names, data.test_clients)
        held, counts, owned = np.argsort(owner, kind="stable"), np.bincount(owner, minlength=len(names)), labels
    test = ClientData(*pair(data.test_inputs[held], data.test_targets[held]), counts, held, owned)
    return clients, test, split.dropped


def some(data: LabelledData, samples: int | None, seed: int) -> tuple[LabelledData, Indices]:
    """The data with only so many of its training samples, drawn at random (all of them for None), and which."""
    if samples is None or samples >= len(data.targets):
        return data, np.arange(len(data.targets))
    rows = np.sort(streams.generator(seed, "samples").permutation(len(data.targets))[:samples])
    ids = None if data.clients is None else data.clients[rows]
    return replace(data, inputs=data.inputs[rows], targets=data.targets[rows], clients=ids), rows


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
    drop: str,
    raw: bool,
    regression: bool,
    digest: str | None,
) -> LabelledData:
    """The data set; a file is told apart by its digest too, so that an edited one is read again."""
    if not Path(name).suffix:
        return load_data(name, scaling)
    if scaling is not None:
        raise ConfigurationError(
            f"scaling {scaling!r} is for the named data sets: the numbers of a table are standardised without it"
        )
    if digest is not None and file_digest(Path(name)) != digest:
        raise DataError(f"{name} has changed since this run was asked for: run it again")
    return from_file(name, client_column, target_column, regression, drop=split_names(drop), raw=raw)


def split_names(text: str) -> list[str]:
    """The names in a text with commas between them.

    >>> split_names("id, notes")
    ['id', 'notes']
    """
    return [word.strip() for word in text.split(",") if word.strip()]
