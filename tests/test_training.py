"""`train`: what it takes, what it returns, when it stops, and that it goes on where it was stopped."""

import math
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from conftest import make_clients
from torch import nn
from torch.utils.data import IterableDataset, TensorDataset

import fedsps
from fedsps.core.contract import Trace
from fedsps.engine.history import COLUMNS
from fedsps.engine.session import check_bound
from fedsps.model.models import LogisticRegression
from fedsps.rules.output import PolynomialAverage


def model():
    return LogisticRegression(4, 3).double()


def test_history_has_one_row_a_round_and_its_columns_mean_what_they_say(unequal_clients):
    """Every column recomputed by hand from plain full-batch FedSPS on a round."""
    result = fedsps.train(
        model(), unequal_clients, algorithm=fedsps.FedSPS(cap=0.4), rounds=3, local_steps=2, batch_size=None,
        test=unequal_clients[1],
    )  # fmt: skip
    table = result.history
    assert list(table.columns) == list(COLUMNS)
    assert table["round"].tolist() == [1, 2, 3]
    start, after = [], []
    stepsizes, losses = [], []
    for inputs, targets in unequal_clients:
        weight, bias = torch.zeros(3, 4).double().requires_grad_(), torch.zeros(3).double().requires_grad_()
        start.append(math.log(3))
        for _ in range(2):
            loss = F.cross_entropy(inputs @ weight.T + bias, targets)
            gradients = torch.autograd.grad(loss, (weight, bias))
            stepsize = min(loss.item() / (0.5 * sum(float((g**2).sum()) for g in gradients)), 0.4)
            with torch.no_grad():
                weight -= stepsize * gradients[0]
                bias -= stepsize * gradients[1]
            stepsizes.append(stepsize)
            losses.append(loss.item())
        after.append((weight.detach(), bias.detach()))
    weight, bias = (torch.stack(part).mean(0) for part in zip(*after, strict=True))
    row, stepsizes = table.iloc[0], np.array(stepsizes).reshape(5, 2)
    expected = np.mean(
        [F.cross_entropy(inputs @ weight.T + bias, targets).item() for inputs, targets in unequal_clients]
    )
    assert row["train_loss"] == pytest.approx(expected)
    assert row["cohort_loss"] == pytest.approx(np.mean(losses))
    inputs, targets = unequal_clients[1]
    assert row["test_loss"] == pytest.approx(F.cross_entropy(inputs @ weight.T + bias, targets).item())
    assert row["test_accuracy"] == ((inputs @ weight.T + bias).argmax(1) == targets).double().mean().item()
    assert row["stepsize_mean"] == pytest.approx(stepsizes.mean())
    assert row["stepsize_std"] == pytest.approx(stepsizes.std())
    assert row["stepsize_std_clients"] == pytest.approx(stepsizes.mean(1).std())
    assert row["stepsize_one_mean"] == pytest.approx(stepsizes[0].mean())
    assert row["stepsize_one_std"] == pytest.approx(stepsizes[0].std())
    assert row["exchanges"] == 1
    assert row["gradient_evaluations"] == 5 * 2
    assert row["bytes_up"] == row["bytes_down"] == 5 * 15 * 8


def test_costs_of_a_second_exchange_and_of_scalars(unequal_clients):
    table = fedsps.train(model(), unequal_clients, algorithm=fedsps.FedSPSGlobal(), rounds=2, local_steps=3).history
    assert table["exchanges"].tolist() == [2, 1]
    assert table["gradient_evaluations"].tolist() == [5 * 3 + 1, 5 * 3]
    assert table["bytes_up"].tolist() == [5 * (15 + 1) * 8 + 8, 5 * (15 + 1) * 8]
    assert table["bytes_down"].tolist() == [5 * (15 + 1) * 8 + 15 * 8, 5 * (15 + 1) * 8]


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_buffers_are_sent_both_ways(engine, unequal_clients):
    net = nn.Sequential(nn.BatchNorm1d(4, affine=False), nn.Linear(4, 3)).double()
    table = fedsps.train(net, unequal_clients, algorithm="fedsps", rounds=1, engine=engine).history
    assert table["bytes_up"][0] == table["bytes_down"][0] == 5 * (15 + 4 + 4 + 1) * 8, "two statistics and a counter"


def test_what_is_evaluated_and_returned_is_the_output_rules(unequal_clients):
    algorithm = fedsps.FedAvg().with_parts(output=PolynomialAverage(power=0))
    inputs, targets = unequal_clients[1]
    found = fedsps.train(model(), unequal_clients, algorithm=algorithm, rounds=3, test=(inputs, targets))
    loss = F.cross_entropy(found.model(inputs), targets).item()
    assert found.history["test_loss"].iloc[-1] == pytest.approx(loss, rel=1e-12)
    last = fedsps.train(model(), unequal_clients, algorithm=fedsps.FedAvg(), rounds=3, test=(inputs, targets))
    assert last.history["test_loss"].iloc[-1] != pytest.approx(loss, rel=1e-3)


def test_train_loss_follows_the_weights(unequal_clients):
    still = fedsps.FedAvg(client_stepsize=1e-12)
    start = nn.Linear(4, 3).double()
    losses = [F.cross_entropy(start(inputs), targets).item() for inputs, targets in unequal_clients]
    sizes = [len(targets) for _, targets in unequal_clients]
    for weights, expected in (("uniform", np.mean(losses)), ("samples", np.average(losses, weights=sizes))):
        table = fedsps.train(start, unequal_clients, algorithm=still, rounds=1, weights=weights, cohort=2).history
        assert table["train_loss"].item() == pytest.approx(expected, rel=1e-9)


def test_clients_may_be_arrays_or_data_sets(unequal_clients):
    arrays = [(inputs.numpy(), targets.numpy()) for inputs, targets in unequal_clients]
    data_sets = [TensorDataset(*pair) for pair in unequal_clients]
    tables = [fedsps.train(model(), clients, rounds=3).history for clients in (unequal_clients, arrays, data_sets)]
    for table in tables[1:]:
        np.testing.assert_array_equal(table["train_loss"], tables[0]["train_loss"])


def test_float64_data_goes_with_a_float32_model(unequal_clients):
    result = fedsps.train(LogisticRegression(4, 3), unequal_clients, rounds=2)
    assert result.model.weight.dtype == torch.float32


def test_other_losses_have_no_accuracy_and_weighted_ones_are_evaluated_whole(unequal_clients):
    regression = [(inputs, inputs.sum(1, keepdim=True)) for inputs, _ in unequal_clients]
    result = fedsps.train(nn.Linear(4, 1).double(), regression, loss=F.mse_loss, rounds=3, test=regression[0])
    assert result.history["test_accuracy"].isna().all()
    assert result.history["train_loss"].notna().all()
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0, 0.2]).double())
    result = fedsps.train(model(), unequal_clients, loss=loss, rounds=2)
    expected = np.mean([loss(result.model(inputs), targets).item() for inputs, targets in unequal_clients])
    assert result.history["train_loss"].iloc[-1] == pytest.approx(expected)


def test_evaluation_has_its_own_interval(unequal_clients):
    table = fedsps.train(model(), unequal_clients, rounds=7, evaluate_every=3, test=unequal_clients[0]).history
    assert table["round"][table["train_loss"].notna()].tolist() == [3, 6, 7]
    assert table["cohort_loss"].notna().all()
    never = fedsps.train(model(), unequal_clients, rounds=3, evaluate_every=0).history
    assert never["train_loss"].isna().all()


def test_stops_at_a_loss_and_when_the_callback_says_so(unequal_clients):
    free = fedsps.train(model(), unequal_clients, rounds=10).history
    goal = free["train_loss"].sort_values().iloc[3]
    stopped = fedsps.train(model(), unequal_clients, rounds=10, stop_at_loss=goal).history
    assert len(stopped) == free["round"][free["train_loss"] <= goal].iloc[0] < 10
    assert len(fedsps.train(model(), unequal_clients, rounds=10, stop_at_loss=free["train_loss"][0]).history) == 1
    seen = []
    table = fedsps.train(
        model(), unequal_clients, rounds=10, callback=lambda row: seen.append(row) or len(seen) == 3
    ).history
    assert len(table) == 3
    assert [row["round"] for row in seen] == [1, 2, 3]


def test_a_loss_below_its_bound_stops_the_run_with_the_values(unequal_clients):
    with pytest.raises(
        fedsps.LowerBoundError, match=r"round 1: client \d saw a loss of .* below its lower bound of 0\.9"
    ):
        fedsps.train(model(), unequal_clients, algorithm=fedsps.FedSPS(lower=0.9), rounds=20)
    bounds = (0.0, 0.0, 0.0, 0.0, 1.05)
    with pytest.raises(fedsps.LowerBoundError, match="client 4 saw .* 1.05.*or lower"):
        fedsps.train(model(), unequal_clients, algorithm=fedsps.FedDecSPS(lower=bounds), rounds=20)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [0.01, 1.0, 1000.0])
def test_a_loss_below_its_bound_by_rounding_passes(size, dtype):
    """Ten units in the last place of the loss, of 1 at least."""
    unit = torch.finfo(dtype).eps * max(1.0, size)

    def check(units):
        gaps = torch.tensor([0.5, -units * unit, 0.0], dtype=dtype)
        losses = torch.full((3, 2), size, dtype=dtype)
        check_bound(1, Trace(losses, torch.ones_like(losses), gaps), np.array([3, 5, 8]))

    check(9)
    with pytest.raises(fedsps.LowerBoundError, match="round 1: client 5 saw a loss"):
        check(12)


def test_divergence_is_an_outcome_not_an_exception(unequal_clients):
    regression = [(inputs, inputs.sum(1, keepdim=True)) for inputs, _ in unequal_clients]
    for engine in ("loop", "stacked"):
        result = fedsps.train(
            nn.Linear(4, 1).double(), regression, algorithm=fedsps.FedAvg(client_stepsize=1e6), loss=F.mse_loss,
            rounds=200, engine=engine,
        )  # fmt: skip
        assert result.diverged_at == len(result.history) < 200
        assert all(parameter.isfinite().all() for parameter in result.model.parameters())
        assert result.summary["diverged_at"] == result.diverged_at


def test_an_infinite_loss_is_divergence_even_if_the_model_stands_still(unequal_clients):
    def infinite(outputs, targets):
        return outputs.sum() * 0 + torch.inf

    for engine in ("loop", "stacked"):
        found = fedsps.train(
            model(), unequal_clients, algorithm=fedsps.FedAvg(), loss=infinite, rounds=3, engine=engine
        )
        assert found.diverged_at == len(found.history) == 1


def test_a_resumed_run_continues_exactly(unequal_clients, tmp_path):
    averaged = fedsps.FedAvgM(client_stepsize=0.05).with_parts(output=PolynomialAverage())
    for number, algorithm in enumerate(
        [fedsps.FedDecSPS(clock="client"), fedsps.FedSPS(smoothing="loizou", cap=0.1), fedsps.FedSPSGlobal(), averaged]
    ):
        settings = {"algorithm": algorithm, "rounds": 12, "cohort": 3, "batch_size": 5, "test": unequal_clients[0]}
        whole = fedsps.train(model(), unequal_clients, **settings)
        folder = tmp_path / str(number)
        for stop in (4, 9, 12):
            part = fedsps.train(
                model(),
                unequal_clients,
                **settings,
                checkpoint=folder,
                callback=lambda row, stop=stop: row["round"] == stop,
            )
            assert len(part.history) == stop
        columns = [column for column in whole.history if column != "seconds"]
        assert whole.history[columns].equals(part.history[columns])
        assert torch.equal(whole.model.weight, part.model.weight)


def test_a_resumed_run_may_be_longer_and_evaluated_more_often(unequal_clients, tmp_path):
    fedsps.train(model(), unequal_clients, rounds=2, evaluate_every=0, checkpoint=tmp_path)
    found = fedsps.train(model(), unequal_clients, rounds=4, evaluate_every=1, checkpoint=tmp_path)
    assert found.history["train_loss"].notna().tolist() == [False, False, True, True]


def test_batch_norm_statistics_survive_a_resume(tmp_path):
    net = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)).double()
    whole = fedsps.train(net, make_clients(), rounds=4)
    fedsps.train(net, make_clients(), rounds=4, checkpoint=tmp_path, callback=lambda row: row["round"] == 2)
    again = fedsps.train(net, make_clients(), rounds=4, checkpoint=tmp_path)
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[name])


class LearnedLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(()))

    def forward(self, outputs, targets):
        return F.cross_entropy(outputs / self.temperature, targets)


def double_loss(outputs, targets):
    return 2 * F.cross_entropy(outputs, targets)


def test_a_checkpoint_of_another_run_is_refused(unequal_clients, tmp_path):
    fedsps.train(model(), unequal_clients, rounds=1, checkpoint=tmp_path)
    for change in ({"seed": 1}, {"algorithm": fedsps.FedSPS(cap=2.0)}, {"batch_size": 3}, {"loss": double_loss}):
        with pytest.raises(fedsps.DataError, match="belongs to another run"):
            fedsps.train(model(), unequal_clients, rounds=2, checkpoint=tmp_path, **change)
    another_start = model()
    another_start.bias.data[2] = 1e-9
    with pytest.raises(fedsps.DataError, match="belongs to another run"):
        fedsps.train(another_start, unequal_clients, rounds=2, checkpoint=tmp_path)
    (tmp_path / "checkpoint.safetensors").write_bytes(b"damaged")
    with pytest.raises(fedsps.DataError, match="cannot be read .* delete it to start again"):
        fedsps.train(model(), unequal_clients, rounds=2, checkpoint=tmp_path)


@pytest.mark.parametrize("what", ["inputs", "targets", "sizes"])
def test_a_checkpoint_knows_its_data(what, unequal_clients, tmp_path):
    """As many clients and samples of the same kind: one value, one label, or whose sample it is."""
    fedsps.train(model(), unequal_clients, rounds=1, checkpoint=tmp_path)
    inputs, targets = (torch.cat(parts) for parts in zip(*unequal_clients, strict=True))
    sizes = [len(one) for _, one in unequal_clients]
    if what == "inputs":
        inputs[7, 2] += 1e-9
    elif what == "targets":
        targets[7] = (targets[7] + 1) % 3
    else:
        sizes[2:4] = sizes[3], sizes[2]
    others = list(zip(inputs.split(sizes), targets.split(sizes), strict=True))
    with pytest.raises(fedsps.DataError, match="belongs to another run"):
        fedsps.train(model(), others, rounds=2, checkpoint=tmp_path)


def test_a_checkpoint_knows_frozen_parameters(unequal_clients, tmp_path):
    def net(value):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)).double()
        module[0].weight.requires_grad_(False).fill_(value)
        return module

    fedsps.train(net(0.1), unequal_clients, rounds=1, checkpoint=tmp_path)
    with pytest.raises(fedsps.DataError, match="belongs to another run"):
        fedsps.train(net(0.2), unequal_clients, rounds=2, checkpoint=tmp_path)


def test_results_are_saved_and_loaded_without_pickle(unequal_clients, tmp_path):
    net = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)).double()
    result = fedsps.train(net, unequal_clients, rounds=3, test=unequal_clients[0])
    folder = result.save(tmp_path / "run")
    assert {path.name for path in folder.iterdir()} == {
        "spec.json",
        "clients.csv",
        "history.parquet",
        "summary.json",
        "model.safetensors",
    }
    given = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)).double()
    start = given[1].weight.detach().clone()
    again = fedsps.load(folder, model=given)
    assert torch.equal(given[1].weight, start) and given.training, "the caller's model is left alone"
    assert not again.model.training
    pd.testing.assert_frame_equal(again.clients, result.clients)
    assert again.history.equals(result.history)
    assert again.summary == result.summary
    for name, value in result.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], value)
    assert fedsps.load(folder).model is None
    with pytest.raises(fedsps.DataError, match="do not fit the model"):
        fedsps.load(folder, model=nn.Linear(4, 3))
    with pytest.raises(fedsps.DataError, match="not the folder of a finished run"):
        fedsps.load(tmp_path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"algorithm": fedsps.FedSPS}, "algorithm must be one, like fedsps.FedPolyak"),
        ({"algorithm": "fedspss"}, "did you mean fedsps"),
        ({"algorithm": fedsps.FedSPS}, "algorithm must be one"),
        ({"stop_at_loss": 0.1, "evaluate_every": 0}, "stop_at_loss needs evaluations"),
        ({"loss": LearnedLoss()}, "trainable parameters, which would not be trained"),
        ({"rounds": 0}, "rounds must be a whole number of at least 1; got 0"),
        ({"local_steps": 2.5}, "local_steps must be a whole number"),
        ({"batch_size": -1}, r"batch_size \(None: all\) must be a whole number of at least 1; got -1"),
        ({"cohort": 9}, "cohort is 9, but there are only 5 clients"),
        ({"weights": "sample"}, "did you mean samples"),
        ({"engine": "stack"}, "did you mean stacked"),
        ({"augment": "crop-flip"}, r"needs images .* inputs are \(4,\)"),
        ({"algorithm": fedsps.FedSPS(lower=(0.0, 0.0))}, "lower has 2 values for 5 clients"),
    ],
)
def test_wrong_settings_are_refused(settings, message, unequal_clients):
    with pytest.raises(fedsps.ConfigurationError, match=message):
        fedsps.train(model(), unequal_clients, **settings)


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ([], "clients is empty"),
        ((torch.ones(3, 4), torch.ones(3)), "a list with one .* pair for each client"),
        ([(torch.ones(3, 4), torch.ones(2))], r"client 0 has inputs of shape \(3, 4\) and targets of \(2,\)"),
        ([(torch.ones(3, 4), torch.ones(3)), (torch.ones(0, 4), torch.ones(0))], "client 1 has no sample"),
        ([(torch.ones(3, 4), torch.ones(3)), (torch.ones(3, 5), torch.ones(3))], "client 1's inputs are .* client 0's"),
        ([(torch.tensor([[math.nan]]), torch.ones(1))], "client 0's inputs hold NaN"),
        (["data"], "client 0's data must be"),
    ],
)
def test_wrong_data_is_refused(clients, message):
    with pytest.raises(fedsps.DataError, match=message):
        fedsps.train(model(), clients, rounds=1)


@pytest.mark.parametrize("where", ["play_round", "evaluated"])
def test_an_interrupt_saves_the_rounds_that_were_done(unequal_clients, tmp_path, monkeypatch, where):
    """In training or in an evaluation: the run goes on with the round that was broken off."""
    from fedsps.engine import session

    whole = fedsps.train(model(), unequal_clients, rounds=5)
    calls, original = [], getattr(session, where)

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(*arguments)

    monkeypatch.setattr(session, where, interrupted)
    with pytest.raises(KeyboardInterrupt):
        fedsps.train(model(), unequal_clients, rounds=9, checkpoint=tmp_path)
    rounds = []
    found = fedsps.train(
        model(), unequal_clients, rounds=5, checkpoint=tmp_path, callback=lambda row: rounds.append(row["round"])
    )
    assert rounds == [3, 4, 5]
    columns = ["round", "train_loss", "stepsize_mean"]
    assert found.history[columns].equals(whole.history[columns])


@pytest.mark.parametrize(("seconds", "first"), [(0.0, 4), (1e9, 1)])
def test_a_run_that_died_goes_on_from_its_last_save(unequal_clients, tmp_path, seconds, first):
    class DeathError(Exception):
        """Nothing is saved on it."""

    def dying(row):
        if row["round"] == 3:
            raise DeathError

    settings = {"rounds": 5, "checkpoint": tmp_path, "checkpoint_seconds": seconds}
    with pytest.raises(DeathError):
        fedsps.train(model(), unequal_clients, callback=dying, **settings)
    rounds = []
    fedsps.train(model(), unequal_clients, callback=lambda row: rounds.append(row["round"]), **settings)
    assert rounds == list(range(first, 6))


def test_only_true_stops_training(unequal_clients):
    """Progress bars and files return numbers."""
    assert len(fedsps.train(model(), unequal_clients, rounds=3, callback=lambda row: 5).history) == 3
    for yes in (True, np.True_):
        assert len(fedsps.train(model(), unequal_clients, rounds=3, callback=lambda row, yes=yes: yes).history) == 1


def test_numpy_numbers_are_numbers(unequal_clients, tmp_path):
    found = fedsps.train(model(), unequal_clients, rounds=np.int64(2), local_steps=np.int32(2), seed=np.int64(1))
    found.save(tmp_path)
    assert fedsps.load(tmp_path, model()).spec.plan.local_steps == 2


def test_partial_losses_are_told_apart(unequal_clients, tmp_path):
    for smoothing in (0.1, 0.9):
        loss = partial(F.cross_entropy, label_smoothing=smoothing)
        fedsps.train(model(), unequal_clients, rounds=2, loss=loss, checkpoint=tmp_path / str(smoothing))
    with pytest.raises(fedsps.FedspsError, match="belongs to"):
        fedsps.train(model(), unequal_clients, rounds=3, loss=loss, checkpoint=tmp_path / "0.1")


def test_a_gradient_that_overflows_is_divergence_not_a_stepsize_of_0():
    clients = [(1e16 * torch.ones(4, 1), torch.ones(4, 1))] * 2
    found = fedsps.train(nn.Linear(1, 1), clients, rounds=3, loss=F.mse_loss)
    assert found.diverged_at == 1


class Endless(IterableDataset):
    def __iter__(self):
        yield from ()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (Endless(), "client 0's data set has no length"),
        (
            (torch.ones(2, 4), ["a", "b"]),
            r"client 0's samples cannot be made into two tensors \(.*give arrays of numbers",
        ),
        ((torch.ones(2, 4), torch.tensor([1.0, torch.nan])), "client 0's targets hold NaN or infinity"),
        ((np.ones((2, 4))[::-1], np.zeros(2)), "client 0's samples cannot be made into two tensors"),
    ],
)
def test_data_that_is_no_numbers_is_refused(data, message):
    with pytest.raises(fedsps.DataError, match=message):
        fedsps.train(model(), [data], rounds=1)


@pytest.mark.parametrize(
    ("test", "message"),
    [
        ((torch.ones(2, 4), torch.tensor([0, 3])), "the model has 3 outputs, but targets go from 0 to 3"),
        ((torch.ones(2, 5), torch.tensor([0, 1])), "cannot take a batch of the test data"),
    ],
)
def test_test_data_is_tried_before_training(unequal_clients, test, message):
    rounds = []
    with pytest.raises(fedsps.ConfigurationError, match=message):
        fedsps.train(model(), unequal_clients, rounds=2, test=test, callback=rounds.append)
    assert rounds == []


def test_a_single_test_sample_is_enough_for_batch_norm():
    """It is evaluated, not trained on."""
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).double()
    inputs, targets = make_clients()[4]
    found = fedsps.train(net, [(inputs, targets)], rounds=1, test=(inputs[:1], targets[:1]))
    right = found.model(inputs[:1]).argmax() == targets[0]
    assert found.history["test_accuracy"][0] == float(right)


def test_a_callback_cannot_change_the_history(unequal_clients):
    table = fedsps.train(model(), unequal_clients, rounds=2, callback=lambda row: row.clear()).history
    assert table["round"].tolist() == [1, 2]
