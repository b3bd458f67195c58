"""Where the data sets' files come from: `$FEDSPS_DATA`, the cache, or their public homes.

A file is known by the sha256 of its unpacked content, and no content is used before its hash was compared. A
damaged file in `$FEDSPS_DATA` is an error, since it is the user's own; one in the cache is downloaded again.

A place is searched in this order: `$FEDSPS_DATA/FOLDER/NAME`, `$FEDSPS_DATA/NAME` (both also with .gz, .bz2 or .xz),
then `CACHE/FOLDER/NAME`. The cache holds unpacked files only.
"""

import bz2
import gzip
import hashlib
import lzma
import os
import sys
import tarfile
import zlib
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any
from urllib.parse import urldefrag

import platformdirs

from fedsps.core.files import replace_file
from fedsps.errors import DataError, unknown

RETRIES = 2
WRAPPINGS = ("", ".gz", ".bz2", ".xz")
_OPENERS: dict[bytes, Any] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
}
_UNREADABLE = (OSError, EOFError, zlib.error, lzma.LZMAError, tarfile.TarError)


@dataclass(frozen=True)
class File:
    """One file of a data set: the hashes its unpacked content may have, and its homes in the order of trial.

    A home is a URL; a part after `#` names the member of a tar archive.

    Attributes:
        folder: the folder of the file in the cache and in `$FEDSPS_DATA`.
        name: of the unpacked file.
        sha256: hashes of its content in hex; more than one where public copies differ.
        homes: where it can be downloaded; a mirror is tried when those before it failed.
    """

    folder: str
    name: str
    sha256: tuple[str, ...]
    homes: tuple[str, ...]


@dataclass(frozen=True)
class Status:
    """Where a file is now: "FEDSPS_DATA", "cache", "embedded" (comes with scikit-learn) or "missing".

    Attributes:
        name: of the file, unpacked; of the data set if it is embedded.
        where: one of the four words above.
        path: where it lies on this machine, if it does.
        size: in bytes as it lies there, packed or not.
    """

    name: str
    where: str
    path: Path | None = None
    size: int | None = None


def _mnist(name: str, sha256: str) -> File:
    """A file of MNIST with its original home and two mirrors."""
    folders = (
        "http://yann.lecun.com/exdb/mnist",
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        "https://storage.googleapis.com/cvdf-datasets/mnist",
    )
    return File("mnist", name, (sha256,), tuple(f"{folder}/{name}.gz" for folder in folders))


def _cifar10(name: str, sha256: str) -> File:
    """A file of CIFAR-10, which is published as members of one archive."""
    archive = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
    return File("cifar10", name, (sha256,), (f"{archive}#cifar-10-batches-bin/{name}",))


def _libsvm(published: str, *sha256: str) -> File:
    """A file of the LIBSVM page; where it is published packed, its name here is the unpacked one."""
    folder = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary"
    return File("libsvm", published.removesuffix(".bz2"), sha256, (f"{folder}/{published}",))


FILES: dict[str, tuple[File, ...]] = {
    "mnist": (
        _mnist("train-images-idx3-ubyte", "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
        _mnist("train-labels-idx1-ubyte", "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
        _mnist("t10k-images-idx3-ubyte", "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
        _mnist("t10k-labels-idx1-ubyte", "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
    ),
    "cifar10": (
        _cifar10("data_batch_1.bin", "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
        _cifar10("data_batch_2.bin", "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
        _cifar10("data_batch_3.bin", "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
        _cifar10("data_batch_4.bin", "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
        _cifar10("data_batch_5.bin", "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
        _cifar10("test_batch.bin", "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
    ),
    "w8a": (
        _libsvm("w8a", "6a9fa8fd5f524303240a5db07d4b3d4a51e8b7b4b20a914105d8e3e8c81640f2"),
        _libsvm("w8a.t", "618929ecb01bebb841daec4cae4aa07b97832d29b08652452775598929547fde"),
    ),
    "a9a": (
        _libsvm("a9a", "f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906"),
        _libsvm("a9a.t", "1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9"),
    ),
    "mushrooms": (_libsvm("mushrooms", "f39a4eb628dc61a7d43760815b061c9e497aa728ce1ad8bde57a09ef6043b538"),),
    "ijcnn1": (
        _libsvm("ijcnn1.bz2", "16506cad788cf7c9607454150ed1994788204bac2ff4c9cb3b320036b6950d3f"),
        _libsvm("ijcnn1.t.bz2", "e7b0bbd518641980dc322746c6bc59d019d3153934e6258e48f9d8cfae2c4bb8"),
    ),
    "phishing": (
        _libsvm(  # public copies differ in the final newline: with it, without it
            "phishing",
            "0cf66ef36604c393da9359b2e5d894a2df8aee31fd184633cefa138add2ef08a",
            "0b0ca40e17bc95e909bfa587c408bf69904571ace01dea26e34cafc464f2da93",
        ),
    ),
    "digits": (),
}


def data_sets() -> tuple[str, ...]:
    """The names of the data sets that `load` knows.

    >>> data_sets()
    ('mnist', 'cifar10', 'w8a', 'a9a', 'mushrooms', 'ijcnn1', 'phishing', 'digits')
    """
    return tuple(FILES)


def files(data_set: str) -> tuple[File, ...]:
    """The files of a data set, training part first; none if it is embedded.

    >>> [file.name for file in files("ijcnn1")]
    ['ijcnn1', 'ijcnn1.t']
    """
    if data_set not in FILES:
        raise unknown("data set", data_set, FILES)
    return FILES[data_set]


def status(data_set: str) -> tuple[Status, ...]:
    """Where each file of a data set is now, without reading or downloading anything.

    >>> status("digits")
    (Status(name='digits', where='embedded', path=None, size=None),)
    """
    return tuple(_find(file) for file in files(data_set)) or (Status(data_set, "embedded"),)


def fetch(data_set: str) -> tuple[Status, ...]:
    """Download whatever is missing or damaged in the cache, check the rest, and tell where everything is.

    Raises:
        DataError: no home of a file could be reached, a file in `$FEDSPS_DATA` is damaged, or the cache is read-only.
    """
    contents(data_set)
    return status(data_set)


def verify(data_set: str) -> tuple[Status, ...]:
    """Check every file that is there, download nothing; one error lists all the damaged ones.

    Missing files are no error: the status that is returned says that they are missing.
    """
    problems = []
    for file in files(data_set):
        path = _find(file).path
        try:
            if path is not None:
                _checked(file, path)
        except DataError as error:
            problems.append(str(error))
    if problems:
        raise DataError("\n".join(problems))
    return status(data_set)


def contents(data_set: str) -> dict[str, bytes]:
    """The unpacked, verified content of each file of a data set, by file name.

    Local files are unpacked in threads (xz takes seconds); downloads stay in this one, so Ctrl-C ends them. What an
    archive brought along for a later file is in the cache by then, and is read from there.
    """
    wanted = files(data_set)
    with ThreadPoolExecutor() as pool:
        local = list(pool.map(_local, wanted))
    return {file.name: read(file) if content is None else content for file, content in zip(wanted, local, strict=True)}


def read(file: File) -> bytes:
    """The unpacked, verified content of a file; downloaded when this machine does not have it."""
    content = _local(file)
    return _download(file) if content is None else content


def cache_folder() -> Path:
    """Where downloads are kept: `$FEDSPS_CACHE`, or the platform's cache folder."""
    return Path(os.environ.get("FEDSPS_CACHE") or platformdirs.user_cache_dir("fedsps")).expanduser()


def _find(file: File) -> Status:
    """Where a file is, the user's folder before the cache; its content is not looked at."""
    names = [file.name + wrapping for wrapping in WRAPPINGS]
    places = [("cache", cache_folder() / file.folder, names[:1])]
    if given := os.environ.get("FEDSPS_DATA"):
        given_folder = Path(given).expanduser()
        if not given_folder.is_dir():
            raise DataError(f"FEDSPS_DATA={given} is not a folder: correct it, or unset it to have the data downloaded")
        places = [("FEDSPS_DATA", given_folder / file.folder, names), ("FEDSPS_DATA", given_folder, names), *places]
    for where, folder, candidates in places:
        for path in (folder / name for name in candidates):
            if path.is_file():
                return Status(file.name, where, path, path.stat().st_size)
    return Status(file.name, "missing")


def _local(file: File) -> bytes | None:
    """The verified content of a file on this machine; None if it must be downloaded.

    A damaged file in the cache counts as missing; one in the user's folder is an error.
    """
    location = _find(file)
    try:
        return None if location.path is None else _checked(file, location.path)
    except DataError:
        if location.where != "cache":
            raise
        return None


def _checked(file: File, path: Path) -> bytes:
    """The unpacked content of a path, once its hash was compared; the error names the path and the remedy."""
    try:
        with _opened(path) as stream:
            content = stream.read()
        _check(file, content)
    except DataError as error:
        raise DataError(f"{path} {error}: replace it, or remove it to have it downloaded") from error
    return content


def _check(file: File, content: bytes) -> None:
    """Refuse content whose sha256 is none that the file may have."""
    digest = hashlib.sha256(content).hexdigest()
    if digest not in file.sha256:
        raise DataError(f"is damaged (sha256 of its content {digest}, expected {' or '.join(file.sha256)})")


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """The unpacked stream of a file that may be packed.

    The first bytes tell the wrapping, not the name: a server may unwrap on the way. Whatever goes wrong while it is
    read becomes a `DataError`, since a file that was cut short fails in the middle.
    """
    try:
        with path.open("rb") as packed:
            head = packed.read(6)
            packed.seek(0)
            opener = next((opener for magic, opener in _OPENERS.items() if head.startswith(magic)), None)
            if opener is None:
                yield packed
            else:
                with opener(packed, "rb") as stream:
                    yield stream
    except _UNREADABLE as error:
        raise DataError(f"cannot be read, it may be cut short ({error})") from error


def _members(path: Path, names: Collection[str]) -> Iterator[tuple[str, bytes]]:
    """The named members of a tar archive, one at a time; "" is the whole of a file that is no archive."""
    with _opened(path) as stream:
        if "" in names:
            yield "", stream.read()
            return
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for entry in archive:
                member = archive.extractfile(entry) if entry.name in names else None
                if member is not None:
                    yield entry.name, member.read()


def _download(file: File) -> bytes:
    """Download from the first home that has the file; an error lists what went wrong at each."""
    try:
        cache_folder().mkdir(parents=True, exist_ok=True)
        scratch = TemporaryDirectory(prefix=".download-", dir=cache_folder())
    except OSError as error:
        raise DataError(f"cannot write to the cache ({error}): set FEDSPS_CACHE to a folder of your own") from error
    problems = []
    with scratch as place:
        for number, home in enumerate(file.homes):
            try:
                return _download_from(home, file, Path(place) / str(number))
            except (DataError, OSError) as error:
                problems.append(f"\n  {home}: {error}")
    remedy = "try again later, or put it into the folder that FEDSPS_DATA names"
    raise DataError(f"{file.name} could not be downloaded: {remedy}{''.join(problems)}")


def _download_from(home: str, file: File, scratch: Path) -> bytes:
    """Download from one home; all files of ours that came along (in an archive) go to the cache.

    Args:
        home: the URL, with `#member` for an archive.
        file: the one that is wanted.
        scratch: a folder on the disk of the cache, which is removed afterwards.

    Returns:
        The unpacked, verified content of the wanted file.
    """
    url, wanted = urldefrag(home)
    import pooch

    request = pooch.create(scratch, "", registry={"file": None}, urls={"file": url}, retry_if_failed=RETRIES)
    downloader = pooch.HTTPDownloader(progressbar=sys.stderr.isatty(), chunk_size=1 << 16)
    path = Path(request.fetch("file", downloader=downloader))

    members = {wanted: file}
    for other in (other for group in FILES.values() for other in group):
        members |= {urldefrag(home).fragment: other for home in other.homes if urldefrag(home).url == url}
    content = None
    for name, unpacked in _members(path, members):
        _check(members[name], unpacked)
        _store(members[name], unpacked)
        if name == wanted:
            content = unpacked
    if content is None:
        raise DataError(f"has no member {wanted}")
    return content


def _store(file: File, content: bytes) -> None:
    """Into the cache in one step, so that another process never sees half a file."""
    target = cache_folder() / file.folder / file.name
    target.parent.mkdir(exist_ok=True)
    replace_file(target, lambda partial: partial.write_bytes(content))
