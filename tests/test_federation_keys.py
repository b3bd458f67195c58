"""The keys of a federation: private, kept, and what TLS and Flower take."""

import os
import re
import shutil
import socket
import ssl
import stat
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from cryptography.x509.verification import PolicyBuilder, Store

from fedsps.deploy import keys as key_files
from fedsps.deploy.hosts import commands, instructions
from fedsps.errors import ConfigurationError


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def keys(tmp_path):
    return key_files.make(tmp_path / "keys", 2, ["server.example", "10.0.0.7"])


def test_private_keys_are_their_owners_alone(tmp_path):
    before = os.umask(0)  # the most open one
    try:
        keys = key_files.make(tmp_path / "keys", 2)
    finally:
        os.umask(before)
    assert stat.S_IMODE(keys.folder.stat().st_mode) == 0o700
    private = {keys.ca_key, keys.key, keys.node(0), keys.node(1)}
    secrets = {keys.server_secret, keys.secret(0), keys.secret(1)}
    assert len({path.read_bytes() for path in secrets}) == 3
    assert {path for path in keys.folder.iterdir() if stat.S_IMODE(path.stat().st_mode) == 0o600} == private | secrets
    assert all(b"PRIVATE KEY" in path.read_bytes() for path in private)
    assert not any(b"PRIVATE KEY" in path.read_bytes() for path in set(keys.folder.iterdir()) - private)


def test_a_private_key_is_private_from_its_first_byte(tmp_path, monkeypatch):
    modes = []
    link = os.link

    def look(source, target):
        modes.append((target.name, stat.S_IMODE(source.stat().st_mode)))
        link(source, target)

    monkeypatch.setattr(os, "link", look)
    monkeypatch.setattr(os, "chmod", lambda *_: pytest.fail("too late"))
    key_files.make(tmp_path / "keys", 1)
    assert ("node-0", 0o600) in modes
    assert ("server.key", 0o600) in modes


def test_the_certificate_is_for_the_names_and_signed_by_the_ca(keys):
    certificate = x509.load_pem_x509_certificate(keys.certificate.read_bytes())
    authority = x509.load_pem_x509_certificate(keys.ca_certificate.read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost", "server.example"]
    assert [str(one) for one in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "10.0.0.7"]
    builder = PolicyBuilder().store(Store([authority]))
    builder.build_server_verifier(x509.DNSName("server.example")).verify(certificate, [])
    with pytest.raises(x509.verification.VerificationError):
        builder.build_server_verifier(x509.DNSName("other.example")).verify(certificate, [])
    days = (certificate.not_valid_after_utc - datetime.now(UTC)) / timedelta(days=1)
    assert key_files.DAYS - 1 < days <= key_files.DAYS


@pytest.mark.parametrize(("trusted", "name", "works"), [(True, "localhost", True), (True, "other", False), (False, "localhost", False)])  # fmt: skip
def test_tls_with_the_files(keys, tmp_path, trusted, name, works):
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(keys.certificate, keys.key)
    authority = keys if trusted else key_files.make(tmp_path / "others", 0)
    client = ssl.create_default_context(cafile=authority.ca_certificate)
    ours, theirs = socket.socketpair()

    def serve():
        try:
            server.wrap_socket(theirs, server_side=True).close()
        except OSError:
            theirs.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        if works:
            client.wrap_socket(ours, server_hostname=name).close()
        else:
            with pytest.raises(ssl.SSLCertVerificationError):
                client.wrap_socket(ours, server_hostname=name)
    finally:
        ours.close()
        thread.join(timeout=10)


def test_node_keys_are_what_flower_reads(keys):
    register = pytest.importorskip("flwr.cli.supernode.register")
    for number in range(2):
        private = load_ssh_private_key(keys.node(number).read_bytes(), password=None)
        assert private.public_key() == load_ssh_public_key(keys.public(number).read_bytes())
        assert register.try_load_public_key(keys.public(number))
    assert keys.node(0).read_bytes() != keys.node(1).read_bytes()


def test_keys_are_kept_and_missing_ones_are_made(keys):
    before = content(keys.folder)
    key_files.make(keys.folder, 3, ["server.example"])
    after = content(keys.folder)
    assert before.items() <= after.items()
    assert after.keys() - before.keys() == {"node-2", "node-2.pub", "node-2.secret"}


def test_a_deleted_pair_is_made_anew(keys):
    before = content(keys.folder)
    for path in (keys.certificate, keys.key, keys.node(1), keys.public(1)):
        path.unlink()
    key_files.make(keys.folder, 2)
    after = content(keys.folder)
    assert {name for name in before if before[name] != after[name]} == {
        "server.crt",
        "server.key",
        "node-1",
        "node-1.pub",
    }


def test_private_keys_that_went_to_their_hosts_are_not_missed(keys):
    before = content(keys.folder)
    for path in (keys.ca_key, keys.key, keys.node(0)):
        path.unlink()
    key_files.make(keys.folder, 2)
    assert content(keys.folder).items() <= before.items()
    with pytest.raises(ConfigurationError, match=r"server.key is missing"):
        keys.check_private(2)


def break_names(keys):
    return ["another.example"]


def open_key(keys):
    keys.node(1).chmod(0o640)


def open_folder(keys):
    keys.folder.chmod(0o755)


def lose_public(keys):
    keys.public(0).unlink()


def swap(keys):
    shutil.copy(keys.public(0), keys.public(1))


def another_ca(keys):
    other = key_files.make(keys.folder.parent / "other", 0)
    shutil.copy(other.ca_certificate, keys.ca_certificate)


def another_key(keys):
    other = key_files.make(keys.folder.parent / "other", 0)
    shutil.copy(other.key, keys.key)


def garbage(keys):
    keys.certificate.write_text("nonsense")


@pytest.mark.parametrize(
    ("harm", "complaint"),
    [
        (break_names, r"server.crt is not for another.example: delete"),
        (open_key, r"node-1 is private and others can read it: chmod"),
        (open_folder, r"keys is private and others can read it: chmod"),
        (lose_public, r"node-0.pub is missing"),
        (swap, r"do not belong together"),
        (another_ca, r"server.crt is not signed by"),
        (another_key, r"server.key does not belong to"),
        (garbage, r"server.crt is no certificate"),
    ],
)
def test_files_that_do_not_fit_are_refused(keys, harm, complaint):
    names = harm(keys) or []
    with pytest.raises(ConfigurationError, match=complaint):
        key_files.make(keys.folder, 2, names)


@pytest.mark.parametrize(
    "name",
    ["", " ", "server.example:9300", "10.0.0.7:9300", "[::1]", "10.0.0", "10.0.0.256", "a..b", ".a", "a.", "-a", "a-",
     "a b", "https://a", "sérver", "*.a", "a\n"],
)  # fmt: skip
def test_what_is_no_host_is_refused_before_anything_is_made(tmp_path, name):
    with pytest.raises(ConfigurationError, match="is no host name or address: write it in ASCII, without a port"):
        key_files.make(tmp_path / "keys", 1, [name])
    assert not (tmp_path / "keys").exists()


@pytest.mark.parametrize(
    "name", ["a", "server", "server-1.Example", "my_server", "1and1.example", "10.0.0.7", "2001:db8::7"]
)
def test_hosts(tmp_path, name):
    assert key_files.make(tmp_path / "keys", 0, [name]).certificate.exists()


@pytest.mark.parametrize(("period", "name"), [("DAYS", "server.crt"), ("CA_DAYS", "ca.crt")])
def test_an_expired_certificate_is_refused(tmp_path, monkeypatch, period, name):
    monkeypatch.setattr(key_files, period, -0.01)
    with pytest.raises(ConfigurationError, match=f"{name} has expired"):
        key_files.make(tmp_path / "keys", 0)


def test_the_text_for_several_hosts(keys):
    text = instructions(keys, 2, "server.example", 9300)
    for path in keys.folder.iterdir():
        assert f"{path} " in text
    assert re.search("node-1 +secret  the host of node 1, nobody else", text)
    assert "node-1.secret  secret  the host of node 1, nobody else" in text
    assert "--superlink server.example:9300" in text
    assert str(keys.folder) not in text.partition("On the server")[2], "hosts have folders of their own"


def test_an_ipv6_server_is_in_brackets_before_its_port():
    _, server, register, node, *_ = ["\n".join(lines) for lines in commands(1, "2001:db8::7").values()]
    assert "gateway --host :: --port 9300 --superlink 127.0.0.1:9301 " in server
    assert 'address = "127.0.0.1:9301"' in register
    assert "--superlink '[2001:db8::7]:9300' " in node


def test_the_page_says_where_the_commands_are_given():
    page = (Path(__file__).parents[1] / "docs" / "flower.md").read_text().replace("`", "")
    where = next(iter(commands(2, "server.example")))
    assert "in every terminal" in where
    assert f"{where}:" in page


def test_the_page_has_the_commands_that_are_printed():
    page = Path(__file__).parents[1] / "docs" / "flower.md"
    text = page.read_text().replace(" \\\n  ", " ")
    for where, lines in commands(2, "server.example").items():
        if where != "On the host of node 1":
            assert all(line in text for line in lines), where
