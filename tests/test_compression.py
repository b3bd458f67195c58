"""Compressors by hand, their error feedback, and the bits they take."""

import numpy as np
import torch
from conftest import make_clients

import fedsps
from fedsps.model.models import LogisticRegression
from fedsps.rules.compression import ScaledSign, TopK
from fedsps.rules.stepsize import Constant


def test_top_k_by_hand():
    v = torch.tensor([[3.0, -4.0, 1.0, 0.5, 2.0], [0.0, 1.0, -2.0, 3.0, -4.0]])
    assert TopK(0.4).compress(v).tolist() == [[3.0, -4.0, 0, 0, 0], [0, 0, 0, 3.0, -4.0]]
    assert TopK(1e-6).compress(v).tolist() == [[0, -4.0, 0, 0, 0], [0, 0, 0, 0, -4.0]]
    assert torch.equal(TopK(1.0).compress(v), v)
    assert TopK(0.4).bits(v) == 2 * (32 + 3)
    assert [TopK(0.07).kept(d) for d in (100, 200, 1900)] == [7, 14, 133], "no rounding up of 7.000000000000001"


def test_scaled_sign_by_hand():
    v = torch.tensor([1.0, -3.0, 0.0, 4.0])
    assert ScaledSign().compress(v).tolist() == [2.0, -2.0, 2.0, 2.0]
    assert ScaledSign().bits(v) == 4 + 32


def test_what_is_not_sent_is_sent_later():
    """The sum of what was sent and what is left is the sum of what was wanted."""
    for compression in (TopK(0.2), ScaledSign()):
        random = torch.Generator().manual_seed(0)
        state = compression.client_init(torch.zeros(10, dtype=torch.float64))
        wanted = sent = torch.zeros(10, dtype=torch.float64)
        for _ in range(30):
            delta = torch.randn(10, generator=random, dtype=torch.float64)
            message, state = compression(state, delta)
            wanted, sent = wanted + delta, sent + message
        torch.testing.assert_close(sent + state["unsent"], wanted)


def test_the_record_counts_the_bits():
    clients, model = make_clients(), LogisticRegression(4, 3).double()  # d = 15
    plain = fedsps.train(model, clients, algorithm=fedsps.FedAvg(), rounds=2).history
    algorithm = fedsps.Algorithm(stepsize=Constant(0.1), compression=TopK(0.2))
    packed = fedsps.train(model, clients, algorithm=algorithm, rounds=2).history
    assert plain["bytes_up"].tolist() == [5 * 15 * 8] * 2
    assert packed["bytes_up"].tolist() == [5 * int(np.ceil(3 * (64 + 4) / 8))] * 2
    assert packed["bytes_down"].equals(plain["bytes_down"])
    signs = fedsps.Algorithm(stepsize=Constant(0.1), compression=ScaledSign())
    for engine in ("loop", "stacked"):
        table = fedsps.train(model, clients, algorithm=signs, rounds=2, engine=engine).history
        assert table["bytes_up"].tolist() == [5 * int(np.ceil((15 + 64) / 8))] * 2


def test_absent_clients_keep_what_they_owe():
    from fedsps.data.clients import ClientData
    from fedsps.engine.session import local_session
    from fedsps.engine.setup import Setup
    from fedsps.model.logistic import network_of

    algorithm = fedsps.Algorithm(stepsize=Constant(0.1), compression=TopK(0.2))
    goal = network_of(LogisticRegression(4, 3).double())
    session = local_session(
        Setup(fedsps.Plan(cohort=2, evaluate_every=0), goal, ClientData.of(make_clients()), algorithm)
    )
    for _ in range(4):
        before = session.state.clients["unsent"].clone()
        cohort = session.setup.cohort_of(session.state.round)
        session.advance()
        changed = (session.state.clients["unsent"] != before).any(-1)
        assert changed.nonzero().flatten().tolist() == cohort.tolist()
