"""The stacked engine against the loop engine, in float64: every algorithm, every model, every partition."""

import numpy as np
import pytest
import torch
from conftest import make_clients
from registry import ALGORITHMS
from torch import nn

import fedsps
from fedsps import Plan
from fedsps.data import partition
from fedsps.data.clients import ClientData
from fedsps.engine.session import local_session
from fedsps.engine.setup import Setup
from fedsps.model.logistic import network_of
from fedsps.model.models import LeNet, LogisticRegression, ResNet18
from fedsps.model.network import Network
from fedsps.rules import SPS, PolynomialAverage

EXACT = {"rtol": 1e-10, "atol": 1e-10}


def assert_engines_agree(model, clients, **settings):
    """Both engines, same model, history, and buffers; the stacked one also in chunks of one client."""
    results = [
        fedsps.train(model, clients, engine=engine, memory_limit=limit, **settings)
        for engine, limit in (("loop", 2**31), ("stacked", 2**31), ("stacked", 1))
    ]
    oracle = results[0]
    for result in results[1:]:
        for (name, expected), found in zip(
            oracle.model.state_dict().items(), result.model.state_dict().values(), strict=True
        ):
            torch.testing.assert_close(found, expected, **EXACT, msg=lambda text, name=name: f"{name}: {text}")
        columns = [column for column in oracle.history if column != "seconds"]
        np.testing.assert_allclose(result.history[columns], oracle.history[columns], **EXACT)
    return oracle


@pytest.mark.parametrize("weights", ["uniform", "samples"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_on_softmax_regression(name, weights, unequal_clients):
    result = assert_engines_agree(
        LogisticRegression(4, 3).double(), unequal_clients, algorithm=ALGORITHMS[name], rounds=6, local_steps=3,
        batch_size=10, cohort=5 if "client" in name else 3, weights=weights, test=unequal_clients[0],
    )  # fmt: skip
    assert result.history["stepsize_mean"].gt(0).all()


def test_the_record_follows_the_numbers_of_clients_not_their_sizes(unequal_clients):
    """The smallest batches are stacked first, and here they are those of the last clients."""
    result = assert_engines_agree(
        LogisticRegression(4, 3).double(), unequal_clients[::-1], rounds=2, local_steps=3, batch_size=10
    )
    assert (result.history["stepsize_one_mean"] != result.history["stepsize_mean"]).all()


@pytest.mark.parametrize("cohort", [1, 5])
def test_whole_data_at_every_step(cohort, unequal_clients):
    assert_engines_agree(LogisticRegression(4, 3).double(), unequal_clients, rounds=4, batch_size=None, cohort=cohort)


def images(channels, side, sizes, classes=10):
    random = torch.Generator().manual_seed(1)
    return [
        (
            torch.rand(size, channels, side, side, generator=random, dtype=torch.float64),
            torch.randint(classes, (size,), generator=random),
        )
        for size in sizes
    ]


class Tied(nn.Module):
    """One weight used twice, a frozen layer, a scalar parameter, and an integer buffer."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.frozen = nn.Linear(4, 3).requires_grad_(False)
        self.gain = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("order", torch.tensor([2, 0, 1]))

    def forward(self, inputs):
        hidden = torch.tanh(self.second(torch.tanh(self.first(inputs))))
        return self.gain * self.frozen(hidden)[:, self.order]


def batch_norm():
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


@pytest.mark.parametrize("make", [batch_norm, Tied], ids=["batch norm", "tied, frozen, scalar"])
def test_modules_of_users(make):
    torch.manual_seed(0)
    clients = make_clients(sizes=(4, 9, 9, 30))
    settings = {"algorithm": "fedsps", "rounds": 4, "local_steps": 2, "batch_size": 8, "cohort": 3}
    result = assert_engines_agree(make().double(), clients, **settings)
    assert result.history["train_loss"].iloc[-1] < 1.2


@pytest.mark.parametrize(
    ("make", "side", "channels"),
    [
        (lambda: LeNet(), 28, 1),
        (lambda: ResNet18(width=2, norm="batch"), 8, 3),
        (lambda: ResNet18(width=4, norm="group"), 8, 3),
    ],
    ids=["lenet", "resnet18 batch norm", "resnet18 group norm"],
)
def test_networks_of_the_paper(make, side, channels):
    torch.manual_seed(0)
    clients = images(channels, side, (3, 5, 5))
    assert_engines_agree(make().double(), clients, rounds=2, local_steps=2, batch_size=4, evaluate_every=2)


def test_binary_logistic_regression():
    clients = [(inputs, (targets == 1).double()) for inputs, targets in make_clients()]
    loss = nn.functional.binary_cross_entropy_with_logits
    assert_engines_agree(LogisticRegression(4, 2).double(), clients, rounds=5, batch_size=6, loss=loss, test=clients[1])


@pytest.mark.parametrize("kind", ["iid", "two-class", "shards", "dirichlet", "natural"])
def test_every_partition(kind):
    random = np.random.default_rng(0)
    inputs, targets = random.normal(size=(120, 4)), np.arange(120) % 4
    split = partition(kind, targets, 6, 0, alpha=0.1, ids=np.sort(random.integers(0, 6, 120)))
    clients = [(torch.from_numpy(inputs[rows]), torch.from_numpy(targets[rows])) for rows in split.rows]
    assert_engines_agree(LogisticRegression(4, 4).double(), clients, rounds=5, batch_size=7, cohort=4)


def test_a_batch_that_does_not_fit_into_memory_is_taken_in_pieces():
    """Chunks of one client and pieces of a few samples give what one pass gives."""
    clients = make_clients(sizes=(41, 89, 53))  # primes: the last piece is a smaller one
    for algorithm in (fedsps.FedSPS(), fedsps.Mime()):
        settings = {"algorithm": algorithm, "rounds": 3, "local_steps": 2, "batch_size": None}
        results = [
            fedsps.train(
                nn.Linear(4, 3).double().requires_grad_(), clients, memory_limit=limit, engine=engine, **settings
            )
            for limit, engine in ((2**31, "stacked"), (1000, "stacked"), (1000, "loop"))
            if torch.manual_seed(0)
        ]
        for result in results[1:]:
            torch.testing.assert_close(result.model.weight, results[0].model.weight, **EXACT)
            np.testing.assert_allclose(result.history["cohort_loss"], results[0].history["cohort_loss"], **EXACT)
            assert result.history["gradient_evaluations"].equals(results[0].history["gradient_evaluations"])


def test_one_client_of_one_sample():
    clients = make_clients(sizes=(1,))
    assert_engines_agree(LogisticRegression(4, 3).double(), clients, rounds=3)


def test_augmentation_draws_the_same_crops_in_both_engines():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(2 * 6 * 6, 10)).double()
    clients = images(3, 8, (5, 9, 9))
    augmented = assert_engines_agree(model, clients, rounds=3, batch_size=5, augment="crop-flip")
    plain = fedsps.train(model, clients, rounds=3, batch_size=5)
    assert not np.allclose(augmented.history["cohort_loss"], plain.history["cohort_loss"])


def test_full_gradients_are_of_the_images_as_they_are():
    """MIME's momentum after one round is a tenth of the mean full gradient at the start."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 10)).double()
    clients = images(3, 8, (5, 9, 9))
    gradients = []
    for inputs, targets in clients:
        found = torch.autograd.grad(nn.functional.cross_entropy(model(inputs), targets), tuple(model.parameters()))
        gradients.append(torch.cat([one.flatten() for one in found]))
    plan = fedsps.Plan(augment="crop-flip", batch_size=5, evaluate_every=0)
    for engine in ("loop", "stacked"):
        session = local_session(Setup(plan, Network(model), ClientData.of(clients), fedsps.Mime(momentum=0.9)), engine)
        session.advance()
        torch.testing.assert_close(session.state.server["server_momentum"], 0.1 * torch.stack(gradients).mean(0))


@pytest.mark.parametrize("engine", ["stacked", "loop"])
def test_an_average_of_points_has_the_average_of_their_statistics(engine):
    """Batch norm's floating buffers go by the output rule as x does; counters stay."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)).double()
    algorithm = fedsps.Algorithm(stepsize=SPS(), output=PolynomialAverage(power=2))
    network = network_of(model)
    setup = Setup(Plan(rounds=4, batch_size=6), network, ClientData.of(make_clients(sizes=(9, 12, 30))), algorithm)
    session = local_session(setup, engine)
    expected = {"x": 0.0, "1.running_mean": 0.0, "1.running_var": 0.0}
    for round in range(1, 5):
        session.advance()
        state, weight = session.state, 3 / (round + 2)
        seen = {"x": state.x, **state.buffers}
        expected = {name: (1 - weight) * value + weight * seen[name] for name, value in expected.items()}
    torch.testing.assert_close(session.state.result, expected.pop("x"))
    for name, value in expected.items():
        torch.testing.assert_close(session.state.result_buffers[name], value)
        assert not torch.allclose(session.state.buffers[name], value)
    counter = "1.num_batches_tracked"
    assert torch.equal(session.state.result_buffers[counter], session.state.buffers[counter])
    made = fedsps.train(
        model, make_clients(sizes=(9, 12, 30)), algorithm=algorithm, rounds=4, batch_size=6, engine=engine
    )
    torch.testing.assert_close(made.model[1].running_var, expected["1.running_var"])
