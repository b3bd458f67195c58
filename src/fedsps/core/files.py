"""Writes that are all or nothing, and on the disk when they return: the only place that does them."""

import os
from collections.abc import Callable
from pathlib import Path


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file all or nothing: the old one stays until the new one is complete and on the disk.

    Args:
        path: the file.
        write: writes the new content to the path that it is given, which lies beside the file.
    """
    partial = path.with_name(f"{path.name}.partial")
    try:
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


def _flush(path: Path) -> None:
    """Wait until a file, or the names in a folder, have reached the disk; Windows knows no such thing for folders."""
    if path.is_dir() and os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
