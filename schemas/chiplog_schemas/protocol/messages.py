"""The messages of both hops: ZeroMQ multipart, a msgpack array in the first frame, bytes in the second.

    HELLO    [1, session, versions, sender, first, info]   I am; my log begins at number `first`
    WELCOME  [2, session, version, next, credit]           I have everything before `next`; send up to `credit` bytes
    DATA     [3, session, first, last]  + slice            all records of my log in first..last, verbatim
    ACK      [4, session, next, credit, refused, queried]  everything before `next` is on stable storage here
    LOST     [5, session, first, last, reason]             in place of DATA: these numbers of my log can never arrive
    PING     [6, session, next, health]                    all before `next` was sent in this session; answered by ACK
    BYE      [7, session]                                  nothing more in this session
    RESET    [8, session, reason]                          I do not know this session: start a new one

`session` is 8 random bytes of the sender, new with every HELLO and every socket. `sender` is 16 bytes: the producer on
the first hop, the agent's spool on the second. `versions` is [lowest, highest]. DATA and LOST of a session follow each
other without a jump: a receiver that sees a jump has lost a message (a socket reconnected silently) and answers RESET.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from chiplog_schemas.codec import CodecError, pack, short_repr, unpack
from chiplog_schemas.limits import NUMBER_LIMIT, RECORD_BYTES_MAX
from chiplog_schemas.storage.record import HEADER_BYTES

PROTOCOL_VERSIONS = (1, 1)  # lowest and highest that this code supports
SESSION_BYTES = 8
SENDER_BYTES = 16
REASON_CHARS_MAX = 500
HEAD_BYTES_MAX = 65_536  # a first frame holds names and numbers only
FRAME_BYTES_MAX = HEADER_BYTES + RECORD_BYTES_MAX  # a slice of BATCH_BYTES_MAX, or of one record
_INFO_BYTES_MAX = 1_024  # of one value, in a HELLO whose first frame would be too long


class MessageKind(IntEnum):
    """The first element of every first frame. Numbers are never reused."""

    HELLO = 1
    WELCOME = 2
    DATA = 3
    ACK = 4
    LOST = 5
    PING = 6
    BYE = 7
    RESET = 8


class WireError(ValueError):
    """Frames that are not a message of this protocol."""


@dataclass(slots=True)
class Message:
    """A decoded message. Fields that its kind does not have keep their defaults."""

    kind: int
    session: bytes
    sender: bytes = b""
    versions: tuple[int, int] = (0, 0)
    first: int = 0
    last: int = 0
    next: int = 0
    credit: int = 0
    reason: str = ""
    refused: int = 0
    queried: bool = False
    health: dict[str, Any] = field(default_factory=dict)
    info: dict[str, Any] = field(default_factory=dict)
    payload: bytes | memoryview = b""


def hello(session: bytes, sender: bytes, first: int, info: dict[str, Any]) -> list[bytes]:
    """Open a session: `first` is the lowest number that the sender still has.

    If info does not fit, its long values are left out: the IDENTITY event has them too.
    """
    head = [int(MessageKind.HELLO), session, list(PROTOCOL_VERSIONS), sender, first]
    packed = pack([*head, info])
    if len(packed) > HEAD_BYTES_MAX:
        packed = pack([*head, {name: value for name, value in info.items() if len(pack(value)) <= _INFO_BYTES_MAX}])
    return [packed]


def welcome(session: bytes, next_number: int, credit: int) -> list[bytes]:
    """Accept a session."""
    return [pack([int(MessageKind.WELCOME), session, PROTOCOL_VERSIONS[1], next_number, credit])]


def data(session: bytes, first: int, last: int, payload: bytes | memoryview) -> list[bytes | memoryview]:
    """Carry a slice of the sender's log."""
    return [pack([int(MessageKind.DATA), session, first, last]), payload]


def ack(session: bytes, next_number: int, credit: int, refused: int = 0, *, queried: bool = False) -> list[bytes]:
    """Acknowledge everything before `next_number`. queried: whether clients ask the collector now."""
    optional = [refused, True] if queried else [refused] if refused else []
    return [pack([int(MessageKind.ACK), session, next_number, credit, *optional])]


def lost(session: bytes, first: int, last: int, reason: str) -> list[bytes]:
    """Declare numbers that can never come."""
    return [pack([int(MessageKind.LOST), session, first, last, reason[:REASON_CHARS_MAX]])]


def ping(session: bytes, next_number: int, health: Mapping[str, float] | None = None) -> list[bytes]:
    """Keep a session alive. Everything before `next_number` was sent in it, or arrived earlier.

    health: what the sender measures of itself.
    """
    return [pack([int(MessageKind.PING), session, next_number, *([dict(health)] if health else [])])]


def bye(session: bytes) -> list[bytes]:
    """End a session."""
    return [pack([int(MessageKind.BYE), session])]


def reset(session: bytes, reason: str) -> list[bytes]:
    """Reject an unknown session."""
    return [pack([int(MessageKind.RESET), session, reason[:REASON_CHARS_MAX]])]


_SHAPES: dict[int, tuple[str, ...]] = {
    MessageKind.HELLO: ("versions", "sender", "first", "info"),
    MessageKind.WELCOME: ("version", "next", "credit"),
    MessageKind.DATA: ("first", "last"),
    MessageKind.ACK: ("next", "credit"),
    MessageKind.LOST: ("first", "last", "reason"),
    MessageKind.PING: ("next",),
    MessageKind.BYE: (),
    MessageKind.RESET: ("reason",),
}
_NUMBERS = frozenset({"first", "last", "next", "credit", "version"})


def parse_head(
    frames: list[bytes], shapes: Mapping[int, tuple[str, ...]]
) -> tuple[int, bytes, tuple[str, ...], list[Any]]:
    """Return (kind, session, names of its fields, values) of a message of a lane with these kinds. Raises WireError."""
    if not frames or len(frames) > 2 or len(frames[0]) > HEAD_BYTES_MAX:  # safeguard: first-frame-bounded
        raise WireError(f"a message has one or two frames, the first of at most {HEAD_BYTES_MAX} bytes")
    try:
        head = unpack(frames[0])
    except CodecError as error:
        raise WireError(str(error)) from error
    if not (isinstance(head, list) and len(head) >= 2 and type(head[0]) is int):
        raise WireError("a first frame is an array of kind, session and fields")
    kind, session, *values = head
    names = shapes.get(kind)
    if names is None or not (isinstance(session, bytes) and len(session) == SESSION_BYTES):
        raise WireError(f"message kind {short_repr(kind)} or its session is unknown")
    return kind, session, names, values


def check_field(name: str, value: Any) -> Any:
    """Return a field that both lanes have: `versions`, `info` or `reason`. Raises WireError."""
    if name == "versions":
        if not (isinstance(value, list) and len(value) == 2 and all(type(v) is int for v in value)):
            raise WireError("versions are [lowest, highest]")
        return value[0], value[1]
    if name == "info":
        if not isinstance(value, dict):
            raise WireError("info is a map")
        return value
    if not isinstance(value, str):
        raise WireError("a reason is text")
    return value[:REASON_CHARS_MAX]


def _take_optional(message: Message, values: list[Any]) -> None:
    """Store the last fields, which older peers do not send."""
    if message.kind == MessageKind.ACK:
        refused, queried = (*values[:2], 0, False)[:2]  # or only the first
        message.refused = max(0, refused) if type(refused) is int else 0
        message.queried = queried is True
    elif message.kind == MessageKind.PING and values and isinstance(values[0], dict):
        message.health = values[0]  # its reader checks each name and value


def parse(frames: list[bytes]) -> Message:
    """Decode a message and check every type and bound. Unknown fields at the end are ignored. Raises WireError."""
    kind, session, names, values = parse_head(frames, _SHAPES)
    if len(values) < len(names) or len(frames) != (2 if kind == MessageKind.DATA else 1):
        raise WireError(f"{MessageKind(kind).name} has {len(values)} fields and {len(frames)} frames")
    message = Message(kind, session)
    for name, value in zip(names, values, strict=False):
        if name in _NUMBERS:
            if type(value) is not int or not 0 <= value < 1 << 63:  # safeguard: message-numbers-bounded
                raise WireError(f"{MessageKind(kind).name}.{name} is {short_repr(value)}, not a number")
            if name != "version":
                setattr(message, name, value)
        elif name == "sender":
            if not (isinstance(value, bytes) and len(value) == SENDER_BYTES):
                raise WireError("a sender is 16 bytes")
            message.sender = value
        else:
            setattr(message, name, check_field(name, value))
    _take_optional(message, values[len(names) :])
    if message.last >= NUMBER_LIMIT:
        raise WireError(f"{MessageKind(kind).name}.last is {message.last}: no record has that number")
    if kind in (MessageKind.DATA, MessageKind.LOST) and message.first > message.last:
        raise WireError(f"numbers {message.first}..{message.last} are not ascending")
    if kind == MessageKind.DATA:
        message.payload = frames[1]
    return message
