"""One process at a time in a folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from fedsps.errors import ConfigurationError


@contextmanager
def only_one(folder: Path, refusal: str) -> Iterator[None]:
    """Refuse, in these words, while another process holds the folder; it is let go of when the process ends."""
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise ConfigurationError(refusal) from error
    try:
        yield
    finally:
        lock.release()
