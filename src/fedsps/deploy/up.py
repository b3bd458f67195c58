"""Bring a federation up and take it down, all on this machine.

    SuperLink     one; runs and nodes connect to it
    SuperNodes    one for each partition of the data, on ports of their own

A folder is brought up or down by one command at a time: a lock in it sees to that.
"""

import re
import socket
import ssl
import tomllib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from fedsps.deploy.deployment import NAME, Deployment, load, prepare
from fedsps.deploy.keys import Keys, make
from fedsps.deploy.processes import ask_to_end, check_system, kill_members, start, wait_until
from fedsps.deploy.programs import CONNECTION, SETTING, ask, connect, environment, online, program
from fedsps.errors import ConfigurationError, FedspsError
from fedsps.runs.files import only_one

HOST = "127.0.0.1"
PORT = 9300  # of the SuperLink, if it is free
PATIENCE = 180.0  # seconds for something to come up
OURS = ("partition-id", "num-partitions", "state-dir")  # what we tell each node


def up(
    folder: Path,
    nodes: int = 2,
    port: int | None = None,
    node_config: Sequence[str] = (),
    secure: bool = True,
    tell: Callable[[str], None] = lambda text: None,
) -> Deployment:
    """Start a SuperLink and its nodes, and wait until all are online; if one does not come up, none stays.

    Args:
        folder: of the federation; made if it is not there.
        nodes: how many SuperNodes.
        port: of the SuperLink; None for `PORT`, or any other one if that is taken.
        node_config: settings of the nodes, see `own_configs`.
        secure: with TLS, and with a key for each node that is registered first.
        tell: called with what is done now.

    Raises:
        ConfigurationError: not on Linux, a federation that is up already, a port that is taken, settings that cannot be
            read, keys that do not fit.
        FedspsError: a process ended or did not come up in time, with what its log says.
    """
    check_system()
    user_configs = own_configs(node_config, nodes)
    superlink, supernode = program("flower-superlink"), program("flower-supernode")
    folder = prepare(folder)
    with only_one(folder, f"another command brings {folder} up or down: wait for it"):
        there = load(folder)
        if there and there.is_up:
            raise ConfigurationError(f"the federation in {folder} is up already: use it, or first end it with "
                                     f"fedsps federation down --folder {folder}")  # fmt: skip
        ports = free_ports(nodes + 1, port)
        keys = make(folder / "keys", nodes) if secure else None
        if keys:
            keys.check_private(nodes)
        (folder / "logs").mkdir(exist_ok=True)
        deployment = Deployment(folder, f"{HOST}:{ports[0]}", nodes, secure)
        deployment.save()  # from here on, `down` finds whatever was started
        connect(folder, deployment.address, keys.ca_certificate if keys else None)

        def begin(name: str, command: list[str], port: int) -> None:
            """Start a process and write it down, so that it is known before the next one starts."""
            nonlocal deployment
            log = folder / "logs" / f"{name}.log"
            process = start(name, command, environment(folder), deployment.mark, f"{HOST}:{port}", log)
            deployment = deployment.with_process(process)

        try:
            tell("starting the SuperLink")
            begin("superlink", [superlink, *link_options(HOST, ports[0], keys)], ports[0])
            _await(deployment, "the SuperLink does not listen", lambda: _listens(ports[0], keys))
            for number in range(nodes if keys else 0):
                tell(f"registering the key of node {number}")
                ask(folder, "supernode", "register", str(keys and keys.public(number)), CONNECTION)
            for number in range(nodes):
                tell(f"starting node {number}")
                config = f"{base_config(number, nodes, folder / 'state' / str(number))} {user_configs[number]}".strip()
                options = node_options(deployment.address, ports[number + 1], keys, number, config)
                begin(f"node-{number}", [supernode, *options], ports[number + 1])
            tell("waiting for the nodes")
            _await(deployment, "not all nodes came online", lambda: online(folder) >= nodes)
        except BaseException:
            end(deployment)
            raise
    return deployment


def down(folder: Path) -> Deployment | None:
    """Stop all that `up` started, also what a killed `up` left; what was stopped, or None if nothing was up."""
    folder = folder.expanduser().resolve()
    if not (folder / NAME).exists():
        return None
    with only_one(folder, f"another command brings {folder} up or down: wait for it"):
        deployment = load(folder)
        if deployment:
            end(deployment)
        return deployment


def end(deployment: Deployment) -> None:
    """Nodes first, so that they can take their leave; then the SuperLink; then whatever of theirs is left.

    The federation's file goes last: as long as something may run, it is there.
    """
    ask_to_end([process for process in deployment.processes if process.name != "superlink"])
    ask_to_end([process for process in deployment.processes if process.name == "superlink"])
    kill_members(deployment.mark)
    (deployment.folder / NAME).unlink(missing_ok=True)


def link_options(host: str, port: int, keys: Keys | None) -> list[str]:
    """What `flower-superlink` is called with.

    >>> link_options("127.0.0.1", 9300, None)[-2:]
    ['--disable-runtime-dependency-installation', '--insecure']
    >>> link_options("0.0.0.0", 9300, Keys(Path("keys")))[-3:]
    ['--ssl-keyfile', 'keys/server.key', '--enable-supernode-auth']
    """
    options = ["--host", host, "--port", str(port), "--disable-runtime-dependency-installation"]
    if keys is None:
        return [*options, "--insecure"]
    files = {"ca-certfile": keys.ca_certificate, "certfile": keys.certificate, "keyfile": keys.key}
    tls = [word for name, path in files.items() for word in (f"--ssl-{name}", str(path))]
    return [*options, *tls, "--enable-supernode-auth"]


def node_options(superlink: str, port: int, keys: Keys | None, number: int, config: str) -> list[str]:
    """What `flower-supernode` is called with; its own port is for the programs that it starts on its host.

    Args:
        superlink: the SuperLink's "host:port".
        port: the node's own, on its host alone.
        keys: None for a federation without TLS.
        number: of the node, which says which key is its own.
        config: its settings, see `base_config`.
    """
    options = ["--superlink", superlink, "--host", HOST, "--port", str(port), "--node-config", config]
    if keys is None:
        return [*options, "--insecure"]
    trust = ["--root-certificates", str(keys.ca_certificate)]
    return [*options, *trust, "--auth-supernode-private-key", str(keys.node(number))]


def base_config(number: int, nodes: int, state_dir: Path) -> str:
    """A node's place in the federation, and where it keeps its clients' state, as Flower reads settings.

    >>> base_config(0, 2, Path("state/0"))
    'partition-id=0 num-partitions=2 state-dir="state/0"'
    """
    return f'partition-id={number} num-partitions={nodes} state-dir="{state_dir}"'


def own_configs(given: Sequence[str], nodes: int) -> list[str]:
    """The user's settings of each node: one text for all, or one for each.

    Args:
        given: texts `name=1 other="text"`, none, one, or one for each node.
        nodes: how many.

    Raises:
        ConfigurationError: another number of texts, one that Flower could not read, or a name that fedsps sets.

    >>> own_configs(["gpu=0"], nodes=2)
    ['gpu=0', 'gpu=0']
    """
    if len(given) not in (0, 1, nodes):
        raise ConfigurationError(
            f"--node-config is given {len(given)} times: give it once for all {nodes} nodes or once each"
        )
    for text in given:
        rest = re.sub(SETTING, "", text).strip()
        if rest:
            raise ConfigurationError(f"--node-config {text!r}: cannot read {rest!r}, write 'name=1 other=\"text\"'")
        for name, value in re.findall(SETTING, text):
            if name in OURS:
                raise ConfigurationError(f"--node-config {text!r}: {name} is set by fedsps, leave it out")
            try:
                tomllib.loads(f"{name} = {value}")
            except ValueError as error:
                raise ConfigurationError(
                    f'--node-config {text!r}: {value} is no number, no true or false and no "text"'
                ) from error
    return list(given) if len(given) == nodes else [*given, ""][:1] * nodes


def free_ports(count: int, first: int | None) -> list[int]:
    """Ports that nobody listens on: the first as asked, or `PORT` if free, the others wherever.

    All are held until the last one is chosen, so that they differ; then they are let go for the processes to take.
    """
    with ExitStack() as stack:

        def take(port: int) -> int:
            """Hold a port, or any free one for 0, until the stack closes."""
            listener = stack.enter_context(socket.socket())
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((HOST, port))
            return int(listener.getsockname()[1])

        try:
            ports = [take(PORT if first is None else first)]
        except OSError as error:
            if first is not None:
                raise ConfigurationError(f"port {first} cannot be had ({error.strerror}): name another with --port, "
                                         "or none to have a free one chosen") from error  # fmt: skip
            ports = [take(0)]
        return ports + [take(0) for _ in range(count - 1)]


def _listens(port: int, keys: Keys | None) -> bool:
    """Somebody answers on the port; with keys, by the certificate of our CA."""
    try:
        with socket.create_connection((HOST, port), timeout=2) as connection:
            if keys is None:
                return True
            with ssl.create_default_context(cafile=keys.ca_certificate).wrap_socket(connection, server_hostname=HOST):
                return True
    except OSError:
        return False


def _await(deployment: Deployment, complaint: str, done: Callable[[], bool]) -> None:
    """Wait; when a process dies meanwhile, or it takes too long, show what its log says."""

    def done_or_dead() -> bool:
        for process in deployment.processes:
            if not process.is_alive():
                raise FedspsError(f"{process.name} did not stay up. {process.log} says:\n{explanation(process.log)}")
        return done()

    if not wait_until(done_or_dead, PATIENCE, pause=0.3):
        last = deployment.processes[-1]
        raise FedspsError(f"{complaint} within {PATIENCE:g} s. {last.log} says:\n{explanation(last.log)}")


def explanation(log: str, size: int = 15) -> str:
    """Some lines of a log, from the first error on if there is one, else the last; without colours.

    Args:
        log: the file.
        size: how many lines, empty ones not counted.
    """
    text = re.sub(r"\x1b\[[0-9;]*m", "", Path(log).read_text(encoding="utf-8", errors="replace"))
    lines = [line for line in text.splitlines() if line.strip()]
    first = next((place for place, line in enumerate(lines) if "ERROR" in line), len(lines) - size)
    return "\n".join(lines[max(first, 0) :][:size])
