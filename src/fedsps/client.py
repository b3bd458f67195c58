"""The exchange that every round ends with: tau local steps on each client, then one step of the server."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedsps.compression import Compression
from fedsps.direction import Direction
from fedsps.parts import Exchange, LossAndGradient, Part, Trace, Work, bytes_of, look
from fedsps.server import ServerRule
from fedsps.shapes import Tensors, norm_sq, scalars, scale
from fedsps.stepsize import StepsizeRule


@dataclass(frozen=True)
class Train(Exchange):
    """Each client goes from the server's x by its own stepsizes and directions, and reports where that led.

        for k = 0 .. tau - 1:   y <- y - gamma d,   gamma by the stepsize rule, d by the direction rule
        delta = y - x

    With `proximal` mu > 0 the clients minimise `F_i(y) + mu/2 ||y - x||^2` instead of `F_i(y)`.
    """

    stepsize: StepsizeRule
    direction: Direction
    server: ServerRule
    compression: Compression | None
    proximal: float
    action: ClassVar[str] = "train"

    @property
    def parts(self) -> tuple[Part, ...]:
        """In the order in which they conclude and absorb."""
        return (self.stepsize, self.direction, self.server)

    def broadcast(self, state: Tensors) -> Tensors:
        """What the parts receive."""
        return {name: state[name] for part in self.parts for name in part.receives}

    def work(self, state: Tensors, x: Tensor, received: Tensors, work: Work) -> tuple[Tensors, Tensors, Trace]:
        """The local steps; `x [..., d]` is the server's point, once for each client."""
        persistent = state.keys()
        if self.proximal > 0:
            work = Proximal(work, x, self.proximal)
        for part in self.parts:
            state = part.begin(state, x)
        y, losses, stepsizes = x, [], []
        for step in range(work.steps):
            seen = look(work, work.loss_and_gradient, y, x, step, received)
            direction, state = self.direction(state, seen)
            gamma, state = self.stepsize(state, seen)
            y = y - scale(gamma, direction)
            losses.append(seen.loss)
            stepsizes.append(gamma)
        gap = state.get("gap", scalars(x, torch.inf))
        trace = Trace(torch.stack(losses, -1), torch.stack(stepsizes, -1), gap)
        delta = y - x
        message: Tensors = {}
        for part in self.parts:
            extra, state = part.conclude(state, seen, delta)
            message |= extra
        if self.compression is not None:
            delta, state = self.compression(state, delta)
        message |= self.server.report(delta, trace)
        return message, {name: state[name] for name in persistent}, trace

    def finish(self, state: Tensors, x: Tensor, mean: Tensors, participation: float) -> tuple[Tensor, Tensors]:
        """Each part absorbs the mean, then the server rule moves x."""
        for part in self.parts:
            state = part.absorb(state, mean, participation)
        return self.server(state, x, mean)

    def bytes_up(self, message: Tensors) -> int:
        """A compressed delta takes what its code takes."""
        if self.compression is None:
            return super().bytes_up(message)
        vectors = message["delta"].shape[:-1].numel()
        rest = bytes_of(*(value for name, value in message.items() if name != "delta"))
        return vectors * -(-self.compression.bits(message["delta"]) // 8) + rest


@dataclass(frozen=True)
class Proximal:
    """`Work` on the regularised objective: every loss and gradient, the probes' too, carries `mu/2 ||x - start||^2`."""

    inner: Work
    start: Tensor
    mu: float

    @property
    def steps(self) -> int:
        """The inner one's."""
        return self.inner.steps

    @property
    def iteration(self) -> int:
        """The inner one's."""
        return self.inner.iteration

    @property
    def client(self) -> Tensor:
        """The inner one's."""
        return self.inner.client

    @property
    def fraction(self) -> Tensor:
        """The inner one's."""
        return self.inner.fraction

    def loss_and_gradient(self, x: Tensor, step: int) -> LossAndGradient:
        """The regularised ones."""
        return self._pull(x, *self.inner.loss_and_gradient(x, step))

    def probe(self, x: Tensor, step: int) -> LossAndGradient:
        """The regularised ones."""
        return self._pull(x, *self.inner.probe(x, step))

    def _pull(self, x: Tensor, loss: Tensor, gradient: Tensor) -> LossAndGradient:
        away = x - self.start
        return loss + (self.mu / 2 * norm_sq(away)).to(loss.dtype), gradient + self.mu * away
