"""Where threads leave messages for the sampler's loop."""

import os
import threading
from collections import deque
from typing import Any


class PostBox:
    """Messages of threads, oldest first. `fileno` is readable when there are some, for poll(2)."""

    def __init__(self) -> None:
        self.messages: deque[list[Any]] = deque()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """Return the descriptor that is readable after a post."""
        return self._wake

    def post(self, *messages: list[Any]) -> None:
        """Leave messages. Any thread may call it, also after `close`."""
        with self._lock:
            if messages and self._wake >= 0:
                self.messages.extend(messages)
                os.eventfd_write(self._wake, 1)

    def drain(self) -> None:
        """Make the descriptor unreadable until the next post; call it before the messages are taken."""
        os.eventfd_read(self._wake)

    def close(self) -> None:
        """Close the descriptor."""
        with self._lock:
            os.close(self._wake)
            self._wake = -1
