"""Query the database file itself, where no collector runs: one query at a time, in a thread, read-only."""

import os
import struct
import threading
import time
from concurrent.futures import Future, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chiplog_client import read_model
from chiplog_client.connection import CANCELLED, CANCELLED_POLL_S
from chiplog_client.result_source import FileResult, MemoryResult, ResultSource
from chiplog_client.results.result import QueryError
from chiplog_schemas.interrupts import handlers_held
from chiplog_schemas.paths import Paths
from chiplog_schemas.query import query_messages
from chiplog_schemas.query.arrow_messages import count_rows
from chiplog_schemas.query.duckdb_errors import is_lock_conflict
from chiplog_schemas.query.query_messages import LOCKED_SETTINGS, one_line

if TYPE_CHECKING:
    import duckdb

    from chiplog_schemas.query.result_file import ResultSpace

INTERRUPT_AGAIN_S = 0.05  # DuckDB ignores an interrupt that comes before its query runs

_SYNCED = struct.Struct("<Q")  # the head of collector/synced: the number after the last record on stable storage
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


def open_file(where: Paths) -> "duckdb.DuckDBPyConnection | str":
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


def close_file(connection: "duckdb.DuckDBPyConnection") -> None:
    """Close a connection of `open_file`."""
    connection.close()
    _open_files.discard(connection)


def require_read_model(where: Paths | None, connection: "duckdb.DuckDBPyConnection", query: str) -> None:
    """Raise QueryError, and close the connection, if a query asks the read model of another version."""
    if not read_model.is_asked(query):
        return
    assert where is not None
    place, remedy = f"the database {where.index}", "start the collector (chiplog up), which replaces its views"
    reason = read_model.mismatch_reason(place, read_model.info_of_file(connection), remedy)
    if reason is not None:
        close_file(connection)
        raise QueryError("internal", reason)


def synced_number(where: Paths) -> int:
    """Return the number after the last record of the log that is on stable storage; 0 if unknown."""
    try:
        with open(where.collector / "synced", "rb") as page:
            return int(_SYNCED.unpack(page.read(_SYNCED.size))[0])
    except (OSError, struct.error):
        return 0


def unapplied_records(where: Paths, connection: "duckdb.DuckDBPyConnection") -> int:
    """Return how many records are in the log and not in the file; 0 if unknown."""
    import duckdb

    try:
        row = connection.execute("SELECT position FROM reads.state").fetchone()
    except duckdb.Error:
        return 0
    return max(0, synced_number(where) - row[0]) if row is not None else 0


def _unreadable(where: Paths, error: Exception) -> QueryError:
    return QueryError("internal", f"{where.index} cannot be read: {one_line(str(error))}; try chiplog rebuild")


def result_space(where: Paths) -> "ResultSpace":
    """Return the space for a large result: beside the database, or the system's for a directory of another user."""
    import tempfile

    from chiplog_schemas.query.result_file import ResultSpace

    is_ours = os.access(where.collector, os.W_OK)
    return ResultSpace(where.collector if is_ours else Path(tempfile.gettempdir()))


def ask(
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
            close_file(connection)
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
        if timed_out.is_set() and sink.failure is None:
            failure = execute.timeout_of(timeout_s)
        elif failure.kind == execute.DAMAGED:
            failure = execute.Failure("internal", f"{failure.message}; try chiplog rebuild")
        raise QueryError(*failure) from error
    n_rows = count_rows(sink.read_stream, sink.n_bytes)
    return MemoryResult(sink.data, n_rows) if sink.file is None else FileResult(sink.file, n_rows)
