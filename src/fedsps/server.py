"""Server rules: the mean of the clients' messages goes in, the next point comes out."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedsps.checks import positive
from fedsps.parts import Part, Trace
from fedsps.shapes import Tensors, scale


@dataclass(frozen=True)
class ServerRule(Part):
    """What every rule is. `report` runs on the client, `__call__` on the server.

    `delta = x_i - x` is what a client's local steps changed; the server sees only means over the cohort.
    """

    def report(self, delta: Tensor, trace: Trace) -> Tensors:
        """What a client sends: its change `[..., d]`, unless the rule needs something else."""
        return {"delta": delta}

    def __call__(self, state: Tensors, x: Tensor, mean: Tensors) -> tuple[Tensor, Tensors]:
        """Return the next point and the server's new state."""
        raise NotImplementedError


@dataclass(frozen=True)
class Average(ServerRule):
    """`x <- x + stepsize * mean_i(x_i - x)`; with a stepsize of 1 the plain mean of the clients' points."""

    stepsize: float = 1.0

    def __post_init__(self) -> None:
        positive("server_stepsize", self.stepsize)

    def __call__(self, state: Tensors, x: Tensor, mean: Tensors) -> tuple[Tensor, Tensors]:
        """Move by the mean change."""
        return x + self.stepsize * mean["delta"], state


@dataclass(frozen=True)
class Normalized(ServerRule):
    """The paper's FedSPS-Normalized (its appendix, after Wang et al. 2021).

        x <- ( mean_i x_i / nu_i ) / ( mean_i 1 / nu_i ),    nu_i = the sum of client i's local stepsizes

    written with the changes `x_i - x`, which is the same. Clients with `nu_i = 0` did not move and are left out; if
    all are, x stays.

    Deviation: the paper's pseudo-code leaves the stepsize of the last local step out of nu_i, its text does not. We
    follow the text, so that tau = 1 is defined.
    """

    def report(self, delta: Tensor, trace: Trace) -> Tensors:
        """Return `delta_i / nu_i` and `1 / nu_i`, both 0 where `nu_i = 0`."""
        total = trace.stepsizes.sum(-1)
        inverse = torch.where(total > 0, 1 / total, 0.0)
        return {"normalized_delta": scale(inverse, delta), "inverse_stepsizes": inverse}

    def __call__(self, state: Tensors, x: Tensor, mean: Tensors) -> tuple[Tensor, Tensors]:
        """Undo the mean normalisation."""
        inverse = mean["inverse_stepsizes"]
        return x + scale(torch.where(inverse > 0, 1 / inverse, 0.0), mean["normalized_delta"]), state
