"""The messages that carry saved files from an agent to a collector, at the address and by the rules of messages.py.

    OFFER     [9, session, versions, sender, digest, bytes, info]   I have a file of this content
    CHUNK     [10, session, offset] + bytes                         its bytes from here on
    WANT      [11, session, offset, credit]                         I have all before `offset`; send `credit` bytes more
    STORED    [12, session]                                         it is here, complete, synced and logged
    DENIED    [13, session, wait_ms, reason]                        not now; offer it again after this time
    MISMATCH  [14, session]                                         the bytes have another digest: I have dropped them

`session` is 8 random bytes, new with each OFFER. `digest` is the SHA-256 of the whole file. RESET (8) is that of
messages.py: the session is unknown, or broke these rules.
"""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from chiplog_schemas.codec import pack, short_repr
from chiplog_schemas.limits import FILE_CHUNK_BYTES, FILE_PAUSE_MAX_S
from chiplog_schemas.protocol.messages import (
    REASON_CHARS_MAX,
    SENDER_BYTES,
    MessageKind,
    WireError,
    check_field,
    parse_head,
)
from chiplog_schemas.storage.content_files import DIGEST_BYTES

FILE_VERSIONS = (1, 1)  # lowest and highest that this code supports
_WAIT_MS_MAX = int(FILE_PAUSE_MAX_S * 1000)


class FileMessageKind(IntEnum):
    """The first element of every first frame. Numbers continue after those of MessageKind, and are never reused."""

    OFFER = 9
    CHUNK = 10
    WANT = 11
    STORED = 12
    DENIED = 13
    MISMATCH = 14


_KINDS = frozenset(map(int, FileMessageKind))
_FIXED_ARRAYS = range(0x90, 0xA0)  # msgpack: arrays of up to 15 elements


@dataclass(slots=True)
class FileMessage:
    """A decoded message. Fields that its kind does not have keep their defaults."""

    kind: int
    session: bytes
    versions: tuple[int, int] = (0, 0)
    sender: bytes = b""
    digest: bytes = b""
    bytes: int = 0
    offset: int = 0
    credit: int = 0
    wait_ms: int = 0
    reason: str = ""
    info: dict[str, Any] = field(default_factory=dict)
    payload: Any = b""  # of CHUNK: bytes


def is_file_message(frames: list[bytes]) -> bool:
    """Return True if a message has one of these kinds, judged by its first two bytes."""
    head = frames[0] if frames else b""
    return len(head) > 1 and head[0] in _FIXED_ARRAYS and head[1] in _KINDS


def offer(session: bytes, sender: bytes, digest: bytes, n_bytes: int, info: dict[str, Any]) -> list[bytes]:
    """Offer a file. info: advisory, as in HELLO; `node` is checked against the sender's key."""
    return [pack([int(FileMessageKind.OFFER), session, list(FILE_VERSIONS), sender, digest, n_bytes, info])]


def chunk(session: bytes, offset: int, payload: bytes | memoryview) -> list[bytes | memoryview]:
    """Carry bytes of the offered file."""
    return [pack([int(FileMessageKind.CHUNK), session, offset]), payload]


def want(session: bytes, offset: int, credit: int) -> list[bytes]:
    """Ask for up to `credit` bytes from `offset` on."""
    return [pack([int(FileMessageKind.WANT), session, offset, credit])]


def stored(session: bytes) -> list[bytes]:
    """Confirm that the file is on stable storage."""
    return [pack([int(FileMessageKind.STORED), session])]


def denied(session: bytes, wait_s: float, reason: str) -> list[bytes]:
    """Reject a file for now."""
    return [pack([int(FileMessageKind.DENIED), session, int(wait_s * 1000), reason[:REASON_CHARS_MAX]])]


def mismatch(session: bytes) -> list[bytes]:
    """Report that the bytes have another digest than the offered one."""
    return [pack([int(FileMessageKind.MISMATCH), session])]


_SHAPES: dict[int, tuple[str, ...]] = {
    FileMessageKind.OFFER: ("versions", "sender", "digest", "bytes", "info"),
    FileMessageKind.CHUNK: ("offset",),
    FileMessageKind.WANT: ("offset", "credit"),
    FileMessageKind.STORED: (),
    FileMessageKind.DENIED: ("wait_ms", "reason"),
    FileMessageKind.MISMATCH: (),
    MessageKind.RESET: ("reason",),
}
_SIZES = {"sender": SENDER_BYTES, "digest": DIGEST_BYTES}
_NUMBERS = frozenset({"bytes", "offset", "credit", "wait_ms"})


def parse(frames: list[bytes]) -> FileMessage:
    """Decode a message and check every type and bound. Unknown fields at the end are ignored. Raises WireError."""
    kind, session, names, values = parse_head(frames, _SHAPES)
    if len(values) < len(names) or len(frames) != (2 if kind == FileMessageKind.CHUNK else 1):
        raise WireError(f"message {kind} has {len(values)} fields and {len(frames)} frames")
    message = FileMessage(kind, session)
    for name, value in zip(names, values, strict=False):
        setattr(message, name, _checked(name, value))
    if kind == FileMessageKind.CHUNK:
        if not 0 < len(frames[1]) <= FILE_CHUNK_BYTES:
            raise WireError(f"a chunk of {len(frames[1])} bytes; it has 1 to {FILE_CHUNK_BYTES}")
        message.payload = frames[1]
    return message


def _checked(name: str, value: Any) -> Any:
    if name in _NUMBERS:
        if type(value) is not int or not 0 <= value < 1 << 62:
            raise WireError(f"{name} is {short_repr(value)}, not a number")
        return min(value, _WAIT_MS_MAX) if name == "wait_ms" else value
    if name in _SIZES:
        if not (isinstance(value, bytes) and len(value) == _SIZES[name]):
            raise WireError(f"{name} is {_SIZES[name]} bytes")
        return value
    return check_field(name, value)
