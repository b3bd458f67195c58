"""The files by which a federation trusts itself: a CA, the server's certificate, a key pair for each node.

What is there is kept and never overwritten: delete both halves of a pair to have it made anew. Private keys are created
readable by their owner only.

    ca.crt, ca.key           the CA, which signs the server's certificate and nothing else
    server.crt, server.key   TLS: nodes and commands know the server by them
    node-0.pub, node-0       the server knows node 0 by them
    server.secret, node-0.secret   by which the two processes of the server, or of a node, know each other

All keys are on the curve P-384.
"""

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from secrets import token_hex

from fedsps.core.files import create_file
from fedsps.errors import ConfigurationError

try:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.hashes import SHA384
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
        load_pem_private_key,
        load_ssh_private_key,
        load_ssh_public_key,
    )
except ImportError as error:
    raise ConfigurationError("a federation needs Flower: pip install 'fedsps[flower]'") from error

DAYS = 825  # how long the server's certificate is valid
CA_DAYS = 3650
HOST_NAME = re.compile(r"(?![\d.]*$)((?!-)[\w-]+(?<!-)\.)*(?!-)[\w-]+(?<!-)", re.ASCII)  # digits alone: an address
LOCAL = ("127.0.0.1", "localhost")  # always among the server's names


@dataclass(frozen=True)
class Keys:
    """Where the files of a federation's keys are, whether or not they exist.

    Attributes:
        folder: it holds all of them, and is for its owner alone.
    """

    folder: Path

    @property
    def ca_certificate(self) -> Path:
        """The CA's certificate, public: every host needs it to trust the server."""
        return self.folder / "ca.crt"

    @property
    def ca_key(self) -> Path:
        """Signs the server's certificate; no host of the federation needs it."""
        return self.folder / "ca.key"

    @property
    def certificate(self) -> Path:
        """The server's certificate, public: it names the hosts that the server may be reached by."""
        return self.folder / "server.crt"

    @property
    def key(self) -> Path:
        """The server's private key, for the server alone."""
        return self.folder / "server.key"

    def node(self, number: int) -> Path:
        """The private key of a node, for that node alone."""
        return self.folder / f"node-{number}"

    def public(self, number: int) -> Path:
        """The public key of a node, for whoever registers it."""
        return self.folder / f"node-{number}.pub"

    @property
    def server_secret(self) -> Path:
        """The secret between the SuperLink and its SuperExec, for the server alone."""
        return self.folder / "server.secret"

    def secret(self, number: int) -> Path:
        """The secret between a node and its SuperExec, for that node alone."""
        return self.folder / f"node-{number}.secret"

    def expiry(self) -> datetime:
        """The time after which the server's certificate is refused, in UTC."""
        return _read(self.certificate).not_valid_after_utc

    def check_private(self, nodes: int) -> None:
        """Refuse if a private key that a federation on one machine needs is not here.

        `make` accepts a missing private half: on several hosts each lies on its own. Here all must be in one folder.
        """
        for path in (self.key, *map(self.node, range(nodes))):
            if not path.exists():
                raise ConfigurationError(f"{path} is missing: put it back, or delete its public half to have both made")


def make(folder: Path, nodes: int, names: Iterable[str] = ()) -> Keys:
    """Make what is missing: CA, server certificate for this machine and `names`, `nodes` key pairs; check the rest.

    Args:
        folder: made for its owner alone if it is not there.
        nodes: how many key pairs there must be; more may be there.
        names: host names and addresses of the server beside those of this machine.

    Raises:
        ConfigurationError: a name is none; or what is there is not complete, readable by others, expired, for other
            names, or does not belong together. The message names the files to delete.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     keys = make(Path(folder) / "keys", nodes=1, names=["fl.example.org"])
    ...     sorted(path.name for path in keys.folder.iterdir())
    ['ca.crt', 'ca.key', 'node-0', 'node-0.pub', 'node-0.secret', 'server.crt', 'server.key', 'server.secret']
    """
    wanted = list(dict.fromkeys([*LOCAL, *names]))
    alternatives = [_alternative(name) for name in wanted]
    keys = make_secrets(folder, nodes)
    if not (keys.ca_certificate.exists() or keys.ca_key.exists()):
        _make_ca(keys)
    if not (keys.certificate.exists() or keys.key.exists()):
        _make_certificate(keys, alternatives)
    for number in range(nodes):
        if not (keys.node(number).exists() or keys.public(number).exists()):
            _make_pair(keys.node(number), keys.public(number))
    _check(keys, alternatives, nodes)
    return keys


def make_secrets(folder: Path, nodes: int) -> Keys:
    """Make the secrets that are missing, of the server and of so many nodes: all that a federation without TLS has.

    Args:
        folder: made for its owner alone if it is not there.
        nodes: how many.
    """
    folder.mkdir(parents=True, mode=0o700, exist_ok=True)
    keys = Keys(folder)
    for path in (keys.server_secret, *map(keys.secret, range(nodes))):
        if not path.exists():
            create_file(path, token_hex(32).encode(), 0o600)
        elif path.stat().st_mode & 0o077:
            raise ConfigurationError(f"{path} is private and others can read it: chmod go-rwx {path}")
    return keys


def _make_ca(keys: Keys) -> None:
    """A self-signed CA that may sign certificates of servers, but no further CA."""
    key = ec.generate_private_key(ec.SECP384R1())
    name = _name("fedsps federation CA")
    certificate = (
        _builder(name, name, key.public_key(), CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage("key_cert_sign", "crl_sign"), critical=True)
        .sign(key, SHA384())
    )
    create_file(keys.ca_key, _pem(key), 0o600)
    create_file(keys.ca_certificate, certificate.public_bytes(Encoding.PEM))


def _make_certificate(keys: Keys, names: list[x509.GeneralName]) -> None:
    """The server's certificate for these names, signed by the CA; it is good for TLS servers and nothing else."""
    if not keys.ca_key.exists():
        raise ConfigurationError(f"{keys.certificate} cannot be made without {keys.ca_key}: put the CA's key back")
    ca_key = load_pem_private_key(keys.ca_key.read_bytes(), password=None)
    if not isinstance(ca_key, ec.EllipticCurvePrivateKey):
        raise ConfigurationError(
            f"{keys.ca_key} is no elliptic curve key: delete the CA's files to have them made anew"
        )
    key = ec.generate_private_key(ec.SECP384R1())
    certificate = (
        _builder(_name("fedsps federation server"), _read(keys.ca_certificate).subject, key.public_key(), DAYS)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage("digital_signature"), critical=True)
        .add_extension(x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, SHA384())
    )
    create_file(keys.key, _pem(key), 0o600)
    create_file(keys.certificate, certificate.public_bytes(Encoding.PEM))


def _make_pair(private: Path, public: Path) -> None:
    """An OpenSSH key pair on P-384, as `flower-supernode` and `flwr supernode register` read it."""
    key = ec.generate_private_key(ec.SECP384R1())
    shown = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    create_file(private, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()), 0o600)
    create_file(public, shown + f" {private.name}\n".encode())


def _check(keys: Keys, names: list[x509.GeneralName], nodes: int) -> None:
    """What was kept is complete, private, not expired, for these names, and fits together.

    Private halves may be missing (they may lie on their own hosts), public ones may not.
    """
    publics = [keys.ca_certificate, keys.certificate, *map(keys.public, range(nodes))]
    privates = [keys.ca_key, keys.key, *map(keys.node, range(nodes))]
    for path, private in zip(publics, privates, strict=True):
        if not path.exists():
            raise ConfigurationError(f"{path} is missing, {private} is there: delete it to have both made anew")
    for path in (keys.folder, *privates):
        if path.exists() and path.stat().st_mode & 0o077:
            raise ConfigurationError(f"{path} is private and others can read it: chmod go-rwx {path}")
    again = f"delete {keys.certificate} and {keys.key} to have them made anew"
    certificate = _read(keys.certificate)
    try:
        certificate.verify_directly_issued_by(_read(keys.ca_certificate))
    except Exception as error:
        raise ConfigurationError(f"{keys.certificate} is not signed by {keys.ca_certificate}: {again}") from error
    if keys.expiry() < datetime.now(UTC):
        raise ConfigurationError(f"{keys.certificate} has expired on {keys.expiry():%Y-%m-%d}: {again}")
    if _read(keys.ca_certificate).not_valid_after_utc < datetime.now(UTC):
        raise ConfigurationError(
            f"{keys.ca_certificate} has expired: delete all but the nodes' keys, and distribute anew"
        )
    there = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    missing = [str(name.value) for name in names if name not in there]
    if missing:
        raise ConfigurationError(f"{keys.certificate} is not for {', '.join(missing)}: {again}")
    if keys.key.exists():
        key = load_pem_private_key(keys.key.read_bytes(), password=None)
        if key.public_key() != certificate.public_key():
            raise ConfigurationError(f"{keys.key} does not belong to {keys.certificate}: {again}")
    for private, public in zip(privates[2:], publics[2:], strict=True):
        if private.exists():
            node_key = load_ssh_private_key(private.read_bytes(), password=None)
            if node_key.public_key() != load_ssh_public_key(public.read_bytes()):
                raise ConfigurationError(f"{private} and {public} do not belong together: delete both")


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: float
) -> x509.CertificateBuilder:
    """A certificate with all that both kinds have; its validity begins an hour ago."""
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # clocks differ between hosts
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*uses: str) -> x509.KeyUsage:
    """The key usage extension with these uses; all others are refused."""
    every = (
        "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
        "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
    )  # fmt: skip
    return x509.KeyUsage(**{use: use in uses for use in every})


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


def _alternative(name: str) -> x509.GeneralName:
    """A host name or an address as a certificate holds it; anything else is refused."""
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    if not HOST_NAME.fullmatch(name):
        raise ConfigurationError(f"{name!r} is no host name or address: write it in ASCII, without a port or brackets")
    return x509.DNSName(name)


def _read(path: Path) -> x509.Certificate:
    """A certificate from its file; the error says how to have another one made."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError as error:
        raise ConfigurationError(f"{path} is no certificate: delete it and its key to have them made anew") from error


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
