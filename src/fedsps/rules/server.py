"""Server rules that treat all coordinates alike: momentum, extrapolation, normalised changes."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedsps.checks import fraction, positive
from fedsps.core.contract import Ranges, Trace
from fedsps.core.kinds import OutputRule, ServerRule
from fedsps.core.vectors import Tensors, along, norm_sq, times
from fedsps.rules.output import MeanOfLastTwo

__all__ = ["Extrapolation", "Momentum", "Normalized"]


@dataclass(frozen=True)
class Momentum(ServerRule):
    """Heavy-ball momentum on the server: `m <- beta m + Delta;  x <- x + stepsize m`, with m = 0 at the start.

    Args:
        stepsize: the server's stepsize (eta).
        beta: how much of the momentum stays.

    References:
        Hsu, Qi, Brown: Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification,
        2019.
    """

    in_span: ClassVar[bool] = True
    in_sweep: ClassVar[bool] = True
    word: ClassVar[str] = "momentum"
    stepsize: float = 1.0
    beta: float = 0.9

    def __post_init__(self) -> None:
        positive("server_stepsize", self.stepsize)
        fraction("beta", self.beta)

    def server_init(self, x: Tensor) -> Tensors:
        """The momentum, 0 at the start."""
        return {"momentum": torch.zeros_like(x)}

    def __call__(self, state: Tensors, x: Tensor, mean: Tensors) -> tuple[Tensor, Tensors]:
        """Move by the momentum."""
        momentum = along(self.beta) * state["momentum"] + mean["delta"]
        return x + along(self.stepsize) * momentum, state | {"momentum": momentum}


@dataclass(frozen=True)
class Extrapolation(ServerRule):
    """FedExP's server: it extrapolates as far as the clients disagree.

        x <- x + eta Delta,    eta = max(1, mean_i ||x_i - x||^2 / (2 (||Delta||^2 + eps)))

    Its output is the mean of the last two iterates, since the iterates oscillate. Deviation: eps is a constant here;
    the authors' code lets it decay with the rounds.

    Args:
        eps: keeps eta finite where the mean change vanishes.

    References:
        Jhunjhunwala, Wang, Joshi: FedExP: Speeding Up Federated Averaging via Extrapolation, ICLR 2023.
    """

    in_span: ClassVar[bool] = True
    in_sweep: ClassVar[bool] = True
    word: ClassVar[str] = "fedexp"
    eps: float = 1e-3
    sends: ClassVar[tuple[str, ...]] = ("delta_norm_sq",)
    output: ClassVar[OutputRule] = MeanOfLastTwo()

    def __post_init__(self) -> None:
        positive("eps", self.eps)

    def report(self, delta: Tensor, trace: Trace) -> Tensors:
        """Send the change and its squared length."""
        return {"delta": delta, "delta_norm_sq": norm_sq(delta)}

    def ranges(self, norm: float) -> Ranges:
        """A squared length is at most that of the longest change."""
        return {"delta_norm_sq": (0.0, norm**2)}

    def __call__(self, state: Tensors, x: Tensor, mean: Tensors) -> tuple[Tensor, Tensors]:
        """Move by the extrapolated mean change."""
        eta = (mean["delta_norm_sq"] / (2 * (norm_sq(mean["delta"]) + self.eps))).clamp(min=1)
        return x + times(eta, mean["delta"]), state


@dataclass(frozen=True)
class Normalized(ServerRule):
    """The paper's FedSPS-Normalized (its appendix): changes in units of the stepsizes that made them.

        x <- ( mean_i x_i / nu_i ) / ( mean_i 1 / nu_i ),    nu_i = the sum of client i's local stepsizes

    written with the changes `x_i - x`, which is the same. Clients with `nu_i = 0` did not move and are left out; if
    all are, x stays. Deviation: the paper's pseudo-code leaves the stepsize of the last local step out of nu_i, its
    text does not. We follow the text, so that tau = 1 is defined.

    References:
        Wang, Xu, Garrett, Charles, Liu, Joshi: Local Adaptivity in Federated Learning: Convergence and Consistency,
        2021.
    """

    in_span: ClassVar[bool] = True
    in_sweep: ClassVar[bool] = True
    word: ClassVar[str] = "normalized"
    sends: ClassVar[tuple[str, ...]] = ("normalized_delta", "inverse_stepsizes")

    def report(self, delta: Tensor, trace: Trace) -> Tensors:
        """Send `delta_i / nu_i` and `1 / nu_i`, both 0 where `nu_i = 0`."""
        total = trace.stepsizes.sum(-1)
        inverse = torch.where(total > 0, 1 / total, 0.0)
        return {"normalized_delta": times(inverse, delta), "inverse_stepsizes": inverse}

    def __call__(self, state: Tensors, x: Tensor, mean: Tensors) -> tuple[Tensor, Tensors]:
        """Undo the mean normalisation."""
        inverse = mean["inverse_stepsizes"]
        return x + times(torch.where(inverse > 0, 1 / inverse, 0.0), mean["normalized_delta"]), state
