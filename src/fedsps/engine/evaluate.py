"""Loss and accuracy of a model on the clients' data and on test data.

Evaluations draw nothing at random and change no state: the module is in evaluation mode, and buffers are read alone.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedsps.core.streams import Indices
from fedsps.core.vectors import Tensors
from fedsps.data.clients import ClientData
from fedsps.engine.metrics import Metric, measured
from fedsps.engine.own_layers import OwnLayers
from fedsps.model.logistic import Logistic
from fedsps.model.network import Network

SAMPLES_AT_ONCE = 4096
OUTPUTS_AT_ONCE = 2**21  # numbers of a block of outputs of many runs
IMAGES_AT_ONCE = 256  # activations are larger than inputs: these stay in the cache


class Evaluation(NamedTuple):
    """Loss and accuracy of each client, `[clients]`; accuracy is NaN where it has no meaning.

    Attributes:
        loss: `f_i(x)`, over all samples of client i.
        accuracy: the share of right predictions among samples whose target counts.
    """

    loss: Tensor
    accuracy: Tensor


class Own(NamedTuple):
    """The layers that clients have for themselves, and whose samples are whose.

    Attributes:
        which: these layers.
        layers: of each client, `[clients, *]`, by name.
        sizes: how many samples each client has, in the order in which they stand; of pooled data too.
    """

    which: OwnLayers
    layers: Tensors
    sizes: Indices

    @classmethod
    def of(cls, which: OwnLayers | None, layers: Tensors, sizes: Indices) -> "Own | None":
        """None where clients have no layers for themselves."""
        return None if which is None or not layers else cls(which, layers, sizes)

    def outputs(self, network: Network, x: Tensor, buffers: Tensors, inputs: Tensor, at_once: int) -> Tensor:
        """The outputs for all samples, each client's by its own model."""
        made = []
        for client, own in enumerate(inputs.split(self.sizes.tolist())):
            point = self.which.into(x, buffers, {name: value[client] for name, value in self.layers.items()})
            made += [network.outputs(*point, part) for part in own.split(at_once) if len(part)]
        return torch.cat(made)


def evaluate_clients(
    network: Network,
    x: Tensor,
    buffers: Tensors,
    data: ClientData,
    accuracy: bool = True,
    each: Callable[[Tensor, Tensor], None] | None = None,
    own: Own | None = None,
) -> Evaluation:
    """`f_i(x)` on all of each client's samples, and the share of right predictions.

    A loss that is known to be a plain mean is evaluated sample by sample over all clients at once; any other is given
    each client's outputs whole, so that it is right whatever it does with them.

    Args:
        network: the model and the loss.
        x: where, `[d]`.
        buffers: the model's.
        data: the clients' samples; of test data a single client's.
        accuracy: whether it is wanted too; it takes a while.
        each: called with each client's outputs and targets, for what else is made of them.
        own: the layers that clients have for themselves, if there are any.

    >>> network = Network(torch.nn.Linear(2, 3))
    >>> data = ClientData.of([(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1])), (torch.zeros(1, 2), torch.tensor([0]))])
    >>> scores = evaluate_clients(network, torch.zeros(9), {}, data)
    >>> scores.loss, scores.accuracy
    (tensor([1.0986, 1.0986]), tensor([0.7500, 1.0000]))
    """
    losses, accuracies = [], []
    for outputs, rows, sizes in _runs(network, x, buffers, data, own):
        targets = data.targets[rows]
        masked = data.ignored is not None and bool(data.ignored[rows].any())
        sample_losses = network.sample_losses(outputs, targets, masked)
        hits = network.hits(outputs, targets) if accuracy else None
        if each is not None:
            for pair in zip(outputs.split(sizes), targets.split(sizes), strict=True):
                each(*pair)
        losses.append(
            _means(sample_losses, sizes)
            if sample_losses is not None
            else torch.stack(
                [network.loss(*pair) for pair in zip(outputs.split(sizes), targets.split(sizes), strict=True)]
            )
        )
        accuracies.append(
            _means(hits.nan_to_num(0.0), sizes) / _means((~hits.isnan()).to(hits.dtype), sizes)
            if hits is not None
            else torch.full_like(losses[-1], torch.nan)
        )
    return Evaluation(torch.cat(losses), torch.cat(accuracies))


def client_scores(
    network: Network,
    x: Tensor,
    buffers: Tensors,
    data: ClientData,
    metrics: Mapping[str, Metric],
    own: Own | None = None,
) -> dict[str, list[float]]:
    """Loss, accuracy and metrics of each client, by name; arguments as in `evaluate_clients`."""
    found: dict[str, list[float]] = {name: [] for name in metrics}

    def measure(outputs: Tensor, targets: Tensor) -> None:
        for name, metric in metrics.items():
            found[name].append(measured(metric, name, outputs, targets, network.kind))

    loss, accuracy = evaluate_clients(network, x, buffers, data, each=measure if metrics else None, own=own)
    return {"loss": loss.tolist(), "accuracy": accuracy.tolist(), **found}


def _runs(
    network: Network, x: Tensor, buffers: Tensors, data: ClientData, own: Own | None
) -> Iterator[tuple[Tensor, slice, list[int]]]:
    """Outputs, rows and sizes of runs of clients, each run large enough for one fast pass.

    A run is never cut within a client. Its inputs go through the model in pieces, which bounds the memory.
    """
    pass_size = IMAGES_AT_ONCE if data.inputs.ndim > 2 else SAMPLES_AT_ONCE
    if own is not None:
        outputs = own.outputs(network, x, buffers, data.inputs, pass_size)
        yield outputs, slice(0, len(outputs)), data.sizes.tolist()
        return
    first, stop, run = 0, 0, []
    for number, size in enumerate(data.sizes.tolist()):
        run.append(size)
        stop += size
        if stop - first < SAMPLES_AT_ONCE and number + 1 < data.clients:
            continue
        rows = slice(first, stop)
        inputs = data.inputs[rows].split(pass_size)
        yield (
            torch.cat([network.outputs(x, buffers, part) for part in inputs]),
            rows,
            run,
        )
        first, run = stop, []


def _means(values: Tensor, sizes: list[int]) -> Tensor:
    """The mean over each client's samples, `[M] -> [clients]`; one dimension a sample or several."""
    values = values.flatten(1).mean(1) if values.ndim > 1 else values
    values = values.float() if values.dtype in (torch.float16, torch.bfloat16) else values
    owners = torch.from_numpy(np.repeat(np.arange(len(sizes)), sizes)).to(values.device)
    return _sums(values, owners, len(sizes)) / torch.tensor(sizes).to(values)


def _sums(values: Tensor, owners: Tensor, clients: int) -> Tensor:
    """The sum over each client's samples, `[M, *] -> [clients, *]`, given whose they are, `[M]`."""
    return values.new_zeros(clients, *values.shape[1:]).index_add_(0, owners, values)


@dataclass(frozen=True)
class Pool:
    """The samples of one data set, and what each of several splits of it over clients makes of them.

    Attributes:
        data: the splits, by number; the samples stand in the order of the first.
        targets: of each split, `[M]`: labels that were changed differ.
        owners: whose sample it is in each split, `[M]`.
    """

    data: dict[int, ClientData]
    targets: dict[int, Tensor]
    owners: dict[int, Tensor]


def pools(data: Sequence[ClientData]) -> list[Pool]:
    """The splits, those together that are known to be of the same samples."""
    found: list[Pool] = []
    for number, split in enumerate(data):
        owners = torch.from_numpy(np.repeat(np.arange(split.clients), split.sizes)).to(split.targets.device)
        for pool in found:
            order = _order(next(iter(pool.data.values())), split)
            if order is not None:
                break
        else:
            order, pool = torch.arange(len(owners)), Pool({}, {}, {})
            found.append(pool)
        pool.data[number] = split
        pool.targets[number], pool.owners[number] = split.targets[order], owners[order]
    return found


def _order(first: ClientData, other: ClientData) -> Tensor | None:
    """Where in `other` the samples of `first` stand; None if they are not known to be the same."""
    if other is first:
        return torch.arange(len(first.targets))
    if first.rows is None or other.rows is None or not np.array_equal(np.sort(first.rows), np.sort(other.rows)):
        return None
    return torch.from_numpy(np.argsort(other.rows)[np.argsort(np.argsort(first.rows))])


def evaluate_pool(network: Logistic, x: Tensor, pool: Pool, splits: Sequence[int], wanted: bool = True) -> Evaluation:
    """As `evaluate_clients` for many points of a linear model, `[runs, clients]`: one product with the data for all.

    Args:
        network: the model and the loss.
        x: where, `[runs, d]`.
        pool: the clients' samples; of test data a single client's.
        splits: the number of each run's split.
        wanted: whether the accuracy is wanted too.
    """
    runs, outputs = len(x), network.width
    weight, bias = x.split([x.shape[-1] - outputs, outputs], dim=-1)
    weight = weight.reshape(runs * outputs, -1)
    first = next(iter(pool.data.values()))
    rows = max(64, OUTPUTS_AT_ONCE // (runs * outputs))
    own = {split: [run for run, of in enumerate(splits) if of == split] for split in dict.fromkeys(splits)}
    loss, accuracy = x.new_zeros(runs, first.clients), x.new_full((runs, first.clients), 0.0 if wanted else torch.nan)
    for start in range(0, len(first.targets), rows):
        block = slice(start, start + rows)
        truth = torch.stack([pool.targets[split][block] for split in splits], 1)  # [rows, runs]
        inputs = first.inputs[block].flatten(1)
        logits = torch.addmm(bias.flatten(), inputs, weight.T).unflatten(-1, (runs, outputs))
        if outputs == 1:
            right = truth.to(logits.dtype)
            losses = F.binary_cross_entropy_with_logits(logits[..., 0], right, reduction="none")
            guess, truth = logits[..., 0] > 0, truth > 0.5
        else:
            losses = (logits - logits.gather(-1, truth[..., None])).logsumexp(-1)
            guess = logits.argmax(-1) if wanted else truth
        for split, places in own.items():
            owners = pool.owners[split][block]
            loss[places] += _sums(losses[:, places], owners, first.clients).T
            if wanted:
                accuracy[places] += _sums((guess == truth)[:, places].to(x.dtype), owners, first.clients).T
    sizes = torch.stack([torch.from_numpy(pool.data[split].sizes) for split in splits]).to(x)
    return Evaluation(loss / sizes, accuracy / sizes)
