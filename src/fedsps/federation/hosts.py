"""A federation on several hosts: which file goes where, and the commands for each host."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from fedsps.federation.keys import DAYS, Keys, make
from fedsps.federation.state import prepare
from fedsps.federation.up import PORT, base_config, link_options, node_options

NODE_PORT = 9400  # of node 0 on its own host; the next node has the next one, so that a host may hold several
HERE = Keys(Path("keys"))  # where the commands look for the files: a folder `keys` on every host


def write_keys(folder: Path, nodes: int, names: Sequence[str]) -> Keys:
    """Make the files that are missing in the federation's folder."""
    return make(prepare(folder) / "keys", nodes, names)


def instructions(keys: Keys, nodes: int, server: str, port: int = PORT) -> str:
    """Which file goes where, and the commands of each host, in the order in which they are run."""
    files = [
        (keys.ca_certificate, "every host", "public"),
        (keys.certificate, "the server", "public"),
        (keys.key, "the server, nobody else", "secret"),
        *((keys.public(number), "whoever registers the nodes", "public") for number in range(nodes)),
        *((keys.node(number), f"the host of node {number}, nobody else", "secret") for number in range(nodes)),
        (keys.ca_key, "nobody: keep it offline, it signs the next certificate", "secret"),
    ]
    width = max(len(str(path)) for path, _, _ in files)
    lines = ["Copy each file into a folder named keys on its host, secret ones with mode 600:", ""]
    lines += [f"  {path!s:{width}}  {kind}  {whom}" for path, whom, kind in files]
    lines += ["", f"The server's certificate is valid for {DAYS} days, until {keys.expiry():%Y-%m-%d}."]
    lines += ["", f"On the server, {server} (nodes must reach its port {port}/tcp):", ""]
    link = ["flower-superlink", *link_options("0.0.0.0", port, HERE), "--database", "superlink.db"]
    lines.append(f"  {shlex.join(link)}")
    lines += [
        "",
        "There too, once: name the connection in ~/.flwr/config.toml, and register the nodes' public keys:",
        "",
    ]
    lines += [f"  [superlink.{NAME}]", f'  address = "127.0.0.1:{port}"', f'  root-certificates = "{CA_PLACE}"', ""]
    lines += [f"  flwr supernode register {HERE.public(number)} {NAME}" for number in range(nodes)]
    for number in range(nodes):
        config = base_config(number, nodes, Path("state") / str(number))
        options = node_options(f"{server}:{port}", NODE_PORT + number, HERE, number, config)
        lines += ["", f"On the host of node {number}:", "", f"  {shlex.join(['flower-supernode', *options])}"]
    lines += ["", "On the server again:", "", f"  flwr supernode list {NAME}", f"  flwr run APP {NAME} --stream"]
    return "\n".join(lines)


NAME = "hosts"
CA_PLACE = "/path/to/keys/ca.crt"
