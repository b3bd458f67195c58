"""The clients' data as tensors ready for the engines: checked once, then gathered by number.

Whatever a user hands in (arrays, tensors, data sets) is refused here with a `DataError` that names the client, so that
the engines need not ask again.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from fedsps.core.streams import Indices, generator
from fedsps.errors import ConfigurationError, DataError

Samples = tuple[Any, Any] | Dataset[Any] | DataLoader[Any]
"""One client's data: `(inputs, targets)` as tensors, arrays or data frames, or a data set of such pairs.

Of a `DataLoader` the data set is taken: batches are drawn by the run itself.
"""


@dataclass(frozen=True, eq=False)
class ClientData:
    """All clients' samples in two tensors, client after client, so that one indexing operation gathers a round.

    Attributes:
        inputs: `[M, *]`, M samples of all clients; empty where only the sizes are known, as on a federation's server.
        targets: `[M, *]`, one for each input.
        sizes: how many samples each client has, `m_i`, `[clients]`.
        rows: where each sample stands in the data set that it was dealt from, `[M]`, if there is one: by it two splits
            of the same samples know each other.
        names: what the clients are called, `[clients]`; their numbers if nobody said.

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
    rows: Indices | None = None  # [M]
    names: tuple[str, ...] | None = None  # [clients]

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

    @property
    def labels(self) -> list[str]:
        """What tables call the clients: their names, or their numbers."""
        return list(self.names or map(str, range(self.clients)))

    @property
    def pooled(self) -> "ClientData":
        """All samples as those of a single client, in the order of `rows` where that is known."""
        if self.clients == 1:
            return self
        total = np.array([len(self.targets)])
        if self.rows is None:
            return ClientData(self.inputs, self.targets, total)
        order = torch.from_numpy(np.argsort(self.rows)).to(self.inputs.device)
        return ClientData(self.inputs[order], self.targets[order], total, np.sort(self.rows))

    @property
    def as_one(self) -> "ClientData":
        """All samples as those of a single client, in the order in which they stand."""
        return ClientData(self.inputs, self.targets, np.array([len(self.targets)]))

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
    def ignored(self) -> npt.NDArray[np.bool_] | None:
        """Which samples have a negative class number, the mark of those that do not count, `[M]`; None if none has.

        It is looked up once and kept on the host, so that no local step has to ask the device.
        """
        if self.targets.is_floating_point():
            return None
        marked: npt.NDArray[np.bool_] = (self.targets < 0).reshape(len(self.targets), -1).any(1).cpu().numpy()
        return marked if marked.any() else None

    def masked(self, clients: Indices, rows: Indices) -> list[bool]:
        """Whether a sample of `rows [steps, clients, batch]` does not count, `[steps]`; arguments as in `gather`."""
        if self.ignored is None:
            return [False] * len(rows)
        found: list[bool] = self.ignored[rows + self.offsets[clients][:, None]].any((1, 2)).tolist()
        return found

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

    def held_back(self, share: float, seed: int, purpose: str) -> "tuple[ClientData, ClientData]":
        """The data without this share of each client's samples, drawn at random, and that share.

        Whoever has two samples gives one at least, and keeps one; a single sample is for training.

        Args:
            share: above 0 and below 1.
            seed: decides which samples.
            purpose: what they are for, "validation" or "test".

        >>> data = ClientData.of([(torch.arange(10.0), torch.zeros(10)), (torch.ones(1), torch.zeros(1))])
        >>> rest, held = data.held_back(0.2, 0, "validation")
        >>> rest.sizes.tolist(), held.sizes.tolist()
        ([8, 1], [2, 0])
        """
        if not 0 < share < 1:
            raise ConfigurationError(f"{purpose} must be data, or a share above 0 and below 1; got {share!r}")
        counts = np.minimum(np.maximum((share * self.sizes).astype(np.int64), 1), np.maximum(self.sizes - 1, 0))
        if not counts.sum():
            raise DataError(f"no client has two samples, so that none can be held back for {purpose}: give data")
        mask = np.zeros(len(self.targets), dtype=bool)
        for client, (first, size, count) in enumerate(zip(self.offsets, self.sizes, counts, strict=True)):
            mask[first + generator(seed, purpose, client).permutation(int(size))[:count]] = True
        return self._samples(np.flatnonzero(~mask), self.sizes - counts), self._samples(np.flatnonzero(mask), counts)

    def in_order_of(self, clients: "ClientData", purpose: str) -> "ClientData":
        """Held-out samples in the order of the clients whose they are, by name; a client that is not there has none.

        Without names they are taken as they stand: those of each client in turn, or of nobody.

        Args:
            clients: the clients' data to train on.
            purpose: what they are for, "validation" or "test".

        Raises:
            DataError: a name is no client's.

        >>> pair = torch.zeros(2, 3), torch.zeros(2)
        >>> held = ClientData.of({"south": pair, "north": (torch.ones(1, 3), torch.ones(1))})
        >>> held.in_order_of(ClientData.of({"north": pair, "east": pair, "south": pair}), "test").sizes.tolist()
        [1, 0, 2]
        """
        if self.names is None or self.labels == clients.labels:
            return self
        strange = [name for name in self.labels if name not in clients.labels]
        if strange:
            known = ", ".join(clients.labels[:10]) + (", ..." if clients.clients > 10 else "")
            raise DataError(
                f"{purpose} has data of {strange[0]!r}, which is no client: name them as the clients are ({known}), or "
                "give one (inputs, targets) pair for all"
            )
        places = [self.labels.index(name) if name in self.labels else None for name in clients.labels]
        sizes = np.array([0 if place is None else self.sizes[place] for place in places], dtype=np.int64)
        starts = [0 if place is None else self.offsets[place] for place in places]
        order = np.concatenate([np.arange(start, start + size) for start, size in zip(starts, sizes, strict=True)])
        return replace(self._samples(order, sizes), names=tuple(clients.labels))

    def _samples(self, rows: npt.NDArray[np.int64], sizes: Indices) -> "ClientData":
        """The samples of these numbers, `[M]`."""
        index = torch.from_numpy(rows).to(self.inputs.device)
        dealt = None if self.rows is None else self.rows[rows]
        return ClientData(self.inputs[index], self.targets[index], sizes, dealt, self.names)

    @classmethod
    def of(cls, clients: "Sequence[Samples] | Mapping[str, Samples] | ClientData") -> "ClientData":
        """From one `(inputs, targets)` pair or data set a client; a `ClientData` is returned as it is.

        Args:
            clients: a list, or a dictionary by the clients' names.

        Raises:
            DataError: there is no client, a single pair was given instead of a list, a client's samples cannot be used
                (see `samples`), or two clients differ in the shape or dtype of a sample.
        """
        if isinstance(clients, ClientData):
            return clients
        if isinstance(clients, Mapping):
            names = tuple(map(str, clients))
            return replace(cls._of(list(clients.values()), [f"client {name!r}" for name in names]), names=names)
        return cls._of(clients, [f"client {number}" for number in range(len(clients) if _is_list(clients) else 0)])

    @classmethod
    def _of(cls, clients: Sequence[Samples], owners: Sequence[str]) -> "ClientData":
        if hasattr(clients, "columns"):
            raise DataError(
                "clients is a data frame: fedsps.data.Table(frame, client=..., target=...) makes clients of it"
            )
        if isinstance(clients, tuple) and len(clients) == 2 and not isinstance(clients[0], tuple | list | Dataset):
            raise DataError("clients must be a list with one (inputs, targets) pair for each client; got a single pair")
        if isinstance(clients, Dataset | DataLoader):
            raise DataError("clients is a single data set: give a list with one for each client")
        if not _is_list(clients):
            raise DataError(f"clients must be a list with one (inputs, targets) pair for each client; got {clients!r}")
        if len(clients) == 0:
            raise DataError("clients is empty: give at least one (inputs, targets) pair")
        pairs = [samples(client, owner) for client, owner in zip(clients, owners, strict=True)]
        for column, name in enumerate(("inputs", "targets")):
            first = pairs[0][column]
            for owner, pair in zip(owners, pairs, strict=True):
                if pair[column].shape[1:] != first.shape[1:] or pair[column].dtype != first.dtype:
                    raise DataError(
                        f"{owner}'s {name} are {_kind(pair[column])}, {owners[0]}'s {_kind(first)}: "
                        "all clients need the same shape and dtype"
                    )
        sizes = np.array([len(inputs) for inputs, _ in pairs], dtype=np.int64)
        return cls(torch.cat([inputs for inputs, _ in pairs]), torch.cat([targets for _, targets in pairs]), sizes)


def held_out(
    test: "Samples | Sequence[Samples] | Mapping[str, Samples] | ClientData", name: str = "test"
) -> ClientData:
    """Held-out data: those of nobody, or of each client, in a list or by their names; `ClientData` stays as it is.

    Args:
        test: the data.
        name: what they are for, in messages.
    """
    if isinstance(test, ClientData | Mapping):
        return ClientData.of(test)
    if isinstance(test, list) and all(isinstance(one, tuple | Dataset | DataLoader) for one in test):
        return ClientData.of(test)
    return ClientData._of([cast(Samples, test)], [f"the {name} data"])


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
            f"{owner}'s samples cannot be made into two tensors ({error}): give arrays of numbers, or make "
            "them of a table with words by fedsps.data.Table"
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


def _is_list(clients: object) -> bool:
    return hasattr(clients, "__len__") and hasattr(clients, "__iter__")


def as_tensor(values: Any) -> Tensor:
    """Values as a tensor; those of a data frame or a series as their array.

    pandas hands out arrays that must not be written to, of which torch warns: those are copied.
    """
    if hasattr(values, "to_numpy"):
        values = values.to_numpy(copy=True)
    elif isinstance(values, np.ndarray) and not values.flags.writeable:
        values = values.copy()
    return torch.as_tensor(values)


def numbers_of_frame(frame: Any) -> npt.NDArray[np.float64]:
    """A data frame's values: whole numbers and truth values are numbers like others, which a layer can multiply.

    Raises:
        ValueError: it holds words.
    """
    values: npt.NDArray[np.float64] = frame.to_numpy(dtype=np.float64, copy=True, na_value=np.nan)
    return values


def _columns(data: Samples, owner: str) -> tuple[Tensor, Tensor]:
    """The two columns as tensors, before their lengths and values are checked."""
    if isinstance(data, DataLoader):
        data = data.dataset
    if isinstance(data, Dataset):
        if not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
            raise DataError(f"{owner}'s data set has no length: give one with numbered samples, or a pair of tensors")
        rows = [data[number] for number in range(len(data))]
        if not rows or any(not isinstance(row, tuple | list) or len(row) != 2 for row in rows):
            raise DataError(f"{owner}'s data set must hold (input, target) pairs, at least one")
        inputs, targets = (torch.stack([torch.as_tensor(row[column]) for row in rows]) for column in (0, 1))
        return inputs, targets
    if isinstance(data, tuple | list) and len(data) == 2:
        given = numbers_of_frame(data[0]) if hasattr(data[0], "columns") else data[0]
        return as_tensor(given), as_tensor(data[1])
    raise DataError(f"{owner}'s data must be an (inputs, targets) pair or a Dataset; got {type(data).__name__}")


def _convert(values: Tensor, like: Tensor) -> Tensor:
    """The values on the device of `like`; floating ones in its dtype, others in their own."""
    return values.to(like.device, like.dtype if values.is_floating_point() else values.dtype)


def _kind(values: Tensor) -> str:
    return f"{values.dtype} of shape {tuple(values.shape[1:])}"
