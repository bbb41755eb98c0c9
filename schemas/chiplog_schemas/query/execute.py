"""Run a query on DuckDB: the same transaction, stream, bound and names of errors in a collector and for a file."""

from typing import IO, Any, cast

import duckdb
from arro3.io import write_ipc_stream

from chiplog_schemas.query.duckdb_errors import is_damage, is_out_of_memory, is_stream_error
from chiplog_schemas.query.query_messages import one_line
from chiplog_schemas.query.result_sink import Failure, ResultSink

__all__ = ["DAMAGED", "Failure", "failure_of", "stream_result", "timeout_of"]

DAMAGED = "damaged"  # the database's file; how it is repaired depends on the caller


def stream_result(
    connection: duckdb.DuckDBPyConnection, sql: str, params: list[Any] | dict[str, Any] | None, sink: ResultSink
) -> None:
    """Write the result of an admitted query as an Arrow IPC stream. The transaction stays open, also after an error."""
    connection.execute("BEGIN TRANSACTION READ ONLY")  # safeguard: read-only-transaction
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
