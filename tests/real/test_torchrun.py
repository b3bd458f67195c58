"""torchrun itself: the same run on one, two and three ranks; a rank that is killed, and the same command again."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from safetensors import safe_open

pytestmark = pytest.mark.real

ALGORITHM = "feddecsps:clock=client"  # clients keep a state


def words(folder, ranks, *options):
    torchrun = ["torch.distributed.run", "--nproc-per-node", str(ranks), "-m"] if ranks > 1 else []
    return [
        sys.executable,
        "-m",
        *torchrun,
        "fedsps",
        "train",
        ALGORITHM,
        "--cohort",
        "4",
        "--runs",
        str(folder),
        *options,
    ]


def run(folder, ranks, *options):
    return subprocess.run(words(folder, ranks, *options), capture_output=True, text=True, timeout=120, check=False)


@contextmanager
def started(folder, ranks):
    """A run that is long enough to be stopped, in a process group of its own, after its first save."""
    # a shell in the background has its children ignore Ctrl-C
    listening = (
        "import runpy, signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); sys.argv[:1] = []; "
    )
    listening += "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
    python, _, *module = words(folder, ranks, "--rounds", "1000000", "--evaluate-every", "1000")
    before = saved_round(folder)
    process = subprocess.Popen(
        [python, "-c", listening, *module],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 90
        while saved_round(folder) <= before:  # every ten seconds
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.3)
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def saved_round(folder):
    """How far the only run in a folder is; 0 before its first save."""
    for path in folder.glob("*/checkpoint.safetensors"):
        with safe_open(path, "pt") as file:
            return int(file.metadata()["round"])
    return 0


def pid_of(process, rank):
    for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        if f"\0RANK={rank}\0" in f"\0{Path(f'/proc/{child}/environ').read_text()}":
            return int(child)
    raise AssertionError("there is no such rank")


def history(folder):
    (one,) = folder.iterdir()
    return pd.read_parquet(one / "history.parquet").drop(columns="seconds")


def close(first, second):
    np.testing.assert_allclose(first, second, rtol=1e-9, atol=1e-9)


def test_two_ranks_write_what_one_process_writes_and_a_finished_run_is_read(tmp_path):
    options = ["--rounds", "20", "--dtype", "float64", "--json"]
    alone, ranked = run(tmp_path / "1", 1, *options), run(tmp_path / "2", 2, *options)
    assert alone.returncode == ranked.returncode == 0, ranked.stderr
    assert json.loads(ranked.stdout)["digest"] == json.loads(alone.stdout)["digest"], "one answer, by rank 0"
    assert json.loads(ranked.stdout)["summary"]["provenance"]["ranks"] == 2
    close(history(tmp_path / "2"), history(tmp_path / "1"))
    began = next((tmp_path / "2").iterdir()).joinpath("summary.json").stat().st_mtime_ns
    again = run(tmp_path / "2", 3, *options)
    assert again.returncode == 0
    assert json.loads(again.stdout)["summary"] == json.loads(ranked.stdout)["summary"]
    fresh = run(tmp_path / "2", 2, *options, "--fresh")
    assert fresh.returncode == 0
    assert next((tmp_path / "2").iterdir()).joinpath("summary.json").stat().st_mtime_ns > began
    close(history(tmp_path / "2"), history(tmp_path / "1"))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_ends_all(rank, tmp_path):
    with started(tmp_path, 2) as process:
        began = time.monotonic()
        os.kill(pid_of(process, rank), signal.SIGKILL)
        _, shown = process.communicate(timeout=60)
        assert time.monotonic() - began < 30
    assert process.returncode != 0
    errors = [line for line in shown.splitlines() if line.startswith("error: ")]
    where = f"round {saved_round(tmp_path) + 1}" if rank else "its last save"
    assert errors == [f"error: rank {rank} is gone: run the same again, it goes on from {where}"]
    assert "fedsps/engine" not in shown, "no traceback of ours"


def test_ctrl_c_says_how_to_go_on(tmp_path):
    for ranks in (2, 3):
        with started(tmp_path, ranks) as process:
            before = saved_round(tmp_path)
            time.sleep(1)  # some rounds later, and long before the next save
            os.killpg(process.pid, signal.SIGINT)
            _, shown = process.communicate(timeout=60)
        assert process.returncode != 0
        assert "interrupted; the same command goes on where this one stopped" in shown
        assert "error: " not in shown
        assert "fedsps/engine" not in shown
        assert saved_round(tmp_path) > before, "it is saved once more"


PROGRAM = """
import os, sys
import fedsps
def stop(row):
    if row["round"] == int(sys.argv[2]):
        os.kill(os.getpid(), 9)
spec = fedsps.Spec.of("scaffold", rounds=12, cohort=4, dtype="float64")
fedsps.run(spec, sys.argv[1], callback=stop, checkpoint_seconds=0.0)
"""


def run_program(folder, ranks, stop, *torchrun):
    """Twelve rounds; rank 0 kills itself after round `stop`."""
    (program := folder.parent / "program.py").write_text(PROGRAM)
    start = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks), *torchrun] if ranks > 1 else []
    command = [sys.executable, *start, str(program), str(folder), str(stop)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_a_run_on_changing_numbers_of_ranks_has_the_numbers_of_a_straight_one(tmp_path):
    """Rank 0 is killed on two ranks, then on three, and one process finishes; or torchrun starts the ranks again."""
    for ranks, stop in ((2, 5), (3, 9)):
        assert run_program(tmp_path / "runs", ranks, stop).returncode != 0
        assert saved_round(tmp_path / "runs") == stop
    assert run_program(tmp_path / "runs", 1, 0).returncode == 0
    assert run_program(tmp_path / "again", 2, 5, "--max-restarts", "1").returncode == 0
    assert run_program(tmp_path / "straight", 1, 0).returncode == 0
    close(history(tmp_path / "runs"), history(tmp_path / "straight"))
    close(history(tmp_path / "again"), history(tmp_path / "straight"))


def test_a_rank_that_hangs_is_missed(tmp_path):
    with started(tmp_path, 2) as process:
        hanging, first = pid_of(process, 1), pid_of(process, 0)
        os.kill(hanging, signal.SIGSTOP)
        began = time.monotonic()
        while Path(f"/proc/{first}/stat").exists() and "Z" not in Path(f"/proc/{first}/stat").read_text().split()[2]:
            assert time.monotonic() - began < 60
            time.sleep(0.2)
        assert time.monotonic() - began > 15
        os.kill(hanging, signal.SIGKILL)  # torchrun does the same, after half a minute
        _, shown = process.communicate(timeout=60)
    assert f"error: rank 1 is gone: run the same again, it goes on from round {saved_round(tmp_path) + 1}" in shown


@pytest.mark.parametrize(
    ("options", "message", "code"),
    [
        (["--cohort", "99"], "error: --cohort is 99, but there are only 10 clients", 2),
        (["--model", "nowhere.py:Net"], "nowhere.py", 2),
    ],
)
def test_what_is_refused_is_said_once(options, message, code, tmp_path):
    ended = run(tmp_path, 2, *options)
    assert ended.returncode == 1, "torchrun's own"
    assert ended.stderr.count("error: ") == 1
    assert message in ended.stderr
    assert f"exitcode  : {code}" in ended.stderr
    assert "fedsps/engine" not in ended.stderr


def test_a_run_that_diverges_is_a_result(tmp_path):
    options = ["train", "fedavg:client_stepsize=1e39", "--rounds", "5", "--json", "--runs", str(tmp_path)]
    torchrun = ["torch.distributed.run", "--nproc-per-node", "2", "-m"]
    ended = subprocess.run(
        [sys.executable, "-m", *torchrun, "fedsps", *options], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0
    assert json.loads(ended.stdout)["summary"]["diverged_at"] is not None
