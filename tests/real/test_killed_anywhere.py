"""SIGKILL at random moments of a run: it goes on from its folder, and what comes out is what a straight run gives.

The process that is killed counts the calls of its functions and kills itself at one that a seed draws: inside a round,
an evaluation or a save, between the two files of a checkpoint, or after the last round. So a moment that fails can be
tried again, and no test waits for a clock.
"""

import multiprocessing
import os
import random
import signal
import sys

import numpy as np
import pytest
import torch
from conftest import make_clients
from registry import ALGORITHMS

import fedsps
from fedsps.core.plan import Plan
from fedsps.data.clients import ClientData
from fedsps.engine import setup, sweep
from fedsps.model.logistic import network_of
from fedsps.runs.parallel import run_all

pytestmark = pytest.mark.real

FORKS = multiprocessing.get_context("forkserver")  # imports once, and has no threads when it forks
FORKS.set_forkserver_preload(
    ["torch.func", "pandas", "pyarrow.parquet", "safetensors.torch", "sklearn.datasets", "registry"]
)
MOMENTS = 25
ROUNDS = 6


def keeps_states(algorithm):
    """Whether an algorithm has states on its clients."""
    data = ClientData.of(make_clients())
    return bool(setup.start(setup.Setup(Plan(), network_of(torch.nn.Linear(4, 3).double()), data, algorithm)).clients)


STATEFUL = [name for name, algorithm in ALGORITHMS.items() if keeps_states(algorithm)]


def trained(name, workers, folder):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3).double()
    return fedsps.train(
        model, make_clients(), algorithm=ALGORITHMS[name], rounds=ROUNDS, cohort=3, batch_size=4, workers=workers,
        engine="loop" if workers == 2 else "auto", checkpoint=folder, checkpoint_seconds=0.0,
    )  # fmt: skip


def swept(folder):
    sweep.Sweep.run.__defaults__ = (None, (), 0.0)  # a save after every round
    words = [f"feddecsps:cap={cap},clock=client" for cap in (0.5, 1.0)]
    specs = [fedsps.Spec.of(word, rounds=ROUNDS, cohort=4, seed=seed) for word in words for seed in (0, 1)]
    return run_all(specs, folder)


def dying(at, told, work, *arguments):
    """Do the work, and be killed at a call of a function by its number; without a number tell how many there are."""
    torch.set_num_threads(1)
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += 1
        if calls == at:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(count)
    work(*arguments)
    sys.setprofile(None)
    told.put(calls)


def in_child(at, work, *arguments):
    """The exit code of a process that does the work, and how many calls it made if it came to its end."""
    told = FORKS.SimpleQueue()
    process = FORKS.Process(target=dying, args=(at, told, work, *arguments))
    process.start()
    process.join(120)
    assert process.exitcode is not None, "it hangs"
    return process.exitcode, None if told.empty() else told.get()


def test_there_are_algorithms_of_every_kind():
    assert {"scaffold", "feddecsps", "fedavg, top-k", "fedsps, loizou smoothing"} <= set(STATEFUL)


def test_a_run_killed_anywhere_goes_on_bitwise(tmp_path):
    draw = random.Random(17)
    straight, calls, resumed = {}, {}, []
    for moment in range(MOMENTS):
        name, workers = STATEFUL[moment % len(STATEFUL)], 1 + moment // len(STATEFUL) % 2
        if (name, workers) not in straight:
            straight[name, workers] = trained(name, workers, tmp_path / f"straight {moment}")
        if workers not in calls:  # about as many for all algorithms
            code, calls[workers] = in_child(0, trained, name, workers, tmp_path / f"counted {moment}")
            assert code == 0
        at, folder = draw.randrange(1, calls[workers]), tmp_path / f"killed {moment}"
        code, _ = in_child(at, trained, name, workers, folder)
        resumed.append((folder / "checkpoint.safetensors").exists())
        found, expected = trained(name, workers, folder), straight[name, workers]
        why = f"{name}, {workers} workers, killed at call {at} of {calls[workers]} (exit code {code})"
        assert code in (-signal.SIGKILL, 0), why
        assert found.history.drop(columns="seconds").equals(expected.history.drop(columns="seconds")), why
        for one, other in zip(found.model.parameters(), expected.model.parameters(), strict=True):
            assert torch.equal(one, other), why
    assert sum(resumed) > MOMENTS / 2, "most are killed after a save"


def test_a_sweep_killed_anywhere_goes_on_to_rounding(tmp_path):
    code, calls = in_child(0, swept, tmp_path / "straight")
    assert code == 0
    expected = swept(tmp_path / "straight")
    draw = random.Random(17)
    for moment in range(3):
        folder = tmp_path / f"killed {moment}"
        at = draw.randrange(calls // 3, calls)  # a third is reading the data
        assert in_child(at, swept, folder)[0] == -signal.SIGKILL
        for one, other in zip(swept(folder), expected, strict=True):
            columns = [name for name in other.history if name not in ("seconds", "events")]
            np.testing.assert_allclose(one.history[columns], other.history[columns], rtol=1e-4, atol=1e-6)


def slowly(name, folder, begun, go_on):
    torch.manual_seed(0)

    def hold(row):
        if row["round"] == 2:
            begun.set()
            go_on.wait(60)

    fedsps.train(
        torch.nn.Linear(4, 3).double(), make_clients(), algorithm=ALGORITHMS[name], rounds=ROUNDS, cohort=3,
        batch_size=4, checkpoint=folder, checkpoint_seconds=0.0, callback=hold, workers=1,
    )  # fmt: skip


def test_two_processes_in_one_folder(tmp_path):
    begun, go_on = FORKS.Event(), FORKS.Event()
    first = FORKS.Process(target=slowly, args=("scaffold", tmp_path / "shared", begun, go_on))
    first.start()
    try:
        assert begun.wait(60)
        with pytest.raises(
            fedsps.ConfigurationError, match=r"another process trains this run in .*shared: wait for it"
        ):
            trained("scaffold", 1, tmp_path / "shared")
        go_on.set()
        first.join(60)
        assert first.exitcode == 0
    finally:
        first.kill()
    found, expected = trained("scaffold", 1, tmp_path / "shared"), trained("scaffold", 1, tmp_path / "alone")
    assert found.history.drop(columns="seconds").equals(expected.history.drop(columns="seconds"))
