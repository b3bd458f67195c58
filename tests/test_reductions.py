"""Where the mathematics says that two methods are the same, they are."""

import numpy as np
import pytest
import torch
from torch import nn

import fedsps
from fedsps.model.models import LogisticRegression
from fedsps.rules.polyak import SPS

START = LogisticRegression(4, 3).double()


def weights(clients, **settings):
    settings = {"rounds": 8, "local_steps": 3, "batch_size": 5} | settings
    return torch.cat(
        [value.flatten() for value in fedsps.train(START, clients, **settings).model.state_dict().values()]
    )


def same(one, other):
    torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_tiny_cap_makes_fedsps_fedavg(unequal_clients):
    same(
        weights(unequal_clients, algorithm=fedsps.FedSPS(cap=1e-4)),
        weights(unequal_clients, algorithm=fedsps.FedAvg(client_stepsize=1e-4)),
    )


def test_equal_stepsizes_make_normalized_fedsps_plain(unequal_clients):
    same(
        weights(unequal_clients, algorithm=fedsps.FedSPSNormalized(cap=1e-4)),
        weights(unequal_clients, algorithm=fedsps.FedSPS(cap=1e-4)),
    )


@pytest.mark.parametrize("formula", ["a", "b", "c"])
def test_tiny_cap_makes_global_fedsps_fedavg(formula, unequal_clients):
    same(
        weights(unequal_clients, algorithm=fedsps.FedSPSGlobal(cap=1e-4, formula=formula)),
        weights(unequal_clients, algorithm=fedsps.FedAvg(client_stepsize=1e-4)),
    )


@pytest.mark.parametrize("formula", ["a", "b", "c"])
def test_global_formulas_agree_for_one_client(formula, unequal_clients):
    clients = unequal_clients[3:4]
    same(
        weights(clients, algorithm=fedsps.FedSPSGlobal(formula=formula)),
        weights(clients, algorithm=fedsps.FedSPSGlobal(formula="a")),
    )


def test_fedavg_with_server_stepsize_is_between_the_point_and_the_mean(unequal_clients):
    full = weights(unequal_clients, algorithm=fedsps.FedAvg(), rounds=1)
    half = weights(unequal_clients, algorithm=fedsps.FedAvg(server_stepsize=0.5), rounds=1)
    same(half, full / 2)  # the start is zero


def test_equal_clients_need_no_weights(unequal_clients):
    equal = [(inputs[:3], targets[:3]) for inputs, targets in unequal_clients]
    same(weights(equal, weights="samples"), weights(equal, weights="uniform"))


def test_one_client_one_local_step_is_sps(unequal_clients):
    """Against plain SGD with the Polyak stepsize, written out with autograd."""
    inputs, targets = unequal_clients[3]
    found = weights([(inputs, targets)], algorithm="fedsps", local_steps=1, batch_size=None, rounds=30)
    weight, bias = (torch.zeros(shape, dtype=torch.float64, requires_grad=True) for shape in ((3, 4), (3,)))
    for _ in range(30):
        loss = nn.functional.cross_entropy(inputs @ weight.T + bias, targets)
        gradients = torch.autograd.grad(loss, (weight, bias))
        stepsize = min(loss.item() / (0.5 * sum(float((g**2).sum()) for g in gradients)), 1.0)
        with torch.no_grad():
            weight -= stepsize * gradients[0]
            bias -= stepsize * gradients[1]
    same(found, torch.cat([weight.detach().flatten(), bias.detach()]))


def test_local_steps_without_communication_are_rounds_of_one_client(unequal_clients):
    clients = unequal_clients[2:3]
    settings = {"batch_size": None, "algorithm": fedsps.FedDecSPS()}
    same(weights(clients, rounds=6, local_steps=1, **settings), weights(clients, rounds=2, local_steps=3, **settings))


def test_fedprox_without_a_penalty_is_fedavg(unequal_clients):
    same(
        weights(unequal_clients, algorithm=fedsps.FedProx(mu=0.0)), weights(unequal_clients, algorithm=fedsps.FedAvg())
    )


def test_fedsps_is_fedavg_with_another_rule(unequal_clients):
    same(
        weights(unequal_clients, algorithm=fedsps.FedSPS(scale=0.7, cap=3.0)),
        weights(unequal_clients, algorithm=fedsps.Algorithm(stepsize=SPS(scale=0.7, cap=3.0))),
    )


def test_two_algorithms_with_one_seed_see_the_same_batches(unequal_clients):
    """With stepsizes too small to move, the mini-batch losses are those of the start, whatever the algorithm."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3).double()
    still = [fedsps.FedAvg(client_stepsize=1e-12), fedsps.FedSPS(cap=1e-12), fedsps.FedSPSGlobal(cap=1e-12)]
    seen = [
        fedsps.train(model, unequal_clients, algorithm=one, rounds=5, cohort=3, batch_size=4, seed=7).history[
            "cohort_loss"
        ]
        for one in still
    ]
    np.testing.assert_allclose(seen[0], seen[1], rtol=1e-9)
    np.testing.assert_allclose(seen[0], seen[2], rtol=1e-9)
    other = fedsps.train(model, unequal_clients, algorithm=still[0], rounds=5, cohort=3, batch_size=4, seed=8)
    assert not np.allclose(seen[0], other.history["cohort_loss"], rtol=1e-3)
