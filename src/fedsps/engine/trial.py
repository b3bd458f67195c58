"""Before a run: one small batch tells whether the model can take the data, and which engine can take the model.

A shape that does not fit, a loss that is no number or a class without an output is found here, in a message that names
the client, and not in the middle of round 1.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from fedsps.checks import choice
from fedsps.core import streams
from fedsps.data.clients import ClientData
from fedsps.engine import loop, stacked
from fedsps.engine.round import Collect
from fedsps.engine.setup import Setup
from fedsps.engine.workers import decide
from fedsps.errors import ConfigurationError, FedspsError

Engine = Literal["auto", "stacked", "loop"]
"""All clients of a round at once, one after another, or whichever is faster."""


def prepare(setup: Setup, engine: Engine) -> tuple[Setup, Collect]:
    """The setup with the memory that a sample needs, and the engine.

    Args:
        setup: of the run.
        engine: "stacked" and "loop" are taken as they are; "auto" is "stacked" wherever the model can be computed
            for several clients at once, but for those that prefer the loop.

    Raises:
        ConfigurationError: the model or the loss cannot take a batch, or the targets do not fit the outputs.
    """
    choice("engine", engine, get_args(Engine))
    network, data = setup.network, setup.data
    smallest = int(np.where(data.sizes > 0, data.sizes, data.sizes.max() + 1).argmin())
    inputs, targets = _first_batch(setup, data, smallest)
    with _tried(setup, f"client {smallest}", inputs, targets):
        network.check_targets(network.outputs(network.x, network.buffers, inputs), data.targets)
        before = streams.generator_state(network.x.device)
        setup = replace(setup, sample_bytes=network.sample_bytes(inputs, targets))
        network.check_left_alone()
        setup = replace(setup, is_random=not torch.equal(before, streams.generator_state(network.x.device)))

    def in_turn() -> tuple[Setup, Collect]:
        return replace(setup, workers=decide(setup, inputs, targets)), loop.collect

    if setup.plan.local_batch_norm and setup.own_layers is None:
        warnings.warn("local_batch_norm has nothing to keep: the model has no batch-norm layer", stacklevel=2)
    if engine == "loop" or (engine == "auto" and network.prefers_loop):
        return in_turn()
    try:
        with streams.torch_seed(setup.plan.seed, "trial"):
            buffers = {name: _twice(value) for name, value in network.buffers.items()}
            network.loss_and_gradient(_twice(network.x), buffers, _twice(inputs), _twice(targets))
    except (RuntimeError, ValueError, NotImplementedError) as error:
        reason = f"the model cannot be computed for several clients at once ({_first_line(error)})"
        if engine == "stacked":
            raise ConfigurationError(f"{reason}: use engine='loop'") from error
        warnings.warn(f"{reason}; training one client after another, which is slower", stacklevel=2)
        return in_turn()
    return setup, stacked.collect


def check_test(setup: Setup, test: ClientData, owner: str = "the test data") -> None:
    """Refuse held-out data that the model and the loss cannot take, by the owner's name.

    Raises:
        ConfigurationError: as in `prepare`; the test data are tried in the same way as they will be evaluated.
    """
    network, (inputs, targets) = setup.network, _first_batch(setup, test.pooled, 0)
    with _tried(setup, owner, inputs, targets):
        outputs = network.outputs(network.x, network.buffers, inputs)
        network.check_targets(outputs, test.targets)
        network.loss(outputs, targets)


def _first_batch(setup: Setup, data: ClientData, client: int) -> tuple[Tensor, Tensor]:
    """A client's first samples, at most one batch of them, copied."""
    start, size = int(data.offsets[client]), int(data.sizes[client])
    rows = slice(start, start + min(size, setup.plan.batch_size or size))
    return data.inputs[rows].clone(), data.targets[rows].clone()


@contextmanager
def _tried(setup: Setup, owner: str, inputs: Tensor, targets: Tensor) -> Iterator[None]:
    """Refuse a batch that the model and the loss cannot take, by the owner's name."""
    try:
        with warnings.catch_warnings(), streams.torch_seed(setup.plan.seed, "trial"):
            warnings.filterwarnings("error", message="Using a target size")  # torch would broadcast the two
            yield
    except FedspsError:
        raise
    except Exception as error:
        said = _first_line(error) + _remedy(setup, error, inputs, targets)
        raise ConfigurationError(
            f"the model and the loss cannot take a batch of {owner} "
            f"(inputs {_kind(inputs)}, targets {_kind(targets)}): {said}"
        ) from error


def _remedy(setup: Setup, error: Exception, inputs: Tensor, targets: Tensor) -> str:
    """What to do about a batch that cannot be taken, where that is known; nothing else."""
    text, kind = str(error), setup.network.kind
    if "more than 1 value per channel" in text:
        return ": batch norm needs two samples a batch: raise batch_size, leave such clients out, or use group norm"
    if not inputs.is_floating_point() and "dtype" in text:
        return ": the inputs are whole numbers: give floats, inputs.float()"
    if kind == "classes" and targets.is_floating_point() and targets.ndim == 1:
        return ": this loss takes class numbers, targets.long(); for numbers there is loss='squared'"
    if kind == "classes" and targets.ndim == 2 and targets.shape[1] == 1:
        return ": give the targets without their second dimension, targets[:, 0]"
    if kind in ("binary", "probability"):
        return ": this loss takes one output for each target, nn.Linear(..., 1); the cross-entropy one for each class"
    return ""


def _twice(value: Tensor) -> Tensor:
    """The value for two clients: a leading axis of 2, as a view."""
    return value.expand(2, *value.shape)


def _kind(values: Tensor) -> str:
    return f"{tuple(values.shape)} {values.dtype}"


def _first_line(error: Exception) -> str:
    """The first line of what an error says; its type if it says nothing."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
