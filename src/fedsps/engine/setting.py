"""What every engine plays with: the setting of a run, its state between rounds, and what a round leaves behind."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedsps import streams
from fedsps.algorithm import Algorithm
from fedsps.data.federated import Federation
from fedsps.objective import Objective
from fedsps.parts import Exchange
from fedsps.shapes import Tensors
from fedsps.streams import Rows

Weights = Literal["uniform", "samples"]
Augment = Literal["none", "crop-flip"]


@dataclass(frozen=True)
class Setting:
    """What does not change during a run."""

    objective: Objective
    federation: Federation
    algorithm: Algorithm
    local_steps: int
    batch_size: int | None  # None: a client's whole data at every local step
    cohort: int
    seed: int
    weights: Weights = "uniform"
    augment: Augment = "none"
    memory_limit: int = 2 * 2**30  # bytes that the stacked engine may fill with one chunk of clients
    sample_bytes: int = 0  # what one sample's forward pass keeps for the backward

    def cohort_of(self, round: int) -> Rows:
        """The active clients of a round, ascending."""
        return streams.cohort(self.seed, round, self.federation.clients, self.cohort)

    def batch_sizes(self, clients: Rows, exchange: Exchange) -> Rows:
        """Each client's actual batch, `min(B, m_i)`."""
        sizes = self.federation.sizes[clients]
        if exchange.whole_data or self.batch_size is None:
            return sizes
        return np.minimum(sizes, self.batch_size)

    def client_bytes(self, batch: int) -> int:
        """Roughly what one stacked client takes: a few vectors, its batches of the round, one forward pass."""
        x, inputs = self.objective.x, self.federation.inputs
        sample = inputs[0].numel() * inputs.element_size()
        return 6 * x.numel() * x.element_size() + batch * (self.local_steps * sample + self.sample_bytes)

    def most_samples(self, clients: int, batch: int) -> int:
        """How many of each client's samples go into one evaluation: the batch, unless it does not fit into memory.

        Only a loss that is a plain mean can be taken in pieces, and only where there are no batch statistics.
        """
        masked = not self.federation.targets.is_floating_point() and self.federation.least_target < 0
        if not self.objective.is_plain_mean or self.objective.buffers or masked:
            return batch
        return min(batch, max(1, self.memory_limit // max(1, clients * self.sample_bytes)))

    def shares(self, clients: Rows) -> Tensor:
        """The weights of the mean over these clients; they add up to 1."""
        counts = np.ones(len(clients)) if self.weights == "uniform" else self.federation.sizes[clients]
        return torch.from_numpy(counts / counts.sum()).to(self.objective.x.device)  # float64; the mean converts it

    def gradients(self, clients: Rows, batch: int, evaluations: int) -> int:
        """The cost of so many evaluations by each of these clients, in mini-batches."""
        return evaluations * len(clients) * (1 if self.batch_size is None else -(-batch // self.batch_size))


@dataclass(frozen=True)
class State:
    """Where a run stands after `round` rounds; tensors only, so that it can be written down and resumed."""

    round: int
    x: Tensor  # [d]
    buffers: Tensors
    server: Tensors
    clients: Tensors  # each [clients, *]
    output: Tensors  # the output rule's state
    result: Tensor  # [d]  what the output rule returned: evaluated, and handed to the user


def start(setting: Setting) -> State:
    """The state before the first round."""
    x = setting.objective.x
    algorithm = setting.algorithm
    return State(
        round=0,
        x=x,
        buffers=setting.objective.buffers,
        server=algorithm.server_init(x),
        clients=algorithm.client_init(x.expand(setting.federation.clients, -1)),
        output=algorithm.output_rule.init(x),
        result=x,
    )
