"""A client's work in a training exchange: tau local steps under the algorithm's rules, with their trace."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedsps.direction import Direction
from fedsps.parts import Exchange, Part, Trace, Work, look
from fedsps.server import ServerRule
from fedsps.shapes import Tensors, scalars, scale
from fedsps.stepsize import StepsizeRule


@dataclass(frozen=True)
class Train(Exchange):
    """The exchange that every round ends with: each client takes tau local steps from x, then the server moves.

    for k = 0 .. tau - 1:   y <- y - gamma d,   (gamma, d) by the stepsize and the direction rule
    report delta = y - x
    """

    stepsize: StepsizeRule
    direction: Direction
    server: ServerRule
    action: ClassVar[str] = "train"

    @property
    def parts(self) -> tuple[Part, ...]:
        """In the order in which they absorb; the server rule moves x last."""
        return (self.stepsize, self.direction, self.server)

    def broadcast(self, state: Tensors) -> Tensors:
        """What the parts receive."""
        return {name: state[name] for part in self.parts for name in part.receives}

    def work(self, state: Tensors, x: Tensor, received: Tensors, work: Work) -> tuple[Tensors, Tensors, Trace]:
        """The local steps; `x [..., d]` is the server's point, once for each client."""
        persistent = state.keys()
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
        message = self.server.report(y - x, trace)
        for part in self.parts:
            message |= part.message(state, seen)
        return message, {name: state[name] for name in persistent}, trace

    def finish(self, state: Tensors, x: Tensor, mean: Tensors) -> tuple[Tensor, Tensors]:
        """Each part absorbs the mean, then the server rule moves x."""
        for part in self.parts:
            state = part.absorb(state, x, mean)
        return self.server(state, x, mean)
