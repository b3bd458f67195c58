"""What every engine works with: the setup of a run, and its state between rounds."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedsps.core import streams
from fedsps.core.absences import missing, present, schedule
from fedsps.core.algorithm import Algorithm
from fedsps.core.contract import Exchange
from fedsps.core.kinds import OutputRule
from fedsps.core.plan import Plan
from fedsps.core.streams import Indices
from fedsps.core.vectors import Tensors
from fedsps.data.clients import ClientData
from fedsps.engine.metrics import Metric
from fedsps.engine.own_layers import OwnLayers
from fedsps.model.network import Network


def suited(network: Network, data: ClientData) -> ClientData:
    """The clients' data as the network takes them; the network learns whether its outputs are to be squeezed."""
    data = data.to(network.x, network.accepted)
    network.squeezed = network.has_column(data.inputs, data.targets)
    return data


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
        metrics: what evaluations give beside loss and accuracy, by name.
    """

    plan: Plan
    network: Network
    data: ClientData
    algorithm: Algorithm
    memory_limit: int = 2 * 2**30
    sample_bytes: int = 0
    workers: int = 1
    is_random: bool = False
    metrics: Mapping[str, Metric] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.algorithm.check(self.data.clients)
        self.plan.check(self.data.clients, self.data.sample_shape)
        if self.own_layers is not None:
            self.own_layers.check(self.algorithm)
        absences = self.plan.absences
        if absences is not None and len(missing(str(absences))) >= self.plan.active(self.data.clients):
            for first, last, _ in schedule(str(absences)):
                for round in range(first, min(last, self.plan.rounds) + 1):
                    self.cohort_of(round - 1)  # refused now, not after hours, if nobody is left

    @cached_property
    def own_layers(self) -> OwnLayers | None:
        """The layers that each client keeps for itself, if there are any."""
        return OwnLayers.of(self.network) if self.plan.local_batch_norm else None

    def client_init(self, x: Tensor, buffers: Tensors) -> Tensors:
        """The state of clients that have not taken part yet, at the server's `x [..., d]` and buffers, each `[*]`."""
        state = self.algorithm.client_init(x)
        return state if self.own_layers is None else state | self.own_layers.new(x, buffers)

    def shared(self, buffers: Tensors) -> Tensors:
        """Those of a model's buffers that clients send."""
        own = () if self.own_layers is None else self.own_layers.buffers
        return {name: value for name, value in buffers.items() if name not in own}

    def cohort_of(self, round: int) -> Indices:
        """The active clients of round 0, 1, ..., ascending: those that are drawn, without those that are missing."""
        clients, plan = self.data.clients, self.plan
        drawn = streams.cohort(plan.seed, round, clients, plan.active(clients))
        return drawn if plan.absences is None else present(str(plan.absences), drawn, plan.seed, round)

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
        if not self.network.is_plain_mean or self.network.buffers or self.data.ignored is not None:
            return batch
        return min(batch, max(1, self.memory_limit // max(1, clients * self.sample_bytes)))

    def shares(self, clients: Indices) -> Tensor:
        """The weights of the mean over these clients, in float64 and on the host; they add up to 1."""
        counts = np.ones(len(clients)) if self.plan.weights == "uniform" else self.data.sizes[clients]
        return torch.from_numpy(counts / counts.sum())

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
        clients: the algorithm's state on the clients, each `[clients, *]`, and the layers that each has for itself;
            empty where clients keep their own.
        output: the output rule's state.
        result: what the output rule returned, `[d]`: evaluated, and handed to the user.
        ledger: what a federation's server notes of its clients; empty in local runs.
        result_buffers: the buffers that go with the result.
        best: the output of the best round so far, `x`, the buffers and the clients' own layers by name, where the plan
            asks for it.
        tally: the sum of each client's stepsizes and the number of its steps so far, `[clients]` each.
    """

    round: int
    x: Tensor
    buffers: Tensors
    server: Tensors
    clients: Tensors
    output: Tensors
    result: Tensor
    ledger: Tensors = field(default_factory=dict)
    result_buffers: Tensors = field(default_factory=dict)
    best: Tensors = field(default_factory=dict)
    tally: Tensors = field(default_factory=dict)


def start(setup: Setup, ledger: Tensors | None = None) -> State:
    """The state before the first round. With a ledger the clients keep their own states, elsewhere."""
    x, algorithm = setup.network.x, setup.algorithm
    return State(
        round=0,
        x=x,
        buffers=setup.network.buffers,
        server=algorithm.server_init(x),
        clients=(setup.client_init(x.expand(setup.data.clients, -1), setup.network.buffers) if ledger is None else {}),
        output=algorithm.output_rule.init(x)
        | {
            f"{name}:{key}": value
            for name, buffer in setup.network.buffers.items()
            if buffer.is_floating_point()
            for key, value in algorithm.output_rule.init(buffer.flatten()).items()
        },
        result=x,
        ledger=ledger or {},
        result_buffers=setup.network.buffers,
        tally={name: torch.zeros(setup.data.clients, dtype=torch.float64) for name in ("stepsizes", "steps")},
    )


def with_tally(state: State, clients: Indices, stepsizes: Tensor) -> State:
    """The state with the stepsizes `[n, tau]` that these clients took in the round counted."""
    index, rows = torch.from_numpy(clients), stepsizes.double().cpu()
    more = {"stepsizes": rows.sum(1), "steps": torch.full((len(clients),), rows.shape[1], dtype=torch.float64)}
    return replace(
        state, tally={name: value.cpu().index_add(0, index, more[name]) for name, value in state.tally.items()}
    )


def with_output(rule: OutputRule, state: State) -> State:
    """The state after one more round, with its output: floating buffers go with x by the same rule, others stay.

    Statistics of batch norm that were gathered at one point say nothing of another: an average of points needs the
    average of their statistics.
    """
    round, buffers = state.round + 1, dict(state.buffers)
    result, output = rule({key: value for key, value in state.output.items() if ":" not in key}, state.x, round)
    for name, buffer in state.buffers.items():
        if buffer.is_floating_point():
            own = {key.rpartition(":")[2]: value for key, value in state.output.items() if key.startswith(f"{name}:")}
            averaged, own = rule(own, buffer.flatten(), round)
            buffers[name] = averaged.reshape(buffer.shape)
            output = output | {f"{name}:{key}": value for key, value in own.items()}
    return replace(state, round=round, output=output, result=result, result_buffers=buffers)
