"""What a server keeps in its run folder while it runs."""

from fedsps.checkpoint import Checkpoint, Rows
from fedsps.engine.setting import State
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
