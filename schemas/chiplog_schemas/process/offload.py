"""Run a call that may block for long, such as a sync of a slow disk, while the daemon keeps its peers informed."""

import queue
import threading
from collections.abc import Callable

from chiplog_schemas.limits import HEARTBEAT_INTERVAL_S


class Offload:
    """A thread for one call at a time. The caller waits, and does nothing but call `beat`.

    beat: called in the caller's thread once per heartbeat interval while it waits. It must not touch what the call
    uses.
    """

    def __init__(self, name: str, beat: Callable[[], object]) -> None:
        self._beat = beat
        self._calls: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._ended = threading.Semaphore(0)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)

    def run(self, call: Callable[[], object]) -> None:
        """Run a call to its end. Raises the exceptions of the call."""
        if self._thread.ident is None:
            self._thread.start()
        self._calls.put(call)
        while not self._ended.acquire(timeout=HEARTBEAT_INTERVAL_S):
            self._beat()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def close(self) -> None:
        """End the thread."""
        self._calls.put(None)
        if self._thread.ident is not None:
            self._thread.join()

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            except BaseException as error:
                self._error = error
            self._ended.release()
