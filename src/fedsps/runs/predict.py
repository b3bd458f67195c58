"""What a trained model says of new samples, in words: classes by their names, with probabilities."""

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from fedsps.data.clients import as_tensor, numbers_of_frame
from fedsps.data.columns import Columns
from fedsps.errors import ConfigurationError, DataError, TableWarning

AT_ONCE = 4096  # samples


def predictions(
    model: nn.Module | None, inputs: Any, columns: Columns | None, facts: Mapping[str, Any]
) -> pd.DataFrame:
    """The predictions for new samples; see `Result.predict`.

    Args:
        model: the trained module.
        inputs: a data frame, an array or a tensor.
        columns: how rows of a table become inputs.
        facts: of the run: what its outputs are, and what its classes are called.
    """
    if model is None:
        raise ConfigurationError("the result has no model: load it with fedsps.load(folder, model=...)")
    outputs = model_outputs(model, _prepared(inputs, columns)).cpu()
    kind = facts.get("outputs", "unknown")
    if kind == "classes" and outputs.ndim == 1:
        raise DataError("inputs must be [samples, *]: give a single sample as inputs[None]")
    if kind in ("binary", "probability") and outputs.ndim == 1:
        yes = outputs.double().sigmoid() if kind == "binary" else outputs.double()
        return _by_class(torch.stack([1 - yes, yes], 1), facts)
    if kind == "classes" and outputs.ndim == 2:
        return _by_class(outputs.double().softmax(1), facts)
    if outputs.ndim == 1:
        return pd.DataFrame({"prediction": outputs.numpy()})
    flat = outputs.flatten(1).unbind(1)
    return pd.DataFrame({f"output {number}": column.numpy() for number, column in enumerate(flat)})


def _by_class(shares: Tensor, facts: Mapping[str, Any]) -> pd.DataFrame:
    """The likeliest class of each sample, and the probabilities `[M, K]` of all of them."""
    names = np.array(facts.get("class_names") or list(range(shares.shape[1])), dtype=object)
    columns = {f"p({name})": column.numpy() for name, column in zip(names, shares.unbind(1), strict=True)}
    return pd.DataFrame({"prediction": names[shares.argmax(1).numpy()], **columns})


def model_outputs(model: nn.Module, inputs: Tensor) -> Tensor:
    """The outputs of a module for many samples, in evaluation mode and some at a time; `[M, 1]` becomes `[M]`.

    Raises:
        DataError: the model cannot take them.
    """
    like = next(model.parameters())
    inputs = inputs.to(like.device, like.dtype if inputs.is_floating_point() else inputs.dtype)
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            outputs = torch.cat([model(part) for part in inputs.split(AT_ONCE)])
    except (RuntimeError, ValueError, TypeError) as error:
        first = str(error).strip().splitlines()[0]
        raise DataError(f"the model cannot take inputs of shape {tuple(inputs.shape)}: {first}") from error
    finally:
        model.train(was_training)
    return outputs.squeeze(1) if outputs.ndim == 2 and outputs.shape[1] == 1 else outputs


def _prepared(inputs: Any, columns: Columns | None) -> Tensor:
    """A data frame by its columns, anything else as it is."""
    if isinstance(inputs, pd.DataFrame):
        if columns is not None:
            made = torch.from_numpy(columns(inputs))
            for surprise in columns.surprises(inputs):
                warnings.warn(surprise, TableWarning, stacklevel=4)
            return made
        try:
            inputs = numbers_of_frame(inputs)
        except (TypeError, ValueError) as error:
            raise DataError(
                f"the table holds words ({error}), and the result does not know what becomes of them: give what the "
                "columns of the training table make of it, result.predict(table.columns(frame))"
            ) from error
    try:
        made = as_tensor(inputs)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"inputs must be numbers, or a table like the one that the run trained on ({error})") from error
    if made.ndim == 0 or len(made) == 0:
        raise DataError(f"inputs must be [samples, ...], one at least; got shape {tuple(made.shape)}")
    return made
