"""A real federation of processes on this machine: TLS, node keys, runs, failures, and nothing left behind."""

import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient

from fedsps.deploy import commands, hosts, programs
from fedsps.deploy import deployment as state
from fedsps.deploy import keys as key_files
from fedsps.deploy.processes import MARK, kill_members, members, wait_until
from fedsps.deploy.up import COLD, free_ports

pytestmark = pytest.mark.real

TINY = Path(__file__).parent / "tiny_app"


def fedsps(*words, expect=0):
    ended = subprocess.run(
        [sys.executable, "-m", "fedsps", "federation", *map(str, words)],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert ended.returncode == expect, ended.stdout + ended.stderr
    assert "Traceback" not in ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


def free_port():
    """Not the default one, which others may have."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def mentions(folder):
    """The processes that name the folder in their command line: a look that owes nothing to the code under test."""
    shown = subprocess.run(["ps", "-eo", "pid,stat,args"], capture_output=True, text=True, check=True).stdout
    return [line for line in shown.splitlines() if str(folder) in line and re.search(r"flower[-.]", line)]


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    folder = tmp_path_factory.mktemp("federation") / "it"
    shown = fedsps("up", "--nodes", 2, "--folder", folder, "--port", free_port())
    assert "2 nodes are online" in shown
    yield folder
    fedsps("down", "--folder", folder)


@pytest.fixture(scope="module")
def intruders(federation, tmp_path_factory):
    """A node with an unregistered key, one without, and one that trusts another CA: each in the first run's way."""
    ours = key_files.Keys(federation / "keys")
    theirs = key_files.make(tmp_path_factory.mktemp("intruders") / "keys", 2)
    address = state.load(federation).address
    unregistered = [*commands.node(0, address, 0, ours, True, "partition-id=7")[0].words[5:-1], str(theirs.node(0))]
    without = unregistered[:-2]
    wrong_ca = list(commands.node(1, address, 0, theirs, True, "partition-id=8")[0].words[5:])
    programs.ask(
        federation, "supernode", "register", str(theirs.public(1)), programs.CONNECTION
    )  # the CA alone is wrong
    right = wrong_ca[:]
    right[right.index(str(theirs.ca_certificate))] = str(ours.ca_certificate)
    started = {}
    for name, options in {"unregistered": unregistered, "without": without, "wrong CA": wrong_ca}.items():
        started[name] = start_node(federation, options)
    yield started, right
    for process, log in started.values():
        end(process)
        log.close()


def start_node(folder, options):
    options = list(options)
    options[options.index("--port") + 1] = str(free_ports(1, free_port())[0])
    log = (folder / "logs" / f"intruder-{os.urandom(3).hex()}.log").open("w+")
    command = [programs.program("flower-supernode"), *options]
    process = subprocess.Popen(
        command, env=programs.environment(folder), stdout=log, stderr=log, start_new_session=True
    )
    return process, log


def end(process):
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
    process.wait(timeout=20)


def test_a_run_goes_to_all_nodes_and_to_nobody_else(federation, intruders):
    started, right = intruders
    shown = fedsps("run", TINY, "--folder", federation, "--run-config", "rounds=2").splitlines()
    assert shown[1:3] == [f"round {number}: 2 nodes, answers from partitions [0, 1]" for number in (1, 2)]
    assert shown[3].endswith("completed")
    assert len(shown) == 4
    for name, (process, log) in started.items():
        assert process.wait(timeout=20) != 0, name
        log.seek(0)
        said = log.read()
        assert "Failed to initialize the connection to the SuperLink" in said
        assert ("SSL/TLS handshake error" in said) == (name == "wrong CA")
    assert json.loads(fedsps("status", "--json", "--folder", federation))["online"] == 2
    process, log = start_node(federation, right)  # the key that was refused for its CA alone
    with log:
        assert wait_until(lambda: programs.online(federation) == 3, 40)
        end(process)


def refused(home, address, ca_certificate, *words):
    """Whether Flower's own command is refused at this address; the home is a folder of a stranger."""
    home.mkdir(exist_ok=True)
    text = f'[superlink.outside]\naddress = "{address}"\nroot-certificates = "{ca_certificate}"\n'
    (home / "config.toml").write_text(text)
    command = [programs.program("flwr"), *map(str, words), "outside"]
    environment = programs.environment(home) | {"FLWR_HOME": str(home)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    return ended.returncode != 0 and "403 Forbidden" in ended.stdout + ended.stderr


def test_from_outside_nothing_can_be_registered_or_started(federation, tmp_path):
    """The attack: with nothing but the public CA certificate one registers a key and starts a run."""
    address, ca_certificate = state.load(federation).address, federation / "keys" / "ca.crt"
    theirs = key_files.make(tmp_path / "keys", 1)
    before = programs.runs(federation)
    home = tmp_path / "home"
    assert refused(home, address, ca_certificate, "supernode", "register", theirs.public(0))
    assert refused(home, address, ca_certificate, "run", TINY)
    assert refused(home, address, ca_certificate, "list")
    assert programs.runs(federation) == before
    trust = ssl.create_default_context(cafile=ca_certificate)
    with httpx.Client(base_url=f"https://{address}", verify=trust, trust_env=False) as client:
        for path in (
            "/v1/control/start-run",
            "/v1/runtime/acquire-task",
            "/v1/fleet/%2e%2e/control/start-run",
            "/docs",
        ):
            assert client.post(path).status_code == 403, path
        assert client.post("/v1/fleet/pull-messages").status_code == 415  # Flower itself answers: not a node's request
        assert client.post("/v1/fleet/push-object", content=bytes(9 * 2**20)).status_code == 413
    assert "403 127.0.0.1 POST b'/v1/control/start-run'" in (federation / "logs" / "gateway.log").read_text()


@pytest.mark.parametrize("who", ["node-0", "superlink"])
def test_no_other_process_on_a_host_can_answer_for_a_node(who, federation):
    """The attack: take a node's work from its port, read the model, push a change; the same with the ServerApp's."""
    (process,) = [one for one in state.load(federation).processes if one.name == who]
    plain = who != "superlink"
    stranger = RuntimeHttpClient.from_server_address(
        server_address=process.address,
        insecure=plain,
        root_certificates=None if plain else (federation / "keys" / "ca.crt").read_bytes(),
        interceptors=[RuntimeVersionHttpInterceptor(component_name="flower-superexec")],
    )
    with pytest.raises(httpx.HTTPStatusError, match="401 Unauthorized"):
        stranger.AcquireTask(AcquireTaskRequest())
    stranger.close()


def test_the_lines_of_a_nodes_log_have_times(federation):
    lines = (federation / "logs" / "node-0.log").read_text().splitlines()
    assert lines and all(re.match(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ ", line) for line in lines)


def test_a_failing_run_says_so(federation):
    shown = fedsps("run", TINY, "--folder", federation, "--run-config", "rounds=0 fail=true", expect=1)
    assert "failed: ServerApp failed with exception: the tiny app fails as asked" in " ".join(shown.split())
    (log,) = [log for log in (federation / "logs").glob("run-*.log") if "fails as asked" in log.read_text()]
    assert "Traceback" in log.read_text()


def test_ctrl_c_stops_the_run_and_not_the_federation(federation):
    program = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from fedsps.cli.main import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", program, "federation", "run", TINY, "--folder", federation, "--run-config", "pause=60.0"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"},
    ) as process:  # fmt: skip
        for line in process.stdout:
            if line.startswith("round 1"):
                break
        process.send_signal(signal.SIGINT)
        shown, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "run stopped; the federation is up" in shown
    assert [run["status"] for run in programs.runs(federation)].count("finished:stopped") == 1


def test_down_leaves_nothing_behind_and_touches_nothing_else(federation):
    mark = state.load(federation).mark
    assert "is up already" in fedsps("up", "--folder", federation, expect=2)
    run = subprocess.Popen(
        [sys.executable, "-m", "fedsps", "federation", "run", TINY, "--folder", federation, "--run-config", "pause=60.0"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    with run, subprocess.Popen(["sleep", "900"]) as unrelated:
        for line in run.stdout:
            if line.startswith("round 1"):
                break
        server, *_ = [process for process in state.load(federation).processes if process.name == "superlink"]
        assert len(members(mark)) > 6, "three programs, their executors, and a server app at work"
        os.kill(server.pid, signal.SIGKILL)
        assert wait_until(lambda: not server.is_alive(), 10)
        said = " ".join(fedsps("status", "--folder", federation, expect=1).split())
        assert "the SuperLink does not run" in said
        assert "superlink died" in said
        assert "is down" in fedsps("down", "--folder", federation)
        assert not members(mark)
        assert not mentions(federation)
        assert "no federation is up" in fedsps("down", "--folder", federation)
        assert unrelated.poll() is None
        unrelated.kill()
        assert run.wait(timeout=30) == 2, "it noticed that the SuperLink is gone"


def test_a_taken_port_leaves_nothing(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        shown = fedsps("up", "--folder", tmp_path / "it", "--port", port, expect=2)
    assert f"port {port} cannot be had" in shown
    assert not (tmp_path / "it" / state.NAME).exists()
    assert not mentions(tmp_path)


def test_a_key_that_flower_refuses_takes_all_down_again(tmp_path):
    folder = tmp_path / "it"
    keys = key_files.make(state.prepare(folder) / "keys", 1)
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    keys.node(0).write_bytes(other.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    keys.public(0).write_bytes(other.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
    shown = fedsps("up", "--nodes", 1, "--folder", folder, "--port", free_port(), expect=2)
    assert "Not an EC public key" in " ".join(shown.split())
    assert "Started server process" in (folder / "logs" / "superlink.log").read_text(), "something was up"
    assert not (folder / state.NAME).exists()
    assert not mentions(tmp_path)


def test_several_hosts_with_the_printed_files_and_commands(tmp_path):
    """Each host is a folder with the files that it is said to need and no others. One of them does without warm nodes."""
    folder, port = tmp_path / "federation", free_port()
    fedsps("keys", "--nodes", 2, "--host", "localhost", "--folder", folder, "--port", port)
    sections = hosts.commands(2, "localhost", port)
    first, server, register, *nodes, last = sections.values()
    places = {name: tmp_path / name for name in ("the server", "the host of node 0", "the host of node 1")}
    for name, place in places.items():
        (place / "keys").mkdir(parents=True)
        for path, _, whom in hosts.destinations(key_files.Keys(folder / "keys"), 2):
            if whom == "every host" or whom.startswith(name):
                shutil.copy(path, place / "keys")
    assert len(list((places["the host of node 1"] / "keys").iterdir())) == 3
    assert not (places["the server"] / "keys" / "ca.key").exists()
    environment = programs.environment(folder) | {MARK: "hosts"}

    def shell(place, lines, log="log", **options):
        with (places[place] / log).open("w") as output:
            command = ["sh", "-ec", "\n".join([*first, *lines])]
            options |= {"cwd": places[place], "env": environment, "stdout": output, "stderr": subprocess.STDOUT}
            return subprocess.Popen(command, start_new_session=True, **options)

    try:
        started = [shell("the server", server)]
        assert wait_until(lambda: "Uvicorn running" in (places["the server"] / "log").read_text(), 120)
        assert shell("the server", register, "register").wait(timeout=90) == 0
        for number, called in enumerate(nodes):
            own = str(free_port())
            moved = [line.replace(str(hosts.NODE_PORT + number), own) for line in called]
            started.append(shell(f"the host of node {number}", [f"export {COLD}={1 - number}", *moved]))

        def both_online():
            shell("the server", last[:1], "list").wait(timeout=60)
            return (places["the server"] / "list").read_text().count("online") == 2

        assert wait_until(both_online, 60)
        assert shell("the server", [last[1].replace("APP", str(TINY))], "run").wait(timeout=200) == 0
        assert "answers from partitions [0, 1]" in (places["the server"] / "run").read_text()
        warm, cold = ((places[f"the host of node {number}"] / "log").read_text() for number in range(2))
        assert "started as flwr-clientapp\n" in warm
        assert "/flwr-clientapp\n" in cold
        outside = tmp_path / "outside"
        assert refused(outside, f"localhost:{port}", folder / "keys" / "ca.crt", "run", TINY)
    finally:
        kill_members("hosts")
        for process in started:
            process.wait(timeout=20)
