"""Vectors are tensors whose last axis is d, with any leading axes; scalars of a client have the leading axes alone.

    x           [..., d]    one vector for each place of the leading axes
    loss, gamma [...]       one scalar for each place

`[]` is one client, `[clients]` all clients of a cohort at once, `[settings, clients]` those of a sweep. Every rule of
the library is written once with these functions and serves all of them.

A rule's own parameters are numbers, or in a sweep tensors with one number for each setting: `[settings, 1]` on the
clients, `[settings]` on the server. They broadcast against scalars as they are, and against vectors by `along`.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

DTYPES = {"float32": torch.float32, "float64": torch.float64}
"""The dtypes that a user may ask for by name."""

Tensors = dict[str, Tensor]
"""Named tensors: a message, a broadcast, or a state. What an algorithm keeps or sends is always one of these."""


def widest(device: torch.device) -> torch.dtype:
    """The widest floating dtype of a device: float64, but float32 on mps."""
    return torch.float32 if device.type == "mps" else torch.float64


class Implicit:
    """A vector, or one for each place of the leading axes, that is not stored by its coordinates.

    Sums, differences, products with scalars, norms and means over clients are all that most rules need of a vector
    (those that say `in_span`); where a model's gradients lie in the span of a few samples, they cost far less than the
    coordinates would. The functions of this file take such vectors as they take tensors; `fedsps.model.span` has one.
    """

    def norm_sq(self) -> Tensor:
        """`||v||^2`, `[...]`."""
        raise NotImplementedError

    def times(self, factor: Tensor) -> Any:
        """Each vector times its own scalar, `[...]`."""
        raise NotImplementedError

    def mean(self, weights: Tensor) -> Tensor:
        """The sum over clients, weighted by `[seeds, clients]`, by its coordinates: `[settings, seeds, d]`."""
        raise NotImplementedError


def along(parameter: float | Tensor) -> float | Tensor:
    """A rule's parameter as it goes with vectors: a number as it is, `[...]` numbers of a sweep as `[..., 1]`.

    >>> along(0.5), along(torch.tensor([0.5, 2.0])).shape
    (0.5, torch.Size([2, 1]))
    """
    return parameter.unsqueeze(-1) if isinstance(parameter, Tensor) else parameter


def filled(x: Tensor, value: float | Tensor) -> Tensor:
    """A vector of the shape of `x [..., d]` with this parameter in each coordinate."""
    return value.unsqueeze(-1).expand_as(x).clone() if isinstance(value, Tensor) else torch.full_like(x, value)


def either(is_one: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """The one or the other of two scalars `[...]` or two vectors `[..., d]`, at each place of the leading axes.

    >>> either(torch.tensor([True, False]), torch.ones(2, 3), torch.zeros(2, 3)).sum(-1)
    tensor([3., 0.])
    """
    return torch.where(is_one if one.ndim == is_one.ndim else is_one.unsqueeze(-1), one, other)


def norm_sq(v: Tensor | Implicit) -> Tensor:
    """Squared Euclidean norm `||v||^2` over the last axis, `[..., d] -> [...]`, accumulated in float32 at least.

    >>> norm_sq(torch.tensor([[3.0, 4.0], [1.0, 0.0]]))
    tensor([25.,  1.])
    """
    if isinstance(v, Implicit):
        return v.norm_sq()
    if v.dtype in (torch.float16, torch.bfloat16):
        v = v.float()
    size: Tensor = torch.linalg.vecdot(v, v)
    return size


def times(factor: Tensor, v: Any) -> Any:
    """Each vector times its own scalar, `[...], [..., d] -> [..., d]`, in the dtype of the vector.

    >>> times(torch.tensor([2.0, 0.5]), torch.ones(2, 3))
    tensor([[2.0000, 2.0000, 2.0000],
            [0.5000, 0.5000, 0.5000]])
    """
    if isinstance(v, Implicit):
        return v.times(factor)
    return (factor.unsqueeze(-1) * v).to(v.dtype)


def rounded(parameter: float | Tensor, dtype: torch.dtype) -> float | Tensor:
    """A rule's parameter as it goes with scalars of a dtype: what the dtype has no number for is infinite.

    >>> rounded(1e39, torch.float32), rounded(1e39, torch.float64)
    (inf, 1e+39)
    """
    return parameter if isinstance(parameter, Tensor) else _rounded(float(parameter), dtype)


@lru_cache(maxsize=1024)
def _rounded(number: float, dtype: torch.dtype) -> float:
    return float(torch.tensor(number, dtype=dtype).item())


def scalars(x: Tensor, value: float | Tensor) -> Tensor:
    """One scalar for each vector of `x [..., d]`, all of this value: `[...]`, in float32 at least.

    >>> scalars(torch.zeros(3, 7), 0.5)
    tensor([0.5000, 0.5000, 0.5000])
    """
    dtype = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
    if not isinstance(value, Tensor):  # made on its device: a copy from the host would wait for it
        return torch.full(x.shape[:-1], _rounded(float(value), dtype), dtype=dtype, device=x.device)
    return value.to(x.device, dtype).expand(x.shape[:-1]).clone()


def mean(values: Tensor, weights: Tensor) -> Tensor:
    """Weighted sum over the leading client axis: `[clients, ...], [clients] -> [...]`.

    Args:
        values: one tensor a client; half precision is summed in float32.
        weights: on any device; they add up to 1 where all clients are there, to less in one chunk of them.
    """
    wide = values.float() if values.dtype in (torch.float16, torch.bfloat16) else values
    total: Tensor = torch.tensordot(weights.to(wide.device, wide.dtype), wide, dims=1)
    return total.to(values.dtype)


class BufferMean:
    """The mean over clients of a module's buffers, added up chunk by chunk.

    Floating buffers (batch-norm statistics) become `sum / clients`; counters and other whole numbers, of which a mean
    says nothing, become their maximum.

    >>> middle = BufferMean()
    >>> middle.add({"mean": torch.tensor([[1.0], [3.0]]), "batches": torch.tensor([5, 7])})
    >>> middle.add({"mean": torch.tensor([[8.0]]), "batches": torch.tensor([6])})
    >>> middle.result()
    {'mean': tensor([4.]), 'batches': tensor(7)}
    """

    def __init__(self) -> None:
        self._sums: Tensors = {}
        self._clients = 0

    def add(self, buffers: Tensors) -> None:
        """Take in some clients' buffers, each `[clients, *]`."""
        for name, values in buffers.items():
            if _has_mean(values):
                part = values.sum(0)
                self._sums[name] = self._sums[name] + part if name in self._sums else part
            else:
                part = values.amax(0)
                self._sums[name] = torch.maximum(self._sums[name], part) if name in self._sums else part
        self._clients += len(next(iter(buffers.values()), ()))

    def result(self) -> Tensors:
        """The means and maxima over all clients so far, each `[*]`."""
        return {name: value / self._clients if _has_mean(value) else value for name, value in self._sums.items()}


def _has_mean(values: Tensor) -> bool:
    return values.is_floating_point() or values.is_complex()


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """The size of tensors when they are sent as they are.

    >>> bytes_of([torch.zeros(3), torch.zeros(2, dtype=torch.float64)])
    28
    """
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
