"""`personalise`: each client's own model, fine-tuned from the common one."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch.nn.functional as F
from torch import Tensor, nn

from fedsps.core import streams
from fedsps.core.algorithm import Algorithm
from fedsps.data.clients import ClientData, Samples
from fedsps.engine.evaluate import client_scores
from fedsps.engine.setup import suited
from fedsps.errors import ConfigurationError, DataError
from fedsps.methods.fedsps import FedSPS
from fedsps.model.logistic import network_of
from fedsps.model.losses import chosen_loss
from fedsps.model.network import Loss
from fedsps.runs.result import Result
from fedsps.runs.train import train


@dataclass(frozen=True)
class Personalised:
    """What fine-tuning gave each client.

    Attributes:
        models: a module for each client, by its name, in evaluation mode.
        table: one row a client: `client`, its held-out `samples`, and `common_loss`, `local_loss`, `personalised_loss`
            (and accuracies, where they have a meaning) on them: of the common model, of one that was trained on the
            client alone, and of the client's own.
    """

    models: Mapping[str, nn.Module]
    table: pd.DataFrame


def personalise(
    result: Result,
    clients: Sequence[Samples] | Mapping[str, Samples] | ClientData,
    *,
    steps: int = 20,
    test: Sequence[Samples] | Mapping[str, Samples] | ClientData | float = 0.2,
    start: nn.Module | None = None,
    loss: Loss | str = F.cross_entropy,
    algorithm: Algorithm | str | None = None,
    batch_size: int | None = 20,
    seed: int = 0,
) -> Personalised:
    """Fine-tune the common model on each client's own data, by the stochastic Polyak stepsize unless told otherwise.

    Of a run with `local_batch_norm`, a client's common model is the one with its own layers.

    Args:
        result: of the common training.
        clients: as in `train`.
        steps: of each client, and of the training on the client alone that it is compared with.
        test: held-out data for each client, or the share of its samples that is held out here. The common model may
            have seen those: give `test` for an honest comparison with it.
        start: where the training on the client alone begins; the common model's architecture with its layers drawn
            anew if not given.
        loss: as in `train`.
        algorithm: what each client trains with; SPS, which is FedSPS of a single client, if not given.
        batch_size: samples in a step.
        seed: decides batches, which share is held out, and the new start.

    Raises:
        ConfigurationError: the result has no model.
        DataError: `test` has not as many clients as `clients`, or one that these do not have.

    >>> import torch
    >>> clients = {name: (torch.randn(20, 2), torch.randint(2, (20,))) for name in ("north", "south")}
    >>> common = train(nn.Linear(2, 2), clients, rounds=3)
    >>> list(personalise(common, clients, steps=3).table["client"])
    ['north', 'south']
    """
    if result.model is None:
        raise ConfigurationError("the result has no model: load it with fedsps.load(folder, model=...)")
    data, loss = ClientData.of(clients), chosen_loss(loss)
    if isinstance(test, int | float):
        data, held = data.held_back(test, seed, "test")
    else:
        held = ClientData.of(test).in_order_of(data, "test")
    if held.clients != data.clients:
        raise DataError(f"test has {held.clients} clients, and clients has {data.clients}: give one for each")

    def tuned(model: nn.Module, own: tuple[Tensor, Tensor]) -> nn.Module:
        how = FedSPS() if algorithm is None else algorithm
        settings = {"rounds": 1, "local_steps": steps, "batch_size": batch_size, "seed": seed, "evaluate_every": 0}
        trained = train(model, [own], algorithm=how, loss=loss, **settings).model  # type: ignore[arg-type]
        assert trained is not None, "a run that was made here has its model"
        return trained

    fresh = _anew(result.model, seed) if start is None else start
    models: dict[str, nn.Module] = {}
    rows = []
    known = [] if result.clients is None or not result.layers else list(result.clients["client"])
    for name, own, mine in zip(data.labels, data.pairs(), held.pairs(), strict=True):
        common = result.model_of(name) if name in known else result.model
        models[name] = tuned(common, own)
        row: dict[str, str | float] = {"client": name, "samples": len(mine[1])}
        kinds = {"common": common, "local": tuned(fresh, own), "personalised": models[name]}
        for kind, model in kinds.items():
            row |= {f"{kind}_{score}": value for score, value in _scores(model, mine, loss).items()}
        rows.append(row)
    table = pd.DataFrame(rows)
    return Personalised(models, table.dropna(axis=1, how="all"))


def _scores(model: nn.Module, pair: tuple[Tensor, Tensor], loss: Loss) -> dict[str, float]:
    """Loss and accuracy on one client's held-out samples; NaN if it has none."""
    if not len(pair[1]):
        return {"loss": np.nan, "accuracy": np.nan}
    network = network_of(model, loss)
    data = suited(network, ClientData(*pair, np.array([len(pair[1])])))
    scores = client_scores(network, network.x, network.buffers, data, {})
    return {name: value for name, (value,) in scores.items()}


def _anew(model: nn.Module, seed: int) -> nn.Module:
    """The same architecture with its layers drawn anew."""
    fresh = copy.deepcopy(model)
    with streams.torch_seed(seed, "local start"):
        for layer in fresh.modules():
            reset = getattr(layer, "reset_parameters", None)
            if callable(reset):
                reset()
    return fresh
