"""A federation on several hosts: which file goes where, and the commands for each host.

Nothing is started or copied here. The user reads the instructions and gives the commands; they are made of the same
options as those that `up` starts processes with.
"""

import shlex
from collections.abc import Sequence
from pathlib import Path

from fedsps.deploy import commands as processes
from fedsps.deploy.commands import Command
from fedsps.deploy.deployment import prepare
from fedsps.deploy.keys import DAYS, Keys, make
from fedsps.deploy.up import PORT
from fedsps.runs import pins

NAME = "hosts"  # of the connection
NODE_PORT = 9400  # of node 0 on its own host; the next node has the next one, so that a host may hold several
HERE = Keys(Path("keys"))  # on every host: a folder `keys` in the folder where the commands are given


def write_keys(folder: Path, nodes: int, names: Sequence[str]) -> Keys:
    """Make the files that are missing in the federation's folder, under `keys`.

    Args:
        folder: of the federation; made if it is not there.
        nodes: how many key pairs there must be.
        names: host names and addresses by which the nodes reach the server, for its certificate.
    """
    return make(prepare(folder) / "keys", nodes, names)


def destinations(keys: Keys, nodes: int) -> list[tuple[Path, str, str]]:
    """Each file, whether it is public or secret, and who gets it.

    >>> for path, kind, whom in destinations(Keys(Path("keys")), nodes=1):
    ...     print(f"{path.name}, {kind}: {whom}")
    ca.crt, public: every host
    server.crt, public: the server
    server.key, secret: the server, nobody else
    server.secret, secret: the server, nobody else
    node-0.pub, public: the server, to be registered
    node-0, secret: the host of node 0, nobody else
    node-0.secret, secret: the host of node 0, nobody else
    ca.key, secret: no host: keep it offline, it signs the next certificate
    """
    return [
        (keys.ca_certificate, "public", "every host"),
        (keys.certificate, "public", "the server"),
        (keys.key, "secret", "the server, nobody else"),
        (keys.server_secret, "secret", "the server, nobody else"),
        *((keys.public(number), "public", "the server, to be registered") for number in range(nodes)),
        *(
            (path, "secret", f"the host of node {number}, nobody else")
            for number in range(nodes)
            for path in (keys.node(number), keys.secret(number))
        ),
        (keys.ca_key, "secret", "no host: keep it offline, it signs the next certificate"),
    ]


def commands(nodes: int, server: str, port: int = PORT) -> dict[str, list[str]]:
    """What is called where, by place, in this order.

    Every host has the files in a folder `keys` below the one where the commands are given. Nodes reach the gateway; the
    SuperLink behind it, with which keys are registered and runs started, listens on the server alone, one port above.

    Args:
        nodes: how many.
        server: the server's host name or address, as the nodes reach it.
        port: of the gateway.

    >>> [where for where in commands(2, "fl.example.org")][-3:]
    ['On the host of node 0', 'On the host of node 1', 'On the server, in the second terminal']
    """
    address, listen = (f"[{server}]", "::") if ":" in server else (server, "0.0.0.0")
    inner = port + 1
    config = f'[superlink.{NAME}]\\naddress = "127.0.0.1:{inner}"\\nroot-certificates = "%s/{HERE.ca_certificate}"\\n'
    by_place = {
        "On every host, in every terminal, in the folder that holds keys": [
            'export FLWR_HOME="$PWD/flwr" FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1',
            f'export {pins.VARIABLE}="$PWD/{pins.NAME}"',
        ],
        f"On the server, {server}; the nodes' hosts must reach its port {port} (TCP), and nobody its port {inner}": (
            _together(processes.server(listen, port, inner, HERE, True, ("--database", "superlink.db")))
        ),
        "On the server, in a second terminal, once": [
            f"mkdir -p flwr && printf '{config}' \"$PWD\" > flwr/config.toml",
            *(f"fedsps federation register {HERE.public(number)} --partition {number}" for number in range(nodes)),
        ],
    }
    for number in range(nodes):
        place = processes.place(number, nodes, HERE.folder.with_name("state") / str(number))
        both = processes.node(number, f"{address}:{port}", NODE_PORT + number, HERE, True, place)
        by_place[f"On the host of node {number}"] = _together(both)
    by_place["On the server, in the second terminal"] = [f"flwr supernode list {NAME}", f"flwr run APP {NAME} --stream"]
    return by_place


def _together(started: Sequence[Command]) -> list[str]:
    """Commands of processes that belong together, for one terminal: all but the last go on behind it."""
    lines = [shlex.join(command.words) for command in started]
    return [*(f"{line} &" for line in lines[:-1]), lines[-1]]


def instructions(keys: Keys, nodes: int, server: str, port: int = PORT) -> str:
    """The whole text to read: files with their destinations, until when the certificate is valid, commands by place.

    Args:
        keys: as `write_keys` made them; the server's certificate is read for its date.
        nodes: how many.
        server: the server's host name or address, as the nodes reach it.
        port: of the gateway.
    """
    files = destinations(keys, nodes)
    width = max(len(str(path)) for path, _, _ in files)
    lines = ["Copy each file into a folder named keys on its host, the secret ones with mode 600:", ""]
    lines += [f"  {path!s:{width}}  {kind}  {whom}" for path, kind, whom in files]
    lines += ["", f"The server's certificate is valid for {DAYS} days, until {keys.expiry():%Y-%m-%d}."]
    for where, called in commands(nodes, server, port).items():
        lines += ["", f"{where}:", "", *(f"  {line}" for line in called)]
    return "\n".join(lines)
