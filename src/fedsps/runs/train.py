"""`train`: a model, the clients' data and an algorithm in, a trained model and its history out."""

import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Unpack

import torch.nn.functional as F
from torch import nn

from fedsps.core.algorithm import Algorithm
from fedsps.core.plan import Knobs, Plan, takes_plan
from fedsps.data.clients import ClientData, Samples, held_out
from fedsps.engine import distributed
from fedsps.engine.metrics import Metric, named_metrics
from fedsps.engine.now import Callbacks, as_list
from fedsps.engine.ranks import join, together, world_size
from fedsps.engine.session import local_session
from fedsps.engine.setup import Setup, suited
from fedsps.engine.trial import Engine
from fedsps.errors import ConfigurationError, LossRoseWarning
from fedsps.methods.notation import build, name_of, usual
from fedsps.model.device import placed
from fedsps.model.logistic import network_of
from fedsps.model.losses import chosen_loss
from fedsps.model.network import Loss, kind_of_outputs
from fedsps.runs.callbacks import Progress
from fedsps.runs.checkpoint import Checkpoint, fingerprint
from fedsps.runs.fingerprint import prints_of
from fedsps.runs.result import Result, frame, provenance
from fedsps.runs.scores import client_table, start_facts
from fedsps.runs.spec import Spec

ROSE = (
    "the training loss ended at {end:.4g}, above its start of {start:.4g}. Likely causes: inputs of very different "
    "sizes (standardise them), a stepsize or a cap that is too large, or a loss that does not fit the targets"
)


@takes_plan
@together()
def train(
    model: nn.Module,
    clients: Sequence[Samples] | Mapping[str, Samples] | ClientData,
    *,
    algorithm: Algorithm | str | None = None,
    test: Samples | Sequence[Samples] | Mapping[str, Samples] | ClientData | float | None = None,
    loss: Loss | str = F.cross_entropy,
    validation: Samples | Sequence[Samples] | Mapping[str, Samples] | ClientData | float | None = None,
    metrics: str | Metric | Sequence[str | Metric] | Mapping[str, Metric] = (),
    stop_at_loss: float | None = None,
    callback: Callbacks = None,
    progress: bool = False,
    engine: Engine = "auto",
    memory_limit: int = 2 * 2**30,
    checkpoint: str | Path | None = None,
    checkpoint_seconds: float = 10.0,
    **plan: Unpack[Knobs],
) -> Result:
    """Train a model on several clients' data, simulated on this machine.

    Called by each process of a script that torchrun started, the processes share the work, and each has the result.
    They must be given the same; rank 0 alone evaluates, saves and calls the callback.

    Args:
        model: any `nn.Module`. Training starts from its parameters, in their dtype and on their device, unless
            `device` names another; it is left as it is, the trained copy is `result.model`.
        clients: one `(inputs, targets)` pair, or one data set of such pairs, for each client: a list, or a dictionary
            by the clients' names. Sizes may differ.
        algorithm: what to train with, or its name as the command line writes it; `FedPolyak()` if not
            given (with `local_batch_norm`, its composition without the average, "plateau+diagonal").
        test: held-out `(inputs, targets)`, for `test_loss` and `test_accuracy`; those of each client, as `clients` has
            them; or the share of each client's samples that is held out.
        loss: any torch loss of (outputs, targets) that gives one number for a batch, or one of the words
            "cross-entropy", "binary" and "squared". Under a loss of numbers, or of a yes and no, outputs `[B, 1]` go
            with targets `[B]`.
        validation: as `test`, for `validation_loss` and the like: what `patience` and `restore_best` go by.
        metrics: what held-out data are evaluated by beside loss and accuracy: names ("auc", "f1",
            "balanced_accuracy", "rmse", "r2"), functions `f(outputs, targets)` of all samples, or a dictionary.
        stop_at_loss: stop once `train_loss` is at most this.
        callback: called after each round with `Now`: the round's row as a dictionary, with `round`, `model` and
            `stop()`; training stops if it returns `True`, nothing else. A list calls several. Ready ones are
            `fedsps.Log`, `fedsps.TensorBoard` and `fedsps.MLflow`.
        progress: show a progress bar.
        engine: "stacked" computes all clients of a round at once, "loop" one after another, with the same result
            up to rounding (but other draws of dropout); "auto" takes the first wherever the model can be
            stacked, but for LeNet and ResNet18 on a CPU, where the second is faster.
        memory_limit: bytes that the stacked engine may take for one chunk of clients.
        checkpoint: a folder where the run is saved as it goes; called again with it, `train` goes on from there. One
            process at a time works in it.
        checkpoint_seconds: the time between two saves.
        **plan: the fields of `Plan`: rounds, local_steps, batch_size, cohort, weights, augment, seed,
            evaluate_every, evaluate_from, patience, restore_best, monitor, absences, local_batch_norm, workers,
            device.
            Cohorts and batches are functions of the seed, so two algorithms with one seed see the same data.

    >>> import torch
    >>> model = torch.nn.Linear(2, 2)
    >>> clients = [(torch.randn(8, 2), torch.randint(2, (8,))) for _ in range(3)]
    >>> result = train(model, clients, algorithm="fedsps:cap=10", rounds=3, batch_size=None)
    >>> list(result.history["round"])
    [1, 2, 3]
    """
    if not isinstance(model, nn.Module):
        raise ConfigurationError(f"model must be a torch.nn.Module; got {type(model).__name__}")
    asked = Plan.of(**plan)
    if algorithm is None:
        algorithm = usual(asked.local_batch_norm)
    if isinstance(algorithm, str):
        algorithm = build(algorithm)
    if not isinstance(algorithm, Algorithm):
        raise ConfigurationError(f"algorithm must be one, like fedsps.FedPolyak(), or its name; got {algorithm!r}")
    told = as_list(callback) + as_list(Progress() if progress else None)
    if stop_at_loss is not None and asked.evaluate_every == 0:
        raise ConfigurationError("stop_at_loss needs evaluations: set evaluate_every to 1 or more")
    loss = chosen_loss(loss)
    network = network_of(placed(model, asked.device), placed(loss, asked.device))
    whole = ClientData.of(clients)
    data, tested = divided(whole, test, asked.seed, "test")
    data, validated = divided(data, validation, asked.seed, "validation")
    setup = Setup(
        plan=asked,
        network=network,
        data=suited(network, data),
        algorithm=algorithm,
        memory_limit=memory_limit,
        metrics=named_metrics(metrics),
    )
    parts = {"train": data, "validation": validated, "test": tested}
    there = {name: part.to(network.x, network.accepted) for name, part in parts.items() if part is not None}
    # pooled here, once, unless each client's samples are for its own model
    held = {name: part.pooled if setup.own_layers is None else part for name, part in there.items()}
    ranks = join()
    own_print = "" if ranks is None and checkpoint is None else fingerprint(setup)
    if ranks is not None and not ranks.leads:
        end = distributed.follow(ranks, setup, own_print)
    else:
        saver = None if checkpoint is None else Checkpoint(Path(checkpoint), own_print, str(network.x.device))
        session = local_session(setup, engine, held.get("test"), ranks, own_print, held.get("validation"))
        with nullcontext() if saver is None else saver.held():
            session.run(stop_at_loss=stop_at_loss, callback=told, saver=saver, save_seconds=checkpoint_seconds)
        end = session.end
        if ranks is not None:
            distributed.finish(ranks, end)
    given = [whole] if tested is None or isinstance(test, int | float) else [whole, tested]
    spec, facts = described(model, data, algorithm, asked, loss, given)
    facts, table = facts | {"ended": end.ended}, None
    if ranks is None or ranks.leads:
        facts |= start_facts(setup)
        known = {name: part for name, part in there.items() if part.clients == data.clients}
        layers = setup.own_layers, end.layers
        table = client_table(network, end.x, end.buffers, known, setup.metrics, session.state.tally, layers)
    result = Result(
        model=network.module(end.x, end.buffers),
        history=frame(end.rows),
        spec=spec,
        diverged_at=end.diverged_at,
        data=facts,
        provenance=provenance() | {"workers": end.workers, "ranks": world_size(), "device": str(network.x.device)},
        clients=table,
        layers=end.layers,
    )
    if result.loss_rose:
        warnings.warn(ROSE.format(start=result.start_loss, end=result.end_loss), LossRoseWarning, stacklevel=3)
    return result


def divided(
    data: ClientData,
    part: Samples | Sequence[Samples] | Mapping[str, Samples] | ClientData | float | None,
    seed: int,
    purpose: str,
) -> tuple[ClientData, ClientData | None]:
    """The clients' data, and those that are held out: a share of them, data of their own, or none.

    Args:
        data: the clients' data.
        part: what is held out.
        seed: decides which samples, for a share.
        purpose: what they are for, "validation" or "test".
    """
    if part is None:
        return data, None
    if isinstance(part, int | float):
        return data.held_back(part, seed, purpose)
    return data, held_out(part, purpose).in_order_of(data, purpose)


def described(
    model: nn.Module, data: ClientData, algorithm: Algorithm, plan: Plan, loss: Loss, given: Sequence[ClientData]
) -> tuple[Spec, dict[str, Any]]:
    """What a run on a model and data of one's own is called in its result: its spec, and facts of the data.

    Args:
        model: as training starts from it.
        data: what is trained on.
        algorithm: which trains.
        plan: what was asked.
        loss: of outputs and targets.
        given: the data as they were handed over, the test data among them. A share that a seed holds back is not taken
            out: runs with several seeds are told apart by their seeds alone.
    """
    named = name_of(algorithm)
    spec = Spec(algorithm=named.name, parameters=named.parameters, plan=plan)
    facts = {"clients": data.clients, "train_samples": len(data.targets), "model": type(model).__name__}
    return spec, facts | {"outputs": kind_of_outputs(loss)} | prints_of(model, given, loss)
