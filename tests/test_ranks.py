"""Several ranks against one process, in float64: every algorithm, both engines; and what happens when one fails."""

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import make_clients
from ranks_program import batch_norm, cases, outcome

import fedsps
from fedsps import Plan
from fedsps.cli import main as command
from fedsps.data.clients import ClientData
from fedsps.engine import distributed, ranks
from fedsps.engine.distributed import pack, unpack
from fedsps.engine.session import local_session
from fedsps.engine.setup import Setup
from fedsps.model.logistic import network_of
from fedsps.model.models import LogisticRegression
from fedsps.runs.checkpoint import Checkpoint, fingerprint

PROGRAM = Path(__file__).with_name("ranks_program.py")
EXACT = {"rtol": 1e-10, "atol": 1e-10}


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def run_ranks(folder, size, kind):
    """What each rank found; the ranks are as torchrun starts them, without its seconds."""
    common = {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1"}
    common |= {"MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen([sys.executable, PROGRAM, folder, kind], env=os.environ | common | {"RANK": str(rank)})
        for rank in range(size)
    ]
    try:
        assert [one.wait(timeout=120) for one in running] == [0] * size
    finally:
        for one in running:
            one.kill()
            one.wait()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(size)]


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return run_ranks(tmp_path_factory.mktemp("two"), 2, "bound")


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    return run_ranks(tmp_path_factory.mktemp("three"), 3, "data")


@pytest.mark.parametrize(("name", "model", "settings"), [pytest.param(*case, id=case[0]) for case in cases()])
def test_two_and_three_ranks_compute_what_one_process_does(name, model, settings, two, three):
    expected = outcome(model, settings)
    for found in (*two, *three):
        one = found[name]
        assert one["diverged_at"] == expected["diverged_at"]
        assert one["weights"].keys() == expected["weights"].keys()
        for key, weights in expected["weights"].items():
            np.testing.assert_allclose(one["weights"][key], weights, **EXACT)
        for column, values in expected["history"].items():
            np.testing.assert_allclose(one["history"][column], values, **EXACT, err_msg=column)


def test_the_cases_end_as_they_should(two):
    assert two[0]["it diverges"]["diverged_at"] is not None
    assert len(two[1]["the callback stops it"]["history"]["round"]) == 2
    assert 1 < len(two[1]["it reaches its loss"]["history"]["round"]) < 30


def test_all_ranks_have_the_same_bits(three):
    for name, one in three[0].items():
        if isinstance(one, dict):
            assert one["weights"] == three[1][name]["weights"] == three[2][name]["weights"]


def test_an_error_of_rank_0_ends_all(two):
    assert two[0]["error"].startswith("LowerBoundError: round 1: client")
    assert two[1]["error"].startswith("RankError: rank 0 failed: round 1: client")
    for one in two:
        assert one["after the error"] == "RankError: the ranks have parted after an error: start again"


def test_a_rank_with_other_data_is_refused_by_its_number(three):
    assert three[0]["error"].startswith("ConfigurationError: rank 1 has not the data of rank 0: all ranks must")
    for one in three[1:]:
        assert one["error"].startswith("RankError: rank 0 failed: rank 1 has not the data of rank 0")


@pytest.mark.parametrize(
    ("change", "what"),
    [({}, None), ({"algorithm": fedsps.FedDecSPS()}, "model, algorithm or plan"), ({"data": 4}, "data")],
    ids=["the same", "algorithm", "data"],
)
def test_a_rank_that_was_asked_something_else_is_refused(change, what, unequal_clients):
    def identity(algorithm=None, data=5):
        network = network_of(LogisticRegression(4, 3).double())
        clients = ClientData.of(unequal_clients[:data])
        setup = Setup(fedsps.Plan(), network, clients, algorithm or fedsps.FedSPS())
        return distributed._identity(setup, fingerprint(setup))

    identities = [identity(), identity(), identity(**change)]
    if what is None:
        distributed._compare(identities)
        return
    with pytest.raises(
        fedsps.ConfigurationError, match=f"^rank 2 has not the {what} of rank 0: all ranks must be given"
    ):
        distributed._compare(identities)


def test_a_rank_that_fails_is_named_and_the_run_is_saved(tmp_path):
    first, second = run_ranks(tmp_path, 2, "broken")
    text = r"RankError: rank 1 failed: MemoryError: no room for a batch: run the same again, it goes on from round "
    assert first["error"].startswith(text)
    assert second["error"] == "MemoryError"
    assert (tmp_path / "checkpoint" / "checkpoint.safetensors").exists()
    assert int(first["error"].split()[-1]) > 1


# One process


class Watched(ranks.Ranks):
    """Rank 0 of three, whose store lies in this process."""

    def __init__(self, store):
        super().__init__(0, 3, store)


@pytest.fixture
def quick(monkeypatch):
    """Short times, and neither signals nor the end of this process are touched."""
    monkeypatch.setattr(ranks, "SILENCE", 0.4)
    monkeypatch.setattr(ranks, "BEAT", 0.05)
    ends = []
    monkeypatch.setattr(ranks.atexit, "register", ends.append)
    monkeypatch.setattr(ranks, "_hear_no_signals", lambda: None)
    return ends


def beating(store, rank, stop):
    def beat():
        number = 0
        while not stop.wait(0.02):
            store.set(f"beat/{rank}", str(number := number + 1))

    threading.Thread(target=beat, daemon=True).start()


def test_a_rank_that_falls_silent_is_gone_and_one_that_beats_is_not(quick):
    store, stop = torch.distributed.HashStore(), threading.Event()
    beating(store, 1, stop)
    began = time.monotonic()
    with pytest.raises(fedsps.RankError, match="^rank 2 is gone$") as caught:
        Watched(store).answers("here")
    assert 0.4 <= time.monotonic() - began < 5
    assert caught.value.speaks
    assert quick == [ranks._end_now], "a silent rank must not keep this process from ending"
    stop.set()


def test_a_rank_that_left_with_an_error_is_told_from_those_that_follow(quick):
    store, stop = torch.distributed.HashStore(), threading.Event()
    beating(store, 1, stop)
    store.set("left/1", "the disk is full")
    store.set("left/2", "")
    with pytest.raises(fedsps.RankError, match="^rank 1 failed: the disk is full$"):
        Watched(store).answers("here")
    assert quick == []
    stop.set()


def test_a_rank_that_only_follows_is_not_the_one_that_is_gone(quick):
    store = torch.distributed.HashStore()
    store.set("left/1", "")
    with pytest.raises(fedsps.RankError, match="^rank 2 is gone$"):
        Watched(store).answers("here")


def test_the_first_rank_that_is_left_speaks_for_rank_0(quick):
    store, stop = torch.distributed.HashStore(), threading.Event()
    beating(store, 2, stop)
    store.set("beat/2", "0")
    for rank, speaks in ((1, True), (2, False)):
        with pytest.raises(fedsps.RankError, match="^rank 0 is gone: run the same again") as caught:
            beating(store, rank, stop)
            ranks.Ranks(rank, 3, store).hear()
        assert caught.value.speaks is speaks
    stop.set()


def test_a_signal_is_heard_once(monkeypatch, quick):
    ignored = []
    monkeypatch.setattr(ranks, "_hear_no_signals", lambda: ignored.append(True))
    one = Watched(torch.distributed.HashStore())
    with pytest.raises(KeyboardInterrupt):
        one.end(signal.SIGINT, None)
    assert ignored == [True]
    with pytest.raises(fedsps.RankError, match="ranks 1, 2 are gone"):
        one.end(signal.SIGTERM, None)


def test_tensors_of_all_kinds_travel_as_bytes():
    parts = [
        torch.tensor(True), torch.arange(3, dtype=torch.int16), torch.zeros(0, 4), torch.rand(2, 3).T,
        torch.tensor([1.5], dtype=torch.bfloat16), torch.tensor(2 - 1j), torch.rand(5, dtype=torch.float64),
    ]  # fmt: skip
    for found, part in zip(unpack(pack(parts), parts), parts, strict=True):
        assert found.dtype == part.dtype
        assert torch.equal(found, part)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"WORLD_SIZE": "2", "RANK": "0"}, "WORLD_SIZE is 2, but there is no MASTER_ADDR and no MASTER_PORT: start by"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE must be a whole number, as torchrun sets it; got 'two'"),
    ],
)
def test_an_environment_that_is_not_torchruns(environment, message, monkeypatch):
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(fedsps.ConfigurationError, match=message):
        fedsps.train(torch.nn.Linear(4, 3), [(torch.zeros(2, 4), torch.tensor([0, 1]))])


def test_several_runs_at_once_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(
        fedsps.ConfigurationError, match="comparison of several runs does not run under torchrun .* jobs"
    ):
        fedsps.compare(["fedsps"], spec=fedsps.Spec.of(rounds=1))
    with pytest.raises(fedsps.ConfigurationError, match="a search does not run under torchrun .* storage"):
        fedsps.tune("fedavg:client_stepsize=0.1/1", rounds=1)


@pytest.mark.parametrize("rank", ["0", "1"])
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["tune", "fedavg"],
            "tune does not run under torchrun, which is for train alone: start it without torchrun; --jobs",
        ),
        (["data", "list"], "data does not run under torchrun, which is for train alone: start it without torchrun"),
        (["train", "--bogus"], "--bogus"),
        (["train"], "WORLD_SIZE is 2, but there is no MASTER_ADDR and no MASTER_PORT"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_rank_0_speaks_for_all(words, message, rank, monkeypatch, capfd):
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setattr(sys, "argv", ["fedsps", *words])
    monkeypatch.setattr(command, "FIRST_WORD", 0.01)
    monkeypatch.setattr("warnings.showwarning", None)
    with pytest.raises(SystemExit) as end:
        command.main()
    assert end.value.code == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert (message in " ".join(err.split())) if rank == "0" else err == ""


def test_ranks_of_one_machine_share_its_cores(two, three):
    assert [one["processes"] for one in (*two, *three)] == [2, 2, 3, 3, 3]


class Thread:
    """A rank of two that are threads of one process: what one sends is what the other takes, in turn."""

    size = 2

    def __init__(self, rank, down, up):
        self.rank, self.leads, self.down, self.up = rank, rank == 0, down, up

    def say(self, words):
        self.down.put(words)

    def hear(self):
        return self.down.get(timeout=30)

    def answers(self, own):
        if self.leads:
            return [own, self.up.get(timeout=30)]
        self.up.put(own)
        return []

    gather = answers

    def broadcast(self, tensor):
        if not self.leads:
            return tensor.copy_(self.hear())
        self.say(tensor.clone())
        return tensor

    def scatter(self, tensor, parts):
        if not self.leads:
            return tensor.copy_(self.hear())
        self.say(parts[1].clone())
        return tensor.copy_(parts[0])


@pytest.mark.parametrize("kind", ["two states of a client", "batch norm"])
def test_a_run_saved_by_one_process_goes_on_with_two_ranks(kind, tmp_path):
    """A file of tensors knows no order but that of names: what ranks send each other must not depend on it."""
    plain, norm = fedsps.LogisticRegression(4, 3).double(), batch_norm()
    model, algorithm = (norm, fedsps.FedAvg()) if kind == "batch norm" else (plain, fedsps.FedDecSPS(clock="client"))
    data = ClientData.of(make_clients(sizes=(6, 9, 12, 15)))

    def setup(rounds):
        return Setup(Plan(rounds=rounds, batch_size=5, local_steps=2), network_of(model), data, algorithm)

    straight = local_session(setup(6))
    straight.run()
    saver = Checkpoint(tmp_path, fingerprint(setup(6)))
    local_session(setup(3)).run(saver=saver)
    down, up = queue.Queue(), queue.Queue()
    other = threading.Thread(target=distributed.follow, args=(Thread(1, down, up), setup(6), "same"), daemon=True)
    other.start()
    resumed = local_session(setup(6), ranks=Thread(0, down, up), fingerprint="same")
    resumed.run(saver=saver)
    distributed.finish(Thread(0, down, up), resumed.end)
    other.join(30)
    assert len(resumed.rows) == 6 and not other.is_alive()
    for found, expected in (
        (resumed.state.x, straight.state.x),
        *zip(
            dict(sorted(resumed.state.buffers.items())).values(),
            dict(sorted(straight.state.buffers.items())).values(),
            strict=True,
        ),
    ):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
