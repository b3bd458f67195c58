"""Vectors are tensors whose last axis is d, with any leading axes; scalars of a client have the leading axes alone."""

import torch
from torch import Tensor

DTYPES = {"float32": torch.float32, "float64": torch.float64}
"""What users may ask for by name."""

Tensors = dict[str, Tensor]
"""Named tensors: a message, a broadcast, or a state. What an algorithm keeps or sends is always one of these."""


def norm_sq(v: Tensor) -> Tensor:
    """Squared Euclidean norm over the last axis, `[..., d] -> [...]`, accumulated in float32 at least."""
    if v.dtype in (torch.float16, torch.bfloat16):
        v = v.float()
    size: Tensor = torch.linalg.vecdot(v, v)
    return size


def scale(factor: Tensor, v: Tensor) -> Tensor:
    """Each vector times its own scalar, `[...], [..., d] -> [..., d]`, in the dtype of the vector."""
    return (factor.unsqueeze(-1) * v).to(v.dtype)


def like(value: float | Tensor, scalars: Tensor) -> Tensor:
    """A number, or a tensor that broadcasts, as one scalar a client: `[...]`."""
    return torch.as_tensor(value, dtype=scalars.dtype, device=scalars.device).expand(scalars.shape)


def mean(values: Tensor, weights: Tensor) -> Tensor:
    """Weighted sum over the leading client axis: `[clients, ...], [clients] -> [...]`."""
    half = values.dtype in (torch.float16, torch.bfloat16)
    total: Tensor = torch.tensordot(
        weights.to(torch.float32 if half else values.dtype), values.float() if half else values, dims=1
    )
    return total.to(values.dtype)


def averages(values: Tensor) -> bool:
    """Whether buffers of this dtype have a mean; counters have none."""
    return values.is_floating_point() or values.is_complex()


def scalars(x: Tensor, value: float | Tensor) -> Tensor:
    """One scalar a client, `[...]` for `x [..., d]`, in float32 at least."""
    dtype = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
    return torch.as_tensor(value, dtype=dtype, device=x.device).expand(x.shape[:-1]).clone()
