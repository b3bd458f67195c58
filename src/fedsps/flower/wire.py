"""Tensors to Flower's records and back. Arrays travel in NumPy's format, and nothing is ever unpickled.

A message holds records by name: `model`, `buffers`, `received` and `ask` on the way down, `message`, `buffers`, `trace`
and `facts` on the way up, `error` instead of them where a client failed. Where it is to evaluate before it trains,
`evaluate` goes down too (with `output` and `output_buffers`, if that is another model), and `scores` come back.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from fedsps.core.vectors import Tensors

MODEL = ("model", "buffers")  # the records that a model travels in
OUTPUT = ("output", "output_buffers")  # and one that is to be evaluated, beside the one to train from
LONGEST = 500  # characters of a text that a client wrote


def model(x: Tensor, buffers: Tensors, names: tuple[str, str] = MODEL) -> dict[str, ArrayRecord]:
    """A model as records: buffers may have any name, so they are kept apart."""
    return dict(zip(names, (arrays({"x": x}), arrays(buffers)), strict=True))


def arrays(tensors: Tensors) -> ArrayRecord:
    """Named tensors as a record, from any device."""
    return ArrayRecord({name: Array(value.detach().cpu().contiguous().numpy()) for name, value in tensors.items()})


def tensors(content: RecordDict, name: str, like: Tensor | None = None) -> Tensors:
    """The tensors of a record, on the device of `like`; empty if there is no such record.

    The arrays are copied: the tensors share no memory with the record.

    >>> content = RecordDict({"message": arrays({"delta": torch.tensor([1.0, 2.0])})})
    >>> tensors(content, "message"), tensors(content, "trace")
    ({'delta': tensor([1., 2.])}, {})
    """
    if name not in content.array_records:
        return {}
    sent = {key: torch.from_numpy(np.array(value.numpy())) for key, value in content.array_records[name].items()}
    return sent if like is None else {key: value.to(like.device) for key, value in sent.items()}


def facts(**plain: Any) -> ConfigRecord:
    """Plain values as a record: numbers, texts and truth values."""
    return ConfigRecord(plain)


def values(content: RecordDict, name: str) -> Mapping[str, Any]:
    """The plain values of a record; empty if there is no such record."""
    return dict(content.config_records[name]) if name in content.config_records else {}


def plain_text(text: object) -> str:
    r"""What a client wrote, as it may stand in a line of a log: short, and without control characters.

    It can neither begin a line of its own nor move a terminal's cursor.

    >>> plain_text("disk\nfinished: all is well\x1b[2J")
    'disk finished: all is well [2J'
    """
    return "".join(sign if sign.isprintable() else " " for sign in str(text)[:LONGEST])


def error(text: str) -> RecordDict:
    """What a client answers if it cannot do its share; the text is for the server's log."""
    return RecordDict({"error": facts(text=text)})
