"""The ROUTER socket of a query service: bound again when its file is removed, with a bound on unsent answers."""

import logging
import threading
import time
from collections import Counter
from typing import Any

import zmq

from chiplog_collector.query.binding import bind_ipc
from chiplog_schemas.addresses import ipc_path, is_ipc
from chiplog_schemas.limits import HEARTBEAT_INTERVAL_S, LINGER_MS, PEER_SILENT_S
from chiplog_schemas.paths import ensure_private_dir
from chiplog_schemas.process.file_lock import file_id
from chiplog_schemas.query.query_messages import REQUEST_BYTES_MAX
from chiplog_schemas.security.zap import ZapAuthenticator
from chiplog_schemas.transport.router import bind_any

BIND_WAIT_S = 5.0  # a predecessor may still be stopping
BIND_PAUSE_S = 0.1
ANSWERS_PER_PEER_MAX = 128  # above what may wait; a client that never reads its answers gets no more than this
_COPY_BYTES = 64 * 1024  # below this copying a frame is cheaper than tracking it
_log = logging.getLogger("chiplog.index")


class QuerySocket:
    """Binds an address and sends answers; used by the thread that calls `bind`.

    domain: of the authenticator. closing: set to end the wait for an address. counts: of answers, by name.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        address: str,
        authenticator: ZapAuthenticator | None,
        domain: str,
        waiting_max: int,
        closing: threading.Event,
        counts: Counter[str],
    ) -> None:
        self._address = address
        self._authenticator = authenticator
        self._domain = domain
        self._waiting_max = waiting_max
        self._closing = closing
        self._counts = counts
        self._in_flight: list[tuple[Any, int]] = []  # ZeroMQ's trackers of large answers, and their bytes
        self._bound: tuple[int, int] | None = None  # the file of a Unix socket
        self.socket = context.socket(zmq.ROUTER)

    def bind(self) -> None:
        """Bind, and wait for an address that is in use. Raises zmq.ZMQError and OSError."""
        socket = self.socket
        socket.setsockopt(zmq.LINGER, LINGER_MS)
        socket.setsockopt(zmq.MAXMSGSIZE, REQUEST_BYTES_MAX)
        socket.setsockopt(zmq.SNDHWM, ANSWERS_PER_PEER_MAX)
        socket.setsockopt(zmq.RCVHWM, self._waiting_max)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # an answer that cannot be sent is counted, not dropped silently
        # A stopped client must not keep its answer in the index's memory: disconnect it, which makes ZeroMQ free the
        # answer.
        socket.setsockopt(zmq.HEARTBEAT_IVL, int(HEARTBEAT_INTERVAL_S * 1000))
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, int(PEER_SILENT_S * 1000))
        if self._authenticator is not None:
            self._authenticator.secure(socket, self._domain)
        deadline = time.monotonic() + BIND_WAIT_S
        while True:
            try:
                if is_ipc(self._address):
                    bind_ipc(socket, self._address)
                else:
                    bind_any(socket, self._address)
                self._bound = self._file_id()
                return
            except (zmq.ZMQError, OSError) as error:
                if error.errno not in (zmq.EADDRINUSE, zmq.EADDRNOTAVAIL) or time.monotonic() > deadline:
                    raise
            if self._closing.wait(BIND_PAUSE_S):
                raise OSError("closed before it was bound")

    def restore_file(self) -> None:
        """Bind a Unix socket again whose file was removed, on the same ROUTER: queries in progress continue."""
        if self._file_id() == self._bound:  # safeguard: removed-sql-socket-made-again
            return
        try:
            ensure_private_dir(ipc_path(self._address).parent)
            bind_ipc(self.socket, self._address)
        except (OSError, zmq.ZMQError):
            return  # the disk refuses, or another process listens there: the next check tries again
        _log.warning("the socket %s was removed and has been restored", self._address)
        self._bound = self._file_id()

    def unsent_bytes(self) -> int:
        """Return the size of the large answers that ZeroMQ has not sent yet."""
        self._in_flight = [(tracker, size) for tracker, size in self._in_flight if not tracker.done]
        return sum(size for _, size in self._in_flight)

    def send(self, peer: bytes, frames: list[Any]) -> None:
        """Send an answer, or count that it cannot be sent."""
        size = sum(len(frame) for frame in frames)
        try:
            if size <= _COPY_BYTES:
                self.socket.send_multipart([peer, *frames], zmq.NOBLOCK)
            else:
                tracker = self.socket.send_multipart([peer, *frames], zmq.NOBLOCK, copy=False, track=True)
                self._in_flight.append((tracker, size))
        except zmq.ZMQError:  # the peer is gone, or does not read
            self._counts["undeliverable"] += 1
        else:
            self._counts["answered"] += 1

    def close(self) -> None:
        """Close, and wait a moment for what is not sent yet."""
        self.socket.close(linger=LINGER_MS)

    def _file_id(self) -> tuple[int, int] | None:
        return file_id(ipc_path(self._address)) if is_ipc(self._address) else None
