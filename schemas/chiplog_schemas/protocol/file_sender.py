"""The sending end of saved files, a pure state machine: one file at a time.

The bytes of one file are sent in order, each chunk once, up to the receiver's credit. A lost message, a lost socket or
a restart of either end costs the session: the sender offers the file again and continues at the receiver's offset. The
digest of the whole file decides. The sender removes nothing before the receiver has confirmed that it is stored.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from chiplog_schemas.backoff import Backoff
from chiplog_schemas.limits import BACKOFF_MIN_S, FILE_CHUNK_BYTES, HEARTBEAT_INTERVAL_S, PEER_SILENT_S
from chiplog_schemas.protocol import file_messages
from chiplog_schemas.protocol.actions import Send
from chiplog_schemas.protocol.file_messages import FileMessage, FileMessageKind
from chiplog_schemas.protocol.messages import MessageKind, WireError


@dataclass(frozen=True, slots=True)
class FileStored:
    """The file is on stable storage at the receiver. The local copy may be removed."""

    digest: bytes


@dataclass(frozen=True, slots=True)
class FileDenied:
    """The receiver rejects this file for now. wait_s: when to offer it again."""

    digest: bytes
    wait_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class DigestMismatch:
    """The received bytes have another digest: the local copy is damaged, or the bytes were altered on the way."""

    digest: bytes


@dataclass(frozen=True, slots=True)
class PeerTimeout:
    """The receiver is silent: discard the socket, and offer the file again over a new one."""


FileSenderAction = Send | FileStored | FileDenied | DigestMismatch | PeerTimeout


class FileSenderProtocol:
    """The sending end, of one file at a time.

    sender: 16 bytes. info: sent in OFFER. new_session: returns 8 random bytes. jitter: returns a factor in [0.5, 1).
    """

    def __init__(
        self,
        sender: bytes,
        info: dict[str, Any],
        new_session: Callable[[], bytes],
        jitter: Callable[[], float] = lambda: 1.0,
    ) -> None:
        self.digest = b""  # of the current file; empty without one
        self._sender = sender
        self._info = info
        self._new_session = new_session
        self._jitter = jitter
        self._session = b""
        self._n_bytes = 0
        self._is_open = False  # the receiver has sent its offset
        self._next = 0  # offset after the last byte sent
        self._limit = 0  # offset up to which the credit reaches
        self._heard_at = 0.0
        self._asked_at = 0.0
        self._again_at: float | None = None  # after a RESET
        self._backoff = Backoff(jitter=jitter)

    def offer(self, digest: bytes, n_bytes: int, now: float) -> list[FileSenderAction]:
        """Start to send a file."""
        self.digest, self._n_bytes = digest, n_bytes
        self._heard_at = now
        self._backoff.reset()
        return self._offer(now)

    def receive(self, frames: list[bytes], now: float) -> list[FileSenderAction]:
        """Process a message of the receiver."""
        try:
            message = file_messages.parse(frames)
        except WireError:
            return []
        if not self.digest or message.session != self._session:
            return []
        self._heard_at = now
        digest = self.digest
        match message.kind:
            case FileMessageKind.WANT:
                self._on_want(message)
            case FileMessageKind.STORED:
                self.reset()
                return [FileStored(digest)]
            case FileMessageKind.DENIED:
                self.reset()
                return [FileDenied(digest, max(BACKOFF_MIN_S, message.wait_ms / 1000) * self._jitter(), message.reason)]
            case FileMessageKind.MISMATCH:
                self.reset()
                return [DigestMismatch(digest)]
            case MessageKind.RESET if self._again_at is None:  # each chunk in flight may cause one
                self._is_open = False
                self._again_at = now + self._backoff.next_s()
        return []

    def tick(self, now: float) -> list[FileSenderAction]:
        """Handle timeouts."""
        if not self.digest:
            return []
        if now - self._heard_at > PEER_SILENT_S:
            self.reset()
            return [PeerTimeout()]
        if self._again_at is not None:
            return self._offer(now) if now >= self._again_at else []
        if now - max(self._heard_at, self._asked_at) > HEARTBEAT_INTERVAL_S:
            return self._offer(now)  # a message was lost, or the receiver is slow: its offset shows which
        return []

    @property
    def offset(self) -> int:
        """The offset at which the next chunk begins."""
        return self._next

    def window(self) -> int:
        """The maximum size of the next chunk in bytes; 0 when there is nothing to send."""
        if not self.digest or not self._is_open:
            return 0
        return max(0, min(FILE_CHUNK_BYTES, min(self._limit, self._n_bytes) - self._next))

    def chunk(self, payload: bytes | memoryview) -> Send:
        """Send bytes from `offset` on, at most `window` of them."""
        assert 0 < len(payload) <= self.window()
        frames = file_messages.chunk(self._session, self._next, payload)
        self._next += len(payload)
        return Send(frames)

    def reset(self) -> None:
        """Forget the current file, which no longer belongs to this machine."""
        self.digest = self._session = b""
        self._is_open = False
        self._again_at = None

    def _offer(self, now: float) -> list[FileSenderAction]:
        self._session = self._new_session()
        self._is_open = False
        self._asked_at = now
        self._again_at = None
        return [Send(list(file_messages.offer(self._session, self._sender, self.digest, self._n_bytes, self._info)))]

    def _on_want(self, message: FileMessage) -> None:
        if message.offset > self._n_bytes:
            return  # the receiver claims more bytes than the file has: the silence time-out ends this
        if not self._is_open:
            self._is_open = True
            self._next = message.offset
            self._limit = 0
        self._backoff.reset()
        self._limit = max(self._limit, message.offset + message.credit)
