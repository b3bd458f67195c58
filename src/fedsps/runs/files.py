"""Files that matter: written all or nothing, locked, read with a clear error.

A process may be killed at any moment, and two may be pointed at one folder. So a file that others rely on is either the
old one or the new one, and a folder is held by one process at a time.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from fedsps.core.files import replace_file
from fedsps.errors import ConfigurationError, DataError


def write_json(path: Path, content: Any) -> None:
    """Write a value as JSON, indented for readers, all or nothing.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_json(Path(folder, "spec.json"), {"rounds": 3})
    ...     read_json(Path(folder, "spec.json"))
    {'rounds': 3}
    """
    text = json.dumps(content, indent=2) + "\n"
    replace_file(path, lambda partial: partial.write_text(text, encoding="utf-8"))


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        DataError: if there is no such file, it is not JSON, or it holds something else than an object; the message
            names the file and what is wrong with it.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error})") from error
    if not isinstance(content, dict):
        raise DataError(f"{path} does not hold a JSON object")
    return content


def file_digest(path: Path) -> str:
    """The sha256 of a file, in hexadecimal digits.

    Raises:
        DataError: if there is no such file.
    """
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def only_one(folder: Path, refusal: str, file: str = ".lock", patience: float = 0.0) -> Iterator[None]:
    """Refuse, in these words, while another process holds the folder; it is let go of when the process ends.

    The system drops the lock of a process that was killed, so the file that stays behind blocks nobody.

    Args:
        folder: it must be there already.
        refusal: what the user is told.
        file: in the folder, one for each thing that may be held.
        patience: seconds to wait for the other process.

    Raises:
        ConfigurationError: another process is in the folder, and stays.
    """
    lock = FileLock(folder / file)
    try:
        lock.acquire(timeout=patience)
    except Timeout as error:
        raise ConfigurationError(refusal) from error
    except NotImplementedError:  # a file system without locks, as some of a network
        pass
    try:
        yield
    finally:
        lock.release()
