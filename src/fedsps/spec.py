"""What was asked: everything that decides a run's numbers, as a value with a name of its own."""

import hashlib
import json
import zipfile
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from fedsps.catalogue import Named, code_digest, parse
from fedsps.checks import count
from fedsps.errors import ConfigurationError, DataError, unknown
from fedsps.objects import source_digest

AT_LEAST_ONE = ("clients", "rounds", "local_steps", "shards_per_client", "width")


def _setting(default: Any, panel: str, help: str) -> Any:
    """A field that the command line shows under a heading, with this help."""
    return field(default=default, metadata={"panel": panel, "help": help})


@dataclass(frozen=True, kw_only=True)
class Spec:
    """A run, asked for in full. Equal specs give equal numbers; `digest` names the run's folder."""

    data: str = _setting("digits", "Data", "A data set (see fedsps data list), or a .npz or .csv file of your own.")
    scaling: str | None = _setting(
        None, "Data", "Scaling of the inputs: unit, standard, published. Default: by data set."
    )
    client_column: str | None = _setting(None, "Data", "The column of a .csv file that says whose sample it is.")
    target_column: str | None = _setting(
        None, "Data", "The column of a .csv file to predict. Default: target, else the last."
    )
    partition: str | None = _setting(
        None, "Data", "How samples go to clients: iid, two-class (the paper's non-i.i.d.), shards, dirichlet, natural."
    )
    clients: int = _setting(10, "Data", "Number of clients.")
    alpha: float = _setting(0.5, "Data", "Concentration of the dirichlet partition; small is more unequal.")
    shards_per_client: int = _setting(2, "Data", "Shards for each client in the shards partition.")
    samples: int = _setting(0, "Data", "Training samples to use, drawn at random before they are dealt; 0 for all.")
    flipped: float = _setting(0.0, "Data", "Share of the training labels that are changed to another class at random.")
    augment: str = _setting("none", "Data", "crop-flip: shift and mirror images at random.")
    model: str = _setting("logistic", "Model", "logistic, lenet, resnet18, or your own: file.py:name, package:name.")
    width: int = _setting(64, "Model", "Channels of resnet18's first stage.")
    norm: str = _setting("batch", "Model", "resnet18's normalisation: batch or group.")
    loss: str = _setting("auto", "Model", "auto, cross-entropy, binary (one logit), or squared.")
    dtype: str = _setting("float32", "Model", "float32 or float64.")
    rounds: int = _setting(100, "Training", "Communication rounds.")
    local_steps: int = _setting(5, "Training", "Local steps of each client in a round (tau).")
    batch_size: int = _setting(20, "Training", "Samples in a local step; 0 for a client's whole data.")
    cohort: int = _setting(0, "Training", "Clients that take part in a round, drawn at random; 0 for all.")
    weights: str = _setting("uniform", "Training", "Mean over clients: uniform (the paper's), or by number of samples.")
    evaluate_every: int = _setting(1, "Training", "Rounds between two evaluations; 0 for never.")
    seed: int = _setting(0, "Training", "Decides partition, start, cohorts and batches.")
    algorithm: str = "fedsps"
    parameters: dict[str, Any] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, algorithm: Named | str, **settings: Any) -> Self:
        """A spec with every default written out, and digests of the user's own files."""
        if isinstance(algorithm, str):
            algorithm, *others = parse(algorithm)
            if others:
                raise ConfigurationError(f"{1 + len(others)} algorithms in one spec: give one value for each parameter")
        if not isinstance(algorithm, Named):
            raise ConfigurationError(f'algorithm must be given by its name, like "fedsps:cap=10"; got {algorithm!r}')
        plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in settings.items()}
        spec = cls(algorithm=algorithm.name, parameters=algorithm.parameters, **plain)
        for one in fields(cls):
            if one.type is int:
                count(one.name, getattr(spec, one.name), least=1 if one.name in AT_LEAST_ONE else 0)
        if not 0 <= spec.flipped < 1:
            raise ConfigurationError(f"flipped must be at least 0 and below 1; got {spec.flipped!r}")
        if spec.partition is None:
            spec = replace(spec, partition="natural" if _has_clients(spec) else "two-class")
        found = {"algorithm": code_digest(algorithm.name)}
        if ":" in spec.model:
            found["model"] = source_digest(spec.model)
        if Path(spec.data).suffix:
            found["data"] = file_digest(Path(spec.data))
        return replace(spec, files={name: digest for name, digest in found.items() if digest})

    @property
    def named(self) -> Named:
        """The algorithm with its parameters."""
        return Named(self.algorithm, self.parameters)

    @property
    def digest(self) -> str:
        """Twelve hexadecimal digits of the sha256 of the spec's JSON."""
        text = json.dumps(self.json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def json(self) -> dict[str, Any]:
        """As plain JSON values."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self), default=lambda number: number.item()))  # NumPy's
        return plain

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Self:
        """The inverse of `json`."""
        known = {one.name for one in fields(cls)}
        for name in found:
            if name not in known:
                raise unknown("setting", name, known)
        parameters = found.get("parameters", {})
        tuples = {key: tuple(value) if isinstance(value, list) else value for key, value in parameters.items()}
        return cls(**(found | {"parameters": tuples}))


def _has_clients(spec: Spec) -> bool:
    """Whether the data itself says whose sample is whose: by a column of a table, or an array `clients`."""
    if Path(spec.data).suffix.lower() != ".npz" or not zipfile.is_zipfile(spec.data):
        return spec.client_column is not None
    with zipfile.ZipFile(spec.data) as archive:
        return "clients.npy" in archive.namelist()


def file_digest(path: Path) -> str:
    """The sha256 of a file."""
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
