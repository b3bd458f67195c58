"""Which node may serve which partition: a file that the server owns, written when keys are registered.

A node says by itself which partition it has. With the file, what it says must be what its key was registered for.
"""

import os
from pathlib import Path

from fedsps.errors import ConfigurationError, DataError
from fedsps.runs.files import read_json, write_json

NAME = "pins.json"
VARIABLE = "FEDSPS_PINS"  # in the environment of the server's apps: the path of the file


def pin(path: Path, node: int, partition: int) -> None:
    """Note that a node is for a partition; others that are noted stay.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     pin(Path(folder, NAME), node=71, partition=0)
    ...     pin(Path(folder, NAME), node=72, partition=1)
    ...     read(Path(folder, NAME))
    {71: 0, 72: 1}
    """
    there = read_json(path) if path.exists() else {}
    write_json(path, there | {str(node): partition})


def read(path: Path) -> dict[int, int]:
    """The partition of each node.

    Raises:
        ConfigurationError: there is no such file, or it does not hold nodes and partitions.
    """
    try:
        return {int(node): int(partition) for node, partition in read_json(path).items()}
    except (DataError, TypeError, ValueError) as error:
        raise ConfigurationError(
            f"{path} does not say which node is for which partition ({error}): register the nodes with "
            "fedsps federation register"
        ) from error


def pinned() -> dict[int, int] | None:
    """The file that the environment names; None if it names none: then nodes are believed."""
    path = os.environ.get(VARIABLE)
    return read(Path(path)) if path else None
