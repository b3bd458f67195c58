"""Clients and nodes that fail, lie or diverge, over an in-process grid: refused, named, and of no harm to the rest."""

import in_process
import numpy as np
import pytest
import torch
from conftest import make_clients
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord
from torch import nn

import fedsps
from fedsps.core import streams
from fedsps.errors import ConfigurationError, DataError, LowerBoundError
from fedsps.flower import versions
from fedsps.flower.client import Site


def put(value):
    def change(values):
        values = values.copy()
        values[0] = value
        return values

    return change


def without(content, record, name):
    content[record] = ArrayRecord({key: value for key, value in content.array_records[record].items() if key != name})


def unreadable(content):
    content["message"] = ArrayRecord({"delta": Array("float64", (15,), "numpy.ndarray", b"\x93NUMPY nonsense")})


def pickled(content):
    """NumPy's format can hold a pickle: it must not be opened."""
    import io

    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("a pickle was opened",))

    file = io.BytesIO()
    np.save(file, np.array([Trap()], dtype=object), allow_pickle=True)
    content["message"] = ArrayRecord({"delta": Array("float64", (15,), "numpy.ndarray", file.getvalue())})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda c: in_process.array(c, "delta", put(np.nan)), "delta holds NaN or infinity"),
        (lambda c: in_process.array(c, "delta", put(np.inf)), "delta holds NaN or infinity"),
        (lambda c: in_process.array(c, "losses", put(np.nan), "trace"), "losses holds NaN or infinity"),
        (lambda c: in_process.array(c, "stepsizes", put(np.nan), "trace"), "stepsizes holds NaN or infinity"),
        (lambda c: in_process.array(c, "gap", lambda v: np.full_like(v, np.nan), "trace"), "gap holds NaN or infinity"),
        (lambda c: in_process.array(c, "delta", lambda v: v[:-1]), "delta is torch.float64 of shape (14,), not torch.float64 of (15,)"),
        (lambda c: in_process.array(c, "delta", lambda v: v.astype(np.float32)), "delta is torch.float32 of shape (15,), not torch.float64 of (15,)"),
        (lambda c: in_process.array(c, "delta", lambda v: v.astype("U5")), "the answer cannot be read (TypeError)"),
        (lambda c: without(c, "message", "delta"), "message delta is missing"),
        (lambda c: without(c, "trace", "gap"), "trace gap is missing"),
        (lambda c: in_process.array(c, "losses", lambda v: v, "trace") or c.pop("trace"), "trace gap is missing"),
        (lambda c: c.array_records["message"].update({"more": Array(np.zeros(2))}), "message more was not asked for"),
        (lambda c: c.config_records["facts"].update({"gradients": 2**63 - 1}), "it says that it took 9.22337e+18 gradients"),
        (lambda c: c.config_records["facts"].update({"gradients": "9" * 400}), "the answer cannot be read (TypeError)"),
        (unreadable, "the answer cannot be read (ValueError)"),
        (pickled, "the answer cannot be read (ValueError)"),
        (lambda c: c.pop("facts") and c.pop("message") and c.pop("trace"), "message delta is missing"),
    ],
    ids=["nan", "inf", "nan loss", "nan stepsize", "nan gap", "shape", "dtype", "text", "missing", "no gap", "no trace", "more", "gradients", "text gradients", "nonsense", "pickle", "empty"],
)  # fmt: skip
def test_a_bad_answer_is_refused_and_named(change, reason, tmp_path):
    found = in_process.run(in_process.grid(tmp_path, spoil=in_process.spoiled((3,), change)), tmp_path, rounds=2)
    assert found.history["events"].tolist() == [f"client 3: {reason}"] * 2
    assert found.history["clients"].tolist() == [4, 4]
    left = in_process.grid(tmp_path / "left")
    left.spoil = lambda partition, kind, reply: None if (partition, kind) == (3, "train.train") else reply
    without_it = in_process.run(left, tmp_path / "left", rounds=2, deadline=0.2)
    assert torch.equal(in_process.weights(found), in_process.weights(without_it))  # the mean is of the rest


def test_a_client_that_fails_says_why(tmp_path):
    grid = in_process.grid(tmp_path)
    work = grid.app

    def app(message, context):
        if message.metadata.message_type == "train.train" and context.node_config["partition-id"] == 0:
            context.run_config["algorithm"] = "fedspss"
        return work(message, context)

    grid.app = app
    found = in_process.run(grid, tmp_path, rounds=1)
    assert (
        "client 0: ConfigurationError: unknown algorithm 'fedspss': did you mean fedsps" in found.history["events"][0]
    )


def test_too_few_answers_repeat_the_round_then_stop(tmp_path):
    grid = in_process.grid(tmp_path)
    grid.dead = {0, 1}
    with pytest.raises(ConfigurationError, match="no sign of partitions 0, 1 within 0.2 s"):
        in_process.run(grid, tmp_path, start_deadline=0.2, deadline=0.1)
    grid.dead = set()
    grid.spoil = lambda partition, kind, reply: None if kind == "train.train" and partition < 2 else reply
    with pytest.raises(
        DataError, match="round 1: 3 of 5 clients answered, 4 are needed .client 0: no answer within 0.1 s"
    ):
        in_process.run(grid, tmp_path, minimum_cohort=4, deadline=0.1, retries=1)
    assert sum(kind == "train.train" for kind, _ in grid.asked) == 10  # asked twice


def test_answers_of_two_attempts_are_not_added_up(tmp_path):
    """Client 0 is silent in the first attempt, client 1 in the second."""
    grid = in_process.grid(tmp_path)

    def spoil(partition, kind, reply):
        silent = kind == "train.train" and grid.asked.count((kind, partition)) == partition + 1 <= 2
        return None if silent else reply

    grid.spoil = spoil
    with pytest.raises(DataError, match="round 1: 4 of 5 clients answered, 5 are needed .client 1: no answer"):
        in_process.run(grid, tmp_path, rounds=1, minimum_cohort=5, retries=1, deadline=0.3)


@pytest.mark.parametrize("mean", ["median", "trimmed:0.2", "clipped:0.01"])
def test_robust_means_bear_one_attacker(mean, tmp_path):
    attack = in_process.spoiled((3,), lambda content: in_process.array(content, "delta", lambda v: v + 1e6))
    attacked = in_process.run(in_process.grid(tmp_path / mean, spoil=attack), tmp_path / mean, mean=mean, far_factor=0)
    assert in_process.weights(attacked).norm() < 10
    naive = in_process.run(in_process.grid(tmp_path / "naive", spoil=attack), tmp_path / "naive", far_factor=0)
    assert in_process.weights(naive).norm() > 1e5


def test_nodes_that_do_not_fit_are_named(tmp_path):
    grid = in_process.grid(tmp_path)
    grid.nodes = {100: 0, 101: 0}
    with pytest.raises(ConfigurationError, match="nodes 100 and 101 both have partition-id 0"):
        in_process.run(grid, tmp_path)
    grid = in_process.grid(tmp_path)
    grid.nodes[100] = 7
    with pytest.raises(ConfigurationError, match="node 100 cannot take part: .*partition-id is 7: it counts from 0"):
        in_process.run(grid, tmp_path)


class OwnNames(nn.Module):
    """A model whose buffers have the names of what travels beside them."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        for name in ("x", "delta", "losses"):
            self.register_buffer(name, torch.ones(1))

    def forward(self, inputs):
        return self.layer(inputs) * self.x * self.delta


def own_names(context=None):
    with streams.torch_seed(3, "test model"):
        return OwnNames().double()


def test_buffers_may_have_any_name(tmp_path):
    found = in_process.run(in_process.grid(tmp_path, model=own_names), tmp_path, model=own_names)
    local = fedsps.train(own_names(), make_clients(), algorithm="fedsps", rounds=4, batch_size=5)
    assert torch.allclose(in_process.weights(found), in_process.weights(local), rtol=1e-9)
    attack = in_process.spoiled((3,), lambda content: in_process.array(content, "delta", put(np.nan)))
    found = in_process.run(
        in_process.grid(tmp_path / "nan", model=own_names, spoil=attack), tmp_path / "nan", model=own_names
    )
    assert found.history["events"].tolist() == ["client 3: delta holds NaN or infinity"] * 4


@pytest.mark.parametrize(
    "scores",
    [
        {"train_loss": [1.0, 2.0]},
        {"train_loss": np.nan},
        {"train_loss": 1.0, "test_loss": np.inf, "test_accuracy": 1.0, "test_samples": 5},
        {"train_loss": 1.0, "test_samples": 5},
        {"train_loss": 1.0, "test_loss": 1.0, "test_accuracy": 1.0, "test_samples": -5},
        {"train_loss": 1.0, "test_loss": 1.0, "test_accuracy": 1.0, "test_samples": 10**15},
        {"train_loss": 1.0, "test_loss": 1.0, "test_accuracy": 7.0, "test_samples": 7},
        {"train_loss": np.inf, "test_loss": 1.0, "test_accuracy": 1.0, "test_samples": 7},
        {},
    ],
)
def test_bad_scores_are_left_out(scores, tmp_path):
    """A client cannot stop the server, nor make its scores NaN, by what it says of itself."""
    own_test = make_clients(sizes=(7,), seed=5)[0]

    def spoil(partition, kind, reply):
        if partition == 3 and "scores" in reply.content:
            reply.content["scores"] = MetricRecord(scores)
        return reply

    found = in_process.run(in_process.grid(tmp_path, spoil=spoil, test=own_test), tmp_path, rounds=2)
    drop = in_process.grid(tmp_path / "drop", test=own_test)
    drop.spoil = lambda partition, kind, reply: None if (partition, kind) == (3, "evaluate") else reply
    without_it = in_process.run(drop, tmp_path / "drop", rounds=1, deadline=0.3)
    columns = ["train_loss", "client_test_loss", "client_test_accuracy"]
    first = in_process.as_numbers(found.history, columns)[0]
    assert found.history["events"][0].startswith("client 3: ")
    assert np.isfinite(first).all()
    np.testing.assert_allclose(first, in_process.as_numbers(without_it.history, columns)[0])


@pytest.mark.parametrize("mean", ["mean", "median", "clipped:1.0"])
def test_it_diverges_where_the_local_engine_does(mean, tmp_path):
    """Four of five clients overflow in the first round."""
    algorithm = fedsps.FedAvg(client_stepsize=1e200)
    clients = [(x * (0 if client == 4 else 1e150), y) for client, (x, y) in enumerate(make_clients())]
    local = fedsps.train(in_process.linear(), clients, algorithm=algorithm, rounds=4, batch_size=5)
    grid = in_process.grid(tmp_path, clients)
    found = in_process.run(grid, tmp_path, algorithm="fedavg:client_stepsize=1e200", mean=mean)
    assert found.diverged_at == local.diverged_at == 1
    assert torch.equal(in_process.weights(found), in_process.weights(local))


def test_a_median_does_not_hide_divergence(tmp_path):
    """Three of five changes are not finite, each in another coordinate."""
    grid = in_process.grid(tmp_path)

    def spoil(partition, kind, reply):
        if kind == "train.train" and partition < 3:
            in_process.array(reply.content, "delta", lambda v: np.where(np.arange(15) == partition, np.nan, v))
        return reply

    grid.spoil = spoil
    assert in_process.run(grid, tmp_path, mean="median").diverged_at == 1


def test_exactly_half_of_the_answers_are_enough_for_divergence(tmp_path):
    four = streams.cohort(0, 0, 5, 4).tolist()
    for many, diverged_at in ((1, None), (2, 1)):
        folder = tmp_path / str(many)
        grid = in_process.grid(folder, spoil=in_process.spoiled(four[:many], in_process.without_numbers))
        found = in_process.run(grid, folder, cohort=4, rounds=1)
        assert (found.diverged_at, found.history["clients"][0]) == (diverged_at, 4 if diverged_at else 3)


def test_a_first_client_that_diverged_alone_is_passed_over(tmp_path):
    grid = in_process.grid(tmp_path, spoil=in_process.spoiled((0,), in_process.without_numbers, ("train.probe",)))
    found = in_process.run(grid, tmp_path, algorithm="fedsps-global")
    assert found.diverged_at is None
    assert found.history["events"][0].endswith("holds NaN or infinity")


def test_a_client_that_diverged_is_not_asked_again(tmp_path):
    grid = in_process.grid(tmp_path, spoil=in_process.spoiled((3,), in_process.without_numbers))
    with pytest.raises(DataError, match="4 of 5 clients answered, 5 are needed"):
        in_process.run(grid, tmp_path, minimum_cohort=5, retries=2)
    assert sum(one == ("train.train", 3) for one in grid.asked) == 1


def test_a_repetition_leaves_out_a_client_that_diverged(tmp_path):
    """Client 3 diverges, client 0 is silent at first: the others are asked twice."""
    grid = in_process.grid(tmp_path)

    def spoil(partition, kind, reply):
        if (partition, kind) == (3, "train.train"):
            in_process.without_numbers(reply.content)
        silent = (partition, kind) == (0, "train.train") and grid.asked.count(("train.train", 0)) == 1
        return None if silent else reply

    grid.spoil = spoil
    found = in_process.run(grid, tmp_path, rounds=1, minimum_cohort=4, retries=1, deadline=0.3, evaluate_every=0)
    assert [grid.asked.count(("train.train", client)) for client in range(5)] == [2, 2, 2, 1, 2]
    assert found.history["clients"].tolist() == [4]


def test_nobody_is_asked_again_once_half_have_diverged(tmp_path):
    """Two of four clients diverge, the other two are silent: whatever they would say, it is divergence."""
    grid = in_process.grid(tmp_path, make_clients()[:4])

    def spoil(partition, kind, reply):
        if kind == "train.train" and partition < 2:
            in_process.without_numbers(reply.content)
        return None if kind == "train.train" and partition >= 2 else reply

    grid.spoil = spoil
    found = in_process.run(grid, tmp_path, minimum_cohort=2, retries=3, deadline=0.2, evaluate_every=0)
    assert found.diverged_at == 1
    assert sum(kind == "train.train" for kind, _ in grid.asked) == 4


@pytest.mark.parametrize("gap", [-1.0, -np.inf])
def test_one_client_below_the_bound_does_not_stop_a_run(gap, tmp_path):
    def below(content):
        in_process.array(content, "gap", lambda v: np.full_like(v, gap), "trace")

    found = in_process.run(in_process.grid(tmp_path, spoil=in_process.spoiled((3,), below)), tmp_path, rounds=2)
    assert found.history["events"].tolist() == ["client 3: it says that a loss fell below its lower bound"] * 2
    assert found.history["clients"].tolist() == [4, 4]
    with pytest.raises(LowerBoundError, match="round 1: client 1 saw a loss"):
        in_process.run(in_process.grid(tmp_path, spoil=in_process.spoiled((1, 2, 4), below)), tmp_path / "half")


@pytest.mark.parametrize(("clients", "told"), [((0, 1), True), ((1,), False)])
def test_an_infinite_loss_is_told(clients, told, tmp_path):
    """Of half of the four clients it is the objective; fewer are left out. All are named."""

    def infinite(content):
        content["scores"] = MetricRecord({"train_loss": np.inf})

    spoil = in_process.spoiled(clients, infinite, ("evaluate",))
    found = in_process.run(in_process.grid(tmp_path, make_clients()[:4], spoil=spoil), tmp_path, rounds=1)
    assert np.isinf(found.history["train_loss"][0]) == told
    assert found.history["events"][0] == "; ".join(f"client {client}: its loss is not finite" for client in clients)


def broken(content):
    content.clear()
    content["error"] = ConfigRecord({"text": "DataError: disk gone"})


def test_a_failed_evaluation_is_named(tmp_path):
    def spoil(partition, kind, reply):
        if partition == 1 and "scores" in reply.content:
            broken(reply.content)
        return reply

    found = in_process.run(in_process.grid(tmp_path, spoil=spoil), tmp_path, rounds=2)
    assert found.history["clients"].tolist() == [5, 5], "it is asked to train once more, and does"
    assert found.history["events"].tolist() == ["client 1: no scores (DataError: disk gone)"] * 2
    (folder,) = (tmp_path / "runs").iterdir()
    assert fedsps.load(folder).history["events"].tolist() == found.history["events"].tolist()


def test_scores_count_where_training_fails(tmp_path, monkeypatch):
    """Those of a client that cannot train are the same, whether it was asked for both at once or not."""

    def share(site, *others):
        if site.partition == 4:
            raise DataError("disk gone")
        return original(site, *others)

    original = Site.share
    monkeypatch.setattr(Site, "share", share)
    grid = in_process.grid(tmp_path)
    found = in_process.run(grid, tmp_path, rounds=3)
    assert found.history["clients"].tolist() == [4, 4, 4]
    assert found.history["events"].tolist() == ["client 4: DataError: disk gone"] * 3
    assert grid.asked.count(("train.train", 4)) == 1 + 2 + 2, "alone, and twice with scores and again"
    settings = {"algorithm": "fedsps", "rounds": 3, "batch_size": 5}
    whole = fedsps.train(in_process.linear(), make_clients(), absences={round: [4] for round in (1, 2, 3)}, **settings)
    np.testing.assert_allclose(found.history["train_loss"], whole.history["train_loss"], rtol=1e-9)


def introduced(partition, partitions, samples=5):
    def change(content):
        content.clear()
        content["facts"] = ConfigRecord(
            {
                "partition": partition,
                "partitions": partitions,
                "samples": samples,
                "test_samples": 0,
                **versions.own(""),
            }
        )

    return change


def test_one_node_cannot_say_how_many_there_are(tmp_path):
    """A node more says that it is the only one, and is heard first."""

    class Grid(in_process.Grid):
        first = True

        def pull_messages(self, names):
            names = [name for name in names if not self.first or self._replies[name].metadata.src_node_id == 1]
            self.first = False
            return super().pull_messages(names)

    grid = in_process.grid(tmp_path)
    grid.__class__ = Grid
    grid.nodes = {1: 9} | grid.nodes
    grid.spoil = in_process.spoiled((9,), introduced(0, 1), ("query",))
    with pytest.raises(ConfigurationError, match="node 100 says it is partition 4 of 5, but this run has 1"):
        in_process.run(grid, tmp_path)
    assert not [kind for kind, _ in grid.asked if kind.startswith("train")]
    found = in_process.run(grid, tmp_path, clients=5, rounds=2)
    assert found.history["clients"].tolist() == [5, 5]
    assert found.history["events"][0].startswith("node 1 says it is partition 0 of 1, but this run has 5")


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ((5, 5), "node 100 says it is partition 5 of 5: they count from 0"),
        ((4, 30_000_000), "node 100 says it is partition 4 of 3e.07: they count from 0, and 100000 are the most"),
        ((4, 90_000), "no sign of partitions 0, 1, 2, 3, 5, 6, 7, 8, 9, 10 and 89989 more within 0.2 s"),
        (("9" * 400, 5), "node 100 cannot take part: it does not say who it is"),
        ((4, 5, 2**63 - 1), "node 100 says it has 9.22337e.18 samples and 0 to test on: that cannot be"),
    ],
)
def test_what_a_node_cannot_be_is_refused(facts, message, tmp_path):
    grid = in_process.grid(tmp_path, spoil=in_process.spoiled((4,), introduced(*facts), ("query",)))
    grid.nodes = {100: 4}
    with pytest.raises(ConfigurationError, match=message):
        in_process.run(grid, tmp_path, weights="samples", start_deadline=0.2)


def test_a_repetition_waits_until_the_nodes_are_back(tmp_path):
    """In the second round no client answers in time, once; that they are there they say a while later."""

    class Grid(in_process.Grid):
        trained = late = 0

        def push_messages(self, messages):
            kinds = {message.metadata.message_type for message in messages}
            self.trained += "train.train" in kinds
            self.late = 3 if "query" in kinds and self.trained else 0
            self.dead = set(range(5)) if "train.train" in kinds and self.trained == 2 else set()
            return super().push_messages(messages)

        def pull_messages(self, names):
            self.late -= 1
            return [] if self.late >= 0 else super().pull_messages(names)

    grid = in_process.grid(tmp_path)
    grid.__class__ = Grid
    found = in_process.run(grid, tmp_path, rounds=3, minimum_cohort=3, retries=1, deadline=0.5, evaluate_every=0)
    assert found.history["clients"].tolist() == [5, 5, 5]
    assert grid.trained == 4


def test_a_broken_site_does_not_keep_a_run_from_going_on(tmp_path):
    grid = in_process.grid(tmp_path, spoil=in_process.crash_after(12))
    with pytest.raises(in_process.CrashError):
        in_process.run(grid, tmp_path, evaluate_every=0)
    grid.spoil = in_process.spoiled((2,), broken, ("query", "train.train"))
    found = in_process.run(grid, tmp_path, start_deadline=0.2, evaluate_every=0)
    assert found.history["clients"].tolist() == [5, 5, 4, 4]
    assert "node 102 cannot take part: DataError: disk gone" in found.history["events"][2]
