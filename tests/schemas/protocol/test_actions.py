"""Delivery: two state machines over a network that loses, repeats and delays, with crashes of both ends."""

from collections import deque
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from chiplog_schemas.limits import HEARTBEAT_INTERVAL_S, PEER_SILENT_S
from chiplog_schemas.protocol.actions import (
    Acknowledged,
    Connect,
    DataReceived,
    Disconnect,
    NumbersLost,
    Reply,
    Resume,
    Send,
    SessionClosed,
    SessionOpened,
)
from chiplog_schemas.protocol.receiver import ReceiverProtocol
from chiplog_schemas.protocol.sender import SenderProtocol, SenderState
from tests.support.delivery import CREDIT, NAMES, Nonces

RECORD = 64  # bytes of the largest record in the model


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
