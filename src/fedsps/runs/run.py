"""`run(spec)`: from what was asked to a folder with what happened. Runs are cached by digest and can be resumed."""

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
from torch import nn

from fedsps.checks import is_number
from fedsps.core.addresses import source_digest
from fedsps.engine.now import Callbacks
from fedsps.engine.ranks import join, together
from fedsps.engine.trial import Engine
from fedsps.errors import ConfigurationError, DataError
from fedsps.model.device import find_device
from fedsps.runs.checkpoint import forget
from fedsps.runs.files import read_json
from fedsps.runs.result import SUMMARY, WEIGHTS, Result, damaged, filled
from fedsps.runs.spec import Spec
from fedsps.runs.train import train


def is_done(spec: Spec, runs: str | Path = "runs", exact: bool = False) -> bool:
    """Whether the run is finished and in its folder; with `exact`, not as one of a sweep.

    It is not if its algorithm has other parts, or other defaults of them, in this version than in the one that ran it.
    """
    if Path(runs).is_file():
        raise ConfigurationError(f"runs must be a folder; {str(runs)!r} is a file: name another")
    path = Path(runs) / spec.digest / SUMMARY
    if not path.exists():
        return False
    try:
        summary = read_json(path)
    except DataError:
        return True  # whoever loads it says what is wrong with it, and the remedy
    if exact and "sweep" in summary.get("provenance", {}):
        return False
    return bool(summary.get("parts", spec.named.parts) == spec.named.parts)


@together()
def run(
    spec: Spec,
    runs: str | Path = "runs",
    *,
    fresh: bool = False,
    exact: bool = False,
    callback: Callbacks = None,
    engine: Engine = "auto",
    checkpoint_seconds: float = 10.0,
) -> Result:
    """Train as the spec says, or return the finished run from its folder `runs/<digest>`.

    An interrupted run goes on from its last checkpoint. A run that diverged is finished too: it would diverge again.
    Under torchrun all ranks compute it and have its result; rank 0 alone reads and writes the folder, so on the others
    the result of a run that was there has no model.

    Args:
        spec: what is asked, made by `Spec.of`.
        runs: the folder of run folders.
        fresh: train again, whatever is there.
        exact: train again what is there as one of a sweep, whose numbers are the same up to rounding.
        callback: as in `train`; a run that it stops is not marked as finished.
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
    folder, ranks = Path(runs) / spec.digest, join()
    again = fresh or (exact and not is_done(spec, runs, exact) and is_done(spec, runs))
    if ranks is None or ranks.leads:
        there = load(folder) if is_done(spec, runs) and not again else None
        if ranks is not None:
            ranks.say("" if there is None else _numbers(there))
        if there is not None:
            return there
    elif numbers := ranks.hear():
        return _without_model(spec, numbers)
    if spec.plan.device is not None:
        find_device(spec.plan.device)  # refused before anything is deleted or loaded
    if ranks is None or ranks.leads:
        if again:
            (folder / SUMMARY).unlink(missing_ok=True)
            forget(folder)
        folder.mkdir(parents=True, exist_ok=True)  # before hours of training, if it cannot be made
    task = spec.task.load(spec.plan.seed, spec.files.get("data"))
    result = train(
        task.model,
        task.clients,
        algorithm=spec.named.build(),
        test=task.test,
        loss=task.loss,
        validation=spec.task.validation or None,
        metrics=spec.task.metrics,
        callback=callback,
        engine=engine,
        checkpoint=folder,
        checkpoint_seconds=checkpoint_seconds,
        **vars(spec.plan),
    )
    result = replace(result, spec=spec, data=result.data | task.facts, columns=task.columns)
    if ranks is not None and not ranks.leads:
        return result
    if result.data["ended"] != "callback":
        result.save(folder)
        forget(folder)
    return result


def _numbers(result: Result) -> str:
    """A finished run without its model, as text for the other ranks: they may not see rank 0's folders."""
    parts = {"diverged_at": result.diverged_at, "data": result.data, "provenance": result.provenance}
    return json.dumps({"history": result.history.to_dict("list"), **parts})


def _without_model(spec: Spec, numbers: str) -> Result:
    """The inverse of `_numbers`."""
    parts = json.loads(numbers)
    return Result(model=None, spec=spec, history=pd.DataFrame(parts.pop("history")), **parts)


def load(folder: str | Path, model: nn.Module | None = None) -> Result:
    """A finished run from its folder, with its trained model if it is one of the built-in ones or given.

    Args:
        folder: of the run, as `run`, `train(checkpoint=...)` with `Result.save`, or a federation's server wrote it.
        model: the architecture, where fedsps does not know it; a copy of it gets the run's weights.

    Returns:
        The result; its model is in evaluation mode.
    """
    folder = Path(folder)
    result = Result.load(folder, model)
    if model is None and result.spec.task is not None:
        known = _model_of(folder, result)
        return replace(result, model=None if known is None else filled(folder, known))
    return result


def _model_of(folder: Path, result: Result) -> nn.Module | None:
    """The model of a run before training; None if it is the user's own, and its file is gone or has changed."""
    shape, classes, spec = result.data.get("shape"), result.data.get("classes"), result.spec
    if spec.task is None or not isinstance(shape, list) or not isinstance(classes, int):
        raise damaged(folder / SUMMARY, "its data has no shape or no classes")
    weights = folder / WEIGHTS
    most = max(2**20, weights.stat().st_size if weights.is_file() else 0)  # no model is built that they cannot fill
    if not all(is_number(one) and 0 <= one <= most for one in (*shape, classes)):
        raise damaged(folder / SUMMARY, f"its shape {shape} or its {classes} classes do not go with {WEIGHTS}")
    try:
        if ":" in spec.task.model and source_digest(spec.task.model) != spec.files.get("model"):
            return None
        return spec.task.build_model(tuple(shape), classes, spec.plan.seed)
    except ConfigurationError:
        if ":" in spec.task.model:
            return None  # the history is still worth having
        raise
    except Exception as error:  # whatever a shape leads to that no data had
        raise damaged(folder / SUMMARY, f"there is no model for its shape {shape}: {error}") from error
