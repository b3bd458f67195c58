"""The commands of a federation: the one place that says how SuperLink, gateway and nodes are started.

`up` starts these processes, `hosts` prints them. A SuperLink and a node each consist of two: the one that holds the
connection, and a SuperExec that starts the apps. They know each other by a secret in a file; without it, any process on
the machine could take a node's work from it and answer in its place. Nodes and SuperExecs are Flower's, kept warm by
`fedsps.flower.warm`.

    gateway        the only door: it lets nodes through, see `gateway`
    superlink      on this machine alone
    superlink-exec starts the ServerApps
    node-0         connects to the gateway; its own port is on its machine alone
    node-0-exec    starts its ClientApps
"""

from dataclasses import dataclass
from pathlib import Path

from fedsps.deploy.keys import Keys

HOST = "127.0.0.1"
WARM = ("python", "-P", "-m", "fedsps.flower.warm")  # -P: the folder where it is given is not searched for modules


@dataclass(frozen=True)
class Command:
    """One process.

    Attributes:
        name: how it is called in messages, and its log.
        words: the program and its arguments.
        address: where it listens, "host:port"; empty if it does not.
    """

    name: str
    words: tuple[str, ...]
    address: str = ""


def server(host: str, port: int, inner: int, keys: Keys, secure: bool, more: tuple[str, ...] = ()) -> list[Command]:
    """The SuperLink with its SuperExec on this machine alone, and the gateway that nodes connect to.

    Args:
        host: that the gateway listens on.
        port: of the gateway.
        inner: of the SuperLink.
        keys: where the files are.
        secure: with TLS, and with a key for each node.
        more: options of the SuperLink.

    >>> for command in server("0.0.0.0", 9300, 9301, Keys(Path("keys")), secure=True):
    ...     print(command.name, *command.words[:5])
    superlink flower-superlink --host 127.0.0.1 --port 9301
    superlink-exec python -P -m fedsps.flower.warm superexec
    gateway fedsps federation gateway --host 0.0.0.0
    """
    secret = ("--superexec-auth-secret-file", str(keys.server_secret))
    files = {"ca-certfile": keys.ca_certificate, "certfile": keys.certificate, "keyfile": keys.key}
    tls = [word for name, path in files.items() for word in (f"--ssl-{name}", str(path))]
    trust = ("--root-certificates", str(keys.ca_certificate)) if secure else ("--insecure",)
    link = ["flower-superlink", "--host", HOST, "--port", str(inner), "--disable-runtime-dependency-installation"]
    link += ["--isolation", "process", *secret, *((*tls, "--enable-supernode-auth") if secure else trust), *more]
    api = ("--runtime-api-address", f"{HOST}:{inner}")
    gateway = ["fedsps", "federation", "gateway", "--host", host, "--port", str(port), "--superlink", f"{HOST}:{inner}"]
    gateway += ["--keys", str(keys.folder)] if secure else ["--insecure"]
    return [
        Command("superlink", tuple(link), f"{HOST}:{inner}"),
        Command("superlink-exec", (*WARM, "superexec", *api, *secret, *trust)),
        Command("gateway", tuple(gateway), f"{host}:{port}"),
    ]


def node(number: int, gateway: str, port: int, keys: Keys, secure: bool, config: str) -> list[Command]:
    """A SuperNode and its SuperExec.

    Args:
        number: of the node, which says which key and secret are its own.
        gateway: the gateway's "host:port".
        port: the node's own, on its host alone.
        keys: where the files are.
        secure: with TLS, and with the node's key.
        config: its settings, see `place`.

    >>> for command in node(0, "fl.example.org:9300", 9400, Keys(Path("keys")), True, "partition-id=0"):
    ...     print(command.name, *command.words[4:9])
    node-0 supernode --superlink fl.example.org:9300 --host 127.0.0.1
    node-0-exec superexec --runtime-api-address 127.0.0.1:9400 --superexec-auth-secret-file keys/node-0.secret
    """
    secret = ("--superexec-auth-secret-file", str(keys.secret(number)))
    options = ["--superlink", gateway, "--host", HOST, "--port", str(port), "--node-config", config]
    options += ["--isolation", "process", *secret]
    if secure:
        options += ["--root-certificates", str(keys.ca_certificate)]
        options += ["--auth-supernode-private-key", str(keys.node(number))]
    else:
        options += ["--insecure"]
    exec_options = ("--runtime-api-address", f"{HOST}:{port}", *secret, "--insecure")  # it does not leave the machine
    return [
        Command(f"node-{number}", (*WARM, "supernode", *options), f"{HOST}:{port}"),
        Command(f"node-{number}-exec", (*WARM, "superexec", *exec_options)),
    ]


def place(number: int, nodes: int, state_dir: Path) -> str:
    """A node's place in the federation, and where it keeps its clients' state, as Flower reads settings.

    >>> place(0, 2, Path("state/0"))
    'partition-id=0 num-partitions=2 state-dir="state/0"'
    """
    return f'partition-id={number} num-partitions={nodes} state-dir="{state_dir}"'
