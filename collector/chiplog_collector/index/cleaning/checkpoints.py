"""When the index checkpoints DuckDB: on a timer, while queries run, and often enough without old snapshots.

DuckDB 2.0 can write a checkpoint while queries read. It raises when a reader still needs a row from before an UPDATE,
so the writer never updates. When a reader still needs any row from before the last commit, the checkpoint frees no
deleted row and merges no row groups: each table that was written to keeps a separate row group, 1.3 MiB of memory and
of the file per checkpoint in total. A checkpoint is clean when every open reader began after the last commit; it does
both. This schedule repeats an unclean checkpoint at the first clean moment. If none comes, the writer pauses until the
current readers have ended. No query is cancelled or delayed.
"""

import logging
import time
from collections.abc import Callable

import duckdb

from chiplog_collector.index.database import is_disk_error
from chiplog_schemas.limits import MIB

CHECKPOINT_INTERVAL_S = 60.0
RETRY_INTERVAL_S = 1.0  # after a checkpoint that DuckDB refused
CLEAN_WAIT_S = 600.0  # how long to wait for a clean moment; then the writer pauses, at most for the longest query
WAL_BYTES_MAX = 256 * MIB  # while checkpoints are refused; then the writer pauses too. It replays in a few seconds
_log = logging.getLogger("chiplog.index")


class Checkpoints:
    """Runs the checkpoints of one database. One thread: the writer's.

    run: writes a checkpoint. oldest_reader: returns when the oldest open reader began, inf without any. wal_bytes:
    returns the size of the write-ahead log.
    """

    def __init__(
        self, run: Callable[[], None], oldest_reader: Callable[[], float], wal_bytes: Callable[[], int]
    ) -> None:
        now = time.monotonic()
        self.n_clean = 0
        self.n_refused = 0
        self._run = run
        self._oldest_reader = oldest_reader
        self._wal_bytes = wal_bytes
        self._due_at = now + CHECKPOINT_INTERVAL_S
        self._written_at = now  # the last commit
        self._is_dirty = False  # a commit happened since the last checkpoint
        self._unclean_since: float | None = None  # deleted rows are kept since then
        self._is_refused = False  # DuckDB refused the last attempt

    def written(self, now: float) -> None:
        """Record a commit."""
        self._written_at = now
        self._is_dirty = True

    def holds_writer(self, now: float) -> bool:
        """Return True if nothing may be committed until a clean checkpoint has run."""
        if self._unclean_since is None or not self._is_dirty:
            return False
        # safeguard: writer-pauses-for-checkpoint, wal-bounded
        return now - self._unclean_since >= CLEAN_WAIT_S or (self._is_refused and self._wal_bytes() >= WAL_BYTES_MAX)

    def turn(self, now: float) -> None:
        """Run a checkpoint if one is due. Raises duckdb.Error, unless a reader explains it."""
        is_clean = self._oldest_reader() > self._written_at
        is_cleaning = is_clean and self._unclean_since is not None
        is_due = now >= self._due_at and not self.holds_writer(
            now
        )  # another unclean one would only delay the clean one
        # safeguard: deleted-rows-freed
        if not self._is_dirty or not (is_cleaning or is_due):  # without a commit DuckDB does nothing
            return
        try:
            self._run()
        except duckdb.TransactionException as error:
            if is_clean or is_disk_error(error):
                raise
            self._refused(now, error)
            return
        if self._is_refused:
            _log.info("checkpoint written after %d refusals", self.n_refused)
        self._is_refused = self._is_dirty = False
        self._written_at = time.monotonic()  # to DuckDB a checkpoint is a commit too
        self._due_at = now + CHECKPOINT_INTERVAL_S
        if is_clean:
            self.n_clean += 1
            self._unclean_since = None
        elif self._unclean_since is None:
            self._unclean_since = now

    def _refused(self, now: float, error: Exception) -> None:
        self.n_refused += 1
        if not self._is_refused:
            reason = str(error).partition("\n")[0]
            _log.warning("checkpoint refused while a query runs (%s); trying again", reason)
        self._is_refused = True
        self._due_at = now + RETRY_INTERVAL_S
        if self._unclean_since is None:
            self._unclean_since = now
