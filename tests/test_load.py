"""Data sets read from tiny files with known numbers, from the real files where they are, and from users' files."""

import bz2
import gzip
import hashlib
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsps.data import from_file, load, sources
from fedsps.data.load import cifar, idx
from fedsps.errors import ConfigurationError, DataError

Install = Callable[[str, dict[str, bytes]], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts files of the test's own in the place of a data set."""
    monkeypatch.setenv("FEDSPS_DATA", str(tmp_path))

    def put(name: str, contents: dict[str, bytes]) -> None:
        files = []
        for file, content in contents.items():
            files.append(sources.File(name, file, (hashlib.sha256(content).hexdigest(),), ()))
            (tmp_path / f"{file}.bz2").write_bytes(bz2.compress(content))
        monkeypatch.setitem(sources.FILES, name, tuple(files))

    return put


def idx_file(shape: tuple[int, ...], data: bytes) -> bytes:
    return bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + data


def test_idx_is_big_endian_and_row_major() -> None:
    assert idx(idx_file((2, 1, 3), bytes([1, 2, 3, 4, 5, 255])), 3).tolist() == [[[1, 2, 3]], [[4, 5, 255]]]
    assert idx(idx_file((300,), bytes(300)), 1).shape == (300,)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "begins with"),
        (idx_file((2,), b"ab"), "begins with 00 00 08 01"),
        (b"\0\0\x0d\x03" + bytes(12), "begins with 00 00 0d 03"),
        (idx_file((2, 1, 1), b"ab")[:10], "not an IDX file"),
        (idx_file((2, 1, 1), b"a"), r"says \[2, 1, 1\], but 1 bytes follow"),
        (idx_file((2, 1, 1), b"abc"), r"says \[2, 1, 1\], but 3 bytes follow"),
        (idx_file((2**31, 2**31, 4), b""), "but 0 bytes follow"),
    ],
)
def test_idx_checks_its_header(content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        idx(content, 3)


def tiny_mnist() -> dict[str, bytes]:
    return {
        "train-images-idx3-ubyte": idx_file((2, 2, 2), bytes([0, 51, 102, 255, 5, 6, 7, 8])),
        "train-labels-idx1-ubyte": idx_file((2,), bytes([7, 3])),
        "t10k-images-idx3-ubyte": idx_file((1, 2, 2), bytes([255, 0, 0, 0])),
        "t10k-labels-idx1-ubyte": idx_file((1,), bytes([9])),
    }


def test_mnist_from_tiny_files(install: Install) -> None:
    install("mnist", tiny_mnist())
    data = load("mnist")
    assert (data.name, data.classes, data.scaling, data.clients) == ("mnist", 10, "unit", None)
    assert data.inputs.shape == (2, 1, 2, 2)
    assert (data.inputs.dtype, data.targets.dtype) == (np.float32, np.int64)
    np.testing.assert_allclose(data.inputs[0, 0], [[0, 0.2], [0.4, 1]])
    assert (data.targets.tolist(), data.test_targets.tolist()) == ([7, 3], [9])
    assert data.test_inputs.tolist() == [[[[1, 0], [0, 0]]]]
    standard = load("mnist", "standard")
    assert standard.scaling == "standard"
    np.testing.assert_allclose(standard.inputs[0, 0, 0], [-0.1307 / 0.3081, (0.2 - 0.1307) / 0.3081], rtol=1e-5)
    np.testing.assert_allclose(standard.test_inputs[0, 0, 0, 0], (1 - 0.1307) / 0.3081, rtol=1e-5)


def cifar_record(label: int, red: int, green: int, blue: int) -> bytes:
    return bytes([label]) + bytes([red]) * 1024 + bytes([green]) * 1024 + bytes([blue]) * 1024


def test_cifar10_from_tiny_files(install: Install) -> None:
    batches = {f"data_batch_{n}.bin": cifar_record(n, 51 * n, 0, 255) for n in range(1, 6)}
    install("cifar10", batches | {"test_batch.bin": cifar_record(9, 0, 51, 0)})
    data = load("cifar10", "unit")
    assert data.inputs.shape == (5, 3, 32, 32)
    assert data.targets.tolist() == [1, 2, 3, 4, 5]
    np.testing.assert_allclose(data.inputs[:, 0, 5, 7], [0.2, 0.4, 0.6, 0.8, 1])
    np.testing.assert_allclose(data.test_inputs[0, :, 0, 0], [0, 0.2, 0])
    standard = load("cifar10")
    assert (standard.scaling, standard.test_targets.tolist()) == ("standard", [9])
    expected = [(0.2 - 0.4914) / 0.2470, -0.4822 / 0.2435, (1 - 0.4465) / 0.2616]
    np.testing.assert_allclose(standard.inputs[0, :, 31, 31], expected, rtol=1e-5)


def test_cifar_rows_run_left_to_right() -> None:
    images, labels = cifar(bytes([4]) + bytes(range(256)) * 12)
    assert labels.tolist() == [4]
    assert images[0, 1, 2, 3] == (1024 + 2 * 32 + 3) % 256
    with pytest.raises(DataError, match="3073 bytes, and 3072 is no multiple"):
        cifar(bytes(3072))


def test_libsvm_with_a_test_file(install: Install) -> None:
    install("ijcnn1", {"ijcnn1": b"-1 1:0.5 22:2\n+1 2:-1\n-1 3:1\n", "ijcnn1.t": b"-1 1:4.5\n-1 22:1\n"})
    data = load("ijcnn1")
    assert (data.classes, data.scaling) == (2, "published")
    assert (data.inputs.shape, data.test_inputs.shape) == ((3, 22), (2, 22))
    assert (data.inputs[0, 0], data.inputs[0, 21], data.inputs[1, 1], data.inputs.sum()) == (0.5, 2, -1, 2.5)
    assert (data.inputs.dtype, data.targets.dtype) == (np.float32, np.int64)
    assert (data.targets.tolist(), data.test_targets.tolist()) == ([0, 1, 0], [0, 0])
    standard = load("ijcnn1", "standard")  # feature 1 is 0.5, 0, 0: mean 1/6, standard deviation sqrt(1/18)
    expected = [(0.5 - 1 / 6) * 18**0.5, -1 / 6 * 18**0.5, -1 / 6 * 18**0.5]
    np.testing.assert_allclose(standard.inputs[:, 0], expected, rtol=1e-5)
    np.testing.assert_allclose(standard.test_inputs[0, 0], (4.5 - 1 / 6) * 18**0.5, rtol=1e-5)
    assert standard.inputs[:, 3].tolist() == [0, 0, 0], "a constant feature is 0, not NaN"


def test_libsvm_without_a_test_file_holds_out_a_fifth(install: Install) -> None:
    install("mushrooms", {"mushrooms": b"".join(b"%d 1:%d\n" % (1 + row % 2, row) for row in range(1, 26))})
    data = load("mushrooms")
    assert (len(data.inputs), len(data.test_inputs)) == (20, 5)
    numbers = np.concatenate([data.inputs[:, 0], data.test_inputs[:, 0]])
    assert sorted(numbers.tolist()) == list(range(1, 26))
    np.testing.assert_array_equal(data.targets, data.inputs[:, 0] % 2)
    np.testing.assert_array_equal(data.test_targets, data.test_inputs[:, 0] % 2)
    assert data.test_inputs[:, 0].tolist() == load("mushrooms").test_inputs[:, 0].tolist()
    assert data.test_inputs[:, 0].tolist() != [1, 2, 3, 4, 5]


def test_digits_are_embedded() -> None:
    data = load("digits")
    assert (data.inputs.shape, data.test_inputs.shape, data.classes) == ((1438, 64), (359, 64), 10)
    assert (data.inputs.min(), data.inputs.max(), data.scaling) == (0, 1, "unit")
    standard = load("digits", "standard").inputs
    np.testing.assert_allclose(standard.mean(0), 0, atol=1e-5)
    assert set(standard.std(0).round(3).tolist()) == {0, 1}


def test_every_data_set_has_a_source_and_a_loader() -> None:
    for name in sources.data_sets():
        with pytest.raises(ConfigurationError, match=rf"scaling 'huge' is not for {name}: use \w+( or \w+)*$"):
            load(name, "huge")
    with pytest.raises(ConfigurationError, match="unknown data set 'cifar': did you mean cifar10"):
        load("cifar")
    with pytest.raises(ConfigurationError, match="'unit' is not for w8a: use published or standard"):
        load("w8a", "unit")


REAL = {  # samples, test samples, shape, size of class 1 in both parts (from the published descriptions)
    "mnist": (60_000, 10_000, (1, 28, 28), 6742, 1135),
    "cifar10": (50_000, 10_000, (3, 32, 32), 5000, 1000),
    "w8a": (49_749, 14_951, (300,), 1479, 454),
    "a9a": (32_561, 16_281, (123,), 7841, 3846),
    "ijcnn1": (49_990, 91_701, (22,), 4853, 8712),
    "mushrooms": (6_500, 1_624, (112,), None, 4208),
    "phishing": (8_844, 2_211, (68,), None, 6157),
}


@pytest.mark.parametrize("name", REAL)
def test_real_files(name: str) -> None:
    if not os.environ.get("FEDSPS_DATA") or {place.where for place in sources.status(name)} != {"FEDSPS_DATA"}:
        pytest.skip(f"no {name} in FEDSPS_DATA")
    samples, tests, shape, ones, test_ones = REAL[name]
    data = load(name)
    assert (data.inputs.shape, data.test_inputs.shape) == ((samples, *shape), (tests, *shape))
    assert (len(data.targets), len(data.test_targets)) == (samples, tests)
    assert np.isfinite(data.inputs).all()
    assert np.unique(data.targets).tolist() == np.unique(data.test_targets).tolist() == list(range(data.classes))
    counted = (data.targets == 1).sum(), (data.test_targets == 1).sum()
    assert counted == (ones, test_ones) if ones else sum(counted) == test_ones
    if name == "mnist":
        assert data.targets[:5].tolist() == [5, 0, 4, 1, 9]
        assert data.inputs.mean() == pytest.approx(0.1307, abs=1e-4)
    if name == "cifar10":
        assert data.targets[:5].tolist() == [6, 9, 9, 4, 1]
        np.testing.assert_allclose(data.inputs.mean((0, 2, 3)), 0, atol=1e-3)
        np.testing.assert_allclose(data.inputs.std((0, 2, 3)), 1, atol=1e-3)


def npz(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "mine.npz", **arrays)
    return folder / "mine.npz"


def csv(folder: Path, text: str) -> Path:
    (folder / "mine.csv").write_text(text)
    return folder / "mine.csv"


def test_npz_with_all_its_arrays(tmp_path: Path) -> None:
    path = npz(
        tmp_path,
        inputs=np.arange(12).reshape(3, 2, 2),
        targets=[4, 9, 4],
        clients=["b", "a", "b"],
        test_inputs=np.ones((2, 2, 2)),
        test_targets=[9, 6],
    )
    data = from_file(path)
    assert (data.name, data.classes, data.scaling) == ("mine", 3, "published")
    assert (data.inputs.dtype, data.targets.dtype) == (np.float32, np.int64)
    assert data.inputs[1].tolist() == [[4, 5], [6, 7]]
    assert (data.targets.tolist(), data.test_targets.tolist()) == ([0, 2, 0], [2, 1])
    assert data.test_inputs.shape == (2, 2, 2)
    assert data.clients is not None
    assert data.clients.tolist() == ["b", "a", "b"]


def test_npz_without_a_test_part_holds_out_a_fifth(tmp_path: Path) -> None:
    data = from_file(str(npz(tmp_path, inputs=np.arange(40).reshape(20, 2), targets=np.arange(20) % 2)))
    assert (len(data.inputs), len(data.test_inputs), data.clients) == (16, 4, None)
    assert sorted([*data.inputs[:, 0], *data.test_inputs[:, 0]]) == list(range(0, 40, 2))
    np.testing.assert_array_equal(data.targets, data.inputs[:, 0] // 2 % 2)


def test_a_fifth_of_each_client_is_held_out_and_a_single_sample_stays(tmp_path: Path) -> None:
    clients = np.repeat(["one", "two", "ten"], [1, 2, 10])
    order = np.random.default_rng(0).permutation(13)
    data = from_file(npz(tmp_path, inputs=order[:, None], targets=order % 2, clients=clients[order]))
    assert data.clients is not None
    kept = {str(name): int((data.clients == name).sum()) for name in np.unique(data.clients)}
    assert kept == {"one": 1, "two": 1, "ten": 8}
    assert len(data.test_inputs) == 3
    assert data.clients.tolist() == clients[data.inputs[:, 0].astype(int)].tolist()


@pytest.mark.parametrize(
    ("targets", "expected", "classes"),
    [
        ([0, 2, 1], [0, 2, 1], 3),
        ([-1, 1, -1], [0, 1, 0], 2),
        ([10, 30, 20], [0, 2, 1], 3),
        ([1.0, 0.0, 1.0], [1, 0, 1], 2),
        (["cat", "dog", "ant"], [1, 2, 0], 3),
        ([True, False, True], [1, 0, 1], 2),
        ([0.5, 2.0, -1.0], [0.5, 2.0, -1.0], 0),
    ],
)
def test_targets_become_classes_unless_they_are_fractions(
    tmp_path: Path, targets: list[Any], expected: list[Any], classes: int
) -> None:
    part = {"inputs": np.ones((3, 1)), "targets": targets}
    data = from_file(npz(tmp_path, **part, test_inputs=part["inputs"], test_targets=targets))
    assert (data.targets.tolist(), data.test_targets.tolist(), data.classes) == (expected, expected, classes)
    assert data.targets.dtype == (np.float32 if classes == 0 else np.int64)


GOOD: dict[str, Any] = {"inputs": np.ones((4, 2)), "targets": [0, 1, 0, 1]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"inputs": None}, "has no array 'inputs', only targets: add it, or rename one"),
        ({"targets": None}, "has no array 'targets', only inputs"),
        ({"test_inputs": np.ones((1, 2))}, "has no array 'test_targets'"),
        ({"test_targets": [1]}, "has no array 'test_inputs'"),
        ({"test_inputs": np.ones((1, 3)), "test_targets": [1]}, r"shape \(3,\) in 'test_inputs', \(2,\) in 'inputs'"),
        ({"test_inputs": np.ones((1, 2)), "test_targets": [1, 0]}, "'test_targets' has shape .* 1 'test_inputs'"),
        ({"inputs": np.ones(4)}, r"'inputs' has shape \(4,\)"),
        ({"inputs": np.ones((0, 2)), "targets": []}, r"'inputs' has shape \(0, 2\)"),
        ({"inputs": np.ones((3, 2))}, r"'targets' has shape \(4,\): give one for each of the 3 'inputs'"),
        ({"targets": [[0], [1], [0], [1]]}, r"'targets' has shape \(4, 1\)"),
        ({"clients": [1, 2]}, r"'clients' has shape \(2,\): give one id for each"),
        ({"clients": [1, 2, np.nan, 3]}, "'clients' has 1 missing or infinite values, the first in sample 2"),
        ({"inputs": [[1, 2], [3, np.inf], [4, 5], [6, np.nan]]}, "'inputs' has 2 missing .* first in sample 1"),
        ({"inputs": np.full((4, 2), 1e300)}, "'inputs' has 8 missing or infinite"),
        ({"inputs": np.full((4, 2), "a")}, "array 'inputs' holds <U1, not numbers"),
        ({"targets": [0.5, np.nan, 1, 2]}, "the target has 1 missing or infinite values, the first in sample 1"),
        ({"targets": np.ones(4, dtype=complex)}, "the target holds complex128"),
        ({"targets": np.array([{}] * 4, dtype=object)}, "no .npz of plain arrays"),
    ],
)
def test_a_bad_npz_is_refused_by_name(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    arrays = {name: array for name, array in (GOOD | change).items() if array is not None}
    with pytest.raises(DataError, match=message):
        from_file(npz(tmp_path, **arrays))


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 no more", gzip.compress(b"x", mtime=0)])
def test_a_file_that_is_no_npz(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "mine.npz").write_bytes(content)
    with pytest.raises(DataError, match=r"no .npz of plain arrays .*: write it with numpy.savez"):
        from_file(tmp_path / "mine.npz")


def test_an_npy_called_npz_and_a_damaged_npz(tmp_path: Path) -> None:
    np.save(tmp_path / "array.npy", np.ones(3))
    (tmp_path / "array.npy").rename(tmp_path / "array.npz")
    with pytest.raises(DataError, match=r"no .npz of plain arrays"):
        from_file(tmp_path / "array.npz")
    path = npz(tmp_path, **GOOD)
    content = bytearray(path.read_bytes())
    content[140] ^= 255
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"no .npz of plain arrays"):
        from_file(path)


def test_csv_target_and_client_columns(tmp_path: Path) -> None:
    rows = "".join(f"{row},{'AB'[row % 2]},{['yes', 'no'][row % 2]},{row / 2}\n" for row in range(10))
    path = csv(tmp_path, "x,site,target,y\n" + rows)
    data = from_file(path, client_column="site", raw=True)
    assert (data.inputs.shape, data.test_inputs.shape, data.classes) == ((8, 2), (2, 2), 2)
    np.testing.assert_array_equal(data.inputs[:, 1], data.inputs[:, 0] / 2)
    np.testing.assert_array_equal(data.targets, 1 - data.inputs[:, 0] % 2)  # "no" < "yes"
    assert data.clients is not None
    assert data.clients.tolist() == ["AB"[int(x) % 2] for x in data.inputs[:, 0]]


def test_csv_target_is_named_or_last(tmp_path: Path) -> None:
    text = "a,b,c,site\n1,0,0.5,3\n2,1,1.5,3\n3,0,2.5,3\n4,1,3.5,3\n5,0,4.5,3\n"
    last = from_file(csv(tmp_path, text), client_column="site", raw=True)
    assert (last.classes, last.inputs.shape, last.targets.dtype) == (0, (4, 2), np.float32)
    named = from_file(csv(tmp_path, text), target_column="b", raw=True)
    assert (named.classes, named.inputs.shape, named.clients) == (2, (4, 3), None)


@pytest.mark.parametrize(
    ("text", "client", "target", "message"),
    [
        ("", None, None, "cannot be read .*: write a header"),
        ("a,b\n", None, None, "has no samples"),
        ("a,b\n1,2\n3,4,5\n", None, None, "cannot be read"),
        ("a,b\n0,2,3\n1,5,6\n", None, None, "cannot be read .*Length of header"),
        ("a,b\n1,0\n", "c", None, "unknown column 'c': known: a, b"),
        ("hospital,x,y\n1,0,1\n", "hopsital", None, "unknown column 'hopsital': did you mean hospital"),
        ("label,x\n1,0\n", None, "lable", "unknown column 'lable': did you mean label"),
        ("a,b,c\nred,,0\nblue,5,1\n", None, None, "column 'a' holds words; column 'b' has 1 missing .*: leave raw out"),
        ("a,b\n1,0\n,1\n", None, None, "column 'a' has 1 missing .* first in sample 1"),
        ("a,b\n1,0\ninf,1\n", None, None, "column 'a' has 1 missing or infinite"),
        ("a,b\n1,\n2,\n", None, None, "column 'b' is empty"),
        ("a,b,c\n1,,0\n2,,1\n", "b", None, "column 'b' is empty"),
        ("a,b\n1,0\n", "a", None, "besides target 'b' and client 'a' it needs input columns"),
        ("a\n1\n", None, None, "besides target 'a' and client None"),
        ("a\n1\n", "a", None, "it needs input columns"),
        ("a,b\n1,0\n", "a", "a", "besides target 'a' and client 'a'"),
    ],
)
def test_a_bad_csv_is_refused_by_column(
    tmp_path: Path, text: str, client: str | None, target: str | None, message: str
) -> None:
    with pytest.raises(DataError, match=message) as caught:
        from_file(csv(tmp_path, text), client, target, raw=True)
    assert "mine.csv" in str(caught.value)


def test_files_that_cannot_be_read_at_all(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data.xlsx: only .csv, .tsv, .txt, .parquet, .feather and .npz can be read"):
        (tmp_path / "data.xlsx").touch()
        from_file(tmp_path / "data.xlsx")
    with pytest.raises(DataError, match=r"data.csv: there is no such file"):
        from_file(tmp_path / "data.csv")
    with pytest.raises(ConfigurationError, match=r"columns are for tables"):
        from_file(npz(tmp_path, **GOOD), client_column="site")
    (tmp_path / "binary.csv").write_bytes(b"a,b\n\x00\x01,1\n")
    with pytest.raises(DataError, match=r"binary.csv is no text"):
        from_file(tmp_path / "binary.csv")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(DataError, match=r"bad.parquet cannot be read"):
        from_file(tmp_path / "bad.parquet")
