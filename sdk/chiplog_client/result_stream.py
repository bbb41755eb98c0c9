"""A result of any size, read batch by batch in bounded memory."""

import importlib.util
import struct
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

from chiplog_client.result_source import ResultSource
from chiplog_client.results.result import QueryError, Result, relation_of
from chiplog_schemas.query.arrow_messages import (
    BATCH,
    DICTIONARY,
    MARK,
    PREFIX_BYTES,
    StreamError,
    dictionary_of,
    message_bytes,
    message_head,
)
from chiplog_schemas.query.query_messages import RESULT_BYTES_MAX

if TYPE_CHECKING:
    import duckdb

_END = MARK + bytes(4)


class ResultStream:
    """The result of a query, as Arrow record batches in order. It is read once; close it, or use it in `with`.

    A batch is one of pyarrow, or of arro3 without pyarrow. Times are UTC, JSON columns are text. It is used by one
    thread at a time.

    Attributes:
        columns: The names of the columns.
        n_rows: The number of rows of the whole result.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a stream reads from its collector and cannot be pickled or copied; pass on its batches")

    def __init__(self, source: ResultSource) -> None:
        self._source = source
        self._messages = _messages(source)
        self._schema = b""
        self._dictionaries: dict[int, bytes] = {}  # of enumerations, by their ID
        self._is_stopped = False  # by another thread: `_relation` ends early
        self._failure: BaseException | None = None  # why `_relation` cannot be read to its end
        try:
            _, self._schema = self._next_message() or (0, b"")
            self._empty_result = Result(self._schema + _END)
        except BaseException:
            self.close()
            raise
        self.columns: list[str] = self._empty_result.columns
        self.n_rows = source.n_rows

    @property
    def schema(self) -> Any:
        """The pyarrow.Schema of the batches; without pyarrow that of arro3."""
        return self._empty_result.arrow().schema

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the batches that are left."""
        return self

    def __next__(self) -> Any:
        """Return the next batch.

        Raises:
            QueryError: The rest cannot be read; `kind` is expired if the collector no longer keeps it.
        """
        if (result := self._next_result()) is None:
            raise StopIteration
        [batch] = result.arrow().to_batches()
        return batch

    def reader(self) -> Any:
        """Return a pyarrow.RecordBatchReader of the batches that are left; without pyarrow one of arro3."""
        if importlib.util.find_spec("pyarrow") is None:
            from arro3.core import RecordBatchReader

            return RecordBatchReader.from_batches(self.schema, iter(self))
        import pyarrow

        return pyarrow.RecordBatchReader.from_batches(self.schema, self)

    def close(self) -> None:
        """Drop what is left. May be called twice."""
        self._messages.close()
        self._source.close()

    def __enter__(self) -> "ResultStream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_messages"):
            self.close()

    def __repr__(self) -> str:
        return f"<chiplog stream: {self.n_rows} rows of {', '.join(self.columns)}>"

    # -- as writers of files and cursors use it --
    @property
    def _types(self) -> list[Any]:
        return self._empty_result._types

    @property
    def _wall_times(self) -> list[str]:
        return self._empty_result.wall_times

    def tuples(self) -> Iterator[tuple[Any, ...]]:
        """Yield the rows that are left, as `Result.tuples` returns them."""
        while (result := self._next_result()) is not None:
            yield from result.tuples()

    def _relation(self) -> "duckdb.DuckDBPyRelation":
        """Return the rows that are left as a relation, which reads them once."""
        from arro3.core import RecordBatchReader

        table = self._empty_result._table
        return relation_of(RecordBatchReader.from_batches(table.schema, self._batches()), is_stream=True)

    def _stop(self) -> None:
        """Let `_relation` end early. Called while another thread reads it."""
        self._is_stopped = True

    def _batches(self) -> Iterator[Any]:
        """Yield the batches for a reader that replaces exceptions by its own: `_failure` keeps them."""
        try:
            while not self._is_stopped and (result := self._next_result()) is not None:
                yield from result._table.to_batches()
        except BaseException as error:
            self._failure = error
            raise

    # -- messages --
    def _next_result(self) -> Result | None:
        """Return the next batch as a result of its own; None after the last one, when the source is closed."""
        while (message := self._next_message()) is not None:
            kind, data = message
            if kind == BATCH:
                return Result(b"".join([self._schema, *self._dictionaries.values(), data, _END]))
            if kind == DICTIONARY:
                number, is_delta = dictionary_of(memoryview(data)[PREFIX_BYTES:])
                self._dictionaries[number] = self._dictionaries.get(number, b"") + data if is_delta else data
        self.close()
        return None

    def _next_message(self) -> tuple[int, bytes] | None:
        try:
            return next(self._messages, None)
        except (StreamError, struct.error) as error:
            message = f"the answer is not an Arrow stream: {error}; check that a collector answers there"
            raise QueryError("internal", message) from error


def _messages(source: ResultSource) -> Generator[tuple[int, bytes], None, None]:
    """Yield (type of header, bytes) of each message of a stream. Raises StreamError, struct.error and QueryError."""
    held = bytearray()
    n_left = source.n_bytes

    def hold(n_bytes: int) -> None:
        """Receive until so many bytes are here."""
        while len(held) < n_bytes:
            part = source.read()
            if not part:
                raise StreamError(f"a message is cut short after {len(held)} of {n_bytes} bytes")
            held.extend(part)

    while n_left > 0:
        hold(PREFIX_BYTES)
        size = message_bytes(bytes(held[:PREFIX_BYTES]))
        if size == 0:
            return
        if not 0 < size <= min(n_left - PREFIX_BYTES, RESULT_BYTES_MAX):
            raise StreamError(f"a message of {size} bytes does not fit")
        hold(PREFIX_BYTES + size)
        kind, _, body_bytes = message_head(bytes(held[PREFIX_BYTES : PREFIX_BYTES + size]))
        n_bytes = PREFIX_BYTES + size + body_bytes
        if not 0 <= body_bytes <= n_left - PREFIX_BYTES - size:
            raise StreamError(f"a body of {body_bytes} bytes does not fit")
        if n_bytes > RESULT_BYTES_MAX:
            raise QueryError(
                "too_large", f"a batch of {n_bytes} bytes exceeds the limit of {RESULT_BYTES_MAX}; select fewer columns"
            )
        hold(n_bytes)
        message = bytes(memoryview(held)[:n_bytes])
        del held[:n_bytes]
        n_left -= n_bytes
        yield kind, message
