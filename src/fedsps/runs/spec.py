"""What was asked: everything that decides a run's numbers, as a value with a name of its own."""

import hashlib
import json
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Self

import numpy as np

from fedsps.core.plan import LATE, PLUMBING, Plan
from fedsps.errors import ConfigurationError, DataError, unknown
from fedsps.methods.notation import Named, code_digest, parse, usual
from fedsps.runs.task import Task

PLAN = tuple(field.name for field in fields(Plan))
TASK = tuple(field.name for field in fields(Task))
LATE_TASK = {field.name: field.default for field in fields(Task) if "late" in field.metadata}


@dataclass(frozen=True, kw_only=True)
class Spec:
    """A run, asked for in full: an algorithm, a task and a plan. `digest` names the run's folder.

    Make specs by `Spec.of`, which takes all settings side by side.

    Attributes:
        algorithm: its name, "fedsps" or "sps+amsgrad".
        parameters: all of them, also those at their defaults.
        plan: rounds, local steps, cohort, seed, ...
        task: data, split and model; None where they came from Python or from the sites of a federation.
        files: digests of the user's own files.
        federation: what beside the plan decided the numbers of a run on Flower; empty elsewhere.

    >>> spec = Spec.of("fedsps:cap=10", data="mnist", rounds=500, cohort=3)
    >>> spec.plan.rounds, spec.task.data, spec.parameters["cap"]
    (500, 'mnist', 10.0)
    >>> Spec.from_json(spec.json()) == spec
    True
    """

    algorithm: str
    parameters: dict[str, Any]
    plan: Plan
    task: Task | None = None
    files: dict[str, str] = field(default_factory=dict)
    federation: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, algorithm: Named | str | None = None, **settings: Any) -> Self:
        """A spec with every default written out, and digests of the user's own files.

        Args:
            algorithm: as the command line writes it, with one value for each parameter; `usual` if not given.
            **settings: fields of `Task` and `Plan`.

        Raises:
            ConfigurationError: for a setting that is unknown or cannot work, or several algorithms.
        """
        if algorithm is None:
            algorithm = usual(settings.get("local_batch_norm", False))
        if isinstance(algorithm, str):
            algorithm, *others = parse(algorithm)
            if others:
                raise ConfigurationError(f"{1 + len(others)} algorithms in one spec: give one value for each parameter")
        if not isinstance(algorithm, Named):
            raise ConfigurationError(f'algorithm must be given by its name, like "fedsps:cap=10"; got {algorithm!r}')
        plan, task = split(settings)
        code = code_digest(algorithm.name)
        return cls(
            algorithm=algorithm.name,
            parameters=algorithm.parameters,
            plan=Plan(**plan),
            task=(chosen := Task(**task)),
            files=({"algorithm": code} if code else {}) | chosen.digests(),
        )

    def but(self, **settings: Any) -> Self:
        """The same spec with some settings of its plan and its task changed.

        >>> spec = Spec.of("fedsps", rounds=500)
        >>> spec.but(rounds=10).plan.rounds, spec.but(rounds=500) == spec
        (10, True)
        """
        plan, task = split(settings)
        if task and self.task is None:
            raise ConfigurationError(f"the spec has no task, and so no {min(task)}")
        changed = None if self.task is None else replace(self.task, **task)
        files = self.files if changed == self.task or changed is None else self.files | changed.digests()
        return replace(self, plan=replace(self.plan, **plan), task=changed, files=files)

    @property
    def named(self) -> Named:
        """The algorithm with its parameters."""
        return Named(self.algorithm, self.parameters)

    @property
    def digest(self) -> str:
        """Twelve hexadecimal digits of the sha256 of the spec's JSON."""
        content = self.json()
        for name in PLUMBING:
            del content["plan"][name]
        for group, late in (("plan", LATE), ("task", LATE_TASK)):
            for name, default in late.items() if content[group] else ():
                if content[group][name] == default:
                    del content[group][name]
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def json(self) -> dict[str, Any]:
        """The spec as plain JSON values; what JSON cannot hold is there as it prints itself."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self), default=_plain))
        return plain

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """The inverse of `json`.

        Raises:
            ConfigurationError: for a setting that is unknown here, as of another version, or that cannot work.
            DataError: if this is not what `json` gives.
        """
        for name in ("algorithm", "plan"):
            if name not in content:
                raise DataError(f"it has no {name}")
        try:
            return cls._from_json(content)
        except ConfigurationError:
            raise
        except Exception as error:  # whatever values of other types lead to
            raise DataError(f"{type(error).__name__}: {error}") from error

    @classmethod
    def _from_json(cls, content: dict[str, Any]) -> Self:
        for name, known in (("", fields(cls)), ("plan", fields(Plan)), ("task", fields(Task))):
            group = content.get(name) if name else content
            for key in group or {}:
                if key not in {field.name for field in known}:
                    raise unknown("setting", key, [field.name for field in known])
        parameters = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in content.get("parameters", {}).items()
        }
        task = content.get("task")
        made = {
            "parameters": parameters,
            "plan": Plan(**content["plan"]),
            "task": None if task is None else Task(**task),
        }
        return cls(**(content | made))


def split(settings: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings side by side as those of the plan and those of the task."""
    for name in settings:
        if name not in PLAN + TASK:
            raise unknown("setting", name, PLAN + TASK)
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in settings.items()}
    plan = {name: value for name, value in plain.items() if name in PLAN}
    return plan, {name: value for name, value in plain.items() if name in TASK}


def _plain(value: Any) -> Any:
    """Numbers of numpy as Python's; what else JSON cannot hold as its `repr`, so that digests tell values apart."""
    return value.item() if isinstance(value, np.generic) else repr(value)
