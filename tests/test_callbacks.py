"""Callbacks: what they are given, when they end a run, and what the ready ones write."""

import logging

import numpy as np
import pytest
import torch
from conftest import make_clients
from torch import nn

import fedsps
from fedsps.runs import callbacks


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)).double()


def test_a_callback_has_the_row_the_round_and_the_model():
    seen = []

    def look(now):
        seen.append((now.round, now.rounds, now["train_loss"], now.row, now.model))

    result = fedsps.train(net(), make_clients(), rounds=3, callback=look)
    assert [one[:2] for one in seen] == [(1, 3), (2, 3), (3, 3)]
    assert [one[2] for one in seen] == result.history["train_loss"].tolist()
    assert type(seen[0][3]) is dict
    assert torch.equal(seen[-1][4][1].weight, result.model[1].weight)
    assert not torch.equal(seen[0][4][1].weight, result.model[1].weight)
    assert not seen[0][4].training


def test_stop_and_true_end_a_run_and_several_are_called():
    told = []
    both = [lambda now: told.append(now.round), lambda now: now.round == 2]
    assert len(fedsps.train(net(), make_clients(), rounds=9, callback=both).history) == 2
    assert told == [1, 2]
    stopped = fedsps.train(net(), make_clients(), rounds=9, callback=lambda now: now.stop() if now.round == 3 else None)
    assert len(stopped.history) == 3 and stopped.summary["ended"] == "callback"
    with pytest.raises(fedsps.ConfigurationError, match="callback must be a function .* got 3"):
        fedsps.train(net(), make_clients(), callback=[3])


def test_context_managers_are_left_however_the_run_ends():
    class Watch:
        def __enter__(self):
            self.events = ["in"]
            return self

        def __call__(self, now):
            self.events.append(now.round)
            if now.round == 2:
                raise KeyboardInterrupt

        def __exit__(self, kind, *rest):
            self.events.append(kind)

    watch = Watch()
    with pytest.raises(KeyboardInterrupt):
        fedsps.train(net(), make_clients(), rounds=3, callback=watch)
    assert watch.events == ["in", 1, 2, KeyboardInterrupt]


def test_a_progress_bar_names_its_metric(capsys):
    fedsps.train(net(), make_clients(), rounds=3, progress=True)
    shown = capsys.readouterr()
    assert shown.out == "" and "3/3" in shown.err and "train loss 1." in shown.err
    fedsps.train(net(), make_clients(), rounds=2, progress=True, evaluate_every=0)
    assert "cohort loss" in capsys.readouterr().err


def test_a_notebook_gets_tqdm(monkeypatch, capsys):
    monkeypatch.setattr(callbacks, "_in_notebook", lambda: True)
    fedsps.train(net(), make_clients(), rounds=3, progress=True)
    assert "3/3" in capsys.readouterr().err


def test_log_lines_go_to_fedsps(caplog):
    with caplog.at_level(logging.INFO, "fedsps"):
        result = fedsps.train(net(), make_clients(), rounds=2, callback=fedsps.Log())
    last = f"round 2/2: train loss {result.history['train_loss'].iloc[-1]:.4g}"
    assert [record.getMessage() for record in caplog.records][-1] == last


def test_tensorboard_is_read_back(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    clients = make_clients()
    result = fedsps.train(net(), clients, rounds=3, test=clients[0], callback=fedsps.TensorBoard(tmp_path))
    written = EventAccumulator(str(tmp_path)).Reload()
    assert {"train_loss", "test_accuracy", "stepsize_mean"} <= set(written.Tags()["scalars"])
    assert "round" not in written.Tags()["scalars"]
    scalars = written.Scalars("train_loss")
    assert [one.step for one in scalars] == [1, 2, 3]
    np.testing.assert_allclose([one.value for one in scalars], result.history["train_loss"], rtol=1e-6)


def test_mlflow_is_read_back(tmp_path):
    from mlflow.tracking import MlflowClient

    tracker = fedsps.MLflow(tmp_path, experiment="hospitals", site="north")
    result = fedsps.train(net(), make_clients(), rounds=3, callback=tracker)
    client = MlflowClient(tmp_path.as_uri())
    run = client.get_run(tracker.run_id)
    assert client.get_experiment(run.info.experiment_id).name == "hospitals"
    assert run.data.params == {"site": "north", "algorithm": repr(fedsps.FedPolyak()), "rounds": "3"}
    assert run.info.status == "FINISHED"
    history = client.get_metric_history(tracker.run_id, "train_loss")
    assert [(one.step, one.value) for one in history] == list(
        zip([1, 2, 3], result.history["train_loss"].tolist(), strict=True)
    )

    def fail(now):
        raise RuntimeError

    with pytest.raises(RuntimeError):
        fedsps.train(net(), make_clients(), rounds=3, callback=[tracker, fail])
    assert client.get_run(tracker.run_id).info.status == "FAILED"


def test_what_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tensorboard", None)
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None)
    monkeypatch.setitem(__import__("sys").modules, "mlflow.tracking", None)
    with pytest.raises(fedsps.ConfigurationError, match=r"pip install 'fedsps\[tensorboard\]'"):
        fedsps.TensorBoard("logs")
    with pytest.raises(fedsps.ConfigurationError, match=r"pip install 'fedsps\[mlflow\]'"):
        fedsps.MLflow()


def test_a_class_is_no_callback():
    """It would be called with the round, make one of itself, and log nothing."""
    with pytest.raises(fedsps.ConfigurationError, match=r"callback is the class Log: make one of it, Log\("):
        fedsps.train(nn.Linear(4, 3).double(), make_clients(), rounds=1, callback=fedsps.Log)
