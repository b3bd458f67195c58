"""Flower's engine over an in-process grid: equal to the local engines, resumable, and hard to spoil."""

import in_process
import numpy as np
import pandas as pd
import pytest
import torch
from conftest import make_clients
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from registry import ALGORITHMS
from torch import nn

import fedsps
from fedsps import history
from fedsps.catalogue import CATALOGUE, Named
from fedsps.compare import comparison
from fedsps.engine.flower import Settings, client_app
from fedsps.errors import ConfigurationError, DataError, LowerBoundError

NUMBERS = [name for name in history.COLUMNS if name not in ("seconds", "test_loss", "test_accuracy")]


@pytest.fixture
def by_registry(monkeypatch):
    """Run configurations name the registry's algorithms."""
    monkeypatch.setattr(Settings, "built", property(lambda self: ALGORITHMS[self.algorithm]))
    monkeypatch.setattr(Settings, "named", property(lambda self: Named(self.algorithm, {})))


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("cohort", [0, 3])
def test_equals_the_stacked_engine(name, cohort, tmp_path, by_registry):
    found = in_process.run(in_process.grid(tmp_path), tmp_path, algorithm=name, cohort=cohort)
    local = fedsps.train(
        in_process.linear(), make_clients(), algorithm=ALGORITHMS[name], rounds=4, batch_size=5, cohort=cohort or None
    )
    assert torch.allclose(in_process.weights(found), in_process.weights(local), rtol=1e-9, atol=1e-12)
    ours, theirs = (in_process.as_numbers(one.history, NUMBERS) for one in (found, local))
    np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


def test_two_runs_are_identical(tmp_path):
    first, second = (in_process.run(in_process.grid(tmp_path / one), tmp_path / one) for one in "ab")
    assert torch.equal(in_process.weights(first), in_process.weights(second))


STATEFUL = ["scaffold", "feddecsps", "fedsps, paper smoothing", "fedavg, top-k", "mime", "global b", "local amsgrad"]


class CrashError(Exception):
    """The server's process dies."""


@pytest.mark.parametrize("name", STATEFUL)
@pytest.mark.parametrize("after", [1, 6, 9])
def test_a_killed_server_goes_on_where_it_was(name, after, tmp_path, by_registry):
    """It dies after so many training messages, in mid-round: some clients have moved on already."""
    whole = in_process.run(in_process.grid(tmp_path / "whole"), tmp_path / "whole", algorithm=name, cohort=3)
    count = 0

    def crash(partition, kind, reply):
        nonlocal count
        count += kind == "train.train"
        if count > after:
            raise CrashError
        return reply

    grid = in_process.grid(tmp_path, spoil=crash)
    with pytest.raises(CrashError):
        in_process.run(grid, tmp_path, algorithm=name, cohort=3)
    grid.spoil = None
    resumed = in_process.run(grid, tmp_path, algorithm=name, cohort=3)
    assert torch.equal(in_process.weights(whole), in_process.weights(resumed))
    pd.testing.assert_frame_equal(whole.history.drop(columns="seconds"), resumed.history.drop(columns="seconds"))


@pytest.mark.parametrize("name", STATEFUL)
def test_a_late_answer_leaves_no_trace(name, tmp_path, by_registry):
    """A client whose answer came too late goes on, when it is back, as if it had not been asked."""

    def lose(grid):
        def spoil(partition, kind, reply):
            done = sum(one == ("train.train", 1) for one in grid.asked)
            return None if partition == 1 and kind == "train.train" and done == 2 else reply

        return spoil

    def keep(grid):  # the same, but the client never works in its second round: its state is what it was
        work = grid.app

        def app(message, context):
            asked = sum(one == ("train.train", 1) for one in grid.asked)
            late = context.node_config["partition-id"] == 1 and message.metadata.message_type == "train.train"
            return Message(RecordDict(), reply_to=message) if late and asked == 2 else work(message, context)

        return app

    late, absent = in_process.grid(tmp_path / "late"), in_process.grid(tmp_path / "absent")
    late.spoil = lose(late)
    absent.app = keep(absent)
    found = [
        in_process.run(one, tmp_path / folder, algorithm=name, deadline=0.3)
        for one, folder in ((late, "late"), (absent, "absent"))
    ]
    assert torch.equal(*(in_process.weights(one) for one in found))
    assert found[0].history["events"].tolist() == ["", "client 1: no answer within 0.3 s", "", ""]
    assert found[0].history["clients"].tolist() == [5, 4, 5, 5]


def spoiled(change):
    """Client 3's training answer of every round, changed by a function of its records."""

    def spoil(partition, kind, reply):
        if partition == 3 and kind == "train.train":
            change(reply.content)
        return reply

    return spoil


def array(content, name, change, record="message"):
    old = content.array_records[record]
    content[record] = ArrayRecord({**old, name: Array(change(old[name].numpy()))})


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
        (lambda c: array(c, "delta", put(np.nan)), "delta holds NaN or infinity"),
        (lambda c: array(c, "delta", put(np.inf)), "delta holds NaN or infinity"),
        (lambda c: array(c, "losses", put(np.nan), "trace"), "losses holds NaN or infinity"),
        (lambda c: array(c, "delta", lambda v: v[:-1]), "delta is torch.float64 of shape (14,), not torch.float64 of (15,)"),
        (lambda c: array(c, "delta", lambda v: v.astype(np.float32)), "delta is torch.float32 of shape (15,), not torch.float64 of (15,)"),
        (lambda c: array(c, "delta", lambda v: v.astype("U5")), "the answer cannot be read (TypeError)"),
        (lambda c: without(c, "message", "delta"), "message delta is missing"),
        (lambda c: without(c, "trace", "gap"), "trace gap is missing"),
        (lambda c: array(c, "losses", lambda v: v, "trace") or c.pop("trace"), "trace gap is missing"),
        (lambda c: c.array_records["message"].update({"more": Array(np.zeros(2))}), "message more was not asked for"),
        (unreadable, "the answer cannot be read (ValueError)"),
        (pickled, "the answer cannot be read (ValueError)"),
        (lambda c: c.pop("facts") and c.pop("message") and c.pop("trace"), "message delta is missing"),
    ],
    ids=["nan", "inf", "nan loss", "shape", "dtype", "text", "missing", "no gap", "no trace", "more", "nonsense", "pickle", "empty"],
)  # fmt: skip
def test_a_bad_answer_is_refused_and_named(change, reason, tmp_path):
    found = in_process.run(in_process.grid(tmp_path, spoil=spoiled(change)), tmp_path, rounds=2)
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


def test_the_first_stepsize_comes_from_whoever_answers(tmp_path):
    grid = in_process.grid(tmp_path)
    grid.spoil = lambda partition, kind, reply: None if kind == "train.probe" and partition == 0 else reply
    found = in_process.run(grid, tmp_path, algorithm="fedsps-global", deadline=0.2)
    assert [one for one in grid.asked if one[0] == "train.probe"] == [("train.probe", 0), ("train.probe", 1)]
    assert found.history["events"][0] == "client 0: no answer within 0.2 s"


def test_a_lost_state_is_named(tmp_path):
    grid = in_process.grid(tmp_path)

    def lose(partition, kind, reply):
        if partition == 2:
            for path in (tmp_path / "states" / "2").rglob("*.safetensors"):
                path.unlink()
        return reply

    grid.spoil = lose
    found = in_process.run(grid, tmp_path, algorithm="scaffold:client_stepsize=0.05")
    assert found.history["events"].tolist() == ["", *["client 2: its state was lost, it started anew"] * 3]


def test_states_are_kept_for_two_rounds_and_by_run(tmp_path):
    grid = in_process.grid(tmp_path)
    first = in_process.run(grid, tmp_path, algorithm="scaffold:client_stepsize=0.05")
    kept = sorted(path.name for path in (tmp_path / "states" / "4").rglob("*") if path.is_file())
    assert kept == ["00000002-0.safetensors", "00000003-0.safetensors"]
    again = in_process.run(grid, tmp_path, algorithm="scaffold:client_stepsize=0.05")  # old states do not count
    assert torch.equal(in_process.weights(first), in_process.weights(again))


def test_evaluation_at_the_clients_and_at_the_server(tmp_path):
    clients = make_clients()
    own_test = make_clients(sizes=(7,), seed=5)[0]
    central = make_clients(sizes=(30,), seed=6)[0]
    found = in_process.run(in_process.grid(tmp_path, test=own_test), tmp_path, test=central)
    local = [
        fedsps.train(in_process.linear(), clients, rounds=4, batch_size=5, test=test).history
        for test in (own_test, central)
    ]
    np.testing.assert_allclose(found.history["client_test_loss"], local[0]["test_loss"])
    np.testing.assert_allclose(found.history["client_test_accuracy"], local[0]["test_accuracy"])
    np.testing.assert_allclose(found.history["test_loss"], local[1]["test_loss"])
    np.testing.assert_allclose(found.history["train_loss"], local[1]["train_loss"])


def test_weights_by_samples(tmp_path):
    found = in_process.run(in_process.grid(tmp_path), tmp_path, weights="samples")
    local = fedsps.train(in_process.linear(), make_clients(), rounds=4, batch_size=5, weights="samples")
    assert torch.allclose(in_process.weights(found), in_process.weights(local), rtol=1e-9)
    np.testing.assert_allclose(found.history["train_loss"], local.history["train_loss"])


def test_buffers_travel(tmp_path):
    def model(context=None):
        with fedsps.streams.torch_seed(3, "test model"):
            return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)).double()

    found = in_process.run(in_process.grid(tmp_path, model=model), tmp_path, model=model, batch_size=3)
    local = fedsps.train(model(), make_clients(), rounds=4, batch_size=3)
    ours, theirs = found.model.state_dict(), local.model.state_dict()
    for name, value in ours.items():
        assert torch.allclose(value, theirs[name], rtol=1e-9), name


@pytest.mark.parametrize("name", ["fedsps", "feddecsps", "global a"])
def test_a_loss_in_double_precision_on_a_single_precision_model(name, tmp_path, by_registry):
    def model(context=None):
        return in_process.linear().float()

    def loss(outputs, targets):
        return nn.functional.cross_entropy(outputs.double(), targets)

    app = client_app(model, in_process.sites(make_clients()), loss)
    grid = in_process.Grid(app, 5, tmp_path / "states")
    found = in_process.run(grid, tmp_path, model=model, dtype="float32", algorithm=name, rounds=2)
    assert found.history["events"].tolist() == ["", ""]


@pytest.mark.parametrize("mean", ["median", "trimmed:0.2", "clipped:0.01"])
def test_robust_means_bear_one_attacker(mean, tmp_path):
    attack = spoiled(lambda content: array(content, "delta", lambda v: v + 1e6))
    attacked = in_process.run(in_process.grid(tmp_path / mean, spoil=attack), tmp_path / mean, mean=mean)
    assert in_process.weights(attacked).norm() < 10
    naive = in_process.run(in_process.grid(tmp_path / "naive", spoil=attack), tmp_path / "naive")
    assert in_process.weights(naive).norm() > 1e5


def test_robust_means_need_delta_alone(tmp_path):
    with pytest.raises(ConfigurationError, match="mean = 'median' is for algorithms that send delta alone; scaffold"):
        in_process.run(in_process.grid(tmp_path), tmp_path, mean="median", algorithm="scaffold")


def test_nodes_come_and_go(tmp_path):
    """A node is gone for a round (its id too) and comes back under another id."""
    grid = in_process.grid(tmp_path)

    def watch(partition, kind, reply):
        rounds = sum(one == ("train.train", 1) for one in grid.asked)
        if kind == "train.train" and partition == 1 and rounds == 2:
            grid.nodes = {node: one for node, one in grid.nodes.items() if one != 4}
        if kind == "train.train" and partition == 1 and rounds == 3:
            grid.nodes[999] = 4
        return reply

    grid.spoil = watch
    found = in_process.run(grid, tmp_path, rounds=5, algorithm="feddecsps", evaluate_every=0)
    assert found.history["clients"].tolist() == [5, 5, 4, 5, 5]
    assert found.history["events"][2] == "client 4: not connected"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"algoritm": "fedsps"}, "unknown run setting 'algoritm': did you mean algorithm"),
        ({"rounds": 0}, "rounds must be a whole number of at least 1; got 0"),
        ({"rounds": "many"}, "run setting rounds must be int; got 'many'"),
        ({"deadline": 0}, "deadline must be a number of seconds above 0"),
        ({"mean": "avarage"}, "mean = 'avarage' is none: use mean, median"),
        ({"mean": "trimmed:0.7"}, "use mean, median, trimmed:SHARE"),
        ({"cohort": 9}, "cohort is 9, but there are only 5 clients"),
        ({"minimum-cohort": 9}, "minimum-cohort is 9, but there are only 5 clients"),
        ({"minimum-cohort": 3, "cohort": 2}, "minimum-cohort is 3, but a round has only 2 clients"),
        ({"delta": 5.0}, "delta must be above 0 and below 1; got 5.0"),
        ({"algorithm": "fedavg:client_stepsize=0.1/1"}, "names 2 runs: a federation trains one at a time"),
        ({"dtype": "float16"}, "unknown dtype"),
    ],
)
def test_bad_settings_are_refused(config, message, tmp_path):
    with pytest.raises(ConfigurationError, match=message):
        in_process.run(in_process.grid(tmp_path), tmp_path, **config)


def test_tables_of_the_app_are_left_alone():
    assert Settings.of({"own.hidden": 3, "rounds": 7, "local-steps": 2}).local_steps == 2


def test_nodes_that_do_not_fit_are_named(tmp_path):
    grid = in_process.grid(tmp_path)
    grid.nodes = {100: 0, 101: 0}
    with pytest.raises(ConfigurationError, match="nodes 100 and 101 both have partition-id 0"):
        in_process.run(grid, tmp_path)
    grid = in_process.grid(tmp_path)
    grid.nodes[100] = 7
    with pytest.raises(ConfigurationError, match="node 100 cannot take part: .*partition-id is 7: it counts from 0"):
        in_process.run(grid, tmp_path)


def test_a_run_can_be_loaded_and_compared(tmp_path):
    found = in_process.run(in_process.grid(tmp_path), tmp_path)
    (folder,) = (tmp_path / "runs").iterdir()
    loaded = fedsps.load(folder)
    pd.testing.assert_frame_equal(loaded.history, found.history)
    assert loaded.spec["algorithm"] == "fedsps"
    table = comparison({"flower": [loaded], "again": [found]}).table
    assert table["final_train_loss"].nunique() == 1


def test_every_name_of_the_catalogue_is_understood():
    for name in CATALOGUE:
        assert Settings(algorithm=name).built.exchanges(0)


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
    with fedsps.streams.torch_seed(3, "test model"):
        return OwnNames().double()


def test_buffers_may_have_any_name(tmp_path):
    found = in_process.run(in_process.grid(tmp_path, model=own_names), tmp_path, model=own_names)
    local = fedsps.train(own_names(), make_clients(), rounds=4, batch_size=5)
    assert torch.allclose(in_process.weights(found), in_process.weights(local), rtol=1e-9)
    attack = spoiled(lambda content: array(content, "delta", put(np.nan)))
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
        {},
    ],
)
def test_bad_scores_are_left_out(scores, tmp_path):
    """A client cannot stop the server, nor make its scores NaN, by what it says of itself."""
    own_test = make_clients(sizes=(7,), seed=5)[0]

    def spoil(partition, kind, reply):
        if partition == 3 and kind == "evaluate":
            reply.content["scores"] = MetricRecord(scores)
        return reply

    found = in_process.run(in_process.grid(tmp_path, spoil=spoil, test=own_test), tmp_path, rounds=2)
    drop = in_process.grid(tmp_path / "drop", test=own_test)
    drop.spoil = lambda partition, kind, reply: None if (partition, kind) == (3, "evaluate") else reply
    without_it = in_process.run(drop, tmp_path / "drop", rounds=1, deadline=0.3)
    columns = ["train_loss", "client_test_loss", "client_test_accuracy"]
    first = in_process.as_numbers(found.history, columns)[0]
    assert np.isfinite(first).all()
    np.testing.assert_allclose(first, in_process.as_numbers(without_it.history, columns)[0])


def spoiled_by(clients, change, kinds=("train.train",)):
    """These clients' answers of every round, changed by a function of their records."""

    def spoil(partition, kind, reply):
        if partition in clients and kind in kinds:
            change(reply.content)
        return reply

    return spoil


def without_numbers(content):
    for name in content.array_records["message"]:
        array(content, name, lambda v: np.full_like(v, np.nan))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_run_that_diverges_ends_and_says_so(name, tmp_path, by_registry, capsys):
    """As on one machine; no client is asked twice for what it would compute again."""
    attack = spoiled_by((0, 2, 3), without_numbers, ("train.train", "train.probe"))
    grid = in_process.grid(tmp_path, spoil=attack)
    found = in_process.run(grid, tmp_path, algorithm=name)
    assert found.diverged_at == len(found.history) == 1
    assert sum(kind == "train.train" for kind, _ in grid.asked) == 5
    assert "client 2: " in found.history["events"][0]
    assert "diverged in round 1: the model is that of round 0" in capsys.readouterr().out
    (folder,) = (tmp_path / "runs").iterdir()
    assert fedsps.load(folder).diverged_at == 1


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


def test_a_first_client_that_diverged_alone_is_passed_over(tmp_path):
    grid = in_process.grid(tmp_path, spoil=spoiled_by((0,), without_numbers, ("train.probe",)))
    found = in_process.run(grid, tmp_path, algorithm="fedsps-global")
    assert found.diverged_at is None
    assert found.history["events"][0].endswith("holds NaN or infinity")


def test_a_client_that_diverged_is_not_asked_again(tmp_path):
    grid = in_process.grid(tmp_path, spoil=spoiled_by((3,), without_numbers))
    with pytest.raises(DataError, match="4 of 5 clients answered, 5 are needed"):
        in_process.run(grid, tmp_path, minimum_cohort=5, retries=2)
    assert sum(one == ("train.train", 3) for one in grid.asked) == 1


@pytest.mark.parametrize("gap", [-1.0, -np.inf])
def test_one_client_below_the_bound_does_not_stop_a_run(gap, tmp_path):
    def below(content):
        array(content, "gap", lambda v: np.full_like(v, gap), "trace")

    found = in_process.run(in_process.grid(tmp_path, spoil=spoiled_by((3,), below)), tmp_path, rounds=2)
    assert found.history["events"].tolist() == ["client 3: it says that a loss fell below its lower bound"] * 2
    assert found.history["clients"].tolist() == [4, 4]
    with pytest.raises(LowerBoundError, match="round 1: client 1 saw a loss"):
        in_process.run(in_process.grid(tmp_path, spoil=spoiled_by((1, 2, 4), below)), tmp_path / "half")
