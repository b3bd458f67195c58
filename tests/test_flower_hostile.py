"""A client that means harm, over an in-process grid: huge numbers, huge answers, false lines; and a disk that is full."""

import json
from pathlib import Path

import in_process
import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.app.message.message import make_message
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from safetensors import SafetensorError

from fedsps.core.files import replace_file
from fedsps.engine.answer import Answer
from fedsps.errors import ConfigurationError, DataError
from fedsps.flower import RunConfig, versions, wire
from fedsps.flower.check import far_above
from fedsps.flower.courier import MANY, SMALL, assemble
from fedsps.runs import checkpoint, pins

HUGE = in_process.spoiled((3,), lambda content: in_process.array(content, "delta", lambda v: np.full_like(v, 3e100)))


def test_a_huge_finite_answer_is_refused_and_named_under_the_plain_mean(tmp_path):
    found = in_process.run(in_process.grid(tmp_path, spoil=HUGE), tmp_path, rounds=2)
    assert found.history["clients"].tolist() == [4, 4]
    assert all(
        "client 3: its delta has norm 1.162e+101, over 1000 times the " in text for text in found.history["events"]
    )
    assert in_process.weights(found).norm() < 10


def test_what_is_far_above_may_be_switched_off(tmp_path):
    found = in_process.run(in_process.grid(tmp_path, spoil=HUGE), tmp_path, rounds=1, far_factor=0)
    assert found.history["clients"].tolist() == [5]
    assert in_process.weights(found).norm() > 1e99
    with pytest.raises(ConfigurationError, match="far_factor must be 10 or more, or 0 to refuse none; got 2"):
        RunConfig.of({"far-factor": 2.0})


def sent(*sizes, name="delta"):
    return {client: Answer({name: torch.tensor(size)}, {}, {}, None, 1) for client, size in enumerate(sizes)}


@pytest.mark.parametrize(
    ("answers", "far"),
    [
        (sent([1.0], [1.0], [999.0]), []),
        (sent([1.0], [1.0], [1001.0]), [2]),
        (sent([1.0], [3e38]), []),  # of two, neither is known to be right
        (sent([0.0], [0.0], [1.0]), []),  # two clients whose loss is 0
        (sent([1.0], [1.0], [3e38], [3e38]), [2, 3]),  # the lower median of four is the second
        (sent([3e38, 3e38], [1.0, 1.0], [1.0, 1.0]), [0]),  # its norm is beyond float32
        (sent(1.0, 2.0, 1.9e6, name="delta_norm_sq"), []),  # a square: the factor too
        (sent(1.0, 2.0, 2.1e6, name="delta_norm_sq"), [2]),
    ],
)
def test_far_above_the_lower_median(answers, far):
    assert list(far_above(answers, 1000.0)) == far


def test_huge_buffers_are_refused_too():
    answers = {
        client: Answer({}, {}, {"mean": torch.tensor([size])}, None, 1) for client, size in enumerate((1.0, 1.0, 1e30))
    }
    assert far_above(answers, 1000.0) == {2: "its mean has norm 1e+30, over 1000 times the 1 of the cohort"}


FALSE = "disk\nround 9/9  accuracy 1.0000\nfinished: all is well\r\x1b[2J\x1b[1;1H\x9b" + "x" * 30_000_000


def fails_with_false_lines(content):
    content.clear()
    content["error"] = ConfigRecord({"text": FALSE})


@pytest.mark.parametrize("record", ["message", "scores"])
def test_a_client_cannot_write_lines_of_its_own_nor_fill_the_history(record, tmp_path, capsys):
    def spoil(partition, kind, reply):
        if partition == 3 and record in reply.content:
            fails_with_false_lines(reply.content)
        return reply

    found = in_process.run(in_process.grid(tmp_path, spoil=spoil), tmp_path, rounds=2)
    for text in found.history["events"]:
        events = text.split("; ")
        assert len(events) <= 2 and all(one.startswith("client 3: ") and len(one) < 600 for one in events)
        assert text.isprintable()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" ")[0] for line in lines] == ["fedsps", "round", "round", "finished:"]
    assert all(line.isprintable() for line in lines)


def test_a_node_cannot_write_lines_of_its_own_before_the_first_round(tmp_path):
    grid = in_process.grid(tmp_path, spoil=in_process.spoiled((3,), fails_with_false_lines, ("query",)))
    with pytest.raises(ConfigurationError, match="node 101 cannot take part: disk round 9/9") as raised:
        in_process.run(grid, tmp_path)
    assert len(str(raised.value)) < 600 and str(raised.value).isprintable()


def test_names_that_a_client_chose_are_cut_too(tmp_path):
    def change(content):
        content["message"] = ArrayRecord({**content.array_records["message"], FALSE[:1000]: Array(np.zeros(1))})

    found = in_process.run(in_process.grid(tmp_path, spoil=in_process.spoiled((3,), change)), tmp_path, rounds=1)
    assert found.history["events"][0].startswith("client 3: message disk round 9/9")
    assert len(found.history["events"][0]) < 600 and found.history["events"][0].isprintable()


def objects_of(content):
    message = Message(content, 1, "train")
    return message.object_id, {name: one.deflate() for name, one in get_all_nested_objects(message).items()}


def model_of(size):
    return RecordDict({"message": wire.arrays({"delta": torch.zeros(size)})})


def test_an_answer_of_the_right_size_is_put_together():
    name, objects = objects_of(model_of(1000))
    content = assemble(name, objects, objects.__getitem__, SMALL).content
    assert torch.equal(wire.tensors(content, "message")["delta"], torch.zeros(1000))


def test_an_answer_that_is_too_large_is_not_read():
    """Different parts: the bytes that come are counted, and the rest stays where it is."""
    content = RecordDict({"message": wire.arrays({"delta": torch.arange(20_000_000, dtype=torch.int32)})})
    name, objects = objects_of(content)
    fetched = []

    def fetch(one):
        fetched.append(len(objects[one]))
        return objects[one]

    with pytest.raises(DataError, match="its answer is larger than 1048576 bytes, .* not read"):
        assemble(name, objects, fetch, SMALL)
    assert len(fetched) < len(objects)


def test_zeros_that_are_one_object_many_times_are_not_put_together():
    name, objects = objects_of(model_of(50_000_000))
    assert sum(map(len, objects.values())) < 12e6, "Flower sends equal parts once"
    with pytest.raises(DataError, match="its answer is larger than 15000000 bytes"):
        assemble(name, objects, objects.__getitem__, 15_000_000)


def test_too_many_objects_are_not_fetched():
    with pytest.raises(DataError, match="larger than"):
        assemble("0", [str(number) for number in range(MANY + 1)], pytest.fail, SMALL)


def test_what_is_no_message_is_the_senders_fault():
    name, objects = objects_of(model_of(10))
    (array,) = [one for one, content in objects.items() if content.startswith(b"Array ")]
    objects[array] = objects[array].replace(b'"arraychunk_ids": [0]', b'"arraychunk_ids": [7]')
    with pytest.raises(DataError, match=r"its answer cannot be read \(IndexError\)"):
        assemble(name, objects, objects.__getitem__, SMALL)


def test_an_answer_in_the_place_of_another_node_is_refused(tmp_path):
    grid = in_process.grid(tmp_path)

    def forge(partition, kind, reply):
        if (partition, kind) == (3, "train.train"):
            reply.metadata.__dict__["_src_node_id"] = 100
        return reply

    grid.spoil = forge
    found = in_process.run(grid, tmp_path, rounds=1)
    assert found.history["events"].tolist() == ["client 3: another node answered in its place"]
    assert found.history["clients"].tolist() == [4]


def test_a_slow_node_is_called_slow_and_a_gone_one_gone(tmp_path):
    grid = in_process.grid(tmp_path)

    def spoil(partition, kind, reply):
        if kind == "train.train" and partition == 0:
            grid.nodes.pop(104, None)
        return None if kind == "train.train" and partition in (0, 1) else reply

    grid.spoil = spoil
    found = in_process.run(grid, tmp_path, rounds=1, deadline=0.2, evaluate_every=0)
    assert found.history["events"].tolist() == [
        "client 0: no answer within 0.2 s: it is gone; client 1: no answer within 0.2 s: it is connected, but slow"
    ]


def test_a_node_that_is_still_busy_is_not_called_absent(tmp_path):
    grid = in_process.grid(tmp_path)
    grid.spoil = lambda partition, kind, reply: (
        None if partition == 1 and (kind == "train.train" or ("train.train", 1) in grid.asked) else reply
    )
    found = in_process.run(grid, tmp_path, rounds=2, deadline=0.2, evaluate_every=0)
    assert found.history["events"][1] == "client 1: slow: it is connected, but has not said yet that it is back"


def test_nodes_that_are_slow_at_the_start_are_counted(tmp_path):
    grid = in_process.grid(tmp_path)
    grid.spoil = lambda partition, kind, reply: None if partition < 2 else reply
    with pytest.raises(
        ConfigurationError, match=r"no sign of partitions 0, 1 within 0.2 s \(2 nodes are connected and slow"
    ):
        in_process.run(grid, tmp_path, start_deadline=0.2)


def lost(reply):
    """What Flower's grid gives in the place of an answer that it cannot have."""
    reply.__dict__.pop("_content", None)
    return make_message(metadata=reply.metadata, error=Error(1, "the node is unavailable"))


def test_an_answer_that_flower_lost_is_waited_for_as_one_that_did_not_come(tmp_path):
    """All nodes are cut off for a while: errors come at once, and do not use up the repetitions."""
    grid = in_process.grid(tmp_path)
    errors = []

    class Cut(in_process.Grid):
        def pull_messages(self, names):
            replies = super().pull_messages(names)
            if any(kind.startswith("train") for kind, _ in self.asked) and len(errors) < 20:
                errors.append(1)
                return [lost(reply) for reply in replies]
            return replies

    grid.__class__ = Cut
    found = in_process.run(grid, tmp_path, rounds=1, retries=1, deadline=5.0, poll=0.01, evaluate_every=0)
    assert found.history["clients"].tolist() == [5]
    assert "client 0: Flower lost it: " in found.history["events"][0]


def test_the_states_of_a_finished_run_are_deleted(tmp_path):
    in_process.run(in_process.grid(tmp_path), tmp_path, algorithm="feddecsps", rounds=2)
    assert not [path for path in (tmp_path / "states").rglob("*") if path.is_file()]
    grid = in_process.grid(tmp_path / "kept")
    push = grid.push_messages

    def leave(messages):
        grid.dead = {1} if messages[0].metadata.message_type == "query.finished" else set()
        return push(messages)

    grid.push_messages = leave
    in_process.run(grid, tmp_path / "kept", algorithm="feddecsps", rounds=2, deadline=0.3)
    kept = {path.parent.name for path in (tmp_path / "kept" / "states").rglob("*.safetensors")}
    assert kept == {"1"}


def test_the_printed_seconds_are_those_of_the_whole_round(tmp_path, capsys, monkeypatch):
    import time

    grid = in_process.grid(tmp_path)

    def slow(partition, kind, reply):
        if partition == 0 and "scores" in reply.content:
            time.sleep(0.4)
        return reply

    grid.spoil = slow
    found = in_process.run(grid, tmp_path, rounds=2, evaluate_every=1)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("round")]
    printed = [float(line.split("clients  ")[1].split(" s")[0]) for line in lines]
    assert all(seconds >= 0.4 for seconds in printed)
    first, second = found.history["seconds"]
    assert first < printed[0] - 0.3, "the column is of the training alone"
    assert 0.4 <= second < 0.8, "but for what came with the evaluation of the round before"


def test_a_full_disk_is_an_error_that_names_the_folder(tmp_path):
    with pytest.raises(
        DataError, match=rf"no space left for state.json in {tmp_path}: make room there, then start the same again"
    ):
        replace_file(tmp_path / "state.json", lambda partial: Path("/dev/full").write_text("x", encoding="utf-8"))


def test_a_run_whose_disk_was_full_goes_on(tmp_path, monkeypatch):
    """The second checkpoint does not fit; the library that writes it has an error of its own for that."""
    original, times = checkpoint.save_file, []

    def save(tensors, partial, notes):
        times.append(1)
        if len(times) == 2:
            raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
        original(tensors, partial, notes)

    monkeypatch.setattr(checkpoint, "save_file", save)
    grid = in_process.grid(tmp_path)
    with pytest.raises(
        DataError, match="no space left for checkpoint.safetensors in .*it goes on from what was saved last"
    ):
        in_process.run(grid, tmp_path, rounds=3)
    found = in_process.run(grid, tmp_path, rounds=3)
    whole = in_process.run(in_process.grid(tmp_path / "whole"), tmp_path / "whole", rounds=3)
    assert torch.equal(in_process.weights(found), in_process.weights(whole))
    assert found.history["round"].tolist() == [1, 2, 3]


def test_the_history_of_a_checkpoint_is_a_file_of_its_own(tmp_path):
    """A process that is killed between the two files leaves a row too many; one with too few is damaged."""
    grid = in_process.grid(tmp_path, spoil=in_process.crash_after(10))
    with pytest.raises(in_process.CrashError):
        in_process.run(grid, tmp_path, evaluate_every=0)
    (path,) = tmp_path.glob("runs/*/checkpoint.json")
    rows = json.loads(path.read_text(encoding="utf-8"))
    assert [row["round"] for row in rows] == [1, 2]
    path.write_text(json.dumps([*rows, rows[-1] | {"round": 99}]), encoding="utf-8")
    grid.spoil = None
    assert in_process.run(grid, tmp_path, evaluate_every=0).history["round"].tolist() == [1, 2, 3, 4]
    assert not list(tmp_path.glob("runs/*/checkpoint.*"))


def test_a_node_that_claims_anothers_partition_is_refused_and_the_honest_one_is_not(tmp_path, monkeypatch):
    """A registered node more says that it is partition 3, and is heard first."""
    grid = in_process.grid(tmp_path)
    path = tmp_path / pins.NAME
    for node, partition in grid.nodes.items():
        pins.pin(path, node, partition)
    pins.pin(path, 1, 5)
    monkeypatch.setenv(pins.VARIABLE, str(path))
    grid.nodes = {1: 3, 2: 3} | grid.nodes
    found = in_process.run(grid, tmp_path, rounds=1, clients=5)
    assert found.history["clients"].tolist() == [5]
    events = found.history["events"][0]
    assert "node 1 says it is partition 3, but its key is registered for partition 5: refused" in events
    assert "node 2 says it is partition 3, but its key is registered for none: refused" in events
    assert [partition for kind, partition in grid.asked if kind == "train.train"] == [0, 1, 2, 3, 4]
    monkeypatch.setenv(pins.VARIABLE, str(tmp_path / "gone.json"))
    with pytest.raises(ConfigurationError, match="gone.json does not say which node is for which partition"):
        in_process.run(in_process.grid(tmp_path), tmp_path / "gone")


@pytest.mark.parametrize(
    ("name", "value", "clients", "words"),
    [
        ("fedsps", "0.0.1", 4, "node 101 cannot take part: it has fedsps 0.0.1, the server "),
        ("app", "another", 4, "node 101 cannot take part: its app is another, the server's 0123: start both from"),
        ("torch", "1.9.0", 5, "client 3: it has torch 1.9.0, the server "),
    ],
)
def test_versions_that_do_not_go_together_are_refused_or_noted(name, value, clients, words, tmp_path, monkeypatch):
    monkeypatch.setattr(versions, "of_app", lambda function: "0123")
    other = in_process.spoiled((3,), lambda content: content.config_records["facts"].update({name: value}), ("query",))
    grid = in_process.grid(tmp_path, spoil=in_process.crash_after(5))
    settings = {"clients": 5, "start_deadline": 0.3, "evaluate_every": 0, "app": "0123"}
    with pytest.raises(in_process.CrashError):
        in_process.run(grid, tmp_path, rounds=2, **settings)
    grid.spoil = other  # the run goes on with whoever is fit
    found = in_process.run(grid, tmp_path, rounds=2, **settings)
    assert found.history["clients"].tolist() == [5, clients]
    assert words in found.history["events"][1]
