"""The receiving end of delivery on one hop, a pure state machine.

It has one session per sender. HELLO makes it and replaces an older one. Frames of a session that is not the sender's
newest are answered by RESET. PEER_SILENT_S without a frame ends it. The rules that both ends share are in actions.py.
"""

from collections import Counter
from dataclasses import dataclass

from chiplog_schemas.limits import CREDIT_BYTES, HEARTBEAT_INTERVAL_S, PEER_SILENT_S, SENDERS_MAX, SESSIONS_MAX
from chiplog_schemas.model.codes import RefusalReason
from chiplog_schemas.protocol import messages
from chiplog_schemas.protocol.actions import (
    DataReceived,
    HealthReported,
    LeaveCause,
    NumbersLost,
    ReceiverAction,
    Reply,
    SessionClosed,
    SessionOpened,
)
from chiplog_schemas.protocol.messages import MessageKind
from chiplog_schemas.security.permissions import Permission, scoped_sender_id


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
        self.is_queried = False  # whether clients ask the collector: each ACK reports it
        self.is_ack_requested = False  # a sender waits for records that are not synced yet; the caller resets it
        self._synced: dict[bytes, int] = dict(self.next_numbers)
        self._sessions: dict[bytes, _Session] = {}
        self._senders: dict[bytes, bytes] = {}  # session nonce -> sender
        self._refusals: Counter[RefusalReason] = Counter()
        self._keeps_numbers = next_numbers is not None
        self._scopes = scopes
        self._refused: dict[bytes, int] = {}
        self._full: set[bytes] = set()
        self._owners: dict[bytes, str] = {}  # sender -> name of its key; '' without one

    @property
    def senders(self) -> set[bytes]:
        """The senders with an open session."""
        return set(self._sessions)

    @property
    def refusals(self) -> dict[RefusalReason, int]:
        """How many sessions and messages were refused, by reason."""
        return {**self._refusals, RefusalReason.MALFORMED: self.malformed}

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
                    self._refuse(routing, message, RefusalReason.NODE, objection, permit),
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
            if message.health:
                return [self._ack(sender), HealthReported(sender, message.health)]
            # safeguard: waiting-sender-noticed
            self.is_ack_requested = self.is_ack_requested or expected > self._synced.get(sender, 0)
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
            return [self._refuse(routing, message, RefusalReason.VERSION, reason, permit)]
        sender = message.sender
        if permit is not None and self._scopes:
            # safeguard: agent-key-bound-to-node
            if (objection := permit.denial_reason(message.info.get("node"))) is not None:
                return [self._refuse(routing, message, RefusalReason.NODE, objection, permit)]
            sender = scoped_sender_id(sender, permit)  # safeguard: numbers-scoped-by-key
        if sender not in self._sessions and len(self._sessions) >= SESSIONS_MAX:  # safeguard: sessions-bounded
            reason = f"{SESSIONS_MAX} sessions are open here, which is the limit; retry after one has ended"
            return [self._refuse(routing, message, RefusalReason.SESSIONS, reason, permit)]
        owner = permit.name if permit is not None else ""
        if self._owners.setdefault(sender, owner) != owner:
            reason = f"sender {sender.hex()} used another key before; only that key may continue"
            return [self._refuse(routing, message, RefusalReason.OTHER_KEY, reason, permit)]
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

    def _refuse(
        self, routing: bytes, message: messages.Message, reason: RefusalReason, text: str, permit: Permission | None
    ) -> Reply:
        self._refusals[reason] += 1
        return Reply(routing, messages.reset(message.session, text), permit)

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
        synced, credit = self._synced.get(sender, 0), self._credit_of(sender)
        frames = messages.ack(session.nonce, synced, credit, refused, queried=self.is_queried)
        return Reply(session.routing, frames, session.permit)

    def _end(self, sender: bytes, cause: LeaveCause) -> SessionClosed:
        session = self._sessions.pop(sender)
        self._senders.pop(session.nonce, None)
        return SessionClosed(sender, cause)


def _is_same_key(one: Permission | None, other: Permission | None) -> bool:
    return one is other or (one is not None and other is not None and one.name == other.name)
