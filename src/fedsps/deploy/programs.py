"""Flower's own programs: where they are, what they are called with, what they answer."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from fedsps.errors import ConfigurationError, FedspsError

CONNECTION = "fedsps-federation"  # its name in Flower's configuration
SETTING = r"""([^\s=]+)=('[^']*'|"[^"]*"|\S+)"""  # how Flower reads --node-config and --run-config
SWITCHES = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "PYTHONUNBUFFERED": "1",
}


def program(name: str) -> str:
    """The path of a program of this Python's environment."""
    found = shutil.which(name, path=_path())
    if found is None:
        raise ConfigurationError(
            f"the program {name} is not here, a federation needs Flower: pip install 'fedsps[flower]'"
        )
    return found


def environment(folder: Path) -> dict[str, str]:
    """For all of Flower's programs: nothing leaves this machine, all files are under the federation's folder."""
    local = ",".join(filter(None, (os.environ.get("NO_PROXY"), "127.0.0.1", "localhost")))
    found = os.environ | SWITCHES | {"FLWR_HOME": str(folder / "flwr"), "PATH": _path()}
    return found | {"NO_PROXY": local, "no_proxy": local}


def connect(folder: Path, address: str, ca_certificate: Path | None) -> None:
    """Write the connection into the federation's Flower configuration."""
    trust = f'root-certificates = "{ca_certificate}"' if ca_certificate else "insecure = true"
    text = f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\naddress = "{address}"\n{trust}\n'
    (folder / "flwr").mkdir(exist_ok=True)
    (folder / "flwr" / "config.toml").write_text(text, encoding="utf-8")


def ask(folder: Path, *words: str, seconds: float = 60.0) -> dict[str, Any]:
    """The answer of a `flwr` command, such as `supernode list`."""
    command = [program("flwr"), *words, "--format", "json"]
    what = f"flwr {' '.join(words)}"
    try:
        ended = subprocess.run(
            command, env=environment(folder), cwd=folder, capture_output=True, text=True, timeout=seconds, check=False
        )
        found = json.loads(ended.stdout)
    except subprocess.TimeoutExpired as error:
        raise FedspsError(f"no answer to {what} within {seconds:g} s: see the logs in {folder / 'logs'}") from error
    except ValueError as error:
        raise FedspsError(f"{what}: {(ended.stderr or ended.stdout).strip()[-500:]}") from error
    if not isinstance(found, dict) or not found.get("success"):
        text = " ".join(str(found.get("error-message", found)).split())
        raise FedspsError(f"{what}: {re.sub(r'^.*?(?=.code: )', '', text)}")
    return found


def online(folder: Path) -> int:
    """How many nodes are online."""
    return sum(node["status"] == "online" for node in ask(folder, "supernode", "list", CONNECTION)["nodes"])


def runs(folder: Path) -> list[dict[str, Any]]:
    """All runs, as Flower lists them."""
    return list(ask(folder, "list", CONNECTION)["runs"])


def run_status(folder: Path, run: str) -> tuple[str, str]:
    """A run's status, such as `running` or `finished:failed`, and what Flower says about it."""
    (found,) = ask(folder, "list", CONNECTION, "--run-id", run)["runs"]
    return found["status"], found["status-details"]


def _path() -> str:
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
