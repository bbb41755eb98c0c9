"""`connect`, `Connection` and `Cursor` of PEP 249, on a client of the database."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from chiplog_client import client
from chiplog_client.client import Client, NoDataError, QueryError
from chiplog_client.dbapi import exceptions
from chiplog_client.dbapi.exceptions import InterfaceError, NotSupportedError, OperationalError, database_error
from chiplog_client.dbapi.type_objects import TypeObject, type_object_of
from chiplog_client.result_stream import ResultStream
from chiplog_client.results.result import Result

ROWS_AT_ONCE = 10_000  # converted into Python values: some megabytes, while the rest of a result stays Arrow

Column = tuple[str, TypeObject, None, None, None, None, None]
_Self = TypeVar("_Self", bound="Cursor")


def connect(url: str | None = None, *, dir: str | os.PathLike[str] | None = None) -> "Connection":
    """Return a connection to the collector at `url`, or to the data under `dir`.

    With neither it uses the variable CHIPLOG_COLLECTOR, else CHIPLOG_DIR, else ~/.chiplog, as `chiplog.connect` does.

    Args:
        url: The collector's address as agents have it: tcp://HOST:PORT or ipc:///PATH.
        dir: A CHIPLOG_DIR.

    Returns:
        A connection; close it, or use it as a context manager.

    Raises:
        OperationalError: Nothing has been recorded there, or the collector does not answer.
        InterfaceError: The address is malformed, or its keys are missing.

    Examples:
        >>> connection = chiplog_client.dbapi.connect()
        >>> connection.cursor().execute("SELECT run_id FROM runs WHERE project = ?", ["gpt"]).fetchall()
    """
    try:
        return Connection(client.connect(url, dir=dir))
    except QueryError as error:
        raise database_error(error) from error
    except NoDataError as error:
        raise OperationalError(str(error)) from error
    except ValueError as error:
        raise InterfaceError(str(error)) from error


class Connection:
    """Returned by `connect`. Threads may share it; each query runs in a read-only transaction.

    The exceptions of the module are its attributes too, as PEP 249 suggests.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a connection cannot be pickled or copied; connect() in the other process")

    Warning = exceptions.Warning
    Error = exceptions.Error
    InterfaceError = exceptions.InterfaceError
    DatabaseError = exceptions.DatabaseError
    DataError = exceptions.DataError
    OperationalError = exceptions.OperationalError
    IntegrityError = exceptions.IntegrityError
    InternalError = exceptions.InternalError
    ProgrammingError = exceptions.ProgrammingError
    NotSupportedError = exceptions.NotSupportedError

    def __init__(self, client: Client) -> None:
        self._client: Client | None = client

    def cursor(self) -> "Cursor":
        """Return a new cursor.

        Raises:
            InterfaceError: The connection is closed.
        """
        self._opened()
        return Cursor(self)

    def commit(self) -> None:
        """Do nothing: there is nothing to commit.

        Raises:
            InterfaceError: The connection is closed.
        """
        self._opened()

    def rollback(self) -> None:
        """Do nothing: there is nothing to roll back.

        Raises:
            InterfaceError: The connection is closed.
        """
        self._opened()

    def close(self) -> None:
        """Close the connection; its cursors can no longer run queries. May be called twice."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _opened(self) -> Client:
        if self._client is None:
            raise InterfaceError("this connection is closed; connect again")
        return self._client


class Cursor:
    """Runs one query at a time and returns its rows.

    Attributes:
        connection: The connection that made it.
        arraysize: How many rows `fetchmany` returns by default.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a cursor reads from its collector and cannot be pickled or copied; pass on its rows")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.arraysize = 1
        self._is_closed = False
        self._stream: ResultStream | None = None
        self._batch: Result | None = None  # the current one of the stream
        self._n_converted = 0  # of its rows
        self._rows: Iterator[tuple[Any, ...]] = iter(())  # converted, and not returned yet

    @property
    def description(self) -> list[Column] | None:
        """The name and the type object of each column, and five times None; None before a query has run."""
        if self._stream is None:
            return None
        types = map(type_object_of, self._stream._types)
        return [
            (name, kind, None, None, None, None, None) for name, kind in zip(self._stream.columns, types, strict=True)
        ]

    @property
    def rowcount(self) -> int:
        """The number of rows of the result; -1 before a query has run."""
        return -1 if self._stream is None else self._stream.n_rows

    def execute(self: _Self, operation: str, parameters: Sequence[Any] | Mapping[str, Any] | None = None) -> _Self:
        """Run one SELECT. Its result may have any size: rows are converted as they are fetched.

        Args:
            operation: The SELECT.
            parameters: Values for `?` in order. A mapping has the values for `$name`, in addition to PEP 249.

        Returns:
            This cursor.

        Raises:
            NotSupportedError: The query writes, or is more than one SELECT.
            ProgrammingError: The query is wrong.
            OperationalError: The collector does not answer, or not in time, or there is no room for the result.
            InterfaceError: The cursor or its connection is closed.
        """
        self._require_open()
        client = self.connection._opened()
        self._forget()
        try:
            self._stream = client.stream(operation, parameters or None)
        except QueryError as error:
            raise database_error(error) from error
        except NoDataError as error:
            raise OperationalError(str(error)) from error
        return self

    def executemany(self, operation: str, seq_of_parameters: Sequence[Sequence[Any]]) -> None:
        """Raise NotSupportedError: PEP 249 has it for writing, and queries only read."""
        raise NotSupportedError("executemany() is refused: queries only read; call execute() with one SELECT")

    def fetchone(self) -> tuple[Any, ...] | None:
        """Return the next row, or None after the last one.

        Raises:
            InterfaceError: No query has run, or the cursor is closed.
        """
        self._require_result()
        row = next(self._rows, None)
        if row is None and self._convert():
            row = next(self._rows)
        return row

    def fetchmany(self, size: int | None = None) -> list[tuple[Any, ...]]:
        """Return the next rows, at most `size`, by default `arraysize`; none after the last one.

        Raises:
            InterfaceError: No query has run, or the cursor is closed.
        """
        self._require_result()
        wanted = self.arraysize if size is None else size
        rows: list[tuple[Any, ...]] = []
        while len(rows) < wanted and (row := self.fetchone()) is not None:
            rows.append(row)
        return rows

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return all rows that are left.

        Raises:
            InterfaceError: No query has run, or the cursor is closed.
        """
        self._require_result()
        rows = list(self._rows)
        while self._convert():
            rows += self._rows
        return rows

    def __iter__(self: _Self) -> _Self:
        return self

    def __next__(self) -> tuple[Any, ...]:
        if (row := self.fetchone()) is None:
            raise StopIteration
        return row

    def setinputsizes(self, sizes: Sequence[Any]) -> None:
        """Do nothing: parameters have any size. PEP 249 requires the method."""

    def setoutputsize(self, size: int, column: int | None = None) -> None:
        """Do nothing: columns have any size. PEP 249 requires the method."""

    def close(self) -> None:
        """Close the cursor and drop its result. May be called twice."""
        self._is_closed = True
        self._forget()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _forget(self) -> None:
        if self._stream is not None:
            self._stream.close()
        self._stream, self._batch, self._n_converted, self._rows = None, None, 0, iter(())

    def _require_open(self) -> None:
        if self._is_closed:
            raise InterfaceError("this cursor is closed; open another one with connection.cursor()")

    def _require_result(self) -> ResultStream:
        self._require_open()
        if self._stream is None:
            raise InterfaceError("this cursor has no result; call execute() first")
        return self._stream

    def _convert(self) -> bool:
        """Convert the next rows of the result; return False after the last one."""
        stream = self._require_result()
        while self._batch is None or self._n_converted >= len(self._batch):
            try:
                self._batch, self._n_converted = stream._next_result(), 0
            except QueryError as error:
                raise database_error(error) from error
            if self._batch is None:
                return False
        part = self._batch._slice(self._n_converted, ROWS_AT_ONCE)
        self._n_converted += len(part)
        self._rows = iter(part.tuples())
        return True
