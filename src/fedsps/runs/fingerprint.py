"""What tells runs on a user's own model and data apart: a fingerprint of what they were given.

A task of the command line is named by its spec. A model, tensors and a loss from Python have no names, yet a report
must not take the mean over different ones.
"""

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from types import CodeType

import torch
from torch import Tensor, nn

from fedsps.data.clients import ClientData
from fedsps.model.network import Loss


def prints_of(model: nn.Module, given: Sequence[ClientData], loss: Loss) -> dict[str, str]:
    """What a result notes of them: the `fingerprint`, and the `start` of training, which seeds draw anew."""
    return {"fingerprint": fingerprint_of(model, given, loss), "start": digest_of(model.state_dict())}


def fingerprint_of(model: nn.Module, given: Sequence[ClientData], loss: Loss) -> str:
    """By which runs on another model, other data or another loss are told apart; the start of training is not in it."""
    shapes = [(name, tuple(one.shape), str(one.dtype)) for name, one in model.state_dict().items()]
    digest = hashlib.sha256(repr((str(model), shapes, _in_words(loss))).encode())
    for data in given:
        digest.update(data.digest)
    return digest.hexdigest()[:12]


def _in_words(loss: Loss) -> str:
    """What a loss is, in words that are the same in every process, so without the addresses of its `repr`.

    A function of one's own is known by its code, since two of them may be called `<lambda>`.

    >>> _in_words(nn.functional.cross_entropy)
    'torch.nn.functional.cross_entropy'
    >>> _in_words(nn.CrossEntropyLoss(label_smoothing=0.5)) == _in_words(nn.CrossEntropyLoss())
    False
    """
    if isinstance(loss, partial):
        return f"{_in_words(loss.func)} {loss.args} {loss.keywords}"
    if isinstance(loss, nn.Module):
        settings = {name: value for name, value in vars(loss).items() if isinstance(value, int | float | str)}
        return f"{type(loss).__qualname__} {settings} {digest_of(loss.state_dict())}"
    name = f"{getattr(loss, '__module__', '')}.{getattr(loss, '__qualname__', type(loss).__qualname__)}"
    code = getattr(loss, "__code__", None)
    if code is None or name.startswith("torch."):
        return name
    constants = [one for one in code.co_consts if not isinstance(one, CodeType)]
    return f"{name} {code.co_code.hex()} {constants} {code.co_names}"


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """Of their bytes, in short."""
    digest = hashlib.sha256()
    for name, tensor in tensors.items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:12]
