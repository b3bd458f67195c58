"""Losses by name, so that whoever trains, evaluates or analyses takes them alike."""

from typing import cast

import torch.nn.functional as F
from torch import nn

from fedsps.checks import choice
from fedsps.errors import ConfigurationError
from fedsps.model.network import Loss

LOSSES: dict[str, Loss] = {
    "cross-entropy": F.cross_entropy,
    "binary": F.binary_cross_entropy_with_logits,
    "squared": F.mse_loss,
}


def chosen_loss(loss: Loss | str) -> Loss:
    """A loss by its name, a class made into one, anything else as it is.

    Raises:
        ConfigurationError: the name is unknown, or it cannot be called.

    >>> chosen_loss("squared") is F.mse_loss, chosen_loss(nn.CrossEntropyLoss)
    (True, CrossEntropyLoss())
    """
    if isinstance(loss, str):
        choice("loss", loss, LOSSES)
        return LOSSES[loss]
    if isinstance(loss, type) and issubclass(loss, nn.Module):
        made: Loss = loss()
        return made
    if not callable(loss):
        raise ConfigurationError(
            f"loss must be a function of outputs and targets, or one of {', '.join(LOSSES)}; got {loss!r}"
        )
    return cast(Loss, loss)
