"""What a node runs: it says so when it introduces itself, and the server holds it against its own.

fedsps must be the same version on both sides, and the app the same files: else messages and numbers may differ. Another
torch (its first two numbers) is noted and taken: its rounding may differ.
"""

import hashlib
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from fedsps.version import __version__


def of_app(function: Callable[..., Any]) -> str:
    """A digest of the app that a function is from: of all Python files of its package, or of its own file alone.

    >>> len(of_app(of_app)), of_app(print)
    (16, '')
    """
    try:
        file = Path(inspect.getfile(function))
        package = sys.modules[function.__module__].__package__
        folder = file.parents[package.count(".")] if package else file.parent
        digest = hashlib.sha256()
        for one in sorted(folder.rglob("*.py")) if package else [file]:
            digest.update(f"{one.relative_to(folder).as_posix()}\0{one.stat().st_size}\0".encode())
            digest.update(one.read_bytes())
    except (TypeError, KeyError, OSError):  # no file, such as a function of an interpreter
        return ""
    return digest.hexdigest()[:16]


def own(app: str) -> dict[str, str]:
    """The versions of this process; `app` is the digest of its app, or nothing where that is not known."""
    return {"fedsps": __version__, "torch": torch.__version__, "app": app}


def mismatch(ours: Mapping[str, str], theirs: Mapping[str, str]) -> tuple[str | None, str | None]:
    """Why a node is refused for its versions, and what is to be noted of them; None for nothing.

    >>> mine = {"fedsps": "1.0", "torch": "2.13.0+cpu", "app": "abc"}
    >>> mismatch(mine, mine | {"torch": "2.13.1"}), mismatch(mine, mine | {"torch": "2.12.0"})
    ((None, None), (None, 'it has torch 2.12.0, the server 2.13.0+cpu: rounding may differ'))
    >>> mismatch(mine, mine | {"fedsps": "0.9"})[0]
    'it has fedsps 0.9, the server 1.0: install the same version'
    """
    if theirs["fedsps"] != ours["fedsps"]:
        return f"it has fedsps {theirs['fedsps']}, the server {ours['fedsps']}: install the same version", None
    if ours["app"] and theirs["app"] != ours["app"]:
        return f"its app is {theirs['app']}, the server's {ours['app']}: start both from the same files", None
    if theirs["torch"].split(".")[:2] != ours["torch"].split(".")[:2]:
        return None, f"it has torch {theirs['torch']}, the server {ours['torch']}: rounding may differ"
    return None, None
