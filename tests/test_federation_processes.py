"""Processes and state of a federation, and its command; real ones are brought up in tests/real."""

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from fedsps.cli.main import app
from fedsps.deploy import commands, deployment, processes, programs, run, up
from fedsps.deploy import keys as key_files
from fedsps.errors import ConfigurationError, FedspsError
from fedsps.runs import files as lock

TINY = Path(__file__).parent / "real" / "tiny_app"


@pytest.fixture
def keys(tmp_path):
    return key_files.make(tmp_path / "keys", 2)


# Processes


SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def sleeper(tmp_path):
    """A marked process with a marked child in another session and one for its log, and an unmarked one."""
    program = f"import subprocess, time; subprocess.Popen({SLEEP!r}, start_new_session=True); time.sleep(60)"
    marked = processes.start("one", [sys.executable, "-c", program], dict(os.environ), "m1", "", tmp_path / "log")
    with subprocess.Popen(SLEEP, env=os.environ | {processes.MARK: "m2"}) as other:
        assert processes.wait_until(lambda: len(processes.members("m1")) == 3, 20)
        yield marked, other
        processes.kill_members("m1")
        other.kill()


def test_children_are_found_and_killed_others_are_not(sleeper):
    marked, other = sleeper
    assert marked.is_alive()
    assert marked.cpu_seconds() > 0
    assert os.getsid(marked.pid) == marked.pid
    os.kill(marked.pid, signal.SIGKILL)  # the child is an orphan now, in a session of its own
    assert processes.wait_until(lambda: not marked.is_alive(), 10)
    assert len(processes.members("m1")) == 2
    processes.kill_members("m1")
    assert not processes.members("m1")
    assert other.poll() is None


@pytest.mark.parametrize("change", [{"started": 1}, {"command": ("another",)}])
def test_a_recycled_process_id_is_never_signalled(sleeper, change):
    _, other = sleeper
    here = processes._stat(other.pid)
    true = processes.Process("x", other.pid, here.started, processes._command(other.pid), "", "")
    assert true.is_alive()
    recycled = replace(true, **change)
    assert not recycled.is_alive()
    processes.ask_to_end([recycled], grace=0.1)
    time.sleep(0.3)
    assert other.poll() is None
    processes.ask_to_end([replace(recycled, started=here.started, command=true.command, pid=2**22 + 1)], grace=0.1)


def test_ask_to_end_ends_it(sleeper):
    marked, _ = sleeper
    processes.ask_to_end([marked], grace=10)
    assert not marked.is_alive()


# State


def test_state_is_written_and_read(tmp_path):
    process = processes.Process("superlink", 1, 2, ("a", "b"), "127.0.0.1:1", "log")
    made = deployment.Deployment(tmp_path, "127.0.0.1:1", 2, True).with_process(process)
    assert deployment.load(tmp_path) == made
    assert deployment.Deployment(tmp_path, "", 2, True).mark != made.mark
    assert [path.name for path in tmp_path.iterdir()] == ["federation.json"]


def test_a_state_that_cannot_be_used(tmp_path):
    assert deployment.load(tmp_path) is None
    (tmp_path / deployment.NAME).write_text("{")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        deployment.load(tmp_path)
    deployment.Deployment(tmp_path, "", 2, True, machine="elsewhere").save()
    with pytest.raises(ConfigurationError, match="belongs to the machine elsewhere"):
        deployment.load(tmp_path)


def test_a_folder_of_other_things_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(ConfigurationError, match="holds other things"):
        deployment.prepare(tmp_path)
    with pytest.raises(ConfigurationError, match="is a file"):
        deployment.prepare(tmp_path / "thesis.tex")
    made = deployment.prepare(tmp_path / "federation")
    assert deployment.prepare(made) == made
    assert (made / ".gitignore").read_text().endswith("*\n")
    assert stat.S_IMODE(made.stat().st_mode) == 0o700


def test_only_one_command_at_a_time(tmp_path):
    with (
        lock.only_one(tmp_path, "busy"),
        pytest.raises(ConfigurationError, match="busy"),
        lock.only_one(tmp_path, "busy"),
    ):
        pass
    with lock.only_one(tmp_path, "busy"):
        pass


# Up and run, without Flower


def test_ports():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=rf"port {port} cannot be had \(Address already in use\)"):
            up.free_ports(2, port)
    ports = up.free_ports(5, port)
    assert ports[0] == port
    assert len(set(ports)) == 5


def test_a_taken_default_port_is_replaced(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setattr(up, "PORT", taken.getsockname()[1])
        assert up.free_ports(1, None) != [up.PORT]


def test_node_settings():
    assert up.own_configs([], 3) == ["", "", ""]
    assert up.own_configs(["a=1"], 3) == ["a=1"] * 3
    assert up.own_configs(["a=1", 'b="x y"'], 2) == ["a=1", 'b="x y"']
    for given, complaint in [(["a=1", "b=1"], "given 2 times"), (["a"], "cannot read 'a'"), (["x=1 state-dir=2"], "state-dir is set by"), (["x=["], "no number")]:  # fmt: skip
        with pytest.raises(ConfigurationError, match=complaint):
            up.own_configs(given, 3)


def test_secure_is_what_the_programs_are_told(keys):
    link, link_exec, gateway = (list(one.words) for one in commands.server("h", 1, 2, keys, secure=True))
    node, _ = (list(one.words) for one in commands.node(1, "h:1", 3, keys, True, "c"))
    assert "--enable-supernode-auth" in link
    assert "--insecure" not in link + link_exec + gateway + node
    assert node[-1] == str(keys.node(1))
    for words in [
        one.words for one in (*commands.server("h", 1, 2, keys, False), *commands.node(1, "h:1", 3, keys, False, "c"))
    ]:
        assert "--insecure" in words


@pytest.mark.parametrize("secure", [True, False])
def test_only_the_gateway_can_be_reached_and_apps_need_the_secret(keys, secure):
    link, link_exec, gateway = commands.server("0.0.0.0", 1, 2, keys, secure)
    node, node_exec = commands.node(1, "h:1", 3, keys, secure, "c")
    assert gateway.address == "0.0.0.0:1"
    for one, its_exec, port, secret in ((link, link_exec, 2, "server.secret"), (node, node_exec, 3, "node-1.secret")):
        assert one.address == f"127.0.0.1:{port}"
        assert one.words[one.words.index("--isolation") + 1] == "process"
        assert one.words[one.words.index("--host") + 1] == "127.0.0.1"
        for words in (one.words, its_exec.words):
            assert words[words.index("--superexec-auth-secret-file") + 1] == str(keys.folder / secret)


def test_lines_of_a_log_have_times(tmp_path):
    log = tmp_path / "log"
    processes.start("one", ["sh", "-c", "echo out; echo err >&2"], dict(os.environ), "mark", "", log)
    assert processes.wait_until(lambda: log.read_text().count("\n") == 2, 10)
    assert all(
        re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ (out|err)", line) for line in log.read_text().splitlines()
    )


def test_what_a_log_explains(tmp_path):
    log = tmp_path / "log"
    log.write_text("one\n\x1b[91mERROR \x1b[0m: no key\nmore\n" + "noise\n" * 50)
    assert up.explanation(str(log)).startswith("ERROR : no key\nmore")
    log.write_text("".join(f"line {number}\n" for number in range(50)))
    assert up.explanation(str(log)).splitlines() == [f"line {number}" for number in range(35, 50)]


def test_lines_of_a_run():
    lines = [
        "Using SuperLink: x (127.0.0.1:1)\n",
        "\x1b[92mINFO \x1b[0m:      Starting logstream for run_id `1`\n",
        "\x1b[92mINFO \x1b[0m:      Start `flwr-serverapp` process\n",
        "Successfully installed tiny to /x.\n",
        "round 1: loss 2.3\n",
        "\x1b[92mINFO \x1b[0m:      \n",
        "\x1b[92mINFO \x1b[0m:      [ROUND 1/3]\n",
        "\x1b[93mWARNING \x1b[0m:   careful\n",
        "\x1b[91mERROR \x1b[0m:     ServerApp raised an exception\n",
        "Traceback\n",
    ]
    assert list(run.plain(iter(lines))) == ["round 1: loss 2.3", "[ROUND 1/3]", "WARNING :   careful"]


def test_what_is_no_app_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match=r"no Flower app, it has no pyproject.toml"):
        run.check_app(tmp_path, [])
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    with pytest.raises(ConfigurationError, match=r"has no \[tool.flwr.app\]"):
        run.check_app(tmp_path, [])
    (tmp_path / "pyproject.toml").write_text("[project\n")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        run.check_app(tmp_path, [])
    run.check_app(TINY, ["rounds=1 fail=true", "pause=1"])
    with pytest.raises(ConfigurationError, match=r"unknown run setting of tiny_app 'round': did you mean rounds\?"):
        run.check_app(TINY, ["round=1"])


def test_a_file_of_run_settings_is_found_from_the_users_folder(tmp_path, monkeypatch):
    folder, asked = tmp_path / "federation", []
    monkeypatch.chdir(tmp_path)
    Path("my.toml").write_text("rounds = 2\n")
    monkeypatch.setattr(run, "load", lambda folder: SimpleNamespace(folder=folder, is_up=True))
    monkeypatch.setattr(run, "ask", lambda folder, *words: asked.append(words) or {"run-id": 1})
    monkeypatch.setattr(run, "follow", lambda *_: ("finished:completed", ""))
    assert run.run(TINY, folder, ["my.toml"]).status == "completed"
    assert asked == [("run", str(TINY), programs.CONNECTION, "--run-config", str(tmp_path / "my.toml"))]


@pytest.mark.parametrize(
    ("content", "more", "complaint"),
    [
        (None, [], r"my.toml cannot be read: .*No such file"),
        ("rounds =", [], r"my.toml cannot be read"),
        ("round = 1", [], r"unknown run setting of tiny_app 'round': did you mean rounds\?"),
        ("rounds = 1", ["pause=1"], r"either a file of run settings or settings"),
    ],
)
def test_a_bad_file_of_run_settings_is_refused(tmp_path, content, more, complaint):
    file = tmp_path / "my.toml"
    if content:
        file.write_text(content)
    with pytest.raises(ConfigurationError, match=complaint):
        run.check_app(TINY, [str(file), *more])


# The command


def call(*words, expect):
    """The command's answer, as its user gets it."""
    ended = subprocess.run(
        [sys.executable, "-m", "fedsps", "federation", *words], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == expect, ended.stderr + ended.stdout
    assert "Traceback" not in ended.stderr
    return " ".join((ended.stdout + ended.stderr).split())


def test_nothing_is_up(tmp_path):
    folder = tmp_path / "federation"
    result = CliRunner().invoke(app, ["federation", "status", "--folder", str(folder)])
    assert result.exit_code == 0
    assert "no federation is up" in result.output
    result = CliRunner().invoke(app, ["federation", "status", "--json", "--folder", str(folder)])
    assert json.loads(result.output) == {"up": False}
    result = CliRunner().invoke(app, ["federation", "down", "--folder", str(folder)])
    assert result.exit_code == 0
    assert not folder.exists()


def test_bad_input_is_one_line(tmp_path):
    assert "no federation is up" in call("run", str(TINY), "--folder", str(tmp_path / "x"), expect=2)
    assert "is no Flower app" in call("run", str(tmp_path), "--folder", str(tmp_path / "x"), expect=2)


def test_without_flower(tmp_path, monkeypatch):
    monkeypatch.setattr(programs.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"pip install 'fedsps\[flower\]'"):
        up.up(tmp_path / "federation")
    assert not (tmp_path / "federation").exists()


def test_an_answer_that_is_none(tmp_path, monkeypatch):
    script = tmp_path / "flwr"
    script.write_text("#!/bin/sh\necho oops >&2\nexit 1\n")
    script.chmod(0o700)
    monkeypatch.setattr(programs.sys, "executable", str(tmp_path / "python"))
    with pytest.raises(FedspsError, match="flwr list fedsps-federation: oops"):
        programs.runs(tmp_path)
    script.write_text("""#!/bin/sh\necho '{"success": false, "error-message": "Using x [code: 15] Bad."}'\n""")
    with pytest.raises(FedspsError, match=r"flwr list fedsps-federation: \[code: 15\] Bad\."):
        programs.runs(tmp_path)
