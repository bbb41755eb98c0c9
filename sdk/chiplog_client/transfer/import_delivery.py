"""Deliver the blocks and files of an import to a collector, as an agent delivers its spool and outbox."""

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

import zmq

from chiplog_schemas.addresses import is_ipv6
from chiplog_schemas.backoff import half_to_whole
from chiplog_schemas.limits import LINGER_MS
from chiplog_schemas.protocol import messages
from chiplog_schemas.protocol.actions import Send
from chiplog_schemas.protocol.file_sender import (
    DigestMismatch,
    FileDenied,
    FileSenderAction,
    FileSenderProtocol,
    FileStored,
    PeerTimeout,
)
from chiplog_schemas.protocol.sender import SenderState
from chiplog_schemas.security.curve import ClientCurve
from chiplog_schemas.storage.record import Kind, encode
from chiplog_schemas.transport.dealer import DeliveryClient, LogSlice

CONNECT_WAIT_S = 30.0  # an embedded collector starts within this, on a busy machine
REJECTED_WAIT_S = 2.0  # a key that has just been allowed may still be rejected: daemons read the list twice a second
REFUSALS_WAIT_S = 3.0  # the index counts refused events after it has applied them; the next acknowledgement has them
_POLL_S = 0.05
_DENIED_MAX_S = 5.0  # a collector that is only busy asks for less; one without room asks for more


class DeliveryError(Exception):
    """The collector does not answer, or does not take the import. The text is one line."""


@dataclass(frozen=True, slots=True)
class Destination:
    """A collector. node: the name of this node, which a key must cover."""

    address: str
    node: str
    curve: ClientCurve | None = None


class BlockSource:
    """A log without a disk: records of blocks that are made as they are sent, and kept until they are acknowledged.

    The credit of the collector bounds what is kept.
    """

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._kept: deque[tuple[int, bytes]] = deque()  # (number, record), ascending
        self._position = 0  # number of the next record to send
        self._next = 0  # number of the next record to make
        self.is_exhausted = False

    @property
    def first_number(self) -> int:
        """The lowest number that is kept."""
        return self._kept[0][0] if self._kept else self._next

    @property
    def is_done(self) -> bool:
        """Return True if all records were made, sent and acknowledged."""
        return self.is_exhausted and not self._kept

    def seek(self, number: int) -> None:
        """Continue at this number."""
        self._position = max(number, self.first_number)

    def read(self, max_bytes: int) -> LogSlice | None:
        """Return the next record, or None."""
        if self._position < self._next:
            number, record = self._kept[self._position - self.first_number]
        else:
            block = next(self._blocks, None)
            if block is None:
                self.is_exhausted = True
                return None
            number, record = self._next, encode(Kind.BLOCK, self._next, block)
            self._kept.append((number, record))  # safeguard: imported-block-kept-until-acknowledged
            self._next += 1
        self._position = number + 1
        return LogSlice(number, number, record)

    def acknowledged(self, next_number: int) -> None:
        """Drop the records before this number."""
        while self._kept and self._kept[0][0] < next_number:
            self._kept.popleft()


@contextlib.contextmanager
def _connected(destination: Destination, source: BlockSource) -> Iterator["_Link"]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    info = {"node": destination.node, "pid": os.getpid()}
    reasons = [""]  # the last one why a session ended
    client = DeliveryClient(
        context,
        destination.address,
        os.urandom(16),
        info,
        source,
        curve=destination.curve,
        on_change=lambda state, reason: reasons.append(reason) if state is SenderState.CLOSED else None,
    )
    try:
        yield _Link(client, destination, reasons)
    finally:
        client.close()
        context.destroy(LINGER_MS)


class _Link:
    """A connection to a collector, which may be away for a while."""

    def __init__(self, client: DeliveryClient, destination: Destination, reasons: list[str]) -> None:
        self.client = client
        self._reasons = reasons
        self._destination = destination
        self._open_at = time.monotonic()  # or opened

    def step(self) -> None:
        """Send and receive for a moment. Raises DeliveryError if the collector has been away for too long."""
        now = time.monotonic()
        self.client.poll(now)
        if self.client.is_open:
            self._open_at = now
        error = self.client.handshake_error if self._destination.curve is not None else ""
        if now - self._open_at > (REJECTED_WAIT_S if error else CONNECT_WAIT_S):
            why = error or f"no collector answers within {CONNECT_WAIT_S:g} s"
            if not error and self._reasons[-1]:
                why += f" ({self._reasons[-1]})"
            raise DeliveryError(f"{self._destination.address}: {why}")
        self.client.wait(_POLL_S)


def check_connection(destination: Destination) -> None:
    """Return when the collector has answered. Raises DeliveryError."""
    with _connected(destination, BlockSource(iter(()))) as link:
        while not link.client.is_open:
            link.step()


def deliver_blocks(destination: Destination, blocks: Iterator[bytes], on_progress: Callable[[], None]) -> None:
    """Deliver blocks, and return when the collector has all of them on stable storage.

    Raises DeliveryError. A collector that restarts in between only delays.
    """
    source = BlockSource(blocks)
    with _connected(destination, source) as link:
        while not source.is_done:
            link.step()
            if source.is_exhausted:
                link.client.request_ack()
            on_progress()
        _check_refusals(link.client, destination)


def _check_refusals(client: DeliveryClient, destination: Destination) -> None:
    """Raise DeliveryError if the index refuses events, which only a key that is bound to nodes causes."""
    until = time.monotonic() + (REFUSALS_WAIT_S if destination.curve is not None else 0.0)
    while time.monotonic() < until and not client.protocol.refused:
        client.poll(time.monotonic())
        client.wait(_POLL_S)
    if client.protocol.refused:  # safeguard: refused-import-reported
        raise DeliveryError(
            f"{destination.address} keeps {client.protocol.refused} events without applying them: the key "
            "of this host does not cover the run's nodes; run `chiplog keys allow agent.pub --node '*'` there with its "
            "public key"
        )


def open_content(path: Path) -> BufferedReader:
    """Open a file for reading. Raises OSError."""
    return open(path, "rb")


def deliver_files(
    destination: Destination,
    contents: dict[str, Path],
    on_bytes: Callable[[int], None],
    opened: Callable[[Path], BufferedReader] = open_content,
) -> None:
    """Deliver saved files by digest, one at a time, and return when the collector has them. Raises DeliveryError."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    sender = _FileSender(context, destination)
    try:
        for digest, path in contents.items():
            try:
                file = opened(path)
            except OSError as error:
                raise DeliveryError(f"{path} cannot be read: {error.strerror}; export the run again") from error
            with file:
                sender.send(bytes.fromhex(digest), path, file)
                on_bytes(os.fstat(file.fileno()).st_size)
    finally:
        sender.close()
        context.destroy(LINGER_MS)


class _FileSender:
    """One DEALER socket, and the protocol of files."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", destination: Destination) -> None:
        self._destination = destination
        info = {"node": destination.node, "pid": os.getpid()}
        self._protocol = FileSenderProtocol(os.urandom(16), info, lambda: os.urandom(8), half_to_whole)
        self._context = context
        self._socket = self._connect()

    def _connect(self) -> "zmq.Socket[bytes]":
        socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, messages.HEAD_BYTES_MAX)
        if self._destination.curve is not None:
            self._destination.curve.configure(socket)
        socket.setsockopt(zmq.IPV6, is_ipv6(self._destination.address))
        socket.connect(self._destination.address)
        return socket

    def close(self) -> None:
        self._socket.close(0)

    def send(self, digest: bytes, path: Path, file: BufferedReader) -> None:
        """Send one file, and return when the collector has it. Raises DeliveryError."""
        last_received_s, offer_at = time.monotonic(), 0.0
        while True:
            now = time.monotonic()
            if now - last_received_s > CONNECT_WAIT_S:
                raise DeliveryError(
                    f"{self._destination.address}: no collector takes saved files within {CONNECT_WAIT_S:g} s; "
                    "check that it runs, and that it allows this host's key"
                )
            if not self._protocol.digest and now >= offer_at:
                self._act(self._protocol.offer(digest, os.fstat(file.fileno()).st_size, now))
            self._socket.poll(int(_POLL_S * 1000))
            actions = self._protocol.tick(now)
            while self._socket.poll(0):
                last_received_s = now
                actions += self._protocol.receive(self._socket.recv_multipart(), now)
            if any(isinstance(action, FileStored) for action in actions):
                return
            wait_s = max((self._pause_after(action, path) for action in actions), default=0.0)
            offer_at = max(offer_at, now + wait_s)
            self._act(actions)
            self._send_chunks(file.fileno(), path)

    def _pause_after(self, action: FileSenderAction, path: Path) -> float:
        """Return how long to wait before the next offer. Raises DeliveryError if another offer is no use."""
        match action:
            case FileDenied(_, wait_s, reason) if wait_s > _DENIED_MAX_S:
                raise DeliveryError(f"{self._destination.address} takes no saved files now: {reason}")
            case FileDenied(_, wait_s, _):
                return wait_s
            case DigestMismatch():
                raise DeliveryError(f"{path} has changed since it was checked; export the run again")
            case PeerTimeout():
                self._socket.close(0)
                self._socket = self._connect()
        return 0.0

    def _send_chunks(self, descriptor: int, path: Path) -> None:
        while window := self._protocol.window():
            payload = os.pread(descriptor, window, self._protocol.offset)
            if not payload:
                raise DeliveryError(f"{path} has changed since it was checked; export the run again")
            self._act([self._protocol.chunk(payload)])

    def _act(self, actions: list[FileSenderAction]) -> None:
        for action in actions:
            if isinstance(action, Send):
                with contextlib.suppress(zmq.Again):  # the peer is gone: its silence will show it
                    self._socket.send_multipart(action.frames, zmq.DONTWAIT)
