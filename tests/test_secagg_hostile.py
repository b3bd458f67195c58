"""Secure aggregation with a client that is broken or means harm: refused by its name, or the sum is not taken."""

import in_process
import numpy as np
import pytest
import test_secagg
import torch
from flwr.common import bytes_to_ndarray, ndarray_to_bytes
from flwr.common.secure_aggregation.crypto.shamir import create_shares
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage

from fedsps.errors import DataError
from fedsps.flower import secagg
from fedsps.flower.protocol import disagreeing

KEYS, SHARES, VECTORS, UNMASK = Stage.all()


def hostile(folder, stage, change, clients=(3,), times=None):
    """A grid whose clients' answers in a stage are changed by a function of what the protocol has put into them."""
    grid = test_secagg.Grid(folder)
    work, count = grid.call, []

    def call(message, context):
        at = message.content.config_records.get(RECORD_KEY_CONFIGS, {}).get(Key.STAGE)
        reply = work(message, context)
        if at == stage and grid.nodes[context.node_id] in clients and not reply.has_error():
            count.append(1)
            if times is None or len(count) <= times:
                change(reply.content)
        return reply

    grid.app = call
    return grid


def told(**values):
    names = {"masked": Key.MASKED_PARAMETERS, "owners": Key.NODE_ID_LIST, "shares": Key.SHARE_LIST}
    names |= {"to": Key.DESTINATION_LIST, "sealed": Key.CIPHERTEXT_LIST, "first": Key.PUBLIC_KEY_1}

    def change(content):
        record = content.config_records[RECORD_KEY_CONFIGS]
        for name, value in values.items():
            record[names[name]] = value(record[names[name]]) if callable(value) else value

    return change


def numbers(size, dtype=np.int64):
    return ndarray_to_bytes(np.ones(size, dtype=dtype))


@pytest.mark.parametrize(
    ("stage", "change", "reason"),
    [
        (KEYS, told(first=b"no key"), "what it sent cannot be read"),
        (KEYS, told(first="text"), "a key or a share is no such thing"),
        (KEYS, lambda content: content.pop(RECORD_KEY_CONFIGS), "what it sent cannot be read (KeyError)"),
        (SHARES, told(to=lambda old: [*old[:-1], 7]), "its shares are not for its neighbours"),
        (SHARES, told(sealed=lambda old: old[:-1]), "its shares are not for its neighbours"),
        (SHARES, told(to=[]), "its shares are not for its neighbours"),
        (VECTORS, told(masked=lambda old: [old[0], numbers(7)]), "its vector is int64 of shape (7,), not 25 whole numbers"),
        (VECTORS, told(masked=lambda old: [old[0], numbers(10_000)]), "its vector has 80128 bytes, 25 numbers were asked for"),
        (VECTORS, told(masked=lambda old: [old[0], numbers(25, float)]), "its vector is float64 of shape (25,)"),
        (VECTORS, told(masked=lambda old: [numbers(0), old[1]]), "its weight is int64 of shape (0,), not 1 whole numbers"),
        (VECTORS, told(masked=[]), "not a weight and a vector"),
        (VECTORS, told(masked=lambda old: [b"nonsense", old[1]]), "what it sent cannot be read (ValueError)"),
        (VECTORS, lambda content: content.pop("fitres.metrics"), "what it sent cannot be read (KeyError)"),
        (VECTORS, lambda content: content.config_records["fitres.metrics"].update({"gradients": -1}), "it does not say how many"),
        (UNMASK, told(owners=lambda old: [*old[:-1], 7]), "its shares are not those that were asked for"),
        (UNMASK, told(shares=lambda old: [b"short"] * len(old)), "a share is of the wrong length"),
        (UNMASK, told(shares=lambda old: ["text"] * len(old)), "a key or a share is no such thing"),
        (UNMASK, told(shares=lambda old: [one[:4] + bytes(len(one) - 4) for one in old]), "its shares do not agree"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_does_not_fit_is_refused_by_the_senders_name(stage, change, reason, tmp_path):
    result = test_secagg.run(hostile(tmp_path, stage, change), tmp_path, rounds=1, retries=1)
    assert f"client 3: {reason}" in result.history["events"][0]
    assert result.history["clients"][0] == (5 if stage == UNMASK else 4)  # its vector was in before
    honest = test_secagg.plain(1)
    assert (in_process.weights(result) - in_process.weights(honest)).abs().max() < (1e-4 if stage == UNMASK else 1.0)


def test_shares_that_the_others_cannot_read_are_their_senders_fault(tmp_path):
    change = told(sealed=lambda old: [bytes(len(one)) for one in old])
    grid = hostile(tmp_path, SHARES, change)
    result = test_secagg.run(grid, tmp_path, rounds=1, retries=1)
    assert "client 3: the others cannot read its shares" in result.history["events"][0]
    assert result.history["clients"].tolist() == [4]


def test_one_client_cannot_have_another_refused(tmp_path):
    """Client 3 says that it cannot read the shares of client 0, and leaves; the others can."""
    grid = test_secagg.Grid(tmp_path)
    original, nodes = grid.call, {partition: node for node, partition in grid.nodes.items()}

    def call(message, context):
        at = message.content.config_records.get(RECORD_KEY_CONFIGS, {}).get(Key.STAGE)
        reply = original(message, context)
        if at == VECTORS and context.node_id == nodes[3]:
            return test_secagg.Message(test_secagg.Error(1, f"no good shares from {nodes[0]}"), reply_to=message)
        return reply

    grid.app = call
    result = test_secagg.run(grid, tmp_path, rounds=1, retries=0)
    assert result.history["clients"].tolist() == [4]
    assert result.history["events"].tolist() == ["client 3: no good shares from another; client 3: not in the sum"]


@pytest.mark.parametrize(
    "masked",
    [
        lambda old: [old[0], ndarray_to_bytes(np.random.default_rng(0).integers(0, 2**32, 25))],
        lambda old: [numbers(1), old[1]],
        lambda old: [old[0], numbers(25)],
    ],
    ids=["random", "weight", "ones"],
)
def test_a_sum_that_cannot_be_right_is_not_taken(masked, tmp_path):
    """Before, a random vector gave "13 of 5 clients clipped", a ruined model, and "finished"."""
    grid = hostile(tmp_path, VECTORS, told(masked=masked), times=1)
    with pytest.raises(DataError, match="round 1: the sum of 5 clients cannot be right: .*A client is broken"):
        test_secagg.run(grid, tmp_path, rounds=2, retries=3)
    assert sum(kind == "train" for kind, _ in grid.asked) == 20, "it is not taken twice"
    result = test_secagg.run(grid, tmp_path, rounds=2)  # by now it is mended
    assert (in_process.weights(result) - in_process.weights(test_secagg.plain(2))).abs().max() < 1e-4


@pytest.mark.parametrize("place", [0, 4, 8])
def test_a_hostile_digit_of_a_scalar_is_seen(place, tmp_path):
    """The masked vector is the change, four digits for each of seven scalars, and the two numbers beside."""

    def masked(old):
        values = bytes_to_ndarray(old[1]).copy()
        values[15 + place] = (values[15 + place] + 2**30) % 2**32
        return [old[0], ndarray_to_bytes(values)]

    grid = hostile(tmp_path, VECTORS, told(masked=masked), times=1)
    with pytest.raises(DataError, match="the sum of 5 clients cannot be right: a mean of numbers up to 8 is 8"):
        test_secagg.run(grid, tmp_path, algorithm="fedpolyak", rounds=1)


def test_no_digits_that_pass_give_a_mean_beyond_the_range():
    ranges = {"gap": (0.0, 10.0), "log": (-30.0, 30.0)}
    tolerance = 4 * 8 / secagg.STEPS
    for digit in (-8 - tolerance, -8.0, 0.0, 8.0, 8 + tolerance):
        mean = torch.tensor([0.1, *[digit] * 8, 0.0, 4.0], dtype=torch.float64)
        assert secagg.fault(mean, clients=5, limit=8.0) is None
        found = secagg.message_of(mean, torch.zeros(1).double(), 5, 8.0, ranges)
        assert all(low <= found[name].item() <= high for name, (low, high) in ranges.items())


@pytest.mark.parametrize(
    ("beside", "words"),
    [
        ([0.5, 1.0, 8.0, 4.0], None),
        ([0.5, 1.0, 1.6, 4.0], None),  # one of five
        ([0.5, 1.0, 20.8, 4.0], "13 of 5 clients would have clipped values"),
        ([0.5, 1.0, 2.0, 4.0], "1.25 of 5 clients would have clipped values"),
        ([0.5, 1.0, -1.6, 4.0], "-1 of 5 clients would have clipped values"),
        ([0.5, 1.0, 0.0, 4.1], "the mean of a number that is 4 for all is 4.1"),
        ([9.5, 1.0, 0.0, 4.0], "a mean of numbers up to 8 is 9.5"),
        ([np.nan, 1.0, 0.0, 4.0], "it is not finite"),
    ],
)
def test_what_the_sum_says_of_itself(beside, words):
    assert secagg.fault(torch.tensor([0.1, *beside], dtype=torch.float64), clients=5, limit=8.0) == words


def test_a_repetition_waits_until_nodes_are_back(tmp_path):
    """For a while nobody can be reached: before, three repetitions were over within a millisecond."""
    grid = test_secagg.Grid(tmp_path)
    pull, looks = grid.pull_messages, []

    def cut(names):
        if sum(kind == "train" for kind, _ in grid.asked) >= 20 and len(looks) < 30:
            looks.append(1)
            for name in names:
                grid._replies.pop(name, None)
            return []
        return pull(names)

    grid.pull_messages = cut
    result = test_secagg.run(grid, tmp_path, rounds=2, retries=3, deadline=2.0)
    assert result.history["clients"].tolist() == [5, 5]


def test_a_dealer_of_wrong_shares_is_told_from_a_sender():
    secrets = {owner: dict(enumerate(create_shares(bytes([owner]) * 32, 3, 5))) for owner in range(5)}
    assert disagreeing(secrets, 3) == (set(), set())
    other = create_shares(b"another secret" * 2, 3, 5)
    dealt = secrets | {2: secrets[2] | {0: other[0], 1: other[1]}}
    assert disagreeing(dealt, 3) == (set(), {2})
    sent = {owner: given | {4: given[4][:4] + bytes(len(given[4]) - 4)} for owner, given in secrets.items()}
    assert disagreeing(sent, 3) == ({4}, set())
    just_enough = {owner: dict(list(given.items())[:3]) for owner, given in sent.items()}
    assert disagreeing(just_enough, 3) == (set(), set())


def test_what_a_client_says_when_it_leaves_is_cut(tmp_path):
    grid = test_secagg.Grid(tmp_path)
    original = grid.call

    def call(message, context):
        if grid.nodes[context.node_id] == 3 and message.metadata.message_type == "train":
            return test_secagg.Message(test_secagg.Error(1, "x\nfinished: well\x1b[2J" * 10_000), reply_to=message)
        return original(message, context)

    grid.app = call
    result = test_secagg.run(grid, tmp_path, rounds=1, retries=1)
    assert result.history["events"][0].isprintable() and len(result.history["events"][0]) < 1500
