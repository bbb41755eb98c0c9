"""Query the database: through the collector while one runs, else from its file.

`connect()` finds out which. A client for a directory checks with every query, because an embedded collector starts and
stops on demand. The file is opened for one query at a time, so that a client never blocks the start of a collector.
"""

import contextlib
import logging
import os
import struct
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chiplog_client import daemons, read_model
from chiplog_client.connection import CANCELLED, CANCELLED_POLL_S, CollectorConnection
from chiplog_client.result_source import FileResult, MemoryResult, RemoteResult, ResultSource
from chiplog_client.result_stream import ResultStream
from chiplog_client.results.result import QueryError, Result
from chiplog_schemas.addresses import query_address_of
from chiplog_schemas.interrupts import handlers_held
from chiplog_schemas.limits import MIB, QUERY_TIMEOUT_S
from chiplog_schemas.paths import Paths, paths_for_root
from chiplog_schemas.process.file_lock import lock_holder_pid
from chiplog_schemas.process.log_owner import served_elsewhere
from chiplog_schemas.process.recording_dir import recording_dir
from chiplog_schemas.query import query_messages
from chiplog_schemas.query.arrow_messages import count_rows
from chiplog_schemas.query.duckdb_errors import foreign_path_reason, is_lock_conflict
from chiplog_schemas.query.query_messages import FILE_PART_BYTES_MAX, LOCKED_SETTINGS, QueryMessageKind, one_line
from chiplog_schemas.security.curve import ClientCurve, client_curve
from chiplog_schemas.security.key_files import Keys, keys_dir
from chiplog_schemas.security.permissions import Role
from chiplog_schemas.storage.content_files import DIGEST_BYTES, read_content

if TYPE_CHECKING:
    import duckdb

    from chiplog_schemas.query.result_file import ResultSpace

__all__ = ["Client", "NoDataError", "QueryError", "Result", "ResultStream", "connect"]

CONNECT_WAIT_S = 5.0  # a starting collector answers within this
DELIVER_WAIT_S = 10.0  # for waiting journals to reach the database; a query does not wait longer
FINISHED_WAIT_S = 5.0  # for the end of a run on its way: usually it takes a tenth of a second …
FINISHED_AGAIN_S = 0.02  # … so it is looked for often
STALLED_S = 5.0  # an agent adopts journals twice a second; a large one takes seconds on a busy machine
POLL_AGAIN_S = 0.25  # between two checks of which process holds the database
SMALL_RESULT_BYTES = 16 * MIB  # of a result that `stream` receives in one message
INTERRUPT_AGAIN_S = 0.05  # DuckDB ignores an interrupt that comes before its query runs

_SYNCED = struct.Struct("<Q")  # the head of collector/synced: the number after the last record on stable storage
_log = logging.getLogger("chiplog")
# DuckDB shares an open file and its settings among the threads of a process: the first one sets them. Reentrant,
# because a signal handler may query too.
_configuring = threading.RLock()
_open_files: set[object] = set()  # connections to database files, and those that are being opened
_is_cut_off = False  # this process was forked while another thread read a file


def _after_fork() -> None:
    """Replace the lock in a forked child: the thread that held it is not there to release it.

    Nor are the threads of an open database, without which DuckDB waits forever.
    """
    global _configuring, _is_cut_off
    _configuring = threading.RLock()
    _is_cut_off = _is_cut_off or bool(_open_files)


os.register_at_fork(after_in_child=_after_fork)  # safeguard: fork-renews-configuring-lock

Params = Sequence[Any] | Mapping[str, Any] | None


class NoDataError(RuntimeError):
    """Nothing has been recorded here yet."""


def connect(url: str | None = None, *, dir: str | os.PathLike[str] | None = None, start: bool = True) -> "Client":
    """Return a client for the collector at `url`, or for the data under `dir`.

    With neither it uses the variable CHIPLOG_COLLECTOR, else CHIPLOG_DIR, else ~/.chiplog; in a child of a process with
    an open run the directory of that run.

    Args:
        url: The collector's address as agents have it: tcp://HOST:PORT (SQL is answered at the next port) or
            ipc:///PATH.
        dir: A CHIPLOG_DIR.
        start: True starts the embedded daemons if no agent runs, and journals of ended processes or a spool with events
            of ranks wait. If an embedded collector of this host was killed, it also applies the rest of its log. One
            line on stderr reports each.
            Nothing is started with `url`, with CHIPLOG_AGENT or CHIPLOG_COLLECTOR set, or in a directory that this
            user cannot write. The call waits for a collector that is starting.

    Returns:
        A client; close it, or use it as a context manager.

    Raises:
        NoDataError: Nothing has been recorded there.
        QueryError: The collector does not answer within 5 s, or refuses this host's key; `kind` is unreachable.
        ValueError: The address is malformed, or its keys are missing (`chiplog keys`): a collector on another host
            needs a reader's key.
    """
    if url is None and dir is None:
        url = os.environ.get("CHIPLOG_COLLECTOR") or None
    if url is not None and dir is not None:
        raise ValueError(f"both url={url!r} and dir={os.fspath(dir)!r} are given; give one of them")
    if url is not None:
        client = _remote_client(query_address_of(url))
    else:
        where = paths_for_root(recording_dir(dir))
        if reason := foreign_path_reason(where.index):
            raise QueryError("refused", f"{reason}; move it, and set CHIPLOG_DIR or --dir to its new place")
        if start and (elsewhere := served_elsewhere(where)):
            print(f"chiplog: {elsewhere}", file=sys.stderr)
        client = Client(None, where)
    client._may_start = start and not any(os.environ.get(name) for name in ("CHIPLOG_AGENT", "CHIPLOG_COLLECTOR"))
    try:
        waiting = client._start_daemons() if start else []  # safeguard: waiting-journals-delivered
        client._locate()
        client._wait_for_spool()
        client._wait_for_ends(waiting)
        if start:
            client._wait_for_finished()
    except BaseException:
        client.close()
        raise
    return client


def _remote_client(address: str) -> "Client":
    """Return the client of an address, with the keys of this host if it needs some. Raises ValueError."""
    keys = Keys(keys_dir(None, os.environ, recording_dir(None)))
    return Client(address, None, client_curve(keys, address, Role.READER, Role.COLLECTOR))


def _reopen(address: str | None, where: Paths | None, needs_keys: bool) -> "Client":
    """Return the client of a pickle."""
    return _remote_client(address) if address is not None and needs_keys else Client(address, where)


class Client:
    """Runs SQL; returned by `connect`. Thread-safe, one query at a time. A forked child has a connection of its own."""

    def __init__(self, address: str | None, where: Paths | None, curve: ClientCurve | None = None) -> None:
        self._address = address
        self._curve = curve
        self._where = where
        self._connection: CollectorConnection | None = None
        self._own_lock = threading.Lock()
        self._pid = os.getpid()
        self._closed = False
        self._warned_stale = False
        self._may_start = False
        self._awaits_spool = False  # an agent was started to deliver it
        self._cancelled: threading.Event | None = None  # of queries that are given none; of the page's server

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by address or directory, without keys: the copy opens a connection of its own when it is used."""
        return _reopen, (self._address, self._where, self._curve is not None)

    @property
    def _lock(self) -> threading.Lock:
        """The lock of this process: in a forked child, a thread that is not there may hold the parent's."""
        if self._pid != os.getpid():  # safeguard: fork-renews-client-lock
            self._own_lock, self._pid = threading.Lock(), os.getpid()
        return self._own_lock

    def sql(
        self,
        query: str,
        params: Params = None,
        timeout_s: float | None = None,
        time_zone: str = "UTC",
        *,
        cancelled: threading.Event | None = None,
    ) -> "Result":
        """Run one SELECT and return its whole result.

        Args:
            query: The SELECT. Times of the views are UTC without a zone; so are literals that are compared with them.
            params: Values for `?` in order, or a mapping for `$name`.
            timeout_s: At most 30, the default.
            time_zone: IANA name of the session's zone, for expressions of the query with a zone, such as
                `now()::DATE` or `timezone('UTC', ts) > '2026-01-02 03:00'`.
            cancelled: Another thread sets it to end the query, which then raises QueryError.

        Raises:
            QueryError: The query has no result; `kind` says why. The limit of a result is 256 MiB of Arrow data,
                compressed: `stream` has none.
        """
        return Result(self._open_result(query, params, timeout_s, time_zone, cancelled=cancelled).read())

    def stream(
        self,
        query: str,
        params: Params = None,
        timeout_s: float | None = None,
        time_zone: str = "UTC",
        *,
        cancelled: threading.Event | None = None,
    ) -> "ResultStream":
        """Run one SELECT and return its result batch by batch, in bounded memory here and at the collector.

        The query runs at once and as a whole; no transaction is open while you read. Other queries of this client work
        in the meantime. The collector drops a result of which nothing was read for 10 minutes.

        Args:
            query: As of `sql`.
            params: As of `sql`.
            timeout_s: Of the query, without the reading; at most 30, the default.
            time_zone: As of `sql`.
            cancelled: As of `sql`.

        Returns:
            An iterator of Arrow record batches; close it, or use it as a context manager.

        Raises:
            QueryError: The query has no result; `kind` says why.

        Examples:
            >>> with client.stream("FROM metrics") as stream:
            ...     for batch in stream:
            ...         print(batch.num_rows)
        """
        return ResultStream(self._open_result(query, params, timeout_s, time_zone, SMALL_RESULT_BYTES, cancelled))

    def _open_result(
        self,
        query: str,
        params: Params,
        timeout_s: float | None,
        time_zone: str,
        bytes_max: int = 0,
        cancelled: threading.Event | None = None,
    ) -> ResultSource:
        """Run a query. cancelled: as of `stream`."""
        plain = _plain_params(params)
        timeout_s = QUERY_TIMEOUT_S if timeout_s is None else float(timeout_s)
        if not 0 < timeout_s <= QUERY_TIMEOUT_S:
            raise QueryError("refused", f"timeout of {timeout_s:g} s is not within 0 and {QUERY_TIMEOUT_S:g} s")
        with self._lock:
            if self._closed:
                raise QueryError("refused", "this client is closed; connect again")
            zone = "" if time_zone == "UTC" else time_zone
            return self._execute(query, plain, timeout_s, zone, bytes_max, cancelled or self._cancelled)

    def read_file(self, sha256: str, offset: int = 0) -> Iterator[bytes]:
        """Yield a stored content, in parts of up to 1 MiB. The caller compares its digest.

        Args:
            sha256: Its digest in 64 hex digits, as in the views `files` and `media`.
            offset: Bytes at its start that are left out.

        Raises:
            QueryError: The content is not stored there, or the collector does not answer.
            ValueError: `sha256` is not a digest.
        """
        digest = bytes.fromhex(sha256)
        if len(digest) != DIGEST_BYTES:
            raise ValueError(f"sha256 {sha256!r:.80} is not {2 * DIGEST_BYTES} hex digits; the view files has it")
        n_bytes = offset + 1
        while offset < n_bytes:
            with self._lock:
                n_bytes, part = self._read_part(digest, offset)
            if not part and offset < n_bytes:
                raise QueryError("internal", f"the file {sha256} ends after {offset} of {n_bytes} bytes")
            offset += len(part)
            yield bytes(part)

    def _read_part(self, digest: bytes, offset: int) -> tuple[int, bytes | memoryview]:
        if self._closed:
            raise QueryError("refused", "this client is closed; connect again")
        if self._where is not None and not self._collector_lives():
            self._disconnect()
            try:
                return read_content(self._where.files, digest, offset, FILE_PART_BYTES_MAX)
            except FileNotFoundError:
                raise QueryError("refused", f"content {digest.hex()} is not stored in {self._where.files}") from None
            except OSError as error:
                raise QueryError("internal", f"a saved file cannot be read: {error}") from error
        if self._connection is None or self._connection.is_broken:
            self._disconnect()
            self._locate()
        if self._connection is None:  # the collector has just ended
            return self._read_part(digest, offset)
        try:
            return self._connection.read_file(digest, offset, self._collector_lives)
        except QueryError as error:
            # safeguard: file-read-without-collector
            if error.kind != "unreachable" or self._where is None or self._collector_lives():
                raise
            return self._read_part(digest, offset)  # from the directory: an embedded collector has ended

    def delete_runs(self, run_ids: Sequence[str], *, force: bool = False, why: str = "") -> dict[str, Any]:
        """Delete runs: their rows, and with time their records in the log and their saved files.

        What still arrives of their processes is ignored. A new run may have the same ID. If no collector runs for a
        directory of this host, one is started for it.

        Args:
            run_ids: The runs. All are deleted, or none.
            force: Also runs with a label that has not ended.
            why: A text for the row in `events`.

        Returns:
            The numbers of deleted `runs` and `labels`.

        Raises:
            QueryError: Nothing was deleted: a run is unknown or runs (`kind` is refused), this client may not, or the
                collector does not answer.
        """
        return self._change("delete", {"runs": list(run_ids), "force": force, "why": why})

    def edit_run(self, run_id: str, **fields: Any) -> dict[str, Any]:
        """Change what describes a run. An edited field no longer follows what its processes report.

        Args:
            run_id: The run.
            **fields: `name`, `notes`, `project`, `group`, `job_type`: texts; `tags`: a list of texts. None clears one.

        Raises:
            QueryError: Nothing was changed; `kind` says why.
        """
        return self._change("edit", {"run": run_id, "fields": fields})

    def restore_producers(self, producers: Sequence[bytes]) -> dict[str, Any]:
        """Let what these processes recorded be stored again after a deletion, for an import. Raises QueryError.

        Args:
            producers: 16 bytes each.
        """
        return self._change("restore", {"producers": list(producers)})

    def save_view(self, name: str, view: str | None) -> dict[str, Any]:
        """Keep a JSON text under a name, for the view `saved_views`; None removes it. Raises QueryError."""
        return self._change("save_view", {"name": name, "view": view})

    def _change(self, action: str, arguments: dict[str, Any]) -> dict[str, Any]:
        id = os.urandom(query_messages.ID_BYTES)
        with self._lock:
            for last in (False, True):
                if self._closed:
                    raise QueryError("refused", "this client is closed; connect again")
                if self._where is not None and not self._collector_lives():
                    self._disconnect()
                    _start_collector(self._where)
                if self._connection is None or self._connection.is_broken:
                    self._disconnect()
                    self._locate()
                try:
                    if self._connection is not None:
                        return self._connection.change(id, action, arguments, self._collector_lives)
                except QueryError as error:
                    # safeguard: change-survives-idle-exit
                    if error.kind not in ("unreachable", "stopping") or last or self._where is None:
                        raise
                    self._disconnect()
            raise QueryError("unreachable", "the collector ends whenever it is asked; see chiplog status")

    def close(self) -> None:
        """Close the connection. May be called twice."""
        with self._lock:
            self._closed = True
            self._disconnect()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _execute(
        self,
        query: str,
        params: "list[Any] | dict[str, Any] | None",
        timeout_s: float,
        time_zone: str,
        bytes_max: int,
        cancelled: threading.Event | None,
    ) -> ResultSource:
        for last in (False, True):
            if self._connection is not None and (self._connection.is_broken or not self._collector_lives()):
                self._disconnect()
            if self._connection is None:
                opened = self._locate(keep_file=True)
                if opened is not None:
                    _require_read_model(self._where, opened, query)
                    self._warn_stale(opened)
                    space = _result_space(self._where) if bytes_max and self._where is not None else None
                    return _ask_file(opened, query, params, timeout_s, time_zone, space, cancelled)
            assert self._connection is not None
            try:
                lives = self._collector_lives
                answer = self._connection.execute(query, params, timeout_s, lives, time_zone, bytes_max, cancelled)
                if answer.kind == QueryMessageKind.RESULT:
                    return MemoryResult(answer.payload, answer.n_rows)
                # The rest of the result is read through this connection; the next query opens another one.
                remote, self._connection = self._connection, None
                return RemoteResult(remote, answer, lives, cancelled)
            except QueryError as error:
                # An embedded collector exits when it is idle, and aborts queries: its file is free then.
                # safeguard: cut-query-asked-again
                if error.kind not in ("unreachable", "stopping") or last or self._where is None:
                    raise
                self._disconnect()
            except (
                BaseException
            ):  # of a signal handler: a collector that knows no CANCEL drops the query of a closed connection
                self._disconnect()
                raise
        raise AssertionError("the second try returns or raises")

    def _start_daemons(self) -> list[bytes]:
        """Start the embedded daemons if journals or a spool wait; return the producers of those journals."""
        if self._where is None or not self._may_start:
            return []
        waiting = daemons.waiting_journals(self._where)
        has_spool = daemons.may_start_agent(self._where) and daemons.has_undelivered_spool(self._where)
        if waiting or has_spool:  # safeguard: undelivered-spool-delivered
            what = f"{daemons.what_waits(len(waiting))} in {self._where.journals}"
            if not waiting:
                what = daemons.what_spool_has(self._where)
            them = "it" if len(waiting) == 1 else "them"
            try:
                daemons.start(self._where, daemons.AGENT, ["--embedded"])
            except OSError as error:
                print(f"chiplog: {what}, and no agent can be started: {error}", file=sys.stderr)
                return []
            self._awaits_spool = has_spool
            started = "an agent was" if daemons.goes_elsewhere(self._where) else "an agent and a collector were"
            print(f"chiplog: {what}; {started} started to deliver {them}", file=sys.stderr)
        return waiting

    def _open_file(self, where: Paths) -> "duckdb.DuckDBPyConnection | str":
        """Open the database; before that apply, once, the rest of the log of an embedded collector that was killed.

        The same replaces the views of an older version.

        Returns one line with the reason if the database cannot be opened now. Raises NoDataError.
        """
        may_apply, is_outdated = self._may_start and daemons.may_apply_log(where), False
        if where.index.exists():
            opened = _open_file(where)
            if isinstance(opened, str) or not may_apply:
                return opened
            is_outdated = read_model.is_outdated(opened)
            if not is_outdated and _unapplied_records(where, opened) == 0:
                return opened
            _close_file(opened)
        elif not may_apply:
            raise _no_data(where)
        self._may_start = False
        if is_outdated:
            what = f"the database {where.index} has the views of an older version of chiplog"
            print(f"chiplog: {what}; they are replaced now", file=sys.stderr)
        else:
            what = f"the log in {where.collector} has records that are not in the database"
            print(f"chiplog: {what}; they are applied now", file=sys.stderr)
        try:
            daemons.apply_log(where)  # safeguard: reader-applies-log
        except OSError as error:
            print(f"chiplog: {what}: {error}", file=sys.stderr)
        return _open_file(where) if where.index.exists() else what

    def _wait_for_spool(self) -> None:
        """Wait until the agent that this client started has delivered the spool, for at most DELIVER_WAIT_S."""
        if self._where is None or not self._awaits_spool:
            return
        deadline = time.monotonic() + DELIVER_WAIT_S
        while daemons.has_undelivered_spool(self._where) and time.monotonic() < deadline:
            time.sleep(POLL_AGAIN_S)

    def _wait_for_finished(self) -> None:
        """Wait until the local collector has the runs that have just finished, for at most FINISHED_WAIT_S.

        One line reports what is missing then. What running processes log, or what goes elsewhere, is not waited for.
        """
        where = self._where
        if where is None:
            return
        is_here = daemons.daemon_pid(where, daemons.COLLECTOR) or daemons.is_coming_up(where, daemons.AGENT)
        if not is_here:
            return
        waiting = {where.journals / producer.hex() for producer in daemons.journals_on_their_way(where)}
        owes = bool(waiting) or daemons.has_just_finished(where)
        deadline = time.monotonic() + FINISHED_WAIT_S
        while waiting or (owes and daemons.has_undelivered_spool(where)):  # safeguard: finished-run-awaited
            # Checked each time, because an agent that has just started writes down where it delivers.
            if daemons.goes_elsewhere(where):  # safeguard: run-of-elsewhere-not-awaited
                return
            waiting = {path for path in waiting if path.exists()}
            if time.monotonic() > deadline:
                what = daemons.what_waits(len(waiting)) if waiting else daemons.what_spool_has(where)
                print(f"chiplog: {what}; the answers lack it until then, see chiplog status", file=sys.stderr)
                return
            time.sleep(FINISHED_AGAIN_S)
        if owes:
            self._wait_for_index(where, deadline)

    def _wait_for_index(self, where: Paths, deadline: float) -> None:
        """Wait until the database has what the collector has now. A query may share a flush that began before that."""
        synced = _synced_number(where)
        position = "SELECT position FROM reads.state"
        with contextlib.suppress(QueryError, IndexError):  # the query of the user reports it
            while (applied := self.sql(position).rows()[0]["position"]) < synced:  # safeguard: finished-run-applied
                if time.monotonic() > deadline:
                    what = f"{synced - applied} records of the log are not in the database yet"
                    print(f"chiplog: {what}; the answers lack them until then, see chiplog status", file=sys.stderr)
                    return
                time.sleep(FINISHED_AGAIN_S)

    def _wait_for_ends(self, producers: list[bytes]) -> None:
        """Wait until the database has the journals of these producers, for at most DELIVER_WAIT_S.

        If the agent has removed none of them for STALLED_S, do not wait for the rest.
        """
        if not producers or self._where is None:
            return
        query = "SELECT count(*) AS n FROM reads.producers WHERE list_contains($ended, id) AND state IS NOT NULL"
        n_left = len(producers)
        now = time.monotonic()
        deadline, stalled_at = now + DELIVER_WAIT_S, now + STALLED_S
        while time.monotonic() < deadline:
            left = [producer for producer in producers if (self._where.journals / producer.hex()).exists()]
            if len(left) < n_left:
                n_left, stalled_at = len(left), time.monotonic() + STALLED_S
            is_stalled = time.monotonic() >= stalled_at  # safeguard: stalled-delivery-ends-wait
            ended = [producer.hex().upper() for producer in producers if not (is_stalled and producer in left)]
            if self.sql(query, {"ended": ended}).rows()[0]["n"] == len(ended):
                return
            time.sleep(POLL_AGAIN_S)

    def _warn_stale(self, opened: "duckdb.DuckDBPyConnection") -> None:
        """Warn once if daemons were killed before all acknowledged records were in the file."""
        assert self._where is not None
        n_records = 0 if self._warned_stale else _unapplied_records(self._where, opened)
        if n_records > 0:
            self._warned_stale = True
            _log.warning(
                "chiplog: %d records of the log are not in the database yet; start the collector (chiplog up) "
                "to apply them",
                n_records,
            )

    def _awaits_daemons(self, where: Paths) -> bool:
        """Return True if a process records here whose agent, and with it the first collector, is about to start."""
        if where.index.exists() or daemons.has_log(where) or daemons.daemon_pid(where, daemons.AGENT):
            return False
        return daemons.has_live_journal(where)

    def _starts_collector(self, where: Paths) -> bool:
        """Return True if an agent was started a short time ago that starts a collector here if none runs."""
        # safeguard: collector-elsewhere-not-awaited
        return daemons.is_coming_up(where, daemons.AGENT) and not daemons.goes_elsewhere(where)

    def _collector_lives(self) -> bool:
        """Return True if the collector may still answer, as is assumed of a collector on another machine."""
        return self._where is None or lock_holder_pid(self._where.collector / "lock") != 0

    def _locate(self, keep_file: bool = False) -> "duckdb.DuckDBPyConnection | None":
        """Find the collector or the file. Sets _remote, or returns the open file if `keep_file`."""
        if self._address is not None:
            self._connection = CollectorConnection(self._address, self._curve)
            if not self._connection.ping(CONNECT_WAIT_S):
                remedy = "check that it runs there (chiplog status) and that CHIPLOG_COLLECTOR is its address"
                remedy = self._connection.handshake_error or remedy
                self._disconnect()
                raise QueryError(
                    "unreachable", f"no collector answers at {self._address} within {CONNECT_WAIT_S:g} s; {remedy}"
                )
            return None
        assert self._where is not None
        where, begun = self._where, time.monotonic()
        deadline = begun + CONNECT_WAIT_S
        while True:
            pid = lock_holder_pid(where.collector / "lock")
            if pid:
                self._connection = CollectorConnection(where.query_address)
                # In slices: it may be exiting instead of starting.
                if self._connection.ping(min(1.0, max(0.05, deadline - time.monotonic()))):
                    return None
                self._disconnect()
                reason = f"the collector of {where.root} (process {pid}) does not answer; see chiplog status"
            # safeguard: connect-waits-for-collector
            elif not where.index.exists() and self._starts_collector(where):
                reason = f"the agent of {where.root} has not started a collector yet; see chiplog status"
            # safeguard: live-journals-count
            elif self._awaits_daemons(where):
                reason = f"processes record in {where.root}, and no agent has started yet; see chiplog status"
                deadline = max(deadline, begun + daemons.START_WAIT_S)
            else:
                opened = self._open_file(where)
                if not isinstance(opened, str):
                    if keep_file:
                        return opened
                    _close_file(opened)
                    return None
                reason = opened
            if time.monotonic() > deadline + daemons.start_wait_s(where):
                raise QueryError("unreachable", reason)
            time.sleep(POLL_AGAIN_S)


def _start_collector(where: Paths) -> None:
    """Start the embedded collector of a directory, for a change. Raises QueryError."""
    if elsewhere := daemons.goes_elsewhere(where):  # safeguard: change-starts-no-second-collector
        raise QueryError("refused", f"no collector runs for {where.root}; {elsewhere}")
    if not daemons.may_apply_log(where):
        remedy = f"start it (chiplog up --dir {where.root}), or name its address with --url"
        raise QueryError("refused", f"no collector runs for {where.root}, and only it can change data; {remedy}")
    try:
        daemons.start(where, daemons.COLLECTOR, ["--embedded"])
    except OSError as error:
        raise QueryError("unreachable", f"no collector can be started for {where.root}: {error}") from error


# -- the file ---------------------------------------------------------------------------------------------------------
def _open_file(where: Paths) -> "duckdb.DuckDBPyConnection | str":
    """Open the database for reading; return one line with the reason if another process is writing it."""
    import duckdb

    if _is_cut_off:  # safeguard: fork-during-query-is-an-error
        reason = f"this process was forked while its parent read {where.index}, which it cannot open now"
        raise QueryError("unreachable", f"{reason}; start a collector (chiplog up), or the process by spawn")
    opening = object()
    _open_files.add(opening)
    try:
        with _configuring:
            connection = duckdb.connect(str(where.index), read_only=True)
            locked = connection.execute("SELECT current_setting('lock_configuration')").fetchone()
            if locked is None or not locked[0]:  # safeguard: shared-database-configured-once
                query_messages.disable_faulty_optimizers(connection)
                query_messages.allow_contents(connection, where.files)
                for statement in LOCKED_SETTINGS:
                    connection.execute(statement)
            _open_files.add(connection)
            return connection
    except duckdb.IOException as error:
        if is_lock_conflict(str(error), str(where.index)):  # a starting collector, or one of another host or container
            return f"{where.index} is in use: {one_line(str(error))}"
        raise _unreadable(where, error) from error
    except duckdb.Error as error:
        raise _unreadable(where, error) from error
    finally:
        _open_files.discard(opening)


def _require_read_model(where: Paths | None, connection: "duckdb.DuckDBPyConnection", query: str) -> None:
    """Raise QueryError, and close the connection, if a query asks the read model of another version."""
    if not read_model.is_asked(query):
        return
    assert where is not None
    place, remedy = f"the database {where.index}", "start the collector (chiplog up), which replaces its views"
    reason = read_model.mismatch_reason(place, read_model.info_of_file(connection), remedy)
    if reason is not None:
        _close_file(connection)
        raise QueryError("internal", reason)


def _close_file(connection: "duckdb.DuckDBPyConnection") -> None:
    connection.close()
    _open_files.discard(connection)


def _no_data(where: Paths) -> NoDataError:
    if elsewhere := daemons.goes_elsewhere(where):
        return NoDataError(elsewhere)
    if daemons.has_log(where):
        return NoDataError(f"no database has the log in {where.collector} yet; start the collector (chiplog up)")
    return NoDataError(
        f"nothing has been recorded under {where.root} yet; run a training with chiplog.init() first, "
        "or point CHIPLOG_DIR or --dir at the right directory"
    )


def _synced_number(where: Paths) -> int:
    """Return the number after the last record of the log that is on stable storage; 0 if unknown."""
    try:
        with open(where.collector / "synced", "rb") as page:
            return int(_SYNCED.unpack(page.read(_SYNCED.size))[0])
    except (OSError, struct.error):
        return 0


def _unapplied_records(where: Paths, connection: "duckdb.DuckDBPyConnection") -> int:
    """Return how many records are in the log and not in the file; 0 if unknown."""
    import duckdb

    try:
        row = connection.execute("SELECT position FROM reads.state").fetchone()
    except duckdb.Error:
        return 0
    return max(0, _synced_number(where) - row[0]) if row is not None else 0


def _unreadable(where: Paths, error: Exception) -> QueryError:
    return QueryError("internal", f"{where.index} cannot be read: {one_line(str(error))}; try chiplog rebuild")


def _ask_file(
    connection: "duckdb.DuckDBPyConnection",
    query: str,
    params: "list[Any] | dict[str, Any] | None",
    timeout_s: float,
    time_zone: str,
    space: "ResultSpace | None" = None,
    cancelled: threading.Event | None = None,
) -> ResultSource:
    """Run a query in a thread of its own, and close the connection. Raises QueryError.

    space: for a large result, which is refused without it. cancelled: as of `Client._open_result`.

    Signal handlers run in the main thread. There DuckDB would replace what a handler raises by an error of the query,
    and would call a handler only once a long task of the query has ended.
    """
    answer: Future[ResultSource] = Future()
    timed_out = threading.Event()

    def work() -> None:
        try:
            answer.set_result(_read_file(connection, query, params, timeout_s, time_zone, timed_out, space))
        except BaseException as error:
            answer.set_exception(error)

    thread = threading.Thread(target=work, name="chiplog-query", daemon=True)
    has_started = False
    try:
        with handlers_held():  # safeguard: starting-query-interrupted
            thread.start()
            has_started = True
        # safeguard: interrupt-passes-sql
        _wait_for(answer, timeout_s, cancelled)  # Thread.join() takes a running thread for ended if a handler raises
    finally:  # also when a signal handler raises: the process must not end while the query runs
        with handlers_held():
            while has_started and not answer.done():
                timed_out.set()
                connection.interrupt()
                wait([answer], INTERRUPT_AGAIN_S)
            _close_file(connection)
    if cancelled is not None and cancelled.is_set() and answer.exception() is not None:
        raise QueryError("cancelled", CANCELLED)
    return answer.result()


def _wait_for(answer: "Future[ResultSource]", timeout_s: float, cancelled: threading.Event | None) -> None:
    """Wait until there is an answer, the time is over, or another thread has cancelled the query."""
    if cancelled is None:
        wait([answer], timeout_s)
        return
    deadline = time.monotonic() + timeout_s
    while not cancelled.is_set() and (left_s := deadline - time.monotonic()) > 0:
        if wait([answer], min(left_s, CANCELLED_POLL_S)).done:
            return


def _read_file(
    connection: "duckdb.DuckDBPyConnection",
    query: str,
    params: "list[Any] | dict[str, Any] | None",
    timeout_s: float,
    time_zone: str,
    timed_out: threading.Event,
    space: "ResultSpace | None",
) -> ResultSource:
    """Return the Arrow IPC stream of a result. Raises QueryError. timed_out: set when the query is interrupted."""
    from chiplog_schemas.query import execute  # imported here, as DuckDB: a training needs neither
    from chiplog_schemas.query.result_sink import ResultSink

    sink = ResultSink(space)
    try:
        admitted = query_messages.check_statement(query, connection.extract_statements)
        if time_zone:
            connection.execute(query_messages.time_zone_setting(time_zone))
        execute.stream_result(connection, admitted, params, sink)
    except query_messages.QueryRejected as error:
        raise QueryError("refused", str(error)) from error
    except Exception as error:  # Arrow passes errors of a running stream on without their type
        sink.close_file()
        failure = execute.failure_of(error, sink)
        if timed_out.is_set() and sink.refusal is None:
            failure = execute.timeout_of(timeout_s)
        elif failure.kind == execute.DAMAGED:
            failure = execute.Failure("internal", f"{failure.message}; try chiplog rebuild")
        raise QueryError(*failure) from error
    n_rows = count_rows(sink.read_stream, sink.n_bytes)
    return MemoryResult(sink.data, n_rows) if sink.file is None else FileResult(sink.file, n_rows)


def _result_space(where: Paths) -> "ResultSpace":
    """Return the space for a large result: beside the database, or the system's for a directory of another user."""
    import tempfile

    from chiplog_schemas.query.result_file import ResultSpace

    is_ours = os.access(where.collector, os.W_OK)
    return ResultSpace(where.collector if is_ours else Path(tempfile.gettempdir()))


# -- values in --------------------------------------------------------------------------------------------------------
def _plain_params(params: Params) -> "list[Any] | dict[str, Any] | None":
    """Turn parameters into plain values: times become text in UTC, numpy and torch scalars become numbers."""
    if params is None:
        return None
    if isinstance(params, Mapping):
        return {str(name): _plain(value, f"${name}") for name, value in params.items()}
    if isinstance(params, str | bytes) or not isinstance(params, Sequence):
        raise QueryError("refused", f"params is {type(params).__name__}; give a list of values or a mapping of names")
    return [_plain(value, f"?{number}") for number, value in enumerate(params, 1)]


def _plain(value: Any, name: str) -> Any:
    if isinstance(value, datetime):
        if value.tzinfo is not None:
            value = value.astimezone(UTC).replace(tzinfo=None)
        return value.isoformat(sep=" ")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, list | tuple):
        return [_plain(item, name) for item in value]
    if query_messages.is_plain(value):
        return value
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "ndim", 0) == 0:
        return _plain(item(), name)
    raise QueryError(
        "refused", f"parameter {name} is {type(value).__name__}; give a number, text, bytes, a time or a list of those"
    )
