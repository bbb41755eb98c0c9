"""Delivery: two state machines over a network that loses, repeats and delays, with crashes of both ends."""

import random
from collections import deque
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from chiplog_schemas.limits import BACKOFF_MAX_S, BACKOFF_MIN_S, HEARTBEAT_INTERVAL_S, PEER_SILENT_S
from chiplog_schemas.protocol import delivery, messages
from chiplog_schemas.protocol.delivery import (
    Acknowledged,
    Connect,
    DataReceived,
    Disconnect,
    LeaveCause,
    NumbersLost,
    ReceiverProtocol,
    Reply,
    Resume,
    Send,
    SenderProtocol,
    SenderState,
    SessionClosed,
    SessionOpened,
)
from tests.support.safeguard import Safeguard

_DELIVERY = "schemas/chiplog_schemas/protocol/delivery.py"
SAFEGUARDS = [
    Safeguard(
        "a receiver's sessions are bounded",
        "sessions-bounded",
        condition=False,
        test="test_a_receiver_opens_no_more_sessions_than_may_be",
    ),
    Safeguard(
        "the senders whose numbers are kept are bounded",
        "sender-numbers-bounded",
        condition=False,
        test="test_a_receiver_forgets_first_who_was_silent_for_longest",
    ),
]
CREDIT = 400
RECORD = 64  # bytes of the largest record in the model
NAMES = (b"a" * 16, b"b" * 16)


class Nonces:
    """Fresh session nonces, the same in every repetition."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> bytes:
        self.count += 1
        return self.count.to_bytes(8, "big")


class Rank:
    """A sender, its durable log, and its present connection."""

    def __init__(self, name: bytes, nonces: Nonces) -> None:
        self.name = name
        self.nonces = nonces
        self.log: list[tuple[int, bytes]] = []  # what was not acknowledged
        self.produced: set[int] = set()
        self.next_number = 0
        self.first = 0  # of the log, as far as it was trimmed
        self.position = 0
        self.restart()

    def restart(self) -> None:
        self.machine = SenderProtocol(self.name, {"name": self.name}, self.nonces, lambda: 0.75)
        self.connection: int | None = None
        self.granted = 0  # most credit that this session has seen

    def read(self, max_bytes: int) -> tuple[int, int, bytes] | None:
        waiting = [entry for entry in self.log if entry[0] >= self.position]
        if not waiting:
            return None
        taken, size = [waiting[0]], len(waiting[0][1])
        for entry in waiting[1:]:
            if size + len(entry[1]) > max_bytes:
                break
            taken.append(entry)
            size += len(entry[1])
        self.position = taken[-1][0] + 1
        return taken[0][0], taken[-1][0], b"".join(payload for _, payload in taken)


class Network:
    """Connections: each a pair of queues. Within one, order is kept; between them anything goes."""

    def __init__(self) -> None:
        self.to_receiver: list[deque[Any]] = []
        self.to_sender: list[deque[Any]] = []
        self.history: list[tuple[int, Any]] = []

    def connect(self) -> int:
        self.to_receiver.append(deque())
        self.to_sender.append(deque())
        return len(self.to_receiver) - 1


def numbers_in(payload: bytes) -> list[int]:
    return [int(part) for part in bytes(payload).decode().split(",") if part.strip()]


class DeliveryModel(RuleBasedStateMachine):
    """Invariant: what was acknowledged is synced at the receiver; in the end everything is there."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.net = Network()
        nonces = Nonces()
        self.ranks = [Rank(name, nonces) for name in NAMES]
        self.receiver = ReceiverProtocol(credit=CREDIT)
        self.synced: dict[bytes, set[int]] = {name: set() for name in NAMES}
        self.synced_next: dict[bytes, int] = {}
        self.taken: list[DataReceived] = []
        self.gaps: list[NumbersLost] = []

    # -- the two shells --

    def act(self, rank: Rank, actions: list[Any]) -> None:
        for action in actions:
            match action:
                case Connect(frames):
                    rank.connection = self.net.connect()
                    rank.granted = 0
                    self.net.to_receiver[rank.connection].append(frames)
                case Disconnect():
                    rank.connection = None
                case Send(frames):
                    assert rank.connection is not None
                    self.net.to_receiver[rank.connection].append(frames)
                case Resume(number):
                    rank.position = max(number, rank.first)
                case Acknowledged(number):
                    behind = {entry[0] for entry in rank.log if entry[0] < number}
                    assert behind <= self.synced[rank.name], "acknowledged, but not on stable storage"
                    rank.log = [entry for entry in rank.log if entry[0] >= number]
                    rank.first = max(rank.first, min(number, rank.next_number))
        rank.granted = max(rank.granted, rank.machine.credit)

    def react(self, actions: list[Any]) -> None:
        for action in actions:
            match action:
                case Reply(routing, frames):
                    self.net.to_sender[int.from_bytes(routing, "big")].append(frames)
                case DataReceived():
                    self.taken.append(action)
                case NumbersLost():
                    self.gaps.append(action)
                case SessionOpened(sender, info):
                    assert info == {"name": sender}
                case SessionClosed():
                    pass

    def pump(self, rank: Rank) -> None:
        while (window := rank.machine.window()) > 0:
            piece = rank.read(min(window, 150))
            if piece is None:
                return
            self.act(rank, [rank.machine.data(*piece, self.now)])

    def give_receiver(self, connection: int, frames: Any) -> None:
        self.react(self.receiver.receive(connection.to_bytes(8, "big"), list(frames), self.now))

    def give_sender(self, connection: int, frames: Any) -> None:
        for rank in self.ranks:
            if rank.connection == connection:
                self.act(rank, rank.machine.receive(list(frames), self.now))

    def sync_all(self) -> None:
        taken, self.taken = self.taken, []
        for take in taken:
            self.synced[take.sender].update(numbers_in(take.payload))
            self.synced_next[take.sender] = max(take.last + 1, self.synced_next.get(take.sender, 0))
            self.react(self.receiver.acknowledge(take.sender, take.last + 1))

    # -- rules --

    @rule(which=st.sampled_from([0, 1]), gap=st.sampled_from([0, 0, 0, 5]), size=st.integers(8, RECORD))
    def produce(self, which: int, gap: int, size: int) -> None:
        rank = self.ranks[which]
        number = rank.next_number + gap
        rank.next_number = number + 1
        rank.log.append((number, f"{number},".encode().ljust(size)))
        rank.produced.add(number)

    @rule(which=st.sampled_from([0, 1]))
    def send(self, which: int) -> None:
        rank = self.ranks[which]
        self.act(rank, rank.machine.tick(self.now, rank.first))
        self.pump(rank)

    @rule(rounds=st.integers(1, 3), sync=st.booleans())
    def run_undisturbed(self, rounds: int, sync: bool) -> None:
        for _ in range(rounds):
            self.turn()
            if sync:
                self.sync_all()
            self.now += 0.1

    def turn(self) -> None:
        for rank in self.ranks:
            self.act(rank, rank.machine.tick(self.now, rank.first))
            self.pump(rank)
        for queues, give in ((self.net.to_receiver, self.give_receiver), (self.net.to_sender, self.give_sender)):
            for connection, queue in enumerate(queues):
                while queue:
                    frames = queue.popleft()
                    self.net.history.append((connection, frames))
                    give(connection, frames)

    @rule(which=st.sampled_from([0, 1]), size=st.integers(8, RECORD), arrives=st.booleans())
    def produce_and_send(self, which: int, size: int, arrives: bool) -> None:
        self.produce(which, 0, size)
        self.send(which)
        connection = self.ranks[which].connection
        if not arrives and connection is not None and self.net.to_receiver[connection]:
            self.net.to_receiver[connection].pop()

    @rule(count=st.integers(1, 6), data=st.data())
    def deliver(self, count: int, data: st.DataObject) -> None:
        for _ in range(count):
            ways = [(q, at) for q in (self.net.to_receiver, self.net.to_sender) for at in range(len(q)) if q[at]]
            if not ways:
                return
            queues, at = data.draw(st.sampled_from(ways))
            frames = queues[at].popleft()
            self.net.history.append((at, frames))
            (self.give_receiver if queues is self.net.to_receiver else self.give_sender)(at, frames)

    @rule(which=st.sampled_from([0, 1]), both=st.booleans(), keep=st.integers(0, 2))
    def lose_what_is_on_its_way(self, which: int, both: bool, keep: int) -> None:
        """Reconnect silently, as libzmq does: the session continues without the messages of the old connection."""
        connection = self.ranks[which].connection
        if connection is not None:
            for queues in (self.net.to_receiver, self.net.to_sender) if both else (self.net.to_receiver,):
                queues[connection] = deque(list(queues[connection])[:keep])

    @precondition(lambda self: self.net.history)
    @rule(data=st.data())
    def repeat_an_old_message(self, data: st.DataObject) -> None:
        connection, frames = data.draw(st.sampled_from(self.net.history))
        self.give_receiver(connection, frames)

    @rule(frames=st.lists(st.binary(max_size=20), max_size=2), which=st.sampled_from([0, 1]))
    def garbage(self, frames: list[bytes], which: int) -> None:
        self.react(self.receiver.receive(b"\0" * 8, frames, self.now))
        self.act(self.ranks[which], self.ranks[which].machine.receive(frames, self.now))

    @rule()
    def sync(self) -> None:
        self.sync_all()

    @rule(seconds=st.sampled_from([0.01, 0.1, HEARTBEAT_INTERVAL_S, PEER_SILENT_S + 1]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.react(self.receiver.tick(self.now))

    @rule(credit=st.sampled_from([0, 100, CREDIT]))
    def change_credit(self, credit: int) -> None:
        self.react(self.receiver.set_credit(credit))

    @rule(which=st.sampled_from([0, 1]))
    def crash_sender(self, which: int) -> None:
        self.ranks[which].restart()

    @rule(which=st.sampled_from([0, 1]))
    def sender_fails_to_send(self, which: int) -> None:
        self.act(self.ranks[which], self.ranks[which].machine.abort(self.now, "queue full"))

    @rule(remembers=st.booleans())
    def crash_receiver(self, remembers: bool) -> None:
        """What was not synced is gone. A collector remembers next numbers, an agent does not."""
        self.taken = []
        self.receiver = ReceiverProtocol(self.synced_next if remembers else None, CREDIT)

    # -- what holds --

    @invariant()
    def in_flight_bytes_stay_within_credit(self) -> None:
        for rank in self.ranks:
            machine = rank.machine
            assert 0 <= machine.in_flight_bytes <= max(rank.granted, 0) + RECORD
            assert machine.window() <= max(0, machine.credit - machine.in_flight_bytes)
            if machine.state is not SenderState.OPEN:
                assert machine.window() == 0

    @invariant()
    def what_left_a_log_is_synced(self) -> None:
        for rank in self.ranks:
            assert rank.produced - {entry[0] for entry in rank.log} <= self.synced[rank.name]

    def teardown(self) -> None:
        """Heal the network: everything arrives, without another push by anybody."""
        self.react(self.receiver.set_credit(CREDIT))
        for _ in range(400):
            self.turn()
            self.sync_all()
            if not any(rank.log for rank in self.ranks):
                break
            self.now += 0.2
            self.react(self.receiver.tick(self.now))
        for rank in self.ranks:
            assert not rank.log, "never acknowledged"
            assert self.synced[rank.name] == rank.produced


DeliveryModel.TestCase.settings = settings(
    max_examples=200,
    stateful_step_count=50,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


class TestDelivery(DeliveryModel.TestCase):  # type: ignore[misc, name-defined]
    """Run the model."""


# -- sentences of the law, one by one ---------------------------------------------------------------------------------


def sender(first: int = 0) -> tuple[SenderProtocol, bytes]:
    machine = SenderProtocol(NAMES[0], {}, Nonces(), lambda: 1.0)
    (connect,) = machine.tick(0.0, first)
    assert isinstance(connect, Connect)
    return machine, messages.parse(connect.frames).session  # type: ignore[arg-type]


def open_pair(receiver: ReceiverProtocol, first: int = 0) -> tuple[SenderProtocol, bytes]:
    machine, session = sender(first)
    reply, greeted = receiver.receive(b"r", messages.hello(session, NAMES[0], first, {}), 0.0)
    assert isinstance(greeted, SessionOpened)
    assert isinstance(reply, Reply)
    machine.receive(reply.frames, 0.0)  # type: ignore[arg-type]
    assert machine.state is SenderState.OPEN
    return machine, session


def kinds(actions: list[Any]) -> list[int]:
    return [messages.parse(action.frames).kind for action in actions if isinstance(action, Reply | Send)]


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


def test_a_receiver_answers_frames_of_a_replaced_session_by_reset() -> None:
    receiver = ReceiverProtocol(credit=CREDIT)
    _, old = open_pair(receiver)
    receiver.receive(b"r2", messages.hello(b"new nonc", NAMES[0], 0, {}), 1.0)
    for frames in (messages.data(old, 0, 0, b"x"), messages.ping(old, 0), messages.lost(old, 0, 0, "")):
        assert kinds(receiver.receive(b"r", frames, 1.0)) == [messages.MessageKind.RESET]  # type: ignore[arg-type]
    assert receiver.receive(b"r", messages.bye(old), 1.0) == []
    assert receiver.senders == {NAMES[0]}


def test_an_idle_sender_pings_and_a_silent_peer_closes_the_session() -> None:
    machine, _ = open_pair(ReceiverProtocol(credit=CREDIT))
    assert kinds(machine.tick(HEARTBEAT_INTERVAL_S, 0)) == [messages.MessageKind.PING]
    assert machine.tick(HEARTBEAT_INTERVAL_S, 0) == []
    machine.tick(PEER_SILENT_S, 0)
    (closed,) = machine.tick(PEER_SILENT_S + 0.1, 0)
    assert isinstance(closed, Disconnect)
    assert machine.state is SenderState.CLOSED


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


def test_a_ping_is_acknowledged_with_what_is_synced_not_with_what_was_taken() -> None:
    receiver = ReceiverProtocol(credit=CREDIT)
    _, session = open_pair(receiver)
    assert receiver.receive(b"r", messages.data(session, 0, 4, b"x"), 0.0) == [DataReceived(NAMES[0], 0, 4, b"x")]  # type: ignore[arg-type]
    assert receiver.receive(b"r", messages.ping(session, 5), 0.0) == [Reply(b"r", messages.ack(session, 0, CREDIT))]
    assert receiver.acknowledge(NAMES[0], 5) == [Reply(b"r", messages.ack(session, 5, CREDIT))]


def test_a_jump_in_data_or_ping_means_a_lost_message_and_resets_the_session() -> None:
    for frames in (lambda s: messages.data(s, 3, 4, b"x"), lambda s: messages.ping(s, 3)):
        receiver = ReceiverProtocol(credit=CREDIT)
        _, session = open_pair(receiver)
        receiver.receive(b"r", messages.data(session, 0, 1, b"x"), 0.0)  # type: ignore[arg-type]
        actions = receiver.receive(b"r", frames(session), 0.0)  # type: ignore[arg-type]
        assert kinds(actions) == [messages.MessageKind.RESET]
        assert isinstance(actions[1], SessionClosed)
        assert receiver.next_numbers[NAMES[0]] == 2


def test_numbers_that_the_log_does_not_have_are_covered_by_the_next_slice() -> None:
    receiver = ReceiverProtocol(credit=CREDIT)
    machine, _ = open_pair(receiver)
    first = messages.parse(machine.data(0, 2, b"x", 0.0).frames)  # type: ignore[arg-type]
    after_gap = messages.parse(machine.data(10, 12, b"x", 0.0).frames)  # type: ignore[arg-type]
    assert (first.first, first.last, after_gap.first, after_gap.last) == (0, 2, 3, 12)


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


def test_a_sender_that_said_goodbye_never_comes_back_by_itself() -> None:
    receiver = ReceiverProtocol(credit=CREDIT)
    machine, _ = open_pair(receiver)
    (bye,) = machine.bye()
    assert receiver.receive(b"r", bye.frames, 0.0) == [SessionClosed(NAMES[0], LeaveCause.GOODBYE)]  # type: ignore[arg-type, union-attr]
    assert machine.tick(1e9, 0) == []
    assert machine.bye() == []
    assert machine.abort(0.0, "x") == []


def test_a_forgotten_sender_begins_anew() -> None:
    receiver = ReceiverProtocol({NAMES[0]: 7}, CREDIT)
    _, session = open_pair(receiver)
    receiver.forget(NAMES[0])
    assert receiver.senders == set()
    assert kinds(receiver.receive(b"r", messages.ping(session, 7), 0.0)) == [messages.MessageKind.RESET]
    open_pair(receiver)
    assert receiver.next_numbers == {NAMES[0]: 0}


def test_a_receiver_opens_no_more_sessions_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "SESSIONS_MAX", 3)
    receiver = ReceiverProtocol(credit=CREDIT)

    def greet(n: int, now: float) -> list[int]:
        return kinds(receiver.receive(b"r", messages.hello(bytes([n, int(now)]) * 4, bytes([n]) * 16, 0, {}), now))

    for n in range(3):
        assert greet(n, 0.0) == [messages.MessageKind.WELCOME]
    assert greet(3, 1.0) == [messages.MessageKind.RESET]
    assert greet(0, 1.0) == [messages.MessageKind.WELCOME], "a sender that is already connected may restart"
    assert len(receiver.senders) == len(receiver.next_numbers) == 3
    receiver.tick(PEER_SILENT_S + 0.5)  # the others fell silent
    assert greet(3, PEER_SILENT_S + 0.5) == [messages.MessageKind.WELCOME]


def test_a_receiver_forgets_first_who_was_silent_for_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "SENDERS_MAX", 3)
    receiver = ReceiverProtocol({bytes([n]) * 16: 5 for n in range(3)}, CREDIT)
    receiver.receive(b"r", messages.hello(b"session0", bytes(16), 0, {}), 0.0)
    for n in (3, 4):
        receiver.receive(b"r", messages.hello(b"session%d" % n, bytes([n]) * 16, 0, {}), 0.0)
    assert set(receiver.next_numbers) == {bytes([n]) * 16 for n in (0, 3, 4)}
    assert receiver.acknowledge(bytes([1]) * 16, 9) == []
    assert len(receiver._synced) == 1


def test_credit_of_zero_stops_the_sender_and_its_return_starts_it_again() -> None:
    receiver = ReceiverProtocol(credit=CREDIT)
    machine, _ = open_pair(receiver)
    assert machine.window() == CREDIT
    for credit, window in ((0, 0), (100, 100)):
        (ack,) = receiver.set_credit(credit)
        machine.receive(ack.frames, 0.0)  # type: ignore[arg-type, union-attr]
        assert machine.window() == window
    assert receiver.set_credit(100) == []
