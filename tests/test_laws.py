"""Laws that every algorithm keeps, over the one registry."""

import copy
from dataclasses import dataclass

import pytest
import torch
from registry import ALGORITHMS

from fedsps import Algorithm
from fedsps.core.local_training import Penalised, Train
from fedsps.rules import SPS, Proximal

STEPS, D = 3, 7


@dataclass
class Quadratics:
    """`Work` on f(x) = ||A (x - b)||^2 / 2 + bottom, another one for each client and step; sizes 2, 3, 5 in front."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float64
    flat: bool = False
    iteration: int = 10
    bottom: float = 0.05
    steps: int = STEPS

    def __post_init__(self):
        random = torch.Generator().manual_seed(0)
        self.scale = torch.rand(self.steps, *self.shape, D, generator=random, dtype=torch.float64).to(self.dtype) + 0.5
        self.centre = torch.randn(self.steps, *self.shape, D, generator=random, dtype=torch.float64).to(self.dtype)
        self.client = torch.arange(torch.Size(self.shape).numel()).reshape(self.shape) % 5
        self.fraction = torch.full(self.shape, 0.25, dtype=self.dtype)

    def loss_and_gradient(self, x, step):
        gradient = self.scale[step] * (x - self.centre[step])
        loss = (gradient * (x - self.centre[step])).sum(-1) / 2 + self.bottom
        return (loss, torch.zeros_like(gradient)) if self.flat else (loss, gradient)

    probe = loss_and_gradient

    def one(self, place):
        """The work of a single client of these."""
        alone = copy.copy(self)
        alone.scale, alone.centre = self.scale[(slice(None), *place)], self.centre[(slice(None), *place)]
        alone.client, alone.fraction = self.client[place], self.fraction[place]
        return alone


def play(algorithm, work, x):
    """All exchanges of a first round as far as the clients' part: their messages, states and trace."""
    server = {
        name: value.expand(x.shape[:-1] + value.shape) for name, value in algorithm.server_init(x.new_zeros(D)).items()
    }
    state = algorithm.client_init(x)
    for exchange in algorithm.exchanges(0):
        received = exchange.broadcast(server)
        message, state, trace = exchange.work(state, x, received, work)
        if not isinstance(exchange, Train):  # each client as if it were alone on its server
            _, server = exchange.finish(server, x, message, 1.0)
    return message, state, trace


@pytest.mark.parametrize("name", ALGORITHMS)
def test_leading_axes_do_not_matter(name):
    algorithm, shape = ALGORITHMS[name], (2, 3, 5)
    work, x = Quadratics(shape), torch.randn(*shape, D, dtype=torch.float64)
    message, state, trace = play(algorithm, work, x)
    for place in [(0, 0, 0), (1, 2, 4), (0, 1, 3)]:
        alone, alone_state, alone_trace = play(algorithm, work.one(place), x[place])
        for key, value in alone.items():
            torch.testing.assert_close(message[key][place], value, rtol=1e-12, atol=1e-12)
        for key, value in alone_state.items():
            torch.testing.assert_close(state[key][place], value, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(trace.stepsizes[place], alone_trace.stepsizes, rtol=1e-12, atol=1e-12)
        assert alone_trace.losses.shape == (STEPS,)
    assert trace.losses.shape == trace.stepsizes.shape == (*shape, STEPS)
    assert trace.gap.shape == shape


@pytest.mark.parametrize("name", ALGORITHMS)
def test_pure(name):
    """No input is changed, neither by the clients nor by the server, and the same inputs give the same outputs."""
    algorithm, x = ALGORITHMS[name], torch.randn(5, D, dtype=torch.float64)
    work = Quadratics((5,))
    exchange = algorithm.exchanges(1)[-1]
    server, state = algorithm.server_init(torch.zeros(D, dtype=torch.float64)), algorithm.client_init(x)
    server = {key: torch.full_like(value, 0.1) if value.isnan().any() else value for key, value in server.items()}
    received = {key: value.expand(5, *value.shape) for key, value in exchange.broadcast(server).items()}
    before = copy.deepcopy((x, state, received, server))
    message, new_state, _ = exchange.work(state, x, received, work)
    again, _, _ = exchange.work(state, x, received, work)
    assert_same((x, state, received), before[:3])
    assert_same(message, again)
    mean = {key: value.mean(0) for key, value in message.items()}
    kept = copy.deepcopy(mean)
    exchange.finish(server, x[0], mean, 1.0)
    assert_same((server, mean, x), (before[3], kept, before[0]))
    assert state.keys() == new_state.keys(), "what persists has the same names after a round"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_keeps_dtype(name, dtype):
    algorithm, x = ALGORITHMS[name], torch.randn(5, D).to(dtype)
    message, _, trace = play(algorithm, Quadratics((5,), dtype), x)
    mean = {key: value.mean(0) for key, value in message.items()}
    server = {key: torch.full_like(value, 0.1) for key, value in algorithm.server_init(x[0]).items()}
    moved, _ = algorithm.exchanges(1)[-1].finish(server, x[0], mean, 1.0)
    assert moved.dtype == dtype
    assert {value.dtype for value in message.values() if value.ndim == 2} == {dtype}, "vectors travel in their dtype"
    assert trace.stepsizes.dtype == (torch.float32 if dtype == torch.bfloat16 else dtype)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_zero_gradient_from_a_fresh_state_moves_nothing(name):
    algorithm, x = ALGORITHMS[name], torch.randn(5, D, dtype=torch.float64)
    message, _, _ = play(algorithm, Quadratics((5,), flat=True), x)
    mean = {key: value.mean(0) for key, value in message.items()}
    start = x[0]
    fresh = algorithm.server_init(start)
    moved, server = algorithm.exchanges(1)[-1].finish(fresh, start, mean, 1.0)
    assert torch.equal(moved, start)
    known = {key: value for key, value in server.items() if key != "stepsize" or not value.isnan().all()}
    assert all((value.isfinite() | (value == fresh[key])).all() for key, value in known.items()), "infinite as it was"


def test_the_gap_of_a_round_is_its_smallest():
    x = torch.zeros(5, D, dtype=torch.float64)
    _, _, trace = play(Algorithm(stepsize=SPS(lower=-0.2)), Quadratics((5,)), x)
    smallest = trace.losses.min(-1)
    assert (smallest.indices < STEPS - 1).any(), "not always the last one"
    torch.testing.assert_close(trace.gap, smallest.values + 0.2)


def test_probes_carry_the_penalty():
    work, start, point = Quadratics((5,)), *torch.randn(2, 5, D, dtype=torch.float64)
    found = Penalised(work, start, Proximal(mu=0.3)).probe(point, 1)
    loss, gradient = work.probe(point, 1)
    torch.testing.assert_close(found[0], loss + 0.15 * ((point - start) ** 2).sum(-1))
    torch.testing.assert_close(found[1], gradient + 0.3 * (point - start))


def assert_same(found, expected):
    if isinstance(found, dict):
        assert found.keys() == expected.keys()
        for key in found:
            assert_same(found[key], expected[key])
    elif isinstance(found, tuple):
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    else:
        assert torch.equal(found, expected)
