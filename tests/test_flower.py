"""Flower's engine over an in-process grid: equal to the local engines, resumable, and hard to spoil."""

import in_process
import numpy as np
import pandas as pd
import pytest
import torch
from conftest import make_clients
from flwr.app import Message, RecordDict
from registry import ALGORITHMS
from torch import nn

import fedsps
from fedsps.core import streams
from fedsps.engine import history
from fedsps.errors import ConfigurationError, DataError
from fedsps.flower import RunConfig, SiteData, client_app
from fedsps.flower.membership import Membership
from fedsps.flower.server import RunFolder
from fedsps.flower.store import NEVER, Store
from fedsps.methods.notation import Named
from fedsps.methods.registry import CATALOGUE
from fedsps.report.comparison import comparison

NUMBERS = [name for name in history.COLUMNS if name not in ("seconds", "test_loss", "test_accuracy")]


@pytest.fixture
def by_registry(monkeypatch):
    """Run configurations name the registry's algorithms."""
    monkeypatch.setattr(RunConfig, "built", property(lambda self: ALGORITHMS[self.algorithm]))
    monkeypatch.setattr(RunConfig, "named", property(lambda self: Named(self.algorithm, {})))


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


@pytest.mark.parametrize("name", STATEFUL)
@pytest.mark.parametrize(
    ("after", "cohort", "evaluate_every"),
    [(1, 3, 1), (6, 3, 1), (9, 3, 1), (6, 3, 0), (7, 0, 1), (12, 0, 1), (12, 0, 2)],
)
def test_a_killed_server_goes_on_where_it_was(name, after, cohort, evaluate_every, tmp_path, by_registry):
    """It dies after so many training messages, in mid-round: some clients have moved on already.

    Where rounds are evaluated, the clients may have trained for the round after one that was not saved.
    """
    settings = {"algorithm": name, "cohort": cohort, "evaluate_every": evaluate_every}
    whole = in_process.run(in_process.grid(tmp_path / "whole"), tmp_path / "whole", **settings)
    grid = in_process.grid(tmp_path, spoil=in_process.crash_after(after))
    with pytest.raises(in_process.CrashError):
        in_process.run(grid, tmp_path, **settings)
    grid.spoil = None
    resumed = in_process.run(grid, tmp_path, **settings)
    assert torch.equal(in_process.weights(whole), in_process.weights(resumed))
    pd.testing.assert_frame_equal(whole.history.drop(columns="seconds"), resumed.history.drop(columns="seconds"))


SLOW = "it is connected, but slow"


@pytest.mark.parametrize("name", STATEFUL)
@pytest.mark.parametrize(
    ("evaluate_every", "clients", "events"),
    [
        (0, [5, 4, 5, 5], ["", f"client 1: no answer within 0.3 s: {SLOW}", "", ""]),
        # it was asked for scores and training at once, and is back when the round begins
        (1, [5, 5, 5, 5], [f"client 1: no scores (no answer within 0.6 s: {SLOW})", "", "", ""]),
    ],
)
def test_a_late_answer_leaves_no_trace(name, evaluate_every, clients, events, tmp_path, by_registry):
    """A client whose answer came too late goes on, when it is back, as if it had not been asked."""

    def lose(grid):
        def spoil(partition, kind, reply):
            late = (kind, partition) == ("train.train", 1) and grid.asked.count((kind, partition)) == 2
            return None if late else reply

        return spoil

    def keep(grid):  # the same, but the client never works in its second round: its state is what it was
        work = grid.app

        def app(message, context):
            asked = (message.metadata.message_type, context.node_config["partition-id"])
            late = asked == ("train.train", 1) and grid.asked.count(asked) == 2
            return Message(RecordDict(), reply_to=message) if late else work(message, context)

        return app

    late, absent = in_process.grid(tmp_path / "late"), in_process.grid(tmp_path / "absent")
    late.spoil = lose(late)
    absent.app = keep(absent)
    found = [
        in_process.run(one, tmp_path / folder, algorithm=name, deadline=0.3, evaluate_every=evaluate_every)
        for one, folder in ((late, "late"), (absent, "absent"))
    ]
    assert torch.equal(*(in_process.weights(one) for one in found))
    if name == "mime" and evaluate_every:  # its first exchange goes with the scores, and the second is late
        back = "client 1: no scores (slow: it is connected, but has not said yet that it is back)"
        clients, events = [5, 4, 5, 5], ["", f"client 1: no answer within 0.3 s: {SLOW}; {back}", "", ""]
    assert found[0].history["events"].tolist() == events
    assert found[0].history["clients"].tolist() == clients


@pytest.mark.parametrize("name", ["fedsps", "fedpolyak", "scaffold", "mime", "global b"])
def test_scores_and_the_next_round_share_a_message(name, tmp_path, by_registry):
    """The last round is evaluated alone, and so are clients that are not in the next round."""
    grid = in_process.grid(tmp_path)
    found = in_process.run(grid, tmp_path, algorithm=name, rounds=3, cohort=3)
    alone = in_process.grid(tmp_path / "alone")
    apart = in_process.run(alone, tmp_path / "alone", algorithm=name, rounds=3, cohort=3, evaluate_every=0)
    assert torch.equal(in_process.weights(found), in_process.weights(apart))
    kinds = [kind for kind, _ in grid.asked]
    assert [one for one in kinds if one != "evaluate"] == [kind for kind, _ in alone.asked]
    assert kinds.count("evaluate") == 2 + 2 + 5


def test_a_run_that_ends_early_forgets_what_came_early(tmp_path):
    """Patience ends it when the clients have trained for one more round already."""
    settings = {"algorithm": "scaffold:client_stepsize=3", "rounds": 9, "patience": 1}
    grid = in_process.grid(tmp_path)
    found = in_process.run(grid, tmp_path, **settings)
    rounds = len(found.history)
    assert rounds < 9 and sum(kind == "train.train" for kind, _ in grid.asked) == 5 * (rounds + 1)
    settings |= {"rounds": rounds, "patience": 0}
    straight = in_process.run(in_process.grid(tmp_path / "straight"), tmp_path / "straight", **settings)
    assert torch.equal(in_process.weights(found), in_process.weights(straight))
    assert not list(tmp_path.glob("states/*/*/*")), "nor is there a state of it on the clients"


def test_only_training_counts_as_taking_part(tmp_path):
    """Client 0 is asked for the first stepsize and answers; its training of the first round is lost."""
    grid = in_process.grid(tmp_path)
    work, since = grid.app, []

    def app(message, context):
        if (message.metadata.message_type, context.node_config["partition-id"]) == ("train.train", 0):
            since.append(message.content.config_records["ask"]["since"])
        return work(message, context)

    grid.app = app
    grid.spoil = lambda partition, kind, reply: (
        None if (kind, partition) == ("train.train", 0) and len(since) == 1 else reply
    )
    in_process.run(grid, tmp_path, algorithm="fedsps-global:smoothing=paper", deadline=0.3, evaluate_every=0)
    assert ("train.probe", 0) in grid.asked
    assert since == [NEVER, NEVER, 1, 2], "the last round in which its training was counted"


def test_the_first_stepsize_comes_from_whoever_answers(tmp_path):
    grid = in_process.grid(tmp_path)
    grid.spoil = lambda partition, kind, reply: None if kind == "train.probe" and partition == 0 else reply
    found = in_process.run(grid, tmp_path, algorithm="fedsps-global", deadline=0.2)
    assert [one for one in grid.asked if one[0] == "train.probe"] == [("train.probe", 0), ("train.probe", 1)]
    assert found.history["events"][0] == "client 0: no answer within 0.2 s: it is connected, but slow"


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


def test_states_are_kept_for_three_rounds_and_by_run(tmp_path, monkeypatch):
    monkeypatch.setattr(Membership, "farewell", lambda *_: [])
    grid = in_process.grid(tmp_path)
    first = in_process.run(grid, tmp_path, algorithm="scaffold:client_stepsize=0.05")
    kept = sorted(path.name for path in (tmp_path / "states" / "4").rglob("*") if path.is_file())
    assert kept == [f"0000000{round}-0.safetensors" for round in (1, 2, 3)]
    again = in_process.run(grid, tmp_path, algorithm="scaffold:client_stepsize=0.05")  # old states do not count
    assert torch.equal(in_process.weights(first), in_process.weights(again))


def test_a_state_that_started_elsewhere_does_not_count(tmp_path):
    """A server that died may have asked for the first exchange of round 5 from a state that it has forgotten since."""
    store = Store.of(tmp_path, "0123456789ab", 4, "one")
    for round, since, value in ((3, NEVER, 1.0), (4, 3, 2.0), (5, 4, 3.0)):
        store.save(round, 0, since, {"control": torch.tensor([value])})
    assert store.load(5, 1, since=4)["control"].tolist() == [3]
    assert store.load(5, 1, since=3)["control"].tolist() == [1]


def test_states_of_another_run_of_the_same_spec_do_not_count(tmp_path):
    first, second = (Store.of(tmp_path, "0123456789ab", 4, token) for token in ("one", "two"))
    first.save(3, 0, NEVER, {"control": torch.ones(2)})
    assert first.load(4, 0, 3)["control"].tolist() == first.load(3, 1, NEVER)["control"].tolist() == [1, 1]
    assert second.load(4, 0, 3) is second.load(3, 1, NEVER) is None


def test_evaluation_at_the_clients_and_at_the_server(tmp_path):
    clients = make_clients()
    own_test = make_clients(sizes=(7,), seed=5)[0]
    central = make_clients(sizes=(30,), seed=6)[0]
    found = in_process.run(in_process.grid(tmp_path, test=own_test), tmp_path, test=central)
    local = [
        fedsps.train(in_process.linear(), clients, algorithm="fedsps", rounds=4, batch_size=5, test=test).history
        for test in (own_test, central)
    ]
    np.testing.assert_allclose(found.history["client_test_loss"], local[0]["test_loss"])
    np.testing.assert_allclose(found.history["client_test_accuracy"], local[0]["test_accuracy"])
    np.testing.assert_allclose(found.history["test_loss"], local[1]["test_loss"])
    np.testing.assert_allclose(found.history["train_loss"], local[1]["train_loss"])


def test_what_each_client_said_is_in_the_table(tmp_path):
    data = make_clients()
    found = in_process.run(in_process.grid(tmp_path, test=data[1]), tmp_path, cohort=3)
    local = fedsps.train(in_process.linear(), data, algorithm="fedsps", rounds=4, batch_size=5, cohort=3)
    same = ["client", "samples", "loss", "stepsize_mean"]
    pd.testing.assert_frame_equal(found.clients[same], local.clients[same], rtol=1e-9)
    assert found.clients["test_samples"].tolist() == [8] * 5 and "test_accuracy" in found.clients
    read = fedsps.load(tmp_path / "runs" / found.spec.digest, in_process.linear())
    pd.testing.assert_frame_equal(read.clients, found.clients, check_dtype=False)
    best = in_process.run(
        in_process.grid(tmp_path / "best"), tmp_path / "best", algorithm="fedavg:client_stepsize=2", restore_best=True
    )
    assert best.clients["loss"].mean() == pytest.approx(best.history["train_loss"].min())
    assert best.history["train_loss"].idxmin() < 3, "or it shows nothing"
    private = {"clip_norm": 1.0, "noise_multiplier": 1.0}
    assert in_process.run(in_process.grid(tmp_path / "private"), tmp_path / "private", **private).clients is None


def test_scores_of_the_clients_own_tests_are_over_all_their_samples(tmp_path):
    own = make_clients(sizes=(1, 2, 4, 8, 16), seed=5)

    def data(context):
        number = context.node_config["partition-id"]
        return SiteData(make_clients()[number], own[number])

    grid = in_process.Grid(client_app(in_process.linear, data), 5, tmp_path / "states")
    found = in_process.run(grid, tmp_path, rounds=2)
    together = tuple(torch.cat(parts) for parts in zip(*own, strict=True))
    settings = {"algorithm": "fedsps", "rounds": 2, "batch_size": 5}
    local = fedsps.train(in_process.linear(), make_clients(), test=together, **settings).history
    np.testing.assert_allclose(found.history["client_test_loss"], local["test_loss"])
    np.testing.assert_allclose(found.history["client_test_accuracy"], local["test_accuracy"])


def test_weights_by_samples(tmp_path):
    found = in_process.run(in_process.grid(tmp_path), tmp_path, weights="samples")
    settings = {"algorithm": "fedsps", "rounds": 4, "batch_size": 5}
    local = fedsps.train(in_process.linear(), make_clients(), weights="samples", **settings)
    assert torch.allclose(in_process.weights(found), in_process.weights(local), rtol=1e-9)
    np.testing.assert_allclose(found.history["train_loss"], local.history["train_loss"])


def test_buffers_travel(tmp_path):
    def model(context=None):
        with streams.torch_seed(3, "test model"):
            return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)).double()

    found = in_process.run(in_process.grid(tmp_path, model=model), tmp_path, model=model, batch_size=3)
    local = fedsps.train(model(), make_clients(), algorithm="fedsps", rounds=4, batch_size=3)
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
    config = RunConfig.of({"own.hidden": 3, "rounds": 7, "local-steps": 2})
    assert (config.own, config.plan) == ({"own.hidden": 3}, fedsps.Plan(rounds=7, local_steps=2))


def test_a_run_can_be_loaded_and_compared(tmp_path):
    found = in_process.run(in_process.grid(tmp_path), tmp_path)
    (folder,) = (tmp_path / "runs").iterdir()
    loaded = fedsps.load(folder)
    pd.testing.assert_frame_equal(loaded.history, found.history)
    assert loaded.spec.algorithm == "fedsps"
    assert loaded.spec == found.spec
    table = comparison({"flower": [loaded], "again": [found]}).table
    assert table["final_train_loss"].nunique() == 1


def test_every_name_of_the_catalogue_is_understood():
    for name in CATALOGUE:
        assert RunConfig(algorithm=name).built == CATALOGUE[name]()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_run_that_diverges_ends_and_says_so(name, tmp_path, by_registry, capsys):
    """As on one machine; no client is asked twice for what it would compute again."""
    attack = in_process.spoiled((0, 2, 3), in_process.without_numbers, ("train.train", "train.probe"))
    grid = in_process.grid(tmp_path, spoil=attack)
    found = in_process.run(grid, tmp_path, algorithm=name)
    assert found.diverged_at == len(found.history) == 1
    assert sum(kind == "train.train" for kind, _ in grid.asked) == 5
    assert "client 2: " in found.history["events"][0]
    assert "diverged in round 1: the model is that of round 0" in capsys.readouterr().out
    (folder,) = (tmp_path / "runs").iterdir()
    assert fedsps.load(folder).diverged_at == 1


def test_runs_of_other_data_or_other_clients_have_their_own_folders(tmp_path):
    for name in ("iid", "dirichlet", "iid"):
        in_process.run(in_process.grid(tmp_path), tmp_path, rounds=1, **{"own.data": name})
    in_process.run(in_process.grid(tmp_path / "4", make_clients()[:4]), tmp_path, rounds=1, **{"own.data": "iid"})
    specs = [fedsps.load(folder).spec for folder in (tmp_path / "runs").iterdir()]
    assert sorted((spec.federation["own"]["own.data"], spec.federation["clients"]) for spec in specs) == [
        ("dirichlet", 5),
        ("iid", 4),
        ("iid", 5),
    ]


def test_a_finished_run_stays_until_the_next_has_a_round(tmp_path):
    grid = in_process.grid(tmp_path)
    in_process.run(grid, tmp_path)
    (folder,) = (tmp_path / "runs").iterdir()
    grid.dead = {0}
    with pytest.raises(ConfigurationError, match="no sign of partitions 0 within"):
        in_process.run(grid, tmp_path, start_deadline=0.2)
    assert fedsps.load(folder).summary["rounds"] == 4
    grid.dead = set()
    grid.spoil = in_process.crash_after(3)
    with pytest.raises(in_process.CrashError):
        in_process.run(grid, tmp_path)
    assert fedsps.load(folder).summary["rounds"] == 4
    grid.spoil = in_process.crash_after(11)
    with pytest.raises(in_process.CrashError):
        in_process.run(grid, tmp_path)
    with pytest.raises(DataError, match="not the folder of a finished run"):
        fedsps.load(folder)


def test_a_checkpoint_that_a_finished_run_left_is_none_to_go_on_from(tmp_path, monkeypatch):
    """The server died after it had written the result, before it deleted the checkpoint."""

    def die(folder):
        raise in_process.CrashError

    grid = in_process.grid(tmp_path)
    with monkeypatch.context() as patch, pytest.raises(in_process.CrashError):
        patch.setattr(RunFolder, "forget", die)
        in_process.run(grid, tmp_path, rounds=2)
    assert sorted(path.name for path in (tmp_path / "runs").rglob("*.safetensors")) == [
        "checkpoint.safetensors",
        "model.safetensors",
    ]
    in_process.run(grid, tmp_path, rounds=2)
    assert sum(kind == "train.train" for kind, _ in grid.asked) == 2 * 2 * 5


def test_two_servers_do_not_share_a_folder(tmp_path):
    grid = in_process.grid(tmp_path)

    def twice(partition, kind, reply):
        if kind == "train.train":
            with pytest.raises(ConfigurationError, match="another server works on this run in .*: wait for it"):
                in_process.run(in_process.grid(tmp_path), tmp_path)
        return reply

    grid.spoil = twice
    assert len(in_process.run(grid, tmp_path).history) == 4
