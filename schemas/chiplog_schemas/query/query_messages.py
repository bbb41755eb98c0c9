"""The messages of a query, DEALER to ROUTER: a msgpack array in the first frame, the result's bytes in the second.

    ASK      [1, id, sql, params, timeout_s, time_zone, bytes_max]
                                                   one SELECT; params: nil, a list for `?`, or a map for `$name`;
                                                   time_zone: the IANA name of the session's zone; absent: UTC;
                                                   bytes_max: a larger result comes in parts; absent: there are none
    RESULT   [2, id, n_rows]  + Arrow IPC stream   the whole result
    ERROR    [3, id, kind, message]                one line; kind is one of ERROR_KINDS
    PING     [4, id]                               answered at once, also while queries run
    PONG     [5, id, info]                         info: versions, pid, waiting: is your ASK of this id here;
                                                   version of chiplog, reads: the number of its read model
    MANAGE   [6, id, action, arguments]            a change to what was recorded, see requests.py
    DONE     [7, id, info]                         the change is applied, or the wait is over; info: a map
    READ     [8, id, digest, offset, bytes]        a part of a saved file, by the SHA-256 of its content
    PART     [9, id, total]  + bytes               that part, shorter at the end; total: the file's size
    WAIT     [10, id, number, timeout_s]           answered when the log is applied up to that number, or late
    CANCEL   [20, id]                              end the query of this id; the ASK is answered with ERROR `cancelled`;
                                                   or drop its result
    FETCH    [21, id, offset, bytes]               a part of a result that comes in parts
    PART_OF_RESULT  [22, id, total, n_rows, offset]  + bytes
                                                   that part, shorter at the end; the first one answers the ASK

`id` is 8 random bytes of the client. A connection may be cut, and another process may answer afterwards. So a client
pings with the id of its query, and sends the query again when that id is no longer waiting; a SELECT may be repeated.
Unknown fields at the end are ignored; new ones go last.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

from chiplog_schemas.codec import CodecError, pack, unpack
from chiplog_schemas.limits import (
    GIB,
    KIB,
    MIB,
    NESTING_MAX,
    QUERY_CHARS_MAX,
    QUERY_MEMORY_BYTES,
    QUERY_TIMEOUT_S,
    RECORD_BYTES_MAX,
    RESULT_PART_BYTES,
)
from chiplog_schemas.query.duckdb_errors import STREAM_PREFIX
from chiplog_schemas.storage.content_files import DIGEST_BYTES

QUESTION_VERSIONS = (1, 1)  # lowest and highest that this code supports
ID_BYTES = 8
ERROR_KINDS = (
    *("refused", "sql", "timeout", "busy", "too_large", "internal", "stopping", "cancelled", "expired"),
    "forbidden",  # a change without the role admin; an older client reads it as internal
)

RESULT_BYTES_MAX = 256 * MIB  # the index holds it in memory until it is sent; two results fit beside the queries
REQUEST_BYTES_MAX = RECORD_BYTES_MAX + 64 * KIB  # the longest text in four-byte characters, and the fields around it
FILE_PART_BYTES_MAX = MIB  # of a saved file in one answer: the index reads it while it answers pings
TIME_ZONE_CHARS_MAX = 64  # twice the longest name of IANA
MESSAGE_CHARS_MAX = 2_000  # one line for people
QUERY_WORDS_MAX = 10_000  # words and signs; with ten times as many, DuckDB's binder overflows the stack of its process
QUERY_WAIT_S = 60.0  # a query that has not started by then is answered "busy"
SPILL_BYTES_MAX = 4 * GIB  # what queries may spill to disk when memory is short; DuckDB's default is 90% of the disk

# For every connection that answers queries, in this order: the last setting locks the others.
LOCKED_SETTINGS = (  # safeguard: external-access-off
    "SET GLOBAL TimeZone = 'UTC'",
    f"SET GLOBAL memory_limit = '{QUERY_MEMORY_BYTES // MIB}MiB'",
    f"SET GLOBAL max_temp_directory_size = '{SPILL_BYTES_MAX // MIB}MiB'",
    "SET GLOBAL autoinstall_known_extensions = false",
    "SET GLOBAL autoload_known_extensions = false",
    "SET GLOBAL python_enable_replacements = false",  # a table name never refers to a Python variable
    "SET GLOBAL enable_external_access = false",
    "SET GLOBAL allowed_configs = ['TimeZone']",  # per query: a reader may choose its own time zone
    "SET GLOBAL lock_configuration = true",
)
# DuckDB 2.0.0. common_subplan: a view that joins a view which it also reads directly returns a row several times.
# compressed_materialization: about every second query of the view `restarts` loses rows.
_FAULTY_OPTIMIZERS = ("common_subplan", "compressed_materialization")

CONTENTS_ENDING = "/files/"  # of the directory of contents, which is allowed beside DuckDB's own for temporary files


def disable_faulty_optimizers(connection: Any) -> None:
    """Disable the optimizers that are known to give wrong results, where this version has them. Call before locking."""
    wanted = [list(_FAULTY_OPTIMIZERS)]
    known = connection.execute("SELECT name FROM duckdb_optimizers() WHERE list_contains(?, name)", wanted).fetchall()
    connection.execute(f"SET GLOBAL disabled_optimizers = '{','.join(name for (name,) in known)}'")


def allow_contents(connection: Any, files: Path, others: Iterable[Path] = ()) -> None:
    """Allow queries to read the contents in `files/`, and no files but those of others. Call before LOCKED_SETTINGS."""
    directory = f"{files}/"
    assert directory.endswith(CONTENTS_ENDING)
    quoted = ", ".join(
        "'{}'".format(name.replace("'", "''")) for name in (directory, *(f"{other}/" for other in others))
    )
    connection.execute(f"SET GLOBAL allowed_directories = [{quoted}]")


class QueryMessageKind(IntEnum):
    """The first element of every first frame. Numbers are never reused."""

    ASK = 1
    RESULT = 2
    ERROR = 3
    PING = 4
    PONG = 5
    MANAGE = 6
    DONE = 7
    READ = 8
    PART = 9
    WAIT = 10
    CANCEL = 20
    FETCH = 21
    PART_OF_RESULT = 22


class QueryProtocolError(ValueError):
    """Frames that are not a message of this protocol. `id` is the query's, or empty when it could not be read."""

    def __init__(self, message: str, id: bytes = b"") -> None:
        super().__init__(message)
        self.id = id


class QueryRejected(ValueError):  # noqa: N818 - it is an answer, not an error of ours
    """A query that is not run. The message is one line with the reason and the remedy."""


@dataclass(slots=True)
class QueryMessage:
    """A decoded message. Fields that its kind does not have keep their defaults."""

    kind: int
    id: bytes
    sql: str = ""
    params: list[Any] | dict[str, Any] | None = None
    timeout_s: float = QUERY_TIMEOUT_S
    time_zone: str = ""
    bytes_max: int = 0
    n_rows: int = 0
    error_kind: str = ""
    message: str = ""
    info: dict[str, Any] = field(default_factory=dict)
    digest: bytes = b""
    offset: int = 0
    n_bytes: int = 0  # of READ and FETCH: wanted; of PART and PART_OF_RESULT: of the whole file or result
    payload: bytes | memoryview = b""
    action: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    number: int = 0


def request(
    id: bytes,
    sql: str,
    params: list[Any] | dict[str, Any] | None,
    timeout_s: float,
    time_zone: str = "",
    bytes_max: int = 0,
) -> list[bytes]:
    """Ask for the result of one SELECT. Raises CodecError for parameters that are no plain values."""
    fields = [int(QueryMessageKind.ASK), id, sql, params, float(timeout_s)]
    if bytes_max:
        return [pack([*fields, time_zone, bytes_max])]
    return [pack([*fields, time_zone] if time_zone else fields)]


def result(id: bytes, n_rows: int, stream: bytes | bytearray | memoryview) -> list[bytes | bytearray | memoryview]:
    """Answer with an Arrow IPC stream."""
    return [pack([int(QueryMessageKind.RESULT), id, n_rows]), stream]


def failure(id: bytes, kind: str, message: str) -> list[bytes]:
    """Answer that there is no result. kind: one of ERROR_KINDS. message: reduced to one line here."""
    assert kind in ERROR_KINDS
    return [pack([int(QueryMessageKind.ERROR), id, kind, one_line(message)])]


def ping(id: bytes) -> list[bytes]:
    """Ask whether the query service responds, and whether the query with this id is still waiting."""
    return [pack([int(QueryMessageKind.PING), id])]


def pong(id: bytes, info: dict[str, Any]) -> list[bytes]:
    """Answer a ping."""
    return [pack([int(QueryMessageKind.PONG), id, info])]


def manage(id: bytes, action: str, arguments: dict[str, Any]) -> list[bytes]:
    """Request a change. The same id twice is one change. Raises CodecError for arguments that are no plain values."""
    return [pack([int(QueryMessageKind.MANAGE), id, action, arguments])]


def done(id: bytes, info: dict[str, Any]) -> list[bytes]:
    """Answer that a change is applied, or how far the log is."""
    return [pack([int(QueryMessageKind.DONE), id, info])]


def wait_for(id: bytes, number: int, timeout_s: float) -> list[bytes]:
    """Ask for an answer once the log is applied up to a number, or after a time."""
    return [pack([int(QueryMessageKind.WAIT), id, number, float(timeout_s)])]


def read_file(id: bytes, digest: bytes, offset: int, n_bytes: int) -> list[bytes]:
    """Ask for a part of a saved file. digest: SHA-256 of its content, 32 bytes."""
    return [pack([int(QueryMessageKind.READ), id, digest, offset, n_bytes])]


def file_part(id: bytes, n_bytes: int, data: bytes) -> list[bytes]:
    """Answer with a part of a saved file. n_bytes: size of the whole file."""
    return [pack([int(QueryMessageKind.PART), id, n_bytes]), data]


def cancel(id: bytes) -> list[bytes]:
    """End the query with this id. A query that has ended, and one of another client, is not concerned."""
    return [pack([int(QueryMessageKind.CANCEL), id])]


def fetch(id: bytes, offset: int, n_bytes: int) -> list[bytes]:
    """Ask for a part of a result."""
    return [pack([int(QueryMessageKind.FETCH), id, offset, n_bytes])]


def result_part(id: bytes, total: int, n_rows: int, offset: int, data: bytes) -> list[bytes]:
    """Answer with a part of a result. total: size of its Arrow IPC stream; n_rows: of all of it."""
    return [pack([int(QueryMessageKind.PART_OF_RESULT), id, total, n_rows, offset]), data]


_N_FIELDS = {
    QueryMessageKind.ASK: 3,
    QueryMessageKind.RESULT: 1,
    QueryMessageKind.ERROR: 2,
    QueryMessageKind.PING: 0,
    QueryMessageKind.PONG: 1,
    QueryMessageKind.MANAGE: 2,
    QueryMessageKind.DONE: 1,
    QueryMessageKind.READ: 3,
    QueryMessageKind.PART: 1,
    QueryMessageKind.WAIT: 2,
    QueryMessageKind.CANCEL: 0,
    QueryMessageKind.FETCH: 2,
    QueryMessageKind.PART_OF_RESULT: 3,
}
_WITH_PAYLOAD = (QueryMessageKind.RESULT, QueryMessageKind.PART, QueryMessageKind.PART_OF_RESULT)


def _parse_head(frames: Sequence[bytes | memoryview]) -> tuple[int, bytes, list[Any]]:
    """Return (kind, id, fields) of a message. Raises QueryProtocolError."""
    if not frames or len(frames) > 2 or len(frames[0]) > REQUEST_BYTES_MAX:
        raise QueryProtocolError(f"a message has one or two frames, the first of at most {REQUEST_BYTES_MAX} bytes")
    try:
        head = unpack(frames[0])
    except CodecError as error:
        raise QueryProtocolError(str(error)) from error
    if not (isinstance(head, list) and len(head) >= 2 and type(head[0]) is int):
        raise QueryProtocolError("a first frame is an array of kind, id and fields")
    kind, id, *fields = head
    if not (isinstance(id, bytes) and len(id) == ID_BYTES):
        raise QueryProtocolError(f"an id is {ID_BYTES} bytes")
    return kind, id, fields


def parse(frames: Sequence[bytes | memoryview]) -> QueryMessage:
    """Decode a message and check every type and bound. Raises QueryProtocolError, with the id where it can be read."""
    kind, id, fields = _parse_head(frames)
    if kind not in _N_FIELDS:
        raise QueryProtocolError(
            f"message kind {kind} is unknown to versions {QUESTION_VERSIONS}; upgrade this side", id
        )
    n_frames = 2 if kind in _WITH_PAYLOAD else 1
    if len(fields) < _N_FIELDS[QueryMessageKind(kind)] or len(frames) != n_frames:
        raise QueryProtocolError(f"{QueryMessageKind(kind).name} has {len(fields)} fields and {len(frames)} frames", id)
    question = QueryMessage(kind, id)
    if (parse_fields := _PARSERS.get(kind)) is not None:
        parse_fields(question, fields)
    elif kind in _WITH_PAYLOAD:
        _parse_payload(question, fields, frames[1])
    return question


def _parse_error(question: QueryMessage, fields: list[Any]) -> None:
    if not (isinstance(fields[0], str) and isinstance(fields[1], str)):
        raise QueryProtocolError("an error has a kind and a message", question.id)
    # An unknown kind comes from a newer collector. Its message is sufficient.
    question.error_kind = fields[0] if fields[0] in ERROR_KINDS else "internal"
    question.message = one_line(fields[1])


def _parse_info(question: QueryMessage, fields: list[Any]) -> None:
    if not isinstance(fields[0], dict):
        raise QueryProtocolError("info is a map", question.id)
    question.info = fields[0]


def _parse_fetch(question: QueryMessage, fields: list[Any]) -> None:
    question.offset, question.n_bytes = _parse_range(question, fields[0], fields[1], RESULT_PART_BYTES)


def _parse_ask(question: QueryMessage, fields: list[Any]) -> None:
    sql, params, timeout_s = fields[:3]
    if not isinstance(sql, str) or not _is_text(sql):
        raise QueryProtocolError("a query is text", question.id)
    if not (params is None or isinstance(params, list | dict)) or not is_plain(params):
        raise QueryProtocolError("parameters are a list, or a map with names, of plain values", question.id)
    if isinstance(params, dict) and not all(isinstance(name, str) for name in params):
        raise QueryProtocolError("names of parameters are text", question.id)
    question.timeout_s = _timeout_of(timeout_s, question.id)
    time_zone = fields[3] if len(fields) > 3 else ""
    if not isinstance(time_zone, str) or not _is_text(time_zone) or len(time_zone) > TIME_ZONE_CHARS_MAX:
        raise QueryProtocolError(f"a time zone is text of at most {TIME_ZONE_CHARS_MAX} characters", question.id)
    bytes_max = fields[4] if len(fields) > 4 else 0
    if not _is_count(bytes_max):
        raise QueryProtocolError("the largest result in one message is a number of bytes", question.id)
    question.sql, question.params, question.time_zone, question.bytes_max = sql, params, time_zone, bytes_max


def _parse_manage(question: QueryMessage, fields: list[Any]) -> None:
    action, arguments = fields[:2]
    if not isinstance(action, str) or not isinstance(arguments, dict) or not is_plain(arguments):
        raise QueryProtocolError("a change has an action and a map of plain values", question.id)
    question.action, question.arguments = action, arguments


def _parse_wait(question: QueryMessage, fields: list[Any]) -> None:
    number, timeout_s = fields[:2]
    if not _is_count(number):
        raise QueryProtocolError("a wait is for the number of a record", question.id)
    question.number, question.timeout_s = number, _timeout_of(timeout_s, question.id)


def _timeout_of(timeout_s: Any, id: bytes) -> float:
    if type(timeout_s) not in (int, float) or not 0 < timeout_s < float("inf"):
        raise QueryProtocolError("a timeout is a number of seconds above 0", id)
    return min(float(timeout_s), QUERY_TIMEOUT_S)


def _parse_payload(question: QueryMessage, fields: list[Any], payload: bytes | memoryview) -> None:
    counts = fields[: _N_FIELDS[QueryMessageKind(question.kind)]]
    if not all(map(_is_count, counts)):
        raise QueryProtocolError("sizes, offsets and numbers of rows are numbers", question.id)
    if question.kind == QueryMessageKind.RESULT:
        [question.n_rows] = counts
    elif question.kind == QueryMessageKind.PART:
        [question.n_bytes] = counts
    else:
        question.n_bytes, question.n_rows, question.offset = counts
    question.payload = payload


def _parse_read(question: QueryMessage, fields: list[Any]) -> None:
    digest, offset, n_bytes = fields[:3]
    if not (isinstance(digest, bytes) and len(digest) == DIGEST_BYTES):
        raise QueryProtocolError(f"a file is named by the {DIGEST_BYTES} bytes of its SHA-256", question.id)
    question.digest = digest
    question.offset, question.n_bytes = _parse_range(question, offset, n_bytes, FILE_PART_BYTES_MAX)


def _parse_range(question: QueryMessage, offset: Any, n_bytes: Any, n_bytes_max: int) -> tuple[int, int]:
    if not (_is_count(offset) and _is_count(n_bytes) and n_bytes > 0):
        raise QueryProtocolError("a part of a file or result has an offset and a size", question.id)
    return offset, min(n_bytes, n_bytes_max)


_PARSERS: dict[int, Callable[[QueryMessage, list[Any]], None]] = {
    QueryMessageKind.ASK: _parse_ask,
    QueryMessageKind.ERROR: _parse_error,
    QueryMessageKind.PONG: _parse_info,
    QueryMessageKind.MANAGE: _parse_manage,
    QueryMessageKind.DONE: _parse_info,
    QueryMessageKind.READ: _parse_read,
    QueryMessageKind.WAIT: _parse_wait,
    QueryMessageKind.FETCH: _parse_fetch,
}


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def time_zone_setting(time_zone: str) -> str:
    """Return the statement that sets a connection's time zone; '' is UTC."""
    name = (time_zone or "UTC").replace("'", "''")
    return f"SET TimeZone = '{name}'"


def is_plain(value: Any, depth: int = 0) -> bool:
    """Return True if a value is None, bool, int of 64 bits, float, text, bytes, or a list or map of these."""
    if value is None or isinstance(value, bool | float | bytes):
        return True
    if isinstance(value, int):
        return -(1 << 63) <= value < 1 << 64
    if isinstance(value, str):
        return _is_text(value)
    if depth > NESTING_MAX:
        return False
    if isinstance(value, list):
        return all(is_plain(item, depth + 1) for item in value)
    return isinstance(value, dict) and all(
        isinstance(key, str) and is_plain(item, depth + 1) for key, item in value.items()
    )


def _is_text(value: str) -> bool:
    """Return True if a string has no lone surrogates, which UTF-8 cannot encode and DuckDB rejects."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


# -- which queries are answered ---------------------------------------------------------------------------------------
_EXPLAIN = re.compile(r"\s*explain\s+(?:analyze\s+)?(?!analyze\b|explain\b)(?P<inner>.*)", re.IGNORECASE | re.DOTALL)
_WORD = re.compile(r"\w+|[^\w\s]")


def check_query_size(sql: str) -> None:
    """Reject a text that is too long to be parsed safely. Raises QueryRejected.

    DuckDB limits the depth of expressions, but not the number of tables in a join or of consecutive DESCRIBEs. Some ten
    thousand of them overflow the stack. Words inside literals count too: only the parser can distinguish them.
    """
    if len(sql) > QUERY_CHARS_MAX:
        raise QueryRejected(
            f"query of {len(sql)} characters exceeds the limit of {QUERY_CHARS_MAX}; pass long values as parameters"
        )
    n_words = 0
    for n_words, _ in enumerate(_WORD.finditer(sql), 1):
        if n_words > QUERY_WORDS_MAX:
            raise QueryRejected(
                f"query of more than {QUERY_WORDS_MAX} words and signs exceeds the limit; pass long lists as parameters"
            )
    if not n_words:
        raise QueryRejected("query is empty; write one SELECT")


def check_statement(sql: str, parse_sql: Callable[[str], Sequence[Any]]) -> str:
    """Return the query if it is exactly one statement that only reads. Raises QueryRejected and the parser's errors.

    parse_sql: DuckDB's `extract_statements`. Its type SELECT covers FROM, VALUES, TABLE, WITH, DESCRIBE, SHOW,
    SUMMARIZE and a PIVOT with listed values. EXPLAIN is allowed before a SELECT; the statement after it is parsed too.
    This function only separates statements. LOCKED_SETTINGS and the read-only transaction around the query ensure that
    a SELECT cannot write or read files.
    """
    check_query_size(sql)
    statements = parse_sql(sql)
    if not statements:
        raise QueryRejected("query is empty; write one SELECT")
    if len(statements) > 1:  # safeguard: one-statement-per-query
        raise QueryRejected(f"query holds {len(statements)} statements; send exactly one SELECT at a time")
    kind = statements[0].type.name
    if kind == "SELECT":  # safeguard: select-only
        return sql
    if kind == "EXPLAIN":
        explained = _EXPLAIN.match(sql)
        if explained:
            inner = parse_sql(explained["inner"])
            if len(inner) == 1 and inner[0].type.name == "SELECT":
                return sql
        raise QueryRejected("EXPLAIN is answered only before one SELECT, as in EXPLAIN [ANALYZE] SELECT …")
    if kind == "MULTI":
        raise QueryRejected(
            "PIVOT without values needs several statements; list them: PIVOT … ON column IN (value, …), or read "
            "pivot_steps(run, keys) or pivot_runs(config_keys, metric_keys)"
        )
    raise QueryRejected(f"{kind} statement is refused: queries only read; write one SELECT")


# -- words ------------------------------------------------------------------------------------------------------------
_HINTS = ("Did you mean", "Candidate bindings", "Candidate tables", "HINT")


def one_line(message: str) -> str:
    """Return DuckDB's message, or any other, as one line: the first line, its hints, and the excerpt of the query."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    if not lines:
        return "no message"
    text = lines[0].removeprefix(STREAM_PREFIX)
    hints = [line for line in lines[1:] if line.startswith(_HINTS)]
    excerpt = [line for line in lines[1:] if re.match(r"LINE \d+:", line)][:1]
    text = " ".join([text, *hints, *(f"({line})" for line in excerpt)])
    text = "".join(character if character.isprintable() else " " for character in text)
    return text if len(text) <= MESSAGE_CHARS_MAX else text[: MESSAGE_CHARS_MAX - 1] + "…"
