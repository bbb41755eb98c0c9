"""Delivery on one hop: two pure state machines, and the actions that they request from their callers.

The sender (sender.py) has a log of numbered records, the receiver (receiver.py) a log of its own. Both hops use the
same pair. A record leaves the sender's log when the receiver has confirmed that it is on stable storage there.

Numbers may jump within a session (a journal that dropped events has gaps, declared by its own events) but never go
back. The ranges that DATA and LOST cover do not jump: each begins right after the one before. A transport that
reconnects silently may lose messages in the middle of a session. The next DATA, LOST or PING shows it, and RESET starts
a new session. Credit is the number of payload bytes that may be sent and not yet acknowledged; the receiver's latest
value counts. Everything sent in a session that ended is sent again in the next. The receiving side keeps exactly-once
by (producer, seq), not by these numbers.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from chiplog_schemas.security.permissions import Permission

Frames = list[bytes] | list[bytes | memoryview]


@dataclass(slots=True)
class Connect:
    """Sender: discard the old socket, create a new one and send these frames on it."""

    frames: Frames


@dataclass(slots=True)
class Disconnect:
    """Sender: discard the socket. `reason` is for the log line of this change of state."""

    reason: str


@dataclass(slots=True)
class Send:
    """Sender: send these frames."""

    frames: Frames


@dataclass(slots=True)
class Resume:
    """Sender: the session is open; continue to read at number `next`."""

    next: int


@dataclass(slots=True)
class Acknowledged:
    """Sender: all records before `next` may be trimmed."""

    next: int


@dataclass(slots=True)
class Reply:
    """Receiver: send these frames to this peer. `permit` is that of the peer's key, if it has one."""

    routing: bytes
    frames: Frames
    permit: Permission | None = None


@dataclass(slots=True)
class SessionOpened:
    """Receiver: a sender opened a session and described itself in `info`."""

    sender: bytes
    info: dict[str, Any]


@dataclass(slots=True)
class DataReceived:
    """Receiver: append this slice of the sender's log (records with numbers first..last, perhaps with gaps)."""

    sender: bytes
    first: int
    last: int
    payload: bytes | memoryview
    permit: Permission | None = None


@dataclass(slots=True)
class NumbersLost:
    """Receiver: these numbers can never arrive. Acknowledge them like a slice, once they are on stable storage."""

    sender: bytes
    first: int
    last: int
    reason: str


@dataclass(slots=True)
class HealthReported:
    """Receiver: a sender reports what it measures of itself. Names and values are its own: check them."""

    sender: bytes
    health: dict[Any, Any]


class LeaveCause(StrEnum):
    """Why a sender's session ended."""

    GOODBYE = "goodbye"  # the sender sent BYE
    SILENT = "silent"  # no message for PEER_SILENT_S
    MESSAGE_LOST = "message_lost"  # the transport lost a message; the sender opens another session
    NOT_PERMITTED = "not_permitted"  # its key no longer covers its node
    FORGOTTEN = "forgotten"  # the receiver drops its state of the sender


@dataclass(slots=True)
class SessionClosed:
    """Receiver: the sender's session has ended."""

    sender: bytes
    cause: LeaveCause


SenderAction = Connect | Disconnect | Send | Resume | Acknowledged
ReceiverAction = Reply | SessionOpened | DataReceived | NumbersLost | HealthReported | SessionClosed
