"""Random crops and flips of images, drawn from addresses like everything else.

A draw belongs to (seed, round, client, step, place in the batch). So both engines, Flower and a resumed run shift and
mirror a sample in the same way, whichever clients they visit before it.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedsps.core import streams
from fedsps.core.streams import Indices

PADDING = 4


def crop_and_flip(images: Tensor, seed: int, round: int, clients: Indices) -> Tensor:
    """Each image padded with zeros by `PADDING` pixels, cropped back to its size at a random place, and flipped or not.

    Of the `2 PADDING + 1` places in each direction all are equally likely, up to a bias of 1e-4; half of the images are
    mirrored left to right. The images that are given are not changed.

    Args:
        images: `[steps, clients, batch, channels, height, width]`.
        seed: of the run.
        round: 0, 1, ...
        clients: their numbers, `[clients]`.

    >>> images = torch.rand(2, 3, 4, 1, 8, 8)  # two steps of three clients with batches of four
    >>> moved = crop_and_flip(images, seed=0, round=0, clients=np.arange(3))
    >>> alone = crop_and_flip(images[:, 1:2], seed=0, round=0, clients=np.array([1]))
    >>> torch.equal(alone, moved[:, 1:2])
    True
    """
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
