"""One process at a time in a folder."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedsps.errors import ConfigurationError

try:
    import fcntl
except ImportError:  # Windows has none: folders are not locked there
    fcntl = None  # type: ignore[assignment]


@contextmanager
def only_one(folder: Path, refusal: str) -> Iterator[None]:
    """Refuse, in these words, while another process holds the folder; it is let go of when the process ends."""
    handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if fcntl is not None:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ConfigurationError(refusal) from error
        yield
    finally:
        os.close(handle)
