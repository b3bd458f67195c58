"""Files found, unpacked, verified and downloaded; the downloads come from a server on this machine."""

import bz2
import gzip
import hashlib
import io
import lzma
import os
import tarfile
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fedsps.data import sources
from fedsps.errors import ConfigurationError, DataError

CONTENT = b"+1 1:0.5 3:1\n-1 2:1\n" * 500
WRAP = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


class Server:
    """Answers `path` with the next of its planned answers, the last one for ever; counts the requests."""

    def __init__(self) -> None:
        self.answers: dict[str, list[tuple[int, bytes, dict[str, str]]]] = {}
        self.requests: Counter[str] = Counter()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                planned = server.answers.get(self.path, [(404, b"", {})])
                code, body, headers = planned[min(server.requests[self.path], len(planned) - 1)]
                server.requests[self.path] += 1
                self.send_response(code)
                for name, value in ({"Content-Length": str(len(body))} | headers).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, args=[0.01], daemon=True).start()

    def serve(self, path: str, body: bytes, code: int = 200, **headers: str) -> str:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.answers.setdefault(path, []).append((code, body, named))
        return f"http://127.0.0.1:{self.http.server_port}{path}"


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.http.shutdown()
    server.http.server_close()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDSPS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr("pooch.core.time.sleep", lambda seconds: None)
    return tmp_path / "cache"


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "own"
    folder.mkdir()
    monkeypatch.setenv("FEDSPS_DATA", str(folder))
    return folder


@pytest.fixture
def nothing_local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDSPS_DATA", raising=False)


def toy(*homes: str, content: bytes = CONTENT, name: str = "toy") -> sources.File:
    return sources.File("folder", name, (hashlib.sha256(content).hexdigest(),), homes)


def everything_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("wrapping", WRAP)
@pytest.mark.parametrize("place", ["folder", "."])
def test_own_files_are_found_in_any_wrapping_and_unpacked(own: Path, wrapping: str, place: str) -> None:
    (own / place).mkdir(exist_ok=True)
    (own / place / f"toy{wrapping}").write_bytes(WRAP[wrapping](CONTENT))
    assert sources.read(toy()) == CONTENT


def test_own_files_come_before_the_cache_and_the_cache_before_a_download(
    own: Path, cache: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = toy(server.serve("/toy", CONTENT))
    monkeypatch.setitem(sources.FILES, "toys", (file,))
    assert sources.status("toys") == (sources.Status("toy", "missing"),)
    assert sources.fetch("toys") == (sources.Status("toy", "cache", cache / "folder/toy", len(CONTENT)),)
    sources.fetch("toys")
    assert server.requests["/toy"] == 1
    packed = WRAP[".gz"](CONTENT)
    (own / "toy.gz").write_bytes(packed)
    assert sources.fetch("toys") == (sources.Status("toy", "FEDSPS_DATA", own / "toy.gz", len(packed)),)
    assert server.requests["/toy"] == 1


@pytest.mark.parametrize("wrapping", WRAP)
@pytest.mark.parametrize("damage", ["cut short", "changed"])
def test_a_damaged_own_file_is_an_error_even_if_it_could_be_downloaded(
    own: Path, cache: Path, server: Server, wrapping: str, damage: str
) -> None:
    other = WRAP[wrapping](CONTENT)[:-20] if damage == "cut short" else WRAP[wrapping](CONTENT[::-1])
    (own / f"toy{wrapping}").write_bytes(other)
    with pytest.raises(DataError, match=rf"own/toy{wrapping} .*(cut short|damaged).*: replace it, or remove it"):
        sources.read(toy(server.serve("/toy", CONTENT)))
    assert not server.requests
    assert not cache.exists()


def test_a_wrong_hash_is_told_with_the_expected_one(own: Path) -> None:
    (own / "toy").write_bytes(b"other")
    with pytest.raises(DataError) as caught:
        sources.read(toy())
    assert hashlib.sha256(b"other").hexdigest() in str(caught.value)
    assert hashlib.sha256(CONTENT).hexdigest() in str(caught.value)


def test_either_of_two_hashes_will_do(own: Path) -> None:
    either = sources.File("folder", "toy", toy().sha256 + toy(content=CONTENT[:-1]).sha256, ())
    for content in (CONTENT, CONTENT[:-1]):
        (own / "toy").write_bytes(content)
        assert sources.read(either) == content


def test_a_data_folder_that_is_none_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSPS_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=r"FEDSPS_DATA=.*nowhere is not a folder"):
        sources.status("mnist")


@pytest.mark.usefixtures("nothing_local")
@pytest.mark.parametrize("wrapping", WRAP)
def test_a_download_is_kept_unpacked_and_nothing_else_is(cache: Path, server: Server, wrapping: str) -> None:
    file = toy(server.serve(f"/toy{wrapping}", WRAP[wrapping](CONTENT)))
    assert sources.read(file) == CONTENT
    assert everything_in(cache) == ["folder", "folder/toy"]
    assert (cache / "folder/toy").read_bytes() == CONTENT
    assert sources.read(file) == CONTENT
    assert server.requests[f"/toy{wrapping}"] == 1


@pytest.mark.usefixtures("nothing_local")
def test_a_gz_that_the_transport_already_unwrapped(server: Server) -> None:
    home = server.serve("/toy.gz", gzip.compress(CONTENT), Content_Encoding="gzip")
    assert sources.read(toy(home)) == CONTENT


@pytest.mark.usefixtures("nothing_local")
def test_a_damaged_cached_file_is_downloaded_again(cache: Path, server: Server) -> None:
    (cache / "folder").mkdir(parents=True)
    (cache / "folder/toy").write_bytes(CONTENT[:-1])
    assert sources.read(toy(server.serve("/toy", CONTENT))) == CONTENT
    assert (cache / "folder/toy").read_bytes() == CONTENT


@pytest.mark.usefixtures("nothing_local")
def test_the_next_home_is_tried_after_one_that_fails(server: Server) -> None:
    packed = gzip.compress(CONTENT)
    homes = (
        server.serve("/gone", b"", code=404),
        server.serve("/wrong.gz", gzip.compress(b"another file")),
        server.serve("/short.gz", packed[:-20]),
        server.serve("/page.gz", b"<html>moved</html>"),
        server.serve("/right.gz", packed),
        server.serve("/unneeded.gz", packed),
    )
    assert sources.read(toy(*homes)) == CONTENT
    assert server.requests["/right.gz"] == 1
    assert server.requests["/unneeded.gz"] == 0


@pytest.mark.usefixtures("nothing_local")
def test_when_all_homes_fail_each_is_listed_with_its_reason_and_the_cache_is_clean(cache: Path, server: Server) -> None:
    homes = (
        server.serve("/gone", b"", code=404),
        server.serve("/wrong.gz", gzip.compress(b"another file")),
        server.serve("/short.gz", gzip.compress(CONTENT)[:-20]),
        server.serve("/broken", CONTENT[:50], Content_Length=str(len(CONTENT))),
        "http://127.0.0.1:9/refused",
    )
    with pytest.raises(DataError, match=r"toy could not be downloaded.*FEDSPS_DATA") as caught:
        sources.read(toy(*homes))
    reasons = ("404", hashlib.sha256(b"another file").hexdigest(), "cut short", "IncompleteRead", "refused")
    lines = str(caught.value).splitlines()[1:]
    assert len(lines) == len(homes)
    for line, home, reason in zip(lines, homes, reasons, strict=True):
        assert home in line
        assert reason in line
    assert everything_in(cache) == []


@pytest.mark.usefixtures("nothing_local")
def test_a_server_that_fails_for_a_moment_is_asked_again(server: Server) -> None:
    home = server.serve("/toy", b"", code=503)
    server.serve("/toy", CONTENT[:10], Content_Length=str(len(CONTENT)))
    server.serve("/toy", CONTENT)
    assert sources.read(toy(home)) == CONTENT
    assert server.requests["/toy"] == 1 + sources.RETRIES == 3


@pytest.mark.usefixtures("nothing_local")
@pytest.mark.parametrize("step", ["write_bytes", "replace"])
def test_a_failure_while_storing_leaves_the_cache_clean(
    cache: Path, server: Server, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def full(self: Path, _: object) -> None:
        self.open("wb").close()
        raise OSError("No space left on device")

    monkeypatch.setattr(Path, step, full)
    with pytest.raises(DataError, match="No space left"):
        sources.read(toy(server.serve("/toy", CONTENT)))
    assert everything_in(cache) == ["folder"]


@pytest.mark.usefixtures("nothing_local")
def test_a_cache_that_cannot_be_written_is_told(cache: Path, server: Server) -> None:
    cache.write_text("a file where the folder should be")
    with pytest.raises(DataError, match=r"cannot write to the cache .*FEDSPS_CACHE"):
        sources.read(toy(server.serve("/toy", CONTENT)))


def tar(members: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


@pytest.mark.usefixtures("nothing_local")
def test_one_download_of_an_archive_gives_all_of_its_files(
    cache: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = {"../evil": b"x", "inner/one": b"1", "inner/other": b"no", "inner/two": b"22", "two": b"no"}
    archive = server.serve("/all.tar.gz", tar(members))
    one = toy(f"{archive}#inner/one", content=b"1", name="one")
    two = toy(f"{archive}#inner/two", content=b"22", name="two")
    monkeypatch.setitem(sources.FILES, "pair", (one, two))
    assert sources.contents("pair") == {"one": b"1", "two": b"22"}
    assert server.requests["/all.tar.gz"] == 1
    assert everything_in(cache) == ["folder", "folder/one", "folder/two"]


@pytest.mark.usefixtures("nothing_local")
@pytest.mark.parametrize(
    ("packed", "reason"),
    [
        (tar({"elsewhere/toy": CONTENT}), "has no member inner/toy"),
        (tar({"inner/toy": b"another"}), "damaged"),
        (tar({"inner/toy": os.urandom(99_999)})[:50_000], "cut short"),
        (b"<html>moved</html>", "cut short"),
    ],
)
def test_a_bad_archive(cache: Path, server: Server, packed: bytes, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        sources.read(toy(server.serve("/all.tar.gz", packed) + "#inner/toy"))
    assert everything_in(cache) == []


def test_verify_lists_every_damaged_file_and_downloads_nothing(
    own: Path, cache: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("good", "bad", "worse", "missing")
    monkeypatch.setitem(sources.FILES, "toys", tuple(toy(server.serve("/x", b""), name=name) for name in names))
    (own / "good").write_bytes(CONTENT)
    assert [place.where for place in sources.verify("toys")] == ["FEDSPS_DATA"] + 3 * ["missing"]
    (own / "bad").write_bytes(b"?")
    (cache / "folder").mkdir(parents=True)
    (cache / "folder/worse").write_bytes(b"?")
    with pytest.raises(DataError) as caught:
        sources.verify("toys")
    assert [line.split()[0] for line in str(caught.value).splitlines()] == [
        str(own / "bad"),
        str(cache / "folder/worse"),
    ]
    assert not server.requests


def test_names_of_data_sets() -> None:
    assert "mnist" in sources.data_sets()
    assert sources.status("digits") == (sources.Status("digits", "embedded"),)
    assert sources.verify("digits") == sources.fetch("digits") == sources.status("digits")
    for function in (sources.status, sources.fetch, sources.verify, sources.contents):
        with pytest.raises(ConfigurationError, match="unknown data set 'minst': did you mean mnist"):
            function("minst")


def test_the_table_of_files_is_sound() -> None:
    files = [file for group in sources.FILES.values() for file in group]
    assert len(files) == 18
    for file in files:
        assert all(len(digest) == 64 and int(digest, 16) for digest in file.sha256)
        assert all(home.startswith("http") and file.name in home for home in file.homes)
    hashes = [digest for file in files for digest in file.sha256]
    assert len(set(hashes)) == len(hashes) == 19


def test_the_cache_is_the_platforms_unless_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDSPS_CACHE")
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: f"/platform/{name}")
    assert sources.cache_folder() == Path("/platform/fedsps")


def test_real_phishing_with_and_without_its_final_newline(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (file,) = sources.files("phishing")
    monkeypatch.undo()
    if not os.environ.get("FEDSPS_DATA") or sources.status("phishing")[0].where != "FEDSPS_DATA":
        pytest.skip("no phishing in FEDSPS_DATA")
    content = sources.read(file)
    assert content.endswith(b"\n")
    monkeypatch.setenv("FEDSPS_DATA", str(own))
    (own / "phishing").write_bytes(content[:-1])
    assert sources.read(file) == content[:-1]
