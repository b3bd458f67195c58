"""Random crops and flips of images, drawn from addresses like everything else."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedsps.core import streams
from fedsps.core.streams import Indices

PADDING = 4


def crop_and_flip(images: Tensor, seed: int, round: int, clients: Indices) -> Tensor:
    """Each image of `[steps, clients, batch, channels, height, width]`, padded by 4, cropped back, flipped or not."""
    steps, _, batch, _, height, width = images.shape
    keys = streams.keys(seed, "augment", round, clients, np.arange(steps)[:, None])
    draw = streams.draws(keys, 3 * batch).reshape(-1, 3).astype(np.int64) & 0xFFFF  # [images, 3]
    down, right = (torch.from_numpy(draw[:, axis] % (2 * PADDING + 1)).to(images.device) for axis in (0, 1))
    flip = torch.from_numpy(draw[:, 2] % 2 == 1).to(images.device)
    flat = F.pad(images.flatten(0, 2), (PADDING,) * 4)
    column = torch.arange(width, device=images.device)
    rows = down[:, None] + torch.arange(height, device=images.device)
    columns = right[:, None] + torch.where(flip[:, None], column.flip(0), column)
    number = torch.arange(len(flat), device=images.device)
    cropped = flat[number[:, None, None], :, rows[:, :, None], columns[:, None, :]]  # [images, height, width, channels]
    return cropped.permute(0, 3, 1, 2).contiguous().reshape(images.shape)
