"""Which agents are connected, pure: when an agent was silent for too long, and when it reconnects.

Only the receiver knows the time, so its conclusions become records of the log: the index relies on records only.
Silence counts only while the receiver listened: while its disk refuses or it is stopped itself, no agent is considered
lost.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from chiplog_schemas.limits import HEARTBEAT_INTERVAL_S, PEER_SILENT_S, SENDERS_MAX

# A session that ended by silence may be bad luck: its agent then reconnects within a heartbeat.
MISSED_AFTER_S = HEARTBEAT_INTERVAL_S
# An agent that sent BYE is being restarted or upgraded, and may have left ranks that still write their journals.
CLEAN_EXIT_GRACE_S = 300.0
_STALL_S = 1.0  # in a turn of the receiver's loop that took longer, it did not listen
_NAME_CHARS_MAX = 128
WORDS_PER_TURN_MAX = 100  # each is a record, and very many agents may leave at the same time


class LivenessChange(NamedTuple):
    """A change that the log must record about an agent.

    silent_s: how long the agent was silent; 0 for a connected one.
    """

    sender: bytes
    is_here: bool
    silent_s: float
    node: str
    boot: str


@dataclass(slots=True)
class _SilentAgent:
    """An agent without a session. since: time of its last message, s. until: when it is declared lost."""

    since: float
    until: float


class AgentLiveness:
    """The agents of one receiver.

    senders: the senders in its log, which still have to prove that they are connected. lost: those that the log has
    already declared lost, which is not recorded again. now: monotonic, s.
    """

    def __init__(self, senders: Iterable[bytes], now: float, lost: Iterable[bytes] = ()) -> None:
        known_lost, until = set(lost), now + PEER_SILENT_S + MISSED_AFTER_S
        self._missed = {sender: _SilentAgent(now, until) for sender in senders if sender not in known_lost}
        self._is_open = known_lost.union(senders)  # agents that the log may have declared lost, or will have to
        self._names: dict[bytes, tuple[str, str]] = {}  # sender -> node, boot
        self._last_polled_s = now

    def greeted(self, sender: bytes, node: object, boot: object) -> LivenessChange | None:
        """Note that an agent opened a session; return the change that the log must record, if any."""
        name = node[:_NAME_CHARS_MAX] if isinstance(node, str) else ""
        boot = boot[:_NAME_CHARS_MAX] if isinstance(boot, str) else ""
        self._missed.pop(sender, None)
        self._names.pop(sender, None)
        self._names[sender] = name, boot
        while len(self._names) > SENDERS_MAX:
            self._names.pop(next(iter(self._names)))
        if sender not in self._is_open:
            return None
        self._is_open.discard(sender)
        return LivenessChange(sender, True, 0.0, name, boot)

    def left(self, sender: bytes, now: float, *, goodbye: bool, silent_s: float = 0.0) -> None:
        """Note that an agent's session has ended. silent_s: how long the agent had been silent.

        Not to be called for an agent that never delivered: no label depends on it, and a peer can invent senders.
        """
        patience_s = CLEAN_EXIT_GRACE_S if goodbye else PEER_SILENT_S - silent_s + MISSED_AFTER_S
        self._missed.pop(sender, None)
        self._missed[sender] = _SilentAgent(now - silent_s, now + patience_s)
        while len(self._missed) > SENDERS_MAX:
            self._missed.pop(next(iter(self._missed)))

    def tick(self, now: float, *, listens: bool) -> list[LivenessChange]:
        """Return the agents that must be declared lost now, some at a time. Called in every turn of the loop."""
        stalled_s = now - self._last_polled_s
        self._last_polled_s = now
        if not self._missed:
            return []
        if not listens or stalled_s > _STALL_S:  # safeguard: no-loss-while-deaf
            for missed in self._missed.values():
                missed.since += stalled_s
                missed.until += stalled_s
            return []
        due = [sender for sender, missed in self._missed.items() if missed.until <= now]
        words = []
        for sender in due[:WORDS_PER_TURN_MAX]:
            missed = self._missed.pop(sender)
            self._is_open.add(sender)
            words.append(LivenessChange(sender, False, now - missed.since, *self._names.pop(sender, ("", ""))))
        while len(self._is_open) > SENDERS_MAX:
            self._is_open.pop()
        return words
