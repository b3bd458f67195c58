"""Addressed randomness: every draw is a function of (seed, purpose, round, client, ...), never of a generator's past.

An address is hashed to a 64-bit key; draw k under a key is output k of the SplitMix64 sequence that starts there
(Steele, Lea, Flood 2014: `mix(key + (k + 1) * golden)`). So engines that visit clients in another order, several
processes, and a resumed run all see the same cohorts and the same batches.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import numpy as np
import numpy.typing as npt
import torch

Keys = npt.NDArray[np.uint64]
Indices = npt.NDArray[np.int64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MASK = (1 << 64) - 1
FEW = 32  # rows: up to so many are faster one by one than all at once


def _mix(z: Keys) -> Keys:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@cache
def _purpose(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def keys(seed: int, purpose: str, *coordinates: int | npt.ArrayLike) -> Keys:
    """The 64-bit key of an address; array coordinates broadcast, so one call gives many keys."""
    key = np.array(seed & _MASK, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for coordinate in (_purpose(purpose), *coordinates):
            key = _mix(key + _GOLDEN * (np.asarray(coordinate, dtype=np.uint64) + np.uint64(1)))
    return key


def draws(key: Keys, count: int) -> Keys:
    """`count` 64-bit draws under each key: `[...] -> [..., count]`."""
    with np.errstate(over="ignore"):
        return _mix(key[..., None] + _GOLDEN * np.arange(1, count + 1, dtype=np.uint64))


def cohort(seed: int, round: int, clients: int, size: int) -> Indices:
    """The active clients of a round, ascending: `size` of `clients` uniformly without replacement."""
    if size >= clients:
        return np.arange(clients)
    order = np.argsort(draws(keys(seed, "cohort", round), clients), kind="stable")
    return np.sort(order[:size])


def batches(seed: int, round: int, clients: Indices, sizes: Indices, steps: int, batch: int) -> Indices:
    """Sample numbers `[steps, clients, batch]`: at each step `batch` distinct samples out of each client's `sizes`.

    Floyd's sampling (for j = m - B .. m - 1: draw t <= j; take t, or j if t is already taken) makes every subset
    equally likely. It is written for all clients and steps at once; only rows with a repeated draw need its loop, a few
    of them one by one.
    """
    if (sizes == batch).all():
        return np.broadcast_to(np.arange(batch), (steps, len(clients), batch))
    last = (sizes - batch)[:, None] + np.arange(batch)  # [clients, batch]
    high = draws(keys(seed, "batch", round, clients, np.arange(steps)[:, None]), batch) >> np.uint64(32)
    rows = ((high * (last + 1).astype(np.uint64)) >> np.uint64(32)).astype(np.int64)
    ordered = np.sort(rows, axis=-1)
    step, client = np.nonzero((ordered[..., 1:] == ordered[..., :-1]).any(-1))
    if len(step) <= FEW:
        for place in zip(step, client, strict=True):
            rows[place] = _floyd(rows[place].tolist(), last[place[1]].tolist())
        return rows
    repeated, last = rows[step, client], last[client]
    for j in range(1, batch):
        taken = (repeated[:, :j] == repeated[:, j, None]).any(-1)
        repeated[taken, j] = last[taken, j]
    rows[step, client] = repeated
    return rows


def _floyd(draws: list[int], last: list[int]) -> list[int]:
    taken: dict[int, None] = {}
    for draw, most in zip(draws, last, strict=True):
        taken[most if draw in taken else draw] = None
    return list(taken)


def generator(seed: int, purpose: str, *coordinates: int) -> np.random.Generator:
    """A NumPy generator for one-off work (splits, partitions), seeded by its address."""
    return np.random.Generator(np.random.Philox(key=int(keys(seed, purpose, *coordinates))))


def generator_state(device: torch.device) -> torch.Tensor:
    """The state of torch's global generator of a device: it moves where something is drawn at random."""
    if device.type == "cuda":
        return torch.cuda.get_rng_state(device)
    return torch.mps.get_rng_state() if device.type == "mps" else torch.default_generator.get_state()


@contextmanager
def torch_seed(seed: int, purpose: str, *coordinates: int) -> Iterator[None]:
    """Torch's global generators seeded by an address inside the block; the CPU's is as it was after it.

    For what only knows the global generator: a module's initialisation, dropout.
    """
    key = int(keys(seed, purpose, *coordinates) >> np.uint64(1))
    before = torch.default_generator.get_state()
    torch.default_generator.manual_seed(key)  # torch.manual_seed takes 20 times longer where CUDA is not in use
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(key)
    torch.mps.manual_seed(key)  # does nothing where there is none
    try:
        yield
    finally:
        torch.default_generator.set_state(before)
