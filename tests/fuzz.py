"""Damaged and hostile inputs for everything that fedsps reads: only its own errors come out, in bounded memory.

    python tests/fuzz.py                        100 000 inputs over all readers (make fuzz)
    python tests/fuzz.py --inputs 500 csv npz   fewer, of some readers
    python tests/fuzz.py --coverage csv         inputs that reach new lines of one reader are kept and changed further, by
                                                atheris where it is installed (pip install atheris)

Most inputs are sound ones with a few changes: bytes put in, taken out or overwritten, numbers of a header made huge,
values of a JSON file replaced. `tests/test_fuzz.py` tries 3 000 of them in the suite.
"""

import argparse
import contextlib
import io
import json
import resource
import shutil
import struct
import sys
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
import torch
from conftest import make_clients
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from safetensors.torch import save_file

import fedsps
from fedsps.core.plan import Plan
from fedsps.data.clients import ClientData
from fedsps.data.load import cifar, idx, libsvm
from fedsps.engine import setup as engine_setup
from fedsps.errors import DataError, FedspsError
from fedsps.flower import RunConfig, check, versions, wire
from fedsps.flower.membership import Membership
from fedsps.model.logistic import network_of
from fedsps.runs.checkpoint import Checkpoint, digest, fingerprint, flatten
from fedsps.runs.run import load, run
from fedsps.runs.spec import Spec

MEMORY = 512 * 2**20
"""Bytes that reading may take beyond what the process has: inputs are below 100 kB, whatever they say of themselves."""

HUGE = [b"\xff" * 4, b"\xff" * 8, b"\x7f\xff\xff\xff", struct.pack("<Q", 2**62), b"9" * 30, b"-1", b"1e999", b"\0" * 8]
NUMBERS = [0, -1, 2**31, 2**63, 10**30, 1e308, float("nan"), float("inf")]
WORDS = ["", "x", "seed", "plan", "fedsps", "digits", "0", "10%", "a/b", "\0", "€"]


class Reader(NamedTuple):
    """Something that reads, and the inputs that it is given.

    Attributes:
        inputs: sound ones among them.
        read: raises nothing but fedsps' own errors.
        sound: an input that is read without one.
    """

    inputs: SearchStrategy[Any]
    read: Callable[[Any], object]
    sound: Any


# Inputs


def edited(content: bytes, script: bytes) -> bytes:
    """The bytes after some edits, each of five bytes of the script: where, how much goes, and what comes instead."""
    data = bytearray(content)
    for start in range(0, len(script) - 4, 5):
        where, gone, kind, value = struct.unpack_from(">HBBB", script, start)
        at = where % (len(data) + 1)
        if kind % 8 == 0:
            del data[at:]
        elif kind % 8 < 4:
            data[at : at + gone % 16] = HUGE[value % len(HUGE)]
        else:
            data[at : at + kind % 3] = bytes([value] * (gone % 3))
    return bytes(data)


def changed(content: bytes) -> SearchStrategy[bytes]:
    """The bytes with up to four edits, or others altogether."""
    return st.one_of(st.binary(max_size=20).map(lambda script: edited(content, script)), st.binary(max_size=100))


def seeded(make: Callable[[Random], Any]) -> SearchStrategy[Any]:
    """What a function makes by a generator: where an input takes many draws, Hypothesis draws the seed alone."""
    return st.integers(0, 2**48).map(lambda seed: make(Random(seed)))


def some_bytes(random: Random, content: bytes) -> bytes:
    """As `changed`, by a generator; as they are in every other case."""
    return edited(content, random.randbytes(5 * random.choice([0, 0, 0, 1, 2, 4])))


def plain_value(random: Random, depth: int = 0) -> Any:
    """A value of a JSON file."""
    kind = random.randrange(8 if depth < 2 else 6)
    if kind == 6:
        return [plain_value(random, depth + 1) for _ in range(random.randrange(3))]
    if kind == 7:
        return {word: plain_value(random, depth + 1) for word in random.sample(WORDS, random.randrange(3))}
    return [None, True, random.choice(NUMBERS), random.randrange(-3, 4), random.choice(WORDS), random.random()][kind]


def changed_values(content: dict[str, Any]) -> SearchStrategy[dict[str, Any]]:
    """A JSON object with up to three of its values, at any depth, replaced, removed or added."""

    def make(random: Random) -> dict[str, Any]:
        made = json.loads(json.dumps(content))
        for _ in range(random.randrange(4)):
            place = made
            while (groups := [one for one in place.values() if isinstance(one, dict)]) and random.random() < 0.5:
                place = random.choice(groups)
            name = random.choice([*sorted(place), random.choice(WORDS)])
            if random.random() < 0.7:
                place[name] = plain_value(random)
            else:
                place.pop(name, None)
        return made

    return seeded(make)


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def archives(parts: dict[str, bytes]) -> SearchStrategy[bytes]:
    """A zip archive with changes in its members, whose checksums fit, and in the archive itself."""

    def make(random: Random) -> bytes:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", random.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])) as archive:
            for name, content in parts.items():
                if random.random() < 0.9:
                    archive.writestr(name, some_bytes(random, content))
        return some_bytes(random, file.getvalue()) if random.random() < 0.2 else file.getvalue()

    return seeded(make)


def messages(groups: dict[str, dict[str, torch.Tensor]], plain: dict[str, Any]) -> SearchStrategy[RecordDict]:
    """An answer of a client, with changes in its arrays, its facts and its scores."""

    def flat(random: Random) -> Any:
        return random.choice([random.choice(NUMBERS), random.randrange(-3, 4), random.choice(WORDS), b"x", True])

    def arrays(random: Random, tensors: dict[str, torch.Tensor]) -> ArrayRecord:
        made = {}
        for name, value in tensors.items():
            array = Array(value.numpy())
            array.data = some_bytes(random, array.data)
            if random.random() < 0.05:
                array.stype = random.choice(["torch", ""])
            if random.random() < 0.95:
                made[name if random.random() < 0.95 else "other"] = array
        return ArrayRecord(made)

    def make(random: Random) -> RecordDict:
        content = RecordDict({name: arrays(random, some) for name, some in groups.items() if random.random() < 0.95})
        facts = {name: value if random.random() < 0.8 else flat(random) for name, value in plain.items()}
        content["facts"] = ConfigRecord({name: value for name, value in facts.items() if random.random() < 0.9})
        names = ["train_loss", "test_loss", "test_samples", "test_accuracy", "other"]
        scores = {"train_loss": 0.5, "test_loss": 0.5, "test_samples": 3}
        for _ in range(random.randrange(3)):
            scores[random.choice(names)] = random.choice([0.5, 7, -1, 2**62, float("nan"), float("inf"), [0.5]])
        content["scores"] = MetricRecord(scores)
        if random.random() < 0.05:
            content["error"] = ConfigRecord({"text": flat(random)})
        return content

    return seeded(make)


# Readers


def file_reader(folder: Path, name: str, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    """A function of bytes, from one of the file that holds them."""

    def of_bytes(content: bytes) -> object:
        (folder / name).write_bytes(content)
        return read(folder / name)

    return of_bytes


def checkpoint_reader(folder: Path) -> Reader:
    """A run's saved state, and the round after it: what is accepted must be usable."""
    network = network_of(fedsps.LogisticRegression(4, 3).double())
    made = engine_setup.Setup(Plan(rounds=3), network, ClientData.of(make_clients()), fedsps.FedDecSPS())
    saver = Checkpoint(folder / "checkpoint", fingerprint(made))
    state = engine_setup.start(made)
    saver.save(state, [])
    sound = saver.path.read_bytes()
    tensors, notes = flatten(state), {"round": "0", "fingerprint": saver.fingerprint, "rows": "0"}

    def made_anew(random: Random) -> bytes:
        """A well-formed file with other tensors and notes, and mostly a digest that fits."""
        some = {name: value.clone() for name, value in tensors.items() if random.random() < 0.95}
        words = {name: value if random.random() < 0.8 else random.choice(WORDS) for name, value in notes.items()}
        save_file(some, folder / "made.safetensors", words | {"digest": digest(some, words, [])})
        return (folder / "made.safetensors").read_bytes()

    return Reader(
        st.one_of(changed(sound), seeded(made_anew)),
        file_reader(saver.folder, saver.path.name, lambda _: saver.load()),
        sound,
    )


def run_readers(folder: Path) -> dict[str, Reader]:
    """A run folder with one of its files changed; `spec` and `summary` also value by value."""
    spec = Spec.of("fedsps:cap=10", rounds=2, clients=3, samples=30, batch_size=5)
    run(spec, folder)
    files = {path.name: path.read_bytes() for path in (folder / spec.digest).iterdir()}
    place = folder / "changed"

    def read(some: dict[str, bytes]) -> object:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        for name, content in (files | some).items():
            (place / name).write_bytes(content)
        return load(place)

    def values_of(name: str) -> SearchStrategy[dict[str, bytes]]:
        return changed_values(json.loads(files[name])).map(lambda content: {name: json.dumps(content).encode()})

    one_file = st.sampled_from(sorted(files)).flatmap(
        lambda name: changed(files[name]).map(lambda content: {name: content})
    )
    return {
        "run folder": Reader(st.one_of(one_file, values_of("summary.json")), read, {}),
        "spec": Reader(changed_values(spec.json()), Spec.from_json, spec.json()),
    }


def wire_readers() -> dict[str, Reader]:
    """What a client says of itself, and what it answers."""
    network = network_of(fedsps.LogisticRegression(4, 3).double())
    made = engine_setup.Setup(Plan(), network, ClientData.of(make_clients()), fedsps.FedDecSPS())
    state = engine_setup.start(made, ledger={"rounds": torch.zeros(5)})
    (exchange,) = made.algorithm.exchanges(0)
    message, trace = check.rehearse(made, state, exchange)
    traced = {name: getattr(trace, name) for name in check.TRACE_FIELDS}
    groups = {"message": message, "buffers": {}, "trace": traced}
    sound = RecordDict({name: wire.arrays(tensors) for name, tensors in groups.items()})
    sound["facts"] = wire.facts(gradients=5)
    who = {"partition": 0, "partitions": 5, "samples": 3, "test_samples": 0} | versions.own("")

    def introduce(content: RecordDict) -> None:
        if (complaint := Membership(None, RunConfig())._introduce(7, content)) is not None:
            raise DataError(complaint)

    return {
        "answer": Reader(messages(groups, {"gradients": 5}), lambda sent: check.accept(sent, message, trace, state), sound),
        "scores": Reader(
            messages({}, {}),
            lambda sent: check.accept_scores(sent, held=3),
            RecordDict({"scores": MetricRecord({"train_loss": 0.5, "test_loss": 0.5, "test_samples": 3})}),
        ),
        "introduction": Reader(messages({}, who), introduce, RecordDict({"facts": wire.facts(**who)})),
    }  # fmt: skip


def readers(folder: Path) -> dict[str, Reader]:
    """All of them by name; files are written below the folder."""
    header = bytes([0, 0, 8, 3]) + struct.pack(">3I", 2, 3, 4)
    table = b"age,sex,target,site\n" + b"".join(b"%d,%d,%d,a%d\n" % (n, n % 2, n % 2, n % 3) for n in range(12))
    svm = b"".join(b"%+d 1:0.5 3:%d 8:1e-2\n" % (1 if n % 2 else -1, n) for n in range(8))
    parts = {"inputs": np.eye(6), "targets": np.arange(6) % 2, "clients": np.array(list("aabbcc"))}
    written = {f"{name}.npy": npy(array) for name, array in parts.items()}
    archive = io.BytesIO()
    np.savez(archive, **parts)
    words = [
        "fedsps:cap=10,smoothing=paper",
        "sps+amsgrad+polyaverage",
        "fedavg:client_stepsize=0.01/0.1",
        "lower=-1;2",
        "1e-4..1",
        "3:0/4,5..9:1",
        "20%",
    ]
    texts = st.one_of(
        st.text(max_size=30),
        st.sampled_from(words).flatmap(lambda word: changed(word.encode()).map(lambda b: b.decode("utf-8", "replace"))),
    )
    return {
        "idx": Reader(changed(header + bytes(24)), lambda content: idx(content, dimensions=3), header + bytes(24)),
        "cifar": Reader(changed(bytes(3073)), cifar, bytes(3073)),
        "libsvm": Reader(changed(svm), lambda content: libsvm(content, features=8), svm),
        "csv": Reader(
            changed(table),
            file_reader(folder, "table.csv", lambda path: fedsps.data.from_file(path, client_column="site")),
            table,
        ),
        "npz": Reader(archives(written), file_reader(folder, "own.npz", fedsps.data.from_file), archive.getvalue()),
        "words": Reader(texts, Spec.of, "fedsps:cap=10"),
        "absences": Reader(texts, lambda text: Plan(absences=text), "20%"),
        "checkpoint": checkpoint_reader(folder),
        **run_readers(folder),
        **wire_readers(),
    }  # fmt: skip


# Trying


@contextlib.contextmanager
def bounded_memory(size: int) -> Iterator[None]:
    """No more than so many bytes beyond those that the process has taken: an allocation above them fails."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def trial(reader: Reader, inputs: int, found: dict[str, int], *, derandomize: bool) -> Callable[[], None]:
    """A test of so many inputs, which counts those that were read, and those that were refused."""

    @settings(
        max_examples=inputs,
        database=None,
        deadline=None,
        derandomize=derandomize,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    @given(reader.inputs)
    def try_one(content: Any) -> None:
        try:
            reader.read(content)
            found["read"] += 1
        except FedspsError:
            found["refused"] += 1

    return try_one


def attempt(reader: Reader, inputs: int, *, derandomize: bool) -> dict[str, int]:
    """Read so many inputs; how many were read, and how many refused. Any other error is Hypothesis' to show."""
    found = {"read": 0, "refused": 0}
    try_all = trial(reader, inputs, found, derandomize=derandomize)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a library's own words about a damaged file
        reader.read(reader.sound)  # what it takes once, such as threads, is not the input's doing
        with bounded_memory(MEMORY):
            try_all()
    return found


def guided(reader: Reader, inputs: int, folder: Path) -> None:
    """Read so many inputs that atheris makes out of those that reached new lines; it ends the process itself."""
    try:
        import atheris
    except ImportError:
        sys.exit("--coverage needs atheris: pip install atheris")
    for name, module in list(sys.modules.items()):
        if name.startswith("fedsps."):
            for value in vars(module).values():
                if isinstance(value, FunctionType) and value.__module__ == name:
                    atheris.instrument_func(value)
    one = trial(reader, 1, {"read": 0, "refused": 0}, derandomize=False).hypothesis.fuzz_one_input
    options = [f"-runs={inputs}", f"-artifact_prefix={folder}/", "-timeout=60", "-rss_limit_mb=4096"]
    warnings.simplefilter("ignore")
    atheris.Setup([sys.argv[0], *options], one)
    atheris.Fuzz()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("readers", nargs="*", help="some of them; all if none is named")
    parser.add_argument("--inputs", type=int, default=100_000, help="over all of these readers (default: %(default)s)")
    parser.add_argument("--coverage", action="store_true", help="of one reader, guided by atheris")
    arguments = parser.parse_args()
    if arguments.coverage and len(arguments.readers) != 1:
        parser.error("--coverage takes one reader")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        known = readers(Path(folder))
        chosen = arguments.readers or list(known)
        if unknown := set(chosen) - set(known):
            parser.error(f"there is no reader {', '.join(sorted(unknown))}: {', '.join(known)}")
        if arguments.coverage:
            guided(known[chosen[0]], arguments.inputs, Path(folder))
        for name in chosen:
            began = time.monotonic()
            found = attempt(known[name], -(-arguments.inputs // len(chosen)), derandomize=False)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(
                f"{name:12} {found['read']:6} read, {found['refused']:6} refused, "
                f"{time.monotonic() - began:5.0f} s, the process took up to {peak:.0f} MB",
                flush=True,
            )


if __name__ == "__main__":
    sys.exit(main())
