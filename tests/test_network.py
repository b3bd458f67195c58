"""Modules as functions of one vector: gradients, buffers, and what is refused."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from conftest import make_clients
from torch import nn

import fedsps
from fedsps.core import vectors as shapes
from fedsps.data.clients import ClientData
from fedsps.engine import evaluate
from fedsps.model.logistic import Logistic, network_of
from fedsps.model.models import LeNet, LogisticRegression, ResNet18
from fedsps.model.network import Network


def test_gradient_is_that_of_the_module():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    inputs, targets = make_clients()[4]
    loss, gradient, _ = Network(module).loss_and_gradient(Network(module).x, {}, inputs, targets)
    expected = F.cross_entropy(module(inputs), targets)
    expected.backward()
    torch.testing.assert_close(loss, expected.detach())
    torch.testing.assert_close(gradient, torch.cat([p.grad.flatten() for p in module.parameters()]))


@pytest.mark.parametrize("classes", [2, 3, 7])
@pytest.mark.parametrize("shape", [(), (5,), (2, 3)])
def test_closed_form_of_logistic_regression_is_autograd(classes, shape):
    torch.manual_seed(0)
    module = LogisticRegression(12, classes).double()
    loss = F.binary_cross_entropy_with_logits if classes == 2 else F.cross_entropy
    closed = network_of(module, loss)
    assert isinstance(closed, Logistic)
    x = torch.randn(*shape, closed.x.numel(), dtype=torch.float64)
    inputs = torch.randn(*shape, 6, 3, 4, dtype=torch.float64)
    targets = torch.randint(classes, (*shape, 6))
    targets = targets.double() if classes == 2 else targets
    found, expected = (
        closed.loss_and_gradient(x, {}, inputs, targets),
        Network(module, loss).loss_and_gradient(x, {}, inputs, targets),
    )
    torch.testing.assert_close(found[0], expected[0])
    torch.testing.assert_close(found[1], expected[1])


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(label_smoothing=0.1), lambda z, y: 2 * F.cross_entropy(z, y)])
def test_another_loss_is_not_taken_for_the_closed_form(loss):
    assert type(network_of(LogisticRegression(4, 3), loss)) is Network


def test_extreme_logits_stay_finite():
    module = LogisticRegression(4, 2).double()
    closed = network_of(module, F.binary_cross_entropy_with_logits)
    x = torch.full((5,), 1e4, dtype=torch.float64)
    loss, gradient, _ = closed.loss_and_gradient(x, {}, torch.ones(3, 4, dtype=torch.float64), torch.zeros(3).double())
    assert loss.isfinite()
    assert gradient.isfinite().all()


def test_train_starts_from_the_given_parameters_and_leaves_the_module_alone(unequal_clients):
    torch.manual_seed(0)
    module = nn.Linear(4, 3).double()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    module.train(False)
    result = fedsps.train(module, unequal_clients, algorithm=fedsps.FedAvg(client_stepsize=1e-9), rounds=1)
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])
        torch.testing.assert_close(result.model.state_dict()[name], value, rtol=0, atol=1e-6)
    assert not module.training
    assert all(parameter.grad is None for parameter in module.parameters())
    assert result.model.weight.dtype == torch.float64


def test_frozen_parameters_stay_and_tied_ones_stay_tied():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
            self.two.weight = self.one.weight
            self.last.requires_grad_(False)

        def forward(self, x):
            return self.last(self.two(self.one(x).tanh()))

    torch.manual_seed(0)
    net = Net().double()
    trained = fedsps.train(net, make_clients(), rounds=2).model
    assert torch.equal(trained.last.weight, net.last.weight)
    assert trained.one.weight is trained.two.weight
    assert not torch.equal(trained.one.weight, net.one.weight)


def test_batch_norm_statistics_are_the_uniform_mean_and_counters_the_maximum():
    """By hand: one step of every client from the same statistics, m = 0.1 of its batch mean."""
    clients = make_clients(sizes=(4, 10))
    module = nn.Sequential(nn.BatchNorm1d(4, affine=False), nn.Linear(4, 3)).double()
    for weights in ("uniform", "samples"):
        settings = {"algorithm": "fedsps", "rounds": 2, "local_steps": 1, "batch_size": None, "weights": weights}
        trained = fedsps.train(module, clients, **settings).model
        mean = sum(inputs.mean(0) for inputs, _ in clients) / 2
        torch.testing.assert_close(trained[0].running_mean, 0.1 * mean + 0.9 * 0.1 * mean)
        assert trained[0].num_batches_tracked == 2


def test_probes_discard_their_buffer_updates():
    """FedSPS-Global's extra evaluation before round 1 must not move the statistics."""
    clients = make_clients(sizes=(6, 6))
    module = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)).double()
    for engine in ("loop", "stacked"):
        trained = fedsps.train(
            module, clients, algorithm=fedsps.FedSPSGlobal(), rounds=1, local_steps=1, batch_size=None, engine=engine
        ).model
        expected = 0.1 * sum(inputs.mean(0) for inputs, _ in clients) / 2
        torch.testing.assert_close(trained[0].running_mean, expected)
        assert trained[0].num_batches_tracked == 1


@pytest.mark.parametrize("algorithm", [fedsps.DeltaSGD(), fedsps.Mime()], ids=["deltasgd", "mime"])
@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_probes_between_local_steps_discard_theirs_too(algorithm, engine):
    module = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)).double()
    trained = fedsps.train(
        module, make_clients(sizes=(6, 6)), algorithm=algorithm, rounds=1, local_steps=3, batch_size=None, engine=engine
    ).model
    assert trained[0].num_batches_tracked == 3


def test_dropout_is_reproducible_and_differs_between_clients_and_steps():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 50), nn.Dropout(0.5), nn.Linear(50, 3)).double()
    one = make_clients(sizes=(8,))[0]
    for engine in ("loop", "stacked"):
        settings = {"algorithm": "fedsps", "rounds": 2, "batch_size": None, "engine": engine}
        runs = [fedsps.train(net, [one, one], **settings) for _ in range(2)]
        assert runs[0].history["cohort_loss"].equals(runs[1].history["cohort_loss"])
        assert runs[0].history["stepsize_std_clients"].gt(0).all(), "equal clients drop different units"
        assert not runs[0].model.training


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_dropout_follows_the_seed_and_the_round(engine):
    """A model that stands still, on whole data: the losses differ by what was dropped alone."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 50), nn.Dropout(0.5), nn.Linear(50, 3)).double()
    settings = {"algorithm": fedsps.FedAvg(client_stepsize=1e-12), "rounds": 2, "batch_size": None, "engine": engine}
    losses = [fedsps.train(net, make_clients(), seed=seed, **settings).history["cohort_loss"] for seed in (0, 1)]
    assert len({round(loss, 6) for loss in [*losses[0], *losses[1]]}) == 4


def test_recurrent_networks_fall_back_to_the_loop_engine():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.head = nn.LSTM(2, 3, batch_first=True), nn.Linear(3, 3)

        def forward(self, x):
            return self.head(self.cell(x.unflatten(1, (2, 2)))[0][:, -1])

    torch.manual_seed(0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = fedsps.train(Recurrent().double(), make_clients(), rounds=3)
    if not caught:
        pytest.fail("a module that cannot be stacked is announced")
    assert "one client after another" in str(caught[-1].message)
    assert len(result.history) == 3
    with pytest.raises(fedsps.ConfigurationError, match="use engine='loop'"):
        fedsps.train(Recurrent().double(), make_clients(), rounds=1, engine="stacked")


def half_double():
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3).double())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.ReLU(), "ReLU has no trainable parameter"),
        (lambda: nn.Linear(4, 3).requires_grad_(False), "no trainable parameter"),
        (lambda: nn.LazyLinear(3), "pass one batch through the model first"),
        (half_double, "one floating dtype and device; found torch.float32 on cpu, torch.float64 on cpu"),
        (lambda: nn.Linear(5, 3).double(), r"cannot take a batch of client 0 \(inputs \(3, 4\) torch.float64"),
        (lambda: nn.Linear(4, 2).double(), "has 2 outputs, but targets go from 0 to 2"),
    ],
)
def test_what_cannot_be_handled_is_refused(make, message):
    with pytest.raises(fedsps.ConfigurationError, match=message):
        fedsps.train(make(), make_clients(), rounds=1)


def test_batch_norm_on_a_client_of_one_sample_is_refused_before_the_run():
    module = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)).double()
    with pytest.raises(fedsps.ConfigurationError, match="batch of client 1 .*more than 1 value"):
        fedsps.train(module, make_clients(sizes=(5, 1)), rounds=1)


def test_ignored_targets_count_neither_in_training_nor_in_evaluation():
    """-100 is cross-entropy's own mark for a sample that does not count."""
    inputs, targets = make_clients()[4]
    targets = targets.where(torch.arange(34) % 3 > 0, -100)
    kept = targets >= 0
    torch.manual_seed(0)
    net = nn.Linear(4, 3).double()
    settings = {"algorithm": fedsps.FedAvg(), "rounds": 3, "batch_size": None}  # FedSPS does not see a loss's scale
    marked = fedsps.train(net, [(inputs, targets)] * 2, **settings)
    left_out = fedsps.train(net, [(inputs[kept], targets[kept])] * 2, **settings)
    torch.testing.assert_close(marked.model.weight, left_out.model.weight)
    assert marked.history["train_loss"].tolist() == pytest.approx(left_out.history["train_loss"].tolist())
    tested = [
        fedsps.train(net, [(inputs, targets)], rounds=1, test=(inputs[some], targets[some])).history["test_accuracy"][0]
        for some in (slice(None), kept)
    ]
    assert tested[0] == pytest.approx(tested[1])


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_a_batch_that_does_not_count_at_all_changes_nothing(engine):
    torch.manual_seed(0)
    net = nn.Linear(4, 3).double()
    inputs = torch.randn(3, 4).double()
    nothing, something = (inputs, torch.full((3,), -100)), (inputs, torch.tensor([0, 1, -100]))
    for algorithm in ("fedsps", "fedpolyak"):
        settings = {"algorithm": algorithm, "batch_size": None, "engine": engine}
        assert fedsps.train(net, [nothing, something], rounds=2, **settings).diverged_at is None
    alone = fedsps.train(net, [something], algorithm="fedsps", rounds=1, batch_size=None)
    first = fedsps.train(net, [nothing, something], algorithm="fedsps", rounds=1, batch_size=None, engine=engine)
    torch.testing.assert_close(first.model.weight - net.weight, (alone.model.weight - net.weight) / 2)


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_complex_buffers_are_averaged(engine):
    class Turn(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 3)
            self.register_buffer("turn", torch.polar(torch.ones(4), torch.arange(4.0)))

        def forward(self, x):
            return self.linear(torch.view_as_real(x * self.turn)[..., 0])

    clients = [(inputs.float(), targets) for inputs, targets in make_clients()]
    found = fedsps.train(Turn(), clients, rounds=2, engine=engine)
    torch.testing.assert_close(found.model.turn, Turn().turn)


def test_a_model_that_returns_no_tensor_is_refused():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, x):
            return self.linear(x), x

    with pytest.raises(fedsps.ConfigurationError, match="must return a tensor; Pair returned tuple"):
        fedsps.train(Pair().double(), make_clients(), rounds=1)


def test_a_loss_that_is_not_one_number_is_refused():
    with pytest.raises(fedsps.ConfigurationError, match="one number for a batch.*reduction='mean'"):
        fedsps.train(nn.Linear(4, 3).double(), make_clients(), loss=nn.CrossEntropyLoss(reduction="none"), rounds=1)


def test_published_parameter_counts():
    count = lambda module: sum(parameter.numel() for parameter in module.parameters())  # noqa: E731
    assert count(LeNet()) == 61_706
    assert count(ResNet18()) == 11_173_962
    assert count(LogisticRegression(784, 10)) == 7850
    assert count(LogisticRegression(300, 2)) == 301


@pytest.mark.parametrize("side", [12, 13, 28])
def test_lenet_evaluates_to_the_bits_that_it_trains_on(side):
    module, images = LeNet(2, side), torch.randn(7, 2, side, side)
    images[0, 0, 3, 3] = torch.nan  # a pixel that is none is not pooled away
    for inputs in (images, images.contiguous(memory_format=torch.channels_last)):
        with torch.no_grad():
            evaluated = module(inputs)
        assert torch.equal(module(inputs).nan_to_num(9.0), evaluated.nan_to_num(9.0))
        assert evaluated[0].isnan().all()
        assert evaluated[1:].isfinite().all()


def test_models_make_logits_of_the_right_shape():
    assert LeNet()(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
    assert LeNet(3, 32, 7)(torch.zeros(2, 3, 32, 32)).shape == (2, 7)
    assert ResNet18(width=4)(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    assert LogisticRegression(6, 2)(torch.zeros(5, 2, 3)).shape == (5,)
    assert not LogisticRegression(6, 3)(torch.ones(5, 6)).any()
    with pytest.raises(fedsps.ConfigurationError, match="unknown norm 'batsh': did you mean batch"):
        ResNet18(norm="batsh")


class Focal(nn.CrossEntropyLoss):
    def forward(self, outputs, targets):
        plain = F.cross_entropy(outputs, targets, reduction="none")
        return ((1 - (-plain).exp()) ** 2 * plain).mean()


@pytest.mark.parametrize(
    "loss", [nn.CrossEntropyLoss(ignore_index=0), Focal(), nn.CrossEntropyLoss(label_smoothing=0.2)]
)
def test_a_loss_that_only_looks_like_plain_cross_entropy_is_used_as_it_is(loss):
    for make in (lambda: LogisticRegression(4, 3), lambda: nn.Linear(4, 3)):
        torch.manual_seed(0)
        model = make().double()
        given = fedsps.train(model, make_clients(), loss=loss, rounds=2)
        hidden = fedsps.train(model, make_clients(), loss=lambda z, y: loss(z, y), rounds=2)
        assert given.history["train_loss"].tolist() == pytest.approx(hidden.history["train_loss"].tolist())


class Averaging(nn.Module):
    """Its buffer is put anew at every step, not changed in place."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("ema", torch.zeros(4))

    def forward(self, x):
        if self.training:
            self.ema = 0.5 * self.ema + 0.5 * x.detach().mean(0)
        return self.linear(x)


def test_buffers_that_are_put_anew_are_kept():
    clients = make_clients(sizes=(4, 10))
    expected = sum(inputs.mean(0) for inputs, _ in clients) / 2
    for engine in ("loop", "stacked"):
        trained = fedsps.train(
            Averaging().double(), clients, rounds=1, local_steps=1, batch_size=None, engine=engine
        ).model
        torch.testing.assert_close(trained.ema, 0.5 * expected)


def test_masked_targets_are_never_taken_in_pieces():
    inputs, targets = make_clients()[4]
    masked = targets.where(torch.arange(34) < 3, -100)
    settings = {"rounds": 2, "batch_size": None, "algorithm": fedsps.FedAvg()}
    for make in (lambda: nn.Linear(4, 3), lambda: LogisticRegression(4, 3)):
        torch.manual_seed(0)
        model = make().double()
        small, large = (fedsps.train(model, [(inputs, masked)], memory_limit=limit, **settings) for limit in (1, 2**31))
        assert small.diverged_at is None
        torch.testing.assert_close(small.model.weight, large.model.weight)


def test_evaluation_goes_over_many_clients_in_runs():
    """Each run of clients holds about 4096 samples."""
    torch.manual_seed(0)
    module = nn.Linear(4, 3).double()
    clients = make_clients(sizes=(3000, 2000, 100, 5000, 7))
    goal = Network(module)
    found = evaluate.evaluate_clients(goal, goal.x, {}, ClientData.of(clients))
    assert found.loss.tolist() == pytest.approx([F.cross_entropy(module(x), y).item() for x, y in clients])
    right = [(module(x).argmax(1) == y).double().mean().item() for x, y in clients]
    assert found.accuracy.tolist() == pytest.approx(right)


def test_evaluation_in_half_precision_adds_up_in_float32():
    means = evaluate._means(torch.ones(3000, dtype=torch.bfloat16), [1000, 2000])
    assert means.tolist() == [1.0, 1.0]
    third = torch.full((3, 2), 1.0, dtype=torch.bfloat16)
    assert shapes.mean(third, torch.full((3,), 1 / 3, dtype=torch.float64)).tolist() == [1.0, 1.0]


def test_the_trial_batch_is_measured_and_not_the_data_it_comes_from():
    goal = Network(LeNet())
    images, labels = torch.rand(5000, 1, 28, 28), torch.randint(10, (5000,))
    from fedsps.engine.setup import Setup
    from fedsps.engine.trial import prepare

    setup, _ = prepare(Setup(fedsps.Plan(), goal, ClientData.of([(images, labels)]), fedsps.FedSPS()), "auto")
    assert 20_000 < setup.sample_bytes < 200_000


def test_augmentation_goes_with_group_norm():
    """A stack of one client of strided images is what vmap's group norm stumbled over."""
    clients = [(torch.rand(6, 3, 16, 16), torch.randint(10, (6,)))]
    model = ResNet18(width=8, norm="group")
    result = fedsps.train(model, clients, rounds=1, local_steps=1, batch_size=4, augment="crop-flip", engine="stacked")
    assert len(result.history) == 1


def test_integer_targets_go_with_the_binary_loss_and_int32_labels_with_cross_entropy():
    clients = [(inputs, (targets == 1).long()) for inputs, targets in make_clients()]
    result = fedsps.train(
        LogisticRegression(4, 2), clients, loss=F.binary_cross_entropy_with_logits, rounds=2, test=clients[0]
    )
    assert result.history["test_accuracy"].notna().all()
    small = [(inputs, targets.int()) for inputs, targets in make_clients()]
    assert fedsps.train(LogisticRegression(4, 3), small, rounds=1).diverged_at is None


def test_losses_with_targets_that_are_no_classes():
    clients = [(inputs, torch.arange(len(targets))) for inputs, targets in make_clients()]
    loss = lambda outputs, targets: (outputs.mean(1) - targets.double()).abs().mean()  # noqa: E731
    result = fedsps.train(nn.Linear(4, 2).double(), clients, loss=loss, rounds=2, test=clients[4])
    assert result.history["test_accuracy"].isna().all()
    sequence = [(torch.rand(6, 5, 4).double(), torch.randint(3, (6, 5))) for _ in range(2)]
    by_step = lambda outputs, targets: F.cross_entropy(outputs.transpose(1, 2), targets)  # noqa: E731
    assert (
        fedsps.train(nn.Linear(4, 3).double(), sequence, loss=by_step, rounds=2, test=sequence[0]).diverged_at is None
    )


def test_a_target_that_torch_would_broadcast_is_refused():
    clients = [(inputs, inputs.sum(1)) for inputs, _ in make_clients()]
    with pytest.raises(fedsps.ConfigurationError, match="Using a target size"):
        fedsps.train(nn.Linear(4, 1).double(), clients, loss=lambda outputs, y: F.mse_loss(outputs, y), rounds=1)


def test_training_inside_no_grad_and_the_users_generator():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3)).double()
    torch.manual_seed(3)
    with torch.no_grad():
        fedsps.train(net, make_clients(), rounds=1)
    assert torch.equal(torch.rand(2), expected), "train leaves torch's generator as it was"


def test_whatever_a_model_raises_is_one_clear_error():
    class Broken(nn.Linear):
        def forward(self, x):
            raise KeyError

    with pytest.raises(fedsps.ConfigurationError, match="cannot take a batch of client 0 .*KeyError"):
        fedsps.train(Broken(4, 3).double(), make_clients(), rounds=1)


@pytest.mark.parametrize("make", [LeNet, lambda: ResNet18(width=8, channels=1)])
def test_layouts_and_engines_agree_on_images(make):
    """Built-in networks are trained with channels last, one client after another; stacked they cannot be."""
    goal = Network(make().double())
    assert goal.prefers_loop
    random = torch.Generator().manual_seed(0)
    images = torch.randn(3, 4, 1, 28, 28, dtype=torch.float64, generator=random)
    labels = torch.randint(10, (3, 4), generator=random)
    buffers = {name: value.expand(3, *value.shape) for name, value in goal.buffers.items()}
    losses, gradients, after = goal.loss_and_gradient(goal.x.expand(3, -1), buffers, images, labels)
    for client in range(3):
        loss, gradient, own = goal.loss_and_gradient(goal.x, goal.buffers, images[client], labels[client])
        assert torch.allclose(loss, losses[client])
        assert torch.allclose(gradient, gradients[client], atol=1e-10)
        assert all(torch.allclose(own[name], after[name][client]) for name in own)


def test_a_narrow_resnet_keeps_the_layout_in_which_torch_stays_within_its_memory():
    assert Network(ResNet18(width=8)).prefers_loop
    assert not Network(ResNet18(width=4)).prefers_loop


def test_a_users_module_gets_its_images_as_they_are():
    class Viewing(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3 * 8 * 8, 2)

        def forward(self, images):
            return self.layer(images.view(len(images), -1))

    goal = Network(Viewing())
    assert not goal.prefers_loop
    assert goal.outputs(goal.x, {}, torch.randn(5, 3, 8, 8)).shape == (5, 2)


TANH, FROZEN = nn.Tanh(), nn.Linear(6, 5)
FROZEN.weight.requires_grad_(False)
CHAINS = {
    "linear": (nn.Linear(6, 3), (6,)),
    "no bias": (nn.Sequential(nn.Linear(6, 4, bias=False), nn.Tanh(), nn.Linear(4, 3)), (6,)),
    "images": (
        nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Sequential(nn.GELU(), nn.Linear(5, 3))),
        (2, 3),
    ),
    "rows of a sample": (nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)), (2, 3)),
    "one activation twice": (nn.Sequential(nn.Linear(6, 5), TANH, nn.Linear(5, 5), TANH, nn.Linear(5, 3)), (6,)),
    "frozen weight": (nn.Sequential(FROZEN, nn.Flatten(), nn.Linear(5, 3)), (6,)),
    "frozen": (nn.Sequential(nn.Linear(6, 5).requires_grad_(False), nn.ReLU(), nn.Linear(5, 3)), (6,)),
}


@pytest.mark.parametrize("shared", [0, 1])
@pytest.mark.parametrize("name", CHAINS)
def test_chains_of_linear_layers_are_bitwise_what_vmap_makes_of_them(name, shared):
    module, shape = CHAINS[name]
    random = torch.Generator().manual_seed(0)
    network, other = Network(module), Network(module)
    assert network._chain is not None
    other._chain = None
    x = network.x + torch.randn(*(2,) * shared, 5, network.x.numel(), generator=random)
    inputs, targets = torch.rand(5, 7, *shape, generator=random), torch.randint(3, (5, 7), generator=random)
    found, expected = (one.loss_and_gradient(x, {}, inputs, targets, shared) for one in (network, other))
    for value, wanted in zip(found[:2], expected[:2], strict=True):
        if shared:
            torch.testing.assert_close(value, wanted)
        else:
            assert torch.equal(value, wanted)


def test_what_is_more_than_a_chain_goes_through_vmap():
    hooked = nn.Sequential(nn.Linear(4, 3))
    hooked[0].register_forward_hook(lambda *_: None)
    layer = nn.Linear(4, 4)

    class Own(nn.Linear):
        """It may do anything."""

    parametrized = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))
    flat = nn.Sequential(nn.Flatten(0), nn.Linear(4, 3))
    twice = nn.Sequential(layer, nn.ReLU(), layer)
    dropout = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5))
    for module in (
        hooked,
        Own(4, 3),
        parametrized,
        flat,
        twice,
        dropout,
        nn.Sequential(nn.Linear(4, 3), nn.Softmax(1)),
    ):
        assert Network(module)._chain is None


class Clamped(nn.Linear):
    """It changes its own weights."""

    def forward(self, inputs):
        with torch.no_grad():
            self.weight.clamp_(-0.01, 0.01)
        return super().forward(inputs)


class Late(nn.Linear):
    """It makes a buffer when it is called."""

    def forward(self, inputs):
        if not hasattr(self, "calls"):
            self.register_buffer("calls", torch.zeros(1))
        return super().forward(inputs)


@pytest.mark.parametrize(("kind", "words"), [(Clamped, "changes its own parameters"), (Late, "makes the buffer calls")])
@pytest.mark.parametrize("engine", ["loop", "stacked", "auto"])
def test_a_module_that_does_not_leave_itself_alone_is_refused(kind, words, engine):
    with pytest.raises(fedsps.ConfigurationError, match=words):
        fedsps.train(kind(4, 3).double(), make_clients(), rounds=1, engine=engine)


def test_small_losses_are_evaluated_to_their_last_digits():
    """As torch has it: the loss of a sample that is nearly certain is no difference of large numbers."""
    outputs = torch.tensor([[40.0, 0.0, 27.7]])
    found = Network(nn.Linear(2, 3)).sample_losses(outputs, torch.tensor([0]), masked=False)
    torch.testing.assert_close(found[0], F.cross_entropy(outputs, torch.tensor([0])), rtol=1e-5, atol=0.0)


def test_half_precision_is_not_swept():
    assert not Network(nn.Linear(4, 3).bfloat16()).can_sweep
