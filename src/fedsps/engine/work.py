"""A client's batches of one exchange, behind an oracle that counts and keeps the buffers."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedsps import streams
from fedsps.data.augment import crop_and_flip
from fedsps.engine.setting import Setting
from fedsps.objective import Objective
from fedsps.parts import Exchange, LossAndGradient
from fedsps.shapes import Tensors, scalars
from fedsps.streams import Rows


@dataclass
class Batches:
    """The `Work` of one client (leading axes `[]`) or of several at once (`[clients]`)."""

    objective: Objective
    inputs: Tensor  # [steps, ..., B, *]
    targets: Tensor  # [steps, ..., B, *]
    buffers: Tensors  # [..., *]  as the last training step left them
    client: Tensor  # [...]
    fraction: Tensor  # [...]
    iteration: int
    most_samples: int  # of a client that one evaluation may hold; larger batches are taken in pieces
    evaluations: int = 0

    @property
    def steps(self) -> int:
        """The number of batches."""
        return len(self.inputs)

    def alone(self) -> "Batches":
        """The work of a single client without its leading axis."""
        return replace(
            self,
            inputs=self.inputs.squeeze(1),
            targets=self.targets.squeeze(1),
            buffers={name: value.squeeze(0) for name, value in self.buffers.items()},
            client=self.client.squeeze(0),
            fraction=self.fraction.squeeze(0),
        )

    def loss_and_gradient(self, x: Tensor, step: int) -> LossAndGradient:
        """A training step's evaluation."""
        loss, gradient, self.buffers = self._evaluate(x, step)
        return loss, gradient

    def probe(self, x: Tensor, step: int) -> LossAndGradient:
        """An extra evaluation."""
        loss, gradient, _ = self._evaluate(x, step)
        return loss, gradient

    def _evaluate(self, x: Tensor, step: int) -> tuple[Tensor, Tensor, Tensors]:
        """Loss, gradient and buffers; of a batch in pieces, the mean of theirs by their share of the samples."""
        self.evaluations += 1
        axis = x.ndim - 1
        if self.targets.shape[axis + 1] <= self.most_samples:
            return self.objective.loss_and_gradient(x, self.buffers, self.inputs[step], self.targets[step])
        inputs = self.inputs[step].split(self.most_samples, axis)
        targets = self.targets[step].split(self.most_samples, axis)
        buffers = self.buffers
        losses, gradients = [], []
        for some_inputs, some_targets in zip(inputs, targets, strict=True):
            loss, gradient, buffers = self.objective.loss_and_gradient(x, buffers, some_inputs, some_targets)
            share = some_targets.shape[axis] / self.targets.shape[axis + 1]
            losses.append(share * loss)
            gradients.append(share * gradient)
        return sum(losses[1:], losses[0]), sum(gradients[1:], gradients[0]), buffers


def batches(setting: Setting, exchange: Exchange, round: int, clients: Rows, batch: int, buffers: Tensors) -> Batches:
    """The work of clients whose actual batch is the same, with the leading axis `[clients]`."""
    federation = setting.federation
    steps = 1 if exchange.whole_data else setting.local_steps
    sizes = federation.sizes[clients]
    inputs, targets = federation.gather(clients, streams.batches(setting.seed, round, clients, sizes, steps, batch))
    if setting.augment == "crop-flip" and not exchange.whole_data:
        inputs = crop_and_flip(inputs, setting.seed, round, clients)
    x = setting.objective.x
    return Batches(
        objective=setting.objective,
        inputs=inputs,
        targets=targets,
        buffers={name: value.expand(len(clients), *value.shape) for name, value in buffers.items()},
        client=torch.from_numpy(clients).to(x.device),
        fraction=scalars(x.expand(len(clients), -1), torch.from_numpy(batch / sizes)),
        iteration=round * setting.local_steps,
        most_samples=setting.most_samples(len(clients), batch),
    )
