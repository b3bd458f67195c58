"""A run of FedSPS with every local iterate, and what the theorems say about it.

The run is the engine's own: a network that keeps what it is asked stands in for the model, and each round is played as
in training.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedsps.core.algorithm import Algorithm
from fedsps.core.plan import Plan
from fedsps.core.vectors import Tensors
from fedsps.data.clients import ClientData
from fedsps.engine.round import play_round
from fedsps.engine.setup import Setup, start
from fedsps.engine.trial import prepare
from fedsps.errors import ConfigurationError
from fedsps.model.network import Network
from fedsps.rules.polyak import SPS
from fedsps.theory.bounds import Numbers


class Watched(Network):
    """A network that keeps the points, losses and gradients of each step; another one does the work.

    Args:
        inner: the model and the loss.
    """

    def __init__(self, inner: Network) -> None:
        self.__dict__.update(inner.__dict__)
        self.inner = inner
        self.seen: list[tuple[Tensor, Tensor, Tensor]] = []

    def loss_and_gradient(
        self,
        x: Tensor,
        buffers: Tensors,
        inputs: Tensor,
        targets: Tensor,
        shared: int = 0,
        masked: bool | None = None,
    ) -> tuple[Tensor, Tensor, Tensors]:
        """As the inner network's, and kept."""
        loss, gradient, after = self.inner.loss_and_gradient(x, buffers, inputs, targets, shared, masked)
        self.seen.append((x.detach(), loss, gradient))
        return loss, gradient, after


@dataclass(frozen=True, eq=False)
class Trajectory:
    """What Algorithm 1 of the paper went through, iteration by iteration.

    Attributes:
        points: `x_t^i` for t = 0 .. T - 1, `[T, clients, d]`.
        losses: `F_i(x_t^i, batch)`, `[T, clients]`.
        sizes: `||grad F_i(x_t^i, batch)||^2`, `[T, clients]`.
        stepsizes: `gamma_t^i`, `[T, clients]`.
        lower: l*, of all clients.
        local_steps: tau.
        final: the server's point after the last round, `[d]`.
    """

    points: Numbers
    losses: Numbers
    sizes: Numbers
    stepsizes: Numbers
    lower: float
    local_steps: int
    final: Numbers

    @property
    def means(self) -> Numbers:
        """`mean_i x_t^i` for t = 0 .. T, `[T + 1, d]`."""
        return np.concatenate([self.points.mean(1), self.final[None]])

    @property
    def gains(self) -> Numbers:
        """`gamma_t^i (F_i(x_t^i, batch) - l*)`, `[T, clients]`: what both lemmas are made of."""
        found: Numbers = self.stepsizes * (self.losses - self.lower)
        return found

    @property
    def differences(self) -> Numbers:
        """`R_t = mean_i ||mean_k x_t^k - x_t^i||^2`, `[T]`; 0 at the beginning of a round."""
        found: Numbers = ((self.points - self.points.mean(1, keepdims=True)) ** 2).sum(-1).mean(1)
        return found

    def since_round(self, values: Numbers) -> Numbers:
        """The sum of values `[T]` over the iterations of t's round that came before t, `[T]`."""
        by_round = values.reshape(-1, self.local_steps)
        return np.asarray((by_round.cumsum(1) - by_round).reshape(-1))

    @property
    def difference_bounds(self) -> Numbers:
        """The right-hand side of lemma:convex_difference, `[T]`: `1/(2 tau)` times the sum of the mean gains."""
        return self.since_round(self.gains.mean(1)) / (2 * self.local_steps)


def follow(
    network: Network,
    data: ClientData,
    algorithm: Algorithm,
    plan: Plan,
) -> Trajectory:
    """Train as the plan says, all clients in each round, and keep every local iterate.

    Args:
        network: the model and the loss; it starts from `network.x`.
        data: the clients' samples, as many of each.
        algorithm: FedSPS, or another whose stepsize is `SPS` without a smoothed cap.
        plan: rounds, local steps, batch size and seed.

    Raises:
        ConfigurationError: the theorems are not about such a run.
    """
    rule = algorithm.stepsize
    if not isinstance(rule, SPS) or rule.smoothing is not None or isinstance(rule.lower, tuple):
        raise ConfigurationError(f"the theorems are about SPS with a fixed cap and one lower bound; got {rule!r}")
    if plan.cohort is not None or plan.absences is not None or len(set(data.sizes.tolist())) > 1:
        raise ConfigurationError("the theorems are about runs in which all clients take part, with equal batches")
    watched = Watched(network)
    setup, collect = prepare(Setup(plan, watched, data, algorithm), "stacked")
    state, stepsizes = start(setup), []
    watched.seen.clear()
    for _ in range(plan.rounds):
        state, done = play_round(setup, state, collect)
        if done.trace is None:
            raise ConfigurationError("the algorithm does not train in its last exchange")
        stepsizes.append(done.trace.stepsizes.T)
    points, losses, gradients = (torch.stack(column).double().numpy() for column in zip(*watched.seen, strict=True))
    return Trajectory(
        points=points,
        losses=losses,
        sizes=(gradients**2).sum(-1),
        stepsizes=torch.cat(stepsizes).double().numpy(),
        lower=float(rule.lower),
        local_steps=plan.local_steps,
        final=state.x.double().numpy(),
    )
