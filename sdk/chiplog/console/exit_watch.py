"""Write how a rank ended into its journal: in the console's helper, which has a pidfd of the rank from the start.

An agent that is just starting has none, when a rank dies young.
"""

import contextlib
import os
import select
import time

from chiplog_schemas.process.exit_status import exit_status, write_status

_LOOK_INTERVAL_S = 1.0  # between two looks whether the journal is still there
_FINISHED_WAIT_S = 10.0  # a run that finished has its state in the journal; one that left ends within this


class ExitWatch:
    """The end of one rank. rank: its pidfd. status: the open status file of its journal. pid, journal: the rank's."""

    def __init__(self, rank: int, status: int, pid: int, journal: str) -> None:
        self.rank = rank
        self.has_ended = False
        self._status = status
        self._pid = pid
        self._journal = journal

    def note(self) -> None:
        """Write how the rank ended. Call it once the pidfd is readable."""
        self.has_ended = True
        with contextlib.suppress(OSError):  # a full disk: then the agent does not learn it from here
            write_status(self._status, *exit_status(self.rank, self._pid))

    def wait(self, *, is_finished: bool) -> None:
        """Wait for the rank's end, as long as its journal is there. is_finished: its run is, so only a moment."""
        deadline = time.monotonic() + (_FINISHED_WAIT_S if is_finished else float("inf"))
        poll = select.poll()
        poll.register(self.rank, select.POLLIN)
        while not self.has_ended and os.path.isdir(self._journal) and time.monotonic() < deadline:
            if poll.poll(_LOOK_INTERVAL_S * 1000):
                self.note()
