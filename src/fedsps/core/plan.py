"""The plan of a run: what is asked of the engine, whatever the data, the model and the algorithm are."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self, TypedDict, TypeVar, get_args

from fedsps.checks import choice, count, device_name, truth
from fedsps.core.absences import Absences, missing, written
from fedsps.errors import ConfigurationError, unknown

Weights = Literal["uniform", "samples"]
"""The weights of the mean over clients: the paper's 1/n, or by their numbers of samples."""

Augment = Literal["none", "crop-flip"]
"""What happens to a batch of images before a local step."""


def knob(default: Any, panel: str, help: str) -> Any:
    """A field of a dataclass that the command shows as an option, under a heading and with this help."""
    return field(default=default, metadata={"panel": panel, "help": help})


def late_knob(default: Any, panel: str, help: str) -> Any:
    """As `knob`, for one that came after runs had been named: at its default it is not part of the digest."""
    return field(default=default, metadata={"panel": panel, "help": help, "late": True})


def plumbing(default: Any, panel: str, help: str) -> Any:
    """As `knob`, for a field that does not change the numbers of a run: it is recorded, but not part of the digest."""
    return field(default=default, metadata={"panel": panel, "help": help, "plumbing": True})


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How long, on how much and how often: everything about a run but its data, its model and its algorithm.

    A plan checks itself, and it is the only place that does: specs, engines and Flower's settings contain one. Adding
    a knob is one field here and the place that acts on it; options of the command, records and digests follow.

    Attributes:
        rounds: communication rounds.
        local_steps: steps of each client in a round (tau).
        batch_size: samples in a local step, at most; None for a client's whole data at every step.
        cohort: clients that take part in a round, drawn without replacement; None for all.
        absences: who is missing although drawn, as `{3: [0, 4]}`, "3:0/4,5..9:1" or "20%" of the clients in each round
            (see `fedsps.core.absences`); None for nobody. In a federation these are not asked.
        weights: the mean over clients, "uniform" (the paper's) or by "samples".
        augment: "crop-flip" shifts images by up to 4 pixels and mirrors them, both at random.
        seed: decides cohorts and batches (in a spec also the partition and the model's start).
        evaluate_every: rounds between two evaluations; the last round is always evaluated. 0: never.
        evaluate_from: the first round that may be evaluated; a search needs none before its last tenth.
        patience: stop after so many rounds without a better value of the column `monitor`; None: never.
        restore_best: whether the result is the model of the round with the best value of that column, instead of the
            last one.
        monitor: a column of the history; None is `validation_loss` where there are validation data, else `train_loss`.
            Of columns that end in loss, error or rmse less is better, of all others more.
        local_batch_norm: whether each client keeps its batch-norm layers, parameters and statistics, for itself: FedBN.
            A model without such layers is trained as ever.
        workers: clients that are computed side by side, each on one core, where a model is trained one client after
            another; None for the cores that this process may use, where a short trial says that it pays. It does not
            change the numbers, and is not part of a run's digest.
        device: "cpu", "cuda", "cuda:1", "mps" or "auto" (cuda if there is one, else mps, else the CPU); None is where
            the model is. Model and data are moved there once. It changes the numbers up to rounding alone, and is not
            part of a run's digest either. A plan may name a device that is not here: only training needs it.

    >>> plan = Plan(rounds=20, cohort=3, evaluate_every=8)
    >>> plan.active(10), [round for round in range(1, 21) if plan.is_evaluated(round)]
    (3, [8, 16, 20])
    >>> Plan(rounds=0)
    Traceback (most recent call last):
    fedsps.errors.ConfigurationError: rounds must be a whole number of at least 1; got 0
    """

    rounds: int = knob(100, "Training", "Communication rounds.")
    local_steps: int = knob(5, "Training", "Local steps of each client in a round (tau).")
    batch_size: int | None = knob(20, "Training", "Samples in a local step; all: a client's whole data.")
    cohort: int | None = knob(None, "Training", "Clients that take part in a round, drawn at random; all: everyone.")
    weights: Weights = knob("uniform", "Training", "Mean over clients: uniform (the paper's), or by samples.")
    augment: Augment = knob("none", "Data", "crop-flip: shift and mirror images at random.")
    seed: int = knob(0, "Training", "Decides partition, start, cohorts and batches.")
    evaluate_every: int = knob(1, "Training", "Rounds between two evaluations; 0: never.")
    evaluate_from: int = knob(1, "Training", "The first round that may be evaluated; the last one always is.")
    patience: int | None = late_knob(
        None, "Training", "Stop after so many rounds without a better --monitor. Default: never."
    )
    restore_best: bool = late_knob(False, "Training", "Keep the model of the best round by --monitor, not the last.")
    monitor: str | None = late_knob(
        None, "Training", "The column to watch. Default: validation_loss if there is one, else train_loss."
    )
    absences: Absences | None = late_knob(
        None,
        "Training",
        "Who is missing: 3:0/4,5..9:1 (rounds 5 to 9 without client 1), or a share of each round, 20%.",
    )
    local_batch_norm: bool = late_knob(
        False, "Training", "FedBN: each client keeps its batch-norm layers, weights and statistics, for itself."
    )
    workers: int | None = plumbing(None, "Training", "Clients computed side by side; all: the cores, where it pays.")
    device: str | None = plumbing(
        None, "Training", "cpu, cuda, cuda:1, mps, or auto: cuda, else mps, else cpu. Default: where the model is."
    )

    def __post_init__(self) -> None:
        for name, least in (
            *(("rounds", 1), ("local_steps", 1), ("seed", 0)),
            *(("evaluate_every", 0), ("evaluate_from", 1)),
        ):
            object.__setattr__(self, name, count(name, getattr(self, name), least))
        for name in ("batch_size", "cohort", "workers"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, count(f"{name} (None: all)", getattr(self, name)))
        if self.patience is not None:
            object.__setattr__(self, "patience", count("patience", self.patience))
        if self.absences is not None:
            object.__setattr__(self, "absences", written(self.absences))
        truth("restore_best", self.restore_best)
        truth("local_batch_norm", self.local_batch_norm)
        if self.watches and self.evaluate_every == 0:
            raise ConfigurationError("patience and restore_best need evaluations: set evaluate_every to 1 or more")
        choice("weights", self.weights, get_args(Weights))
        choice("augment", self.augment, get_args(Augment))
        if self.device is not None:
            object.__setattr__(self, "device", device_name("device", self.device))

    @classmethod
    def of(cls, **knobs: Any) -> Self:
        """A plan from keyword arguments; a name that is none of its fields is refused with the nearest ones."""
        known = [one.name for one in fields(cls)]
        for name in knobs:
            if name not in known:
                raise unknown("setting", name, known)
        return cls(**knobs)

    def check(self, clients: int, sample: tuple[int, ...] | None = None) -> None:
        """Refuse a plan that does not fit so many clients, or samples of this shape where it is known."""
        if self.cohort is not None and self.cohort > clients:
            raise ConfigurationError(f"cohort is {self.cohort}, but there are only {clients} clients")
        if self.absences is not None and (most := max(missing(str(self.absences)), default=0)) >= clients:
            raise ConfigurationError(f"absences names client {most}, but there are only {clients}, counted from 0")
        if self.augment == "crop-flip" and sample is not None and len(sample) != 3:
            raise ConfigurationError(
                f"augment='crop-flip' needs images [channels, height, width]; the inputs are {sample}"
            )

    @property
    def watches(self) -> bool:
        """Whether a column decides when the run ends, or which of its models is kept."""
        return self.patience is not None or self.restore_best

    def active(self, clients: int) -> int:
        """How many of so many clients take part in a round."""
        return clients if self.cohort is None else self.cohort

    def is_evaluated(self, round: int) -> bool:
        """Whether round 1, 2, ... ends with an evaluation."""
        if self.evaluate_every == 0 or round == self.rounds:
            return self.evaluate_every > 0
        return round >= self.evaluate_from and round % self.evaluate_every == 0


LATE = {one.name: one.default for one in fields(Plan) if "late" in one.metadata}
"""The fields of a plan that are no part of the digest at their defaults, and those."""

PLUMBING = tuple(one.name for one in fields(Plan) if "plumbing" in one.metadata)
"""The fields of a plan that do not change a run's numbers."""


class Knobs(TypedDict, total=False):
    """A plan's fields as keyword arguments, for functions that take a plan in parts: `train(..., rounds=500)`."""

    rounds: int
    local_steps: int
    batch_size: int | None
    cohort: int | None
    weights: Weights
    augment: Augment
    seed: int
    evaluate_every: int
    evaluate_from: int
    patience: int | None
    restore_best: bool
    monitor: str | None
    absences: Absences | None
    local_batch_norm: bool
    workers: int | None
    device: str | None


Function = TypeVar("Function", bound=Callable[..., Any])


def takes_plan(function: Function) -> Function:
    """Show a plan's fields, with their defaults, in the signature of a function that takes them as `**plan`."""
    own = [one for one in inspect.signature(function).parameters.values() if one.kind is not one.VAR_KEYWORD]
    knobs = [inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default) for one in fields(Plan)]
    function.__signature__ = inspect.Signature([*own, *knobs])  # type: ignore[attr-defined]
    return function
