"""One row a round: what happened, what it cost, how good the output is.

`COLUMNS` says what each column means; the run folder, the tables and the plots take their columns from there.
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from fedsps.core.vectors import Tensors
from fedsps.engine.round import Round

COLUMNS = {
    "round": "1, 2, ...",
    "train_loss": "the objective f at the output: mean over all clients of f_i, under the weights of the run",
    "cohort_loss": "mean of the mini-batch losses, penalties included, that the active clients saw at local steps",
    "test_loss": "loss of the output on the test data",
    "test_accuracy": "share of right predictions on the test data; NaN where accuracy has no meaning",
    "stepsize_mean": "mean stepsize over active clients and local steps",
    "stepsize_std": "spread over all of them: population std over active clients and local steps",
    "stepsize_std_clients": "spread over clients: population std of each client's mean stepsize",
    "stepsize_one_mean": "mean over the local steps of one client, the lowest-numbered active one",
    "stepsize_one_std": "population std over the local steps of that client",
    "seconds": "wall time of the round's training, without evaluation; "
    "in a federation with that before it, where one message asks for both",
    "exchanges": "times the server called on the clients",
    "gradient_evaluations": "mini-batch gradients over all active clients; a larger batch counts for what it holds",
    "bytes_up": "sent by all active clients together",
    "bytes_down": "sent to all active clients together",
}

FEDERATION_COLUMNS = {
    "clients": "clients whose answers count",
    "events": "who did not answer, was refused or lost its state, and why",
    "client_test_loss": "mean loss of the output over all samples of the clients' own test data",
    "client_test_accuracy": "share of right predictions on them",
    "epsilon": "what differential privacy has cost so far, at the run's delta; NaN in runs without it",
}
"""What a real federation records beside."""

TITLES = {  # short, for axes and menus
    "train_loss": "training loss",
    "cohort_loss": "cohort loss",
    "test_loss": "test loss",
    "test_accuracy": "test accuracy",
    "stepsize_mean": "mean stepsize",
    "stepsize_std": "deviation of all stepsizes",
    "stepsize_std_clients": "deviation of stepsizes over clients",
    "stepsize_one_mean": "mean stepsize of one client",
    "stepsize_one_std": "deviation of stepsizes of one client",
}


Row = dict[str, Any]
"""The values of one round by column."""


def in_short(row: Row) -> str:
    """What a progress bar says of a round: its training loss, or the cohort's where nothing was evaluated.

    >>> in_short({"train_loss": float("nan"), "cohort_loss": 0.25})
    'cohort loss 0.25'
    """
    name = "cohort_loss" if math.isnan(row["train_loss"]) else "train_loss"
    return f"{name.replace('_', ' ')} {row[name]:.4g}"


def row(done: Round, number: int, seconds: float, scores: dict[str, float], events: Iterable[str] = ()) -> Row:
    """The row of one round; what was not evaluated, or is not known, is NaN.

    Args:
        done: what the round left behind.
        number: 1, 2, ...
        seconds: how long its training took.
        scores: of its evaluation, by column.
        events: what is to be noted with it.
    """
    nothing = torch.full((1, 1), torch.nan)
    losses, stepsizes = (nothing, nothing) if done.trace is None else (done.trace.losses, done.trace.stepsizes)
    statistics = {name: value.item() for name, value in training(losses, stepsizes).items()}
    return COLUMN_ORDER | {
        "round": number,
        **statistics,
        "seconds": seconds,
        "exchanges": done.exchanges,
        "gradient_evaluations": done.gradients,
        "bytes_up": done.bytes_up,
        "bytes_down": done.bytes_down,
        "clients": len(done.clients),
        "events": "; ".join(events),
        **scores,
    }


COLUMN_ORDER: Row = dict.fromkeys((*COLUMNS, *FEDERATION_COLUMNS), float("nan"))


def training(losses: Tensor, stepsizes: Tensor) -> Tensors:
    """The columns that speak of local steps, from losses and stepsizes `[..., clients, tau]`, each `[...]`."""
    stepsizes = stepsizes.double()
    mean_of_client = stepsizes.mean(-1)
    return {
        "cohort_loss": losses.double().mean((-2, -1)),
        "stepsize_mean": stepsizes.mean((-2, -1)),
        "stepsize_std": stepsizes.flatten(-2).std(-1, correction=0),
        "stepsize_std_clients": mean_of_client.std(-1, correction=0),
        "stepsize_one_mean": mean_of_client[..., 0],
        "stepsize_one_std": stepsizes[..., 0, :].std(-1, correction=0),
    }
