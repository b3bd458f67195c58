"""Devices: found or refused by name, moved to once, and never waited for within a round."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import make_clients
from registry import ALGORITHMS
from torch import nn
from typer.testing import CliRunner

import fedsps
from fedsps.cli.main import app, with_flags
from fedsps.core.vectors import widest
from fedsps.data.clients import ClientData
from fedsps.engine.session import local_session
from fedsps.engine.setup import Setup
from fedsps.model import device as devices
from fedsps.model.logistic import network_of
from fedsps.runs.checkpoint import Checkpoint, fingerprint

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    ("model", "engine", "algorithms"),
    [
        ("logistic", "stacked", len(ALGORITHMS)),
        ("logistic", "loop", len(ALGORITHMS)),
        ("batchnorm", "stacked", len(ALGORITHMS)),
        ("batchnorm", "loop", len(ALGORITHMS)),
        ("logistic", "sweep", 4),
        ("plain", "sweep", 4),
    ],
)
def test_a_round_of_every_algorithm_stays_on_its_device_and_does_not_wait_for_it(model, engine, algorithms):
    words = [sys.executable, str(HERE / "fake_device.py"), model, engine]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == (f"{algorithms} algorithms\n", 0), done.stderr


@pytest.fixture
def machine(monkeypatch):
    """Says which devices there are."""
    return lambda *names: monkeypatch.setattr(devices, "available", lambda: ["cpu", *names])


@pytest.mark.parametrize(
    ("there", "name", "found"),
    [
        ((), "auto", "cpu"),
        (("mps",), "auto", "mps"),
        (("cuda:0", "cuda:1", "mps"), "auto", "cuda:0"),
        (("cuda:0", "cuda:1"), "cuda", "cuda:0"),
        (("cuda:0", "cuda:1"), "cuda:1", "cuda:1"),
        (("cuda:0", "mps"), "cpu", "cpu"),
    ],
)
def test_a_device_is_found_by_its_name(there, name, found, machine):
    machine(*there)
    assert str(devices.find_device(name)) == found


@pytest.mark.parametrize(
    ("there", "name", "message"),
    [
        ((), "cuda", "device is 'cuda', but this machine has only cpu: use one that is there, or auto"),
        ((), "mps", "device is 'mps', but this machine has only cpu"),
        (("cuda:0",), "cuda:1", "device is 'cuda:1', but this machine has only cpu, cuda:0"),
    ],
)
def test_a_device_that_is_not_there_is_refused_with_those_that_are(there, name, message, machine):
    machine(*there)
    with pytest.raises(fedsps.ConfigurationError, match=message):
        fedsps.train(nn.Linear(4, 3), make_clients(), device=name)


def test_float64_on_mps_is_refused_with_the_remedy(machine):
    machine("mps")
    with pytest.raises(fedsps.ConfigurationError, match=r"no float64, and Linear .*: use dtype float32 \(model.float"):
        fedsps.train(nn.Linear(4, 3).double(), make_clients(), device="mps")
    with pytest.raises(fedsps.ConfigurationError, match="no float64, and BatchNorm1d"):
        devices.placed(nn.BatchNorm1d(3, affine=False).double(), "auto")
    assert widest(torch.device("mps")) == torch.float32


def test_a_module_is_moved_as_a_copy_and_so_is_a_loss_with_weights(monkeypatch):
    monkeypatch.setattr(devices, "find_device", lambda name: torch.device("meta"))
    model, loss = nn.Linear(2, 2), nn.CrossEntropyLoss(torch.ones(2))
    assert devices.placed(model, "cuda").weight.device.type == "meta"
    assert devices.placed(loss, "cuda").weight.device.type == "meta"
    assert model.weight.device.type == loss.weight.device.type == "cpu"
    assert devices.placed(model, None) is model
    assert devices.placed(nn.functional.mse_loss, "cuda") is nn.functional.mse_loss


def test_a_run_on_a_named_device_is_that_on_the_models_own(unequal_clients):
    model = nn.Linear(4, 3).double()
    plain, named = (fedsps.train(model, unequal_clients, rounds=3, device=name) for name in (None, torch.device("cpu")))
    assert torch.equal(plain.model.weight, named.model.weight)
    assert plain.provenance["device"] == named.provenance["device"] == "cpu"
    assert (plain.spec.plan.device, named.spec.plan.device) == (None, "cpu")


def test_a_checkpoint_is_read_to_the_device_of_the_run_that_goes_on(tmp_path, unequal_clients):
    network = network_of(fedsps.LogisticRegression(4, 3).double())
    algorithm = fedsps.FedAMS(bias_correction=True)
    setup = Setup(fedsps.Plan(rounds=2, device="cpu"), network, ClientData.of(unequal_clients), algorithm)
    session = local_session(setup)
    session.run(saver=Checkpoint(tmp_path, fingerprint(setup)))
    elsewhere = replace(setup, plan=replace(setup.plan, device="cuda:1"))
    state, rows = Checkpoint(tmp_path, fingerprint(elsewhere), "meta").load()
    assert {value.device.type for value in (state.x, state.result, *state.server.values())} == {"meta"}
    assert state.server["rounds"].dtype == torch.float64
    assert len(rows) == state.round == 2


def test_masked_batches_are_known_without_looking_at_the_device():
    clients = [(torch.zeros(3, 2), torch.tensor([0, -100, 1])), (torch.zeros(2, 2), torch.tensor([1, 1]))]
    data = ClientData.of(clients)
    both, first = torch.tensor([0, 1]).numpy(), torch.tensor([0]).numpy()
    rows = torch.tensor([[[0, 2], [0, 1]], [[0, 1], [0, 1]]]).numpy()
    assert data.ignored.tolist() == [False, True, False, False, False]
    assert data.masked(both, rows) == [False, True]
    assert data.masked(both[1:], rows[:, 1:]) == [False, False]
    assert data.masked(first, rows[:, :1]) == [False, True]
    assert ClientData.of(clients[1:]).ignored is None
    assert ClientData.of([(torch.zeros(2, 2), torch.tensor([-1.0, 1.0]))]).ignored is None


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.mark.parametrize(
    "words",
    [
        ("train", "fedsps"),
        ("compare", "fedsps", "fedavg:client_stepsize=0.1/1"),
        ("tune", "fedavg:client_stepsize=0.1/1"),
        ("evaluate", "nowhere"),
    ],
)
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cuda", "--device is 'cuda', but this machine has only cpu: use one that is there, or auto"),
        ("tpu", "--device must be cpu, cuda, cuda:1 (or another number), mps or auto; got 'tpu'"),
    ],
)
def test_commands_refuse_a_device_in_one_line(words, name, message, tmp_path, machine):
    machine()
    runs = () if words[0] == "evaluate" else ("--runs", tmp_path / "runs", "--rounds", 2)
    done = call(*words, "--device", name, *runs)
    assert isinstance(done.exception, fedsps.ConfigurationError)  # one line and exit code 2, see `main`
    assert with_flags(str(done.exception)) == message


def test_the_command_ends_with_code_2():
    words = [sys.executable, "-m", "fedsps", "train", "--device", "tpu"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--device must be cpu, cuda" in done.stderr
    assert "Traceback" not in done.stderr


def test_auto_is_taken_and_recorded_and_a_finished_run_needs_no_device(tmp_path, machine):
    machine()
    words = ("train", "fedsps", "--rounds", 2, "--runs", tmp_path, "--json")
    done = call(*words, "--device", "auto")
    found = json.loads(done.stdout)
    assert found["summary"]["provenance"]["device"] == "cpu"
    assert json.loads((tmp_path / found["digest"] / "spec.json").read_text())["plan"]["device"] == "auto"
    assert json.loads(call(*words, "--device", "cuda").stdout) == found
    refused = call(*words, "--device", "cuda", "--fresh")
    assert isinstance(refused.exception, fedsps.ConfigurationError)
    assert json.loads(call(*words).stdout) == found  # it deleted nothing
    scores = json.loads(call("evaluate", tmp_path / found["digest"], "--device", "auto", "--json").stdout)
    assert scores["train_loss"] == pytest.approx(found["summary"]["final_train_loss"])


def test_sweeps_record_their_device(tmp_path, machine):
    machine()
    words = ("compare", "fedavg:client_stepsize=0.1/1", "--rounds", 2, "--figure", tmp_path / "a.png", "--json")
    done = call(*words, "--runs", tmp_path, "--device", "auto")
    assert done.exit_code == 0, done.output
    found = [json.loads(path.read_text())["provenance"] for path in tmp_path.glob("*/summary.json")]
    assert [(one["sweep"], one["device"]) for one in found] == [(2, "cpu")] * 2
