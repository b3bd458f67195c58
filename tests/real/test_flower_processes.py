"""The Flower engine with real processes on loopback, TLS and node keys on: equality, faults, attackers."""

import os
import re
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
import torch

import fedsps
from fedsps.core import streams
from fedsps.deploy.processes import _family, _stats, start, wait_until
from fedsps.deploy.programs import environment, online
from fedsps.deploy.run import run
from fedsps.deploy.up import down, up
from fedsps.flower import RunConfig

pytestmark = pytest.mark.real

APP = Path(__file__).parent / "faulty_app"
NODES = 3
TIMEOUT = 400  # seconds for a run; it takes a tenth of that on an idle machine


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    folder = tmp_path_factory.mktemp("federation") / "f"
    state = up(folder, NODES)
    yield state
    down(folder)


def go(federation, runs, **config):
    """Run the app; its result, and the lines that its server said."""
    words = " ".join(f"{name.replace('_', '-')}={_quoted(value)}" for name, value in config.items())
    lines = []
    outcome = run(APP, federation.folder, [f'{words} runs="{runs}"'], timeout=TIMEOUT, show=lines.append)
    assert outcome.status == "completed", "\n".join(lines)
    (folder,) = [path.parent for path in Path(runs).glob("*/summary.json")]
    return fedsps.load(folder, model()), lines


def _quoted(value):
    return f'"{value}"' if isinstance(value, str) else value


def model():
    sys.path.insert(0, str(APP))
    from faulty.task import model

    sys.path.remove(str(APP))
    with streams.torch_seed(0, "model"):
        return model()


def local(algorithm, rounds=3, clients=range(NODES), **settings):
    """The same on this machine, in one process."""
    model()
    from faulty.task import samples

    return fedsps.train(
        model(),
        [samples(client) for client in clients],
        algorithm=RunConfig(algorithm=algorithm).built,
        rounds=rounds,
        batch_size=5,
        engine="stacked",
        **settings,
    )


def same(found, expected):
    ours, theirs = found.model.state_dict(), expected.model.state_dict()
    return all(torch.allclose(value, theirs[name], rtol=1e-9, atol=1e-12) for name, value in ours.items())


@pytest.mark.parametrize("algorithm", ["fedsps-global", "mime:client_stepsize=0.05"])
def test_equals_the_local_engine(federation, tmp_path, algorithm):
    """Algorithms with several exchanges and states."""
    found, _ = go(federation, tmp_path, algorithm=algorithm, cohort=2, rounds=2)
    assert same(found, local(algorithm, rounds=2, cohort=2))
    assert found.history["events"].tolist() == [""] * 2


def test_bad_answers_are_refused_and_named(federation, tmp_path):
    kinds = ["nan", "infinity", "shape", "dtype", "missing", "huge", "large", "lines"]
    faults = " ".join(f"1/{round}/{kind}" for round, kind in enumerate(kinds))
    algorithm = "fedavg:client_stepsize=0.05"
    config = {"algorithm": algorithm, "rounds": 8, "test.faults": faults, "evaluate_every": 0}
    found, lines = go(federation, tmp_path, **config)
    events = found.history["events"].tolist()
    assert events[:5] == [
        "client 1: delta holds NaN or infinity",
        "client 1: delta holds NaN or infinity",
        "client 1: delta is torch.float64 of shape (14,), not torch.float64 of (15,)",
        "client 1: delta is torch.float32 of shape (15,), not torch.float64 of (15,)",
        "client 1: message delta is missing",
    ]
    huge, large, text = events[5:]
    assert "times the" in huge and huge.startswith("client 1: its delta has norm ")
    assert re.fullmatch(r"client 1: its answer is larger than \d+ bytes, .* not read", large)
    assert text.startswith("client 1: disk round 9/9  accuracy 1.0000") and len(text) < 600 and text.isprintable()
    assert not any(line.startswith("round 9/9") or "all is well" in line.partition("client 1")[0] for line in lines)
    assert all(line.isprintable() for line in lines)
    assert found.history["clients"].tolist() == [2] * 8
    assert any("2 of 3 clients" in line and "NaN" in line for line in lines)
    assert all(value.isfinite().all() for value in found.model.state_dict().values())


def test_a_node_that_claims_anothers_partition_is_refused(federation, tmp_path):
    """Its key is registered for partition 1; it says that it is 0. Nobody else serves 1, so the run does not begin."""
    lines = []
    asked = f'rounds=1 test.claim=0 runs="{tmp_path}"'
    assert run(APP, federation.folder, [asked], timeout=TIMEOUT, show=lines.append).status == "failed"
    refusal = "says it is partition 0, but its key is registered for partition 1: refused"
    assert any(refusal in line for line in lines), lines
    assert not list(tmp_path.glob("*/summary.json"))


def test_a_slow_node_is_not_waited_for(federation, tmp_path):
    """Its answer comes after the deadline; in a later round it is back, with the state from before."""
    config = {"rounds": 4, "deadline": 45.0, "test.faults": "2/1/sleep60", "evaluate_every": 0}
    found, _ = go(federation, tmp_path, **config)
    table = found.history
    assert table["clients"].tolist()[:2] == [3, 2]
    assert table["events"][1] == "client 2: no answer within 45 s: it is connected, but slow"
    assert 45 <= table["seconds"][1] < 58


def test_a_killed_node_is_missed_and_comes_back(federation, tmp_path):
    marks = tmp_path / "marks"
    marks.mkdir()
    node = next(process for process in federation.processes if process.name == "node-1")
    fresh = []

    def kill_then_return():
        assert wait_until(lambda: any(marks.iterdir()), TIMEOUT)
        for pid in _family({node.pid}, _stats()):  # in mid-round
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert wait_until(lambda: online(federation.folder) == NODES - 1, TIMEOUT)  # Flower refuses it until then
        log = Path(node.log).with_suffix(".again.log")
        fresh.append(start(node.name, node.command, environment(federation.folder), federation.mark, node.address, log))
        assert wait_until(lambda: online(federation.folder) == NODES, TIMEOUT)
        (marks / "back").touch()

    thread = threading.Thread(target=kill_then_return)
    thread.start()
    faults = " ".join(["1/1/hang", *(f"0/{round}/wait" for round in range(2, 12))])  # 200 s for it to come back
    config = {"rounds": 14, "deadline": 40.0, "test.faults": faults, "test.marks": str(marks), "evaluate_every": 0}
    found, _ = go(federation, tmp_path / "runs", **config)
    thread.join()
    counted = found.history["clients"].tolist()
    assert counted[:2] == [3, 2], found.history["events"].tolist()
    assert found.history["events"][1].startswith("client 1: no answer within 40 s: ")
    back = counted.index(3, 1)  # it takes part again
    assert counted[back:] == [3] * (14 - back)
    assert "lost" not in " ".join(found.history["events"])  # with its state
    assert fresh[0].is_alive()


def test_a_killed_server_goes_on(tmp_path):
    """SuperLink and ServerApp are killed in mid-round, and started again: the run is what it would have been.

    The second round was done, and its scores were asked for together with the third's work: both are done again.
    """
    folder, runs = tmp_path / "f", tmp_path / "runs"
    marks = tmp_path / "marks"
    marks.mkdir()
    state = up(folder, NODES)
    try:
        config = {"rounds": 4, "test.faults": "1/2/hang", "test.marks": str(marks)}
        words = " ".join(f"{name}={_quoted(value)}" for name, value in config.items())
        program = [sys.executable, "-m", "fedsps", "federation", "run", str(APP), "--folder", str(folder)]
        asked = subprocess.Popen([*program, "--run-config", f'{words} runs="{runs}"'], stdout=subprocess.DEVNULL)
        assert wait_until(lambda: any(marks.iterdir()), TIMEOUT)
        link = next(process for process in state.processes if process.name == "superlink")
        for pid in _family({link.pid}, _stats()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert asked.wait(100) != 0
        assert not list(runs.glob("*/summary.json"))
        assert list(runs.glob("*/checkpoint.safetensors"))
        down(folder)
        state = up(folder, NODES)
        found, lines = go(state, runs, **config)
        assert "going on after round 1" in lines
        assert same(found, local("scaffold:client_stepsize=0.05", rounds=4))
        assert len(found.history) == 4
    finally:
        down(folder)


def test_equals_the_local_engine_on_the_simulation_runtime(tmp_path):
    """`flwr run` on a SuperLink that simulates its nodes; we start it, so that we can stop it."""
    from fedsps.deploy.up import free_ports

    ports = free_ports(2, None)
    home = tmp_path / "flwr"
    home.mkdir()
    (home / "config.toml").write_text(f'[superlink.sim]\naddress = "127.0.0.1:{ports[0]}"\ninsecure = true\n')
    env = environment(tmp_path) | {"XDG_STATE_HOME": str(tmp_path / "states")}
    words = ["--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(ports[0])]
    words += ["--control-api-address", f"127.0.0.1:{ports[1]}", "--disable-runtime-dependency-installation"]
    link = subprocess.Popen(
        ["flower-superlink", *words],
        env=env,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        asked = ["flwr", "run", str(APP), "sim", "--stream"]
        asked += ["--federation-config", f"num-supernodes={NODES} client-resources-num-cpus=1"]
        asked += ["--run-config", f'cohort=2 rounds=4 runs="{tmp_path / "runs"}"']

        def ran():
            ended = subprocess.run(asked, env=env, capture_output=True, text=True, timeout=TIMEOUT, check=False)
            return "finished:" in ended.stdout or ended.stdout

        assert wait_until(lambda: ran() is True, TIMEOUT, pause=2)
        (folder,) = [path.parent for path in (tmp_path / "runs").glob("*/summary.json")]
        found = fedsps.load(folder, model())
        assert same(found, local("scaffold:client_stepsize=0.05", rounds=4, cohort=2))
    finally:
        for pid in _family({link.pid}, _stats()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        link.wait(20)
