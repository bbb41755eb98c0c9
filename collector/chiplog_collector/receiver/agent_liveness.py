"""Which agents are there, pure: when nothing was heard of one for too long, and when it is heard again.

The receiver alone knows the time, so what it concludes becomes a record of the log: the index believes records only. A
silence counts from when the receiver listened: while its disk refuses or it is stopped itself, nobody is missed.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from chiplog_schemas.limits import HEARTBEAT_INTERVAL_S, PEER_SILENT_S, SENDERS_MAX

# A session that ended by silence may only have been unlucky: its agent says HELLO within its heartbeat, and is back.
MISSED_AFTER_S = HEARTBEAT_INTERVAL_S
# One that says goodbye is being restarted or upgraded, and may have left ranks behind that go on with their journals.
CLEAN_EXIT_GRACE_S = 300.0
_STALL_S = 1.0  # a turn of the receiver's loop that took longer: it did not listen
_NAME_CHARS_MAX = 128
WORDS_PER_TURN_MAX = 100  # each is a record, and there may be very many agents that left at a time


class LivenessChange(NamedTuple):
    """What the log is to say of an agent. silent_s: how long nothing was heard of it; 0 for one that is here."""

    sender: bytes
    is_here: bool
    silent_s: float
    node: str
    boot: str


@dataclass(slots=True)
class _SilentAgent:
    """An agent without a session. since: when it was heard last, s. until: when it is declared lost."""

    since: float
    until: float


class AgentLiveness:
    """The agents of one receiver.

    senders: those that its log knows from before. Who of them is still there has to show. lost: whom it calls lost
    already, which is not said again. now: monotonic, s.
    """

    def __init__(self, senders: Iterable[bytes], now: float, lost: Iterable[bytes] = ()) -> None:
        told, until = set(lost), now + PEER_SILENT_S + MISSED_AFTER_S
        self._missed = {sender: _SilentAgent(now, until) for sender in senders if sender not in told}
        self._is_open = told.union(senders)  # whom the log may call lost, or will have to
        self._names: dict[bytes, tuple[str, str]] = {}  # sender -> node, boot
        self._looked_at = now

    def greeted(self, sender: bytes, node: object, boot: object) -> LivenessChange | None:
        """Note that an agent opened a session; return what the log has to say of that, if anything."""
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
        """Note that an agent's session is over. silent_s: how long nothing had been heard of it.

        Not to be called for one that never delivered: nothing hangs on it, and senders can be made up.
        """
        patience_s = CLEAN_EXIT_GRACE_S if goodbye else PEER_SILENT_S - silent_s + MISSED_AFTER_S
        self._missed.pop(sender, None)
        self._missed[sender] = _SilentAgent(now - silent_s, now + patience_s)
        while len(self._missed) > SENDERS_MAX:
            self._missed.pop(next(iter(self._missed)))

    def tick(self, now: float, *, listens: bool) -> list[LivenessChange]:
        """Return whom the log has to call lost now, some at a time. To be called in every turn of the loop."""
        stalled_s = now - self._looked_at
        self._looked_at = now
        if not self._missed:
            return []
        if not listens or stalled_s > _STALL_S:
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
