"""A training process killed with SIGKILL, and the same command again."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

pytestmark = pytest.mark.real

# a checkpoint after every round, and rounds slow enough to be killed in between
PROGRAM = """
import sys, time
from fedsps.methods.notation import named
from fedsps.runs.run import run
from fedsps.runs.spec import Spec
spec = Spec.of(named("feddecsps", clock="client"), rounds=30, cohort=4)
started = []
def show(row):
    started.append(row["round"])
    print(row["round"], flush=True)
    time.sleep(float(sys.argv[2]))
result = run(spec, sys.argv[1], callback=show, checkpoint_seconds=0.0)
print("first", started[0], flush=True)
"""


def start(folder, delay):
    return subprocess.Popen([sys.executable, "-c", PROGRAM, str(folder), str(delay)], stdout=subprocess.PIPE, text=True)


def test_a_killed_run_goes_on_from_its_last_checkpoint(tmp_path):
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    with start(straight, 0) as process:
        process.communicate(timeout=120)
        assert process.returncode == 0

    with start(killed, 0.1) as process:
        for line in process.stdout:
            if line.strip() == "10":
                break
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait(timeout=30) == -signal.SIGKILL
    (folder,) = killed.iterdir()
    assert not (folder / "summary.json").exists()

    with start(killed, 0) as again:
        out, _ = again.communicate(timeout=120)
        assert again.returncode == 0
    first = int(out.split()[-1])
    assert 10 <= first <= 12, "it went on, and did not begin again"

    tables = [
        pd.read_parquet(next(place.iterdir()) / "history.parquet").drop(columns="seconds")
        for place in (straight, killed)
    ]
    assert tables[0].equals(tables[1])
    weights = [(next(place.iterdir()) / "model.safetensors").read_bytes() for place in (straight, killed)]
    assert weights[0] == weights[1]
    assert not (folder / "checkpoint.safetensors").exists()


def descendants(pid):
    """The ids of the processes that a process started, and that they started."""
    own = [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return own + [other for one in own for other in descendants(one)]


def is_there(pid):
    """Whether a process runs; one that ended and was not asked for its exit code does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(happened, seconds):
    deadline = time.monotonic() + seconds
    while not happened() and time.monotonic() < deadline:
        time.sleep(0.2)
    return happened()


def test_the_workers_of_a_killed_command_end_with_it(tmp_path):
    words = ["compare", "fedsps", "fedavg", "--rounds", "1000000", "--evaluate-every", "0", "--jobs", "2"]
    process = subprocess.Popen([sys.executable, "-m", "fedsps", *words], cwd=tmp_path, stderr=subprocess.DEVNULL)
    workers = []
    try:
        assert wait_until(lambda: len(list(tmp_path.glob("runs/*/checkpoint.safetensors"))) == 2, 120)
        workers = descendants(process.pid)
        assert len(workers) >= 2
        process.kill()
        process.wait(timeout=30)
        assert wait_until(lambda: not any(map(is_there, workers)), 15), [one for one in workers if is_there(one)]
    finally:
        process.kill()
        process.wait()
        for one in filter(is_there, workers):
            os.kill(one, signal.SIGKILL)


def test_ctrl_c_says_how_to_go_on(tmp_path):
    # a shell in the background has its children ignore Ctrl-C
    program = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from fedsps.cli.main import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", program, "train", "--rounds", "100000", "--json"],
        cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("runs/*/checkpoint.safetensors")) and time.monotonic() < deadline:
        time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, shown = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "goes on where this one stopped" in shown
    assert "Traceback" not in shown
