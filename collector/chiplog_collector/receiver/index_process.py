"""The index as a child process of the receiver: started when it is needed, restarted, let catch up at the end."""

import contextlib
import logging
import mmap
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

from chiplog_collector.query.binding import listen_ipc
from chiplog_collector.query.flush_demand import applied, is_queried, read_at
from chiplog_collector.query.suspect_queries import PAGE_BYTES
from chiplog_collector.receiver.child_process import ChildProcess
from chiplog_schemas.addresses import ipc_path
from chiplog_schemas.limits import FILES_LOOK_S, QUERY_TIMEOUT_S
from chiplog_schemas.paths import Paths
from chiplog_schemas.process.file_lock import file_id
from chiplog_schemas.security.key_files import Keys

_RESTART_MIN_S = 0.2  # a process start costs about as much
_STOP_S = 20.0  # for the log to reach DuckDB; the next start applies the rest
_LAG_BYTES = 64 << 20  # of log, after which an index that no client needs is started: applying it takes seconds
_log = logging.getLogger("chiplog.collector")


class IndexProcess:
    """Keeps the index of a collector running.

    That of an embedded collector is started when a client connects, when the log has grown by _LAG_BYTES, or at the
    end, to apply the log. Until then `listener` waits for clients at the address of SQL.

    Args:
        places: Of the collector.
        queries: Addresses of SQL.
        embedded: Whether an agent started the collector.
        keys: Of this host.
        log_bytes: The size of the log.
        changes: Where the index passes on records with changes.
        store: The address of a store that the index cuts pieces for; empty without one.
    """

    def __init__(
        self,
        places: Paths,
        queries: Sequence[str],
        *,
        embedded: bool = False,
        keys: Keys | None = None,
        log_bytes: int = 0,
        changes: socket.socket | None = None,
        store: str = "",
    ) -> None:
        self._places = places
        self._queries = queries
        self._embedded = embedded
        self._keys = keys
        self._changes = changes
        self._store = store
        self._lag_from_bytes = log_bytes
        self.listener: socket.socket | None = None
        # The receiver waits for clients at this address only.
        self._is_needed = not embedded or list(queries) != [places.query_address]
        self._is_stopping = False
        self._next_poll_s = 0.0
        self._listens_at: tuple[int, int] | None = None
        self._child = ChildProcess("index", self._spawn, restart_min_s=_RESTART_MIN_S, stop_s=_STOP_S)
        # The queries that run in the index, for the next one: see `running`.
        self._page = os.memfd_create("chiplog-queries")
        os.ftruncate(self._page, PAGE_BYTES)
        self._memory = mmap.mmap(self._page, PAGE_BYTES)

    def is_queried(self, now: float) -> bool:
        """Return True if clients ask now."""
        return is_queried(self._memory, now)

    @property
    def applied(self) -> int:
        """The number after the last record of the log that SQL shows."""
        return applied(self._memory)

    @property
    def n_restarts(self) -> int:
        """How often the index ended by itself."""
        return self._child.n_restarts

    def read_at(self) -> float:
        """Return when a client last received a part of a large result."""
        return read_at(self._memory)

    def tick(self, now: float, log_bytes: int = 0) -> None:
        """Start the index if it is needed and not running; detect that it ended."""
        if not self._is_needed and not self._detect_need(now, log_bytes):
            return
        self._child.tick(now)

    def _detect_need(self, now: float, log_bytes: int) -> bool:
        """Return True, and free the address of SQL, from the moment in which the index is needed."""
        if now >= self._next_poll_s:
            self._next_poll_s = now + FILES_LOOK_S
            self._listen()
        is_called = self.listener is None or bool(_readable(self.listener))  # safeguard: query-starts-index
        is_behind = log_bytes - self._lag_from_bytes >= _LAG_BYTES  # safeguard: lag-starts-index
        if is_called or is_behind:
            self._is_needed = True
            self._stop_listening()
        return self._is_needed

    def _listen(self) -> None:
        """Wait for clients, also after a cleaner removed the socket's file. If that fails, the index is needed."""
        path = ipc_path(self._places.query_address)
        if self.listener is not None and file_id(path) == self._listens_at:
            return
        self._stop_listening()
        try:
            self.listener = listen_ipc(self._places.query_address)
            self._listens_at = file_id(path)
        except OSError as error:
            _log.info("the index is started now, because the receiver cannot wait for queries: %s", error)

    def _stop_listening(self) -> None:
        if self.listener is None:
            return
        path = ipc_path(self._places.query_address)
        if file_id(path) == self._listens_at:
            with contextlib.suppress(OSError):
                os.unlink(path)
        self.listener.close()
        self.listener = None

    def _spawn(self) -> "subprocess.Popen[bytes]":
        queries = [] if self._is_stopping else self._queries
        options = [argument for address in queries for argument in ("--query", address)]
        options += ["--after", str(self._child.ended_with), "--page", str(self._page)]
        if self._embedded:
            options += ["--first-wait", str(QUERY_TIMEOUT_S / 3)]  # safeguard: first-query-sees-log
        if self._store:
            options += ["--read" if self._embedded else "--store", self._store]
        if self._changes is not None:
            options += ["--changes", str(self._changes.fileno())]
        if self._keys is not None:
            options += ["--keys", str(self._keys.directory)]
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "chiplog_collector.index", str(self._places.root), *options],
            stdin=subprocess.PIPE,
            pass_fds=[self._page, *([self._changes.fileno()] if self._changes is not None else [])],
            # The receiver handles a terminal's Ctrl-C, and stops the index after its last commit.
            start_new_session=True,
        )

    def close(self) -> None:
        """Free what outlives each process."""
        self._stop_listening()
        if self._page >= 0:
            self._memory.close()
            os.close(self._page)
            self._page = -1

    def stop(self) -> None:
        """Let it catch up with the log, and wait for its end."""
        self._stop_listening()
        if not self._is_needed:
            self._is_needed = self._is_stopping = True
            self._child.start(time.monotonic())  # safeguard: end-applies-log
        self._child.stop()


def _readable(listener: socket.socket) -> list[tuple[int, int]]:
    poller = select.poll()
    poller.register(listener, select.POLLIN)
    return poller.poll(0)
