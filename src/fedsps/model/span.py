"""Linear models in the span of a round's samples: many settings at the price of a few matrix products.

A linear model's gradient on a batch is `slope X`: a combination of the batch's samples. So all points that a client
visits in a round are the server's point plus combinations of the samples of its tau batches, and

    z_t = W_0 X_t^T + sum_{j<t} A_j (X_j X_t^T),      ||slope X||^2 = <slope (X X^T), slope>

need the Gram matrices `X_j X_t^T [B, B]` of the round's samples, which all settings of a sweep share, and never the
points' own coordinates. Those are made once a round, for the mean over clients. (A bias is a feature that is 1.)
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedsps.core.vectors import Implicit
from fedsps.model.logistic import losses_and_slope


@dataclass
class RoundSamples:
    """The samples of one round, shared by all settings, and the points of the server.

    The clients are those of one seed, or of several one after another, as many of each.

    Attributes:
        features: `[tau, clients, B, p + 1]`, the last one being 1.
        targets: `[tau, clients, B]`.
        weight: each setting's point on the server for each seed, `[settings, seeds, K, p + 1]`.
    """

    features: Tensor
    targets: Tensor
    weight: Tensor
    _logits: Tensor | None = field(default=None, init=False)
    _grams: dict[tuple[int, int], Tensor] = field(default_factory=dict, init=False)

    @classmethod
    def of(cls, x: Tensor, outputs: int, inputs: Tensor, targets: Tensor) -> "RoundSamples":
        """From the server's points `x [settings, seeds, d]` and batches `[tau, clients, B, *]`."""
        features = inputs.flatten(3)
        ones = features.new_ones(*features.shape[:-1], 1)
        width = features.shape[-1]
        weight, bias = x.split([outputs * width, outputs], dim=-1)
        return cls(
            torch.cat([features, ones], -1),
            targets,
            torch.cat([weight.unflatten(-1, (outputs, width)), bias[..., None]], -1),
        )

    def start(self) -> "Span":
        """The server's points, once for each client."""
        return Span(self, is_point=True)

    def logits(self, step: int) -> Tensor:
        """Of the server's points on batch `step`, `[clients, settings, K, B]`; one product for all steps."""
        if self._logits is None:
            tau, clients, batch, width = self.features.shape
            settings, seeds, outputs, _ = self.weight.shape
            weight = self.weight.transpose(0, 1).reshape(seeds, settings * outputs, width)
            samples = self.features.unflatten(1, (seeds, -1)).transpose(0, 1).reshape(seeds, -1, width)
            product = weight @ samples.transpose(1, 2)
            product = product.reshape(seeds, settings, outputs, tau, clients // seeds, batch)
            self._logits = product.permute(3, 0, 4, 1, 2, 5).flatten(1, 2)
        return self._logits[step]

    def gram(self, first: int, second: int) -> Tensor:
        """`X_first X_second^T`, `[clients, B, B]`."""
        if (first, second) not in self._grams:
            self._grams[first, second] = torch.bmm(self.features[first], self.features[second].transpose(1, 2))
        return self._grams[first, second]

    def loss_and_gradient(self, y: "Span", step: int) -> tuple[Tensor, "Span"]:
        """Loss `[settings, clients]` and gradient of batch `step` at y."""
        logits = self.logits(step)
        for other, part in y.parts.items():
            logits = logits + _apply(part, self.gram(other, step))
        losses, slope = losses_and_slope(logits, self.targets[step].unsqueeze(1).expand(*logits.shape[:2], -1))
        return losses.T, Span(self, {step: slope})


def _apply(part: Tensor, gram: Tensor) -> Tensor:
    """Coefficients `[clients, settings, K, B]` times a client's matrix `[clients, B, B]`."""
    return torch.bmm(part.flatten(1, 2), gram).reshape(part.shape)


class Span(Implicit):
    """A combination of a round's samples, added to the server's point or not: `[settings, clients]` vectors.

    Args:
        samples: of the round.
        parts: coefficients by batch, each `[clients, settings, K, B]`.
        is_point: whether the server's point is in it.
    """

    def __init__(self, samples: RoundSamples, parts: dict[int, Tensor] | None = None, is_point: bool = False) -> None:
        self.samples, self.parts, self.is_point = samples, parts or {}, is_point

    @property
    def shape(self) -> torch.Size:
        """`[settings, clients, d]`, as a tensor would have it."""
        settings, _, outputs, width = self.samples.weight.shape
        return torch.Size((settings, self.samples.features.shape[1], outputs * width))

    @property
    def dtype(self) -> torch.dtype:
        """The samples' dtype, and the model's."""
        return self.samples.features.dtype

    @property
    def device(self) -> torch.device:
        """The device that the samples are on."""
        return self.samples.features.device

    def numel(self) -> int:
        """As many numbers as a tensor would have."""
        return self.shape.numel()

    def element_size(self) -> int:
        """The bytes of one number."""
        return self.samples.features.element_size()

    def __sub__(self, other: "Span") -> "Span":
        parts = dict(self.parts)
        for step, part in other.parts.items():
            parts[step] = parts[step] - part if step in parts else -part
        return Span(self.samples, parts, self.is_point and not other.is_point)

    def times(self, factor: Tensor) -> "Span":
        """Each vector times its own scalar, `[settings, clients]`."""
        column = factor.T[..., None, None]
        return Span(self.samples, {step: (column * part).to(part.dtype) for step, part in self.parts.items()})

    def norm_sq(self) -> Tensor:
        """`sum_ij <A_i (X_i X_j^T), A_j>`, `[settings, clients]`; rounding may not make it negative."""
        assert not self.is_point, "the norm of a point is not known in the span"
        total = self.samples.features.new_zeros(*self.shape[:-1])
        for first, left in self.parts.items():
            for second, right in self.parts.items():
                if first <= second:
                    product = (_apply(left, self.samples.gram(first, second)) * right).sum((-2, -1)).T
                    total = total + (product if first == second else 2 * product)
        return total.clamp(min=0)

    def mean(self, weights: Tensor) -> Tensor:
        """The sum over each seed's clients, weighted by `[seeds, clients]`, by its coordinates: `[settings, seeds, d]`.

        It is one product for all batches.
        """
        assert not self.is_point, "the mean of points is that of their changes, and the server's point"
        settings, seeds, outputs, width = self.samples.weight.shape
        if not self.parts:
            return self.samples.features.new_zeros(settings, seeds, outputs * width)
        column = weights.to(self.device, self.dtype).flatten()[:, None, None, None]
        steps = sorted(self.parts)
        left = torch.stack([column * self.parts[step] for step in steps])  # [steps, clients, settings, K, B]
        left = left.unflatten(1, (seeds, -1)).permute(1, 3, 4, 0, 2, 5).reshape(seeds, settings * outputs, -1)
        samples = torch.stack([self.samples.features[step] for step in steps])
        samples = samples.unflatten(1, (seeds, -1)).transpose(0, 1).reshape(seeds, -1, width)
        product = (left @ samples).reshape(seeds, settings, outputs, width).transpose(0, 1)
        return torch.cat([product[..., :-1].flatten(-2), product[..., -1]], -1)
