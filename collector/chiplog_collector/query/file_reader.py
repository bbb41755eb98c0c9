"""Read parts of saved files in a thread: a disk that hangs must not keep the query service from answering pings."""

import queue
import threading
from collections.abc import Callable
from pathlib import Path

from chiplog_collector.query.change_request import ChangeRequest
from chiplog_schemas.query import query_messages
from chiplog_schemas.storage.content_files import content_path, read_content


class FileReader:
    """Answers READ, one part at a time.

    directory: of the saved files; None: there are none. fetch: copies a content into it that may be elsewhere; raises
    FileNotFoundError, OSError.
    """

    def __init__(self, directory: Path | None, fetch: Callable[[str], None] | None = None) -> None:
        self._directory = directory
        self._fetch = fetch
        self._requests: queue.SimpleQueue[ChangeRequest | None] = queue.SimpleQueue()  # bounded by the service
        self._thread = threading.Thread(target=self._run, name="chiplog-files", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def submit(self, request: ChangeRequest) -> None:
        """Read a part, and answer the request from the thread."""
        self._requests.put(request)

    def close(self, wait_s: float) -> None:
        """End the thread after the part that it reads; wait for at most `wait_s`."""
        self._requests.put(None)
        if self._thread.ident is not None:
            self._thread.join(wait_s)

    @property
    def is_alive(self) -> bool:
        """Return True while the thread runs."""
        return self._thread.is_alive()

    def _run(self) -> None:
        while (request := self._requests.get()) is not None:
            request.answer(request, self._read(request.question))

    def _read(self, question: query_messages.QueryMessage) -> list[bytes]:
        """Return the answer: at most FILE_PART_BYTES_MAX."""
        try:
            if self._directory is None:
                raise FileNotFoundError
            if self._fetch is not None and not content_path(self._directory, question.digest).exists():
                self._fetch(question.digest.hex())
            n_bytes, data = read_content(self._directory, question.digest, question.offset, question.n_bytes)
        except FileNotFoundError:
            message = f"content {question.digest.hex()} is not stored at this collector; the view files lists its paths"
            return query_messages.failure(question.id, "refused", message)
        except OSError as error:
            return query_messages.failure(question.id, "internal", f"a saved file cannot be read: {error}")
        return query_messages.file_part(question.id, n_bytes, data)
