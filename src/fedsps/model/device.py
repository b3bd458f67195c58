"""Where a model is computed: a device by its name, found or refused, and modules moved there."""

import copy
import os
from typing import TypeVar

import torch
from torch import nn

from fedsps.errors import ConfigurationError

Given = TypeVar("Given")


def available() -> list[str]:
    """The devices of this machine by name, the CPU first."""
    cuda = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    return ["cpu", *cuda, *(["mps"] if torch.backends.mps.is_available() else [])]


def find_device(name: str) -> torch.device:
    """The device of this name; "auto" is CUDA's first if there is one, else mps, else the CPU.

    Args:
        name: as in `Plan.device`.

    Raises:
        ConfigurationError: there is no such device here.

    >>> find_device("cpu")
    device(type='cpu')
    """
    there = available()
    if name == "auto":
        return torch.device(next((one for kind in ("cuda", "mps") for one in there if one.startswith(kind)), "cpu"))
    if name not in there and f"{name}:0" not in there:
        raise ConfigurationError(
            f"device is {name!r}, but this machine has only {', '.join(there)}: use one that is there, or auto"
        )
    if name == "cuda":  # each rank of a machine has its own
        here = [one for one in there if one.startswith("cuda")]
        return torch.device(here[int(os.environ.get("LOCAL_RANK") or "0") % len(here)])
    return torch.device(name)


def placed(module: Given, name: str | None) -> Given:
    """A copy of the module on this device; the module itself for None, and whatever is no module.

    Args:
        module: a model, or a loss, which may have weights too.
        name: as in `Plan.device`.

    Raises:
        ConfigurationError: the device is not there, or does not know the module's dtype.
    """
    if name is None:
        return module
    device = find_device(name)
    if not isinstance(module, nn.Module):
        return module
    values = [*module.parameters(), *module.buffers()]
    if device.type == "mps" and any(value.dtype == torch.float64 for value in values):
        raise ConfigurationError(
            f"device is {name!r}, which has no float64, and {type(module).__name__} is of float64: "
            "use dtype float32 (model.float()), or device cpu"
        )
    return copy.deepcopy(module).to(device)
