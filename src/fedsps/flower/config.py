"""The run configuration of a Flower app, read and checked: `algorithm = "fedsps"`, `local-steps = 5`, ...

Flower's configuration is flat and knows numbers, texts and truth values. Server and clients read the same one, so
each checks it for itself, and a mistake is reported before the first round.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, get_args, get_type_hints

from fedsps.checks import choice, count, positive
from fedsps.core.algorithm import Algorithm
from fedsps.core.plan import Plan
from fedsps.core.vectors import DTYPES
from fedsps.data.clients import ClientData
from fedsps.engine.setup import Setup
from fedsps.errors import ConfigurationError, unknown
from fedsps.flower.privacy import Privacy
from fedsps.methods.notation import Named, parse, usual
from fedsps.model.network import Network
from fedsps.runs.spec import Spec

if TYPE_CHECKING:  # pandas comes with it
    from fedsps.data.columns import Columns

COLUMNS = "table.columns"
"""The setting that says how rows of the sites' tables become inputs (JSON); see `fedsps.flower.table`."""

ALL = 0
"""Flower's configuration has no null: there 0 stands for a plan's None, "all"."""


def _plumbing(default: Any) -> Any:
    """A field that does not decide a run's numbers: not part of the digest."""
    return field(default=default, metadata={"plumbing": True})


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """What a run configuration says. Keys with a dot (tables of your own) are the app's business: they are kept.

    Attributes:
        plan: rounds, local-steps, batch-size, cohort, weights, augment, seed and evaluate-every, ...; 0 for all.
        algorithm: as the command line writes it; if none is named `of` takes FedSPS under noise or a robust
            mean, and with local-batch-norm FedPolyak without its average.
        dtype: of the model.
        mean: "mean", "median", "trimmed:0.2" or "clipped:1.0".
        far_factor: an answer whose norm is above so many times the cohort's lower median is refused; 0: none is.
        clip_norm: differential privacy: the largest norm of a client's change; 0: none.
        noise_multiplier: the noise's std on the sum of the changes, in clipping norms.
        delta: epsilon is told for this delta.
        clipping_range: secure aggregation: the largest change of one weight that it carries.
        clients: in all; 0: as the nodes say.
        own: the app's own keys, with a dot.
        runs: the server's folder of run folders.
        deadline: seconds that clients have for an answer, and twice as many for one to two questions.
        minimum_cohort: answers that a round needs.
        retries: times that a round with fewer is repeated.
        start_deadline: seconds that the nodes have to connect.
        poll: seconds between two looks for answers.
        threads: of torch, on the server and on each client.

    >>> config = RunConfig.of({"algorithm": "fedsps:cap=10", "local-steps": 3, "cohort": 0})
    >>> config.plan.local_steps, config.plan.cohort
    (3, None)
    """

    plan: Plan = field(default_factory=Plan)
    algorithm: str = usual()
    dtype: str = "float32"
    mean: str = "mean"
    far_factor: float = 1000.0
    clip_norm: float = 0.0
    noise_multiplier: float = 0.0
    delta: float = 1e-5
    clipping_range: float = 8.0
    clients: int = 0
    own: Mapping[str, Any] = field(default_factory=dict)
    runs: str = _plumbing("")
    deadline: float = _plumbing(300.0)
    minimum_cohort: int = _plumbing(1)
    retries: int = _plumbing(3)
    start_deadline: float = _plumbing(120.0)
    poll: float = _plumbing(0.1)
    threads: int = _plumbing(1)

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """From Flower's flat dictionary; what it does not know, or has the wrong type, is refused by name.

        Args:
            config: keys with dashes; missing ones have their defaults. A whole number does where a float is wanted.

        Raises:
            ConfigurationError: an unknown key (with the nearest that exist), a wrong type, or a value that cannot work.
        """
        known = _keys(cls)
        given: dict[str, Any] = {}
        plan: dict[str, Any] = {}
        for key, value in config.items():
            if "." in key:
                given.setdefault("own", {})[key] = value
                continue
            if key not in known:
                raise unknown("run setting", key, known)
            kinds = known[key]
            if kinds == (float,) and isinstance(value, int):
                value = float(value)  # noqa: PLW2901
            if not isinstance(value, kinds) or isinstance(value, bool) != (bool in kinds):
                raise ConfigurationError(f"run setting {key} must be {kinds[0].__name__}; got {value!r}")
            name = key.replace("-", "_")
            if name in PLAN:
                plan[name] = None if value == ALL and PLAN[name] else value
            else:
                given[name] = value
        made = cls(plan=Plan(**plan), **given)
        if "algorithm" in given:
            return made
        noisy = made.clip_norm != 0 or made.noise_multiplier != 0
        return replace(made, algorithm=usual(made.plan.local_batch_norm, change_alone=noisy or made.mean != "mean"))

    def __post_init__(self) -> None:
        choice("dtype", self.dtype, DTYPES)
        for name in ("minimum_cohort", "threads"):
            count(name, getattr(self, name))
        for name in ("retries", "clients"):
            count(name, getattr(self, name), least=0)
        for name in ("deadline", "start_deadline", "poll"):
            if not getattr(self, name) > 0:
                raise ConfigurationError(f"{name} must be a number of seconds above 0; got {getattr(self, name)}")
        positive("clipping_range", self.clipping_range)
        if self.far_factor != 0 and not self.far_factor >= 10:
            raise ConfigurationError(f"far_factor must be 10 or more, or 0 to refuse none; got {self.far_factor:g}")
        if self.minimum_cohort > (self.plan.cohort or self.minimum_cohort):
            raise ConfigurationError(
                f"minimum-cohort is {self.minimum_cohort}, but a round has only {self.plan.cohort} clients (cohort)"
            )
        if not 0 < self.delta < 1:
            raise ConfigurationError(f"delta must be above 0 and below 1; got {self.delta!r}")
        if self.privacy is not None and (self.plan.weights != "uniform" or self.mean != "mean"):
            raise ConfigurationError(
                "differential privacy (clip-norm) needs weights = 'uniform' and mean = 'mean'; got "
                f"{self.plan.weights!r} and {self.mean!r}"
            )

    @cached_property
    def privacy(self) -> Privacy | None:
        """Differential privacy, if it is asked for; both of its settings are needed then."""
        if self.clip_norm == 0 and self.noise_multiplier == 0:
            return None
        if self.clip_norm == 0 or self.noise_multiplier == 0:
            raise ConfigurationError(
                f"differential privacy needs clip-norm and noise-multiplier; got {self.clip_norm:g} and "
                f"{self.noise_multiplier:g} (to clip without noise: mean = 'clipped:1.0')"
            )
        ranges = self.built.ranges(self.clip_norm, private=True)
        return Privacy(self.clip_norm, self.noise_multiplier, self.delta, ranges)

    @cached_property
    def columns(self) -> "Columns | None":
        """How rows of the sites' tables become inputs, where the data are tables."""
        if COLUMNS not in self.own:
            return None
        from fedsps.data.columns import Columns

        return Columns.from_json(json.loads(str(self.own[COLUMNS])))

    @cached_property
    def named(self) -> Named:
        """The algorithm with its parameters, as it was written; a list of several is refused."""
        chosen, *others = parse(self.algorithm)
        if others:
            raise ConfigurationError(
                f"{self.algorithm!r} names {1 + len(others)} runs: a federation trains one at a time"
            )
        return chosen

    @cached_property
    def built(self) -> Algorithm:
        """The algorithm itself, composed of its parts; some are others under differential privacy."""
        built = self.named.build()
        return built.privately if self.clip_norm else built

    def setup(self, network: Network, data: ClientData) -> Setup:
        """The run over what is known here of the clients' data: a client knows its own, the server the sizes alone."""
        # a node has one client: there is nobody to compute side by side with
        plan = replace(self.plan, workers=1)
        return Setup(plan=plan, network=network, data=data, algorithm=self.built)

    def spec(self, network: Network, clients: int) -> Spec:
        """What was asked, for the record; its digest names the run folder, and the clients' states.

        Settings that are not meant to change the numbers (deadlines, folders, threads) are left out, so that a run goes
        on from its checkpoint when they are changed. The model's start is in it by its hash.

        Args:
            network: the model before training.
            clients: how many there are, as the nodes said.
        """
        beside = {
            setting.name: getattr(self, setting.name)
            for setting in fields(self)
            if "plumbing" not in setting.metadata and setting.name not in ("plan", "algorithm")
        }
        start = hashlib.sha256(network.x.detach().cpu().numpy().tobytes()).hexdigest()[:12]
        return Spec(
            algorithm=self.named.name,
            parameters=dict(self.named.parameters),
            plan=self.plan,
            federation=beside | {"clients": clients, "model": network.description, "start": start},
        )


def _kinds(annotation: Any) -> tuple[type, ...]:
    """The plain types that a field's annotation allows: those of the words for a Literal.

    >>> from typing import Literal
    >>> _kinds(float), _kinds(Literal["uniform", "samples"])
    ((<class 'float'>,), (<class 'str'>,))
    """
    parts = get_args(annotation)
    if not parts:
        return (annotation,)
    return tuple(dict.fromkeys(part if isinstance(part, type) else type(part) for part in parts if part is not None))


PLAN = {name: type(None) in get_args(kind) for name, kind in get_type_hints(Plan).items()}
"""The plan's keys, and whether 0 means all."""


def _keys(cls: type[RunConfig]) -> dict[str, tuple[type, ...]]:
    """Flower's keys, with dashes, and the types of their values."""
    kinds = get_type_hints(Plan) | {
        name: kind for name, kind in get_type_hints(cls).items() if name not in ("plan", "own")
    }
    return {
        name.replace("_", "-"): tuple(kind for kind in _kinds(annotation) if kind is not type(None))
        for name, annotation in kinds.items()
    }
