"""The paper's models. Images are `[B, channels, height, width]`; logits come out."""

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedsps.checks import choice, count


class LogisticRegression(nn.Module):
    """`z = W x + b`, starting at zero; the input is flattened.

    With `classes` > 2 softmax regression: logits `[B, classes]`, for the cross-entropy. With two classes one logit a
    sample, `[B]`, for the binary cross-entropy on logits.

    Args:
        features: the number of values of one sample.
        classes: how many there are, at least 2.

    >>> LogisticRegression(features=4, classes=3)(torch.ones(5, 2, 2)).shape
    torch.Size([5, 3])
    """

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        count("features", features)
        count("classes", classes, least=2)
        self.weight = nn.Parameter(torch.zeros(1 if classes == 2 else classes, features))
        self.bias = nn.Parameter(torch.zeros(1 if classes == 2 else classes))

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits `[B, classes]`, or `[B]` for two classes, of inputs `[B, *]`."""
        logits = F.linear(inputs.flatten(1), self.weight, self.bias)
        return logits.squeeze(1) if len(self.bias) == 1 else logits


class LeNet(nn.Module):
    """LeNet-5 (LeCun et al. 1998) in its usual modern form, 61 706 parameters for 1 x 28 x 28 images and 10 classes.

    conv 5x5, 6 channels, padding 2 - max-pool 2 - ReLU
    conv 5x5, 16 channels           - max-pool 2 - ReLU
    linear 120 - ReLU - linear 84 - ReLU - linear classes

    Args:
        channels: of an image.
        side: its height and width, at least 12.
        classes: how many logits come out.

    References:
        LeCun, Bottou, Bengio, Haffner: Gradient-Based Learning Applied to Document Recognition, Proc. IEEE 86, 1998.

    >>> sum(parameter.numel() for parameter in LeNet().parameters())
    61706
    """

    channels_last = True  # see `Network`

    def __init__(self, channels: int = 1, side: int = 28, classes: int = 10) -> None:
        super().__init__()
        flat = 16 * ((side // 2 - 4) // 2) ** 2
        self.convolutions = nn.Sequential(
            nn.Conv2d(channels, 6, 5, padding=2),
            _Halved(2),
            nn.ReLU(),  # of a maximum it is the maximum of ReLUs, bit by bit, on a quarter of the numbers
            nn.Conv2d(6, 16, 5),
            _Halved(2),
            nn.ReLU(),
        )
        self.classifier = nn.Sequential(
            nn.Linear(flat, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, classes)
        )

    def forward(self, images: Tensor) -> Tensor:
        """Logits `[B, classes]` of images `[B, channels, side, side]`."""
        logits: Tensor = self.classifier(self.convolutions(images).flatten(1))
        return logits


class _Halved(nn.MaxPool2d):
    """Max-pooling of 2 x 2 squares; where no gradient is wanted, as maxima of rows and columns.

    The same bits: a maximum rounds nothing. Pooling was a third of LeNet's evaluations, and is an eighth of that so.
    """

    def forward(self, images: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            pooled: Tensor = super().forward(images)
            return pooled
        rows = torch.maximum(images[..., :-1:2, :], images[..., 1::2, :])
        return torch.maximum(rows[..., :-1:2], rows[..., 1::2])


Norm = Literal["batch", "group"]


class ResNet18(nn.Module):
    """ResNet-18 (He et al. 2016) in its CIFAR form: a 3x3 first convolution, no first pooling.

    Four stages of two blocks at `width`, 2, 4 and 8 times `width` channels: 11 173 962 parameters at width 64 and 10
    classes. `norm="batch"` is what the code that the paper builds on uses; `"group"` has no running statistics, the
    usual choice for non-i.i.d. clients.

    Args:
        channels: of an image.
        classes: how many logits come out.
        width: channels of the first stage; a small one makes a small model for trials.
        norm: "batch", or "group" with 8 groups (fewer where 8 does not divide the channels).

    References:
        He, Zhang, Ren, Sun: Deep Residual Learning for Image Recognition, CVPR 2016.

    >>> ResNet18(width=4, norm="group")(torch.zeros(2, 3, 16, 16)).shape
    torch.Size([2, 10])
    """

    def __init__(self, channels: int = 3, classes: int = 10, width: int = 64, norm: Norm = "batch") -> None:
        super().__init__()
        choice("norm", norm, get_args(Norm))
        count("width", width)
        # see `Network`; torch 2.13 writes past its memory in a strided 1x1 convolution of fewer than 8 such channels
        self.channels_last = width >= 8
        self.stem = nn.Sequential(
            nn.Conv2d(channels, width, 3, padding=1, bias=False), _normalisation(norm, width), nn.ReLU()
        )
        blocks: list[nn.Module] = []
        before = width
        for stage in range(4):
            after = width * 2**stage
            blocks += [_Block(before, after, 1 if stage == 0 else 2, norm), _Block(after, after, 1, norm)]
            before = after
        self.blocks = nn.Sequential(*blocks)
        self.classifier = nn.Linear(before, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits `[B, classes]` of images `[B, channels, height, width]` of any size."""
        logits: Tensor = self.classifier(self.blocks(self.stem(images)).mean((-2, -1)))
        return logits


class _Block(nn.Module):
    """Two 3x3 convolutions and a shortcut: `relu(residual(u) + shortcut(u))`.

    The shortcut is the identity, or a 1x1 convolution where the stride or the number of channels changes.
    """

    def __init__(self, before: int, after: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, padding=1, bias=False),
            _normalisation(norm, after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, padding=1, bias=False),
            _normalisation(norm, after),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), _normalisation(norm, after))

    def forward(self, images: Tensor) -> Tensor:
        return F.relu(self.residual(images) + self.shortcut(images))


def _normalisation(norm: Norm, channels: int) -> nn.Module:
    """Batch norm, or group norm with the largest of 8, 4, 2 and 1 groups that divides the channels."""
    if norm == "batch":
        return nn.BatchNorm2d(channels)
    groups = next(groups for groups in (8, 4, 2, 1) if channels % groups == 0)
    return nn.GroupNorm(groups, channels)
