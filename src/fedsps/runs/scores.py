"""What a run came to on each client: its samples, losses, metrics and stepsizes, as a table."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from fedsps.core.streams import Indices
from fedsps.core.vectors import Tensors
from fedsps.data.clients import ClientData
from fedsps.engine.evaluate import Own, client_scores, evaluate_clients
from fedsps.engine.metrics import Metric
from fedsps.engine.own_layers import OwnLayers, layers_of
from fedsps.engine.setup import Setup
from fedsps.model.network import Network
from fedsps.runs.result import Result


def client_table(
    network: Network,
    x: Tensor,
    buffers: Tensors,
    parts: Mapping[str, ClientData],
    metrics: Mapping[str, Metric],
    tally: Tensors | None = None,
    layers: tuple[OwnLayers | None, Tensors] = (None, {}),
) -> pd.DataFrame:
    """One row a client: its name, samples, loss, accuracy, metrics, and the mean of its stepsizes in the run.

    Args:
        network: the model and the loss.
        x: the model's parameters, `[d]`.
        buffers: the model's.
        parts: the clients' data, the training part first; columns of the others begin with their names.
        metrics: beside loss and accuracy.
        tally: of the clients' stepsizes, see `State`.
        layers: those that clients have for themselves, and each one's, `[clients, *]`.
    """
    first = next(iter(parts.values()))
    columns: dict[str, list[float] | list[str]] = {"client": first.labels}
    for number, (name, data) in enumerate(parts.items()):
        prefix = f"{name}_" if number else ""
        columns[f"{prefix}samples"] = data.sizes.tolist()
        has_some = data.sizes > 0
        own = Own.of(*layers, data.sizes)
        filled = ClientData(data.inputs, data.targets, data.sizes[has_some])
        for score, values in client_scores(network, x, buffers, filled, metrics, own).items():
            column = np.full(data.clients, np.nan)
            column[has_some] = values
            columns[prefix + score] = column.tolist()
    if tally:
        columns["stepsize_mean"] = _mean_stepsizes(tally)
    table = pd.DataFrame(columns)
    return table.drop(columns=[name for name in columns if name.endswith("accuracy") and table[name].isna().all()])


def told_table(told: Mapping[int, Mapping[str, float]], sizes: Indices, tally: Tensors) -> pd.DataFrame:
    """The same of a federation, by what its clients said of themselves; NaN for those that did not answer.

    Args:
        told: `train_loss`, `test_loss`, ... by client.
        sizes: each client's number of samples.
        tally: of the clients' stepsizes, see `State`.
    """
    columns: dict[str, list[Any]] = {"client": [str(one) for one in range(len(sizes))], "samples": sizes.tolist()}
    names = {name: None for scores in told.values() for name in scores}
    for name in names:
        column = [told.get(client, {}).get(name, np.nan) for client in range(len(sizes))]
        columns["loss" if name == "train_loss" else name] = column
    return pd.DataFrame(columns | {"stepsize_mean": _mean_stepsizes(tally)})


def _mean_stepsizes(tally: Tensors) -> list[float]:
    """The mean of each client's stepsizes; NaN for one that took none."""
    sums, steps = (tally[name].cpu().numpy() for name in ("stepsizes", "steps"))
    means: list[float] = np.divide(sums, steps, out=np.full(len(steps), np.nan), where=steps > 0).tolist()
    return means


def start_facts(setup: Setup) -> dict[str, float]:
    """The training loss before the first round, for the record; nothing if the run is never evaluated."""
    if setup.plan.evaluate_every == 0:
        return {}
    losses = evaluate_clients(setup.network, setup.network.x, setup.network.buffers, setup.data, accuracy=False).loss
    return {"start_train_loss": (setup.shares(np.arange(setup.data.clients)) * losses.cpu()).sum().item()}


def layers_of_clients(result: Result, network: Network, names: Sequence[str]) -> tuple[OwnLayers | None, Tensors]:
    """Which layers the clients of a finished run have for themselves, and those of these clients, `[names, *]`.

    Args:
        result: the run.
        network: its model.
        names: of clients; one that the run does not know has what a new client starts from.
    """
    which = OwnLayers.of(network) if result.layers else None
    if which is None or result.clients is None:
        return None, {}
    known = {name: place for place, name in enumerate(result.clients["client"])}
    layers = layers_of(which.new(network.x.expand(len(names), -1), network.buffers))
    for place, name in enumerate(names):
        for key, value in layers.items() if name in known else ():
            value[place] = result.layers[key][known[name]]
    return which, layers
