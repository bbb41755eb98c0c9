"""The buffer for a result's Arrow stream, with the same size limit in a collector and for a local file."""

import io
from typing import Any

from chiplog_schemas.query.query_messages import RESULT_BYTES_MAX


class ResultSink(io.RawIOBase):
    """Collect a stream in `data`. Raises OverflowError above RESULT_BYTES_MAX, and keeps the reason in `too_large`.

    arro3 expects the methods of a file, and may replace an exception of `write` by its own.
    """

    def __init__(self) -> None:
        self.data = bytearray()
        self.too_large = ""

    def writable(self) -> bool:
        """Return True: the sink accepts bytes."""
        return True

    def write(self, part: Any) -> int:
        """Append a part of the stream."""
        if len(self.data) + len(part) > RESULT_BYTES_MAX:  # safeguard: result-bounded
            self.too_large = (
                f"result exceeds the limit of {RESULT_BYTES_MAX} bytes; select fewer rows or columns, or aggregate"
            )
            raise OverflowError(self.too_large)
        self.data += part
        return len(part)

    def seek(self, offset: int, whence: int = 0) -> int:
        """Raise OSError: a result is written once, from its beginning."""
        raise OSError("a result is written once, from its beginning")
