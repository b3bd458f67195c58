"""What every engine works with: the setup of a run, and its state between rounds."""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fedsps.core import streams
from fedsps.core.algorithm import Algorithm
from fedsps.core.contract import Exchange
from fedsps.core.plan import Plan
from fedsps.core.streams import Indices
from fedsps.core.vectors import Tensors
from fedsps.data.clients import ClientData
from fedsps.model.network import Network


@dataclass(frozen=True)
class Setup:
    """What does not change during a run: the plan, and what it is carried out on.

    A setup that does not fit together (a cohort of more clients than there are, an algorithm that is not for so many)
    is refused on construction.

    Attributes:
        plan: rounds, local steps, cohort, seed, ...
        network: the model and the loss as functions of one flat vector.
        data: the clients' samples; of a federation's server their numbers alone.
        algorithm: the method.
        memory_limit: bytes that the stacked engine may fill with one chunk of clients.
        sample_bytes: what one sample's forward pass keeps for the backward.
        workers: clients that the loop engine computes side by side.
        is_random: whether the model draws random numbers in training, as dropout does.
    """

    plan: Plan
    network: Network
    data: ClientData
    algorithm: Algorithm
    memory_limit: int = 2 * 2**30
    sample_bytes: int = 0
    workers: int = 1
    is_random: bool = False

    def __post_init__(self) -> None:
        self.algorithm.check(self.data.clients)
        self.plan.check(self.data.clients, self.data.sample_shape)

    def cohort_of(self, round: int) -> Indices:
        """The active clients of round 0, 1, ..., ascending."""
        clients = self.data.clients
        return streams.cohort(self.plan.seed, round, clients, self.plan.active(clients))

    def batch_sizes(self, clients: Indices, exchange: Exchange) -> Indices:
        """Each client's actual batch, `min(B, m_i)`."""
        sizes = self.data.sizes[clients]
        if exchange.whole_data or self.plan.batch_size is None:
            return sizes
        return np.minimum(sizes, self.plan.batch_size)

    def client_bytes(self, batch: int) -> int:
        """Roughly what one stacked client takes: a few vectors, its batches of the round, one forward pass."""
        x, inputs = self.network.x, self.data.inputs
        sample = inputs[0].numel() * inputs.element_size()
        return 6 * x.numel() * x.element_size() + batch * (self.plan.local_steps * sample + self.sample_bytes)

    def most_samples(self, clients: int, batch: int) -> int:
        """How many of each client's samples go into one evaluation: the batch, unless it does not fit into memory.

        Only a loss that is a plain mean can be taken in pieces, and only where there are no batch statistics.
        """
        masked = not self.data.targets.is_floating_point() and self.data.least_target < 0
        if not self.network.is_plain_mean or self.network.buffers or masked:
            return batch
        return min(batch, max(1, self.memory_limit // max(1, clients * self.sample_bytes)))

    def shares(self, clients: Indices) -> Tensor:
        """The weights of the mean over these clients, in float64; they add up to 1."""
        counts = np.ones(len(clients)) if self.plan.weights == "uniform" else self.data.sizes[clients]
        return torch.from_numpy(counts / counts.sum()).to(self.network.x.device)

    def gradients(self, clients: Indices, batch: int, evaluations: int) -> int:
        """The cost of so many evaluations by each of these clients, in mini-batches."""
        size = self.plan.batch_size
        return evaluations * len(clients) * (1 if size is None else -(-batch // size))


@dataclass(frozen=True)
class State:
    """Where a run stands after `round` rounds; tensors only, so that it can be written down and resumed.

    Attributes:
        round: how many rounds are done.
        x: the server's point, `[d]`.
        buffers: the model's buffers.
        server: the algorithm's state on the server.
        clients: the algorithm's state on the clients, each `[clients, *]`; empty where clients keep their own.
        output: the output rule's state.
        result: what the output rule returned, `[d]`: evaluated, and handed to the user.
        ledger: what a federation's server notes of its clients; empty in local runs.
    """

    round: int
    x: Tensor
    buffers: Tensors
    server: Tensors
    clients: Tensors
    output: Tensors
    result: Tensor
    ledger: Tensors = field(default_factory=dict)


def start(setup: Setup, ledger: Tensors | None = None) -> State:
    """The state before the first round. With a ledger the clients keep their own states, elsewhere."""
    x, algorithm = setup.network.x, setup.algorithm
    return State(
        round=0,
        x=x,
        buffers=setup.network.buffers,
        server=algorithm.server_init(x),
        clients=algorithm.client_init(x.expand(setup.data.clients, -1)) if ledger is None else {},
        output=algorithm.output_rule.init(x),
        result=x,
        ledger=ledger or {},
    )
