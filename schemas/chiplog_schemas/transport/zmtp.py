"""A ZeroMQ DEALER over a plain socket: ZMTP 3.0 with the NULL mechanism (https://rfc.zeromq.org/spec/23/).

For a rank, whose process belongs to the training. libzmq aborts the process when one of its descriptors is closed, and
code that turns a process into a daemon closes all of them. Here that raises an OSError, which costs only a connection.

    greeting    64 bytes: FF, 8 × 0, 7F, version 3.0, mechanism in 20 bytes, as-server 0, 31 × 0
    frame       flags (1: more follow, 2: long, 4: command), size in 1 byte or 8, content
    READY       a command: 05 'READY', then properties: size in 1 byte, name, size in 4 bytes, value
"""

import contextlib
import errno
import itertools
import select
import socket
import time
from collections import deque
from collections.abc import Sequence

from chiplog_schemas.addresses import ipc_path, is_ipc, is_ipv6, parse_tcp
from chiplog_schemas.process.descriptors import OwnedDescriptor

FRAME_BYTES_MAX = 65_536  # messages of a receiver are small; a larger one is not from an agent
_MORE, _LONG, _COMMAND = 1, 2, 4
_GREETING_BYTES = 64
_GREETING = (b"\xff" + bytes(8) + b"\x7f\x03\x00NULL").ljust(_GREETING_BYTES, b"\0")
_READY = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00"
_READ_BYTES = 1 << 16
_PIECES_MAX = 64  # per call; the kernel accepts 1024
_NOT_THERE = (errno.ENOENT, errno.ECONNREFUSED, errno.EAGAIN, errno.EINPROGRESS, errno.EALREADY, errno.EINTR)
_PENDING_BYTES_MAX = 64 << 20  # credit limits the queue long before


class Dealer:
    """Connects to one address and moves messages. One thread; no call blocks.

    Until the peer listens, each call of `receive` tries to connect. Every method raises OSError once a connection is
    lost.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._socket: socket.socket | None = None
        self._owned: OwnedDescriptor | None = None
        self._is_connected = False
        self._handshake: deque[memoryview] = deque([memoryview(_GREETING), memoryview(_frame(_COMMAND, _READY))])
        self._out: deque[memoryview] = deque()
        self._out_bytes = 0
        self._in = bytearray()
        self._has_greeted = self._is_ready = False  # of the peer: before it is ready it accepts no message
        self._message: list[bytes] = []
        self._messages: deque[list[bytes]] = deque()

    @property
    def is_connected(self) -> bool:
        """Return True if a process listens, although it may not have answered yet."""
        return self._is_connected

    @property
    def is_blocked(self) -> bool:
        """Return True if queued data waits for room in the kernel's buffer."""
        return self._is_connected and bool(self._out if self._is_ready else self._handshake)

    def send(self, frames: Sequence[bytes | memoryview]) -> None:
        """Send a message, or queue it. Raises BlockingIOError when the queue is full."""
        if self._out_bytes > _PENDING_BYTES_MAX:
            raise BlockingIOError(errno.EAGAIN, "send queue full")
        for number, frame in enumerate(frames):
            size = len(frame)
            flags = (_MORE if number < len(frames) - 1 else 0) | (_LONG if size > 255 else 0)
            self._out.append(memoryview(bytes([flags]) + size.to_bytes(8 if size > 255 else 1, "big")))
            if size:
                self._out.append(memoryview(frame))
            self._out_bytes += size
        self._flush()

    def receive(self) -> list[bytes] | None:
        """Send what is queued, and return the next message, or None."""
        self._flush()
        if not self._messages and self._is_connected:
            self._read()
        return self._messages.popleft() if self._messages else None

    def wait(self, wait_s: float) -> None:
        """Wait until something can be received, or sent if something is queued, at most this long."""
        if self._socket is None or not self._is_connected or self._owned is None or not self._owned.is_ours:
            time.sleep(wait_s)
            return
        poll = select.poll()
        poll.register(self._owned.number, select.POLLIN | (select.POLLOUT if self.is_blocked else 0))
        poll.poll(wait_s * 1000)

    def close(self, wait_s: float) -> None:
        """Close, waiting this long for what is queued."""
        deadline = time.monotonic() + wait_s
        with contextlib.suppress(OSError):
            while self.is_blocked and time.monotonic() < deadline:
                self.wait(max(0.0, deadline - time.monotonic()))
                self._flush()
        self._drop()

    def _drop(self) -> None:
        """Close the socket, unless its number belongs to another file by now."""
        opened, self._socket = self._socket, None
        if opened is not None:
            opened.detach()
        if self._owned is not None:
            self._owned.close()
            self._owned = None
        self._is_connected = False

    def _own(self) -> socket.socket:
        assert self._socket is not None
        try:
            if self._owned is not None:
                self._owned.check()  # safeguard: reused-descriptor-unused
        except OSError:
            self._drop()
            raise
        return self._socket

    def _connect(self) -> bool:
        if self._socket is None:
            kind, target = _target(self._address)
            opened = socket.socket(kind, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
            self._socket, self._owned = opened, OwnedDescriptor(opened.fileno())
        else:
            _, target = _target(self._address)
        error = self._own().connect_ex(target)
        if error in (0, errno.EISCONN):
            self._is_connected = True
        elif error not in _NOT_THERE:
            self._drop()
            raise OSError(error, f"no connection to {self._address}")
        elif error not in (errno.EINPROGRESS, errno.EALREADY):
            self._drop()  # no process listens yet: the next call tries again
        return self._is_connected

    def _flush(self) -> None:
        if not self._is_connected and not self._connect():
            return
        # safeguard: send-after-handshake
        if self._send_all(self._handshake) and self._is_ready and self._send_all(self._out):
            self._out_bytes = 0

    def _send_all(self, pieces: deque[memoryview]) -> bool:
        """Send what the kernel accepts. Return True if that was everything."""
        while pieces:
            try:
                n_sent = self._own().sendmsg(list(itertools.islice(pieces, _PIECES_MAX)), (), socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return False
            except OSError:
                self._drop()
                raise
            while n_sent:
                piece = pieces[0]
                if n_sent < len(piece):
                    pieces[0] = piece[n_sent:]
                    break
                n_sent -= len(piece)
                pieces.popleft()
        return True

    def _read(self) -> None:
        while not self._messages:
            try:
                data = self._own().recv(_READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                self._drop()
                raise
            if not data:
                self._drop()
                raise ConnectionResetError(errno.ECONNRESET, "connection closed by the peer")
            self._in += data
            was_ready = self._is_ready
            self._parse()
            if self._is_ready and not was_ready:
                self._flush()

    def _parse(self) -> None:
        at = 0
        if not self._has_greeted:
            if len(self._in) < _GREETING_BYTES:
                return
            if self._in[0] != 0xFF or self._in[10] < 3 or bytes(self._in[12:17]) != b"NULL\0":
                self._drop()
                raise OSError(errno.EPROTO, f"{self._address} is not a ZeroMQ peer without keys")
            self._has_greeted = True
            at = _GREETING_BYTES
        while len(self._in) - at >= 2:
            flags = self._in[at]
            head = 9 if flags & _LONG else 2
            if len(self._in) - at < head:
                break
            size = int.from_bytes(self._in[at + 1 : at + head], "big")
            if size > FRAME_BYTES_MAX:
                self._drop()
                raise OSError(errno.EPROTO, f"a frame of {size} bytes exceeds the limit of {FRAME_BYTES_MAX}")
            if len(self._in) - at < head + size:
                break
            content = bytes(self._in[at + head : at + head + size])
            at += head + size
            if flags & _COMMAND:
                if content.startswith(b"\x05ERROR"):
                    self._drop()
                    raise OSError(errno.EACCES, f"{self._address} refused: {content[7:200]!r}")
                self._is_ready = True
                continue
            self._message.append(content)
            if not flags & _MORE:
                self._messages.append(self._message)
                self._message = []
        del self._in[:at]


def _frame(flags: int, content: bytes) -> bytes:
    return bytes([flags, len(content)]) + content


def _target(address: str) -> tuple[int, str | tuple[str, int]]:
    """Return the family and the address to connect to."""
    if is_ipc(address):
        return socket.AF_UNIX, str(ipc_path(address))
    host, port = parse_tcp(address)
    return (socket.AF_INET6 if is_ipv6(address) else socket.AF_INET), (host.strip("[]"), port)
