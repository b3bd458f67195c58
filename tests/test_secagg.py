"""Secure aggregation by Flower's own protocol over an in-process grid: the plain mean, and nothing of one client."""

from dataclasses import replace

import in_process
import numpy as np
import pytest
import torch
from conftest import make_clients
from flwr.app import Context, Error, Message, RecordDict
from flwr.common import bytes_to_ndarray
from flwr.common.secure_aggregation.quantization import dequantize, quantize
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from safetensors.torch import load_file
from torch import nn

import fedsps
from fedsps.core import streams
from fedsps.core.contract import Trace
from fedsps.data import load, partition
from fedsps.engine.answer import Answer
from fedsps.errors import ConfigurationError, DataError, LowerBoundError
from fedsps.flower import RunConfig, federate, protocol, secagg
from fedsps.flower.client import Site
from fedsps.flower.secagg import SecureTransport, secagg_client_app


class Grid(in_process.Grid):
    """Nodes keep Flower's state between messages, a client that raises answers with an error; all answers are kept."""

    def __init__(self, folder):
        self.inner = secagg_client_app(in_process.linear, in_process.sites(make_clients()))
        self.states, self.received = {}, []
        super().__init__(self.call, 5, folder / "states")

    def call(self, message, context):
        node = context.node_id
        context.state = self.states.setdefault(node, RecordDict())
        try:
            return self.inner(message, context)
        except Exception as error:
            return Message(Error(1, f"{type(error).__name__}: {error}"), reply_to=message)

    def push_messages(self, messages):
        """The stages of the protocol go through `send_and_receive`, which tests replace."""
        if messages[0].metadata.message_type != "train":
            return super().push_messages(messages)
        replies = {reply.metadata.reply_to_message_id: reply for reply in self.send_and_receive(messages)}
        self._replies |= replies
        return [message.metadata.message_id for message in messages]

    def send_and_receive(self, messages, timeout=None):
        replies = self.pull_messages(super().push_messages(messages))
        self.received += replies
        return replies


@pytest.fixture(autouse=True)
def rounding():
    """Flower rounds at random, from NumPy's global generator: the same way each time."""
    np.random.seed(0)


@pytest.fixture
def true_vectors(monkeypatch):
    """What each client computed, by (round, partition); the server has no way to it."""
    kept, original = {}, secagg.vector

    def vector(done, round, *others):
        values = original(done, round, *others)
        kept[round, others[0]] = values
        return values

    monkeypatch.setattr(secagg, "vector", vector)
    return kept


def run(grid, folder, test=None, model=in_process.linear, **config):
    config = {
        "algorithm": "fedsps",
        "dtype": "float64",
        "rounds": 4,
        "batch_size": 5,
        "deadline": 0.3,
        "poll": 0.01,
        "runs": str(folder / "runs"),
    } | config
    grid.config = {name.replace("_", "-"): value for name, value in config.items()}
    context = Context(1, 0, {}, RecordDict(), grid.config)
    config = RunConfig.of(grid.config)
    return federate(grid, config, model(), test, transport=SecureTransport, context=context)


def plain(rounds, algorithm=None, **settings):
    algorithm = algorithm or fedsps.FedSPS()
    return fedsps.train(
        in_process.linear(), make_clients(), algorithm=algorithm, rounds=rounds, batch_size=5, **settings
    )


def test_batch_norm_that_stays_local_needs_no_sum(tmp_path):
    def norm(context=None):
        return nn.Sequential(nn.BatchNorm1d(4), in_process.linear()).double()

    grid = Grid(tmp_path)
    grid.inner = secagg_client_app(norm, in_process.sites(make_clients()))
    found = run(grid, tmp_path, model=norm, rounds=3, local_batch_norm=True)
    settings = {"algorithm": "fedsps", "rounds": 3, "batch_size": 5}
    local = fedsps.train(norm(), make_clients(), local_batch_norm=True, **settings)
    torch.testing.assert_close(found.model[1].weight, local.model[1].weight, atol=1e-4, rtol=0)
    kept = load_file(tmp_path / "states" / "4" / found.spec.digest / "4" / "layers.safetensors")
    torch.testing.assert_close(kept["0.running_mean"], local.layers["0.running_mean"][4], atol=1e-3, rtol=0)


@pytest.mark.parametrize("rounds", [1, 6])
@pytest.mark.parametrize(
    ("name", "algorithm", "cohort"),
    [
        ("fedsps", fedsps.FedSPS(), 0),
        ("feddecsps", fedsps.FedDecSPS(), 3),
        ("fedams:client_stepsize=0.05", fedsps.FedAMS(client_stepsize=0.05), 0),
    ],
)
def test_equals_the_plain_mean(name, algorithm, cohort, rounds, tmp_path):
    found = run(Grid(tmp_path), tmp_path, algorithm=name, cohort=cohort, rounds=rounds)
    local = plain(rounds, algorithm, cohort=cohort or None)
    assert (in_process.weights(found) - in_process.weights(local)).abs().max() < 1e-4
    means = ["cohort_loss", "stepsize_mean", "gradient_evaluations", "clients"]
    local.history["clients"] = cohort or 5
    np.testing.assert_allclose(found.history[means], local.history[means], atol=1e-4)
    assert found.history["events"].eq("").all()
    assert found.history["bytes_up"].eq((cohort or 5) * 8 * (1 + 15 + 4 * 2 + 2)).all(), (
        "a weight, the change, four digits of the mean loss and stepsize, and two numbers"
    )
    assert found.history["bytes_down"].eq((cohort or 5) * 8 * 15).all()


@pytest.mark.parametrize(
    ("name", "cohort", "scalars", "received", "settings"),
    [
        ("fedpolyak", 0, 5, 2, {}),
        ("fedpolyak", 3, 5, 2, {}),
        ("fedexp:client_stepsize=0.05", 0, 1, 0, {}),
        # the reported ratios and losses decide its stepsize from the second round on; these numbers are of a run
        # that amplifies the rounding least (from initial=1 and 0.1 it grows twentyfold and more)
        ("plateau:bold=0.3,growth=3,least_rounds=3+diagonal", 0, 5, 2, {"clipping_range": 32.0}),
    ],
)
def test_scalars_and_the_broadcast_travel_too(name, cohort, scalars, received, settings, tmp_path):
    found = run(Grid(tmp_path), tmp_path, algorithm=name, cohort=cohort, rounds=6, **settings)
    local = plain(6, fedsps.build(name), cohort=cohort or None)
    tolerance = 1e-3 if settings else 1e-4
    assert (in_process.weights(found) - in_process.weights(local)).abs().max() < tolerance
    means = ["cohort_loss", "stepsize_mean"]
    np.testing.assert_allclose(found.history[means], local.history[means], atol=tolerance)
    assert found.history["events"].eq("").all()
    clients = cohort or 5
    assert found.history["bytes_up"].eq(clients * 8 * (1 + 15 + 4 * (scalars + 2) + 2)).all(), "four digits a scalar"
    assert found.history["bytes_down"].eq(clients * 8 * (15 + received)).all()


def test_fedpolyak_magnifies_the_rounding_of_weights_that_hardly_change(tmp_path):
    """Its server divides by the changes: in the first round all weights move alike, whatever the size of their change."""
    digits = load("digits")
    rows = partition("two-class", digits.targets, clients=5, seed=0).rows
    clients = [(torch.from_numpy(digits.inputs[own]).flatten(1), torch.from_numpy(digits.targets[own])) for own in rows]

    def linear(context=None):
        with streams.torch_seed(7, "test model"):
            return nn.Linear(64, 10)

    grid = Grid(tmp_path)
    grid.inner = secagg_client_app(linear, in_process.sites(clients))
    found = run(grid, tmp_path, model=linear, algorithm="fedpolyak", rounds=3, dtype="float32", batch_size=20)
    local = fedsps.train(linear(), clients, algorithm=fedsps.FedPolyak(), rounds=3, batch_size=20)
    gaps = (in_process.weights(found) - in_process.weights(local)).abs()
    assert 1e-3 < gaps.max() < 0.2 and gaps.median() < 1e-3
    np.testing.assert_allclose(found.history["cohort_loss"], local.history["cohort_loss"], rtol=1e-3)


@pytest.mark.parametrize("limit", [8.0, 0.05, 3.0])
@pytest.mark.parametrize("clients", [3, 1000])
def test_the_mean_of_scalars_is_exact(limit, clients):
    """Through Flower's own rounding, which is far coarser than the smallest of these numbers."""
    ranges = {"length": (0.0, 1e4), "tiny": (0.0, 1e4), "log": (-30.0, 30.0), "ends": (-2.0, 7.0)}
    random = np.random.default_rng(0)
    sent = {
        "length": random.uniform(0, 1e4, clients),
        "tiny": random.uniform(0, 1e-6, clients),
        "log": random.normal(0, 10, clients).clip(-30, 30),
        "ends": random.choice([-2.0, 7.0], clients),
    }
    vectors = [secagg.vector(answer_with(limit, sent, one), 0, one, limit, ranges) for one in range(clients)]
    total = sum(quantize([vector], limit, secagg.STEPS)[0].astype(np.int64) for vector in vectors)
    assert total.max() < 2**32, "the masks' range"
    mean = (dequantize([total], limit, secagg.STEPS)[0] - (clients - 1) * limit) / clients  # as Flower's workflow does
    told = ranges | secagg.TOLD
    found = secagg.message_of(torch.from_numpy(mean), torch.zeros(2).double(), clients, limit, told)
    for name, (low, high) in ranges.items():
        assert abs(found[name].item() - sent[name].mean()) < 1e-14 * (high - low)
    assert abs(found["tiny"].item() / sent["tiny"].mean() - 1) < 1e-9
    np.testing.assert_allclose(found["delta"], [0.1 * limit, -0.2 * limit], atol=limit / 2**20)


def answer_with(limit, sent, client):
    one = torch.ones((), dtype=torch.float64)
    trace = Trace(0.1 * limit * one.expand(2), 0.1 * limit * one.expand(2), one)
    numbers = {name: torch.tensor(values[client]) for name, values in sent.items()}
    return Answer({"delta": torch.tensor([0.1 * limit, -0.2 * limit]).double()} | numbers, {}, {}, trace, 2)


def test_server_never_holds_one_clients_change(tmp_path, true_vectors, monkeypatch):
    unmasked = []
    original = protocol.Asked.aggregate_fit

    def aggregate(self, server_round, results, failures):
        answer = original(self, server_round, results, failures)
        unmasked.append(self.mean.numpy())
        return answer

    monkeypatch.setattr(protocol.Asked, "aggregate_fit", aggregate)
    grid = Grid(tmp_path)
    result = run(grid, tmp_path, rounds=2)
    masked = []
    for reply in grid.received:
        content = reply.content
        assert all(not record for record in content.array_records.values())  # no array in the clear
        assert {key for record in content.metric_records.values() for key in record} <= {"num_examples"}
        plain_values = {key: v for record in content.config_records.values() for key, v in record.items()}
        masked += [bytes_to_ndarray(one) for one in plain_values.get("masked_params", [])]
        assert plain_values.get("gradients", 5) == 5
    masked = [one for one in masked if one.size > 1]
    assert len(masked) == 2 * 5 and len(unmasked) == 2 and len(true_vectors) == 10
    step = 2 * 8 / 2**22
    for (round, _), true in true_vectors.items():
        quantised = (true + 8) / step
        for seen in masked:
            assert np.median(np.abs(seen - quantised)) > 1e6  # masked numbers lie anywhere up to 2^32
        for seen in unmasked:
            assert np.abs(seen - true).max() > 1e-2
        mean = np.mean([values for (other, _), values in true_vectors.items() if other == round], axis=0)
        assert np.abs(unmasked[round] - mean).max() < 2 * step
    hidden = ["stepsize_std", "stepsize_std_clients", "stepsize_one_mean", "stepsize_one_std", "train_loss"]
    assert result.history[[*hidden, "client_test_loss"]].isna().all(axis=None)
    assert "train_samples" not in result.summary["data"]
    assert {kind for kind, _ in grid.asked} == {"query", "train"}


@pytest.fixture
def spoiled(monkeypatch):
    """Client 3's change is not a number."""
    original = Site.share

    def share(site, ask, x, buffers, received):
        done, lost = original(site, ask, x, buffers, received)
        return (replace(done, message={"delta": x * torch.nan}) if site.partition == 3 else done), lost

    monkeypatch.setattr(Site, "share", share)


def test_client_without_a_finite_change_is_left_out_and_the_rest_is_their_mean(tmp_path, true_vectors, spoiled):
    result = run(Grid(tmp_path), tmp_path, rounds=1)
    assert result.history["clients"].tolist() == [4]
    assert result.history["events"].tolist() == ["client 3: its change or its loss is not finite"]
    assert 3 not in {client for _, client in true_vectors}
    mean = np.mean(list(true_vectors.values()), axis=0)[:-10]
    change = in_process.weights(result) - torch.cat([p.detach().flatten() for p in in_process.linear().parameters()])
    assert np.abs(change.numpy() - mean).max() < 1e-4


def test_what_went_wrong_stays_at_the_client(tmp_path, spoiled):
    grid = Grid(tmp_path)
    run(grid, tmp_path, rounds=1)
    reasons = [reply.error.reason for reply in grid.received if reply.has_error()]
    assert reasons == ["LeavesRoundError: its change or its loss is not finite"]


def test_broken_off_round_stops_the_run_and_it_can_go_on(tmp_path):
    grid = Grid(tmp_path)
    grid.dead = {0, 1}
    with pytest.raises(ConfigurationError, match="no sign of partitions 0, 1"):
        run(grid, tmp_path, start_deadline=0.3)
    grid.dead = set()
    original = grid.send_and_receive

    def dying(messages, timeout=None):
        grid.dead = {0, 1} if sum(kind == "train" for kind, _ in grid.asked) >= 20 else set()
        return original(messages, timeout)

    grid.send_and_receive = dying
    with pytest.raises(DataError, match="round 2: 0 of 5 clients answered, 4 are needed .only 3 clients are connected"):
        run(grid, tmp_path, retries=1, rounds=3)
    grid.dead, grid.send_and_receive = set(), original
    result = run(grid, tmp_path, retries=1, rounds=3)
    assert (in_process.weights(result) - in_process.weights(plain(3))).abs().max() < 1e-4


@pytest.mark.parametrize(("cohort", "needed"), [(3, 3), (4, 3), (5, 4), (6, 4), (7, 5), (999, 666), (1000, 667)])
def test_two_thirds_and_never_two(cohort, needed):
    assert secagg.needed(cohort) == needed


@pytest.mark.parametrize("leave", [2, 3])
def test_no_sum_over_too_few_that_are_connected(leave, tmp_path):
    """They leave after the four messages of the first round."""
    grid = Grid(tmp_path)
    original, calls = grid.send_and_receive, []

    def leaving(messages, timeout=None):
        calls.append(len(messages))
        replies = original(messages, timeout)
        if len(calls) == 4:
            grid.nodes = dict(list(grid.nodes.items())[leave:])
        return replies

    grid.send_and_receive = leaving
    with pytest.raises(DataError, match=rf"4 are needed \(only {5 - leave} clients are connected\)"):
        run(grid, tmp_path, rounds=2, retries=1)
    assert calls == [5] * 4  # nobody was asked for anything


@pytest.mark.parametrize(("cohort", "leave"), [(0, 2), (3, 1)])
def test_no_sum_over_too_few_that_stay(cohort, leave, tmp_path, monkeypatch):
    """They leave before their masked vectors are in."""
    grid = Grid(tmp_path)
    original, calls = grid.send_and_receive, []

    def leaving(messages, timeout=None):
        calls.append(len(messages))
        if len(calls) == 3:
            grid.dead = {grid.nodes[message.metadata.dst_node_id] for message in list(messages)[:leave]}
        return original(messages, timeout)

    grid.send_and_receive = leaving
    monkeypatch.setattr(protocol.Asked, "aggregate_fit", lambda *_: pytest.fail("there is a sum"))
    with pytest.raises(DataError, match="round 1: 0 of .* clients answered.*secure aggregation broke off"):
        run(grid, tmp_path, cohort=cohort, rounds=1, retries=0)
    assert len(calls) == 3


@pytest.mark.parametrize("stage", range(4))
def test_goes_on_without_a_client_that_is_silent_from_a_stage_on(stage, tmp_path, true_vectors):
    """Its vector is in the sum if it had sent it; else the others' are all, also if they have to begin anew."""
    grid = Grid(tmp_path)
    original, calls = grid.send_and_receive, []

    def hanging(messages, timeout=None):
        at = next(iter(messages)).content.config_records[RECORD_KEY_CONFIGS][Key.STAGE]
        calls.append(len(messages))
        grid.dead = {4} if Stage.all().index(at) >= stage else set()
        replies = original(messages, timeout)
        grid.dead = set()  # it does answer the question who it is
        return replies

    grid.send_and_receive = hanging
    result = run(grid, tmp_path, rounds=1, retries=1)
    assert calls == [[5, 4, 4, 4, 4], [5, 5, 4, 4, 4, 4], [5, 5, 5, 4], [5, 5, 5, 5]][stage]
    gone = "client 4: not in the sum"
    events = [f"secure aggregation broke off; {gone}", f"secure aggregation broke off; {gone}", gone, ""]
    assert result.history["events"].tolist() == [events[stage]]
    inside = [values for (_, client), values in true_vectors.items() if client != 4 or stage == 3]
    change = in_process.weights(result) - torch.cat([p.detach().flatten() for p in in_process.linear().parameters()])
    assert np.abs(change.numpy() - np.mean(inside, axis=0)[:-10]).max() < 1e-4


def test_all_are_asked_again_if_too_few_are_left_without_the_silent(tmp_path):
    grid = Grid(tmp_path)
    original, calls = grid.send_and_receive, []

    def slow_once(messages, timeout=None):
        grid.dead = set() if calls else {3, 4}
        calls.append(len(messages))
        replies = original(messages, timeout)
        grid.dead = set()
        return replies

    grid.send_and_receive = slow_once
    assert run(grid, tmp_path, rounds=1, retries=1).history["clients"].tolist() == [5]
    assert calls == [5] * 5


def test_a_site_without_data_is_named_and_not_asked_over_and_over(tmp_path):
    def data(context):
        if context.node_config["partition-id"] == 2:
            raise FileNotFoundError("/mnt/patients.npz")
        return in_process.sites(make_clients())(context)

    grid = Grid(tmp_path)
    grid.inner = secagg_client_app(in_process.linear, data)
    with pytest.raises(
        ConfigurationError, match="node 102 cannot take part: FileNotFoundError, see the log of the client$"
    ):
        run(grid, tmp_path, start_deadline=2.0)
    assert grid.asked.count(("query", 2)) == 1


def test_values_beyond_the_range_are_counted(tmp_path):
    result = run(Grid(tmp_path), tmp_path, rounds=1, clipping_range=0.05)
    assert result.history["events"].tolist() == ["values of 5 clients were clipped at 0.05"]


@pytest.mark.parametrize(("value", "beyond"), [(0.5, 0), (0.6, 0.5), (-0.6, 0.5), (-0.5, 0)])
def test_a_value_beyond_the_range_is_told_on_either_side(value, beyond):
    one = torch.ones((), dtype=torch.float64)
    trace = Trace(0.1 * one.expand(2), 0.1 * one.expand(2), one)
    done = Answer({"delta": torch.tensor([0.1, value], dtype=torch.float64)}, {}, {}, trace, 2)
    values = secagg.vector(done, 0, 0, 0.5, {}).tolist()
    assert values[:2] + values[-2:] == pytest.approx([0.1, value, beyond, 0.25])


def test_long_stepsizes_and_large_losses_are_told_as_they_are_and_are_no_clipping():
    """Methods without a cap have stepsizes of dozens, and nothing of the change is lost by that."""
    one = torch.ones((), dtype=torch.float64)
    done = Answer(
        {"delta": torch.full((2,), 1e-3)}, {}, {}, Trace(-3e4 * one.expand(2), 3162.5 * one.expand(2), one), 2
    )
    values = torch.from_numpy(secagg.vector(done, 0, 0, 8.0, {}))
    found = secagg.message_of(values, torch.zeros(2).double(), 1, 8.0, secagg.TOLD)
    assert values[-2] == 0
    assert found["mean loss"].item() == pytest.approx(-3e4, abs=1e-9)
    assert found["mean stepsize"].item() == pytest.approx(3162.5, rel=1e-12)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"algorithm": "scaffold"}, r"scaffold also sends control_change \(a vector\)$"),
        ({"algorithm": "mime"}, r"mime also sends .*\(before training\)"),
        (
            {"algorithm": "fedsps-normalized"},
            r"also sends normalized_delta \(a vector\), inverse_stepsizes \(a number without a stated range\)$",
        ),
        ({"algorithm": "fedsps-global:initial=0.1"}, r"sends local_stepsize \(a number without a stated range\)$"),
        ({"algorithm": "fedsps-global:formula=c,initial=0.1"}, r"local_gradient \(a vector\)$"),
        ({"weights": "samples"}, "weights must be 'uniform'"),
        ({"mean": "median"}, "mean must be 'mean'"),
        ({"clip_norm": 1.0, "noise_multiplier": 1.0}, "do not go together"),
        ({"cohort": 2}, "needs 3 to 1000 clients a round; cohort is 2"),
    ],
)
def test_refusals(settings, words, tmp_path):
    with pytest.raises(ConfigurationError, match=words):
        run(Grid(tmp_path), tmp_path, **settings)


@pytest.fixture
def spoil(monkeypatch):
    """Some clients' answers, changed before they are made into a vector."""
    original, changes = Site.share, {}

    def share(site, ask, x, buffers, received):
        done, lost = original(site, ask, x, buffers, received)
        return changes.get(site.partition, lambda same: same)(done), lost

    monkeypatch.setattr(Site, "share", share)
    return changes


def infinite(done):
    return replace(done, message={"delta": done.message["delta"] * torch.inf})


def below(done):
    return replace(done, trace=replace(done.trace, gap=torch.tensor(-0.5, dtype=torch.float64)))


def told(**numbers):
    """An answer with other scalars."""

    def change(done):
        lies = {name: torch.tensor(value, dtype=torch.float64) for name, value in numbers.items()}
        return replace(done, message=done.message | lies)

    return change


@pytest.mark.parametrize(
    ("name", "value", "end"),
    [
        ("first_gap", 1e300, 1e12),
        ("gradient_sq", 1e300, 1e12),
        ("first_gap", -5.0, 0.0),
        ("first_gradient_sq", 1e300, 1e12),
        ("delta_norm_sq", 1e20, 15 * 8.0**2),
    ],
)
def test_a_scalar_beyond_its_range_is_clipped_and_counted(name, value, end, tmp_path, spoil, monkeypatch):
    """The mean is the one that there would be if the client had sent the end of the range."""
    means, honest, original = [], [], secagg.message_of

    def message_of(*of):
        means.append(original(*of))
        return means[-1]

    def lie(done):
        honest.append(done.message[name].item())
        return told(**{name: value})(done)

    monkeypatch.setattr(secagg, "message_of", message_of)
    before = run(Grid(tmp_path), tmp_path, algorithm="fedpolyak", rounds=1)
    spoil[2] = lie
    after = run(Grid(tmp_path / "lie"), tmp_path / "lie", algorithm="fedpolyak", rounds=1)
    assert means[1][name].item() == pytest.approx(means[0][name].item() + (end - honest[0]) / 5, rel=1e-12)
    clipped = "values of 1 clients were clipped at 8, or at the range of first_gap, first_gradient_sq, gap, gradient_sq, delta_norm_sq"
    assert before.history["events"].tolist() == [""] and after.history["events"].tolist() == [clipped]


def test_a_client_with_a_scalar_that_is_no_number_leaves_the_round(tmp_path, spoil):
    spoil[2] = told(gap=torch.nan)
    result = run(Grid(tmp_path), tmp_path, algorithm="fedpolyak", rounds=1)
    assert result.history["events"].tolist() == ["client 2: its change or its loss is not finite"]
    assert result.history["clients"].tolist() == [4]


def test_a_run_with_scalars_ends_where_all_clients_diverge(tmp_path, spoil):
    spoil |= dict.fromkeys(range(5), told(first_gap=torch.inf))
    assert run(Grid(tmp_path), tmp_path, algorithm="fedpolyak", rounds=4).diverged_at == 1


@pytest.mark.parametrize("many", [3, 5])
def test_a_run_in_which_half_of_the_clients_diverge_ends(many, tmp_path, spoil):
    spoil |= dict.fromkeys(range(many), infinite)
    result = run(Grid(tmp_path), tmp_path, rounds=4, retries=2)
    assert result.diverged_at == 1
    assert result.history["events"][0].count("its change or its loss is not finite") == many
    start = torch.cat([p.detach().flatten() for p in in_process.linear().parameters()])
    assert torch.equal(in_process.weights(result), start), "the model is that of the round before"


def test_exactly_half_of_the_clients_are_enough_for_divergence(tmp_path, spoil):
    four = streams.cohort(0, 0, 5, 4).tolist()
    spoil |= dict.fromkeys(four[:2], infinite)
    assert run(Grid(tmp_path), tmp_path, cohort=4, rounds=2, retries=0).diverged_at == 1


def test_one_infinite_client_and_two_that_are_gone_are_no_divergence(tmp_path, spoil):
    grid = Grid(tmp_path)
    spoil[0] = infinite
    original = grid.send_and_receive

    def dying(messages, timeout=None):
        messages = list(messages)
        at = messages[0].content.config_records[RECORD_KEY_CONFIGS][Key.STAGE]
        grid.dead = {1, 2} if at == Stage.COLLECT_MASKED_VECTORS else set()
        return original(messages, timeout)

    grid.send_and_receive = dying
    with pytest.raises(DataError, match="round 1: 0 of 5 clients answered, 4 are needed"):
        run(grid, tmp_path, rounds=1, retries=0)


def test_a_repetition_without_a_diverged_client_needs_as_many_as_before(tmp_path, spoil, monkeypatch):
    """Client 0 diverged, client 1 is gone when it comes to the vectors: three are two thirds of four, not of five."""
    grid = Grid(tmp_path)
    spoil[0] = infinite
    original = grid.send_and_receive

    def dying(messages, timeout=None):
        messages = list(messages)
        at = messages[0].content.config_records[RECORD_KEY_CONFIGS][Key.STAGE]
        grid.dead = {1} if at == Stage.COLLECT_MASKED_VECTORS else set()
        return original(messages, timeout)

    grid.send_and_receive = dying
    monkeypatch.setattr(protocol.Asked, "aggregate_fit", lambda *_: pytest.fail("there is a sum"))
    with pytest.raises(DataError, match="round 1: 0 of 5 clients answered, 4 are needed"):
        run(grid, tmp_path, rounds=1, retries=1)


def test_losses_below_their_bound_stop_the_run_if_half_of_the_clients_say_so(tmp_path, spoil):
    spoil |= dict.fromkeys(range(4), below)
    with pytest.raises(LowerBoundError, match="round 1: a loss fell below its lower bound; set `lower` lower"):
        run(Grid(tmp_path), tmp_path, rounds=2)
    for client in range(1, 4):
        del spoil[client]
    result = run(Grid(tmp_path / "one"), tmp_path / "one", rounds=1)
    assert result.history["clients"].tolist() == [4]
    assert result.history["events"].tolist() == ["client 0: a loss fell below its lower bound"]
