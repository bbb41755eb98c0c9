"""Parse a query in another process: decide whether it may run, one statement that only reads, and find what it reads.

DuckDB's parser holds the interpreter's lock. Some texts of fifty characters keep it busy for hours, and some of a
megabyte crash it. In a child process that costs only the child.

The first child is forked before the index opens DuckDB: it takes milliseconds, where a new interpreter that imports
DuckDB takes a fifth of a second. A child that replaces it is a new interpreter, because the index then has threads.
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
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import duckdb

from chiplog_collector.memory_limit import bound_memory, limit_memory
from chiplog_collector.query.query_references import References, from_plain, references, to_plain
from chiplog_schemas.codec import CodecError, pack, unpack
from chiplog_schemas.limits import QUERY_MEMORY_BYTES
from chiplog_schemas.query import query_messages
from chiplog_schemas.query.query_messages import (
    LOCKED_SETTINGS,
    QueryRejected,
    allow_contents,
    disable_faulty_optimizers,
    one_line,
)

__all__ = ["QueryRejected", "SqlError", "SqlGuardProcess", "check_query", "lock_down"]

PARSE_TIMEOUT_S = 1.0  # a thousand times the time for a query of usual length
EXAMINER_START_S = 10.0  # the import of DuckDB on a busy machine
# For one text, with a new child; a longer time means a hang.
EXAMINE_MAX_S = EXAMINER_START_S + 2 * PARSE_TIMEOUT_S + 5.0
# Functions that a SELECT can call although they change the database, its log or its settings. The read-only transaction
# or the locked settings stop most of them too, but not checkpoint(). The functions of the last three lines run or
# parse a text that only they see: a text that keeps the parser busy for hours would keep the index busy. A stored
# content may be a database whose views are such texts.
FUNCTIONS_REFUSED = frozenset(  # safeguard: text-parsing-functions-refused, functions-reviewed
    {
        *("checkpoint", "force_checkpoint", "truncate_duckdb_logs", "write_log"),
        *("enable_logging", "disable_logging", "enable_profiling", "disable_profiling"),
        *("create_external_resource", "destroy_external_resource", "register_external_resource"),
        *("deregister_external_resource", "register_external_resource_type"),
        *("add_grammar_extension", "remove_grammar_extension"),
        *("query", "json_execute_serialized_sql"),
        *("json_serialize_sql", "json_serialize_plan", "json_deserialize_sql"),
        "read_duckdb",
    }
)
# Texts that are not parsed again: a page and `chiplog top` ask the same ones all the time.
ADMITTED_MAX = 256
ADMITTED_CHARS_MAX = 8 << 10  # of one of them, more than the longest of the page: 2 MiB of ASCII in all
WARM_UP_AFTER_S = 5.0  # an idle child then connects to DuckDB, 30 ms; the index of a shorter job saves that
_LENGTH = struct.Struct("<I")
_READY = _LENGTH.pack(0)
_REPLY_BYTES_MAX = 1 << 20  # a verdict is one line, and what a query reads is bounded; a crash may write anything
# In the parsed query as JSON. Inside a string the quotes would have backslashes, so a value does not match.
_FUNCTION_NAME = re.compile(r'"function_name":"((?:[^"\\]|\\.)*)"')

Connection = duckdb.DuckDBPyConnection


def lock_down(
    connection: Connection,
    memory_bytes: int = QUERY_MEMORY_BYTES,
    files: Path | None = None,
    others: Iterable[Path] = (),
) -> None:
    """Make a database safe for queries: limited memory and spilling, no files, extensions or settings. Irreversible.

    files: the directory of contents. others: directories of a store. Queries may read no other files.

    This holds for the whole instance, including the writer: do everything that needs files or settings before. Raises
    duckdb.Error when a setting is unknown, so that a version without it does not run unprotected.
    """
    disable_faulty_optimizers(connection)
    if files is not None:
        allow_contents(connection, files, others)
    *settings, lock = LOCKED_SETTINGS
    for statement in settings:
        connection.execute(statement)
    limit_memory(connection, memory_bytes)
    connection.execute(lock)


def check_query(sql: str, connection: Connection) -> References:
    """Return what a query reads, if it is exactly one statement that only reads. Raises QueryRejected, or duckdb.Error.

    connection: any; the query is parsed there and not run. This parses in the current process, so it is only for texts
    that are known to be harmless: `SqlGuardProcess` is for users' texts.
    """
    trees: list[str] = []  # of the query, which may be in an EXPLAIN

    def parse(text: str) -> list[Any]:
        statements: list[Any] = connection.extract_statements(text)
        if len(statements) == 1 and statements[0].type.name == "SELECT":
            trees.append(_checked_tree(text, connection))
        return statements

    query_messages.check_statement(sql, parse)
    return references(trees[-1])


def _checked_tree(sql: str, connection: Connection) -> str:
    """Return the tree of a query. Rejects calls of FUNCTIONS_REFUSED, by the names that DuckDB's parser found.

    Raises QueryRejected.
    """
    (parsed,) = connection.execute("SELECT json_serialize_sql($1::VARCHAR)", [sql]).fetchall()[0]
    if not parsed.startswith('{"error":false'):
        raise QueryRejected("query cannot be checked for the functions that it calls; write it in another way")
    for name in _FUNCTION_NAME.findall(parsed):
        if name.lower() in FUNCTIONS_REFUSED:  # safeguard: writing-functions-refused
            raise QueryRejected(f"function {name}() is refused: queries only read; write one SELECT without it")
    return str(parsed)


class SqlError(Exception):
    """DuckDB's error about a query, in one line."""


class ForkedChild:
    """A fork of this process that parses queries, with the methods of `subprocess.Popen` that are needed."""

    def __init__(self, memory_bytes: int) -> None:
        """Fork. Only a process with one Python thread and without DuckDB connections may do that."""
        source, stdin = os.pipe2(os.O_CLOEXEC)
        stdout, target = os.pipe2(os.O_CLOEXEC)
        self.pid = os.fork()
        if self.pid == 0:
            _run_forked(source, target, memory_bytes)
        os.close(source)
        os.close(target)
        self.stdin, self.stdout = os.fdopen(stdin, "wb", buffering=0), os.fdopen(stdout, "rb", buffering=0)
        self._is_running = True

    def poll(self) -> int | None:
        """Return None while the child runs, else a number."""
        self._wait(os.WNOHANG)
        return None if self._is_running else 0

    def wait(self) -> None:
        """Wait for the end of the child."""
        self._wait(0)

    def kill(self) -> None:
        """Kill the child."""
        if self._is_running:  # until it is waited for, no other process gets its number
            os.kill(self.pid, signal.SIGKILL)

    def _wait(self, options: int) -> None:
        if self._is_running:
            self._is_running = os.waitpid(self.pid, options)[0] == 0


_Child = subprocess.Popen[bytes] | ForkedChild
_Reply = tuple[str, str, References]  # a verdict, its reason, and what the query reads


def _run_forked(source: int, target: int, memory_bytes: int) -> NoReturn:
    """Run the forked child on two pipes, with none of the files and signal handlers of the index."""
    status = 1
    try:
        os.setsid()
        os.dup2(source, 0)
        os.dup2(target, 1)
        for descriptor in [int(name) for name in os.listdir("/proc/self/fd")]:
            if descriptor > 2:  # safeguard: parser-inherits-no-files
                with contextlib.suppress(OSError):  # that of the directory, closed already
                    os.close(descriptor)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        bound_memory(memory_bytes)  # safeguard: parser-memory-bounded
        with open(0, "rb", closefd=False) as requests, open(1, "wb", closefd=False) as replies:
            serve(requests, replies)
        status = 0
    except BrokenPipeError:
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)  # nothing else of the index may run here


class SqlGuardProcess:
    """A child process that parses queries, and may hang or crash doing so.

    Thread-safe; it handles one query at a time. first: the child to begin with; by default the first query starts one.
    """

    def __init__(self, first: ForkedChild | None = None) -> None:
        self._lock = threading.Lock()
        self._since: float | None = None  # since when it has worked on a query
        self._child: _Child | None = first
        self._is_ready = False  # the child
        self._admitted: dict[str, References] = {}  # what the last texts read, in their order
        self.n_replaced = 0

    def check(self, sql: str, deadline: float | None = None) -> References:
        """Return what an admitted query reads.

        Raises QueryRejected or SqlError; OSError when no child can be started.

        deadline: of `time.monotonic()`; TimeoutError when other queries kept the child busy until then.
        """
        if (known := self._admitted.get(sql)) is not None:
            return known
        query_messages.check_query_size(sql)
        if not self._lock.acquire(timeout=-1 if deadline is None else max(0.0, deadline - time.monotonic())):
            raise TimeoutError
        try:
            self._since = time.monotonic()
            reply = self._ask(sql)  # ask a new child, in case the previous one died after its last query
            if reply is not None and reply[0] == "admitted" and len(sql) <= ADMITTED_CHARS_MAX:
                if len(self._admitted) == ADMITTED_MAX:
                    del self._admitted[next(iter(self._admitted))]
                self._admitted[sql] = reply[2]
        finally:
            self._since = None
            self._lock.release()
        if reply is None:
            raise QueryRejected(f"query could not be parsed within {PARSE_TIMEOUT_S:g} s; write it with less nesting")
        verdict, message, found = reply
        if verdict == "refused":
            raise QueryRejected(message)
        if verdict != "admitted":
            raise SqlError(message)
        return found

    def must_restart(self, now: float) -> bool:
        """Return True if one text takes longer than possible, so the child cannot even be killed. From any thread."""
        since = self._since
        return since is not None and now - since > EXAMINE_MAX_S

    def close(self) -> None:
        """End the child."""
        with self._lock:
            self._stop()

    def _start(self) -> _Child:
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
        if not self._is_ready:
            if self._exchange(self._child, b"", EXAMINER_START_S) is None:
                self._stop()
                raise OSError("the query parser did not start; Python's output above has the reason")
            self._is_ready = True
        return self._child

    def _stop(self) -> None:
        child, self._child, self._is_ready = self._child, None, False
        if child is not None:
            assert child.stdin and child.stdout
            child.kill()
            child.wait()
            child.stdin.close()
            child.stdout.close()

    def _ask(self, sql: str) -> _Reply | None:
        # The child ends itself at PARSE_TIMEOUT_S; twice that allows for a busy machine.
        reply = self._exchange(self._start(), sql.encode(), PARSE_TIMEOUT_S * 2)
        if reply is None:
            self.n_replaced += 1
            self._stop()
        return reply

    def _exchange(self, child: _Child, data: bytes, timeout_s: float) -> _Reply | None:
        assert child.stdin
        try:
            child.stdin.write(_LENGTH.pack(len(data)) + data)  # the child reads at once, it does nothing else
        except OSError:
            return None
        return self._read(child, timeout_s)

    @staticmethod
    def _read(child: _Child, timeout_s: float) -> _Reply | None:
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
            verdict, message, found = unpack(data[_LENGTH.size :])
        except (CodecError, ValueError, TypeError):
            return None
        return (verdict, message, from_plain(found)) if type(verdict) is str and type(message) is str else None


def serve(source: BinaryIO, target: BinaryIO) -> None:
    """Run the child: read texts and write verdicts until the pipe ends. An alarm ends a parser that hangs.

    An empty text asks whether the child is ready.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    select.select([source], [], [], WARM_UP_AFTER_S)
    connection = duckdb.connect()
    lock_down(connection)

    def reply(verdict: str, message: str, found: References = ()) -> None:
        data = pack([verdict, message, to_plain(found)])
        target.write(_LENGTH.pack(len(data)) + data)
        target.flush()

    while head := source.read(_LENGTH.size):
        if head == _READY:
            reply("ready", "")
            continue
        sql = source.read(_LENGTH.unpack(head)[0]).decode()
        signal.setitimer(signal.ITIMER_REAL, PARSE_TIMEOUT_S)  # SIGALRM's default action needs no interpreter
        found: References = ()
        try:
            found = check_query(sql, connection)
            verdict, message = "admitted", ""
        except QueryRejected as error:
            verdict, message = "refused", str(error)
        except duckdb.Error as error:
            verdict, message = "sql", one_line(str(error))
        signal.setitimer(signal.ITIMER_REAL, 0)
        reply(verdict, message, found)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError, CodecError):
        serve(sys.stdin.buffer, sys.stdout.buffer)
