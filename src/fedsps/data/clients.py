"""The clients' data as tensors ready for the engines."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from fedsps.core.streams import Indices
from fedsps.errors import DataError

Samples = tuple[Any, Any] | Dataset[Any]
"""One client's data: `(inputs, targets)` as tensors or arrays, or a data set of such pairs."""


@dataclass(frozen=True, eq=False)
class ClientData:
    """All clients' samples in two tensors, client after client, so that one indexing operation gathers a round."""

    inputs: Tensor  # [M, *]
    targets: Tensor  # [M, *]
    sizes: Indices  # [clients]  m_i

    @property
    def clients(self) -> int:
        """How many there are."""
        return len(self.sizes)

    @property
    def sample_shape(self) -> tuple[int, ...] | None:
        """The shape of one input; None where only the numbers of samples are known."""
        return tuple(self.inputs.shape[1:]) if len(self.inputs) else None

    @property
    def offsets(self) -> Indices:
        """Where each client's samples begin, `[clients]`."""
        return np.cumsum(self.sizes) - self.sizes

    def gather(self, clients: Indices, rows: Indices) -> tuple[Tensor, Tensor]:
        """Inputs and targets `[steps, clients, batch, *]` of the samples `rows [steps, clients, batch]`."""
        index = torch.from_numpy((rows + self.offsets[clients][:, None]).reshape(-1)).to(self.inputs.device)
        return (
            self.inputs.index_select(0, index).unflatten(0, rows.shape),
            self.targets.index_select(0, index).unflatten(0, rows.shape),
        )

    def to(self, like: Tensor, accepted: Callable[[Tensor], Tensor] = lambda targets: targets) -> "ClientData":
        """On the device of `like`, floating inputs and targets in its dtype, and targets as a loss accepts them."""
        inputs, targets = _convert(self.inputs, like), accepted(_convert(self.targets, like))
        return (
            self if inputs is self.inputs and targets is self.targets else replace(self, inputs=inputs, targets=targets)
        )

    @cached_property
    def least_target(self) -> float:
        """The smallest target; a negative class number marks samples that do not count."""
        return float(self.targets.min())

    @cached_property
    def digest(self) -> bytes:
        """The sha256 of all samples and sizes."""
        digest = hashlib.sha256(self.sizes.tobytes())
        for tensor in (self.inputs, self.targets):
            digest.update(repr((tensor.dtype, tensor.shape)).encode())
            digest.update(tensor.cpu().reshape(-1).view(torch.uint8).numpy().data)
        return digest.digest()

    def pairs(self) -> list[tuple[Tensor, Tensor]]:
        """Each client's inputs and targets, as views."""
        sizes = self.sizes.tolist()
        return list(zip(self.inputs.split(sizes), self.targets.split(sizes), strict=True))

    @classmethod
    def of(cls, clients: "Sequence[Samples] | ClientData") -> "ClientData":
        """From one `(inputs, targets)` pair or data set a client."""
        if isinstance(clients, ClientData):
            return clients
        if isinstance(clients, tuple) and len(clients) == 2 and isinstance(clients[0], Tensor | np.ndarray):
            raise DataError("clients must be a list with one (inputs, targets) pair for each client; got a single pair")
        if len(clients) == 0:
            raise DataError("clients is empty: give at least one (inputs, targets) pair")
        pairs = [samples(client, f"client {number}") for number, client in enumerate(clients)]
        for column, name in enumerate(("inputs", "targets")):
            first = pairs[0][column]
            for number, pair in enumerate(pairs):
                if pair[column].shape[1:] != first.shape[1:] or pair[column].dtype != first.dtype:
                    raise DataError(
                        f"client {number}'s {name} are {_kind(pair[column])}, client 0's {_kind(first)}: "
                        "all clients need the same shape and dtype"
                    )
        sizes = np.array([len(inputs) for inputs, _ in pairs], dtype=np.int64)
        return cls(torch.cat([inputs for inputs, _ in pairs]), torch.cat([targets for _, targets in pairs]), sizes)


def held_out(test: "Samples | ClientData") -> ClientData:
    """Test data, as those of a single client."""
    return test if isinstance(test, ClientData) else ClientData.of([test])


def samples(data: Samples, owner: str) -> tuple[Tensor, Tensor]:
    """One client's (or the test) data as two tensors of equal length."""
    try:
        inputs, targets = _columns(data, owner)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{owner}'s samples cannot be made into two tensors ({error}): give arrays of numbers"
        ) from error
    if inputs.ndim == 0 or targets.ndim == 0 or len(inputs) != len(targets):
        raise DataError(
            f"{owner} has inputs of shape {tuple(inputs.shape)} and targets of {tuple(targets.shape)}: "
            "one target for each input is needed"
        )
    if len(inputs) == 0:
        raise DataError(f"{owner} has no sample: leave it out, or give it at least one")
    for name, values in {"inputs": inputs, "targets": targets}.items():
        if values.is_floating_point() and not values.isfinite().all():
            raise DataError(f"{owner}'s {name} hold NaN or infinity: clean them first")
    return inputs, targets


def _columns(data: Samples, owner: str) -> tuple[Tensor, Tensor]:
    if isinstance(data, Dataset):
        if not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
            raise DataError(f"{owner}'s data set has no length: give one with numbered samples, or a pair of tensors")
        rows = [data[number] for number in range(len(data))]
        if not rows or any(not isinstance(row, tuple | list) or len(row) != 2 for row in rows):
            raise DataError(f"{owner}'s data set must hold (input, target) pairs, at least one")
        inputs, targets = (torch.stack([torch.as_tensor(row[column]) for row in rows]) for column in (0, 1))
        return inputs, targets
    if isinstance(data, tuple | list) and len(data) == 2:
        return torch.as_tensor(data[0]), torch.as_tensor(data[1])
    raise DataError(f"{owner}'s data must be an (inputs, targets) pair or a Dataset; got {type(data).__name__}")


def _convert(values: Tensor, like: Tensor) -> Tensor:
    return values.to(like.device, like.dtype if values.is_floating_point() else values.dtype)


def _kind(values: Tensor) -> str:
    return f"{values.dtype} of shape {tuple(values.shape[1:])}"
