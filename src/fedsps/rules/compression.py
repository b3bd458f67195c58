"""Compressors of the clients' changes; the error feedback around them is in `Compression`."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedsps.core.kinds import Compression
from fedsps.errors import ConfigurationError

__all__ = ["ScaledSign", "TopK"]


@dataclass(frozen=True)
class TopK(Compression):
    """Keep the `share * d` entries of largest magnitude (at least one), as values and positions.

    Args:
        share: of the entries that stay, above 0 and at most 1.

    >>> TopK(share=0.5).compress(torch.tensor([1.0, -4.0, 3.0, 0.5]))
    tensor([ 0., -4.,  3.,  0.])
    """

    word: ClassVar[str] = "topk"
    share: float = 0.01

    def __post_init__(self) -> None:
        if isinstance(self.share, bool) or not isinstance(self.share, int | float) or not 0 < self.share <= 1:
            raise ConfigurationError(f"share must be above 0 and at most 1; got {self.share!r}")

    def kept(self, d: int) -> int:
        """How many of d entries stay."""
        return max(1, math.ceil(self.share * d - 1e-9))  # 0.07 * 100 is a little more than 7

    def compress(self, v: Tensor) -> Tensor:
        """`C(v)`: all other entries become 0."""
        places = v.abs().topk(self.kept(v.shape[-1]), dim=-1).indices
        return torch.zeros_like(v).scatter(-1, places, v.gather(-1, places))

    def bits(self, v: Tensor) -> int:
        """A value and a position for each entry that stays."""
        d = v.shape[-1]
        return self.kept(d) * (8 * v.element_size() + max(1, math.ceil(math.log2(d))))


@dataclass(frozen=True)
class ScaledSign(Compression):
    """`C(v) = (||v||_1 / d) sign(v)`: one bit an entry, and the scale; a zero entry counts as positive.

    >>> ScaledSign().compress(torch.tensor([1.0, -5.0, 0.0]))
    tensor([ 2., -2.,  2.])
    """

    in_sweep: ClassVar[bool] = True
    word: ClassVar[str] = "sign"

    def compress(self, v: Tensor) -> Tensor:
        """`C(v)`: the sign of each entry at the mean magnitude."""
        size = v.abs().mean(-1, keepdim=True)
        return torch.where(v < 0, -size, size)

    def bits(self, v: Tensor) -> int:
        """One bit an entry and one number."""
        return v.shape[-1] + 8 * v.element_size()
