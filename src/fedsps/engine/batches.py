"""A client's batches of one exchange, behind an oracle that counts and keeps the buffers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedsps.core import streams
from fedsps.core.contract import Exchange, LossAndGradient, Trace
from fedsps.core.streams import Indices
from fedsps.core.vectors import Tensors, scalars
from fedsps.data.augment import crop_and_flip
from fedsps.engine.own_layers import PREFIX, layers_of
from fedsps.engine.setup import Setup
from fedsps.model.network import Network


@dataclass
class Batches:
    """The `Work` of one client (leading axes `[]`) or of several at once (`[clients]`).

    Attributes:
        network: the model and the loss.
        inputs: the batches, `[steps, ..., B, *]`.
        targets: theirs, `[steps, ..., B, *]`.
        buffers: as the last training step left them, each `[..., *]`.
        client: the clients' numbers, `[...]`.
        fraction: `B / m_i`, `[...]`.
        masked: whether a batch has a target that does not count, `[steps]`.
        iteration: the global iteration of the first step.
        most_samples: of a client that one evaluation may hold; larger batches are taken in pieces.
        shared: leading axes of x that the batches do not have, since they are the same for all settings of a sweep.
        evaluations: how often the oracle was asked.
    """

    network: Network
    inputs: Tensor
    targets: Tensor
    buffers: Tensors
    client: Tensor
    fraction: Tensor
    masked: list[bool]
    iteration: int
    most_samples: int
    shared: int = 0
    evaluations: int = 0

    @property
    def steps(self) -> int:
        """The number of batches: tau for training, 1 for an exchange on the whole data."""
        return len(self.inputs)

    def alone(self) -> "Batches":
        """The work of a single client without its leading axis: `[1, *]` becomes `[*]`."""
        return replace(
            self,
            inputs=self.inputs.squeeze(1),
            targets=self.targets.squeeze(1),
            buffers={name: value.squeeze(0) for name, value in self.buffers.items()},
            client=self.client.squeeze(0),
            fraction=self.fraction.squeeze(0),
        )

    def loss_and_gradient(self, x: Tensor, step: int) -> LossAndGradient:
        """Loss and gradient of a training step, which updates the buffers."""
        loss, gradient, self.buffers = self._evaluate(x, step)
        return loss, gradient

    def probe(self, x: Tensor, step: int) -> LossAndGradient:
        """Loss and gradient of an extra evaluation; the buffers stay."""
        loss, gradient, _ = self._evaluate(x, step)
        return loss, gradient

    def _evaluate(self, x: Tensor, step: int) -> tuple[Tensor, Tensor, Tensors]:
        """Loss, gradient and buffers; of a batch in pieces, the mean of theirs by their share of the samples."""
        self.evaluations += 1
        axis = x.ndim - 1 - self.shared
        how = (self.shared, self.masked[step])
        if self.targets.shape[axis + 1] <= self.most_samples:
            return self.network.loss_and_gradient(x, self.buffers, self.inputs[step], self.targets[step], *how)
        inputs = self.inputs[step].split(self.most_samples, axis)
        targets = self.targets[step].split(self.most_samples, axis)
        buffers = self.buffers
        losses, gradients = [], []
        for some_inputs, some_targets in zip(inputs, targets, strict=True):
            loss, gradient, buffers = self.network.loss_and_gradient(x, buffers, some_inputs, some_targets, *how)
            share = some_targets.shape[axis] / self.targets.shape[axis + 1]
            losses.append(share * loss)
            gradients.append(share * gradient)
        return sum(losses[1:], losses[0]), sum(gradients[1:], gradients[0]), buffers


def join(works: Sequence[Batches]) -> Batches:
    """The work of several groups of clients with equal batches as one, client after client."""
    if len(works) == 1:
        return works[0]
    return replace(
        works[0],
        inputs=torch.cat([work.inputs for work in works], 1),
        targets=torch.cat([work.targets for work in works], 1),
        client=torch.cat([work.client for work in works]),
        fraction=torch.cat([work.fraction for work in works]),
        most_samples=min(work.most_samples for work in works),
        masked=[any(step) for step in zip(*(work.masked for work in works), strict=True)],
    )


def batches(setup: Setup, exchange: Exchange, round: int, clients: Indices, batch: int, buffers: Tensors) -> Batches:
    """The work of clients whose actual batch is the same, with the leading axis `[clients]`.

    Args:
        setup: of the run.
        exchange: training, or one that asks for something before it.
        round: 0, 1, ...
        clients: their numbers.
        batch: the actual batch of each of them.
        buffers: the server's, each `[*]`.
    """
    plan, data, x = setup.plan, setup.data, setup.network.x
    steps = 1 if exchange.whole_data else plan.local_steps
    sizes = data.sizes[clients]
    rows = streams.batches(plan.seed, round, clients, sizes, steps, batch)
    inputs, targets = data.gather(clients, rows)
    if plan.augment == "crop-flip" and not exchange.whole_data:
        inputs = crop_and_flip(inputs, plan.seed, round, clients)
    return Batches(
        network=setup.network,
        inputs=inputs,
        targets=targets,
        buffers={name: value.expand(len(clients), *value.shape) for name, value in buffers.items()},
        client=torch.from_numpy(clients).to(x.device),
        fraction=scalars(x.expand(len(clients), -1), torch.from_numpy(batch / sizes)),
        masked=data.masked(clients, rows),
        iteration=round * plan.local_steps,
        most_samples=setup.most_samples(len(clients), batch),
    )


def share(
    setup: Setup, exchange: Exchange, state: Tensors, x: Tensor, received: Tensors, work: Batches
) -> tuple[Tensors, Tensors, Trace | None]:
    """The clients' share of an exchange, as `Exchange.work` has it, each from its own layers where it has such.

    Args:
        setup: of the run.
        exchange: which one.
        state: the clients' own.
        x: the server's point, once for each client, `[..., d]`.
        received: the server's broadcast.
        work: the clients' batches; its buffers are then those that the clients send.
    """
    if setup.own_layers is None:
        return exchange.work(state, x, received, work)
    x, work.buffers = setup.own_layers.into(x, work.buffers, layers_of(state))
    message, state, trace = setup.own_layers.exchange(exchange).work(state, x, received, work)
    state = state | {PREFIX + name: work.buffers[name] for name in setup.own_layers.buffers}
    work.buffers = setup.shared(work.buffers)
    return message, state, trace
