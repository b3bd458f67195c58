"""The run folder of a server, for the time of a run."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedsps.checkpoint import Checkpoint, Rows
from fedsps.engine.setting import State
from fedsps.errors import ConfigurationError
from fedsps.result import SUMMARY


class Saver(Checkpoint):
    """A checkpoint in a folder that may hold a finished run, which stays until a round of the new one is saved."""

    def save(self, state: State, rows: Rows) -> None:
        """Write all or nothing."""
        super().save(state, rows)
        if rows:
            (self.folder / SUMMARY).unlink(missing_ok=True)

    def forget_finished(self) -> None:
        """A checkpoint beside a finished run is none to go on from."""
        if (self.folder / SUMMARY).exists():
            self.path.unlink(missing_ok=True)


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Refuse while another server works in this folder."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigurationError(
                f"another server works on this run in {folder}: wait for it, or stop it"
            ) from error
        yield
    finally:
        os.close(handle)
