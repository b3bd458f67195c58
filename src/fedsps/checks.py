"""Checks of settings on construction: the message names the setting, its value, and what would do.

Each takes the setting's name first, and raises a `ConfigurationError` before a run begins.
"""

import math
import re
from collections.abc import Collection

import numpy as np
import torch

from fedsps.errors import ConfigurationError, unknown


def is_number(value: object) -> bool:
    """Whether it is a plain number, Python's or NumPy's; true and false are none."""
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def positive(name: str, value: float | torch.Tensor) -> None:
    """Refuse what is not a finite number above 0, or a tensor of one."""
    number = value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value
    if not is_number(number) or not 0 < number < math.inf:
        raise ConfigurationError(f"{name} must be a finite number above 0; got {value!r}")


def at_least(name: str, value: float, least: float) -> None:
    """Refuse what is not a finite number of at least `least`."""
    if not is_number(value) or not least <= value < math.inf:
        raise ConfigurationError(f"{name} must be a finite number of at least {least}; got {value!r}")


def fraction(name: str, value: float) -> None:
    """Refuse what is not in [0, 1)."""
    if not is_number(value) or not 0 <= value < 1:
        raise ConfigurationError(f"{name} must be at least 0 and below 1; got {value!r}")


def truth(name: str, value: bool) -> None:
    """Refuse what is neither true nor false."""
    if not isinstance(value, bool):
        raise ConfigurationError(f"{name} must be true or false; got {value!r}")


def count(name: str, value: int, least: int = 1) -> int:
    """The number as Python's own; refuse what is not a whole number of at least `least`.

    >>> count("rounds", 2.0)
    Traceback (most recent call last):
    fedsps.errors.ConfigurationError: rounds must be a whole number of at least 1; got 2.0
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ConfigurationError(f"{name} must be a whole number of at least {least}; got {value!r}")
    return int(value)


def device_name(name: str, value: object) -> str:
    """The device's name as a text; whether it is there is asked when something is trained.

    >>> device_name("device", torch.device("cuda", 1))
    'cuda:1'
    """
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", str(value)):
        raise ConfigurationError(f"{name} must be cpu, cuda, cuda:1 (or another number), mps or auto; got {value!r}")
    return str(value)


def choice(name: str, value: str, kinds: Collection[str]) -> None:
    """Refuse a name that is not one of the kinds, with the nearest ones that are."""
    if value not in kinds:
        raise unknown(name, str(value), kinds)
