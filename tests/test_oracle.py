"""The library against a second implementation: the paper's pseudo-code in plain NumPy, loop by loop.

Nothing is shared but the random draws (`fedsps.streams`): losses, gradients, stepsizes, the server and the history are
written again below. Each rule takes the keywords of the library's algorithm of the same name, and counts which branch
of its minimum was taken, so that a test can tell that both were.
"""

import math
import sys
from collections import Counter

import numpy as np

import fedsps

SIZES, FEATURES, CLASSES = (3, 8, 13, 21, 34), 4, 3
ALL = tuple(range(len(SIZES)))
BOUNDS = (-0.3, 0.0, 0.2, 0.1, -0.05)  # below every loss that the clients below can have (the oracle asserts it)
COLUMNS = [
    "train_loss",
    "cohort_loss",
    "stepsize_mean",
    "stepsize_std_clients",
    "stepsize_one_mean",
    "stepsize_one_std",
]


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


# Rules: the stepsize of one client's local step, and the server's part of a communication round.


class FedAvg:
    def __init__(self, client_stepsize=0.1, server_stepsize=1.0):
        self.gamma, self.server_stepsize, self.branches = client_stepsize, server_stepsize, Counter()

    def stepsize(self, i, t, first, share, loss, g):
        return self.gamma

    def server(self, x, locals_, p, nu):
        return x + self.server_stepsize * sum(p[i] * (locals_[i] - x) for i in p)

    def smaller(self, ratio, cap):
        self.branches["ratio" if ratio < cap else "cap"] += 1
        return min(ratio, cap)


class FedSPS(FedAvg):
    def __init__(self, scale=0.5, cap=1.0, lower=0.0, smoothing=None, server_stepsize=1.0):
        super().__init__(server_stepsize=server_stepsize)
        self.c, self.lower, self.smoothing = scale, np.broadcast_to(lower, len(ALL)), smoothing
        self.caps = dict.fromkeys(ALL, cap)  # of each client's next step

    def gap(self, i, loss):
        assert loss >= self.lower[i], "the bound of this test is not one"
        return loss - self.lower[i]

    def sps(self, gap, norm2, cap):
        return self.smaller(gap / (self.c * norm2) if norm2 > 0 else math.inf, cap)

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
    def server(self, x, locals_, p, nu):
        moved = [i for i in p if nu[i] > 0]
        if not moved:
            return x
        return sum(p[i] / nu[i] * locals_[i] for i in moved) / sum(p[i] / nu[i] for i in moved)


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
        if gap == 0 and g @ g > 0:
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
        if self.gamma is None:  # the first client's first step
            self.gamma = self.sps(gap, g @ g, cap)
        self.last[i] = gap, g, cap
        self.grow(i, share, self.gamma)
        return self.gamma

    def server(self, x, locals_, p, nu):
        gap, cap = (sum(p[i] * self.last[i][k] for i in p) for k in (0, 2))
        if self.formula == "a":
            self.gamma = sum(p[i] * self.sps(gap_i, g @ g, cap_i) for i in p for gap_i, g, cap_i in [self.last[i]])
        elif self.formula == "b":
            self.gamma = self.sps(gap, sum(p[i] * (self.last[i][1] @ self.last[i][1]) for i in p), cap)
        else:
            mean = sum(p[i] * self.last[i][1] for i in p)
            self.gamma = self.sps(gap, mean @ mean, cap)
        return super().server(x, locals_, p, nu)


def oracle(rule, F, x, clients, rounds, local_steps, weights="uniform", batch_size=None, cohort=None, seed=0):
    """The paper's double loop over t and clients. Returns the last x and the history's columns, one row a round."""
    tau, history = local_steps, []
    sizes = [len(targets) for _, targets in clients]
    total = [m if weights == "samples" else 1 for m in sizes]
    for t in range(rounds * tau):
        r, k = divmod(t, tau)
        if k == 0:
            active = [int(i) for i in fedsps.streams.cohort(seed, r, len(clients), cohort or len(clients))]
            locals_ = dict.fromkeys(active, x)
            gammas, losses = {i: [] for i in active}, []
        for i in active:
            B = min(batch_size or sizes[i], sizes[i])
            rows = fedsps.streams.batches(seed, r, np.array([i]), np.array([sizes[i]]), tau, B)[k, 0]
            assert len(set(rows)) == B
            loss, g = F(locals_[i], *(part[rows] for part in clients[i]))
            gamma = rule.stepsize(i, t, k == 0, B / sizes[i], loss, g)
            locals_[i] = locals_[i] - gamma * g
            gammas[i].append(gamma)
            losses.append(loss)
        if (t + 1) % tau == 0:
            p = {i: total[i] / sum(total[j] for j in active) for i in active}
            x = rule.server(x, locals_, p, {i: sum(gammas[i]) for i in active})
            train_loss = sum(w * F(x, *client)[0] for w, client in zip(total, clients, strict=True)) / sum(total)
            means, one = [np.mean(gammas[i]) for i in active], gammas[active[0]]
            row = train_loss, np.mean(losses), np.mean(means), np.std(means), np.mean(one), np.std(one)
            history.append(row)
    return x, np.array(history)
