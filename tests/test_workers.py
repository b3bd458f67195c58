"""Clients side by side: the same numbers to the last bit, whatever the number of workers."""

import threading

import pytest
import torch
from conftest import make_clients
from registry import ALGORITHMS
from test_engines import images
from torch import nn

import fedsps
from fedsps.data.clients import ClientData
from fedsps.engine import workers
from fedsps.engine.setup import Setup
from fedsps.engine.trial import prepare
from fedsps.model.logistic import network_of


class Noisy(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)

    def forward(self, inputs):
        return super().forward(inputs + 0.1 * torch.randn_like(inputs))


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)).double()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_one_two_and_three_workers_give_the_same_bits(name):
    settings = {
        "rounds": 3,
        "local_steps": 2,
        "batch_size": 8,
        "cohort": 5 if "client" in name else 4,
        "engine": "loop",
    }
    clients = make_clients(sizes=(4, 9, 9, 30, 12))
    results = [fedsps.train(net(), clients, algorithm=ALGORITHMS[name], workers=many, **settings) for many in (1, 2, 3)]
    for other in results[1:]:
        assert other.history.drop(columns="seconds").equals(results[0].history.drop(columns="seconds"))
        for key, value in results[0].model.state_dict().items():
            assert torch.equal(value, other.model.state_dict()[key])


def test_the_work_is_shared_by_threads(monkeypatch):
    seen = set()
    original = fedsps.FedSPS().stepsize.__class__.__call__

    def watched(self, state, observed):
        seen.add(threading.get_ident())
        return original(self, state, observed)

    monkeypatch.setattr(fedsps.rules.SPS, "__call__", watched)
    torch.manual_seed(0)
    fedsps.train(fedsps.LeNet(), images(1, 28, (9,) * 6), algorithm="fedsps", workers=2, rounds=2, batch_size=4)
    assert threading.get_ident() not in seen
    assert len(seen) >= 2


def test_an_error_of_one_client_is_raised():
    clients = [(torch.randn(4, 4), torch.tensor([0, 1, 2, 0])) for _ in range(4)]
    with pytest.raises(fedsps.LowerBoundError, match="below its lower bound of 5"):
        fedsps.train(nn.Linear(4, 3), clients, algorithm=fedsps.FedSPS(lower=5.0), engine="loop", workers=2)


@pytest.mark.parametrize(
    ("module", "asked", "decided"),
    [
        (nn.Linear(4, 3), None, 1),
        (nn.Linear(4, 3), 2, 2),
        (nn.Linear(4, 3), 50, 5),
        (nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.1)), 4, 1),
        (Noisy(), 4, 1),
    ],
    ids=["too small to gain", "as asked", "no more than clients", "one generator for all", "whoever draws from it"],
)
def test_how_many_workers_there_are(module, asked, decided):
    network = network_of(module)
    data = ClientData.of(make_clients()).to(network.x, network.accepted)
    setup, _ = prepare(Setup(fedsps.Plan(workers=asked, local_steps=1), network, data, fedsps.FedSPS()), "loop")
    assert setup.workers == decided


def test_a_slow_model_gets_the_cores(monkeypatch):
    monkeypatch.setattr(workers, "cores", lambda: 3)
    network = network_of(fedsps.LeNet())
    data = ClientData.of([(inputs.float(), targets) for inputs, targets in images(1, 28, (20,) * 5)])
    setup, _ = prepare(Setup(fedsps.Plan(), network, data, fedsps.FedSPS()), "auto")
    assert setup.workers == 3


def test_torch_threads_and_its_generator_are_as_they_were():
    model = net()
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    fedsps.train(model, make_clients(sizes=(4, 9, 9)), rounds=2, engine="loop", workers=3)
    assert torch.equal(torch.rand(2), expected)
    torch.manual_seed(3)
    workers.side_by_side(torch.default_generator.manual_seed, [7, 8, 9], 2)
    assert torch.equal(torch.rand(2), expected)
    before = torch.get_num_threads()
    assert workers.side_by_side(lambda number: torch.get_num_threads(), [1, 2, 3], 2) == [1, 1, 1]
    assert torch.get_num_threads() == before


def test_jobs_share_the_cores(monkeypatch):
    monkeypatch.setattr(workers.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert workers.cores() == 8
    for jobs, own in ((2, 4), (3, 2), (20, 1)):
        monkeypatch.setattr(workers, "_processes", jobs)
        assert workers.cores() == own


def test_the_number_of_workers_is_recorded():
    found = fedsps.train(net(), make_clients(sizes=(4, 9, 9)), rounds=1, engine="loop", workers=2)
    assert found.provenance["workers"] == 2
