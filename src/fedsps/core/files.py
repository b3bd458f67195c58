"""Writes that are all or nothing, and on the disk when they return: the only place that does them."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fedsps.errors import DiskFullError


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file all or nothing: the old one stays until the new one is complete and on the disk.

    Args:
        path: the file.
        write: writes the new content to the path that it is given, which lies beside the file.

    Raises:
        DiskFullError: the old file is as it was.
    """
    partial = path.with_name(f"{path.name}.partial")
    try:
        with room_for(path):
            write(partial)
            _flush(partial)
            partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    _flush(path.parent)


def create_file(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Write a new file all or nothing, with its mode from the start, and never over one that is there.

    A link is made to the complete file, which fails if the name exists, where a rename would replace it.

    Args:
        path: the file.
        content: all of it.
        mode: who may read and write it.

    Raises:
        FileExistsError: there is a file of that name.
    """
    partial = path.with_name(f"{path.name}.partial")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
    _flush(partial)
    os.link(partial, path)
    partial.unlink()
    _flush(path.parent)


@contextmanager
def room_for(path: Path) -> Iterator[None]:
    """Say in words that the disk is full, or the quota used up, while this file is written.

    Libraries report it in exceptions of their own, with the number of the system's error in the text.
    """
    try:
        yield
    except Exception as error:
        codes = (errno.ENOSPC, errno.EDQUOT)
        if getattr(error, "errno", None) in codes or any(f"os error {code})" in str(error) for code in codes):
            raise DiskFullError(
                f"no space left for {path.name} in {path.parent}: make room there, then start the same again, it goes "
                "on from what was saved last"
            ) from error
        raise


def _flush(path: Path) -> None:
    """Wait until a file, or the names in a folder, have reached the disk; Windows knows no such thing for folders."""
    if path.is_dir() and os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
