"""`train`: a model, the clients' data and an algorithm in, a trained model and its history out."""

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import torch.nn.functional as F
from torch import nn

from fedsps import history
from fedsps.algorithm import Algorithm
from fedsps.checkpoint import Checkpoint, fingerprint
from fedsps.checks import choice, count
from fedsps.data.federated import Federation, Samples, held_out
from fedsps.engine.setting import Augment, Setting, Weights
from fedsps.errors import ConfigurationError
from fedsps.logistic import objective
from fedsps.methods.fedsps import FedSPS
from fedsps.network import Loss
from fedsps.result import Result
from fedsps.session import Callback, Engine, local


def train(
    model: nn.Module,
    clients: Sequence[Samples] | Federation,
    *,
    algorithm: Algorithm | None = None,
    rounds: int = 100,
    local_steps: int = 5,
    batch_size: int | None = 20,
    cohort: int | None = None,
    seed: int = 0,
    test: Samples | Federation | None = None,
    loss: Loss = F.cross_entropy,
    weights: Weights = "uniform",
    augment: Augment = "none",
    evaluate_every: int = 1,
    stop_at_loss: float | None = None,
    callback: Callback | None = None,
    engine: Engine = "auto",
    memory_limit: int = 2 * 2**30,
    checkpoint: str | Path | None = None,
    checkpoint_seconds: float = 10.0,
) -> Result:
    """Train a model on several clients' data, simulated on this machine.

        result = fedsps.train(model, [(inputs, targets), ...], algorithm=fedsps.FedSPS(), rounds=500)

    Args:
        model: any `nn.Module`. Training starts from its parameters, in their dtype and on their device (CPU or CUDA);
            it is left as it is, the trained copy is `result.model`.
        clients: one `(inputs, targets)` pair, or one data set of such pairs, for each client. Sizes may differ.
        algorithm: what to train with; `FedSPS()` if not given.
        rounds: communication rounds.
        local_steps: steps of each client in a round (tau).
        batch_size: samples in a step, at most; None for a client's whole data at every step.
        cohort: clients that take part in a round, drawn without replacement; all of them if not given.
        seed: cohorts and batches are functions of it, so two algorithms with one seed see the same data.
        test: held-out `(inputs, targets)`, for `test_loss` and `test_accuracy`.
        loss: any torch loss of (outputs, targets) that gives one number for a batch.
        weights: "uniform", the paper's mean over clients, or "samples".
        augment: "crop-flip" shifts (by up to 4 pixels) and mirrors images `[channels, height, width]` at random.
        evaluate_every: rounds between two evaluations; the last round is always evaluated. 0: never.
        stop_at_loss: stop once `train_loss` is at most this.
        callback: called after each round with a copy of its row of the history; training stops if it returns
            `True`, nothing else.
        engine: "stacked" computes all clients of a round at once, "loop" one after another, with the same result
            up to rounding (but other draws of dropout); "auto" takes the first wherever the model can be
            stacked, but for LeNet and ResNet18 on a CPU, where the second is faster.
        memory_limit: bytes that the stacked engine may take for one chunk of clients.
        checkpoint: a folder where the run is saved as it goes; called again with it, `train` goes on from there.
        checkpoint_seconds: the time between two saves.
    """
    if not isinstance(model, nn.Module):
        raise ConfigurationError(f"model must be a torch.nn.Module; got {type(model).__name__}")
    algorithm = FedSPS() if algorithm is None else algorithm
    if not isinstance(algorithm, Algorithm):
        raise ConfigurationError(f"algorithm must be one, like fedsps.FedSPS(); got {algorithm!r}")
    choice("weights", weights, get_args(Weights))
    choice("augment", augment, get_args(Augment))
    rounds, local_steps = count("rounds", rounds), count("local_steps", local_steps)
    evaluate_every, seed = count("evaluate_every", evaluate_every, least=0), count("seed", seed, least=0)
    batch_size = None if batch_size is None else count("batch_size", batch_size)
    if stop_at_loss is not None and evaluate_every == 0:
        raise ConfigurationError("stop_at_loss needs evaluations: set evaluate_every to 1 or more")
    federation = Federation.of(clients)
    cohort = federation.clients if cohort is None else count("cohort", cohort)
    if cohort > federation.clients:
        raise ConfigurationError(f"cohort is {cohort}, but there are only {federation.clients} clients")
    if augment == "crop-flip" and federation.inputs.ndim != 4:
        raise ConfigurationError(
            "augment='crop-flip' needs images [channels, height, width]; "
            f"the inputs are {tuple(federation.inputs.shape[1:])}"
        )
    algorithm.check(federation.clients)
    goal = objective(model, loss)
    setting = Setting(
        objective=goal,
        federation=federation.to(goal.x, goal.accepted),
        algorithm=algorithm,
        local_steps=local_steps,
        batch_size=batch_size,
        cohort=cohort,
        seed=seed,
        weights=weights,
        augment=augment,
        memory_limit=memory_limit,
    )
    session = local(setting, engine, None if test is None else held_out(test).to(goal.x, goal.accepted))
    spec = {
        "algorithm": repr(algorithm),
        "model": type(model).__name__,
        "clients": federation.clients,
        "rounds": rounds,
        "local_steps": local_steps,
        "batch_size": batch_size,
        "cohort": cohort,
        "seed": seed,
        "weights": weights,
        "augment": augment,
    }
    saver = None if checkpoint is None else Checkpoint(Path(checkpoint), fingerprint(setting), str(goal.x.device))
    session.go_on(
        rounds,
        evaluate_every=evaluate_every,
        stop_at_loss=stop_at_loss,
        callback=callback,
        saver=saver,
        save_seconds=checkpoint_seconds,
    )
    model = goal.module(session.state.result, session.state.buffers)
    return Result(model, history.frame(session.rows), spec, session.diverged_at)
