"""Compression of the clients' changes with error feedback (FedCAMS, Wang et al. 2022; CD-Adam).

p = delta_i + e_i;   send C(p);   e_i <- p - C(p)          e_i is the client's own and starts at 0
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsps.errors import ConfigurationError
from fedsps.shapes import Tensors


@dataclass(frozen=True)
class Compression:
    """What every compressor is: a function C of one vector, and the bits that its code takes."""

    def client_init(self, x: Tensor) -> Tensors:
        """What a client has not sent yet."""
        return {"unsent": torch.zeros_like(x)}

    def __call__(self, state: Tensors, delta: Tensor) -> tuple[Tensor, Tensors]:
        """What is sent, and the state with what is left over."""
        wanted = delta + state["unsent"]
        sent = self.compress(wanted)
        return sent, state | {"unsent": wanted - sent}

    def compress(self, v: Tensor) -> Tensor:
        """`C(v)`, `[..., d] -> [..., d]`."""
        raise NotImplementedError

    def bits(self, v: Tensor) -> int:
        """The size of the code of one vector of this length and dtype."""
        raise NotImplementedError


@dataclass(frozen=True)
class TopK(Compression):
    """Keep the `share * d` entries of largest magnitude (at least one), as values and positions."""

    share: float = 0.01

    def __post_init__(self) -> None:
        if isinstance(self.share, bool) or not isinstance(self.share, int | float) or not 0 < self.share <= 1:
            raise ConfigurationError(f"share must be above 0 and at most 1; got {self.share!r}")

    def kept(self, d: int) -> int:
        """How many entries stay."""
        return max(1, math.ceil(self.share * d - 1e-9))  # 0.07 * 100 is a little more than 7

    def compress(self, v: Tensor) -> Tensor:
        """All other entries become 0."""
        places = v.abs().topk(self.kept(v.shape[-1]), dim=-1).indices
        return torch.zeros_like(v).scatter(-1, places, v.gather(-1, places))

    def bits(self, v: Tensor) -> int:
        """A value and a position for each entry that stays."""
        d = v.shape[-1]
        return self.kept(d) * (8 * v.element_size() + max(1, math.ceil(math.log2(d))))


@dataclass(frozen=True)
class ScaledSign(Compression):
    """`C(v) = (||v||_1 / d) sign(v)`: one bit an entry, and the scale; a zero entry counts as positive."""

    def compress(self, v: Tensor) -> Tensor:
        """The sign of each entry at the mean magnitude."""
        size = v.abs().mean(-1, keepdim=True)
        return torch.where(v < 0, -size, size)

    def bits(self, v: Tensor) -> int:
        """One bit an entry and one number."""
        return v.shape[-1] + 8 * v.element_size()
