"""`run(spec)`: from what was asked to a folder with what happened. Runs are cached by digest and can be resumed."""

from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedsps import streams
from fedsps.checkpoint import NAME as CHECKPOINT
from fedsps.data import LabelledData, from_file
from fedsps.data import load as load_data
from fedsps.data import partition as deal
from fedsps.data.federated import Federation
from fedsps.errors import ConfigurationError, DataError, FedspsError, unknown
from fedsps.models import LeNet, LogisticRegression, ResNet18
from fedsps.network import Loss
from fedsps.objects import import_object, source_digest
from fedsps.result import SPEC, SUMMARY, Result, damaged, load_weights
from fedsps.session import Callback, Engine
from fedsps.shapes import DTYPES
from fedsps.spec import Spec, file_digest
from fedsps.training import train

MODELS = ("logistic", "lenet", "resnet18")
LOSSES: dict[str, Loss] = {
    "cross-entropy": F.cross_entropy,
    "binary": F.binary_cross_entropy_with_logits,
    "squared": F.mse_loss,
}


@dataclass(frozen=True)
class Task:
    """A spec made real: the model, the clients' data, the test data and the loss."""

    model: nn.Module
    clients: Federation
    test: Federation
    loss: Loss
    facts: dict[str, Any]  # the sizes, for the record


def task(spec: Spec) -> Task:
    """Load and split the data, and build the model."""
    _check_dtype(spec)
    if spec.partition is None:
        raise ConfigurationError("the spec's partition is not decided: make specs by Spec.of")
    columns = (spec.client_column, spec.target_column)
    data = _data(spec.data, spec.scaling, *columns, spec.loss == "squared", spec.files.get("data"))
    loss = loss_name(spec, data.classes)
    model = build_model(spec, data.inputs.shape[1:], data.classes)
    settings = ("partition", "clients", "alpha", "shards_per_client", "samples", "flipped", "seed")
    clients, test, dropped = _split(data, loss, spec.dtype, **{name: getattr(spec, name) for name in settings})
    facts = {
        "clients": clients.clients,
        "train_samples": len(clients.targets),
        "dropped_samples": dropped,
        "test_samples": len(test.targets),
        "shape": list(data.inputs.shape[1:]),
        "classes": data.classes,
    }
    return Task(model, clients, test, LOSSES[loss], facts)


@lru_cache(maxsize=2)  # runs on one split follow one another
def _split(
    data: LabelledData, loss: str, dtype: str, partition: str, samples: int, flipped: float, seed: int, **options: Any
) -> tuple[Federation, Federation, int]:
    data = some(data, samples, seed)
    split = deal(partition, data.targets, seed=seed, ids=data.clients, **options)
    targets = flip(data.targets, data.classes, flipped, seed)
    kind = torch.int64 if loss == "cross-entropy" else DTYPES[dtype]
    rows = np.concatenate(split.rows)

    def pair(inputs: Any, targets: Any) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(inputs).to(DTYPES[dtype]), torch.from_numpy(targets).to(kind)

    sizes = np.array([len(one) for one in split.rows], dtype=np.int64)
    clients = Federation(*pair(data.inputs[rows], targets[rows]), sizes)
    test = Federation(*pair(data.test_inputs, data.test_targets), np.array([len(data.test_targets)]))
    return clients, test, split.dropped


def some(data: LabelledData, samples: int, seed: int) -> LabelledData:
    """The data with only so many of its training samples, drawn at random; all of them for 0."""
    if samples == 0 or samples >= len(data.targets):
        return data
    rows = np.sort(streams.generator(seed, "samples").permutation(len(data.targets))[:samples])
    ids = None if data.clients is None else data.clients[rows]
    return replace(data, inputs=data.inputs[rows], targets=data.targets[rows], clients=ids)


def flip(targets: Any, classes: int, share: float, seed: int) -> Any:
    """The labels with this share of them, drawn at random, changed to another class; clients are dealt before that."""
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


def loss_name(spec: Spec, classes: int) -> str:
    """The spec's loss; "auto" is the squared loss for regression, the model's own otherwise."""
    if spec.loss != "auto":
        if spec.loss not in LOSSES:
            raise unknown("loss", spec.loss, ["auto", *LOSSES])
        return spec.loss
    if classes == 0:
        return "squared"
    return "binary" if spec.model == "logistic" and classes == 2 else "cross-entropy"


def build_model(spec: Spec, shape: tuple[int, ...], classes: int) -> nn.Module:
    """A built-in model that fits the data, or the user's own; its start is decided by the spec's seed."""
    _check_dtype(spec)
    with streams.torch_seed(spec.seed, "model"):
        return _model(spec, shape, classes).to(DTYPES[spec.dtype])


def _check_dtype(spec: Spec) -> None:
    if spec.dtype not in DTYPES:
        raise unknown("dtype", spec.dtype, DTYPES)


def _model(spec: Spec, shape: tuple[int, ...], classes: int) -> nn.Module:
    if ":" in spec.model:
        try:
            made = import_object(spec.model)()
        except FedspsError:
            raise
        except Exception as error:
            raise ConfigurationError(f"{spec.model}() failed: {type(error).__name__}: {error}") from error
        if not isinstance(made, nn.Module):
            raise ConfigurationError(f"{spec.model}() must return a torch.nn.Module; got {type(made).__name__}")
        return made
    if spec.model not in MODELS:
        raise unknown("model", spec.model, MODELS)
    if classes < 2:
        raise ConfigurationError(
            f"{spec.model} needs at least 2 classes; {spec.data} has {classes}: give a model of your own with --model"
        )
    if spec.model == "logistic":
        return LogisticRegression(prod(shape), classes)
    if len(shape) != 3 or shape[1] != shape[2] or shape[1] < 16:
        raise ConfigurationError(
            f"{spec.model} needs square images, 16 pixels wide or more; those of {spec.data} are {shape}: use logistic"
        )
    if spec.model == "lenet":
        return LeNet(shape[0], shape[1], classes)
    return ResNet18(shape[0], classes, spec.width, spec.norm)  # type: ignore[arg-type]


def is_done(spec: Spec, runs: str | Path = "runs") -> bool:
    """Whether the run is finished and in its folder."""
    return (Path(runs) / spec.digest / SUMMARY).exists()


def run(
    spec: Spec,
    runs: str | Path = "runs",
    *,
    fresh: bool = False,
    callback: Callback | None = None,
    engine: Engine = "auto",
    checkpoint_seconds: float = 10.0,
) -> Result:
    """Train as the spec says, or return the finished run from its folder `runs/<digest>`.

    An interrupted run goes on from its last checkpoint. `fresh` trains again.
    """
    folder = Path(runs) / spec.digest
    if fresh:
        for name in (SUMMARY, CHECKPOINT):
            (folder / name).unlink(missing_ok=True)
    if is_done(spec, runs):
        return load(folder)
    made = task(spec)
    result = train(
        made.model,
        made.clients,
        algorithm=spec.named.build(),
        rounds=spec.rounds,
        local_steps=spec.local_steps,
        batch_size=spec.batch_size or None,
        cohort=spec.cohort or None,
        seed=spec.seed,
        test=made.test if len(made.test.targets) else None,
        loss=made.loss,
        weights=spec.weights,  # type: ignore[arg-type]
        augment=spec.augment,  # type: ignore[arg-type]
        evaluate_every=spec.evaluate_every,
        callback=callback,
        engine=engine,
        checkpoint=folder,
        checkpoint_seconds=checkpoint_seconds,
    )
    result = replace(result, spec=spec.json(), data=made.facts)
    if len(result.history) == spec.rounds or result.diverged_at is not None:  # else the callback stopped it
        result.save(folder)
        (folder / CHECKPOINT).unlink(missing_ok=True)
    return result


def load(folder: str | Path, model: nn.Module | None = None) -> Result:
    """A finished run from its folder, with its trained model if it is one of the built-in ones or given."""
    folder = Path(folder)
    result = Result.load(folder, model)
    if model is None and "data" in result.spec:
        model = _model_of(folder, result)
        if model is not None:
            load_weights(folder, model)
    return replace(result, model=model)


def _model_of(folder: Path, result: Result) -> nn.Module | None:
    """The model of a run before training; None if it is the user's own, and its file is gone or has changed."""
    shape, classes = result.data.get("shape"), result.data.get("classes")
    if not isinstance(shape, list) or not isinstance(classes, int):
        raise damaged(folder / SUMMARY, "its data has no shape or no classes")
    try:
        spec = Spec.from_json(result.spec)
        if ":" in spec.model and source_digest(spec.model) != spec.files.get("model"):
            return None
        return build_model(spec, tuple(shape), classes)
    except ConfigurationError as error:
        if ":" in result.spec["model"]:
            return None  # the history is still worth having
        raise DataError(f"{folder / SPEC} is of another version of fedsps ({error}): use that, or run again") from error
