"""The library against a second implementation: the paper's pseudo-code in plain NumPy, loop by loop.

Nothing is shared but the random draws (`fedsps.streams`): losses, gradients, stepsizes, the server and the history are
written again below. Each rule takes the keywords of the library's algorithm of the same name, and counts which branch
of its minimum was taken, so that a test can tell that both were.
"""

import itertools
import math
import sys
from collections import Counter

import numpy as np
import pytest
import torch

import fedsps
from fedsps.core import streams

SIZES, FEATURES, CLASSES = (3, 8, 13, 21, 34), 4, 3
ALL = tuple(range(len(SIZES)))
BOUNDS = (-0.3, 0.0, 0.2, 0.1, -0.05)  # below every loss that is met (the oracle asserts it)
SMOOTHING = (None, "paper", "loizou")
COLUMNS = ("train_loss", "cohort_loss", *(f"stepsize_{s}" for s in ("mean", "std_clients", "one_mean", "one_std")))


# Losses: (parameters, inputs, targets) -> mean loss over the samples and its gradient, parameters as one vector.


def softmax(x, inputs, targets):
    weight, bias = x[:-CLASSES].reshape(CLASSES, -1), x[-CLASSES:]
    logits = inputs @ weight.T + bias
    logits = logits - logits.max(1, keepdims=True)
    chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    one_hot = np.eye(CLASSES)[targets]
    loss = np.mean(np.log(np.exp(logits).sum(1)) - (logits * one_hot).sum(1))
    error = (chances - one_hot) / len(targets)
    return loss, np.concatenate([(error.T @ inputs).ravel(), error.sum(0)])


def logistic(x, inputs, targets):
    logits = inputs @ x[:-1] + x[-1]
    loss = np.mean(np.logaddexp(0.0, logits) - targets * logits)
    error = (1 / (1 + np.exp(-logits)) - targets) / len(targets)
    return loss, np.append(inputs.T @ error, error.sum())


def square(x, inputs, targets):
    error = inputs @ x - targets
    return 0.5 * np.mean(error**2), inputs.T @ error / len(targets)


# Rules: the stepsize of one client's local step (t counts all local steps, `first` is a round's first, share = B / m_i),
# and the server's part of a communication round (p: the clients' weights in a mean, nu: their sums of stepsizes).


class FedAvg:
    def __init__(self, client_stepsize=0.1, server_stepsize=1.0):
        self.gamma, self.server_stepsize, self.branches = client_stepsize, server_stepsize, Counter()

    def stepsize(self, i, t, first, share, loss, g):
        return self.gamma

    def server(self, x, x_i, p, nu):
        return x + self.server_stepsize * sum(p[i] * (x_i[i] - x) for i in p)

    def smaller(self, ratio, cap, count=True):
        self.branches["ratio" if ratio < cap else "cap"] += count
        return min(ratio, cap)


class FedSPS(FedAvg):
    def __init__(self, scale=0.5, cap=1.0, lower=0.0, smoothing=None, server_stepsize=1.0):
        super().__init__(server_stepsize=server_stepsize)
        self.c, self.lower, self.smoothing = scale, np.broadcast_to(lower, len(ALL)), smoothing
        self.caps = dict.fromkeys(ALL, cap)  # of each client's next step

    def gap(self, i, loss):
        assert loss >= self.lower[i], "the bound of this test is not one"
        return loss - self.lower[i]

    def sps(self, gap, norm2, cap, count=True):
        return self.smaller(gap / (self.c * norm2) if norm2 > 0 else math.inf, cap, count)

    def grow(self, i, share, gamma):
        if self.smoothing == "paper":
            self.caps[i] = min(2**share * self.caps[i], sys.float_info.max)
        elif self.smoothing == "loizou" and gamma > 0:
            self.caps[i] = min(2**share * gamma, sys.float_info.max)

    def stepsize(self, i, t, first, share, loss, g):
        gamma = self.sps(self.gap(i, loss), g @ g, self.caps[i])
        self.grow(i, share, gamma)
        return gamma


class FedSPSNormalized(FedSPS):
    def server(self, x, x_i, p, nu):
        moved = [i for i in p if nu[i] > 0]
        if not moved:
            return x
        return sum(p[i] / nu[i] * x_i[i] for i in moved) / sum(p[i] / nu[i] for i in moved)


class FedDecSPS(FedSPS):
    def __init__(self, clock="global", reset=False, **keywords):
        super().__init__(**keywords)
        self.clock, self.reset, self.start = clock, reset, self.c * self.caps[0]
        self.previous = dict.fromkeys(ALL, self.start)  # c_{t-1} gamma_{t-1}
        self.own = Counter()  # local steps that each client has taken

    def stepsize(self, i, t, first, share, loss, g):
        if self.clock == "client":
            t = self.own[i]
            self.own[i] += 1
        if self.reset and first:
            self.previous[i] = self.start
        c_t, gap = self.c * math.sqrt(t + 1), self.gap(i, loss)
        if gap == 0:
            return 0.0
        gamma = self.smaller(gap / (g @ g) if g @ g > 0 else math.inf, self.previous[i]) / c_t
        self.previous[i] = c_t * gamma
        return gamma


class FedSPSGlobal(FedSPS):
    def __init__(self, formula="a", initial=None, **keywords):
        super().__init__(**keywords)
        self.formula, self.gamma, self.last = formula, initial, {}

    def stepsize(self, i, t, first, share, loss, g):
        gap, cap = self.gap(i, loss), self.caps[i]
        own = self.sps(gap, g @ g, cap, count=False)  # what "loizou" remembers: the client's own, not the shared one
        if self.gamma is None:  # the first client's first step
            self.gamma = own
        self.last[i] = gap, g, cap
        self.grow(i, share, own)
        return self.gamma

    def server(self, x, x_i, p, nu):
        gap, cap = (sum(p[i] * self.last[i][k] for i in p) for k in (0, 2))
        if self.formula == "a":
            self.gamma = sum(p[i] * self.sps(gap_i, g @ g, cap_i) for i in p for gap_i, g, cap_i in [self.last[i]])
        elif self.formula == "b":
            self.gamma = self.sps(gap, sum(p[i] * (self.last[i][1] @ self.last[i][1]) for i in p), cap)
        else:
            mean = sum(p[i] * self.last[i][1] for i in p)
            self.gamma = self.sps(gap, mean @ mean, cap)
        return super().server(x, x_i, p, nu)


def oracle(rule, F, x, clients, rounds, local_steps, weights="uniform", batch_size=None, cohort=None, seed=0):
    """The paper's double loop over t and clients. Returns the last x and the history's columns, one row a round."""
    tau, history = local_steps, []
    sizes = [len(targets) for _, targets in clients]
    w = [m if weights == "samples" else 1 for m in sizes]
    for t in range(rounds * tau):
        r, k = divmod(t, tau)
        if k == 0:
            active = [int(i) for i in streams.cohort(seed, r, len(clients), cohort or len(clients))]
            x_i, gammas, losses = dict.fromkeys(active, x), {i: [] for i in active}, []
        for i in active:
            B = min(batch_size or sizes[i], sizes[i])
            rows = streams.batches(seed, r, np.array([i]), np.array([sizes[i]]), tau, B)[k, 0]
            assert len(set(rows)) == B
            loss, g = F(x_i[i], *(part[rows] for part in clients[i]))
            gamma = rule.stepsize(i, t, k == 0, B / sizes[i], loss, g)
            x_i[i] = x_i[i] - gamma * g
            gammas[i].append(gamma)
            losses.append(loss)
        if (t + 1) % tau == 0:
            p = {i: w[i] / sum(w[j] for j in active) for i in active}
            x = rule.server(x, x_i, p, {i: sum(gammas[i]) for i in active})
            train_loss = sum(w[i] * F(x, *client)[0] for i, client in enumerate(clients)) / sum(w)
            means, one = [np.mean(gammas[i]) for i in active], gammas[active[0]]
            stepsizes = np.mean(means), np.std(means), np.mean(one), np.std(one)
            history.append((train_loss, np.mean(losses), *stepsizes))
    return x, np.array(history)


# The comparison.


def federation(binary=False):
    """Five unequal clients: other feature scales, other majority labels, so stepsizes from far below 1 to above 10."""
    rng, clients = np.random.default_rng(3), []
    for m, scale, label in zip(SIZES, (0.1, 3, 0.3, 2, 1), (0, 1, 2, 0, 1), strict=True):
        inputs = scale * rng.standard_normal((m, FEATURES))
        targets = np.where(rng.random(m) < (0.5 if m > 3 else 0), label, np.arange(m) % CLASSES)
        clients.append((inputs, (targets > 0).astype(float) if binary else targets))
    return clients


def half_square(outputs, targets):
    return 0.5 * ((outputs.squeeze(1) - targets) ** 2).mean()


def compare(algorithm, keywords, F=softmax, clients=None, tolerance=1e-10, **run):
    """Both engines against the oracle: every round's history and the last parameters. Returns the oracle's rule."""
    clients = clients or federation()
    classes = {softmax: CLASSES, logistic: 2}.get(F)
    model = fedsps.LogisticRegression(FEATURES, classes) if classes else torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    losses = {softmax: torch.nn.functional.cross_entropy, square: half_square}
    loss = losses.get(F, torch.nn.functional.binary_cross_entropy_with_logits)
    rule = globals()[algorithm](**keywords)
    x, history = oracle(rule, F, np.zeros(sum(p.numel() for p in model.parameters())), clients, **run)
    tensors = [(torch.from_numpy(inputs), torch.from_numpy(targets)) for inputs, targets in clients]
    for engine in ("stacked", "loop"):
        settings = {"algorithm": getattr(fedsps, algorithm)(**keywords), "engine": engine, "loss": loss}
        result = fedsps.train(model.double(), tensors, **{"batch_size": None} | settings | run)
        assert list(result.history["round"]) == list(range(1, run["rounds"] + 1))
        found = np.concatenate([p.detach().numpy().ravel() for p in result.model.parameters()])
        for k, column in enumerate(COLUMNS):
            close = {"rtol": tolerance, "atol": tolerance, "err_msg": f"{engine}: {column}"}
            np.testing.assert_allclose(result.history[column].to_numpy(), history[:, k], **close)
        np.testing.assert_allclose(found, x, rtol=tolerance, atol=tolerance, err_msg=f"{engine}: parameters")
    return rule


@pytest.mark.parametrize("F", [softmax, logistic, square])
def test_gradient_of_the_oracle(F):
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((7, FEATURES))
    targets = {softmax: rng.integers(0, CLASSES, 7), logistic: rng.integers(0, 2, 7)}.get(F, rng.standard_normal(7))
    x = rng.standard_normal({softmax: CLASSES * (FEATURES + 1), logistic: FEATURES + 1, square: FEATURES}[F])
    h = 1e-5 * np.eye(len(x))
    numeric = [(F(x + e, inputs, targets)[0] - F(x - e, inputs, targets)[0]) / 2e-5 for e in h]
    np.testing.assert_allclose(F(x, inputs, targets)[1], numeric, rtol=1e-8, atol=1e-8)


def rounds_of(algorithm, options, tau):
    """20; fewer where stepsizes far beyond the clients' 1/L amplify rounding errors by 10 and more a round."""
    if algorithm == "FedDecSPS" or (algorithm == "FedSPS" and not options.get("smoothing")):
        return 20
    return 3 if tau > 1 else 8 if algorithm == "FedSPSGlobal" and options.get("smoothing") else 20


VARIANTS = [
    *[("FedSPS", {"smoothing": s}) for s in SMOOTHING],
    ("FedSPS", {"server_stepsize": 0.7}),
    *[("FedSPSNormalized", {"smoothing": s}) for s in SMOOTHING],
    *[("FedDecSPS", {"reset": r}) for r in (False, True)],
    *[("FedSPSGlobal", {"formula": f, "smoothing": s}) for f in "abc" for s in SMOOTHING],
    ("FedSPSGlobal", {"initial": 0.3, "server_stepsize": 0.8}),
]
CLOCKS = [("FedDecSPS", {"clock": "client", "reset": r}) for r in (False, True)]  # the same without client sampling


def name(value):
    return value if isinstance(value, str) else " ".join(map(str, value.values()))


@pytest.mark.parametrize(("lower", "weights"), [(0.0, "uniform"), (BOUNDS, "samples")], ids=["zero", "bounds"])
@pytest.mark.parametrize(("algorithm", "options"), VARIANTS, ids=name)
def test_whole_data(algorithm, options, lower, weights):
    branches = Counter()
    for tau, cap, c in itertools.product((1, 5), (1.0, 10.0), (0.5, 1.0)):
        rounds = rounds_of(algorithm, options, tau)
        keywords = options | {"scale": c, "cap": cap, "lower": lower}
        rule = compare(algorithm, keywords, rounds=rounds, local_steps=tau, weights=weights)
        assert algorithm == "FedSPSGlobal" or len(+rule.branches) == 2
        branches += rule.branches
    assert len(branches) == 2  # FedSPS-Global has few minima in a run: over all of them


@pytest.mark.parametrize("weights", ["uniform", "samples"])
@pytest.mark.parametrize("tau", [1, 5])
def test_constant_stepsizes(tau, weights):
    compare("FedAvg", {"client_stepsize": 0.2, "server_stepsize": 1.5}, rounds=20, local_steps=tau, weights=weights)


@pytest.mark.parametrize("weights", ["uniform", "samples"])
@pytest.mark.parametrize(("algorithm", "options"), [("FedAvg", {}), *VARIANTS, *CLOCKS], ids=name)
def test_batches_and_client_sampling(algorithm, options, weights):
    """3 of 5 clients a round: who sits out keeps its caps, its minimum and its clock."""
    keywords = options if algorithm == "FedAvg" else options | {"cap": 4.0, "lower": -0.1}
    run = {"rounds": 10, "local_steps": 2, "batch_size": 5, "cohort": 3, "seed": 1, "weights": weights}
    rule = compare(algorithm, keywords, **run)
    assert algorithm == "FedAvg" or len(+rule.branches) == 2
    if "client" in options.values():
        assert len(set(rule.own.values())) > 2
    if options.get("smoothing"):
        assert len(set(rule.caps.values())) == len(ALL)


def test_a_batch_larger_than_the_data_is_the_data():
    compare("FedSPS", {"smoothing": "loizou"}, rounds=3, local_steps=5, batch_size=50)


@pytest.mark.parametrize("algorithm", ["FedSPS", "FedDecSPS", "FedSPSNormalized", "FedSPSGlobal"])
def test_binary_logistic_regression(algorithm):
    rule = compare(algorithm, {"cap": 5.0}, F=logistic, clients=federation(binary=True), rounds=10, local_steps=2)
    assert len(+rule.branches) == 2


def points(*targets):
    """Clients with F_i(x) = (x - target)^2 / 2."""
    return [(np.ones((1, 1)), np.array([float(target)])) for target in targets]


@pytest.mark.parametrize(("algorithm", "options"), [*VARIANTS, *CLOCKS], ids=name)
def test_zero_gradients_and_zero_gaps(algorithm, options):
    """At x = 0 clients 0 (gap 0) and 3 (gap 0.5) have no gradient; client 1 has one, and a loss that is its bound."""
    run = {"F": square, "local_steps": 1 if algorithm == "FedSPSGlobal" else 3, "rounds": 4}
    keywords = options | {"scale": 1.0, "cap": 0.9}
    compare(algorithm, keywords | {"lower": (0.0, 2.0, 0.0, -0.5, 0.0)}, clients=points(0, 2, -3, 0, -1), **run)
    compare(algorithm, keywords | {"lower": 2.0}, clients=points(2, -2, 2, -2), **run)  # x stays 0


def test_caps_stop_at_the_largest_number():
    keywords = {"cap": 1e300, "smoothing": "paper"}
    rule = compare("FedSPS", keywords, F=square, clients=points(0), rounds=40, local_steps=1)
    assert rule.caps[0] == sys.float_info.max
