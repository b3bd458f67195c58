"""How good a model is, beyond loss and accuracy: scikit-learn's measures by name, or any function of one's own.

A metric takes the outputs and the targets of a set of samples, whole, and gives one number; NaN where it has no
meaning, as the area under a curve where there is one class alone. scikit-learn is imported when one is computed.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedsps.errors import ConfigurationError, unknown

Metric = Callable[[Tensor, Tensor], float]
"""Outputs and targets of all samples in, one number out."""

Array = npt.NDArray[np.float64]


def auc(outputs: Tensor, targets: Tensor) -> float:
    """The area under the ROC curve; of several classes the mean over those that are there, each against the rest."""
    from sklearn.metrics import roc_auc_score

    scores, truth = _scores(outputs, targets)
    present = np.unique(truth)
    if len(present) < 2:
        return float("nan")
    return float(np.mean([roc_auc_score(truth == kind, scores[:, int(kind)]) for kind in present]))


def f1(outputs: Tensor, targets: Tensor) -> float:
    """The harmonic mean of precision and recall: of class 1 where there are two, else the mean over the classes."""
    from sklearn.metrics import f1_score

    scores, truth = _scores(outputs, targets)
    average = "binary" if scores.shape[1] == 2 else "macro"
    return float(f1_score(truth, scores.argmax(1), average=average, zero_division=0))


def balanced_accuracy(outputs: Tensor, targets: Tensor) -> float:
    """The mean over the classes that are there of the share of their samples that is predicted right."""
    from sklearn.metrics import recall_score

    scores, truth = _scores(outputs, targets)
    return float(recall_score(truth, scores.argmax(1), average="macro", labels=np.unique(truth), zero_division=0))


def rmse(outputs: Tensor, targets: Tensor) -> float:
    """The root of the mean squared error."""
    from sklearn.metrics import root_mean_squared_error

    return float(root_mean_squared_error(*_values(outputs, targets)))


def r2(outputs: Tensor, targets: Tensor) -> float:
    """The share of the targets' variance that the outputs explain; 0 for their mean, below 0 for worse than that."""
    from sklearn.metrics import r2_score

    truth, guess = _values(outputs, targets)
    return float(r2_score(truth, guess)) if len(truth) > 1 else float("nan")


METRICS: dict[str, Metric] = {"auc": auc, "f1": f1, "balanced_accuracy": balanced_accuracy, "rmse": rmse, "r2": r2}
"""The metrics that have a name."""

SMALL_IS_GOOD = ("loss", "rmse", "error")
"""How the names of columns end of which less is better; of all others more is."""


def named_metrics(metrics: str | Metric | Sequence[str | Metric] | Mapping[str, Metric]) -> dict[str, Metric]:
    """Metrics by name: named ones ("auc,f1", or a list), functions under their own names, or a dictionary.

    Raises:
        ConfigurationError: a name is unknown, a function has none, or two metrics have the same.

    >>> list(named_metrics("auc, balanced_accuracy")), list(named_metrics({"mine": lambda outputs, targets: 0.0}))
    (['auc', 'balanced_accuracy'], ['mine'])
    """
    if isinstance(metrics, Mapping):
        wanted = [(str(name), metric) for name, metric in metrics.items()]
    else:
        if isinstance(metrics, str):
            metrics = [word.strip() for word in metrics.split(",") if word.strip()]
        elif callable(metrics):
            metrics = [metrics]
        wanted = [_named(metric) for metric in metrics]
    for name, metric in wanted:
        if not callable(metric):
            raise ConfigurationError(f"metric {name!r} must be a function of outputs and targets; got {metric!r}")
        if [one for one, _ in wanted].count(name) > 1 or name in ("loss", "accuracy"):
            raise ConfigurationError(f"metrics has {name!r} twice, or beside the column of that name: rename one")
    return dict(wanted)


def _named(metric: str | Metric) -> tuple[str, Metric]:
    if isinstance(metric, str):
        if metric not in METRICS:
            raise unknown("metric", metric, METRICS)
        return metric, METRICS[metric]
    name = getattr(metric, "__name__", "")
    if not name.isidentifier():
        raise ConfigurationError(f"metrics holds {metric!r}, which has no name: give {{'name': function}}")
    return name, metric


def measured(metric: Metric, name: str, outputs: Tensor, targets: Tensor, kind: str) -> float:
    """A metric's number, with its name in what goes wrong.

    Metrics of one's own are given the outputs as they are, those that have a name here what they take: see `_meant`.

    Args:
        metric: a function of outputs and targets.
        name: of the metric.
        outputs: of all samples.
        targets: of all samples.
        kind: what the outputs are under the loss, see `fedsps.model.network.kind_of_outputs`.

    Raises:
        ConfigurationError: the metric cannot take the outputs and the targets, or gives no number.
    """
    if not outputs.isfinite().all():
        return float("nan")
    try:
        return float(metric(_meant(metric, outputs, targets, kind), targets))
    except Exception as error:
        raise ConfigurationError(
            f"metric {name!r} cannot take outputs {tuple(outputs.shape)} and targets {tuple(targets.shape)} of "
            f"{targets.dtype}: {type(error).__name__}: {error}"
        ) from error


def _meant(metric: Metric, outputs: Tensor, targets: Tensor, kind: str) -> Tensor:
    """The outputs as a named metric takes them: of a yes or no, a number that is above 0 for yes.

    A probability, or a number fitted to 0 and 1, says yes above one half.

    Raises:
        ValueError: the metric compares the targets with numbers, and the outputs are logits.
    """
    if metric in (rmse, r2) and kind == "binary":
        raise ValueError("it is for numbers: under this loss the outputs are logits of a yes or no")
    if metric in (auc, f1, balanced_accuracy) and targets.is_floating_point() and kind in ("probability", "numbers"):
        return outputs - 0.5
    return outputs


def is_better(column: str, value: float, best: float) -> bool:
    """Whether a column's value beats the best one so far; NaN beats nothing.

    >>> is_better("validation_loss", 0.3, 0.5), is_better("validation_auc", 0.3, 0.5)
    (True, False)
    """
    return value < best if column.endswith(SMALL_IS_GOOD) else value > best


def worst(column: str) -> float:
    """What every finite value of a column is better than."""
    return float("inf") if column.endswith(SMALL_IS_GOOD) else float("-inf")


def _scores(outputs: Tensor, targets: Tensor) -> tuple[Array, npt.NDArray[np.int64]]:
    """A score for each sample and class, `[M, K]`, and the class numbers `[M]` of the samples that count."""
    if targets.is_floating_point():  # a yes or no, and its logit
        if outputs.shape != targets.shape or bool(((targets != 0) & (targets != 1)).any()):
            raise ValueError("it is for classes: targets must be class numbers, or 0 and 1 for single logits")
        logit = outputs.flatten().double()
        outputs, targets = torch.stack([-logit, logit], 1), targets.flatten().long()
    elif outputs.ndim != targets.ndim + 1:
        raise ValueError("it is for classes: the model needs one output for each class")
    outputs = outputs.movedim(1, -1).flatten(0, -2) if outputs.ndim > 2 else outputs
    counted = targets.flatten() >= 0
    scores = outputs[counted].double().softmax(1).cpu().numpy()
    return scores, targets.flatten()[counted].cpu().numpy()


def _values(outputs: Tensor, targets: Tensor) -> tuple[Array, Array]:
    """Targets and outputs as numbers of the same shape, `[M, *]`."""
    if outputs.numel() != targets.numel():
        raise ValueError("it is for numbers: the model needs one output for each target")
    guess = outputs.reshape(targets.shape).double().flatten(1 if targets.ndim > 1 else 0)
    return targets.double().reshape(guess.shape).cpu().numpy(), guess.cpu().numpy()
