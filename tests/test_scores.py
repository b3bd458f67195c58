"""Honest numbers: metrics, results by client, validation, patience, the best model, and losses that rise."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from conftest import make_clients
from sklearn.metrics import balanced_accuracy_score, f1_score, roc_auc_score
from torch import nn

import fedsps
from fedsps.engine.metrics import METRICS, is_better, named_metrics
from fedsps.report.collect import collect
from fedsps.report.comparison import comparison
from fedsps.report.page import page
from fedsps.runs.sweep import run_sweep


def net():
    torch.manual_seed(0)
    return nn.Linear(4, 3).double()


def separable(sizes=(20, 30, 40), seed=0):
    """Clients that one linear model fits."""
    random = torch.Generator().manual_seed(seed)
    pairs = []
    for size in sizes:
        inputs = torch.randn(size, 4, generator=random, dtype=torch.float64)
        pairs.append((inputs, inputs[:, :3].argmax(1)))
    return pairs


# Metrics


def test_metrics_are_scikit_learns():
    random = np.random.default_rng(0)
    outputs, classes = torch.from_numpy(random.normal(size=(50, 3))), random.integers(0, 3, 50)
    p, guess, truth = outputs.softmax(1).numpy(), outputs.argmax(1).numpy(), torch.from_numpy(classes)
    assert METRICS["auc"](outputs, truth) == pytest.approx(roc_auc_score(classes, p, multi_class="ovr"))
    assert METRICS["f1"](outputs, truth) == pytest.approx(f1_score(classes, guess, average="macro"))
    assert METRICS["balanced_accuracy"](outputs, truth) == pytest.approx(balanced_accuracy_score(classes, guess))
    logits, yes = torch.from_numpy(random.normal(size=40)), random.integers(0, 2, 40)
    answers = torch.from_numpy(yes).double()
    assert METRICS["auc"](logits, answers) == pytest.approx(roc_auc_score(yes, logits))
    assert METRICS["f1"](logits, answers) == pytest.approx(f1_score(yes, logits.numpy() > 0))
    two = torch.stack([torch.zeros(40).double(), logits], 1)
    assert METRICS["auc"](two, torch.from_numpy(yes)) == pytest.approx(roc_auc_score(yes, logits))
    values = torch.tensor([1.0, 2.0, 4.0])
    assert METRICS["rmse"](values + 2, values) == pytest.approx(2)
    assert METRICS["r2"](values, values) == 1
    assert METRICS["r2"](values.mean().expand(3), values) == pytest.approx(0)


@pytest.mark.parametrize(
    "loss, last, line",
    [("binary", nn.Identity(), 0.0), (nn.BCELoss(), nn.Sigmoid(), 0.5), ("squared", nn.Identity(), 0.5)],
)
def test_a_yes_or_no_is_scored_where_its_loss_draws_the_line(loss, last, line):
    """Under BCELoss every probability is above 0: taken for logits, all were predicted yes."""
    torch.manual_seed(0)
    inputs = torch.randn(80, 4)
    targets = (inputs[:, 0] > 0.3).float()
    model = nn.Sequential(nn.Linear(4, 1), last)
    result = fedsps.train(
        model, [(inputs, targets)], test=(inputs, targets), loss=loss, metrics="auc,f1,balanced_accuracy", rounds=3
    )
    outputs = result.model(inputs)[:, 0].detach()
    truth, guess = targets.numpy(), (outputs > line).numpy()
    assert result.final("test_f1") == pytest.approx(f1_score(truth, guess))
    assert result.final("test_balanced_accuracy") == pytest.approx(balanced_accuracy_score(truth, guess))
    assert result.final("test_auc") == pytest.approx(roc_auc_score(truth, outputs), abs=1e-6)
    if loss != "squared":
        assert result.final("test_accuracy") == pytest.approx((truth == guess).mean())
        said = result.predict(inputs)
        assert (said["prediction"] == guess).all() and ((said["p(1)"] > 0.5) == guess).all()


def test_numbers_are_not_compared_with_logits():
    inputs = torch.randn(20, 4)
    pair = inputs, (inputs[:, 0] > 0).float()
    with pytest.raises(fedsps.ConfigurationError, match="metric 'r2' .* the outputs are logits"):
        fedsps.train(nn.Linear(4, 1), [pair], test=pair, loss="binary", metrics="r2", rounds=1)


def test_metrics_that_have_no_meaning_are_nan_and_ignored_targets_do_not_count():
    outputs = torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]])
    assert np.isnan(METRICS["auc"](outputs, torch.tensor([0, 0, 0])))
    assert np.isnan(METRICS["r2"](torch.ones(1), torch.ones(1)))
    assert METRICS["balanced_accuracy"](outputs, torch.tensor([0, 1, -100])) == 1


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ("auk", "unknown metric 'auk': did you mean auc"),
        (["auc", "auc"], "'auc' twice"),
        ([lambda outputs, targets: 0.0], "has no name"),
        ({"mine": 3}, "metric 'mine' must be a function"),
        ({"loss": F.mse_loss}, "beside the column of that name"),
    ],
)
def test_metrics_are_refused_by_name(metrics, message):
    with pytest.raises(fedsps.ConfigurationError, match=message):
        named_metrics(metrics)


def test_metrics_are_columns_of_the_history_and_functions_may_be_ones_own():
    def worst_margin(outputs, targets):
        return (outputs.gather(1, targets[:, None])[:, 0] - outputs.mean(1)).min()

    clients = separable()
    result = fedsps.train(net(), clients, test=clients[0], metrics=["auc", worst_margin], rounds=3, evaluate_every=2)
    table = result.history
    assert list(table.columns[-2:]) == ["test_auc", "test_worst_margin"]
    assert table["test_auc"].isna().tolist() == [True, False, False]
    inputs, targets = clients[0]
    assert table["test_auc"].iloc[-1] == METRICS["auc"](result.model(inputs).detach(), targets)
    with pytest.raises(fedsps.ConfigurationError, match="metric 'r2' cannot take outputs .* it is for numbers"):
        fedsps.train(net(), clients, test=clients[0], metrics="r2", rounds=1)


def test_which_way_is_better():
    assert is_better("validation_rmse", 1, 2) and is_better("test_loss", 1, 2)
    assert is_better("validation_auc", 2, 1) and not is_better("validation_auc", float("nan"), 1)


# By client


def test_each_client_has_its_row_by_its_name():
    north, south = separable((30, 20))
    still = fedsps.FedAvg(client_stepsize=0.25)
    result = fedsps.train(
        net(), {"north": north, "south": south}, algorithm=still, metrics="f1", test={"north": south, "south": north}, rounds=2
    )  # fmt: skip
    table = result.clients.set_index("client")
    assert list(table.index) == ["north", "south"]
    assert table["samples"].tolist() == [30, 20] and table["test_samples"].tolist() == [20, 30]
    for name, (inputs, targets) in {"north": north, "south": south}.items():
        outputs = result.model(inputs).detach()
        assert table.loc[name, "loss"] == pytest.approx(F.cross_entropy(outputs, targets).item())
        assert table.loc[name, "accuracy"] == (outputs.argmax(1) == targets).double().mean().item()
        assert table.loc[name, "f1"] == METRICS["f1"](outputs, targets)
    assert table.loc["north", "test_loss"] == pytest.approx(table.loc["south", "loss"])
    assert table["stepsize_mean"].tolist() == [0.25, 0.25]
    pooled = [torch.cat(parts) for parts in zip(south, north, strict=True)]
    assert result.final("test_loss") == pytest.approx(F.cross_entropy(result.model(pooled[0]), pooled[1]).item())


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_mean_stepsizes_of_clients_count_their_own_rounds_and_survive_a_resume(engine, tmp_path):
    clients = make_clients()
    whole = fedsps.train(net(), clients, cohort=2, rounds=6, engine=engine)
    fedsps.train(net(), clients, cohort=2, rounds=2, engine=engine, checkpoint=tmp_path)
    resumed = fedsps.train(net(), clients, cohort=2, rounds=6, engine=engine, checkpoint=tmp_path)
    pd.testing.assert_frame_equal(whole.clients, resumed.clients)
    alone = fedsps.train(net(), clients[:1], rounds=4, engine=engine)
    assert alone.clients["stepsize_mean"][0] == pytest.approx(alone.history["stepsize_mean"].mean())
    absent = fedsps.train(net(), clients, cohort=1, rounds=1).clients["stepsize_mean"]
    assert absent.notna().sum() == 1, "a client that never took part has none"


# Validation, patience, the best model


def test_validation_holds_back_a_share_of_each_client():
    clients = separable((10, 20, 1))
    result = fedsps.train(net(), clients, validation=0.2, test=0.1, rounds=2)
    assert result.clients["test_samples"].tolist() == [1, 2, 0]
    assert result.clients["validation_samples"].tolist() == [1, 3, 0]
    assert result.clients["samples"].tolist() == [8, 15, 1]
    assert result.history[["validation_loss", "validation_accuracy", "test_loss"]].notna().all().all()
    again = fedsps.train(net(), clients, validation=0.2, test=0.1, rounds=2)
    assert again.history["validation_loss"].equals(result.history["validation_loss"]), "the seed decides which"
    for bad in (1.5, 0, -0.1):
        with pytest.raises(fedsps.ConfigurationError, match="validation must be data, or a share above 0 and below 1"):
            fedsps.train(net(), clients, validation=bad)


def overfits(**settings):
    """A validation set whose labels contradict: its loss has a minimum early on."""
    clients = separable((15, 15))
    inputs, targets = separable((60,), seed=9)[0]
    noisy = torch.where(torch.arange(60) % 2 == 0, targets, (targets + 1) % 3)
    return fedsps.train(net(), clients, validation=(inputs, noisy), rounds=30, **settings)


def test_patience_ends_a_run_so_many_rounds_after_its_best_one(tmp_path):
    free = overfits()
    best = int(free.history["validation_loss"].idxmin()) + 1
    assert 1 <= best < 20
    stopped = overfits(patience=4)
    assert len(stopped.history) == best + 4
    assert stopped.summary["ended"] == "patience" and free.summary["ended"] == "rounds"
    np.testing.assert_array_equal(stopped.history["train_loss"], free.history["train_loss"][: best + 4])


def test_patience_ends_with_a_round_that_is_evaluated():
    stopped = overfits(patience=6, evaluate_every=5)
    assert stopped.summary["ended"] == "patience" and len(stopped.history) % 5 == 0
    assert stopped.history["train_loss"].notna().iloc[-1]


def test_the_best_model_is_restored_also_by_a_resumed_run(tmp_path):
    free = overfits(restore_best=True)
    best = int(free.history["validation_loss"].idxmin())
    inputs, targets = separable((60,), seed=9)[0]
    noisy = torch.where(torch.arange(60) % 2 == 0, targets, (targets + 1) % 3)
    assert F.cross_entropy(free.model(inputs), noisy).item() == pytest.approx(free.history["validation_loss"][best])

    def die(now):
        if now.round == best + 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        overfits(restore_best=True, checkpoint=tmp_path, callback=die)
    resumed = overfits(restore_best=True, checkpoint=tmp_path)
    assert torch.equal(resumed.model.weight, free.model.weight)
    assert not torch.equal(overfits().model.weight, free.model.weight)


def test_final_numbers_are_those_of_the_model_that_was_kept():
    """With the last round's beside it, the table spoke of a model that nobody has."""
    inputs, targets = separable((50,), seed=4)[0]
    result = overfits(restore_best=True, test=(inputs, targets))
    best = int(result.history["validation_loss"].idxmin())
    assert result.kept_round == result.summary["kept_round"] == best + 1 < len(result.history)
    accuracy = (result.model(inputs).argmax(1) == targets).double().mean().item()
    assert result.summary["final_test_accuracy"] == result.final("test_accuracy") == pytest.approx(accuracy)
    assert result.summary["final_train_loss"] == result.history["train_loss"][best] != result.end_loss
    row = comparison({"one": [result]}).table.iloc[0]
    assert row["final_test_accuracy"] == pytest.approx(accuracy)
    assert row["final_train_loss"] == result.history["train_loss"][best]
    assert overfits().summary["kept_round"] is None


def test_what_is_monitored_must_be_there():
    with pytest.raises(fedsps.ConfigurationError, match="'validation_auc'.*did you mean .*validation_accuracy"):
        overfits(patience=2, monitor="validation_auc")
    with pytest.raises(fedsps.ConfigurationError, match="'test_accuracy'"):
        overfits(patience=2, monitor="test_accuracy")
    with pytest.raises(fedsps.ConfigurationError, match="patience and restore_best need evaluations"):
        overfits(patience=2, evaluate_every=0)
    by_metric = overfits(restore_best=True, metrics="auc", monitor="validation_auc")
    assert by_metric.best("validation_auc")[0] == by_metric.history["validation_auc"].max()


def test_specs_have_them_too(tmp_path):
    spec = fedsps.Spec.of("fedsps", rounds=30, validation=0.2, metrics="auc", patience=2, monitor="validation_accuracy")
    result = fedsps.run(spec, tmp_path)
    assert len(result.history) < 30 and result.summary["ended"] == "patience"
    assert fedsps.run(spec, tmp_path).history.equals(result.history), "a run that patience ended is finished"
    assert fedsps.Spec.from_json(spec.json()) == spec
    compared = fedsps.compare(
        ["fedavg:client_stepsize=0.1/1"], spec=spec.but(rounds=3), runs=tmp_path, metric="test_auc"
    )
    assert compared.table["final_test_auc"].notna().all()


def test_a_column_that_no_run_will_have_is_refused_before_training(tmp_path):
    def never(*_):
        raise AssertionError("trained")

    own = {"model": net(), "clients": separable(), "rounds": 2, "watch": never}
    with pytest.raises(fedsps.ConfigurationError, match="no run would have 'test_auc': add 'auc' to metrics"):
        fedsps.compare(["fedsps"], metric="test_auc", **own)
    with pytest.raises(fedsps.ConfigurationError, match="unknown metric 'auc': did you mean test_auc"):
        fedsps.compare(["fedsps"], metrics="auc", metric="auc", **own)
    with pytest.raises(fedsps.ConfigurationError, match="no run would have 'validation_f1'"):
        fedsps.compare(["fedsps"], spec=fedsps.Spec.of("fedsps"), runs=tmp_path, metric="validation_f1", watch=never)


# Honest numbers


def test_a_run_whose_loss_rose_says_so_everywhere():
    clients = [(inputs * 1000, targets) for inputs, targets in make_clients()]
    with pytest.warns(fedsps.LossRoseWarning, match="above its start of .* inputs of very different sizes"):
        result = fedsps.train(net(), clients, algorithm=fedsps.FedAvg(client_stepsize=10.0), test=clients[0], rounds=3)
    summary = json.loads(json.dumps(result.summary))
    assert summary["loss_rose"] is True and summary["final_train_loss"] > summary["start_train_loss"]
    expected = np.mean([F.cross_entropy(net()(inputs), targets).item() for inputs, targets in clients])
    assert summary["start_train_loss"] == pytest.approx(expected)
    assert comparison({"one": [result]}).table["loss_rose"].tolist() == [1]
    good = fedsps.train(net(), separable(), rounds=3)
    assert good.summary["loss_rose"] is False


def test_final_and_best_stand_beside_each_other():
    result = fedsps.train(net(), separable(), test=make_clients()[3], rounds=8)
    accuracy = result.history["test_accuracy"]
    summary = result.summary
    assert summary["final_test_accuracy"] == accuracy.iloc[-1]
    assert (summary["best_test_accuracy"], summary["best_test_round"]) == (accuracy.max(), accuracy.idxmax() + 1)


def test_the_report_shows_the_clients(tmp_path):
    north, south = separable((30, 20))
    fedsps.train(net(), {"north": north, "<b>south": south}, rounds=1).save(tmp_path / "own")
    text = page(collect([tmp_path]))
    assert "<h2>Clients</h2>" in text and "&lt;b&gt;south" in text and "<b>south" not in text


@pytest.mark.parametrize("hidden", [0, 6])
def test_runs_of_a_sweep_have_the_table_that_they_have_alone(hidden):
    clients = dict(zip("abcde", make_clients(), strict=True))
    model = nn.Sequential(nn.Linear(4, hidden), nn.Linear(hidden, 3)) if hidden else nn.Linear(4, 3)
    settings = {"test": clients, "rounds": 4, "cohort": 2}
    found = fedsps.compare(["fedsps:cap=0.5/1"], model=model.double(), clients=clients, seeds=2, **settings)
    for run in (run for line in found.results.values() for run in line):
        assert run.provenance["sweep"] == 4
        alone = fedsps.train(model, clients, algorithm=run.spec.named.build(), seed=run.spec.plan.seed, **settings)
        pd.testing.assert_frame_equal(run.clients, alone.clients, rtol=1e-9)
        assert run.clients["stepsize_mean"].isna().sum() < 5


def test_a_sweep_that_goes_on_has_counted_all_stepsizes(tmp_path):
    specs = [fedsps.Spec.of(f"fedsps:cap={cap}", rounds=6, clients=4, cohort=2) for cap in (0.5, 1.0)]
    whole = run_sweep(specs, tmp_path / "whole")

    def stop(number, row):
        if row["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_sweep(specs, tmp_path / "cut", watch=stop)
    for one, other in zip(whole, run_sweep(specs, tmp_path / "cut"), strict=True):
        pd.testing.assert_frame_equal(one.clients, other.clients)
