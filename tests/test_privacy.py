"""Differential privacy: what epsilon is, what the noise is, and that nothing else leaves a client."""

import itertools
import math
from statistics import NormalDist

import in_process
import numpy as np
import pytest
import torch
from conftest import make_clients
from flwr.app import Context, RecordDict
from torch import nn

from fedsps.errors import ConfigurationError
from fedsps.flower import RunConfig, privacy
from fedsps.flower.client import Site
from fedsps.flower.privacy import Privacy, epsilon

PRIVATE = {"clip_norm": 0.5, "noise_multiplier": 2.0}
NORMAL = NormalDist()


def by_renyi(rounds, noise_multiplier, delta):
    """Rényi's divergence of shifted Gaussians, sensitivity 2, converted as in Canonne et al. 2020, proposition 12."""
    orders = np.linspace(1.01, 200, 200_000)
    divergence = rounds * orders * 2**2 / (2 * noise_multiplier**2)
    return float(np.min(divergence + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)))


def exact_delta(rounds, noise_multiplier, eps):
    """The exact delta of so many Gaussian mechanisms of sensitivity 2 (Balle and Wang 2018, theorem 8)."""
    mu = 2 * math.sqrt(rounds) / noise_multiplier
    return NORMAL.cdf(mu / 2 - eps / mu) - math.exp(eps) * NORMAL.cdf(-mu / 2 - eps / mu)


@pytest.mark.parametrize(("rounds", "noise"), [(1, 4.0), (10, 8.0), (100, 20.0), (20, 1.0)])
def test_epsilon_of_full_cohorts_is_that_of_gaussian_mechanisms(rounds, noise):
    found = epsilon(rounds, 10, 10, noise, 1e-5)
    assert found == pytest.approx(by_renyi(rounds, noise, 1e-5), rel=0.02)
    assert exact_delta(rounds, noise, found) < 1e-5  # it holds
    assert exact_delta(rounds, noise, 0.6 * found) > 1e-5  # and is not far off


def test_epsilon_grows_with_rounds_and_shrinks_with_noise_and_sampling():
    usual = epsilon(50, 10, 100, 8.0, 1e-5)
    assert 0 == epsilon(0, 10, 100, 8.0, 1e-5) < usual < epsilon(100, 10, 100, 8.0, 1e-5)
    assert epsilon(50, 10, 100, 16.0, 1e-5) < usual < epsilon(50, 20, 100, 8.0, 1e-5) < epsilon(50, 9, 9, 8.0, 1e-5)
    assert epsilon(50, 10, 100, 8.0, 1e-7) > usual


def test_sampling_never_makes_it_worse():
    assert epsilon(5, 9, 10, 1.0, 1e-5) <= epsilon(5, 10, 10, 1.0, 1e-5)


def test_epsilon_refuses_what_means_nothing():
    for bad in ((5, 11, 10, 1.0, 1e-5), (5, 1, 10, 0.0, 1e-5), (5, 1, 10, 1.0, 0.0), (-1, 1, 10, 1.0, 1e-5)):
        with pytest.raises(ConfigurationError):
            epsilon(*bad)


def test_secret_cohorts_are_claimed_only_if_all_answered():
    private = Privacy(1.0, 8.0)
    claim = private.claim([2, 1, 0, 1], rounds=2, cohort=2)
    assert claim["epsilon"] == epsilon(2, 4, 4, 8.0, 1e-5)
    assert claim["epsilon_secret_cohorts"] == epsilon(2, 2, 4, 8.0, 1e-5)
    assert "epsilon_secret_cohorts" not in private.claim([2, 1, 0, 0], rounds=2, cohort=2)
    assert "epsilon_secret_cohorts" not in private.claim([2, 2, 2, 2], rounds=2, cohort=4)
    assert "at delta 1e-05" in privacy.explain(claim)


def test_noise_is_normal_with_the_std_that_was_asked_for():
    d, private = 200_000, Privacy(clip_norm=0.5, noise_multiplier=3.0)
    values, weights = torch.zeros(4, d, dtype=torch.float64), torch.full((4,), 0.25)
    noise, again = private.mean("delta")(values, weights), private.mean("delta")(values, weights)
    std = 3.0 * 0.5 / 4
    assert not torch.equal(noise, again)
    assert abs(noise.mean()) < 6 * std / math.sqrt(d)  # each of these fails by chance with probability below 1e-8
    assert abs(noise.std() / std - 1) < 6 / math.sqrt(2 * d)
    assert abs((noise**4).mean() / std**4 - 3) < 6 * math.sqrt(96 / d)
    assert abs((noise * again).mean()) < 6 * std**2 / math.sqrt(d)
    assert abs((noise[: d // 2] * noise[d // 2 :]).mean()) < 6 * std**2 / math.sqrt(d / 2)  # the two of a pair
    assert len(privacy.gaussian(7)) == 7


def test_noise_of_a_scalar_has_the_std_that_is_stated():
    """Two scalars share a tenth of 1 / z^2: their multiplier is z sqrt(20), and the change's z / sqrt(0.9)."""
    n, times = 100, 5_000
    private = Privacy(clip_norm=0.5, noise_multiplier=3.0, ranges={"one": (0.0, 4.0), "other": (-1.0, 1.0)})
    weights = torch.full((n,), 1 / n, dtype=torch.float64)
    drawn = {
        name: np.array([private.mean(name)(torch.full((n,), middle).double(), weights).item() for _ in range(times)])
        for name, middle in (("one", 2.0), ("other", 0.0))
    }
    for name, middle, half in (("one", 2.0, 2.0), ("other", 0.0, 1.0)):
        std = 3.0 * math.sqrt(20) * half / n
        assert abs(drawn[name].mean() - middle) < 6 * std / math.sqrt(times)  # as above
        assert abs(drawn[name].std() / std - 1) < 6 / math.sqrt(2 * times)
    correlation = np.corrcoef(drawn["one"], drawn["other"])[0, 1]
    assert abs(correlation) < 6 / math.sqrt(times)
    change = private.mean("delta")(torch.zeros(4, 200_000).double(), torch.full((4,), 0.25))
    assert abs(change.std() / (3.0 / math.sqrt(0.9) * 0.5 / 4) - 1) < 6 / math.sqrt(2 * 200_000)


@pytest.mark.parametrize("name", ["fedsps", "fedexp", "fedpolyak", "common", "sps+diagonal"])
@pytest.mark.parametrize("noise", [0.7, 8.0])
def test_one_replaced_client_moves_what_is_released_by_two_over_z_at_the_most(name, noise, monkeypatch):
    """Over extreme answers, in units of the noise's std, as the sensitivity of one Gaussian mechanism: and it is met.

    The server is given what the clients say without their own clipping.
    """
    private = RunConfig.of({"algorithm": name, "clip-norm": 0.3, "noise-multiplier": noise}).privacy
    clients, names = 5, ["delta", *private.ranges]
    weights = torch.full((clients,), 1 / clients, dtype=torch.float64)
    middle = {one: torch.tensor((low + high) / 2).double() for one, (low, high) in private.ranges.items()}
    others = [{"delta": torch.zeros(3).double()} | middle] * (clients - 1)

    def released(answer, scale):
        """What leaves the server, with this number in the place of each standard normal one."""
        monkeypatch.setattr(privacy, "gaussian", lambda size: np.full(size, scale))
        stacked = {one: torch.stack([answer[one], *(other[one] for other in others)]) for one in names}
        return np.concatenate([private.mean(one)(stacked[one], weights).reshape(-1).numpy() for one in names])

    small = 1e-6
    std = (released(others[0], small) - released(others[0], 0.0)) / small
    axes = [*np.eye(3), -np.eye(3)[0]]
    changes = [torch.tensor(size * axis) for axis in axes for size in (0.0, 0.1, 0.3, 1e12)]
    numbers = [
        [torch.tensor(value).double() for value in (-1e30, low, (low + high) / 2, high, 1e30)]
        for low, high in private.ranges.values()
    ]
    answers = [dict(zip(names, one, strict=True)) for one in itertools.product(changes, *numbers)]
    found = np.array([released(answer, 0.0) / std for answer in answers])
    most = max(np.linalg.norm(found - one, axis=1).max() for one in found)
    assert most <= 2 / noise * (1 + 1e-5)
    assert most >= 2 / noise * (1 - 1e-5), "no noise is wasted"


def test_an_algorithm_that_sends_its_change_alone_has_all_the_budget():
    for name in ("fedsps", "fedavg", "feddecsps", "fedams"):
        private = RunConfig.of({"algorithm": name, "clip-norm": 0.3, "noise-multiplier": 0.7}).privacy
        assert private.ranges == {} and private.multipliers[0] == 0.7


def test_values_are_clipped_on_both_sides(monkeypatch):
    private = Privacy(clip_norm=1.0, noise_multiplier=1.0, ranges={"gap": (0.5, 2.0)})

    def clipped(change, gap=1.0):
        sent = private.clip({"delta": torch.tensor(change), "gap": torch.tensor(gap), "secret": torch.tensor(1.0)})
        assert sent.keys() == {"delta", "gap"}
        return *sent["delta"].tolist(), sent["gap"].item()

    assert clipped([3.0, 4.0], 7.0) == pytest.approx((0.6, 0.8, 2.0))
    assert clipped([0.3, 0.4], -7.0) == pytest.approx((0.3, 0.4, 0.5))
    assert clipped([torch.nan, 1.0]) == clipped([1.0, 1.0], torch.nan) == clipped([1.0, 1.0], torch.inf) == (0, 0, 0.5)
    assert math.hypot(*clipped([3e38, 3e38])[:2]) <= 1  # whose squares overflow
    monkeypatch.setattr(privacy, "gaussian", np.zeros)
    liar, weights = torch.tensor([[300.0, 400.0], [0.0, 0.0]]), torch.tensor([0.5, 0.5])
    assert private.mean("delta")(liar, weights).tolist() == pytest.approx([0.3, 0.4])
    assert private.mean("gap")(torch.tensor([1e30, 1.0]), weights).item() == 1.5
    monkeypatch.setattr(privacy, "gaussian", lambda size: np.full(size, -1e3))
    assert private.mean("gap")(torch.tensor([1.0, 1.0]), weights).item() == 0.5, "noise does not lead out of the range"


def watch(seen):
    def spoil(partition, kind, reply):
        seen.append((kind, reply.content))
        return reply

    return spoil


def test_run_without_noise_is_the_clipped_mean(tmp_path, monkeypatch):
    monkeypatch.setattr(privacy, "gaussian", np.zeros)
    found = in_process.run(in_process.grid(tmp_path), tmp_path, **PRIVATE)
    plain = in_process.run(in_process.grid(tmp_path), tmp_path, mean="clipped:0.5")
    free = in_process.run(in_process.grid(tmp_path), tmp_path)
    assert torch.allclose(in_process.weights(found), in_process.weights(plain), rtol=1e-9, atol=1e-12)
    assert not torch.allclose(in_process.weights(found), in_process.weights(free), atol=1e-3)


def test_nothing_but_one_short_vector_leaves_a_client(tmp_path):
    seen = []
    grid = in_process.grid(tmp_path, spoil=watch(seen), test=make_clients()[0])
    result = in_process.run(grid, tmp_path, algorithm="feddecsps", cohort=3, test=make_clients()[1], **PRIVATE)
    assert {kind for kind, _ in seen} == {"query", "train.train", "query.finished"}  # no evaluation by the clients
    for kind, content in seen:
        if kind == "query.finished":
            assert not content
            continue
        facts = dict(content.config_records["facts"])
        arrays = {name: dict(record) for name, record in content.array_records.items()}
        if kind == "query":
            assert facts.keys() == {"partition", "partitions", "samples", "test_samples", "fedsps", "torch", "app"}
            assert not arrays
            assert facts["samples"] == 1 and facts["test_samples"] == 0
        else:
            assert facts.keys() == {"gradients", "lost"} and facts["gradients"] == 5
            assert arrays.keys() == {"message"} and arrays["message"].keys() == {"delta"}
            assert np.linalg.norm(arrays["message"]["delta"].numpy()) <= 0.5 * (1 + 1e-9)
        assert not content.metric_records
    table = result.history
    hidden = ["train_loss", "cohort_loss", "stepsize_mean", "stepsize_std", "stepsize_std_clients"]
    assert table[[*hidden, "stepsize_one_mean", "stepsize_one_std", "client_test_loss"]].isna().all(axis=None)
    assert table[["test_loss", "test_accuracy"]].notna().all(axis=None)  # on the server's own data
    assert result.diverged_at is None and len(table) == 4
    claim = result.summary["data"]["privacy"]
    assert table["epsilon"].iloc[-1] == claim["epsilon"] == epsilon(claim["rounds_of_a_client"], 5, 5, 2.0, 1e-5)
    assert table["epsilon"].is_monotonic_increasing and table["epsilon"].iloc[0] == epsilon(1, 5, 5, 2.0, 1e-5)
    assert "train_samples" not in result.summary["data"]


def test_bounded_scalars_leave_a_client_and_what_the_rule_can_do_without_does_not(tmp_path):
    seen = []
    grid = in_process.grid(tmp_path, spoil=watch(seen))
    result = in_process.run(grid, tmp_path, algorithm="fedpolyak", **PRIVATE)
    messages = [content.array_records["message"] for kind, content in seen if kind == "train.train"]
    assert len(messages) == 20
    for message in messages:
        sent = {name: message[name].numpy() for name in message}
        assert sent.keys() == {"delta", "delta_norm_sq", "log_ratio"}
        assert sent["delta_norm_sq"] == pytest.approx(np.sum(sent["delta"] ** 2))
        assert np.linalg.norm(sent["delta"]) <= 0.5 * (1 + 1e-9) and abs(sent["log_ratio"]) <= 5
    assert len(result.history) == 4 and result.diverged_at is None
    assert result.history["epsilon"].iloc[-1] == epsilon(4, 5, 5, 2.0, 1e-5), "that of the change alone"


@pytest.mark.parametrize(
    ("name", "same"),
    [
        ("fedexp", "fedexp"),
        ("fedpolyak", "common:cap=1e9+diagonal+polyaverage"),
        (
            "plateau:initial=1+diagonal",
            "common:initial=1,cap=1e9+diagonal",
        ),  # the ratios decide its stepsize
    ],
)
def test_without_noise_and_clipping_only_the_left_out_losses_are_missed(name, same, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(privacy, "gaussian", np.zeros)
    loose = {"clip_norm": 1e3, "noise_multiplier": 1.0}
    found = in_process.run(in_process.grid(tmp_path), tmp_path, algorithm=name, rounds=3, **loose)
    is_told = "goes by the stepsize rule common in place of plateau" in capsys.readouterr().out
    assert is_told == (name != same)
    free = in_process.run(in_process.grid(tmp_path), tmp_path, algorithm=same, rounds=3)
    assert torch.allclose(in_process.weights(found), in_process.weights(free), rtol=1e-9, atol=1e-12)


def test_two_runs_of_one_seed_differ_by_their_noise(tmp_path, capsys):
    first, second = (in_process.run(in_process.grid(tmp_path), tmp_path, rounds=1, **PRIVATE) for _ in range(2))
    gap = in_process.weights(first) - in_process.weights(second)
    std = 2.0 * 0.5 / 5 * math.sqrt(2)
    assert 0.2 * std < gap.norm() / math.sqrt(len(gap)) < 3 * std  # 15 numbers: fails with probability below 1e-8
    assert f"epsilon {epsilon(1, 5, 5, 2.0, 1e-5):.4g} at delta 1e-05" in capsys.readouterr().out


def test_resumed_run_goes_on_counting(tmp_path):
    whole = in_process.run(in_process.grid(tmp_path), tmp_path / "whole", **PRIVATE)
    first = in_process.grid(tmp_path)
    original = first.push_messages

    def push(messages):
        if sum(kind == "train.train" for kind, _ in first.asked) >= 10:
            raise KeyboardInterrupt
        return original(messages)

    first.push_messages = push
    with pytest.raises(KeyboardInterrupt):
        in_process.run(first, tmp_path, **PRIVATE)
    rest = in_process.run(in_process.grid(tmp_path), tmp_path, **PRIVATE)
    assert rest.history["epsilon"].tolist() == whole.history["epsilon"].tolist()


def test_client_that_fails_tells_the_kind_of_error_only(tmp_path):
    clients = make_clients()
    clients[2] = (clients[2][0], clients[2][1] + 40)  # a class that the model does not have
    seen = []
    with pytest.raises(ConfigurationError, match="see the log of the client") as refusal:
        in_process.run(in_process.grid(tmp_path, clients, spoil=watch(seen)), tmp_path, **PRIVATE)
    assert "40" not in str(refusal.value)
    errors = [content.config_records["error"]["text"] for _, content in seen if "error" in content.config_records]
    assert errors == ["ConfigurationError, see the log of the client"]


def test_client_does_not_evaluate():
    config = {"clip-norm": 1.0, "noise-multiplier": 1.0, "dtype": "float64"}
    context = Context(1, 1, {"partition-id": 0, "num-partitions": 5}, RecordDict(), config)
    site = Site(context, in_process.linear, in_process.sites(make_clients()), nn.functional.cross_entropy)
    with pytest.raises(ConfigurationError, match="does not cover"):
        site.evaluate(RecordDict())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"clip-norm": 1.0}, "needs clip-norm and noise-multiplier; got 1 and 0"),
        ({"noise-multiplier": 1.0}, "got 0 and 1"),
        ({"clip-norm": -1.0, "noise-multiplier": 1.0}, "clip_norm must be a finite number above 0"),
        ({"clip-norm": 1.0, "noise-multiplier": 1.0, "delta": 0.0}, "delta must be above 0"),
        ({"clip-norm": 1.0, "noise-multiplier": 1.0, "weights": "samples"}, "weights = 'uniform'"),
        ({"clip-norm": 1.0, "noise-multiplier": 1.0, "mean": "median"}, "mean = 'mean'"),
    ],
)
def test_refusals(settings, words):
    with pytest.raises(ConfigurationError, match=words):
        RunConfig.of(settings)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("scaffold", "control_change .a vector."),
        ("mime", "full gradient .before training."),
        ("fedsps-global", "first stepsize .before training., local_stepsize .a number without a stated range."),
        ("fedsps-global:formula=c,initial=0.1", "local_gap .* local_cap .* local_gradient .a vector."),
        ("fedsps-normalized", "normalized_delta .a vector., inverse_stepsizes .a number without a stated range."),
        ("local-adaalter", "local_squares .a vector."),
    ],
)
def test_algorithms_that_send_more_are_refused(name, words, tmp_path):
    with pytest.raises(ConfigurationError, match=f"{name} also sends {words}"):
        in_process.run(in_process.grid(tmp_path), tmp_path, algorithm=name, **PRIVATE)


def test_batch_norm_is_refused(tmp_path):
    def model(context=None):
        return nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)).double()

    with pytest.raises(ConfigurationError, match="norm = group"):
        in_process.run(in_process.grid(tmp_path, model=model), tmp_path, model=model, **PRIVATE)
