"""Delivery on one hop: the state machines of its two ends, pure. Both hops use the same pair.

The sender has a log of numbered records, the receiver a log of its own. A record leaves the sender's log when the
receiver has confirmed that it is on stable storage there.

    Sender   CLOSED --back-off over--> GREETING --WELCOME--> OPEN
                ^                          |                   |
                +------ silence, RESET, shutdown of the peer --+

    Receiver one session per sender: HELLO makes it and replaces an older one; frames of a session that is not the
             sender's newest are answered by RESET; PEER_SILENT_S without a frame ends it.

Numbers may jump within a session (a journal that dropped events has gaps, declared by its own events) but never go
back. The ranges that DATA and LOST cover do not jump: each begins right after the one before. A transport that
reconnects silently may lose messages in the middle of a session. The next DATA, LOST or PING shows it, and RESET starts
a new session. Credit is the number of payload bytes that may be sent and not yet acknowledged; the receiver's latest
value counts. Everything sent in a session that ended is sent again in the next. The receiving side keeps exactly-once
by (producer, seq), not by these numbers.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any

from chiplog_schemas.backoff import Backoff
from chiplog_schemas.limits import (
    CREDIT_BYTES,
    HEARTBEAT_INTERVAL_S,
    PEER_SILENT_S,
    SENDERS_MAX,
    SESSIONS_MAX,
)
from chiplog_schemas.protocol import messages
from chiplog_schemas.protocol.messages import MessageKind
from chiplog_schemas.security.permissions import Permission, scoped_sender_id

Frames = list[bytes] | list[bytes | memoryview]

# -- the actions that a machine requests from its caller ---------------------------------------------------------------


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
ReceiverAction = Reply | SessionOpened | DataReceived | NumbersLost | SessionClosed


# -- the sender -------------------------------------------------------------------------------------------------------


class SenderState(Enum):
    """The state of a sender's session."""

    CLOSED = "closed"  # waiting for the back-off to end
    GREETING = "greeting"  # HELLO sent
    OPEN = "open"


class SenderProtocol:
    """The sending end. Call `tick` at least once per heartbeat, `receive` for each message, `data` for each slice.

    sender: 16 bytes. info: sent in every HELLO. nonce: returns 8 new random bytes. jitter: returns a factor in
    [0.5, 1).
    """

    def __init__(
        self, sender: bytes, info: dict[str, Any], nonce: Callable[[], bytes], jitter: Callable[[], float]
    ) -> None:
        self.state = SenderState.CLOSED
        self.info = info
        self.credit = 0
        self.in_flight_bytes = 0
        self.sessions = 0  # opened so far
        self.refused = 0  # events of this sender that the receiver keeps without applying, as of its last ACK
        self._sender = sender
        self._nonce = nonce
        self._session = b""
        self._retry_at = 0.0
        self._backoff = Backoff(jitter=jitter)
        self._heard_at = 0.0
        self._said_at = 0.0
        self._first = 0  # sent in HELLO
        self._next = 0  # the number after the last one sent in this session
        self._in_flight: deque[tuple[int, int]] = deque()  # (number after the slice, its bytes)

    def tick(self, now: float, first: int) -> list[SenderAction]:
        """Handle timeouts. `first` is the lowest number that the log still has."""
        if self.state is SenderState.CLOSED:
            if now < self._retry_at:
                return []
            self._session = self._nonce()
            self.state = SenderState.GREETING
            self._heard_at = self._said_at = now
            self._first = first
            return [Connect(messages.hello(self._session, self._sender, first, self.info))]
        if now - self._heard_at > PEER_SILENT_S:  # safeguard: silent-peer-closed
            return self._close(now, f"peer silent for {PEER_SILENT_S:g} s")
        if self.state is SenderState.OPEN and now - self._said_at >= HEARTBEAT_INTERVAL_S:
            self._said_at = now
            return [Send(messages.ping(self._session, self._next))]
        return []

    def beat(self, now: float) -> list[SenderAction]:
        """Return a heartbeat for an end that is busy and does not read, also before it has read WELCOME."""
        if self.state is SenderState.CLOSED or now - self._said_at < HEARTBEAT_INTERVAL_S:
            return []
        self._said_at = now
        return [Send(messages.ping(self._session, self._next if self.state is SenderState.OPEN else 0))]

    def receive(self, frames: list[bytes], now: float) -> list[SenderAction]:
        """Process a message. Frames of an old session and invalid frames change nothing."""
        try:
            message = messages.parse(frames)
        except messages.WireError:
            return []
        if message.session != self._session or self.state is SenderState.CLOSED:  # safeguard: foreign-session-dropped
            return []
        self._heard_at = now
        if message.kind == MessageKind.WELCOME and self.state is SenderState.GREETING:
            self.state = SenderState.OPEN
            self.sessions += 1
            self.credit = message.credit
            self._backoff.reset()
            self._next = max(message.next, self._first)
            return [Resume(message.next)]  # safeguard: session-resumes
        if message.kind == MessageKind.ACK and self.state is SenderState.OPEN:
            self.credit, self.refused = message.credit, message.refused
            while self._in_flight and self._in_flight[0][0] <= message.next:
                self.in_flight_bytes -= self._in_flight.popleft()[1]
            return [Acknowledged(message.next)]
        if message.kind == MessageKind.RESET:
            return self._close(now, message.reason)
        return []

    def window(self) -> int:
        """The number of payload bytes that may be sent now."""
        # safeguard: sent-within-credit
        return max(0, self.credit - self.in_flight_bytes) if self.state is SenderState.OPEN else 0

    def data(self, first: int, last: int, payload: bytes | memoryview, now: float) -> Send:
        """Build the DATA message of a slice and count it against the credit.

        It also covers the numbers between the previous slice and this one, which the log does not have.
        """
        assert self.state is SenderState.OPEN
        first = min(first, self._next)
        self._next = last + 1
        self._said_at = now
        self._in_flight.append((last + 1, len(payload)))
        self.in_flight_bytes += len(payload)
        return Send(messages.data(self._session, first, last, payload))

    def lost(self, first: int, last: int, reason: str) -> Send:
        """Declare numbers of this log that can never arrive, in order between the slices.

        Like DATA, LOST covers its numbers: a receiver that misses it sees a jump in the next message.
        """
        assert self.state is SenderState.OPEN
        first = min(first, self._next)
        self._next = max(last + 1, self._next)  # safeguard: loss-keeps-its-place
        return Send(messages.lost(self._session, first, last, reason))

    def abort(self, now: float, reason: str) -> list[SenderAction]:
        """Abort the session: the caller could not send."""
        return self._close(now, reason) if self.state is not SenderState.CLOSED else []

    def bye(self) -> list[SenderAction]:
        """End the session permanently."""
        if self.state is SenderState.CLOSED:
            return []
        self.state = SenderState.CLOSED
        self._retry_at = float("inf")
        return [Send(messages.bye(self._session))]

    def _close(self, now: float, reason: str) -> list[SenderAction]:
        self.state = SenderState.CLOSED
        self._session = b""
        self._in_flight.clear()
        self.in_flight_bytes = 0  # safeguard: closed-session-frees-credit
        self._retry_at = now + self._backoff.next_s()  # safeguard: retry-soon
        return [Disconnect(reason)]


# -- the receiver -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Session:
    nonce: bytes
    routing: bytes
    last_received_s: float
    permit: Permission | None = None
    node: object = None  # that its sender named


class ReceiverProtocol:
    """The receiving end of all senders. Call `acknowledge` when the data that it asked to append is on stable storage.

    next_numbers: for each sender the number after the last one in this end's log; None for a receiver that keeps no
    numbers across restarts and cannot know them.
    scopes: whether the ID of a sender that comes with a key is scoped to that key. If not (the ID has a meaning beyond
    this hop, as a producer's has), the ID belongs to the first key that used it.
    """

    def __init__(
        self, next_numbers: dict[bytes, int] | None = None, credit: int = CREDIT_BYTES, *, scopes: bool = False
    ) -> None:
        self.next_numbers: dict[bytes, int] = dict(next_numbers or {})  # appended, perhaps not yet synced
        self.credit = credit
        self.malformed = 0  # invalid messages
        self.duplicates = 0  # slices and losses received before
        self._synced: dict[bytes, int] = dict(self.next_numbers)
        self._sessions: dict[bytes, _Session] = {}
        self._senders: dict[bytes, bytes] = {}  # session nonce -> sender
        self._keeps_numbers = next_numbers is not None
        self._scopes = scopes
        self._refused: dict[bytes, int] = {}
        self._full: set[bytes] = set()
        self._owners: dict[bytes, str] = {}  # sender -> name of its key; '' without one

    @property
    def senders(self) -> set[bytes]:
        """The senders with an open session."""
        return set(self._sessions)

    def receive(
        self, routing: bytes, frames: list[bytes], now: float, permit: Permission | None = None
    ) -> list[ReceiverAction]:
        """Process a message from the peer with this routing ID. `permit` is that of its key, if it has one."""
        try:
            message = messages.parse(frames)
        except messages.WireError:  # safeguard: malformed-messages-counted
            self.malformed += 1
            return []
        if message.kind == MessageKind.HELLO:
            return self._hello(routing, message, now, permit)
        sender = self._senders.get(message.session)
        if sender is None or not _is_same_key(self._sessions[sender].permit, permit):
            if message.kind in (MessageKind.DATA, MessageKind.PING, MessageKind.LOST):
                return [Reply(routing, messages.reset(message.session, "session is unknown here"), permit)]
            return []
        session = self._sessions[sender]
        if self._scopes and permit is not None and permit != session.permit:  # it was allowed again, for other nodes
            objection = permit.denial_reason(session.node)  # safeguard: session-ends-with-key
            if objection is not None:
                return [
                    Reply(routing, messages.reset(message.session, objection), permit),
                    self._end(sender, LeaveCause.NOT_PERMITTED),
                ]
        session.last_received_s = now
        session.routing = routing
        session.permit = permit
        return self._process(sender, message, permit)

    def _process(self, sender: bytes, message: messages.Message, permit: Permission | None) -> list[ReceiverAction]:
        """Process a message of an open session."""
        expected = self.next_numbers.get(sender, 0)
        if message.kind in (MessageKind.DATA, MessageKind.LOST):
            if message.first > expected:  # safeguard: data-jump-is-loss
                return self._reset_for_gap(sender, expected, message.first)
            if message.last < expected:
                self.duplicates += 1
                return [self._ack(sender)]
            self.next_numbers[sender] = message.last + 1
            if message.kind == MessageKind.LOST:
                return [NumbersLost(sender, expected, message.last, message.reason)]
            # safeguard: record-stored-whole
            return [DataReceived(sender, message.first, message.last, message.payload, permit)]
        if message.kind == MessageKind.PING:
            if message.next > expected:  # safeguard: ping-shows-loss
                return self._reset_for_gap(sender, expected, message.next)
            return [self._ack(sender)]
        if message.kind == MessageKind.BYE:
            return [self._end(sender, LeaveCause.GOODBYE)]
        return []

    def acknowledge(self, sender: bytes, next_number: int) -> list[ReceiverAction]:
        """Acknowledge every record of this sender before `next_number`, which is on stable storage."""
        if sender not in self.next_numbers:
            return []  # the sender was forgotten
        self._synced[sender] = max(next_number, self._synced.get(sender, 0))
        return [self._ack(sender)] if sender in self._sessions else []

    def set_credit(self, credit: int) -> list[ReceiverAction]:
        """Change the credit of every sender and send it."""
        if credit == self.credit:
            return []
        self.credit = credit
        return [self._ack(sender) for sender in self._sessions]

    def beat(self) -> list[ReceiverAction]:
        """Return a heartbeat for each sender, for an end that is busy and does not read."""
        return [self._ack(sender) for sender in self._sessions]

    def was_busy(self, seconds: float) -> None:
        """Note that this end did not read for this long, which must not count as silence of the senders."""
        if seconds >= HEARTBEAT_INTERVAL_S:  # a shorter time is tolerated anyway; called up to 50 times a second
            for session in self._sessions.values():
                session.last_received_s += seconds

    def set_refused(self, counts: dict[bytes, int], full: set[bytes]) -> list[ReceiverAction]:
        """Store how many events of each sender are kept without being applied, and notify the senders that changed.

        full: the senders of which no more events may be kept. They get no credit.
        """
        before, self._refused = self._refused, counts
        changed = {sender for sender in before.keys() | counts.keys() if before.get(sender) != counts.get(sender)}
        changed |= full ^ self._full
        self._full = full
        return [self._ack(sender) for sender in changed if sender in self._sessions]

    def tick(self, now: float) -> list[ReceiverAction]:
        """End the sessions of silent senders."""
        silent = [s for s, session in self._sessions.items() if now - session.last_received_s > PEER_SILENT_S]
        return [self._end(sender, LeaveCause.SILENT) for sender in silent]

    def forget(self, sender: bytes) -> None:
        """Drop the state of a sender that will not come back."""
        if sender in self._sessions:
            self._end(sender, LeaveCause.FORGOTTEN)
        self.next_numbers.pop(sender, None)
        self._synced.pop(sender, None)
        self._owners.pop(sender, None)

    def _hello(
        self, routing: bytes, message: messages.Message, now: float, permit: Permission | None
    ) -> list[ReceiverAction]:
        lowest, highest = messages.PROTOCOL_VERSIONS
        if message.versions[0] > highest or message.versions[1] < lowest:
            reason = (
                f"protocol versions {message.versions[0]}..{message.versions[1]} are not supported here "
                f"({lowest}..{highest}); upgrade the older end"
            )
            return [Reply(routing, messages.reset(message.session, reason), permit)]
        sender = message.sender
        if permit is not None and self._scopes:
            # safeguard: agent-key-bound-to-node
            if (objection := permit.denial_reason(message.info.get("node"))) is not None:
                return [Reply(routing, messages.reset(message.session, objection), permit)]
            sender = scoped_sender_id(sender, permit)  # safeguard: numbers-scoped-by-key
        if sender not in self._sessions and len(self._sessions) >= SESSIONS_MAX:  # safeguard: sessions-bounded
            reason = f"{SESSIONS_MAX} sessions are open here, which is the limit; retry after one has ended"
            return [Reply(routing, messages.reset(message.session, reason), permit)]
        owner = permit.name if permit is not None else ""
        if self._owners.setdefault(sender, owner) != owner:
            reason = f"sender {sender.hex()} used another key before; only that key may continue"
            return [Reply(routing, messages.reset(message.session, reason), permit)]
        if sender in self._sessions:
            self._senders.pop(self._sessions[sender].nonce, None)  # safeguard: replaced-session-forgotten
        self._sessions[sender] = _Session(message.session, routing, now, permit, message.info.get("node"))
        self._senders[message.session] = sender
        # A record that is appended but not yet synced counts as received: if this end dies before the sync, the session
        # ends too. A record that has left the sender's log cannot arrive; if this log lacks it, this end declares it
        # lost.
        previous = self.next_numbers.pop(sender, 0)
        # safeguard: welcome-names-next
        next_number = self.next_numbers[sender] = max(previous, message.first)  # reinsert: the newest sender is last
        self._evict_oldest()
        actions: list[ReceiverAction] = [
            Reply(routing, messages.welcome(message.session, next_number, self._credit_of(sender)), permit),
            SessionOpened(sender, message.info),
        ]
        if self._keeps_numbers and next_number > previous:  # safeguard: rollback-declared
            actions.append(
                NumbersLost(sender, previous, next_number - 1, "acknowledged to the sender, and not in this log")
            )
        return actions

    def _evict_oldest(self) -> None:
        """Evict the oldest senders without a session above the limit.

        Their next session sends again; duplicates are dropped.
        """
        while len(self.next_numbers) > SENDERS_MAX:  # safeguard: sender-numbers-bounded
            oldest = next(iter(self.next_numbers))
            if oldest in self._sessions:
                self.next_numbers[oldest] = self.next_numbers.pop(oldest)
            else:
                self.forget(oldest)

    def _reset_for_gap(self, sender: bytes, expected: int, first: int) -> list[ReceiverAction]:
        session = self._sessions[sender]
        reason = f"numbers {expected}..{first - 1} were lost on the way"
        return [
            Reply(session.routing, messages.reset(session.nonce, reason), session.permit),
            self._end(sender, LeaveCause.MESSAGE_LOST),
        ]

    def permit_of(self, sender: bytes) -> Permission | None:
        """Return the permit of a sender's last message; None without a session or a key."""
        session = self._sessions.get(sender)
        return None if session is None else session.permit

    def _credit_of(self, sender: bytes) -> int:
        return 0 if sender in self._full else self.credit  # safeguard: refused-sender-without-credit

    def _ack(self, sender: bytes) -> Reply:
        session = self._sessions[sender]
        refused = self._refused.get(sender, 0)
        # safeguard: acknowledge-only-synced
        frames = messages.ack(session.nonce, self._synced.get(sender, 0), self._credit_of(sender), refused)
        return Reply(session.routing, frames, session.permit)

    def _end(self, sender: bytes, cause: LeaveCause) -> SessionClosed:
        session = self._sessions.pop(sender)
        self._senders.pop(session.nonce, None)
        return SessionClosed(sender, cause)


def _is_same_key(one: Permission | None, other: Permission | None) -> bool:
    return one is other or (one is not None and other is not None and one.name == other.name)
