"""The secure aggregation example on Flower's simulation runtime: the plain mean, round after round."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import fedsps
from fedsps.core.streams import torch_seed
from fedsps.data import load, partition
from fedsps.runs.files import read_json

pytestmark = pytest.mark.real
EXAMPLE = Path(__file__).parents[2] / "examples" / "flower-secagg"
CLIENTS = 4


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.fixture(scope="module")
def simulation(tmp_path_factory):
    """A SuperLink that simulates its nodes; `simulation(settings)` runs the example on it and returns its output."""
    folder = tmp_path_factory.mktemp("secagg")
    app, port = folder / "app", free_port()
    shutil.copytree(EXAMPLE, app, ignore=shutil.ignore_patterns("__pycache__"))
    home = folder / "flwr"
    home.mkdir()
    home.joinpath("config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    tools = Path(sys.executable).parent
    source = Path(fedsps.__file__).parents[1]
    environment = os.environ | {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONPATH": str(source),
        "PATH": f"{tools}:{os.environ['PATH']}",
        "XDG_STATE_HOME": str(folder / "state"),
        "OMP_NUM_THREADS": "1",
    }
    words = ["flower-superlink", "--insecure", "--simulation", "--isolation", "subprocess"]
    words += ["--host", "127.0.0.1", "--port", str(port), "--disable-runtime-dependency-installation"]
    with (folder / "superlink.txt").open("w") as log:
        link = subprocess.Popen(words, env=environment, cwd=folder, stdout=log, stderr=log, start_new_session=True)

    def run(settings):
        command = ["flwr", "run", str(app), "here", "--stream", "--run-config", settings]
        command += ["--federation-config", f"num-supernodes={CLIENTS} client-resources-num-cpus=1"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
        return done.stdout + done.stderr + (folder / "superlink.txt").read_text()

    try:
        wait_for(port)
        yield run
    finally:
        os.killpg(link.pid, signal.SIGTERM)
        try:
            link.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(link.pid, signal.SIGKILL)


def wait_for(port):
    for _ in range(600):
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError("the SuperLink did not start")


@pytest.mark.parametrize("rounds", [1, 5])
def test_model_is_that_of_the_plain_mean(rounds, simulation, tmp_path):
    output = simulation(f"rounds={rounds} runs='{tmp_path}' batch-size=20 seed=3")
    assert len(list(tmp_path.glob("*/summary.json"))) == 1, output
    (folder,) = tmp_path.iterdir()
    found = torch.cat([value.flatten() for name, value in sorted(load_file(folder / "model.safetensors").items())])
    digits = load("digits")
    parts = partition("dirichlet", digits.targets, clients=CLIENTS, seed=0).rows
    clients = [(torch.from_numpy(digits.inputs[rows]), torch.from_numpy(digits.targets[rows])) for rows in parts]
    with torch_seed(3, "model"):
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    local = fedsps.train(model, clients, algorithm=fedsps.FedSPS(), rounds=rounds, batch_size=20, seed=3)
    expected = torch.cat([value.flatten() for name, value in sorted(local.model.state_dict().items())])
    assert (found - expected).abs().max() < 1e-4
    assert (expected - torch.cat([p.detach().flatten() for p in (model[1].bias, model[1].weight)])).abs().max() > 1e-2
    table = fedsps.Result.load(folder).history
    assert table["clients"].tolist() == [CLIENTS] * rounds
    assert table["cohort_loss"].to_numpy() == pytest.approx(local.history["cohort_loss"].to_numpy(), abs=1e-4)
    assert read_json(folder / "summary.json")["best_test_accuracy"] > 0.2
