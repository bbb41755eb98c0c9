"""The receiver of delivery, message by message."""

import pytest

from chiplog_schemas.limits import HEARTBEAT_INTERVAL_S, PEER_SILENT_S
from chiplog_schemas.model.codes import RefusalReason
from chiplog_schemas.protocol import messages
from chiplog_schemas.protocol import receiver as receiver_module
from chiplog_schemas.protocol.actions import DataReceived, HealthReported, LeaveCause, NumbersLost, Reply, SessionClosed
from chiplog_schemas.protocol.receiver import ReceiverProtocol
from chiplog_schemas.protocol.sender import SenderState
from chiplog_schemas.security.permissions import Permission
from tests.support.delivery import CREDIT, NAMES, kinds, open_pair
from tests.support.safeguard import proves


def test_a_receiver_answers_frames_of_a_replaced_session_by_reset() -> None:
    receiver = ReceiverProtocol(credit=CREDIT)
    _, old = open_pair(receiver)
    receiver.receive(b"r2", messages.hello(b"new nonc", NAMES[0], 0, {}), 1.0)
    for frames in (messages.data(old, 0, 0, b"x"), messages.ping(old, 0), messages.lost(old, 0, 0, "")):
        assert kinds(receiver.receive(b"r", frames, 1.0)) == [messages.MessageKind.RESET]  # type: ignore[arg-type]
    assert receiver.receive(b"r", messages.bye(old), 1.0) == []
    assert receiver.senders == {NAMES[0]}


def test_a_receiver_ends_the_session_of_a_silent_sender() -> None:
    receiver = ReceiverProtocol(credit=CREDIT)
    open_pair(receiver)
    assert receiver.tick(PEER_SILENT_S) == []
    assert receiver.tick(PEER_SILENT_S + 0.1) == [SessionClosed(NAMES[0], LeaveCause.SILENT)]
    assert receiver.senders == set()


def test_a_busy_receiver_tells_every_sender_that_it_lives_and_counts_nobody_s_silence() -> None:
    receiver = ReceiverProtocol(credit=CREDIT)
    machine, _ = open_pair(receiver)
    for busy_s in (4.0, 8.0, 12.0):
        (beat,) = receiver.beat()
        machine.receive(beat.frames, busy_s)  # type: ignore[arg-type, union-attr]
    assert machine.tick(20.0, 0) != []
    assert machine.state is SenderState.OPEN
    receiver.was_busy(14.0)
    assert receiver.tick(14.0 + PEER_SILENT_S) == []
    assert receiver.tick(14.0 + PEER_SILENT_S + 0.1) != []


def test_a_ping_is_acknowledged_with_what_is_synced_not_with_what_was_taken() -> None:
    receiver = ReceiverProtocol(credit=CREDIT)
    _, session = open_pair(receiver)
    assert receiver.receive(b"r", messages.data(session, 0, 4, b"x"), 0.0) == [DataReceived(NAMES[0], 0, 4, b"x")]  # type: ignore[arg-type]
    assert receiver.receive(b"r", messages.ping(session, 5), 0.0) == [Reply(b"r", messages.ack(session, 0, CREDIT))]
    assert receiver.acknowledge(NAMES[0], 5) == [Reply(b"r", messages.ack(session, 5, CREDIT))]


@proves("waiting-sender-noticed", "a sender that waits for an acknowledgement is noticed")
def test_a_ping_right_after_data_requests_an_acknowledgement_and_a_heartbeat_does_not() -> None:
    receiver = ReceiverProtocol(credit=CREDIT)
    _, session = open_pair(receiver)
    receiver.receive(b"r", messages.ping(session, 0), 0.0)
    receiver.receive(b"r", messages.data(session, 0, 4, b"x"), 0.0)  # type: ignore[arg-type]
    assert not receiver.is_ack_requested
    receiver.receive(b"r", messages.ping(session, 5), 0.0)
    assert receiver.is_ack_requested
    receiver.is_ack_requested = False
    receiver.acknowledge(NAMES[0], 5)
    receiver.receive(b"r", messages.ping(session, 5), 0.0)
    assert not receiver.is_ack_requested


def test_a_ping_with_health_is_passed_on_and_hurries_no_one() -> None:
    receiver = ReceiverProtocol(credit=CREDIT)
    _, session = open_pair(receiver)
    receiver.receive(b"r", messages.data(session, 0, 4, b"x"), 0.0)  # type: ignore[arg-type]
    acked, reported = receiver.receive(b"r", messages.ping(session, 5, {"a": 1.0}), 0.0)
    assert acked == Reply(b"r", messages.ack(session, 0, CREDIT))
    assert reported == HealthReported(NAMES[0], {"a": 1.0})
    assert not receiver.is_ack_requested
    assert kinds(receiver.receive(b"r", messages.ping(session, 9, {"a": 1.0}), 0.0)) == [messages.MessageKind.RESET]


def test_each_acknowledgement_reports_whether_clients_ask() -> None:
    receiver = ReceiverProtocol(credit=CREDIT)
    _, session = open_pair(receiver)
    for queried in (True, False):
        receiver.is_queried = queried
        expected = [Reply(b"r", messages.ack(session, 0, CREDIT, queried=queried))]
        assert receiver.receive(b"r", messages.ping(session, 0), 0.0) == expected
        assert receiver.acknowledge(NAMES[0], 0) == expected


def test_a_jump_in_data_or_ping_means_a_lost_message_and_resets_the_session() -> None:
    for frames in (lambda s: messages.data(s, 3, 4, b"x"), lambda s: messages.ping(s, 3)):
        receiver = ReceiverProtocol(credit=CREDIT)
        _, session = open_pair(receiver)
        receiver.receive(b"r", messages.data(session, 0, 1, b"x"), 0.0)  # type: ignore[arg-type]
        actions = receiver.receive(b"r", frames(session), 0.0)  # type: ignore[arg-type]
        assert kinds(actions) == [messages.MessageKind.RESET]
        assert isinstance(actions[1], SessionClosed)
        assert receiver.next_numbers[NAMES[0]] == 2


def test_a_log_that_begins_above_what_the_receiver_has_is_welcome() -> None:
    receiver = ReceiverProtocol(credit=CREDIT)
    machine, _ = open_pair(receiver, first=1_000)
    data = machine.data(1_000, 1_001, b"x", 0.0)
    assert receiver.receive(b"r", data.frames, 0.0) == [DataReceived(NAMES[0], 1_000, 1_001, b"x")]  # type: ignore[arg-type]


def test_what_is_there_already_is_acknowledged_and_not_taken() -> None:
    receiver = ReceiverProtocol({NAMES[0]: 10}, CREDIT)
    _, session = open_pair(receiver)
    frames = messages.data(session, 3, 9, b"x")
    assert kinds(receiver.receive(b"r", frames, 0.0)) == [messages.MessageKind.ACK]  # type: ignore[arg-type]
    assert receiver.duplicates == 1


def test_versions_without_a_common_one_are_reset_with_a_reason() -> None:
    from chiplog_schemas.codec import pack

    receiver = ReceiverProtocol(credit=CREDIT)
    hello = [pack([1, b"nonce  8", [2, 3], NAMES[0], 0, {}])]
    (reply,) = receiver.receive(b"r", hello, 0.0)
    assert isinstance(reply, Reply)
    assert "upgrade the older end" in messages.parse(reply.frames).reason  # type: ignore[arg-type]
    assert receiver.senders == set()
    assert receiver.refusals == {RefusalReason.VERSION: 1, RefusalReason.MALFORMED: 0}


def test_refusals_are_counted_by_reason() -> None:
    receiver = ReceiverProtocol(credit=CREDIT, scopes=True)

    def permit(name: str, node: str) -> Permission:
        return Permission(name, frozenset({"agent"}), (node,), name * 40)

    def greet(key: Permission, node: str) -> list[int]:
        return kinds(receiver.receive(b"r", messages.hello(b"nonce  8", NAMES[0], 0, {"node": node}), 0.0, key))

    assert greet(permit("k", "node-a"), "node-b") == [messages.MessageKind.RESET]
    assert greet(permit("k", "node-a"), "node-a") == [messages.MessageKind.WELCOME]
    renewed = permit("k", "node-c")
    assert kinds(receiver.receive(b"r", messages.ping(b"nonce  8", 0), 0.0, renewed)) == [messages.MessageKind.RESET]
    assert receiver.receive(b"r", [b"no message"], 0.0) == []
    assert receiver.refusals == {RefusalReason.NODE: 2, RefusalReason.MALFORMED: 1}
    shared = ReceiverProtocol(credit=CREDIT)
    for name in "kl":
        shared.receive(b"r", messages.hello(b"nonce  8", NAMES[0], 0, {}), 0.0, permit(name, "node-a"))
    assert shared.refusals == {RefusalReason.OTHER_KEY: 1, RefusalReason.MALFORMED: 0}


def test_a_loss_is_handed_on_once_and_counts_as_had() -> None:
    receiver = ReceiverProtocol(credit=CREDIT)
    machine, session = open_pair(receiver)
    receiver.receive(b"r", machine.data(0, 2, b"x", 0.0).frames, 0.0)  # type: ignore[arg-type]
    frames = machine.lost(3, 5, "damaged").frames
    assert receiver.receive(b"r", frames, 0.0) == [NumbersLost(NAMES[0], 3, 5, "damaged")]  # type: ignore[arg-type]
    again = messages.lost(session, 2, 6, "damaged")
    assert kinds(receiver.receive(b"r", frames, 0.0)) == [messages.MessageKind.ACK]  # type: ignore[arg-type]
    assert receiver.receive(b"r", again, 0.0) == [NumbersLost(NAMES[0], 6, 6, "damaged")]
    assert receiver.acknowledge(NAMES[0], 7) == [Reply(b"r", messages.ack(session, 7, CREDIT))]


def test_a_loss_that_is_lost_on_the_way_is_noticed() -> None:
    """Found by a schedule: a connection died with the message, and the message was not sent again."""
    for what in ("data", "lost", "ping"):
        receiver = ReceiverProtocol(credit=CREDIT)
        machine, _ = open_pair(receiver)
        machine.lost(0, 2, "damaged")
        if what == "ping":
            (following,) = machine.tick(HEARTBEAT_INTERVAL_S, 0)
        else:
            following = machine.data(3, 3, b"x", 0.0) if what == "data" else machine.lost(3, 3, "damaged")
        actions = receiver.receive(b"r", following.frames, 0.0)  # type: ignore[arg-type, union-attr]
        assert kinds(actions) == [messages.MessageKind.RESET], what


def test_a_forgotten_sender_begins_anew() -> None:
    receiver = ReceiverProtocol({NAMES[0]: 7}, CREDIT)
    _, session = open_pair(receiver)
    receiver.forget(NAMES[0])
    assert receiver.senders == set()
    assert kinds(receiver.receive(b"r", messages.ping(session, 7), 0.0)) == [messages.MessageKind.RESET]
    open_pair(receiver)
    assert receiver.next_numbers == {NAMES[0]: 0}


@proves("sessions-bounded", "a receiver's sessions are bounded", condition=False)
def test_a_receiver_opens_no_more_sessions_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver_module, "SESSIONS_MAX", 3)
    receiver = ReceiverProtocol(credit=CREDIT)

    def greet(n: int, now: float) -> list[int]:
        return kinds(receiver.receive(b"r", messages.hello(bytes([n, int(now)]) * 4, bytes([n]) * 16, 0, {}), now))

    for n in range(3):
        assert greet(n, 0.0) == [messages.MessageKind.WELCOME]
    assert greet(3, 1.0) == [messages.MessageKind.RESET]
    assert receiver.refusals[RefusalReason.SESSIONS] == 1
    assert greet(0, 1.0) == [messages.MessageKind.WELCOME], "a sender that is already connected may restart"
    assert len(receiver.senders) == len(receiver.next_numbers) == 3
    receiver.tick(PEER_SILENT_S + 0.5)  # the others fell silent
    assert greet(3, PEER_SILENT_S + 0.5) == [messages.MessageKind.WELCOME]


@proves("sender-numbers-bounded", "the senders whose numbers are kept are bounded", condition=False)
def test_a_receiver_forgets_first_who_was_silent_for_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver_module, "SENDERS_MAX", 3)
    receiver = ReceiverProtocol({bytes([n]) * 16: 5 for n in range(3)}, CREDIT)
    receiver.receive(b"r", messages.hello(b"session0", bytes(16), 0, {}), 0.0)
    for n in (3, 4):
        receiver.receive(b"r", messages.hello(b"session%d" % n, bytes([n]) * 16, 0, {}), 0.0)
    assert set(receiver.next_numbers) == {bytes([n]) * 16 for n in (0, 3, 4)}
    assert receiver.acknowledge(bytes([1]) * 16, 9) == []
    assert len(receiver._synced) == 1
