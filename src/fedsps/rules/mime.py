"""The directions of MIME and MimeLite, in their form for SGD with momentum; they ask for an exchange of their own."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedsps.checks import fraction
from fedsps.core.contract import Exchange, Seen, Trace, Work
from fedsps.core.kinds import Direction
from fedsps.core.vectors import Tensors, along

__all__ = ["FullGradient", "Mimicry", "SharedMomentum"]


@dataclass(frozen=True)
class FullGradient(Exchange):
    """Before training: each client's gradient over all its data at the server's point; their mean is the server's c."""

    action: ClassVar[str] = "full gradient"
    whole_data: ClassVar[bool] = True

    def work(self, state: Tensors, x: Tensor, received: Tensors, work: Work) -> tuple[Tensors, Tensors, Trace | None]:
        """Send one gradient; nothing else changes."""
        _, gradient = work.probe(x, 0)
        return {"full_gradient": gradient}, state, None

    def finish(self, state: Tensors, x: Tensor, mean: Tensors, participation: float) -> tuple[Tensor, Tensors]:
        """Keep the mean gradient; x stays."""
        return x, state | {"full_gradient": mean["full_gradient"]}


@dataclass(frozen=True)
class SharedMomentum(Direction):
    """MimeLite's direction: the local gradient under the server's momentum s, fixed during the local steps.

        d = (1 - b) grad F_i(y; batch) + b s
        s <- (1 - b) c + b s      on the server after the round, c the mean full gradient at x, s = 0 at the start

    Args:
        momentum: b.

    References:
        Karimireddy, Jaggi, Kale, Mohri, Reddi, Stich, Suresh: Breaking the Centralized Barrier for Cross-Device
        Federated Learning, NeurIPS 2021.
    """

    in_sweep: ClassVar[bool] = True
    word: ClassVar[str] = "mimelite"
    momentum: float = 0.9
    receives: ClassVar[tuple[str, ...]] = ("server_momentum",)
    sends: ClassVar[tuple[str, ...]] = ("full_gradient",)  # in an exchange of its own
    method: ClassVar[str] = "MimeLite"

    def __post_init__(self) -> None:
        fraction("momentum", self.momentum)

    def server_init(self, x: Tensor) -> Tensors:
        """The mean full gradient c and the momentum s, both 0."""
        return {"full_gradient": torch.zeros_like(x), "server_momentum": torch.zeros_like(x)}

    def before(self, round: int) -> tuple[Exchange, ...]:
        """Ask for the full gradients in every round."""
        return (FullGradient(),)

    def __call__(self, state: Tensors, seen: Seen) -> tuple[Tensor, Tensors]:
        """Return the local gradient under the server's momentum."""
        return self.pulled(seen.gradient, seen), state

    def pulled(self, d: Tensor, seen: Seen) -> Tensor:
        """`(1 - b) d + b s`."""
        b = along(self.momentum)
        return (1 - b) * d + b * seen.received["server_momentum"]

    def absorb(self, state: Tensors, mean: Tensors, participation: float) -> Tensors:
        """Move the momentum by the mean of the full gradients."""
        b = along(self.momentum)
        return state | {"server_momentum": (1 - b) * state["full_gradient"] + b * state["server_momentum"]}


@dataclass(frozen=True)
class Mimicry(SharedMomentum):
    """MIME's direction: the server's momentum s, and a gradient with its variance corrected.

        (1 - b) d + b s,    d = grad F_i(y) - grad F_i(x) + c

    Both gradients are of the current batch; x is the server's point, c the mean full gradient there.

    Args:
        momentum: b.
    """

    in_sweep: ClassVar[bool] = True
    word: ClassVar[str] = "mime"
    receives: ClassVar[tuple[str, ...]] = ("full_gradient", "server_momentum")
    method: ClassVar[str] = "MIME"

    def __call__(self, state: Tensors, seen: Seen) -> tuple[Tensor, Tensors]:
        """Return the direction of a local step that mimics one of the server."""
        _, at_start = seen.probe(seen.start)
        return self.pulled(seen.gradient - at_start + seen.received["full_gradient"], seen), state
