"""The clients' data as tensors ready for the engines: checked once, then gathered by number.

Whatever a user hands in (arrays, tensors, data sets) is refused here with a `DataError` that names the client, so that
the engines need not ask again.
"""

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
    """All clients' samples in two tensors, client after client, so that one indexing operation gathers a round.

    Attributes:
        inputs: `[M, *]`, M samples of all clients; empty where only the sizes are known, as on a federation's server.
        targets: `[M, *]`, one for each input.
        sizes: how many samples each client has, `m_i`, `[clients]`.

    >>> first, second = (torch.zeros(3, 2), torch.tensor([0, 1, 1])), (torch.ones(1, 2), torch.tensor([2]))
    >>> data = ClientData.of([first, second])
    >>> data.clients, data.sizes.tolist(), data.offsets.tolist()
    (2, [3, 1], [0, 3])
    >>> inputs, targets = data.gather(np.array([0, 1]), np.array([[[2], [0]]]))  # one step, batches of one
    >>> inputs.shape, targets.tolist()
    (torch.Size([1, 2, 1, 2]), [[[1], [2]]])
    """

    inputs: Tensor  # [M, *]
    targets: Tensor  # [M, *]
    sizes: Indices  # [clients]  m_i

    @property
    def clients(self) -> int:
        """How many clients there are, those without a sample included."""
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
        """Inputs and targets `[steps, clients, batch, *]` of the samples `rows [steps, clients, batch]`.

        Args:
            clients: the clients' numbers, `[clients]`.
            rows: sample numbers that count from 0 within each client.
        """
        index = torch.from_numpy((rows + self.offsets[clients][:, None]).reshape(-1)).to(self.inputs.device)
        return (
            self.inputs.index_select(0, index).unflatten(0, rows.shape),
            self.targets.index_select(0, index).unflatten(0, rows.shape),
        )

    def to(self, like: Tensor, accepted: Callable[[Tensor], Tensor] = lambda targets: targets) -> "ClientData":
        """On the device of `like`, floating inputs and targets in its dtype, and targets as a loss accepts them.

        Whole numbers keep their dtype. Where nothing changes, the same object comes back, with the digest that it has.

        Args:
            like: a tensor of the model's device and dtype.
            accepted: converts the targets once more, such as `Network.accepted`.
        """
        inputs, targets = _convert(self.inputs, like), accepted(_convert(self.targets, like))
        return (
            self if inputs is self.inputs and targets is self.targets else replace(self, inputs=inputs, targets=targets)
        )

    @cached_property
    def least_target(self) -> float:
        """The smallest target of all clients; a negative class number marks samples that do not count."""
        return float(self.targets.min())

    @cached_property
    def digest(self) -> bytes:
        """The sha256 of all samples and sizes, dtypes and shapes included: equal digests are equal data."""
        digest = hashlib.sha256(self.sizes.tobytes())
        for tensor in (self.inputs, self.targets):
            digest.update(repr((tensor.dtype, tensor.shape)).encode())
            digest.update(tensor.cpu().reshape(-1).view(torch.uint8).numpy().data)
        return digest.digest()

    def pairs(self) -> list[tuple[Tensor, Tensor]]:
        """Each client's inputs and targets, as views of the two tensors: nothing is copied."""
        sizes = self.sizes.tolist()
        return list(zip(self.inputs.split(sizes), self.targets.split(sizes), strict=True))

    @classmethod
    def of(cls, clients: "Sequence[Samples] | ClientData") -> "ClientData":
        """From one `(inputs, targets)` pair or data set a client; a `ClientData` is returned as it is.

        Raises:
            DataError: there is no client, a single pair was given instead of a list, a client's samples cannot be used
                (see `samples`), or two clients differ in the shape or dtype of a sample.
        """
        if isinstance(clients, ClientData):
            return clients
        if isinstance(clients, tuple) and len(clients) == 2 and isinstance(clients[0], Tensor | np.ndarray):
            raise DataError("clients must be a list with one (inputs, targets) pair for each client; got a single pair")
        if not hasattr(clients, "__len__") or not hasattr(clients, "__iter__"):
            raise DataError(f"clients must be a list with one (inputs, targets) pair for each client; got {clients!r}")
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
    """Test data, as those of a single client; what is `ClientData` already stays as it is."""
    return test if isinstance(test, ClientData) else ClientData.of([test])


def samples(data: Samples, owner: str) -> tuple[Tensor, Tensor]:
    """One client's (or the test) data as two tensors of equal length.

    Args:
        data: a pair of tensors or arrays, or a data set of (input, target) pairs, which is read whole.
        owner: how messages name the data, such as "client 3".

    Raises:
        DataError: not two columns of numbers, lengths that differ, no sample at all, or NaN or infinity among them.

    >>> inputs, targets = samples(([[1.0, 2.0]], [0]), "client 3")
    >>> inputs.shape, targets.dtype
    (torch.Size([1, 2]), torch.int64)
    >>> samples(([[1.0, float("nan")]], [0]), "client 3")
    Traceback (most recent call last):
    fedsps.errors.DataError: client 3's inputs hold NaN or infinity: clean them first
    """
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
    """The two columns as tensors, before their lengths and values are checked."""
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
    """The values on the device of `like`; floating ones in its dtype, others in their own."""
    return values.to(like.device, like.dtype if values.is_floating_point() else values.dtype)


def _kind(values: Tensor) -> str:
    return f"{values.dtype} of shape {tuple(values.shape[1:])}"
