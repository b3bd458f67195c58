"""A client's batches of one exchange, behind an oracle that counts and keeps the buffers."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedsps.core import streams
from fedsps.core.contract import Exchange, LossAndGradient
from fedsps.core.streams import Indices
from fedsps.core.vectors import Tensors, scalars
from fedsps.data.augment import crop_and_flip
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
        if self.targets.shape[axis + 1] <= self.most_samples:
            return self.network.loss_and_gradient(x, self.buffers, self.inputs[step], self.targets[step], self.shared)
        inputs = self.inputs[step].split(self.most_samples, axis)
        targets = self.targets[step].split(self.most_samples, axis)
        buffers = self.buffers
        losses, gradients = [], []
        for some_inputs, some_targets in zip(inputs, targets, strict=True):
            loss, gradient, buffers = self.network.loss_and_gradient(x, buffers, some_inputs, some_targets, self.shared)
            share = some_targets.shape[axis] / self.targets.shape[axis + 1]
            losses.append(share * loss)
            gradients.append(share * gradient)
        return sum(losses[1:], losses[0]), sum(gradients[1:], gradients[0]), buffers


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
    inputs, targets = data.gather(clients, streams.batches(plan.seed, round, clients, sizes, steps, batch))
    if plan.augment == "crop-flip" and not exchange.whole_data:
        inputs = crop_and_flip(inputs, plan.seed, round, clients)
    return Batches(
        network=setup.network,
        inputs=inputs,
        targets=targets,
        buffers={name: value.expand(len(clients), *value.shape) for name, value in buffers.items()},
        client=torch.from_numpy(clients).to(x.device),
        fraction=scalars(x.expand(len(clients), -1), torch.from_numpy(batch / sizes)),
        iteration=round * plan.local_steps,
        most_samples=setup.most_samples(len(clients), batch),
    )
