"""The sender of delivery, and what a receiver makes of its messages."""

import random

import pytest

from chiplog_schemas.limits import BACKOFF_MAX_S, BACKOFF_MIN_S, HEARTBEAT_INTERVAL_S, PEER_SILENT_S
from chiplog_schemas.protocol import messages
from chiplog_schemas.protocol.actions import Disconnect, LeaveCause, Send, SessionClosed
from chiplog_schemas.protocol.receiver import ReceiverProtocol
from chiplog_schemas.protocol.sender import SenderProtocol, SenderState
from tests.support.delivery import CREDIT, NAMES, Nonces, kinds, open_pair
from tests.support.safeguard import proves


@pytest.mark.promise(6)
def test_back_off_doubles_to_its_maximum_and_begins_again_after_a_welcome() -> None:
    machine = SenderProtocol(NAMES[0], {}, Nonces(), lambda: 1.0)
    now, pauses = 0.0, []
    for _ in range(10):
        machine.tick(now, 0)
        machine.abort(now, "x")
        pause = BACKOFF_MIN_S / 2
        while not machine.tick(now + pause, 0):
            pause += BACKOFF_MIN_S / 4
        pauses.append(pause)
        machine.abort(now + pause, "x")
        now += 100
    assert pauses[0] == pytest.approx(BACKOFF_MIN_S, abs=BACKOFF_MIN_S / 2)
    assert pauses[-1] == pytest.approx(BACKOFF_MAX_S, abs=BACKOFF_MIN_S)
    assert pauses == sorted(pauses)
    (connect,) = machine.tick(now, 0)
    machine.receive(messages.welcome(messages.parse(connect.frames).session, 0, 1), now)  # type: ignore[union-attr, arg-type]
    machine.abort(now, "x")
    assert machine.tick(now + BACKOFF_MIN_S, 0)


def test_jitter_spreads_the_first_try_again() -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    machine = SenderProtocol(NAMES[0], {}, Nonces(), lambda: random.Random(seed).uniform(0.5, 1.0))
    machine.tick(0.0, 0)
    machine.abort(0.0, "x")
    assert not machine.tick(BACKOFF_MIN_S * 0.49, 0)
    assert machine.tick(BACKOFF_MIN_S, 0)


def test_each_session_has_a_nonce_of_its_own_and_frames_of_an_old_one_change_nothing() -> None:
    machine, old = open_pair(ReceiverProtocol(credit=CREDIT))
    machine.abort(1.0, "x")
    assert machine.receive(messages.ack(old, 99, 1), 1.0) == []
    (connect,) = machine.tick(9.0, 0)
    new = messages.parse(connect.frames).session  # type: ignore[union-attr, arg-type]
    assert new != old
    assert machine.receive(messages.welcome(old, 99, 1), 9.0) == []
    assert machine.state is SenderState.GREETING


@proves("closed-session-is-not-queried", "a session that ended leaves no short intervals behind")
def test_a_sender_knows_whether_clients_ask_only_from_this_session() -> None:
    machine, session = open_pair(ReceiverProtocol(credit=CREDIT))
    assert not machine.is_queried
    for queried in (True, False, True):
        machine.receive(messages.ack(session, 0, CREDIT, queried=queried), 1.0)
        assert machine.is_queried is queried
    machine.abort(1.0, "x")
    assert not machine.is_queried


def test_an_acknowledgement_is_requested_once_for_what_was_sent() -> None:
    machine, session = open_pair(ReceiverProtocol(credit=CREDIT))
    assert machine.request_ack() == [], "nothing is in flight"
    for last in (4, 9):
        machine.data(last - 4, last, b"x", 1.0)
        assert kinds(machine.request_ack()) == [messages.MessageKind.PING]
        assert machine.request_ack() == []
    machine.receive(messages.ack(session, 10, CREDIT), 1.0)
    assert machine.request_ack() == []
    machine.abort(1.0, "x")
    assert machine.request_ack() == []


def test_a_report_is_a_heartbeat_of_an_open_session() -> None:
    machine, session = open_pair(ReceiverProtocol(credit=CREDIT))
    machine.data(0, 4, b"x", 0.0)
    assert machine.report({"a": 1.0}, 1.0) == [Send(messages.ping(session, 5, {"a": 1.0}))]
    assert machine.tick(HEARTBEAT_INTERVAL_S, 0) == [], "it counts as one"
    machine.abort(1.0, "x")
    assert machine.report({"a": 1.0}, 1.0) == []


def test_an_idle_sender_pings_and_a_silent_peer_closes_the_session() -> None:
    machine, _ = open_pair(ReceiverProtocol(credit=CREDIT))
    assert kinds(machine.tick(HEARTBEAT_INTERVAL_S, 0)) == [messages.MessageKind.PING]
    assert machine.tick(HEARTBEAT_INTERVAL_S, 0) == []
    machine.tick(PEER_SILENT_S, 0)
    (closed,) = machine.tick(PEER_SILENT_S + 0.1, 0)
    assert isinstance(closed, Disconnect)
    assert machine.state is SenderState.CLOSED


def test_a_busy_sender_says_that_it_lives_before_and_after_its_welcome() -> None:
    receiver = ReceiverProtocol(credit=CREDIT)
    machine = SenderProtocol(NAMES[0], {}, Nonces(), lambda: 1.0)
    assert machine.beat(0.0) == []
    (hello,) = machine.tick(0.0, 5)
    welcome = receiver.receive(b"r", hello.frames, 0.0)[0]  # type: ignore[arg-type, union-attr]
    assert machine.beat(HEARTBEAT_INTERVAL_S / 2) == []
    for now in range(3, 30, 3):
        (ping,) = machine.beat(float(now))
        assert kinds(receiver.receive(b"r", ping.frames, float(now))) == [messages.MessageKind.ACK]  # type: ignore[arg-type, union-attr]
        assert receiver.tick(now + 1.0) == []
    machine.receive(welcome.frames, 30.0)  # type: ignore[arg-type, union-attr]
    (ping,) = machine.beat(33.0)
    assert kinds(receiver.receive(b"r", ping.frames, 33.0)) == [messages.MessageKind.ACK]  # type: ignore[arg-type, union-attr]
    assert machine.state is SenderState.OPEN


def test_numbers_that_the_log_does_not_have_are_covered_by_the_next_slice() -> None:
    receiver = ReceiverProtocol(credit=CREDIT)
    machine, _ = open_pair(receiver)
    first = messages.parse(machine.data(0, 2, b"x", 0.0).frames)  # type: ignore[arg-type]
    after_gap = messages.parse(machine.data(10, 12, b"x", 0.0).frames)  # type: ignore[arg-type]
    assert (first.first, first.last, after_gap.first, after_gap.last) == (0, 2, 3, 12)


def test_a_sender_that_said_goodbye_never_comes_back_by_itself() -> None:
    receiver = ReceiverProtocol(credit=CREDIT)
    machine, _ = open_pair(receiver)
    (bye,) = machine.bye()
    assert receiver.receive(b"r", bye.frames, 0.0) == [SessionClosed(NAMES[0], LeaveCause.GOODBYE)]  # type: ignore[arg-type, union-attr]
    assert machine.tick(1e9, 0) == []
    assert machine.bye() == []
    assert machine.abort(0.0, "x") == []


def test_credit_of_zero_stops_the_sender_and_its_return_starts_it_again() -> None:
    receiver = ReceiverProtocol(credit=CREDIT)
    machine, _ = open_pair(receiver)
    assert machine.window() == CREDIT
    for credit, window in ((0, 0), (100, 100)):
        (ack,) = receiver.set_credit(credit)
        machine.receive(ack.frames, 0.0)  # type: ignore[arg-type, union-attr]
        assert machine.window() == window
    assert receiver.set_credit(100) == []
