"""Several algorithms that differ in numbers alone, as one whose parameters are tensors: what a sweep computes with."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsps.core.algorithm import Algorithm
from fedsps.errors import ConfigurationError

LOSS = 1e-4  # of 1 - beta, relative, that a stack may make of a parameter
Spread = Callable[[Tensor], Tensor]
"""From one number for each setting, `[settings]`, to the shape in which they go with the scalars of a side."""


def on_server(column: Tensor) -> Tensor:
    """`[settings]`, as the server's scalars are."""
    return column


def on_clients(column: Tensor) -> Tensor:
    """`[settings, 1]`, against clients' scalars `[settings, clients]`."""
    return column.unsqueeze(-1)


def stack(algorithms: Sequence[Algorithm], like: Tensor, spread: Spread = on_server) -> Algorithm:
    """One algorithm with one number for each of these where they differ.

    Args:
        algorithms: equal in everything but floating parameters of their parts.
        like: has the dtype and the device of the model.
        spread: how a parameter's numbers lie.

    Raises:
        ConfigurationError: they differ in more than numbers, or a part does not say that it can be stacked.

    >>> import fedsps
    >>> algorithms = [fedsps.FedAvg(client_stepsize=0.1), fedsps.FedAvg(client_stepsize=1.0)]
    >>> stack(algorithms, torch.zeros(1), on_clients).stepsize.stepsize
    tensor([[0.1000],
            [1.0000]])
    """
    if len({algorithm._actor for algorithm in algorithms}) > 1:
        raise ConfigurationError("algorithms that act differently cannot be stacked")
    places = list(algorithms[0].composition)
    made: Algorithm = copy.copy(algorithms[0])
    vars(made).pop("_given", None)
    for place in places:
        parts = [algorithm.composition[place] for algorithm in algorithms]
        object.__setattr__(made, place, _stacked(parts, place, like, spread))
    return made


def can_stack(algorithms: Sequence[Algorithm]) -> bool:
    """Whether these differ in floating parameters alone."""
    try:
        stack(algorithms, torch.zeros(1))
    except ConfigurationError:
        return False
    return True


def _stacked(values: Sequence[Any], name: str, like: Tensor, spread: Spread) -> Any:
    first = values[0]
    if is_dataclass(first) and not vars(type(first)).get("in_sweep", False):
        raise ConfigurationError(f"{type(first).__name__} does not say that it can be computed for many settings")
    if all(type(value) is type(first) and value == first for value in values):
        return first
    if all(isinstance(value, float | int) and not isinstance(value, bool) for value in values) and any(
        isinstance(value, float) for value in values
    ):
        if any(_is_lost(value) for value in values):
            raise ConfigurationError(f"{name} is too close to 1 for the dtype of a stack: {first!r} and others")
        return spread(torch.tensor(values, dtype=like.dtype, device=like.device))
    if is_dataclass(first) and all(type(value) is type(first) for value in values):
        made = copy.copy(first)
        for field in fields(first):
            own = [getattr(value, field.name) for value in values]
            object.__setattr__(made, field.name, _stacked(own, field.name, like, spread))
        return made
    raise ConfigurationError(f"{name} differs in more than a number: {first!r} and others")


def _is_lost(value: float) -> bool:
    """Whether `1 - value`, which rules of moving means take, is not the same in float32: 0.9999 has lost 4 digits."""
    rest = 1 - float(value)
    return abs(1 - float(np.float32(value)) - rest) > LOSS * abs(rest)
