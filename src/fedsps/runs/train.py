"""`train`: a model, the clients' data and an algorithm in, a trained model and its history out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Unpack

import torch.nn.functional as F
from torch import nn

from fedsps.core.algorithm import Algorithm
from fedsps.core.plan import Knobs, Plan, takes_plan
from fedsps.data.clients import ClientData, Samples, held_out
from fedsps.engine.session import Callback, local_session
from fedsps.engine.setup import Setup
from fedsps.engine.trial import Engine
from fedsps.errors import ConfigurationError
from fedsps.methods.fedsps import FedSPS
from fedsps.methods.notation import name_of
from fedsps.model.logistic import network_of
from fedsps.model.network import Loss
from fedsps.runs.checkpoint import Checkpoint, fingerprint
from fedsps.runs.result import Result, frame, provenance
from fedsps.runs.spec import Spec


@takes_plan
def train(
    model: nn.Module,
    clients: Sequence[Samples] | ClientData,
    *,
    algorithm: Algorithm | None = None,
    test: Samples | ClientData | None = None,
    loss: Loss = F.cross_entropy,
    stop_at_loss: float | None = None,
    callback: Callback | None = None,
    engine: Engine = "auto",
    memory_limit: int = 2 * 2**30,
    checkpoint: str | Path | None = None,
    checkpoint_seconds: float = 10.0,
    **plan: Unpack[Knobs],
) -> Result:
    """Train a model on several clients' data, simulated on this machine.

    Args:
        model: any `nn.Module`. Training starts from its parameters, in their dtype and on their device (CPU or CUDA);
            it is left as it is, the trained copy is `result.model`.
        clients: one `(inputs, targets)` pair, or one data set of such pairs, for each client. Sizes may differ.
        algorithm: what to train with; `FedSPS()` if not given.
        test: held-out `(inputs, targets)`, for `test_loss` and `test_accuracy`.
        loss: any torch loss of (outputs, targets) that gives one number for a batch.
        stop_at_loss: stop once `train_loss` is at most this.
        callback: called after each round with a copy of its row of the history; training stops if it returns
            `True`, nothing else.
        engine: "stacked" computes all clients of a round at once, "loop" one after another, with the same result
            up to rounding (but other draws of dropout); "auto" takes the first wherever the model can be
            stacked, but for LeNet and ResNet18 on a CPU, where the second is faster.
        memory_limit: bytes that the stacked engine may take for one chunk of clients.
        checkpoint: a folder where the run is saved as it goes; called again with it, `train` goes on from there.
        checkpoint_seconds: the time between two saves.
        **plan: the fields of `Plan`: rounds, local_steps, batch_size, cohort, weights, augment, seed,
            evaluate_every, evaluate_from, workers.
            Cohorts and batches are functions of the seed, so two algorithms with one seed see the same data.

    >>> import torch
    >>> model = torch.nn.Linear(2, 2)
    >>> clients = [(torch.randn(8, 2), torch.randint(2, (8,))) for _ in range(3)]
    >>> result = train(model, clients, algorithm=FedSPS(cap=10.0), rounds=3, batch_size=None)
    >>> list(result.history["round"])
    [1, 2, 3]
    """
    if not isinstance(model, nn.Module):
        raise ConfigurationError(f"model must be a torch.nn.Module; got {type(model).__name__}")
    algorithm = FedSPS() if algorithm is None else algorithm
    if not isinstance(algorithm, Algorithm):
        raise ConfigurationError(f"algorithm must be one, like fedsps.FedSPS(); got {algorithm!r}")
    asked = Plan.of(**plan)
    if stop_at_loss is not None and asked.evaluate_every == 0:
        raise ConfigurationError("stop_at_loss needs evaluations: set evaluate_every to 1 or more")
    network, data = network_of(model, loss), ClientData.of(clients)
    setup = Setup(
        plan=asked,
        network=network,
        data=data.to(network.x, network.accepted),
        algorithm=algorithm,
        memory_limit=memory_limit,
    )
    session = local_session(setup, engine, None if test is None else held_out(test).to(network.x, network.accepted))
    session.run(
        stop_at_loss=stop_at_loss,
        callback=callback,
        saver=None if checkpoint is None else Checkpoint(Path(checkpoint), fingerprint(setup), str(network.x.device)),
        save_seconds=checkpoint_seconds,
    )
    named = name_of(algorithm)
    facts: dict[str, Any] = {
        "clients": data.clients,
        "train_samples": len(data.targets),
        "model": type(model).__name__,
    }
    return Result(
        model=network.module(session.state.result, session.state.buffers),
        history=frame(session.rows),
        spec=Spec(algorithm=named.name, parameters=named.parameters, plan=asked),
        diverged_at=session.diverged_at,
        data=facts,
        provenance=provenance() | {"workers": session.setup.workers},
    )
