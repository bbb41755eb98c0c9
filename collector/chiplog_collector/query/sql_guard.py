"""Parse a query in another process, and decide whether it may run: one statement that only reads.

DuckDB's parser holds the interpreter's lock. Some texts of fifty characters keep it busy for hours, and some of a
megabyte crash it. In a child process that costs only the child.
"""

import contextlib
import os
import re
import resource
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from typing import Any, BinaryIO

import duckdb

from chiplog_collector.memory_limit import limit_memory
from chiplog_schemas.codec import CodecError, pack, unpack
from chiplog_schemas.limits import QUERY_MEMORY_BYTES
from chiplog_schemas.query import query_messages
from chiplog_schemas.query.query_messages import LOCKED_SETTINGS, QueryRejected, disable_faulty_optimizers, one_line

__all__ = ["QueryRejected", "SqlError", "SqlGuardProcess", "check_query", "lock_down"]

PARSE_TIMEOUT_S = 1.0  # a thousand times the time for a query of usual length
EXAMINER_START_S = 10.0  # the import of DuckDB on a busy machine
# For one text, with a new child; a longer time means a hang.
EXAMINE_MAX_S = EXAMINER_START_S + 2 * PARSE_TIMEOUT_S + 5.0
# Functions that a SELECT can call although they change the database, its log or its settings. The read-only transaction
# or the locked settings stop most of them too, but not checkpoint(). The functions of the last two lines run or parse a
# text that only they see: a text that keeps the parser busy for hours would keep the index busy.
FUNCTIONS_REFUSED = frozenset(  # safeguard: text-parsing-functions-refused, functions-reviewed
    {
        *("checkpoint", "force_checkpoint", "truncate_duckdb_logs", "write_log"),
        *("enable_logging", "disable_logging", "enable_profiling", "disable_profiling"),
        *("create_external_resource", "destroy_external_resource", "register_external_resource"),
        *("deregister_external_resource", "register_external_resource_type"),
        *("query", "json_execute_serialized_sql"),
        *("json_serialize_sql", "json_serialize_plan", "json_deserialize_sql"),
    }
)
_LENGTH = struct.Struct("<I")
_REPLY_BYTES_MAX = 1 << 20  # a verdict is one line; a crashing parser may write anything
# In the parsed query as JSON. Inside a string the quotes would have backslashes, so a value does not match.
_FUNCTION_NAME = re.compile(r'"function_name":"((?:[^"\\]|\\.)*)"')

Connection = duckdb.DuckDBPyConnection


def lock_down(connection: Connection, memory_bytes: int = QUERY_MEMORY_BYTES) -> None:
    """Make a database safe for queries: limited memory and spilling, no files, extensions or settings. Irreversible.

    This holds for the whole instance, including the writer: do everything that needs files or settings before. Raises
    duckdb.Error when a setting is unknown, so that a version without it does not run unprotected.
    """
    disable_faulty_optimizers(connection)
    *settings, lock = LOCKED_SETTINGS
    for statement in settings:
        connection.execute(statement)
    limit_memory(connection, memory_bytes)
    connection.execute(lock)


def check_query(sql: str, connection: Connection) -> str:
    """Return the query if it is exactly one statement that only reads. Raises QueryRejected, or duckdb.Error.

    connection: any; the query is parsed there and not run. This parses in the current process, so it is only for texts
    that are known to be harmless: `SqlGuardProcess` is for users' texts.
    """

    def parse(text: str) -> list[Any]:
        statements: list[Any] = connection.extract_statements(text)
        if len(statements) == 1 and statements[0].type.name == "SELECT":
            _check_functions(text, connection)
        return statements

    return query_messages.check_statement(sql, parse)


def _check_functions(sql: str, connection: Connection) -> None:
    """Reject calls of FUNCTIONS_REFUSED, by the names that DuckDB's parser found. Raises QueryRejected."""
    (parsed,) = connection.execute("SELECT json_serialize_sql($1::VARCHAR)", [sql]).fetchall()[0]
    if not parsed.startswith('{"error":false'):
        raise QueryRejected("query cannot be checked for the functions that it calls; write it in another way")
    for name in _FUNCTION_NAME.findall(parsed):
        if name.lower() in FUNCTIONS_REFUSED:  # safeguard: writing-functions-refused
            raise QueryRejected(f"function {name}() is refused: queries only read; write one SELECT without it")


class SqlError(Exception):
    """DuckDB's error about a query, in one line."""


class SqlGuardProcess:
    """A child process that parses queries, and may hang or crash doing so.

    Thread-safe; it handles one query at a time.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since: float | None = None  # since when it has worked on a query
        self._child: subprocess.Popen[bytes] | None = None
        self.n_replaced = 0

    def check(self, sql: str, deadline: float | None = None) -> None:
        """Return if the query is admitted. Raises QueryRejected or SqlError; OSError when no child can be started.

        deadline: of `time.monotonic()`; TimeoutError when other queries kept the child busy until then.
        """
        query_messages.check_query_size(sql)
        if not self._lock.acquire(timeout=-1 if deadline is None else max(0.0, deadline - time.monotonic())):
            raise TimeoutError
        try:
            self._since = time.monotonic()
            reply = self._ask(sql)  # ask a new child, in case the previous one died after its last query
        finally:
            self._since = None
            self._lock.release()
        if reply is None:
            raise QueryRejected(f"query could not be parsed within {PARSE_TIMEOUT_S:g} s; write it with less nesting")
        verdict, message = reply
        if verdict == "refused":
            raise QueryRejected(message)
        if verdict != "admitted":
            raise SqlError(message)

    def must_restart(self, now: float) -> bool:
        """Return True if one text takes longer than possible, so the child cannot even be killed. From any thread."""
        since = self._since
        return since is not None and now - since > EXAMINE_MAX_S

    def close(self) -> None:
        """End the child."""
        with self._lock:
            self._stop()

    def _start(self) -> subprocess.Popen[bytes]:
        if self._child is None or self._child.poll() is not None:
            self._stop()
            # A separate session: Ctrl-C in a terminal is for the daemon, which then closes the pipe.
            self._child = subprocess.Popen(
                [sys.executable, "-P", "-m", "chiplog_collector.query.sql_guard"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
                bufsize=0,
            )
            if self._read(self._child, EXAMINER_START_S) is None:
                self._stop()
                raise OSError("the query parser did not start; Python's output above has the reason")
        return self._child

    def _stop(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            assert child.stdin and child.stdout
            child.kill()
            child.wait()
            child.stdin.close()
            child.stdout.close()

    def _ask(self, sql: str) -> tuple[str, str] | None:
        child = self._start()
        assert child.stdin
        data = sql.encode()
        try:
            child.stdin.write(_LENGTH.pack(len(data)) + data)  # the child reads at once, it does nothing else
        except OSError:
            reply = None
        else:
            # The child ends itself at PARSE_TIMEOUT_S; twice that allows for a busy machine.
            reply = self._read(child, PARSE_TIMEOUT_S * 2)
        if reply is None:
            self.n_replaced += 1
            self._stop()
        return reply

    @staticmethod
    def _read(child: subprocess.Popen[bytes], timeout_s: float) -> tuple[str, str] | None:
        assert child.stdout
        deadline, data, size = time.monotonic() + timeout_s, b"", _LENGTH.size
        while len(data) < size:
            if not select.select([child.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return None
            part = os.read(child.stdout.fileno(), 65_536)
            if not part:
                return None
            data += part
            if len(data) >= _LENGTH.size:
                size = _LENGTH.size + _LENGTH.unpack_from(data)[0]
            if size > _REPLY_BYTES_MAX:
                return None
        try:
            verdict, message = unpack(data[_LENGTH.size :])
        except (CodecError, ValueError, TypeError):
            return None
        return (verdict, message) if type(verdict) is str and type(message) is str else None


def serve(source: BinaryIO, target: BinaryIO) -> None:
    """Run the child: read texts and write verdicts until the pipe ends. An alarm ends a parser that hangs."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    connection = duckdb.connect()
    lock_down(connection)

    def reply(verdict: str, message: str) -> None:
        data = pack([verdict, message])
        target.write(_LENGTH.pack(len(data)) + data)
        target.flush()

    reply("ready", "")
    while head := source.read(_LENGTH.size):
        sql = source.read(_LENGTH.unpack(head)[0]).decode()
        signal.setitimer(signal.ITIMER_REAL, PARSE_TIMEOUT_S)  # SIGALRM's default action needs no interpreter
        try:
            check_query(sql, connection)
            verdict, message = "admitted", ""
        except QueryRejected as error:
            verdict, message = "refused", str(error)
        except duckdb.Error as error:
            verdict, message = "sql", one_line(str(error))
        signal.setitimer(signal.ITIMER_REAL, 0)
        reply(verdict, message)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError, CodecError):
        serve(sys.stdin.buffer, sys.stdout.buffer)
