"""Ask the database: through the collector while one lives, else from its file.

`connect()` finds out where. A client that was made from a directory looks again with every query, because an embedded
collector comes and goes; the file is opened for one query at a time, so that no client keeps a collector from starting.
"""

import importlib.util
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import IO, TYPE_CHECKING, Any, cast

import zmq

from chiplog_schemas import questions
from chiplog_schemas.codec import CodecError
from chiplog_schemas.limits import HEARTBEAT_INTERVAL_S, LINGER_MS, PEER_SILENT_S, QUERY_TIMEOUT_S
from chiplog_schemas.locks import holder_of
from chiplog_schemas.places import Places, chiplog_dir, places
from chiplog_schemas.questions import (
    ID_BYTES,
    LOCKED_SETTINGS,
    QUERY_WAIT_S,
    QUESTION_VERSIONS,
    REQUEST_BYTES_MAX,
    RESULT_BYTES_MAX,
    QuestionError,
    QuestionKind,
    one_line,
)

if TYPE_CHECKING:
    import duckdb

__all__ = ["Client", "NoDataError", "QueryError", "Result", "connect"]

CONNECT_WAIT_S = 5.0  # a collector that is just starting answers within this
LOOK_AGAIN_S = 0.25  # pause between two looks at who holds the database
ASK_AGAIN_MAX = 3  # times that a question is repeated when its collector was replaced meanwhile
_ARROW_MARK = b"\xff\xff\xff\xff"
SIZE_SLACK_BYTES = 1 << 20  # an answer's head beside its stream

Params = Sequence[Any] | Mapping[str, Any] | None


class QueryError(RuntimeError):
    """A query without a result. `kind`: refused, sql, timeout, busy, too_large, internal or unreachable."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


class NoDataError(RuntimeError):
    """Nothing has been recorded yet where we looked."""


def connect(url: str | None = None, *, dir: str | os.PathLike[str] | None = None) -> "Client":
    """Return a client for the collector at `url`, or for what was recorded under `dir`.

    url: the collector's address as agents have it: tcp://HOST:PORT (SQL is answered at the next port) or ipc:///PATH.
    dir: a CHIPLOG_DIR. With neither: the variable CHIPLOG_COLLECTOR, else CHIPLOG_DIR, else ~/.chiplog.
    Raises NoDataError when nothing has been recorded there, QueryError('unreachable') when a collector does not answer
    within 5 s, and ValueError for an address that is none.
    """
    if url is None and dir is None:
        url = os.environ.get("CHIPLOG_COLLECTOR") or None
    if url is not None and dir is not None:
        raise ValueError(f"both url={url!r} and dir={os.fspath(dir)!r} are given; give one of them")
    if url is not None:
        client = Client(questions.query_address_of(url), None)
    else:
        client = Client(None, places(chiplog_dir(dir, os.environ)))
    try:
        client._look()
    except BaseException:
        client.close()
        raise
    return client


class Client:
    """Made by `connect`. Safe to use from several threads, which then take turns; not across fork."""

    def __init__(self, address: str | None, where: Places | None) -> None:
        self._address = address
        self._where = where
        self._remote: _Remote | None = None
        self._lock = threading.Lock()
        self._closed = False

    def sql(self, query: str, params: Params = None, timeout_s: float | None = None) -> "Result":
        """Run one SELECT and return its whole result.

        params: values for `?` in order, or a mapping for `$name`. timeout_s: at most 30, the default.
        Raises QueryError.
        """
        plain = _plain_params(params)
        timeout_s = QUERY_TIMEOUT_S if timeout_s is None else float(timeout_s)
        if not 0 < timeout_s <= QUERY_TIMEOUT_S:
            raise QueryError("refused", f"timeout of {timeout_s:g} s is not within 0 and {QUERY_TIMEOUT_S:g} s")
        with self._lock:
            if self._closed:
                raise QueryError("refused", "this client is closed; connect again")
            return Result(self._ask(query, plain, timeout_s))

    def close(self) -> None:
        """Let go of the connection. May be called twice."""
        with self._lock:
            self._closed = True
            self._hang_up()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _hang_up(self) -> None:
        if self._remote is not None:
            self._remote.close()
            self._remote = None

    def _ask(self, query: str, params: "list[Any] | dict[str, Any] | None", timeout_s: float) -> bytes | memoryview:
        for last in (False, True):
            if self._remote is not None and not self._collector_lives():
                self._hang_up()
            if self._remote is None:
                opened = self._look(keep_file=True)
                if opened is not None:
                    try:
                        return _ask_file(opened, query, params, timeout_s)
                    finally:
                        opened.close()
            assert self._remote is not None
            try:
                return self._remote.ask(query, params, timeout_s, self._collector_lives)
            except QueryError as error:
                # An embedded collector leaves when nothing has happened for a while: its file is free then.
                if error.kind != "unreachable" or last or self._where is None:
                    raise
                self._hang_up()
        raise AssertionError("the second try returns or raises")

    def _collector_lives(self) -> bool:
        """Return whether the collector may still answer. Of one on another machine only its silence tells."""
        return self._where is None or holder_of(self._where.collector / "lock") != 0

    def _look(self, keep_file: bool = False) -> "duckdb.DuckDBPyConnection | None":
        """Find the collector, or the file. Sets _remote, or returns the opened file if that is to be kept."""
        if self._address is not None:
            self._remote = _Remote(self._address)
            if not self._remote.answers(CONNECT_WAIT_S):
                self._hang_up()
                raise QueryError(
                    "unreachable",
                    f"no collector answers at {self._address} within {CONNECT_WAIT_S:g} s; "
                    "check that it runs there (chiplog status) and that CHIPLOG_COLLECTOR is its address",
                )
            return None
        assert self._where is not None
        where, deadline = self._where, time.monotonic() + CONNECT_WAIT_S
        while True:
            pid = holder_of(where.collector / "lock")
            if pid:
                self._remote = _Remote(where.query_address)
                # In slices: it may be leaving instead of starting.
                if self._remote.answers(min(1.0, max(0.05, deadline - time.monotonic()))):
                    return None
                self._hang_up()
                reason = f"the collector of {where.root} (process {pid}) does not answer; see chiplog status"
            elif not where.index.exists():
                raise NoDataError(
                    f"nothing has been recorded under {where.root} yet; run a training with chiplog.init() first, "
                    "or point CHIPLOG_DIR or --dir at the right directory"
                )
            else:
                opened = _open_file(where)
                if not isinstance(opened, str):
                    if keep_file:
                        return opened
                    opened.close()
                    return None
                reason = opened
            if time.monotonic() > deadline:
                raise QueryError("unreachable", reason)
            time.sleep(LOOK_AGAIN_S)


class _Remote:
    """One DEALER socket to one query address. Used under the client's lock."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, LINGER_MS)
        self._socket.setsockopt(zmq.MAXMSGSIZE, RESULT_BYTES_MAX + SIZE_SLACK_BYTES)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 50)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        try:
            self._socket.connect(address)
        except zmq.ZMQError as error:
            self.close()
            raise QueryError("unreachable", f"address {address} cannot be used: {error}") from error

    def close(self) -> None:
        self._socket.close()
        self._context.term()

    def answers(self, wait_s: float) -> bool:
        """Return whether a collector answers a ping within a time. Raises QueryError if it speaks other versions."""
        id = os.urandom(ID_BYTES)
        self._send(questions.ping(id))
        deadline = time.monotonic() + wait_s
        while (answer := self._receive(deadline)) is not None:
            if answer.kind == QuestionKind.PONG and answer.id == id:
                _check_versions(answer.info, self._address)
                return True
        return False

    def ask(
        self,
        query: str,
        params: "list[Any] | dict[str, Any] | None",
        timeout_s: float,
        lives: Callable[[], bool],
    ) -> bytes | memoryview:
        """Return the Arrow IPC stream of a result. Raises QueryError.

        Pings while it waits: silence means that the collector is gone, and a collector that does not know the question
        is another one, which is asked again.
        """
        try:
            questions.check_size(query)
            frames = questions.ask(id := os.urandom(ID_BYTES), query, params, timeout_s)
        except (questions.Refused, CodecError) as error:
            raise QueryError("refused", one_line(str(error))) from error
        if len(frames[0]) > REQUEST_BYTES_MAX:
            raise QueryError(
                "refused",
                f"query and parameters of {len(frames[0])} bytes exceed the limit of {REQUEST_BYTES_MAX}; ask in parts",
            )
        self._send(frames)
        asked = 1
        heard = pinged = time.monotonic()
        deadline = heard + QUERY_WAIT_S + timeout_s + 2 * PEER_SILENT_S
        while True:
            answer = self._receive(pinged + HEARTBEAT_INTERVAL_S)
            now = time.monotonic()
            if answer is not None:
                heard = now
                if answer.id != id:
                    continue  # of an earlier question that we gave up
                if answer.kind == QuestionKind.RESULT:
                    return answer.payload
                if answer.kind == QuestionKind.ERROR:
                    raise QueryError(answer.error_kind, answer.message)
                if answer.kind == QuestionKind.PONG and not answer.info.get("waiting"):
                    if asked > ASK_AGAIN_MAX:
                        raise QueryError("internal", f"the collector at {self._address} loses this query; see its log")
                    asked += 1
                    self._send(frames)
            if now - heard > PEER_SILENT_S or now > deadline or (answer is None and not lives()):
                raise QueryError("unreachable", f"the collector at {self._address} has stopped answering")
            if now - pinged >= HEARTBEAT_INTERVAL_S:
                self._send(questions.ping(id))
                pinged = now

    def _send(self, frames: list[bytes]) -> None:
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            pass  # it is unreachable and its queue is full: the silence that follows says so

    def _receive(self, deadline: float) -> questions.Question | None:
        """Return the next message that can be read before a time, or None."""
        while True:
            wait_ms = math.ceil(1000 * max(0.0, deadline - time.monotonic()))
            if not self._socket.poll(wait_ms):
                return None
            frames = self._socket.recv_multipart(copy=False)
            try:
                return questions.parse([frame.buffer for frame in frames])
            except QuestionError:
                continue  # not for us to judge: without a usable answer the question ends as unreachable


def _check_versions(info: dict[str, Any], address: str) -> None:
    versions = info.get("versions")
    if (
        isinstance(versions, list)
        and len(versions) == 2
        and all(type(version) is int for version in versions)
        and (versions[1] < QUESTION_VERSIONS[0] or versions[0] > QUESTION_VERSIONS[1])
    ):
        raise QueryError(
            "unreachable",
            f"the collector at {address} speaks query versions {versions}, this client {list(QUESTION_VERSIONS)}; "
            "install the same release on both sides",
        )


# -- the file ---------------------------------------------------------------------------------------------------------
def _open_file(where: Places) -> "duckdb.DuckDBPyConnection | str":
    """Open the database for reading; return one line that says why when somebody else writes it just now."""
    import duckdb

    try:
        connection = duckdb.connect(str(where.index), read_only=True)
    except duckdb.IOException as error:
        # "Conflicting lock is held in PROGRAM (PID n)": a collector that starts, or one of another host or container.
        if "lock" in str(error).lower():
            return f"{where.index} is in use: {one_line(str(error))}"
        raise _unreadable(where, error) from error
    except duckdb.Error as error:
        raise _unreadable(where, error) from error
    for statement in LOCKED_SETTINGS:
        connection.execute(statement)
    return connection


def _unreadable(where: Places, error: Exception) -> QueryError:
    return QueryError("internal", f"{where.index} cannot be read: {one_line(str(error))}; try chiplog rebuild")


class _Sink(bytearray):
    """A result's stream, bounded like that of a collector. arro3 wants the methods of a file."""

    def write(self, part: Any) -> int:
        if len(self) + len(part) > RESULT_BYTES_MAX:
            raise OverflowError(
                f"result exceeds the limit of {RESULT_BYTES_MAX} bytes; select fewer rows or columns, or aggregate"
            )
        self += part
        return len(part)

    def flush(self) -> None:
        pass

    def seek(self, offset: int, whence: int = 0) -> int:
        raise OSError("a result is written once, from its beginning")


def _ask_file(
    connection: "duckdb.DuckDBPyConnection",
    query: str,
    params: "list[Any] | dict[str, Any] | None",
    timeout_s: float,
) -> memoryview:
    from arro3.io import write_ipc_stream

    sink = _Sink()
    timed_out = threading.Event()

    def cancel() -> None:
        timed_out.set()
        connection.interrupt()

    timer = threading.Timer(timeout_s, cancel)
    timer.daemon = True
    try:
        admitted = questions.admit(query, connection.extract_statements)
        timer.start()
        connection.execute("BEGIN TRANSACTION READ ONLY")
        write_ipc_stream(connection.sql(admitted, params=params), cast("IO[bytes]", sink), compression="lz4")
    except questions.Refused as error:
        raise QueryError("refused", str(error)) from error
    except Exception as error:  # errors of a running stream come through Arrow without a type of their own
        raise _file_error(error, timed_out.is_set(), timeout_s) from error
    finally:
        timer.cancel()
    return memoryview(sink)


def _file_error(error: Exception, timed_out: bool, timeout_s: float) -> QueryError:
    """Name an error as a collector would."""
    import duckdb

    text = str(error)
    if timed_out:
        message = f"query took longer than {timeout_s:g} s and was cancelled; narrow it by run_id, key or step"
        return QueryError("timeout", message)
    if "OverflowError: result exceeds" in text:
        return QueryError("too_large", one_line(text.partition("OverflowError: ")[2]))
    if isinstance(error, duckdb.OutOfMemoryException) or "Out of Memory Error" in text:
        return QueryError("too_large", f"{one_line(text)}; narrow the query or aggregate earlier")
    if isinstance(error, duckdb.Error | ValueError | TypeError) or text.startswith("C Data interface error: "):
        return QueryError("sql", one_line(text))
    return QueryError("internal", one_line(f"{type(error).__name__}: {text}"))


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
    if questions.is_plain(value):
        return value
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "ndim", 0) == 0:
        return _plain(item(), name)
    raise QueryError(
        "refused", f"parameter {name} is {type(value).__name__}; give a number, text, bytes, a time or a list of those"
    )


# -- values out -------------------------------------------------------------------------------------------------------
class Result:
    """The whole result of a query. Times are UTC, without a zone; JSON columns are text."""

    def __init__(self, stream: "bytes | bytearray | memoryview") -> None:
        from arro3.core import Table
        from arro3.io import read_ipc_stream

        # An Arrow stream begins with a mark. Without it the reader takes any four bytes for a length to allocate.
        if bytes(stream[: len(_ARROW_MARK)]) != _ARROW_MARK:
            raise QueryError("internal", "the answer is no Arrow stream; check that a collector answers there")
        try:
            table = Table.from_arrow(read_ipc_stream(stream))
        except Exception as error:  # arro3 raises nothing more precise
            raise QueryError("internal", f"the answer is no Arrow stream: {one_line(str(error))}") from error
        self.columns: list[str] = _unique(table.column_names)
        self._table = table if self.columns == table.column_names else table.rename_columns(self.columns)

    def __len__(self) -> int:
        """Return the number of rows."""
        return int(self._table.num_rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Iterate over `rows()`."""
        return iter(self.rows())

    def __repr__(self) -> str:
        return f"<chiplog result: {len(self)} rows of {', '.join(self.columns)}>"

    def rows(self) -> list[dict[str, Any]]:
        """Return a dict per row of Python values: datetime (UTC, naive), int, float, str, bytes, list, dict, None."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.tuples()]

    def tuples(self) -> list[tuple[Any, ...]]:
        """Return a tuple per row, in the order of `columns`."""
        return self.relation().fetchall()

    def relation(self) -> "duckdb.DuckDBPyRelation":
        """Return the result as a relation of a DuckDB in memory, to go on from in SQL or to be written to a file.

        What Arrow has no type for is put right: times with a zone are UTC without one, and what was a HUGEINT, as every
        sum of integers is, is one again.
        """
        import duckdb

        connection = duckdb.connect()
        connection.execute("SET TimeZone = 'UTC'")
        relation = connection.from_arrow(self._table)
        projected = []
        for name, kind in zip(self.columns, map(str, relation.types), strict=True):
            quoted = '"' + name.replace('"', '""') + '"'
            if "TIMESTAMP WITH TIME ZONE" in kind:
                plain = kind.replace("TIMESTAMP WITH TIME ZONE", "TIMESTAMP")
                projected.append(f"CAST({quoted} AS {plain}) AS {quoted}")
            elif kind == "DECIMAL(38,0)":
                projected.append(f"CAST({quoted} AS HUGEINT) AS {quoted}")
            else:
                projected.append(quoted)
        return relation.project(", ".join(projected)) if projected else relation

    def arrow(self) -> Any:
        """Return a pyarrow.Table; without pyarrow an arro3 Table, which every Arrow library takes as it is."""
        if importlib.util.find_spec("pyarrow") is None:
            return self._table
        import pyarrow

        return pyarrow.table(self._table)

    def df(self) -> Any:
        """Return a pandas.DataFrame. Raises ImportError without pandas."""
        return self.relation().df()

    def pl(self) -> Any:
        """Return a polars.DataFrame. Raises ImportError without polars."""
        import polars

        return polars.DataFrame(self._table)


def _unique(names: Sequence[str]) -> list[str]:
    """Return names with a number where one comes again: a, a → a, a_1. DuckDB ignores their case."""
    taken: set[str] = set()
    unique = []
    for name in names:
        candidate, number = name, 0
        while candidate.lower() in taken:
            number += 1
            candidate = f"{name}_{number}"
        taken.add(candidate.lower())
        unique.append(candidate)
    return unique
