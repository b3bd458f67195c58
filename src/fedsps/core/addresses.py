"""The user's own classes and functions, by "file.py:name" or "package.module:name"."""

import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from fedsps.errors import ConfigurationError, unknown


def import_object(address: str) -> Any:
    """What an address names: a class or a function of the user's own.

    Raises:
        ConfigurationError: if it is no address, its file or module cannot be imported, or has no such name.
    """
    place, _, name = address.partition(":")
    if not place or not name:
        raise ConfigurationError(f"{address!r} must look like file.py:name or package.module:name")
    module = _import(place)
    if not hasattr(module, name):
        raise unknown(f"name in {place}", name, [known for known in vars(module) if not known.startswith("_")])
    return getattr(module, name)


def source_digest(address: str) -> str:
    """The sha256 of the file that an address names."""
    module = _import(address.partition(":")[0])
    if module.__file__ is None:
        raise ConfigurationError(f"{address!r} has no source file")
    return hashlib.sha256(Path(module.__file__).read_bytes()).hexdigest()


def _import(place: str) -> ModuleType:
    try:
        return _import_file(Path(place)) if place.endswith(".py") else _import_module(place)
    except ConfigurationError:
        raise
    except Exception as error:
        raise ConfigurationError(f"{place} cannot be imported: {type(error).__name__}: {error}") from error


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigurationError(f"there is no file {path}")
    # named by what it holds, so that an edited file is read again
    name = f"fedsps_user_{hashlib.sha256(str(path.resolve()).encode() + path.read_bytes()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    description = importlib.util.spec_from_file_location(name, path)
    if description is None or description.loader is None:
        raise ConfigurationError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(description)
    sys.modules[name] = module  # dataclasses look their module up while they are made
    try:
        description.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _import_module(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    return importlib.import_module(name)
