"""Loss and accuracy of a model on the clients' data and on test data.

Evaluations draw nothing at random and change no state: the module is in evaluation mode, and buffers are read alone.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedsps.core.vectors import Tensors
from fedsps.data.clients import ClientData
from fedsps.model.logistic import Logistic
from fedsps.model.network import Network

SAMPLES_AT_ONCE = 4096
SETTING_OUTPUTS_AT_ONCE = 2**21  # numbers of a block of outputs of many settings
IMAGES_AT_ONCE = 256  # activations are larger than inputs: these stay in the cache


class Evaluation(NamedTuple):
    """Loss and accuracy of each client, `[clients]`; accuracy is NaN where it has no meaning.

    Attributes:
        loss: `f_i(x)`, over all samples of client i.
        accuracy: the share of right predictions among samples whose target counts.
    """

    loss: Tensor
    accuracy: Tensor


def evaluate_clients(
    network: Network, x: Tensor, buffers: Tensors, data: ClientData, accuracy: bool = True
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

    >>> network = Network(torch.nn.Linear(2, 3))
    >>> data = ClientData.of([(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1])), (torch.zeros(1, 2), torch.tensor([0]))])
    >>> scores = evaluate_clients(network, torch.zeros(9), {}, data)
    >>> scores.loss, scores.accuracy
    (tensor([1.0986, 1.0986]), tensor([0.7500, 1.0000]))
    """
    losses, accuracies = [], []
    for outputs, targets, sizes in _runs(network, x, buffers, data):
        sample_losses = network.sample_losses(outputs, targets)
        hits = network.hits(outputs, targets) if accuracy else None
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


def _runs(
    network: Network, x: Tensor, buffers: Tensors, data: ClientData
) -> Iterator[tuple[Tensor, Tensor, list[int]]]:
    """Outputs and targets of runs of clients, each run large enough for one fast pass.

    A run is never cut within a client. Its inputs go through the model in pieces, which bounds the memory.
    """
    pass_size = IMAGES_AT_ONCE if data.inputs.ndim > 2 else SAMPLES_AT_ONCE
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
            data.targets[rows],
            run,
        )
        first, run = stop, []


def _means(values: Tensor, sizes: list[int]) -> Tensor:
    """The mean over each client's samples, `[M] -> [clients]`; one dimension a sample or several."""
    values = values.flatten(1).mean(1) if values.ndim > 1 else values
    values = values.float() if values.dtype in (torch.float16, torch.bfloat16) else values
    return _sums(values, sizes) / torch.tensor(sizes).to(values)


def _sums(values: Tensor, sizes: list[int]) -> Tensor:
    """The sum over each client's samples, `[M, *] -> [clients, *]`."""
    owner = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes)).to(values.device)
    return values.new_zeros(len(sizes), *values.shape[1:]).index_add_(0, owner, values)


def evaluate_settings(network: Network, x: Tensor, data: ClientData, accuracy: bool = True) -> Evaluation:
    """As `evaluate_clients` for many points `x [settings, d]` of a model without buffers: `[settings, clients]`.

    A linear model's outputs for all settings are one product with the data, which is read once.

    Args:
        network: the model and the loss.
        x: where.
        data: the clients' samples; of test data a single client's.
        accuracy: whether it is wanted too.
    """
    if not isinstance(network, Logistic) or not network.counts_classes(data.targets):
        alone = [evaluate_clients(network, point, {}, data, accuracy) for point in x]
        return Evaluation(*(torch.stack(values) for values in zip(*alone, strict=True)))
    settings, outputs = len(x), network.width
    weight, bias = x.split([x.shape[-1] - outputs, outputs], dim=-1)
    weight = weight.reshape(settings * outputs, -1)
    losses, hits = [], []
    rows = max(64, SETTING_OUTPUTS_AT_ONCE // (settings * outputs))
    for inputs, targets in zip(data.inputs.split(rows), data.targets.split(rows), strict=True):
        logits = torch.addmm(bias.flatten(), inputs.flatten(1), weight.T).unflatten(-1, (settings, outputs))
        if outputs == 1:
            truth = targets.to(logits.dtype)[:, None].expand(-1, settings)
            losses.append(F.binary_cross_entropy_with_logits(logits[..., 0], truth, reduction="none"))
        else:
            chosen = targets[:, None, None].expand(-1, settings, 1)
            losses.append(logits.logsumexp(-1) - logits.gather(-1, chosen)[..., 0])
        if accuracy:
            guess, right = (logits[..., 0] > 0, targets > 0.5) if outputs == 1 else (logits.argmax(-1), targets)
            hits.append((guess == right[:, None]).to(logits.dtype))
    sizes = data.sizes.tolist()
    counts = torch.tensor(sizes).to(x)[:, None]
    loss = (_sums(torch.cat(losses), sizes) / counts).T
    return Evaluation(
        loss, (_sums(torch.cat(hits), sizes) / counts).T if accuracy else torch.full_like(loss, torch.nan)
    )
