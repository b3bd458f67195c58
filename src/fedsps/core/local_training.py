"""The exchange that every round ends with: tau local steps on each client, then one step of the server."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedsps.core.contract import Exchange, LossAndGradient, Part, Trace, Work, observe
from fedsps.core.kinds import Compression, Direction, Penalty, ServerRule, StepsizeRule
from fedsps.core.vectors import Tensors, bytes_of, either, scalars, times


@dataclass(frozen=True)
class Train(Exchange):
    """Each client goes from the server's x by its own stepsizes and directions, and reports where that led.

        for k = 0 .. tau - 1:   y <- y - gamma d,   gamma by the stepsize rule, d by the direction rule
        delta = y - x

    With a penalty p the clients minimise `F_i(y) + p(y; x)` instead of `F_i(y)`; with compression they send the code
    of delta.

    Coordinates that clients have for themselves (`own`, places in the vector by a name in the client's state) are
    trained as all others are; where they led is the client's to keep, and delta is 0 there.
    """

    stepsize: StepsizeRule
    direction: Direction
    server: ServerRule
    penalty: Penalty | None = None
    compression: Compression | None = None
    own: tuple[tuple[str, slice], ...] = ()
    action: ClassVar[str] = "train"

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts with state, in the order in which they conclude and absorb."""
        return (self.stepsize, self.direction, self.server)

    def broadcast(self, state: Tensors) -> Tensors:
        """What the parts receive, out of the server's state."""
        return {name: state[name] for part in self.parts for name in part.receives}

    def work(self, state: Tensors, x: Tensor, received: Tensors, work: Work) -> tuple[Tensors, Tensors, Trace]:
        """The local steps; `x [..., d]` is the server's point, once for each client."""
        persistent = state.keys()
        if self.penalty is not None:
            work = Penalised(work, x, self.penalty)
        for part in self.parts:
            state = part.begin(state, x)
        y, losses, stepsizes = x, [], []
        for step in range(work.steps):
            seen = observe(work, work.loss_and_gradient, y, x, step, received)
            direction, state = self.direction(state, seen)
            gamma, state = self.stepsize(state, seen)
            y = y - times(gamma, direction)
            losses.append(seen.loss)
            stepsizes.append(gamma)
        seen_losses = torch.stack(losses, -1)
        gap = self.stepsize.gap(replace(seen, loss=seen_losses.amin(-1)))  # once a round: the smallest loss has it
        trace = Trace(
            losses=seen_losses,
            stepsizes=torch.stack(stepsizes, -1),
            gap=scalars(x, torch.inf) if gap is None else gap,
        )
        delta = y - x
        for name, place in self.own:
            state = state | {name: y[..., place]}
            delta[..., place] = 0
        message: Tensors = {}
        for part in self.parts:
            sent, state = part.conclude(state, seen, delta)
            message |= sent
        if self.compression is not None:
            delta, state = self.compression(state, delta)
        message |= self.server.report(delta, trace)
        return message, {name: state[name] for name in persistent}, trace

    def finish(self, state: Tensors, x: Tensor, mean: Tensors, participation: float) -> tuple[Tensor, Tensors]:
        """Each part absorbs the mean, then the server rule moves x; or the run begins anew, if the stepsize says so."""
        for part in self.parts:
            mean = part.accept(state, mean)
        after = state
        for part in self.parts:
            after = part.absorb(after, mean, participation)
        x, after = self.server(after, x, mean)
        anew = self.stepsize.anew(state, mean)
        if anew is None:
            return x, after
        is_lost, start, learnt = anew
        first = {name: value for part in self.parts for name, value in part.server_init(start).items()} | learnt
        return either(is_lost, start, x), after | {name: either(is_lost, first[name], after[name]) for name in first}

    def bytes_up(self, message: Tensors) -> int:
        """A compressed delta takes what its code takes; everything else is sent as it is."""
        if self.compression is None:
            return super().bytes_up(message)
        vectors = message["delta"].shape[:-1].numel()
        rest = bytes_of(value for name, value in message.items() if name != "delta")
        return vectors * -(-self.compression.bits(message["delta"]) // 8) + rest


class Penalised:
    """`Work` on the penalised objective: every loss and gradient, the probes' too, carries the penalty's.

    Args:
        inner: the work on the clients' own losses.
        start: the server's point, `[..., d]`.
        penalty: what is added.
    """

    def __init__(self, inner: Work, start: Tensor, penalty: Penalty) -> None:
        self._inner, self._start, self._penalty = inner, start, penalty
        self.steps, self.iteration = inner.steps, inner.iteration
        self.client, self.fraction = inner.client, inner.fraction

    def loss_and_gradient(self, x: Tensor, step: int) -> LossAndGradient:
        """Loss and gradient of a training step, penalty included."""
        return self._add(x, *self._inner.loss_and_gradient(x, step))

    def probe(self, x: Tensor, step: int) -> LossAndGradient:
        """Loss and gradient of an extra evaluation, penalty included."""
        return self._add(x, *self._inner.probe(x, step))

    def _add(self, x: Tensor, loss: Tensor, gradient: Tensor) -> LossAndGradient:
        value, slope = self._penalty(x, self._start)
        return loss + value.to(loss.dtype), gradient + slope
