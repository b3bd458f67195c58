"""Flower's own programs: where they are, what they are called with, what they answer.

They are called as a user would call them, with JSON for an answer. So fedsps depends on Flower's documented commands
here, and not on its inner modules.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from fedsps.errors import ConfigurationError, FedspsError
from fedsps.runs import pins

CONNECTION = "fedsps-federation"  # its name in Flower's configuration
SETTING = r"""([^\s=]+)=('[^']*'|"[^"]*"|\S+)"""  # how Flower reads --node-config and --run-config
SWITCHES = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "PYTHONUNBUFFERED": "1",
}


def program(name: str) -> str:
    """The path of a program of this Python's environment, which comes before the rest of PATH.

    Raises:
        ConfigurationError: there is no such program: Flower is not installed.
    """
    path = shutil.which(name, path=_path())
    if path is None:
        raise ConfigurationError(
            f"the program {name} is not here, a federation needs Flower: pip install 'fedsps[flower]'"
        )
    return path


def environment(folder: Path) -> dict[str, str]:
    """For all of Flower's programs: nothing leaves this machine, all files are under the federation's folder.

    Telemetry and the search for updates are off, and calls to this machine go past any proxy.
    """
    local = ",".join(filter(None, (os.environ.get("NO_PROXY"), "127.0.0.1", "localhost")))
    variables = os.environ | SWITCHES | {"FLWR_HOME": str(folder / "flwr"), "PATH": _path()}
    return variables | {"NO_PROXY": local, "no_proxy": local}


def connect(folder: Path, address: str, ca_certificate: Path | None) -> None:
    """Write the connection into the federation's Flower configuration, as the default one.

    Args:
        folder: of the federation.
        address: of the SuperLink, "host:port".
        ca_certificate: by which the SuperLink is trusted; None for a federation without TLS.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     connect(Path(folder), "127.0.0.1:9300", None)
    ...     print((Path(folder) / "flwr" / "config.toml").read_text(encoding="utf-8").strip())
    [superlink]
    default = "fedsps-federation"
    <BLANKLINE>
    [superlink.fedsps-federation]
    address = "127.0.0.1:9300"
    insecure = true
    """
    trust = f'root-certificates = "{ca_certificate}"' if ca_certificate else "insecure = true"
    text = f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\naddress = "{address}"\n{trust}\n'
    (folder / "flwr").mkdir(exist_ok=True)
    (folder / "flwr" / "config.toml").write_text(text, encoding="utf-8")


def ask(folder: Path, *words: str, seconds: float = 60.0) -> dict[str, Any]:
    """The answer of a `flwr` command, such as `supernode list`.

    Args:
        folder: of the federation; its configuration says which SuperLink is asked.
        *words: the command behind `flwr`.
        seconds: how long an answer may take.

    Raises:
        FedspsError: no answer in time, one that is no JSON, or one that reports no success; with what Flower says.
    """
    command = [program("flwr"), *words, "--format", "json"]
    what = f"flwr {' '.join(words)}"
    try:
        ended = subprocess.run(
            command, env=environment(folder), cwd=folder, capture_output=True, text=True, timeout=seconds, check=False
        )
        answer = json.loads(ended.stdout)
    except subprocess.TimeoutExpired as error:
        raise FedspsError(f"no answer to {what} within {seconds:g} s: see the logs in {folder / 'logs'}") from error
    except ValueError as error:
        raise FedspsError(f"{what}: {(ended.stderr or ended.stdout).strip()[-500:]}") from error
    if not isinstance(answer, dict) or not answer.get("success"):
        text = " ".join(str(answer.get("error-message", answer)).split())
        raise FedspsError(f"{what}: {re.sub(r'^.*?(?=.code: )', '', text)}")
    return answer


def register(folder: Path, public: Path, partition: int, connection: str) -> int:
    """Register a node's public key, and note which partition it is for; the node's id.

    Args:
        folder: it holds Flower's folder `flwr`, and `pins.json`.
        public: the key.
        partition: that the node will serve.
        connection: its name in Flower's configuration.
    """
    node = int(ask(folder, "supernode", "register", str(public.resolve()), connection)["node-id"])
    pins.pin(folder / pins.NAME, node, partition)
    return node


def online(folder: Path) -> int:
    """How many nodes are online, by the SuperLink's own count."""
    return sum(node["status"] == "online" for node in ask(folder, "supernode", "list", CONNECTION)["nodes"])


def runs(folder: Path) -> list[dict[str, Any]]:
    """All runs of this federation, as Flower lists them."""
    return list(ask(folder, "list", CONNECTION)["runs"])


def run_status(folder: Path, run: str) -> tuple[str, str]:
    """A run's status, such as `running` or `finished:failed`, and what Flower says about it."""
    (listed,) = ask(folder, "list", CONNECTION, "--run-id", run)["runs"]
    return listed["status"], listed["status-details"]


def _path() -> str:
    """PATH with the folder of this Python first, where pip puts Flower's programs."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
