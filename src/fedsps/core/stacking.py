"""Several algorithms that differ in numbers alone, as one whose parameters are tensors: what a sweep computes with."""

import copy
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from fedsps.core.algorithm import Algorithm
from fedsps.errors import ConfigurationError


def stack(algorithms: Sequence[Algorithm], like: Tensor, on_clients: bool) -> Algorithm:
    """One algorithm with one number for each of these where they differ.

    Args:
        algorithms: equal in everything but floating parameters of their parts.
        like: has the dtype and the device of the model.
        on_clients: parameters as `[settings, 1]`, which broadcast against a client's scalars `[settings, clients]`;
            else as `[settings]`, against the server's.

    Raises:
        ConfigurationError: they differ in more than numbers.

    >>> import fedsps
    >>> made = stack([fedsps.FedAvg(client_stepsize=0.1), fedsps.FedAvg(client_stepsize=1.0)], torch.zeros(1), True)
    >>> made.stepsize.stepsize
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
        object.__setattr__(made, place, _stacked(parts, place, like, on_clients))
    return made


def can_stack(algorithms: Sequence[Algorithm]) -> bool:
    """Whether these differ in floating parameters alone."""
    try:
        stack(algorithms, torch.zeros(1), on_clients=True)
    except ConfigurationError:
        return False
    return True


def _stacked(values: Sequence[Any], name: str, like: Tensor, on_clients: bool) -> Any:
    first = values[0]
    if all(type(value) is type(first) and value == first for value in values):
        return first
    if all(isinstance(value, float | int) and not isinstance(value, bool) for value in values) and any(
        isinstance(value, float) for value in values
    ):
        column = torch.tensor(values, dtype=like.dtype, device=like.device)
        return column.unsqueeze(-1) if on_clients else column
    if is_dataclass(first) and all(type(value) is type(first) for value in values):
        if not vars(type(first)).get("in_sweep", False):
            raise ConfigurationError(f"{type(first).__name__} does not say that its parameters may be tensors")
        made = copy.copy(first)
        for field in fields(first):
            own = [getattr(value, field.name) for value in values]
            object.__setattr__(made, field.name, _stacked(own, field.name, like, on_clients))
        return made
    raise ConfigurationError(f"{name} differs in more than a number: {first!r} and others")
