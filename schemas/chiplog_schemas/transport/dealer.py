"""The thin shell around a `SenderProtocol`: one DEALER socket, one log to read from. Used by the rank and by the agent.

Owned by one thread. It never blocks: the caller polls the descriptors and calls `poll`. A failure here, such as a
socket that the system refuses or an error of the log's disk, costs the session, which is opened again after a pause.
"""

import contextlib
import errno
import os
import resource
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import zmq

from chiplog_schemas.addresses import is_ipv6
from chiplog_schemas.backoff import Backoff, half_to_whole
from chiplog_schemas.limits import BATCH_BYTES_MAX, LINGER_MS, RECORD_BYTES_MAX
from chiplog_schemas.protocol import messages
from chiplog_schemas.protocol.actions import Acknowledged, Connect, Disconnect, Resume, Send, SenderAction
from chiplog_schemas.protocol.sender import SenderProtocol, SenderState
from chiplog_schemas.security.curve import HANDSHAKE_FAILED, ClientCurve, parse_handshake_failure
from chiplog_schemas.transport.pending import has_message
from chiplog_schemas.transport.zmtp import Dealer

_SEND_HWM = 1_000  # frames; credit bounds the bytes long before this
_CONNECT_TIMEOUT_MS = 2_000  # the kernel repeats an unanswered SYN at growing intervals, up to minutes
_MESSAGES_PER_STEP = 256  # acknowledgements are small; the loop has other work
# libzmq aborts the process when its first socket gets no descriptor for an epoll. Measured: 9 descriptors for context,
# reaper, I/O thread, socket, monitor and connection. The others are for threads that open files at the same moment.
_SPARE_DESCRIPTORS = 16
_CONTEXT_THREADS = 2  # of libzmq: the reaper, and one for I/O
_DESCRIPTORS = "/proc/self/fd"


def require_free_fds() -> None:
    """Raise OSError when this process may not open as many files as a context with a socket needs.

    The last descriptors are never used, not even briefly: another thread may be about to open a file.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    used = sum(int(name) < limit for name in os.listdir(_DESCRIPTORS)) if os.path.isdir(_DESCRIPTORS) else 0
    if limit - used < _SPARE_DESCRIPTORS:  # safeguard: context-needs-descriptors
        raise OSError(errno.EMFILE, f"{used} of {limit} file descriptors are open; raise `ulimit -n`")
    taken: list[int] = []
    try:  # the system has a limit too
        while len(taken) < _SPARE_DESCRIPTORS:
            taken.append(os.eventfd(0, os.EFD_CLOEXEC))
    finally:
        for descriptor in taken:
            os.close(descriptor)


def require_free_threads() -> None:
    """Raise OSError when the system does not start the threads of a context: libzmq would abort the process."""
    leave = threading.Event()
    threads = [threading.Thread(target=leave.wait, daemon=True) for _ in range(_CONTEXT_THREADS)]
    try:
        for thread in threads:
            thread.start()  # safeguard: context-needs-threads
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, f"{error}; raise `ulimit -u` or the pids limit of the container") from error
    finally:
        leave.set()
        for thread in threads:
            if thread.ident is not None:
                thread.join()


@dataclass(slots=True)
class LogSlice:
    """Records of a log as one run of bytes, with numbers first..last; or numbers that can no longer be read."""

    first: int
    last: int
    payload: bytes | memoryview
    lost: str = ""  # why first..last can never arrive; then the payload is empty


class LogSource(Protocol):
    """A log that a client can send from."""

    @property
    def first_number(self) -> int:
        """The lowest number that the log still has."""
        ...

    def seek(self, number: int) -> None:
        """Continue at this number. Raises OSError, as the other methods do; that loses nothing."""
        ...

    def read(self, max_bytes: int) -> LogSlice | None:
        """Return the next records, or None."""
        ...

    def acknowledged(self, next_number: int) -> None:
        """Everything before this number is on stable storage at the next hop."""
        ...


class DeliveryClient:
    """Deliver a log's records to the next hop.

    context: of libzmq; None for a plain socket, which survives when other code closes its descriptor. address: of the
    next hop. sender: 16 bytes. info: sent in HELLO. curve: the keys to connect with, None for none.
    on_change: called at each change of state, with a reason.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]] | None,
        address: str,
        sender: bytes,
        info: dict[str, Any],
        source: LogSource,
        *,
        curve: ClientCurve | None = None,
        on_change: Callable[[SenderState, str], None] | None = None,
    ) -> None:
        self.address = address
        self.protocol = SenderProtocol(sender, info, lambda: os.urandom(8), half_to_whole)
        self._context = context
        self._source = source
        self._curve = curve
        self._on_change = on_change or (lambda state, reason: None)
        self.handshake_error = ""  # why a handshake failed permanently since the last session, with the remedy
        self.socket: zmq.Socket[bytes] | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        self._plain_dealer: Dealer | None = None
        self._again_at = 0.0  # no attempt before this time
        self._backoff = Backoff()
        self._has_reported_open = False
        self._has_threads = False  # the first socket starts the context's threads; a later one may be refused

    @property
    def is_open(self) -> bool:
        """Return True if the next hop has answered."""
        return self.protocol.state is SenderState.OPEN

    @property
    def is_answered(self) -> bool:
        """Return True if a process listens at a plain socket's address, although it may not have answered yet."""
        return self._plain_dealer is not None and self._plain_dealer.is_connected

    def poll(self, now: float) -> None:
        """Process what arrived, handle timeouts, send what the credit allows."""
        if now < self._again_at:
            return
        try:
            self._step(now)
        # safeguard: unreadable-log-costs-session
        except (OSError, zmq.ZMQError) as error:  # a disk that refuses, or a system without a free socket
            self._apply(self.protocol.abort(now, str(error)))
            # WELCOME resets the session's own back-off, so this one is separate.
            self._again_at = now + self._backoff.next_s()
            return
        if not self._has_reported_open and self.is_open:
            self._backoff.reset()
            self._has_reported_open = True
            self._on_change(SenderState.OPEN, self.address)

    def beat(self, now: float) -> None:
        """Send a heartbeat if one is due, and nothing else: the log may be in use."""
        with contextlib.suppress(OSError, zmq.ZMQError):  # `poll` will find out
            for action in self.protocol.beat(now):
                if self.socket is not None and isinstance(action, Send):
                    self.socket.send_multipart(action.frames, zmq.DONTWAIT)

    def request_ack(self) -> None:
        """Request an acknowledgement at once of everything that was sent."""
        with contextlib.suppress(OSError, zmq.ZMQError):  # `poll` will find out
            self._apply(self.protocol.request_ack())

    def report(self, health: Mapping[str, float], now: float) -> None:
        """Send what this end measures of itself; a report that cannot be sent is lost, and the next one has more."""
        with contextlib.suppress(OSError, zmq.ZMQError):  # `poll` will find out
            self._apply(self.protocol.report(health, now))

    def _step(self, now: float) -> None:
        self._check_monitor(now)
        if self.socket is not None:
            for _ in range(_MESSAGES_PER_STEP):
                if not has_message(self.socket):
                    break
                try:
                    frames = self.socket.recv_multipart(zmq.DONTWAIT)
                except zmq.Again:
                    break
                self._apply(self.protocol.receive(frames, now))
                if self.socket is None:
                    break
        for _ in range(_MESSAGES_PER_STEP):
            if self._plain_dealer is None or (received := self._plain_dealer.receive()) is None:
                break
            self._apply(self.protocol.receive(received, now))
        self._apply(self.protocol.tick(now, self._source.first_number))
        self._send_available(now)

    def _check_monitor(self, now: float) -> None:
        """Detect at once that the peer closed or died; its silence would show it only after PEER_SILENT_S."""
        if self._monitor is None or not has_message(self._monitor):
            return
        try:
            frames = self._monitor.recv_multipart(zmq.DONTWAIT)
        except zmq.Again:
            return
        failure = parse_handshake_failure(frames, self.address, self._curve)
        if failure is not None and (failure.is_final or self._curve is not None):
            self.handshake_error = failure.reason
        self._apply(self.protocol.abort(now, failure.reason if failure else "connection closed by the peer"))

    def _send_available(self, now: float) -> None:
        while (self.socket is not None or self._plain_dealer is not None) and (window := self.protocol.window()) > 0:
            if self.protocol.in_flight_bytes and window < RECORD_BYTES_MAX // 4:
                return  # let acknowledgements accumulate instead of sending tiny slices
            piece = self._source.read(min(window, BATCH_BYTES_MAX))  # safeguard: backlog-in-large-pieces
            if piece is None:
                return
            if piece.lost:
                # safeguard: lost-blocks-declared
                self._apply([self.protocol.lost(piece.first, piece.last, piece.lost)])
            else:
                # safeguard: spool-kept-until-acknowledged
                self._apply([self.protocol.data(piece.first, piece.last, piece.payload, now)])

    def close(self) -> None:
        """Send BYE and close, waiting at most LINGER_MS for queued messages."""
        with contextlib.suppress(OSError):  # the connection is lost
            self._apply(self.protocol.bye())
        self._drop_socket(LINGER_MS)

    def _apply(self, actions: list[SenderAction]) -> None:
        for action in actions:
            match action:
                case Send(frames) if self.socket is not None:
                    try:
                        self.socket.send_multipart(frames, zmq.DONTWAIT)
                    except zmq.Again:
                        # Credit bounds the queue, so a full one means that the peer is gone: restart, nothing is lost.
                        self._apply(self.protocol.abort(time.monotonic(), "send queue full"))
                case Send(frames) if self._plain_dealer is not None:
                    try:
                        self._plain_dealer.send(frames)
                    except BlockingIOError:
                        self._apply(self.protocol.abort(time.monotonic(), "send queue full"))
                case Connect(frames) if self._context is None:
                    self._drop_socket(0)
                    self._plain_dealer = Dealer(self.address)
                    self._plain_dealer.send(frames)
                    self._on_change(SenderState.GREETING, self.address)
                case Connect(frames):
                    self._drop_socket(0)
                    self.socket = self._new_socket()
                    self.socket.send_multipart(frames, zmq.DONTWAIT)
                    self._on_change(SenderState.GREETING, self.address)
                case Disconnect(reason):
                    self._drop_socket(0)
                    self._has_reported_open = False
                    self._on_change(SenderState.CLOSED, reason)
                case Resume(number):
                    self.handshake_error = ""
                    self._source.seek(number)  # safeguard: unacknowledged-sent-again
                case Acknowledged(number):
                    self._source.acknowledged(number)

    @property
    def is_blocked(self) -> bool:
        """Return True if data waits for room in the kernel's buffer; `wait` returns once there is some."""
        return self._plain_dealer is not None and self._plain_dealer.is_blocked

    def wait(self, wait_s: float) -> None:
        """Wait until something arrived or can be sent, at most this long."""
        if self._plain_dealer is not None:
            self._plain_dealer.wait(wait_s)
        elif self.socket is not None:
            self.socket.poll(int(wait_s * 1000))
        else:
            time.sleep(wait_s)

    def _new_socket(self) -> zmq.Socket[bytes]:
        assert self._context is not None
        if not self._has_threads:
            require_free_fds()
            require_free_threads()
        socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        try:
            self._connect(socket)
        except BaseException:
            self._close(socket, 0)
            raise
        self._has_threads = True
        return socket

    def _connect(self, socket: zmq.Socket[bytes]) -> None:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, _SEND_HWM)
        socket.setsockopt(zmq.MAXMSGSIZE, messages.HEAD_BYTES_MAX)  # every message of a receiver is a first frame only
        socket.setsockopt(zmq.RECONNECT_IVL, 20)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1_000)
        socket.setsockopt(zmq.CONNECT_TIMEOUT, _CONNECT_TIMEOUT_MS)
        if self._curve is not None:
            self._curve.configure(socket)  # safeguard: keys-used-or-nothing-sent
        self._monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED | HANDSHAKE_FAILED)
        self._monitor.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.IPV6, is_ipv6(self.address))  # safeguard: dealer-connects-ipv6
        socket.connect(self.address)

    def _drop_socket(self, linger_ms: int) -> None:
        if self.socket is not None:
            self._close(self.socket, linger_ms)
            self.socket = None
        if self._plain_dealer is not None:
            plain, self._plain_dealer = self._plain_dealer, None
            plain.close(linger_ms / 1000)

    def _close(self, socket: zmq.Socket[bytes], linger_ms: int) -> None:
        with contextlib.suppress(zmq.ZMQError):  # the socket may have none
            socket.disable_monitor()
        if self._monitor is not None:
            self._monitor.close(0)  # without this, closing it is left to the garbage collector and delays the context
            self._monitor = None
        socket.close(linger_ms)
