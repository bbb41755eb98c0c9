"""The sending end of delivery on one hop, a pure state machine.

    CLOSED --back-off over--> GREETING --WELCOME--> OPEN
       ^                          |                   |
       +------ silence, RESET, shutdown of the peer --+

The rules that both ends share are in actions.py.
"""

from collections import deque
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from chiplog_schemas.backoff import Backoff
from chiplog_schemas.limits import HEARTBEAT_INTERVAL_S, PEER_SILENT_S
from chiplog_schemas.protocol import messages
from chiplog_schemas.protocol.actions import Acknowledged, Connect, Disconnect, Resume, Send, SenderAction
from chiplog_schemas.protocol.messages import MessageKind


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
        # Events of this sender that the receiver keeps without applying, as of its last ACK; None before the first one.
        self.refused: int | None = None
        self.is_queried = False  # whether clients ask the collector, as of the last ACK of this session
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
        self._requested = 0  # `_next` of the last request for an acknowledgement

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
            self.credit, self.refused, self.is_queried = message.credit, message.refused, message.queried
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

    def request_ack(self) -> list[SenderAction]:
        """Request an acknowledgement at once of everything that was sent: a PING right after it, once."""
        if self.state is not SenderState.OPEN or not self._in_flight or self._requested == self._next:
            return []
        self._requested = self._next
        return [Send(messages.ping(self._session, self._next))]

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

    def report(self, health: Mapping[str, float], now: float) -> list[SenderAction]:
        """Return a heartbeat with what this end measures of itself; nothing while no session is open."""
        if self.state is not SenderState.OPEN:
            return []
        self._said_at = now
        return [Send(messages.ping(self._session, self._next, health))]

    def _close(self, now: float, reason: str) -> list[SenderAction]:
        self.state = SenderState.CLOSED
        self._session = b""
        self._requested = 0
        self.is_queried = False  # safeguard: closed-session-is-not-queried
        self._in_flight.clear()
        self.in_flight_bytes = 0  # safeguard: closed-session-frees-credit
        self._retry_at = now + self._backoff.next_s()  # safeguard: retry-soon
        return [Disconnect(reason)]
