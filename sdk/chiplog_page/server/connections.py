"""Bounds of the server's connections: how many, and how long one may be silent before its request is complete."""

import asyncio
import logging
import resource
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from chiplog_schemas.once import OnceLogger

CONNECTIONS_MAX = 128  # a browser opens six for each page
FILES_SHARE = 4  # at most a quarter of the descriptors: in a notebook, the others belong to the training
HEAD_S = 10.0  # for the head of a request; a browser sends it at once, and closes connections that it does not need
_log = logging.getLogger("chiplog_page")


def connections_max() -> int:
    """Return how many connections the server may hold."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CONNECTIONS_MAX if files == resource.RLIM_INFINITY else max(8, min(CONNECTIONS_MAX, files // FILES_SHARE))


class BoundedProtocol(H11Protocol):
    """One connection. The oldest one without a request is closed for a new one above the bound.

    It logs no requests. uvicorn's option for that removes the handlers of other servers in this process.
    """

    _once = OnceLogger(_log.warning, keys_max=2)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.access_log = False
        self._idle_since = 0.0
        self._head_timer: asyncio.TimerHandle | None = None

    @property
    def _is_idle(self) -> bool:
        """Return True if no request is being answered."""
        return self.cycle is None or bool(self.cycle.response_complete)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection. Above the bound, close the longest idle one."""
        super().connection_made(transport)
        self._wait_for_head()
        if len(self.connections) > connections_max():  # safeguard: connections-bounded
            idle = [one for one in self.connections if isinstance(one, BoundedProtocol) and one._is_idle]
            oldest = min(idle, key=lambda one: one._idle_since)  # this one is idle, too
            oldest._close(f"more than {connections_max()} connections are open; those without a request are closed")

    def data_received(self, data: bytes) -> None:
        """Read a part of a request."""
        super().data_received(data)
        if not self._is_idle:
            self._stop_waiting()
        elif self._head_timer is None:
            self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait_for_head(self) -> None:
        self._idle_since = self.loop.time()
        self._head_timer = self.loop.call_later(HEAD_S, self._end_waiting)

    def _stop_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _end_waiting(self) -> None:
        self._head_timer = None
        if self._is_idle:  # safeguard: silent-connection-closed
            self._close(f"a connection without a whole request is closed after {HEAD_S:.0f} s")

    def _close(self, why: str) -> None:
        self._once.log(why, f"{why}; the last one was from {self.client and self.client[0]}")
        self.transport.abort()
