"""3 000 damaged inputs, the same ones each time: see `tests/fuzz.py`, which tries more."""

import fuzz
import pytest

INPUTS = 3_000
NAMES = ["idx", "cifar", "libsvm", "csv", "npz", "words", "absences", "checkpoint", "run folder", "spec", "answer", "scores", "introduction"]  # fmt: skip


@pytest.fixture(scope="module")
def readers(tmp_path_factory):
    return fuzz.readers(tmp_path_factory.mktemp("fuzz"))


def test_every_reader_is_tried(readers):
    assert list(readers) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_only_our_own_errors_come_out(readers, name):
    found = fuzz.attempt(readers[name], INPUTS // len(NAMES), derandomize=True)
    assert found["read"] + found["refused"] >= INPUTS // len(NAMES) // 2
    assert min(found.values()) > 0, "some inputs are read, and some are refused"


def test_memory_is_bounded():
    with fuzz.bounded_memory(2**20), pytest.raises(MemoryError):
        bytearray(2**28)
