"""Where the bytes of a result come from, part by part: from memory, from a local file, or from a collector."""

import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from chiplog_client.connection import CollectorConnection
from chiplog_client.results.result import QueryError
from chiplog_schemas.limits import RESULT_PART_BYTES
from chiplog_schemas.query.query_messages import QueryMessage

if TYPE_CHECKING:
    from chiplog_schemas.query.result_file import ResultFile

PARTS_AHEAD = 4  # requested and not used yet: they cover the way to the collector and back

Part = bytes | bytearray | memoryview


class ResultSource(Protocol):
    """The bytes of one result. Used by one thread at a time."""

    n_bytes: int
    n_rows: int

    def read(self) -> Part:
        """Return the next part, which is empty after the last one. Raises QueryError."""

    def close(self) -> None:
        """Free what holds the result. May be called twice."""


class MemoryResult:
    """A small result."""

    def __init__(self, data: Part, n_rows: int) -> None:
        self.n_bytes = len(data)
        self.n_rows = n_rows
        self._data = data

    def read(self) -> Part:
        """Return all bytes, then none."""
        data, self._data = self._data, b""
        return data

    def close(self) -> None:
        """Free the memory."""
        self._data = b""


class FileResult:
    """A large result of a query that was run without a collector."""

    def __init__(self, file: "ResultFile", n_rows: int) -> None:
        self.n_bytes = file.n_bytes
        self.n_rows = n_rows
        self._file = file
        self._at = 0

    def read(self) -> Part:
        """Return the next part, which is empty after the last one. Raises QueryError."""
        try:
            part = self._file.read(self._at, RESULT_PART_BYTES)
        except OSError as error:
            raise QueryError("internal", f"a result cannot be read: {error}") from error
        self._at += len(part)
        return part

    def close(self) -> None:
        """Free the space on disk."""
        self._file.close()


class RemoteResult:
    """A large result that a collector keeps. It owns the connection that asked for it.

    first: the answer, a PART_OF_RESULT. lives: returns False once the collector has ended. cancelled: another thread
    sets it to end a wait.
    """

    def __init__(
        self,
        connection: CollectorConnection,
        first: QueryMessage,
        lives: Callable[[], bool],
        cancelled: threading.Event | None = None,
    ) -> None:
        self.n_bytes = first.n_bytes
        self.n_rows = first.n_rows
        self._connection: CollectorConnection | None = connection
        self._lives = lives
        self._cancelled = cancelled
        self._id = first.id
        self._at = 0  # of the next part to return
        self._requested_to = len(first.payload)
        self._requested: deque[int] = deque()  # offsets; the collector answers in this order
        self._arrived: dict[int, Part] = {0: first.payload}

    def read(self) -> Part:
        """Return the next part, which is empty after the last one. Raises QueryError."""
        if self._connection is None or self._at >= self.n_bytes:
            return b""
        while self._requested_to < self.n_bytes and len(self._requested) < PARTS_AHEAD:
            self._request(self._connection, self._requested_to)
            self._requested_to += RESULT_PART_BYTES
        while self._at not in self._arrived:
            part = self._connection.receive_part(self._id, self._lives, self._cancelled)
            offset = self._requested.popleft()
            if part is None:
                self._request(self._connection, offset)  # the collector was busy
            elif part.offset != offset or len(part.payload) != min(RESULT_PART_BYTES, self.n_bytes - offset):
                raise QueryError("internal", "the collector sends another part of the result than was requested")
            else:
                self._arrived[offset] = part.payload
        part_bytes = self._arrived.pop(self._at)
        self._at += len(part_bytes)
        return part_bytes

    def _request(self, connection: CollectorConnection, offset: int) -> None:
        connection.request_part(self._id, offset)
        self._requested.append(offset)

    def close(self) -> None:
        """Tell the collector to drop the result, and close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.cancel(self._id)  # safeguard: result-dropped-when-closed
            connection.close()
