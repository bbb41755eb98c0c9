"""The buffer for a result's Arrow stream, with the same limits in a collector and for a local file."""

import io
from typing import Any, NamedTuple

from chiplog_schemas.limits import RESULT_SPILL_BYTES
from chiplog_schemas.query.query_messages import RESULT_BYTES_MAX
from chiplog_schemas.query.result_file import NoRoomError, ResultFile, ResultSpace


class Failure(NamedTuple):
    """Why a query has no result. kind: one of the query protocol's ERROR_KINDS, or DAMAGED."""

    kind: str
    message: str


class ResultSink(io.RawIOBase):
    """Collect a stream in `data`; a longer one in `file`, if there is a space for files.

    Without one it raises OverflowError above RESULT_BYTES_MAX. `failure` keeps the reason for a result that is too
    large: arro3 expects the methods of a file, and may replace an exception of `write` by its own.

    space: for files. memory_bytes: what `data` may hold then.
    """

    def __init__(self, space: ResultSpace | None = None, memory_bytes: int = RESULT_SPILL_BYTES) -> None:
        self.data = bytearray()
        self.file: ResultFile | None = None
        self.failure: Failure | None = None
        self._space = space
        self._memory_bytes = min(memory_bytes, RESULT_SPILL_BYTES)

    @property
    def n_bytes(self) -> int:
        """The size of the stream."""
        return len(self.data) if self.file is None else self.file.n_bytes

    def writable(self) -> bool:
        """Return True: the sink accepts bytes."""
        return True

    def write(self, part: Any) -> int:
        """Append a part of the stream."""
        if self._space is None:
            if len(self.data) + len(part) > RESULT_BYTES_MAX:  # safeguard: result-bounded
                message = (
                    f"result exceeds the limit of {RESULT_BYTES_MAX} bytes; select fewer rows or columns, aggregate, "
                    "or read it with Client.stream() or chiplog sql -o FILE, which have no such limit"
                )
                self.failure = Failure("too_large", message)
                raise OverflowError(message)
            self.data += part
        elif self.file is None and len(self.data) + len(part) <= self._memory_bytes:
            self.data += part
        else:
            self._spill(self._space, part)
        return len(part)

    def _spill(self, space: ResultSpace, part: Any) -> None:
        try:
            if self.file is None:
                self.file = space.create()
                self.file.write(self.data)
                self.data = bytearray()
            self.file.write(part)
        except NoRoomError as error:
            self.failure = Failure("busy" if error.is_shared else "too_large", str(error))
            raise
        except OSError as error:
            self.failure = Failure(
                "internal", f"a large result cannot be written to {space.directory}: {error.strerror}"
            )
            raise

    def read_stream(self, offset: int, n_bytes: int) -> "bytes | memoryview":
        """Return bytes of the stream by offset; fewer at the end."""
        if self.file is not None:
            return self.file.read(offset, n_bytes)
        return memoryview(self.data)[offset : offset + n_bytes]

    def close_file(self) -> None:
        """Free the space on disk."""
        if self.file is not None:
            self.file.close()

    def seek(self, offset: int, whence: int = 0) -> int:
        """Raise OSError: a result is written once, from its beginning."""
        raise OSError("a result is written once, from its beginning")
