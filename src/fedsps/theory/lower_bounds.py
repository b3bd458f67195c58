"""Whether an algorithm's l* is a lower bound: what the losses of the clients' batches come down to."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from fedsps.theory.curvature import Linear
from fedsps.theory.objective import Objective
from fedsps.theory.optimum import minimum

ROUNDING = 1e-9


class TooHigh(NamedTuple):
    """An l* that is no lower bound.

    Attributes:
        client: whose.
        lower: its l*.
        least: what the loss of one of its batches comes down to.
    """

    client: str
    lower: float
    least: float


def too_high(
    objective: Objective, model: Linear | None, x: Tensor, lower: Tensor, names: Sequence[str]
) -> TooHigh | None:
    """The first client whose l* is above what the loss of one of its batches comes down to; None if none is found.

    Of each client one batch is looked at, of the samples that x fits best: of linear models its infimum, of others its
    loss at x. Losses are taken to be at least 0, so an l* of at most 0 is one.

    Args:
        objective: all clients' losses.
        model: their linear form, if they have one.
        x: a point that fits the data, as x* does.
        lower: l* of each client, `[clients]`.
        names: of the clients.
    """
    if objective.network.buffers:  # with batch norm a sample has no loss of its own
        return None
    for client in (lower > 0).nonzero().flatten().tolist():
        batch = objective.best_batch(x, client)
        least = batch(x)[0].item() if model is None else minimum(batch, model).value
        bound = lower[client].item()
        if bound > least * (1 + ROUNDING) + ROUNDING:
            return TooHigh(names[client], bound, least)
    return None
