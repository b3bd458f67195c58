"""Rounds on a device that is not the CPU, where there is none: shapes, dtypes and devices alone, by torch's fake tensors.

    python tests/fake_device.py MODEL ENGINE

runs a round of every algorithm of the registry and prints what went wrong, one line each: a tensor on the wrong device,
a value that the host asked for (`.item()`, a branch on a tensor), or copies between host and device whose number grows
with the local steps. The device is one of torch's slot for devices of others (a build without CUDA cannot index or
differentiate even fake tensors "on cuda"); the slot is taken for good, so that this runs in a process of its own.
"""

import sys
import warnings

import torch
from conftest import make_clients
from registry import ALGORITHMS
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

import fedsps
from fedsps.core.plan import Plan
from fedsps.data.clients import ClientData
from fedsps.engine import loop, stacked
from fedsps.engine.evaluate import evaluate_clients
from fedsps.engine.round import play_round
from fedsps.engine.setup import Setup, start
from fedsps.engine.sweep import Sweep
from fedsps.model.logistic import network_of
from fedsps.rules import polyak

DEVICE = "gpu:0"
HOST = ClientData.of(make_clients(sizes=(8, 8, 13, 21, 34)))
MARKED = HOST.targets.numpy() == 1
ENGINES = {"loop": loop.collect, "stacked": stacked.collect}
SWEPT = {
    "fedsps": [fedsps.FedSPS(cap=cap) for cap in (0.5, 1.0, 2.0)],
    "feddecsps": [fedsps.FedDecSPS(cap=cap) for cap in (0.5, 1.0, 2.0)],
    "fedams": [fedsps.FedAMS(client_stepsize=step) for step in (0.01, 0.1, 1.0)],
    "scaffold": [fedsps.Scaffold(client_stepsize=step) for step in (0.01, 0.1, 1.0)],
}


class Fakes(FakeTensorMode):
    """Fake tensors that survive a deep copy of their module."""

    avoid_device_init = True  # numbers become tensors of the host first, as on a real device

    def __deepcopy__(self, memo):
        return self


class Copies(TorchDispatchMode):
    """Counts copies between host and device, each of which waits for the device."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        places = {leaf.device.type for leaf in tree_leaves((args, kwargs, made)) if isinstance(leaf, torch.Tensor)}
        name = function.overloadpacket.__name__
        self.count += len(places) > 1 and name in ("_to_copy", "copy_", "index")
        return made


def make_network(model):
    with torch.device(DEVICE):
        if model == "logistic":
            return network_of(fedsps.LogisticRegression(4, 3))
        norm = [nn.BatchNorm1d(6)] if model == "batchnorm" else []
        layers = [nn.Linear(4, 6), *norm, nn.ReLU(), nn.Linear(6, 3)]
        return network_of(nn.Sequential(*layers))


def make_setup(model, algorithm, local_steps, masked=False):
    inputs = torch.empty(HOST.inputs.shape, device=DEVICE)
    targets = torch.empty(HOST.targets.shape, dtype=torch.int64, device=DEVICE)
    data = ClientData(inputs, targets, HOST.sizes)
    vars(data)["ignored"] = MARKED if masked else None  # looked up before a run, on real numbers
    cohort = None if "lower" in repr(algorithm) else 2
    return Setup(Plan(batch_size=7, local_steps=local_steps, cohort=cohort), make_network(model), data, algorithm)


def play(model, engine, algorithm, local_steps, masked=False):
    """The copies of one round; it is an error if the host needs a number, or a tensor is not on the device."""
    polyak._bounds.cache_clear()
    with Fakes(), Copies() as copies:
        if engine == "sweep":
            setups = [make_setup(model, algorithm[0], local_steps) for _ in range(2)]
            sweep = Sweep(setups, algorithm, [number % 2 for number in range(len(algorithm))])
            copies.count = 0
            state, trace, _ = sweep._play([setup.cohort_of(0) for setup in setups])
            found = copies.count
            sweep._evaluate(state)
        else:
            setup = make_setup(model, algorithm, local_steps, masked)
            before = start(setup)
            copies.count = 0
            state, done = play_round(setup, before, ENGINES[engine])
            found, trace = copies.count, done.trace
            evaluate_clients(setup.network, state.result, state.buffers, setup.data)
        kept = [state.x, state.result, *vars(trace).values()]
        kept += [
            value for group in (state.buffers, state.server, state.clients, state.output) for value in group.values()
        ]
        assert {str(value.device) for value in kept} == {DEVICE}, "something is not on the device"
    return found


def say(line):
    sys.stdout.write(line + "\n")


def main(model, engine):
    warnings.simplefilter("ignore")
    _setup_privateuseone_for_python_backend("gpu")
    cases = SWEPT if engine == "sweep" else ALGORITHMS
    for name, algorithm in cases.items():
        try:
            few = play(model, engine, algorithm, 2)
            more = play(model, engine, algorithm, 3) if model == "logistic" else few
            if few != more:
                say(f"{name}: {few} copies with 2 local steps, {more} with 3")
            if name == "fedsps" and engine != "sweep":
                play(model, engine, algorithm, 2, masked=True)
        except Exception as error:
            say(f"{name}: {type(error).__name__}: {str(error)[:200]}")
    say(f"{len(cases)} algorithms")


if __name__ == "__main__":
    main(*sys.argv[1:])
