"""Run a query on DuckDB: the same transaction, stream, bound and names of errors in a collector and for a file."""

import contextlib
import re
from collections.abc import Iterator
from typing import IO, Any, cast

import duckdb
from arro3.io import write_ipc_stream

from chiplog_schemas.query.duckdb_errors import is_damage, is_out_of_memory, is_stream_error
from chiplog_schemas.query.query_messages import CONTENTS_ENDING, one_line
from chiplog_schemas.query.result_sink import Failure, ResultSink

__all__ = ["DAMAGED", "Failure", "failure_of", "stream_result", "tables_found", "timeout_of"]

DAMAGED = "damaged"  # the database's file; how it is repaired depends on the caller

_NAMES_MACRO = re.compile(r"\bmedia_table\b", re.IGNORECASE)
# The rows of base.tables_of_steps, and where each content is.
_FIND_TABLES = f"""
SET VARIABLE media_tables = (
    SELECT list({{
        'run_id': t.run_id, 'key': t.key, 'step': t.step, 'label': t.label, 'seq': t.seq, 'sha256': t.sha256,
        'path': d.directory || t.sha256[:2] || '/' || t.sha256
    }})
    FROM base.tables_of_steps t, (SELECT unnest(current_setting('allowed_directories')) AS directory) d
    WHERE ends_with(d.directory, '{CONTENTS_ENDING}')
)
"""


@contextlib.contextmanager
def tables_found(connection: duckdb.DuckDBPyConnection, sql: str) -> Iterator[None]:
    """Let the macro media_table find the stored tables, if a query names it: they are many."""
    if not _NAMES_MACRO.search(sql):
        yield
        return
    connection.execute(_FIND_TABLES)
    try:
        yield
    finally:
        with contextlib.suppress(duckdb.Error):  # after a failed query; the connection's next one finds them again
            connection.execute("RESET VARIABLE media_tables")


def stream_result(
    connection: duckdb.DuckDBPyConnection, sql: str, params: list[Any] | dict[str, Any] | None, sink: ResultSink
) -> None:
    """Write the result of an admitted query as an Arrow IPC stream. The transaction stays open, also after an error."""
    connection.execute("BEGIN TRANSACTION READ ONLY")  # safeguard: read-only-transaction
    with tables_found(connection, sql):
        # No variable for the relation: it holds the stream, which holds the transaction.
        write_ipc_stream(connection.sql(sql, params=params), cast("IO[bytes]", sink), compression="lz4")


def failure_of(error: BaseException, sink: ResultSink) -> Failure:
    """Return why `stream_result` failed, unless the caller interrupted it."""
    text = str(error)
    if sink.refusal is not None:
        return sink.refusal
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
