"""One search by two processes on a real PostgreSQL server; one of them is killed, and the server at last."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest

from fedsps.runs import tune
from fedsps.runs.space import Search, parse_space
from fedsps.runs.spec import Spec
from fedsps.runs.storage import open_storage

pytestmark = pytest.mark.real
PASSWORD = "Never-to-be-shown"
ALGORITHM = "fedavg:client_stepsize=0.003/0.01/0.03/0.1/0.3/1,server_stepsize=0.1/0.3/0.6/1"
ROUNDS = 150
SILENCE = 6.0
PATIENCE = 240  # seconds, of a machine with much else to do

# `fedsps tune` on a machine of this name, which counts others as dead sooner, and begins when it is told to
PROGRAM = f"""
import platform, sys
platform.node = lambda: sys.argv[1]
from fedsps.runs import tune
tune.BEAT, tune.SILENCE = 0.3, {SILENCE}
from fedsps.cli import tune as command
from fedsps.cli.main import main
print("ready", flush=True)
input()
sys.argv = ["fedsps", *sys.argv[2:]]
main()
"""


@pytest.fixture
def server():
    """A server of its own, with its data in a temporary folder: its URL, and a function that ends it at once."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    program = shutil.which("initdb") or (programs and programs[-1])
    assert program, "PostgreSQL is not installed: make database"
    folder = Path(tempfile.mkdtemp(prefix="fedsps-postgresql-"))
    (folder / "password").write_text(PASSWORD)
    is_root = os.getuid() == 0  # as whom PostgreSQL refuses to run
    if is_root:
        for path in (folder, folder / "password"):
            shutil.chown(path, "postgres")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def command(name, *words):
        user = ["runuser", "-u", "postgres", "--"] if is_root else []
        words = [*user, str(Path(program).resolve().with_name(name)), "-D", str(folder / "data"), *words]
        subprocess.run(words, cwd=folder, check=True, stdout=subprocess.DEVNULL, timeout=60)

    def stop():
        command("pg_ctl", "stop", "-m", "immediate")

    try:
        command("initdb", "-U", "searcher", "--pwfile", str(folder / "password"), "-A", "scram-sha-256", "--no-sync")
        options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        command("pg_ctl", "start", "-w", "-l", str(folder / "log"), "-o", options)
        yield f"postgresql://searcher:{PASSWORD}@127.0.0.1:{port}/postgres", stop
    finally:
        if (folder / "data" / "postmaster.pid").exists():
            stop()
        shutil.rmtree(folder)


def words(url, runs, rounds=ROUNDS):
    return ["tune", ALGORITHM, "--rounds", str(rounds), "--json", "--storage", url, "--runs", str(runs)]


def start(machine, arguments):
    """The command on one machine, which waits for `begin`; what it says goes into a file, and never waits for a reader."""
    out = Path(arguments[-1]).with_suffix(".out")
    with out.open("w") as file:
        program = [sys.executable, "-c", PROGRAM, machine, *arguments]
        process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=file, stderr=file)
    return process, out


def begin(*started):
    for process, out in started:
        wait_until(lambda out=out: "ready" in out.read_text(), process)
    for process, _ in started:
        with process.stdin as told:
            told.write(b"\n")


def searched(rounds):
    named, space = parse_space(ALGORITHM)
    return Search(Spec.of(named, rounds=rounds, seed=tune.TUNING_SEED), space)


def owners(study, *states):
    return Counter(
        trial.user_attrs.get("owner", "").partition(":")[0]
        for trial in study.get_trials()
        if trial.state.name in states
    )


def claimed(study):
    """Trials that somebody computes: a trial that was only just asked for may have no point, or one that others have."""
    return [trial for trial in study.get_trials() if trial.state.name == "RUNNING" and "digest" in trial.user_attrs]


def wait_until(happened, process):
    deadline = time.monotonic() + PATIENCE
    while not happened():
        assert process.poll() is None, "it ended too early"
        assert time.monotonic() < deadline
        time.sleep(0.02)


def assert_no_password(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 24
    for path in files:
        assert PASSWORD.encode() not in path.read_bytes(), path


def test_machines_that_begin_together_run_each_point_once(server, tmp_path):
    url, _ = server
    both = [start(name, words(url, tmp_path / name, rounds=2)) for name in ("first", "second")]
    begin(*both)
    for process, out in both:
        assert process.wait(timeout=PATIENCE) == 0, out.read_text()
    with open_storage(url) as storage:
        states = Counter(trial.state.name for trial in tune._study(searched(rounds=2), storage).get_trials())
    assert states.keys() <= {"COMPLETE", "FAIL"}
    assert states["COMPLETE"] == 24


def test_a_search_outlives_one_of_its_two_machines(server, tmp_path):
    url, _ = server
    search = searched(ROUNDS)
    assert search.size == 24
    with open_storage(url) as storage:
        study = tune._study(search, storage)
        machines = {name: start(name, words(url, tmp_path / name)) for name in ("first", "second")}
        try:
            begin(machines["first"])
            wait_until(lambda: owners(study, "RUNNING")["first"], machines["first"][0])
            begin(machines["second"])
            wait_until(lambda: owners(study, "RUNNING")["second"], machines["second"][0])
            wait_until(lambda: not owners(study, "WAITING"), machines["first"][0])
            while True:  # one is killed in the middle of its last trials, so that the other has little else to do
                wait_until(lambda: claimed(study), machines["first"][0])
                victim = claimed(study)[0].user_attrs["owner"].partition(":")[0]
                killed, _ = machines[victim]
                killed.send_signal(signal.SIGSTOP)
                owner = f"{victim}:{killed.pid}"
                lost = [trial for trial in claimed(study) if trial.user_attrs["owner"] == owner]
                if lost:
                    break
                killed.send_signal(signal.SIGCONT)
            killed.kill()
            assert killed.wait() == -signal.SIGKILL
            (survivor,) = machines.keys() - {victim}
            survived, out = machines[survivor]
            assert survived.wait(timeout=PATIENCE) == 0, out.read_text()
        finally:
            for process, _ in machines.values():
                process.kill()

        trials = study.get_trials()
        ended = [trial for trial in trials if trial.state.name == "COMPLETE"]
        assert {trial.state.name for trial in trials} == {"COMPLETE", "FAIL"}
        assert set(Counter(tuple(trial.params.values()) for trial in ended).values()) == {1}, "each point once"
        assert len(ended) == search.size
        assert set(owners(study, "COMPLETE")) == {victim, survivor}, "what the killed one had finished stays"
        heard = study.user_attrs[owner]
        for one in lost:
            assert trials[one.number].state.name == "FAIL"
            (again,) = (trial for trial in ended if trial.params == tune._params(one))
            assert again.user_attrs["owner"] == f"{survivor}:{survived.pid}"
            assert again.datetime_start.timestamp() > heard + SILENCE, "not before it counts as dead"

    text = out.read_text()
    found = json.loads(text[text.index("{") :])
    alone = tune.run_search(search, tmp_path / "alone")
    assert found["best"] == alone.best.parameters
    space = search.space
    scores = {tuple(row[name] for name in space): row["score"] for row in alone.table.to_dict("records")}
    assert {tuple(row[name] for name in space) for row in found["trials"]} == set(scores)
    for row in found["trials"]:
        assert row["score"] == pytest.approx(scores[tuple(row[name] for name in space)], rel=1e-4)
    assert_no_password(tmp_path)


def test_a_server_that_refuses_or_is_lost(server, tmp_path):
    url, stop = server
    refused, out = start("only", words(url.replace(PASSWORD, "Another-word"), tmp_path / "refused"))
    begin((refused, out))
    assert refused.wait(timeout=PATIENCE) == 2
    text = " ".join(out.read_text().split())
    assert "password authentication failed" in text
    assert "searcher:***@127.0.0.1" in text
    assert "Another-word" not in text
    assert "Traceback" not in text

    lost, out = start("only", words(url, tmp_path / "lost", rounds=2000))
    begin((lost, out))
    try:
        with open_storage(url) as storage:
            study = tune._study(searched(rounds=2000), storage)
            wait_until(lambda: owners(study, "RUNNING")["only"], lost)
        stop()
        assert lost.wait(timeout=PATIENCE) == 2, out.read_text()
    finally:
        lost.kill()
    text = " ".join(out.read_text().split())
    assert "was lost: " in text
    assert "the same command goes on" in text
    assert "Traceback" not in text
    assert PASSWORD not in text
