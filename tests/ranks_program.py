"""What `test_ranks.py` lets several ranks run, and one process alone: many small runs, and an error at the end."""

import json
import os
import sys
from pathlib import Path

import torch
from conftest import make_clients
from registry import ALGORITHMS
from torch import nn

import fedsps
from fedsps.engine import workers
from fedsps.model.models import LogisticRegression


def batch_norm():
    """Floating buffers, and a counter."""
    torch.manual_seed(0)
    # no bias before batch norm: its gradient is 0, of which rounding makes a sign
    return nn.Sequential(nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)).double()


def cases():
    """By name: a model, and the settings of a run."""
    clients = make_clients(sizes=(4, 8, 13, 21, 34))
    for number, (name, algorithm) in enumerate(ALGORITHMS.items()):
        settings = {
            "clients": clients, "algorithm": algorithm, "rounds": 3, "local_steps": 2, "batch_size": 10,
            "cohort": 5 if "client" in name else 4, "weights": "samples", "test": clients[0],
        }  # fmt: skip
        for engine in ("loop", "stacked"):
            make = batch_norm if number % 4 == 1 else lambda: LogisticRegression(4, 3).double()
            yield f"{name}, {engine}", make(), settings | {"engine": engine}
    common = {"clients": clients, "rounds": 3, "batch_size": 10}
    for engine in ("loop", "stacked"):
        fewer = common | {"engine": engine, "cohort": 1, "algorithm": fedsps.Scaffold(client_stepsize=0.05)}
        yield f"fewer clients than ranks, {engine}", batch_norm(), fewer
        yield f"uniform weights, {engine}", batch_norm(), common | {"engine": engine}
    half = common | {"algorithm": fedsps.FedSPS(), "clients": zeros(torch.bfloat16)}
    yield "half precision", nn.Linear(4, 3).bfloat16().requires_grad_(), half
    yield "evaluated once", batch_norm(), common | {"evaluate_every": 3}
    yield "workers", batch_norm(), common | {"engine": "loop", "workers": 2}
    for engine in ("loop", "stacked"):
        own = common | {"engine": engine, "local_batch_norm": True, "cohort": 4, "test": 0.2}
        yield f"batch norm stays with its client, {engine}", batch_norm(), own
    yield "some are missing", batch_norm(), common | {"absences": {1: [0], 2: [1, 2, 3, 4], 3: [2]}}
    yield "it diverges", batch_norm(), common | {"algorithm": fedsps.FedAvg(client_stepsize=1e300)}
    yield "it reaches its loss", batch_norm(), common | {"rounds": 30, "stop_at_loss": 1.0}
    yield "the callback stops it", batch_norm(), common | {"callback": lambda row: row["round"] == 2}


def zeros(dtype):
    """Of which a model's start does not matter much: its weights stay as they are."""
    return [(torch.zeros(6, 4, dtype=dtype), torch.tensor([0, 1, 2, 0, 0, number])) for number in range(3)]


def outcome(model, settings):
    """A run's history, weights and end, as JSON can hold them."""
    if isinstance(model, nn.Linear):
        nn.init.zeros_(model.weight)
        nn.init.zeros_(model.bias)
    result = fedsps.train(model, **settings)
    return {
        "history": result.history.drop(columns="seconds").to_dict("list"),
        "weights": {name: value.double().flatten().tolist() for name, value in result.model.state_dict().items()},
        "diverged_at": result.diverged_at,
    }


class Broken(nn.Linear):
    """It fails on rank 1 after some rounds."""

    def forward(self, inputs):
        self.seen = getattr(self, "seen", 0) + 1
        if os.environ["RANK"] == "1" and self.seen > 60:
            raise MemoryError("no room for a batch")
        return super().forward(inputs)


def wrong(kind):
    """Runs that end in an error, on whichever rank."""
    rank, clients = int(os.environ["RANK"]), make_clients()
    torch.manual_seed(0)
    if kind == "bound":
        fedsps.train(nn.Linear(4, 3).double(), clients, algorithm=fedsps.FedSPS(lower=5.0))
    if kind == "data":
        fedsps.train(nn.Linear(4, 3).double(), clients[: -rank or None])
    if kind == "broken":
        checkpoint = Path(sys.argv[1], "checkpoint")
        fedsps.train(Broken(4, 3).double(), clients, engine="loop", rounds=50, checkpoint=checkpoint)


def error_of(function, *arguments):
    try:
        function(*arguments)
    except fedsps.FedspsError as error:
        return f"{type(error).__name__}: {error}"
    except MemoryError:
        return "MemoryError"
    return ""


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder, kind = Path(sys.argv[1]), sys.argv[2]
    found = {name: outcome(model, settings) for name, model, settings in cases()} if kind in ("bound", "data") else {}
    found["processes"] = workers._processes  # that share the cores
    found["error"] = error_of(wrong, kind)
    found["after the error"] = error_of(wrong, kind)
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(found))
