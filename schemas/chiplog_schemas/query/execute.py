"""Run a query on DuckDB: the same transaction, stream, bound and names of errors in a collector and for a file."""

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator
from typing import IO, Any, cast

import duckdb
from arro3.io import write_ipc_stream

from chiplog_schemas.query.duckdb_errors import is_damage, is_out_of_memory, is_stream_error
from chiplog_schemas.query.query_messages import CONTENTS_ENDING, one_line
from chiplog_schemas.query.result_sink import Failure, ResultSink

__all__ = ["DAMAGED", "Failure", "failure_of", "stream_result", "tables_found", "timeout_of"]

_Params = list[Any] | dict[str, Any] | None
DAMAGED = "damaged"  # the database's file; how it is repaired depends on the caller

_NAMES_MACRO = re.compile(r"\bmedia_table\b", re.IGNORECASE)
# The rows of base.tables_of_steps, and where each content is.
_FIND_TABLES = f"""
SET VARIABLE media_tables = (
    SELECT list({{{{
        'run_id': t.run_id, 'key': t.key, 'step': t.step, 'label': t.label, 'seq': t.seq, 'sha256': t.sha256,
        'path': d.directory || t.sha256[:2] || '/' || t.sha256
    }}}})
    FROM {{schema}}.tables_of_steps t, (SELECT unnest(current_setting('allowed_directories')) AS directory) d
    WHERE ends_with(d.directory, '{CONTENTS_ENDING}')
"""
# By parameter of media_table, in order: how its values narrow the search. Of 100,000 stored tables, those of a run, a
# key and a step are found in milliseconds, all of them in seconds.
_CONDITIONS = {
    "run": " AND list_contains($run, t.run_id)",
    "key": " AND list_contains($key, t.key)",
    "step": " AND list_contains(list_transform($step, lambda text: TRY_CAST(text AS BIGINT)), t.step)",
}


@contextlib.contextmanager
def tables_found(
    connection: duckdb.DuckDBPyConnection,
    sql: str,
    params: _Params = None,
    schema: str = "base",
    fetch: Callable[[str], None] | None = None,
) -> Iterator[None]:
    """Let the macro media_table find the stored tables, if a query names it: they are many.

    schema: that has the view `tables_of_steps`. fetch: copies a content by its SHA-256 that is not on this disk; raises
    OSError.
    """
    if not _NAMES_MACRO.search(sql):
        yield
        return
    known = _known_arguments(connection, sql, params)
    conditions = "".join(_CONDITIONS[parameter] for parameter in known)
    connection.execute(f"{_FIND_TABLES.format(schema=schema)}{conditions})", known)
    if fetch is not None:
        _fetch_missing(connection, fetch)
    try:
        yield
    finally:
        with contextlib.suppress(duckdb.Error):  # after a failed query; the connection's next one finds them again
            connection.execute("RESET VARIABLE media_tables")


def _fetch_missing(connection: duckdb.DuckDBPyConnection, fetch: Callable[[str], None]) -> None:
    """Copy the stored tables that are not on this disk. One that cannot be copied is reported when it is read."""
    query = "SELECT DISTINCT m.sha256, m.path FROM (SELECT unnest(getvariable('media_tables')) AS m)"
    for digest, path in connection.execute(query).fetchall():
        if not os.path.exists(path):
            with contextlib.suppress(OSError):
                fetch(digest)


def _known_arguments(connection: duckdb.DuckDBPyConnection, sql: str, params: _Params) -> dict[str, list[str]]:
    """Return the values of all media_table in a query by parameter, as texts; not of a parameter with an expression."""
    calls: list[list[dict[str, Any]]] = []

    def collect(node: dict[str, Any]) -> dict[str, Any]:
        if str(node.get("function_name")).lower() == "media_table":
            calls.append(node["arguments"])
        return node

    (parsed,) = connection.execute("SELECT json_serialize_sql($1::VARCHAR)", [sql]).fetchall()[0]
    try:
        json.loads(parsed, object_hook=collect)
    except RecursionError:
        return {}
    known = {}
    for position, parameter in enumerate(_CONDITIONS if calls else ()):
        try:
            known[parameter] = [_text_of(_argument(call, position, parameter), params) for call in calls]
        except (LookupError, TypeError, ValueError):  # an expression; or what fails when it is run
            continue
    return known


def _argument(call: list[dict[str, Any]], position: int, parameter: str) -> dict[str, Any]:
    """Return the expression of an argument, by name or by place. Raises LookupError."""
    named = {argument["name"].lower(): argument["expression"] for argument in call if argument["name"]}
    expression: dict[str, Any] = named[parameter] if named else call[position]["expression"]
    return expression


def _text_of(expression: dict[str, Any], params: _Params) -> str:
    """Return a text or a whole number, written or bound. Raises LookupError, TypeError, ValueError."""
    if expression["type"] == "VALUE_PARAMETER":
        name = expression["identifier"]
        value = params[name] if isinstance(params, dict) else (params or [])[int(name) - 1]
        if type(value) not in (str, int):
            raise TypeError
        return str(value)
    if expression["literal"]["kind"] not in ("STRING", "INTEGER"):
        raise ValueError
    return str(expression["literal"]["text"])


def stream_result(
    connection: duckdb.DuckDBPyConnection,
    sql: str,
    params: _Params,
    sink: ResultSink,
    opened: contextlib.AbstractContextManager[None] | None = None,
    fetch: Callable[[str], None] | None = None,
) -> None:
    """Write the result of an admitted query as an Arrow IPC stream. The transaction stays open, also after an error.

    opened: entered within the transaction, before the query is read; it gives access to the schema `merged`.
    fetch: as of `tables_found`.
    """
    connection.execute("BEGIN TRANSACTION READ ONLY")  # safeguard: read-only-transaction
    schema = "base" if opened is None else "merged"
    with opened or contextlib.nullcontext(), tables_found(connection, sql, params, schema, fetch):
        # No variable for the relation: it holds the stream, which holds the transaction.
        write_ipc_stream(connection.sql(sql, params=params), cast("IO[bytes]", sink), compression="lz4")


def failure_of(error: BaseException, sink: ResultSink) -> Failure:
    """Return why `stream_result` failed, unless the caller interrupted it."""
    text = str(error)
    if sink.failure is not None:
        return sink.failure
    if is_damage(text):
        return Failure(DAMAGED, one_line(text))
    if isinstance(error, duckdb.OutOfMemoryException) or is_out_of_memory(text):
        return Failure("too_large", f"{one_line(text)}; narrow the query or aggregate earlier")
    # ValueError and TypeError: a parameter that DuckDB rejects.
    if isinstance(error, duckdb.Error | ValueError | TypeError) or is_stream_error(text):
        return Failure("sql", one_line(text))
    return Failure("internal", one_line(f"{type(error).__name__}: {text}"))


def timeout_of(timeout_s: float) -> Failure:
    """Return the failure of a query that was interrupted because it took too long."""
    message = f"query took longer than {timeout_s:g} s and was cancelled; narrow it by run_id, key or step"
    return Failure("timeout", message)
