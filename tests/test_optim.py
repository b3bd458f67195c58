"""The centralised optimisers: like torch's own, and one client's FedSPS."""

import copy
import io
import math

import pytest
import torch
import torch.nn.functional as F
from conftest import make_clients
from torch import nn

import fedsps
from fedsps.model.models import LogisticRegression
from fedsps.optim import SPS, DecSPS

INPUTS, TARGETS = make_clients()[4]


def fit(optimizer, model, steps, scheduler=None):
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(INPUTS), TARGETS)
        loss.backward()
        optimizer.step(loss=loss)
        losses.append(loss.item())
        if scheduler:
            scheduler.step()
    return losses


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


PAIRS = {
    "sps": (lambda p: SPS(p), fedsps.FedSPS()),
    "sps, small cap": (
        lambda p: SPS(p, lr=0.05, scale=2.0, lower=-0.1),
        fedsps.FedSPS(cap=0.05, scale=2.0, lower=-0.1),
    ),
    "paper smoothing": (lambda p: SPS(p, lr=0.01, smoothing="paper"), fedsps.FedSPS(cap=0.01, smoothing="paper")),
    "loizou smoothing": (lambda p: SPS(p, lr=0.01, smoothing="loizou"), fedsps.FedSPS(cap=0.01, smoothing="loizou")),
    "decsps": (lambda p: DecSPS(p), fedsps.FedDecSPS()),
    "decsps, small cap": (lambda p: DecSPS(p, lr=0.1, scale=2.0), fedsps.FedDecSPS(cap=0.1, scale=2.0)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_one_client_with_one_local_step_is_this_optimiser(name):
    make, algorithm = PAIRS[name]
    model = net()
    steps = 8 if "smoothing" in name else 20  # later, rounding has grown to what the tolerance sees
    losses = fit(make(model.parameters()), model, steps)
    result = fedsps.train(net(), [(INPUTS, TARGETS)], algorithm=algorithm, rounds=steps, local_steps=1, batch_size=None)
    assert losses == pytest.approx(result.history["cohort_loss"].tolist(), rel=1e-10)
    for own, other in zip(model.parameters(), result.model.parameters(), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("make", [SPS, DecSPS])
def test_one_norm_over_all_groups_and_a_cap_for_each(make):
    model = net()
    groups = [{"params": model[0].parameters(), "lr": 1e-3}, {"params": model[2].parameters()}]
    optimizer = make(groups, lr=100.0, scale=0.1)
    before = copy.deepcopy(model)
    loss = F.cross_entropy(model(INPUTS), TARGETS)
    loss.backward()
    size = sum(float((p.grad**2).sum()) for p in model.parameters())
    optimizer.step(loss=loss)
    free = min(loss.item() / (0.1 * size), 100.0)
    for layer, stepsize in ((0, 1e-3), (2, free)):
        torch.testing.assert_close(model[layer].weight, before[layer].weight - stepsize * model[layer].weight.grad)
    assert optimizer.param_groups[1]["stepsize"] == pytest.approx(free)


def test_weight_decay_enters_gradient_and_loss():
    model, decay = LogisticRegression(4, 3).double(), 0.3
    with torch.no_grad():
        model.weight.normal_(generator=torch.Generator().manual_seed(0))
    twin = copy.deepcopy(model)
    optimizer = SPS(model.parameters(), weight_decay=decay)
    fit(optimizer, model, 5)
    for _ in range(5):
        twin.zero_grad()
        loss = F.cross_entropy(twin(INPUTS), TARGETS) + decay / 2 * sum((p**2).sum() for p in twin.parameters())
        loss.backward()
        size = sum(float((p.grad**2).sum()) for p in twin.parameters())
        stepsize = min(loss.item() / (0.5 * size), 1.0)
        with torch.no_grad():
            for p in twin.parameters():
                p.sub_(stepsize * p.grad)
    torch.testing.assert_close(model.weight, twin.weight)


@pytest.mark.parametrize(
    "make", [lambda p: SPS(p, smoothing="loizou", lr=0.01), lambda p: SPS(p, smoothing="paper", lr=0.01), DecSPS]
)
def test_state_dict_round_trip_through_a_file(make):
    straight = net()
    fit(make(straight.parameters()), straight, 10)
    model = net()
    optimizer = make(model.parameters())
    fit(optimizer, model, 4)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    again = net(seed=5)
    again.load_state_dict(saved["model"])
    restored = make(again.parameters())
    restored.load_state_dict(saved["optimizer"])
    fit(restored, again, 6)
    for own, other in zip(again.parameters(), straight.parameters(), strict=True):
        assert torch.equal(own, other)


@pytest.mark.parametrize("make", [SPS, DecSPS])
def test_schedulers_act_on_the_cap(make):
    model = net()
    optimizer = (
        make(model.parameters(), lr=1e-3, scale=1e-6) if make is SPS else make(model.parameters(), lr=1e-3, scale=1e3)
    )
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.1)
    found = []
    for _ in range(5):
        fit(optimizer, model, 1, scheduler)
        found.append(optimizer.param_groups[0]["stepsize"])
    if make is SPS:
        assert found == pytest.approx([1e-3, 1e-3, 1e-4, 1e-4, 1e-5])
    else:
        assert all(step <= cap for step, cap in zip(found, [1e-3, 1e-3, 1e-4, 1e-4, 1e-5], strict=True))
    smooth = SPS(net().parameters(), lr=0.5, smoothing="paper")
    smooth.param_groups[0]["growth"] = 4.0
    smooth.param_groups[0]["lr"] = 0.25
    assert smooth._stepsize(smooth.param_groups[0], 1.0, math.inf) == 1.0


def test_closure_and_loss_give_the_same():
    one, two = net(), net()
    fit(SPS(one.parameters()), one, 3)
    optimizer = SPS(two.parameters())

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(two(INPUTS), TARGETS)
        loss.backward()
        return loss

    for _ in range(3):
        assert optimizer.step(closure).requires_grad
    assert torch.equal(one[0].weight, two[0].weight)
    for wrong in ({}, {"closure": closure, "loss": torch.tensor(1.0)}):
        with pytest.raises(fedsps.ConfigurationError, match="needs the loss"):
            optimizer.step(**wrong)


@pytest.mark.parametrize("make", [SPS, DecSPS])
def test_edge_cases(make):
    parameter = nn.Parameter(torch.tensor([1.0, 2.0]))
    idle = nn.Parameter(torch.tensor([5.0]))
    optimizer = make([parameter, idle], lr=0.5)
    assert optimizer.step(loss=torch.tensor(1.0)) == 1.0, "no gradient yet: nothing to do"
    parameter.grad = torch.zeros(2)
    optimizer.step(loss=torch.tensor(1.0))
    assert parameter.tolist() == [1.0, 2.0]
    parameter.grad = torch.ones(2)
    optimizer.step(loss=torch.tensor(0.0))
    assert parameter.tolist() == [1.0, 2.0], "a zero gap gives a zero step"
    optimizer.step(loss=100.0)
    assert parameter.tolist() != [1.0, 2.0], "and does not lock the stepsize at zero"
    assert idle.tolist() == [5.0]
    with pytest.raises(
        fedsps.LowerBoundError, match="loss is -1, below its lower bound of 0: set `lower` to -1 or lower"
    ):
        optimizer.step(loss=torch.tensor(-1.0))


def test_half_precision_parameters_keep_their_dtype_and_do_not_overflow():
    parameter = nn.Parameter(torch.full((4,), 300.0, dtype=torch.float16))
    optimizer = SPS([parameter])
    parameter.grad = torch.full((4,), 300.0, dtype=torch.float16)
    optimizer.step(loss=torch.tensor(30.0, dtype=torch.float16))
    assert parameter.dtype == torch.float16
    assert optimizer.param_groups[0]["stepsize"] == pytest.approx(30 / (0.5 * 360_000))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: SPS(p, lr=0.0), "lr must be a finite number above 0; got 0.0"),
        (lambda p: SPS([{"params": p, "lr": -1.0}]), "lr must be"),
        (lambda p: DecSPS(p, scale=-2.0), "scale must be"),
        (lambda p: SPS(p, lower=math.inf), "lower must be a finite number; got inf"),
        (lambda p: SPS(p, smoothing="papers"), "did you mean paper"),
        (lambda p: SPS(p, batch_fraction=2.0), "batch_fraction must be above 0 and at most 1; got 2.0"),
        (lambda p: SPS(p, batch_fraction="a"), "batch_fraction must be above 0 and at most 1; got 'a'"),
        (lambda p: SPS(p, batch_fraction=True), "batch_fraction must be above 0 and at most 1; got True"),
        (lambda p: SPS(p, weight_decay=True), "weight_decay must be a finite number of at least 0; got True"),
        (lambda p: DecSPS(p, lower=False), "lower must be a finite number; got False"),
        (lambda p: SPS(p, weight_decay=-0.1), "weight_decay must be a finite number of at least 0; got -0.1"),
    ],
)
def test_wrong_settings_are_refused(make, message):
    with pytest.raises(fedsps.ConfigurationError, match=message):
        make(list(net().parameters()))


@pytest.mark.parametrize("make", [SPS, DecSPS])
def test_copies_and_pickles_go_on_alike(make):
    model = net()
    optimizer = make(model.parameters(), lower=-0.2)
    fit(optimizer, model, 2)
    twin = copy.deepcopy((model, optimizer))
    fit(optimizer, model, 3)
    fit(twin[1], twin[0], 3)
    assert torch.equal(model[0].weight, twin[0][0].weight)
    assert twin[1].state_dict()["param_groups"][0]["lower"] == -0.2, "the bound is part of the state"


def test_half_precision_survives_large_caps_and_small_steps():
    parameter = nn.Parameter(torch.zeros(2, dtype=torch.float16))
    optimizer = SPS([parameter], smoothing="paper", batch_fraction=1.0)
    parameter.grad = torch.zeros(2, dtype=torch.float16)
    for _ in range(1100):
        optimizer.step(loss=1.0)
    assert parameter.tolist() == [0.0, 0.0], "a zero gradient moves nothing, however large the cap"
    steep = nn.Parameter(torch.zeros(1, dtype=torch.float16))
    steep.grad = torch.full((1,), 6e4, dtype=torch.float16)
    SPS([steep]).step(loss=100.0)
    assert steep.item() == pytest.approx(-100 / (0.5 * 6e4), rel=1e-2)


def test_a_refused_group_is_not_added():
    optimizer = SPS([nn.Parameter(torch.ones(1))])
    for wrong in ({"lr": -1.0}, {"scale": 0.0}, {"weight_decay": -1.0}, {"smoothing": "x"}, {"lower": 3.0}):
        with pytest.raises(fedsps.ConfigurationError):
            optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]} | wrong)
    assert len(optimizer.param_groups) == 1


def test_numbers_keep_their_precision():
    parameter = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    parameter.grad = torch.full((1,), 1e-4, dtype=torch.float64)
    SPS([parameter], lower=1.0).step(loss=1.0 + 1e-9)
    assert parameter.item() == pytest.approx(-1e-9 / (0.5 * 1e-4), rel=1e-6)


@pytest.mark.parametrize("make", [SPS, DecSPS])
def test_a_steep_loss_does_not_overflow(make):
    parameter = nn.Parameter(torch.tensor([1.0, 1.0]))
    optimizer = make([parameter])
    parameter.grad = torch.full((2,), 1e25)
    optimizer.step(loss=1e25)
    stepsize = 1e25 / (0.5 * 2e50)
    assert optimizer.param_groups[0]["stepsize"] == pytest.approx(stepsize, rel=1e-6, abs=0)
    assert parameter.tolist() == pytest.approx([0.0, 0.0], abs=1e-6)


@pytest.mark.parametrize("kinds", [("float16", "float64"), ("float64", "float16"), ("bfloat16", "float32")])
def test_parameters_of_several_precisions(kinds):
    parameters = [nn.Parameter(torch.zeros(2, dtype=getattr(torch, kind))) for kind in kinds]
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 300.0)
    optimizer = SPS(parameters, weight_decay=0.1)
    optimizer.step(loss=30.0)
    assert optimizer.param_groups[0]["stepsize"] == pytest.approx(30 / (0.5 * 360_000), rel=1e-2)
    assert [str(parameter.dtype) for parameter in parameters] == [f"torch.{kind}" for kind in kinds]


@pytest.mark.parametrize("loss", [torch.ones(3), torch.ones(0), torch.tensor(1j), "1", True, [1.0]])
def test_a_loss_that_is_not_one_number_is_refused(loss):
    parameter = nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    with pytest.raises(fedsps.ConfigurationError, match="the loss must be one real number; got .*: pass"):
        SPS([parameter]).step(loss=loss)
    assert parameter.tolist() == [1.0, 1.0]


def test_misuse_says_what_to_do():
    optimizer = SPS([nn.Parameter(torch.ones(1))])
    for call in (lambda: optimizer.step(torch.tensor(1.0)), lambda: optimizer.step(lambda: None)):
        with pytest.raises(fedsps.ConfigurationError, match="loss"):
            call()
