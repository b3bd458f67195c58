"""Bring a federation up and take it down, all on this machine.

    SuperLink     one; runs are started on it
    gateway       one; nodes connect to it
    SuperNodes    one for each partition of the data, on ports of their own

A folder is brought up or down by one command at a time: a lock in it sees to that.
"""

import re
import socket
import ssl
import time
import tomllib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from fedsps.deploy import commands
from fedsps.deploy.commands import HOST, Command
from fedsps.deploy.deployment import NAME, Deployment, load, prepare
from fedsps.deploy.keys import Keys, make, make_secrets
from fedsps.deploy.processes import ask_to_end, check_system, kill_members, start, wait_until
from fedsps.deploy.programs import CONNECTION, SETTING, connect, environment, online, program, register
from fedsps.errors import ConfigurationError, FedspsError
from fedsps.runs import pins
from fedsps.runs.files import only_one

PORT = 9300  # of the gateway, if it is free
PATIENCE = 180.0  # seconds for something to come up
COLD = "FEDSPS_WARM"  # see `fedsps.flower.warm`
OURS = ("partition-id", "num-partitions", "state-dir")  # what we tell each node


def up(
    folder: Path,
    nodes: int = 2,
    port: int | None = None,
    node_config: Sequence[str] = (),
    secure: bool = True,
    warm: bool = True,
    tell: Callable[[str], None] = lambda text: None,
) -> Deployment:
    """Start a SuperLink, its gateway and its nodes, and wait until all are online; if one does not come up, none stays.

    Args:
        folder: of the federation; made if it is not there.
        nodes: how many SuperNodes.
        port: of the gateway; None for `PORT`, or any other one if that is taken.
        node_config: settings of the nodes, see `own_configs`.
        secure: with TLS, and with a key for each node that is registered first.
        warm: apps are forked from a process that has imported torch; else each message starts one, as Flower does.
        tell: called with what is done now.

    Raises:
        ConfigurationError: not on Linux, a federation that is up already, a port that is taken, settings that cannot be
            read, keys that do not fit.
        FedspsError: a process ended or did not come up in time, with what its log says.
    """
    check_system()
    user_configs = own_configs(node_config, nodes)
    program("flower-superlink")  # before anything is made
    folder = prepare(folder)
    with only_one(folder, f"another command brings {folder} up or down: wait for it"):
        there = load(folder)
        if there and there.is_up:
            raise ConfigurationError(f"the federation in {folder} is up already: use it, or first end it with "
                                     f"fedsps federation down --folder {folder}")  # fmt: skip
        gate, inner, *own = free_ports(nodes + 2, port)
        keys = (make if secure else make_secrets)(folder / "keys", nodes)
        if secure:
            keys.check_private(nodes)
        (folder / "logs").mkdir(exist_ok=True)
        deployment = Deployment(folder, f"{HOST}:{gate}", nodes, secure)
        deployment.save()  # from here on, `down` finds whatever was started
        connect(folder, f"{HOST}:{inner}", keys.ca_certificate if secure else None)
        (folder / pins.NAME).unlink(missing_ok=True)  # nodes have new ids
        variables = environment(folder) | {pins.VARIABLE: str(folder / pins.NAME) if secure else ""}
        if not warm:
            variables[COLD] = "0"

        def begin(command: Command) -> None:
            """Start a process and write it down, so that it is known before the next one starts."""
            nonlocal deployment
            words = [program(command.words[0]), *command.words[1:]]
            log = folder / "logs" / f"{command.name}.log"
            process = start(command.name, words, variables, deployment.mark, command.address, log)
            deployment = deployment.with_process(process)

        try:
            link, link_exec, gateway = commands.server(HOST, gate, inner, keys, secure)
            tell("starting the SuperLink")
            begin(link)
            begin(gateway)
            _await(deployment, "the SuperLink does not listen", lambda: _listens(inner, keys if secure else None))
            begin(link_exec)
            _await(deployment, "the gateway does not listen", lambda: _listens(gate, keys if secure else None))
            for number in range(nodes if secure else 0):
                tell(f"registering the key of node {number}")
                register(folder, keys.public(number), number, CONNECTION)
            for number in range(nodes):
                tell(f"starting node {number}")
                place = commands.place(number, nodes, folder / "state" / str(number))
                config = f"{place} {user_configs[number]}".strip()
                for command in commands.node(number, deployment.address, own[number], keys, secure, config):
                    begin(command)
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
    last = ("superlink", "gateway")
    ask_to_end([process for process in deployment.processes if process.name not in last])
    ask_to_end([process for process in deployment.processes if process.name in last])
    kill_members(deployment.mark)
    (deployment.folder / NAME).unlink(missing_ok=True)


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
                time.sleep(0.3)  # for its last words to reach the log
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
