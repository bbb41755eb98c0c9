"""Write a rank's exit status into its journal, from the console helper, which holds a pidfd of the rank from the start.

An agent that is still starting has no pidfd of a rank that dies early.
"""

import contextlib
import os
import select
import time

from chiplog_schemas.process.exit_status import exit_status, write_status

_POLL_INTERVAL_S = 1.0  # between two checks whether the journal still exists
_FINISHED_WAIT_S = 10.0  # a finished run has its state in the journal; its process exits soon


class ExitWatch:
    """Wait for one rank's exit. rank: its pidfd. status: its journal's open status file. pid, journal: the rank's."""

    def __init__(self, rank: int, status: int, pid: int, journal: str) -> None:
        self.rank = rank
        self._status = status
        self._pid = pid
        self._journal = journal

    def note(self) -> None:
        """Write how the rank ended. Call this once the pidfd is readable."""
        with contextlib.suppress(OSError):  # a full disk: the agent does not learn the exit status
            write_status(self._status, *exit_status(self.rank, self._pid))

    def wait(self, *, is_finished: bool) -> None:
        """Wait for the rank to exit while its journal exists. is_finished: the run has finished; wait briefly."""
        deadline = time.monotonic() + (_FINISHED_WAIT_S if is_finished else float("inf"))
        poll = select.poll()
        poll.register(self.rank, select.POLLIN)
        while os.path.isdir(self._journal) and time.monotonic() < deadline:
            if poll.poll(_POLL_INTERVAL_S * 1000):
                self.note()
                return
