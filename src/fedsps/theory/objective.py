"""The objective `f = sum_i share_i f_i` in float64: values and gradients of all clients, and how much they differ."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedsps.core import streams
from fedsps.data.clients import ClientData
from fedsps.engine.setup import Setup
from fedsps.model.network import Network

MOST_SAMPLES = 1000
"""Of each client, for the variance of its samples' gradients; more are drawn from."""

NUMBERS_AT_ONCE = 2**24  # of sample gradients


class Noise(NamedTuple):
    """How much gradients differ at a point.

    Attributes:
        clients: `zeta^2 = sum_i share_i ||grad f_i - grad f||^2`.
        batches: `sigma^2 = sum_i share_i E||grad F_i(., batch) - grad f_i||^2`; NaN for models with batch norm, where
            a sample has no gradient of its own.
    """

    clients: float
    batches: float


@dataclass(frozen=True, eq=False)
class Objective:
    """What is minimised, on the host and in float64.

    Attributes:
        network: the model and the loss.
        data: the clients' samples; none is without.
        shares: of the clients, `[clients]`; they add up to 1.
        batch: samples of a local step; None for all of a client's.
    """

    network: Network
    data: ClientData
    shares: Tensor
    batch: int | None

    @classmethod
    def of(cls, setup: Setup, network: Network) -> "Objective":
        """The objective of a setup, with its network in float64."""
        present = setup.data.sizes > 0
        data = setup.data.to(network.x, network.accepted)
        kept = ClientData(data.inputs, data.targets, data.sizes[present])
        return cls(network, kept, setup.shares(present.nonzero()[0]), setup.plan.batch_size)

    def clients(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """`f_i(x)`, `[clients]`, and their gradients, `[clients, d]`."""
        found = [self.network.loss_and_gradient(x, self.network.buffers, *pair) for pair in self.data.pairs()]
        return torch.stack([one[0] for one in found]), torch.stack([one[1] for one in found])

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """`f(x)` and its gradient `[d]`."""
        losses, gradients = self.clients(x)
        return self.shares @ losses, self.shares @ gradients

    def noise(self, x: Tensor, seed: int = 0) -> Noise:
        """How much the clients' and the batches' gradients differ at x; batches are drawn without replacement."""
        _, gradients = self.clients(x)
        between = ((gradients - self.shares @ gradients) ** 2).sum(1)
        if self.network.buffers:
            return Noise(float(self.shares @ between), torch.nan)
        within = []
        for client, (inputs, targets) in enumerate(self.data.pairs()):
            size = len(inputs)
            batch = min(self.batch or size, size)
            rows = torch.arange(size)
            if size > MOST_SAMPLES:
                drawn = streams.generator(seed, "noise", client).choice(size, MOST_SAMPLES, replace=False)
                rows = torch.from_numpy(drawn)
            variance = self._sample_variance(x, inputs[rows], targets[rows])
            within.append(variance * (size - batch) / (batch * max(1, size - 1)))
        return Noise(float(self.shares @ between), float(self.shares @ torch.tensor(within, dtype=torch.float64)))

    def best_batch(self, x: Tensor, client: int) -> "Objective":
        """The loss of one batch of a client alone: of the samples that x fits best."""
        inputs, targets = self.data.pairs()[client]
        size = min(self.batch or len(inputs), len(inputs))
        if size < len(inputs):
            losses = torch.cat([losses for losses, _ in self._by_sample(x, inputs, targets)])
            rows = losses.topk(size, largest=False).indices
            inputs, targets = inputs[rows], targets[rows]
        return Objective(self.network, ClientData(inputs, targets, np.array([size])), x.new_ones(1), None)

    def _by_sample(self, x: Tensor, inputs: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Losses `[M]` and gradients `[M, d]` of samples as batches of one, in pieces that fit into memory."""
        size = max(1, NUMBERS_AT_ONCE // len(x))
        for some, their in zip(inputs.split(size), targets.split(size), strict=True):
            points = x.expand(len(some), -1)
            yield self.network.loss_and_gradient(points, {}, some.unsqueeze(1), their.unsqueeze(1))[:2]

    def _sample_variance(self, x: Tensor, inputs: Tensor, targets: Tensor) -> float:
        """`E||grad F_i(x, sample) - mean||^2`."""
        mean, square = torch.zeros_like(x), 0.0
        for _, gradients in self._by_sample(x, inputs, targets):
            mean += gradients.sum(0) / len(inputs)
            square += float(gradients.square().sum()) / len(inputs)
        return max(0.0, square - float(mean @ mean))
