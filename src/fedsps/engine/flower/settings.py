"""The run configuration of a Flower app, read and checked: `algorithm = "fedsps"`, `local-steps = 5`, ..."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Self, get_args

from fedsps.algorithm import Algorithm
from fedsps.catalogue import Named, parse
from fedsps.checks import choice, count, positive
from fedsps.data.federated import Federation
from fedsps.engine.setting import Augment, Setting, Weights
from fedsps.errors import ConfigurationError, unknown
from fedsps.objective import Objective
from fedsps.privacy import Privacy
from fedsps.shapes import DTYPES


def _plumbing(default: Any) -> Any:
    """A field that does not decide a run's numbers: not part of the digest."""
    return field(default=default, metadata={"plumbing": True})


@dataclass(frozen=True)
class Settings:
    """What a run configuration says. Keys with a dot (tables of your own) are the app's business: they are kept."""

    algorithm: str = "fedsps"
    rounds: int = 100
    local_steps: int = 5
    batch_size: int = 20  # 0: a client's whole data
    cohort: int = 0  # clients a round; 0: all
    weights: str = "uniform"
    augment: str = "none"
    dtype: str = "float32"
    seed: int = 0
    evaluate_every: int = 1  # 0: never
    mean: str = "mean"  # or median, trimmed:0.2, clipped:1.0
    clip_norm: float = 0.0  # differential privacy: the largest norm of a client's change; 0: none
    noise_multiplier: float = 0.0  # the noise's std on the sum of the changes, in clipping norms
    delta: float = 1e-5  # epsilon is told for this delta
    clipping_range: float = 8.0  # secure aggregation: the largest change of one weight that it carries
    clients: int = 0  # in all; 0: as the nodes say
    own: Mapping[str, Any] = field(default_factory=dict)  # the app's own keys, with a dot
    runs: str = _plumbing("")  # the server's folder of run folders
    deadline: float = _plumbing(300.0)  # seconds that clients have for an answer
    minimum_cohort: int = _plumbing(1)  # answers that a round needs
    retries: int = _plumbing(3)  # times that a round with fewer is repeated
    start_deadline: float = _plumbing(120.0)  # seconds that the nodes have to connect
    poll: float = _plumbing(0.1)  # seconds between two looks for answers
    threads: int = _plumbing(1)

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """From Flower's flat dictionary."""
        known = {one.name.replace("_", "-"): one for one in fields(cls) if one.name != "own"}
        given: dict[str, Any] = {}
        for key, value in config.items():
            if "." in key:
                given.setdefault("own", {})[key] = value
                continue
            if key not in known:
                raise unknown("run setting", key, known)
            kind = known[key].type
            if kind is float and isinstance(value, int):
                value = float(value)  # noqa: PLW2901
            if not isinstance(value, kind) or isinstance(value, bool):  # type: ignore[arg-type]
                raise ConfigurationError(f"run setting {key} must be {kind.__name__}; got {value!r}")  # type: ignore[union-attr]
            given[known[key].name] = value
        return cls(**given)

    def __post_init__(self) -> None:
        choice("weights", self.weights, get_args(Weights))
        choice("augment", self.augment, get_args(Augment))
        choice("dtype", self.dtype, DTYPES)
        for name in ("rounds", "local_steps", "minimum_cohort", "threads"):
            count(name, getattr(self, name))
        for name in ("batch_size", "cohort", "seed", "evaluate_every", "retries", "clients"):
            count(name, getattr(self, name), least=0)
        for name in ("deadline", "start_deadline", "poll"):
            if not getattr(self, name) > 0:
                raise ConfigurationError(f"{name} must be a number of seconds above 0; got {getattr(self, name)}")
        positive("clipping_range", self.clipping_range)
        if self.minimum_cohort > (self.cohort or self.minimum_cohort):
            raise ConfigurationError(
                f"minimum-cohort is {self.minimum_cohort}, but a round has only {self.cohort} clients (cohort)"
            )
        if not 0 < self.delta < 1:
            raise ConfigurationError(f"delta must be above 0 and below 1; got {self.delta!r}")
        if self.privacy is not None and (self.weights != "uniform" or self.mean != "mean"):
            raise ConfigurationError(
                f"differential privacy (clip-norm) needs weights = 'uniform' and mean = 'mean'; got {self.weights!r} "
                f"and {self.mean!r}"
            )

    @cached_property
    def privacy(self) -> Privacy | None:
        """Differential privacy, if it is asked for."""
        if self.clip_norm == 0 and self.noise_multiplier == 0:
            return None
        if self.clip_norm == 0 or self.noise_multiplier == 0:
            raise ConfigurationError(
                f"differential privacy needs clip-norm and noise-multiplier; got {self.clip_norm:g} and "
                f"{self.noise_multiplier:g} (to clip without noise: mean = 'clipped:1.0')"
            )
        return Privacy(self.clip_norm, self.noise_multiplier, self.delta)

    @cached_property
    def named(self) -> Named:
        """The algorithm with its parameters."""
        found = parse(self.algorithm)
        if len(found) > 1:
            raise ConfigurationError(f"{self.algorithm!r} names {len(found)} runs: a federation trains one at a time")
        return found[0]

    @cached_property
    def built(self) -> Algorithm:
        """The algorithm itself."""
        return self.named.build()

    def setting(self, goal: Objective, federation: Federation) -> Setting:
        """The run over what is known here of the clients' data: a client knows its own, the server the sizes alone."""
        return Setting(
            objective=goal,
            federation=federation,
            algorithm=self.built,
            local_steps=self.local_steps,
            batch_size=self.batch_size or None,
            cohort=self.cohort or federation.clients,
            seed=self.seed,
            weights=self.weights,  # type: ignore[arg-type]
            augment=self.augment,  # type: ignore[arg-type]
        )

    def spec(self, goal: Objective, clients: int) -> dict[str, Any]:
        """What was asked, for the record; `digest` is of this."""
        asked = {one.name: getattr(self, one.name) for one in fields(self) if "plumbing" not in one.metadata}
        named = {"algorithm": self.named.name, "parameters": dict(self.named.parameters)}
        start = hashlib.sha256(goal.x.detach().cpu().numpy().tobytes()).hexdigest()[:12]
        return asked | named | {"clients": clients, "model": goal.description, "start": start, "engine": "flower"}


def digest(spec: dict[str, Any]) -> str:
    """Twelve hexadecimal digits that name a run's folder, and its clients' states."""
    return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:12]
