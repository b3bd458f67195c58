"""`run(spec)`: from what was asked to a folder with what happened. Runs are cached by digest and can be resumed."""

from dataclasses import replace
from pathlib import Path

from torch import nn

from fedsps.core.addresses import source_digest
from fedsps.engine.session import Callback
from fedsps.engine.trial import Engine
from fedsps.errors import ConfigurationError
from fedsps.runs.checkpoint import NAME as CHECKPOINT
from fedsps.runs.files import read_json
from fedsps.runs.result import SUMMARY, Result, damaged, load_weights
from fedsps.runs.spec import Spec
from fedsps.runs.train import train


def is_done(spec: Spec, runs: str | Path = "runs", exact: bool = False) -> bool:
    """Whether the run is finished and in its folder; with `exact`, not as one of a sweep."""
    summary = Path(runs) / spec.digest / SUMMARY
    if not exact or not summary.exists():
        return summary.exists()
    return "sweep" not in read_json(summary).get("provenance", {})


def run(
    spec: Spec,
    runs: str | Path = "runs",
    *,
    fresh: bool = False,
    exact: bool = False,
    callback: Callback | None = None,
    engine: Engine = "auto",
    checkpoint_seconds: float = 10.0,
) -> Result:
    """Train as the spec says, or return the finished run from its folder `runs/<digest>`.

    An interrupted run goes on from its last checkpoint. A run that diverged is finished too: it would diverge again.

    Args:
        spec: what is asked, made by `Spec.of`.
        runs: the folder of run folders.
        fresh: train again, whatever is there.
        exact: train again what is there as one of a sweep, whose numbers are the same up to rounding.
        callback: called after each round with its row; `True` stops the run, which is then not marked as finished.
        engine: see `train`.
        checkpoint_seconds: the time between two saves.

    Raises:
        ConfigurationError: if the spec has no task, as that of a run from Python.
        DataError: if the data cannot be had, or the folder holds something damaged.
    """
    if not isinstance(spec, Spec):
        raise ConfigurationError(f"spec must be made by Spec.of; got {spec!r}")
    if spec.task is None:
        raise ConfigurationError("the spec has no task: make specs by Spec.of, or call fedsps.train")
    folder = Path(runs) / spec.digest
    if fresh or (exact and not is_done(spec, runs, exact) and is_done(spec, runs)):
        for name in (SUMMARY, CHECKPOINT):
            (folder / name).unlink(missing_ok=True)
    if is_done(spec, runs):
        return load(folder)
    folder.mkdir(parents=True, exist_ok=True)  # before hours of training, if it cannot be made
    task = spec.task.load(spec.plan.seed, spec.files.get("data"))
    result = train(
        task.model,
        task.clients,
        algorithm=spec.named.build(),
        test=task.test,
        loss=task.loss,
        callback=callback,
        engine=engine,
        checkpoint=folder,
        checkpoint_seconds=checkpoint_seconds,
        **vars(spec.plan),
    )
    result = replace(result, spec=spec, data=task.facts)
    if len(result.history) == spec.plan.rounds or result.diverged_at is not None:  # else the callback stopped it
        result.save(folder)
        (folder / CHECKPOINT).unlink(missing_ok=True)
    return result


def load(folder: str | Path, model: nn.Module | None = None) -> Result:
    """A finished run from its folder, with its trained model if it is one of the built-in ones or given.

    Args:
        folder: of the run, as `run`, `train(checkpoint=...)` with `Result.save`, or a federation's server wrote it.
        model: the architecture, where fedsps does not know it; it is filled with the run's weights.
    """
    folder = Path(folder)
    result = Result.load(folder, model)
    if model is None and result.spec.task is not None:
        model = _model_of(folder, result)
        if model is not None:
            load_weights(folder, model)
    return replace(result, model=model)


def _model_of(folder: Path, result: Result) -> nn.Module | None:
    """The model of a run before training; None if it is the user's own, and its file is gone or has changed."""
    shape, classes, spec = result.data.get("shape"), result.data.get("classes"), result.spec
    if spec.task is None or not isinstance(shape, list) or not isinstance(classes, int):
        raise damaged(folder / SUMMARY, "its data has no shape or no classes")
    try:
        if ":" in spec.task.model and source_digest(spec.task.model) != spec.files.get("model"):
            return None
        return spec.task.build_model(tuple(shape), classes, spec.plan.seed)
    except ConfigurationError:
        if ":" in spec.task.model:
            return None  # the history is still worth having
        raise
