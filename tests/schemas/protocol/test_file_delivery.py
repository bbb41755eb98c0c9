"""Files between two machines: with messages dropped, duplicated, reordered and ends killed, each file arrives once.

The invariant of the simulation: what lies under a digest at the receiver has that digest; a copy is removed only when
the log of the receiver says that it is there, and it is; with a wire that carries, everything arrives.
"""

import hashlib
import itertools
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from chiplog_schemas.limits import (
    FILE_CHUNK_BYTES,
    FILE_CREDIT_BYTES,
    FILES_AT_ONCE,
    FILES_PER_KEY_AT_ONCE,
    PEER_SILENT_S,
)
from chiplog_schemas.protocol import file_delivery, file_messages, messages
from chiplog_schemas.protocol.delivery import Reply, Send
from chiplog_schemas.protocol.file_delivery import (
    Close,
    DigestMismatch,
    FileDenied,
    FileReceiverProtocol,
    FileSenderProtocol,
    FileStored,
    Finish,
    Open,
    PeerTimeout,
    Write,
)
from chiplog_schemas.protocol.file_messages import FileMessageKind
from chiplog_schemas.protocol.messages import MessageKind
from chiplog_schemas.security.permissions import Permission, Role

SENDER, OTHER = b"spool-of-agent-a", b"spool-of-agent-b"
ONE, TWO = hashlib.sha256(b"one").digest(), hashlib.sha256(b"two").digest()


def sessions() -> Callable[[], bytes]:
    count = itertools.count(1)
    return lambda: next(count).to_bytes(8, "big")


def offered(receiver: FileReceiverProtocol, digest: bytes = ONE, n_bytes: int = 10, **said: Any) -> list[Any]:
    sender, session = said.pop("sender", SENDER), said.pop("session", b"session1")
    info = said.pop("info", {"node": "node-a"})
    frames = file_messages.offer(session, sender, digest, n_bytes, info)
    return receiver.receive(b"route", frames, said.pop("now", 0.0), **said)


def send(
    receiver: FileReceiverProtocol, offset: int, payload: bytes, session: bytes = b"session1", **said: Any
) -> list[Any]:
    frames = [bytes(frame) for frame in file_messages.chunk(session, offset, payload)]
    return receiver.receive(b"route", frames, said.pop("now", 0.0), **said)


def told(actions: list[Any]) -> file_messages.FileMessage:
    """Return the one answer among some actions."""
    (reply,) = [action for action in actions if isinstance(action, Reply)]
    return file_messages.parse([bytes(frame) for frame in reply.frames])


# -- the receiver alone -----------------------------------------------------------------------------------------------


def test_a_file_is_opened_taken_finished_and_said_to_be_stored() -> None:
    receiver = FileReceiverProtocol()
    assert offered(receiver) == [Open(1, ONE, 10)]
    assert told(receiver.opened(1, 4)).offset == 4
    assert send(receiver, 4, b"abc") == [Write(1, b"abc")]
    assert told(receiver.written(1, 7)).credit == FILE_CREDIT_BYTES
    assert send(receiver, 7, b"def") == [Write(1, b"def"), Finish(1)]
    assert receiver.written(1, 10) == []
    assert told(receiver.stored(1)).kind == FileMessageKind.STORED
    assert receiver.is_idle


def test_a_file_without_bytes_is_finished_at_once() -> None:
    receiver = FileReceiverProtocol()
    offered(receiver, n_bytes=0)
    assert receiver.opened(1, 0) == [Finish(1)]


@pytest.mark.parametrize(
    ("offset", "payload"), [(1, b"a"), (0, b"x" * 11), (20, b"abc")], ids=["a gap", "too much", "far beyond"]
)
def test_what_breaks_the_rules_costs_the_session_and_nothing_is_written(offset: int, payload: bytes) -> None:
    receiver = FileReceiverProtocol()
    offered(receiver)
    receiver.opened(1, 0)
    actions = send(receiver, offset, payload)
    assert told(actions).kind == MessageKind.RESET
    assert Close(1) in actions
    assert told(send(receiver, 0, b"a")).reason == "session is unknown here"


def test_nobody_sends_more_than_the_credit() -> None:
    receiver = FileReceiverProtocol()
    offered(receiver, n_bytes=1 << 40)
    receiver.opened(1, 0)
    payload = bytes(FILE_CHUNK_BYTES)
    for index in range(FILE_CREDIT_BYTES // FILE_CHUNK_BYTES):
        assert len(send(receiver, index * FILE_CHUNK_BYTES, payload)) == 1
    assert told(send(receiver, FILE_CREDIT_BYTES, payload)).kind == MessageKind.RESET


def test_bytes_that_are_there_already_are_not_written_again() -> None:
    receiver = FileReceiverProtocol()
    offered(receiver)
    receiver.opened(1, 6)
    assert told(send(receiver, 0, b"abcdef")).offset == 6
    assert send(receiver, 4, b"efgh") == [Write(1, b"gh")]


def test_only_so_many_files_are_taken_at_once_and_the_store_decides_when_one_has_ended() -> None:
    receiver = FileReceiverProtocol()
    for number in range(FILES_AT_ONCE):
        digest, session = bytes([number]) * 32, bytes([number]) * 8
        assert offered(receiver, digest, sender=bytes([number]) * 16, session=session) == [Open(number + 1, digest, 10)]
    assert told(offered(receiver, ONE, sender=OTHER)).kind == FileMessageKind.DENIED
    assert receiver.tick(PEER_SILENT_S + 1) == [Close(number + 1) for number in range(FILES_AT_ONCE)]
    assert told(offered(receiver, ONE, sender=OTHER)).kind == FileMessageKind.DENIED
    receiver.closed(1)
    assert offered(receiver, ONE, sender=OTHER) == [Open(FILES_AT_ONCE + 1, ONE, 10)]


def test_a_sender_that_offers_again_goes_on_where_its_file_stands() -> None:
    receiver = FileReceiverProtocol()
    offered(receiver)
    receiver.opened(1, 0)
    send(receiver, 0, b"abc")
    assert told(offered(receiver, session=b"session2")).offset == 3
    assert told(send(receiver, 3, b"d")).kind == MessageKind.RESET
    assert send(receiver, 3, b"d", b"session2") == [Write(1, b"d")]


def test_a_sender_that_turns_to_another_file_lets_go_of_the_first() -> None:
    receiver = FileReceiverProtocol()
    offered(receiver)
    assert offered(receiver, TWO, session=b"session2") == [Close(1), Open(2, TWO, 10)]
    assert receiver.opened(1, 0) == []


def test_of_two_agents_with_one_content_the_second_waits() -> None:
    receiver = FileReceiverProtocol()
    offered(receiver)
    reply = told(offered(receiver, sender=OTHER, session=b"session2"))
    assert (reply.kind, reply.reason) == (FileMessageKind.DENIED, "another agent is delivering this content")


def test_a_key_speaks_for_its_nodes_and_its_own_sessions_only() -> None:
    keyed = Permission("a", frozenset({Role.AGENT}), ("node-a",), "public")
    other = Permission("b", frozenset({Role.AGENT}), ("*",), "public2")
    receiver = FileReceiverProtocol()
    refused = told(offered(receiver, info={"node": "node-b"}, permit=keyed))
    assert refused.kind == FileMessageKind.DENIED
    assert "may speak for node-a" in refused.reason
    assert offered(receiver, permit=keyed) == [Open(1, ONE, 10)]
    receiver.opened(1, 0)
    assert told(send(receiver, 0, b"a", permit=other)).kind == MessageKind.RESET
    assert told(send(receiver, 0, b"a")).kind == MessageKind.RESET
    same_16_bytes = offered(receiver, session=b"session2", permit=other)
    assert told(same_16_bytes).kind == FileMessageKind.DENIED
    assert send(receiver, 0, b"a", permit=keyed) == [Write(1, b"a")]


def test_a_key_that_makes_up_senders_leaves_room_for_files_of_others() -> None:
    greedy = Permission("a", frozenset({Role.AGENT}), ("*",), "public")
    other = Permission("b", frozenset({Role.AGENT}), ("*",), "public2")
    receiver = FileReceiverProtocol()

    def offers(number: int, permit: Permission) -> list[Any]:
        made_up = bytes([number])
        return offered(receiver, made_up * 32, sender=made_up * 16, session=made_up * 8, permit=permit)

    for number in range(FILES_PER_KEY_AT_ONCE):
        assert offers(number, greedy) == [Open(number + 1, bytes([number]) * 32, 10)]
    refused = told(offers(10, greedy))
    assert refused.kind == FileMessageKind.DENIED
    assert "key 'a'" in refused.reason
    assert [type(action) for action in offers(11, other)] == [Open]
    receiver.tick(PEER_SILENT_S + 1)
    receiver.closed(1)
    assert [type(action) for action in offers(12, greedy)] == [Open], "a closed file no longer counts"


def test_what_is_no_message_is_counted() -> None:
    receiver = FileReceiverProtocol()
    good = file_messages.offer(b"session1", SENDER, ONE, 10, {})
    for bad in ([b""], [good[0][:-1]], [*good, b"x"], file_messages.chunk(b"session1", 0, b"")):
        assert receiver.receive(b"route", [bytes(frame) for frame in bad], 0.0) == []
    assert receiver.malformed == 4


def test_a_version_that_is_not_spoken_is_named() -> None:
    frames = file_messages.offer(b"session1", SENDER, ONE, 10, {})
    newer = frames[0].replace(b"\x92\x01\x01", b"\x92\x02\x03")
    reply = told(FileReceiverProtocol().receive(b"route", [newer], 0.0))
    assert "file versions 2..3 are not supported here (1..1)" in reply.reason


# -- the sender alone -------------------------------------------------------------------------------------------------


def test_a_sender_offers_again_after_quiet_and_gives_the_socket_up_after_silence() -> None:
    sender = FileSenderProtocol(SENDER, {}, sessions())
    assert len(sender.offer(ONE, 10, 0.0)) == 1
    assert sender.tick(1.9) == []
    (again,) = sender.tick(2.1)
    assert isinstance(again, Send)
    assert sender.tick(PEER_SILENT_S + 0.1) == [PeerTimeout()]
    assert not sender.digest
    assert sender.tick(100.0) == []


def test_a_sender_takes_no_word_of_another_session() -> None:
    sender = FileSenderProtocol(SENDER, {}, sessions())
    sender.offer(ONE, 10, 0.0)
    assert sender.receive(file_messages.stored(b"another!"), 0.0) == []
    assert sender.receive([b"\xc1"], 0.0) == []
    assert sender.digest == ONE


def test_a_reset_is_answered_with_an_offer_after_a_growing_pause() -> None:
    sender = FileSenderProtocol(SENDER, {}, sessions())
    sender.offer(ONE, 10, 0.0)
    now, pauses = 0.0, []
    for number in range(1, 9):
        for _ in range(2):  # each chunk that was under way brings one
            sender.receive(messages.reset(number.to_bytes(8, "big"), "unknown"), now)
        begun = now
        while not sender.tick(now):
            now += 0.01
        pauses.append(now - begun)
    assert pauses == sorted(pauses)
    assert pauses[0] < 0.1 < 1.0 < pauses[-1]


def test_an_offset_beyond_the_file_opens_nothing() -> None:
    sender = FileSenderProtocol(SENDER, {}, sessions())
    sender.offer(ONE, 10, 0.0)
    sender.receive(file_messages.want((1).to_bytes(8, "big"), 11, 100), 0.0)
    assert sender.window() == 0


# -- both, and everything that can go wrong ---------------------------------------------------------------------------

FILES = [bytes([seed]) * size for seed, size in ((1, 0), (2, 7), (3, 64), (4, 65), (5, 300))]
CHUNK, CREDIT = 16, 48  # small sizes represent large ones


class Disk:
    """What a receiver has that outlives it."""

    def __init__(self) -> None:
        self.parts: dict[bytes, bytearray] = {}
        self.kept: dict[bytes, bytes] = {}
        self.log: set[bytes] = set()


class Ends(RuleBasedStateMachine):
    """Two machines, a wire that may do anything to whole messages, and a slow store."""

    @initialize(patience=st.integers(0, 3))
    def begin(self, patience: int) -> None:
        self.now = 0.0
        self.outbox = {hashlib.sha256(data).digest(): data for data in FILES}
        self.original = dict(self.outbox)
        self.disk = Disk()
        self.new_session = sessions()
        self.n_stored = 0
        self.start_sender()
        self.start_receiver()

    def start_sender(self) -> None:
        self.sender = FileSenderProtocol(SENDER, {}, self.new_session)
        self.up: deque[list[bytes]] = deque()
        self.down: deque[list[bytes]] = deque()

    def start_receiver(self) -> None:
        self.receiver = FileReceiverProtocol()
        self.jobs: deque[Any] = deque()
        self.open: dict[int, tuple[bytes, int]] = {}
        self.uncommitted: list[tuple[int, bytes]] = []
        self.up, self.down = deque(), deque()

    # -- the shells --

    def sender_does(self, actions: list[Any]) -> None:
        for action in actions:
            match action:
                case Send(frames):
                    self.up.append([bytes(frame) for frame in frames])
                case FileStored(digest):
                    assert digest in self.disk.log
                    assert self.disk.kept[digest] == self.outbox.get(digest, self.original[digest])
                    self.outbox.pop(digest, None)
                case DigestMismatch(digest):
                    raise AssertionError("nothing was altered, but what was torn is cut off")
                case FileDenied() | PeerTimeout():
                    pass

    def receiver_does(self, actions: list[Any]) -> None:
        for action in actions:
            if isinstance(action, Reply):
                self.down.append([bytes(frame) for frame in action.frames])
            else:
                self.jobs.append(action)

    def do_job(self) -> None:
        job = self.jobs.popleft()
        disk = self.disk
        match job:
            case Open(token, digest, n_bytes):
                if digest in disk.kept:
                    self.uncommitted.append((token, digest))
                    return
                self.open[token] = (digest, n_bytes)
                part = disk.parts.setdefault(digest, bytearray())
                self.receiver_does(self.receiver.opened(token, len(part)))
            case Write(token, payload):
                part = disk.parts[self.open[token][0]]
                part += payload
                self.receiver_does(self.receiver.written(token, len(part)))
            case Finish(token):
                digest, n_bytes = self.open.pop(token)
                data = bytes(disk.parts.pop(digest))
                if len(data) == n_bytes and hashlib.sha256(data).digest() == digest:
                    disk.kept[digest] = data
                    self.n_stored += 1
                    self.uncommitted.append((token, digest))
                else:
                    self.receiver_does(self.receiver.mismatched(token))
            case Close(token):
                self.open.pop(token, None)
                self.receiver.closed(token)

    def carry(self, wire_: deque[list[bytes]], receive: Callable[[list[bytes]], None], at: int = 0) -> None:
        if wire_:
            wire_.rotate(-(at % len(wire_)))
            frames = wire_.popleft()
            receive(frames)

    def to_receiver(self, frames: list[bytes]) -> None:
        self.receiver_does(self.receiver.receive(b"route", frames, self.now))

    def to_sender(self, frames: list[bytes]) -> None:
        self.sender_does(self.sender.receive(frames, self.now))

    # -- what happens --

    @rule(seconds=st.sampled_from([0.01, 0.5, 2.5, 11.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.sender_does(self.sender.tick(self.now))
        self.receiver_does(self.receiver.tick(self.now))

    @precondition(lambda self: self.outbox and not self.sender.digest)
    @rule(which=st.integers(0, 4))
    def offer(self, which: int) -> None:
        digest = sorted(self.outbox)[which % len(self.outbox)]
        self.sender_does(self.sender.offer(digest, len(self.outbox[digest]), self.now))

    @rule()
    def chunks(self) -> None:
        while window := self.sender.window():
            offset = self.sender.offset
            data = self.outbox[self.sender.digest][offset : offset + window]
            self.sender_does([self.sender.chunk(data)])

    @rule(count=st.integers(1, 9))
    def wires_carry(self, count: int) -> None:
        for _ in range(count):
            self.carry(self.up, self.to_receiver)
            self.carry(self.down, self.to_sender)

    @rule(count=st.integers(1, 9))
    def store_works(self, count: int) -> None:
        for _ in range(min(count, len(self.jobs))):
            self.do_job()

    @rule()
    def commit(self) -> None:
        done, self.uncommitted = self.uncommitted, []
        for token, digest in done:
            self.disk.log.add(digest)
            self.receiver_does(self.receiver.stored(token))

    @precondition(lambda self: self.up)
    @rule(at=st.integers(0, 5))
    def reorder_up(self, at: int) -> None:
        self.carry(self.up, self.to_receiver, at)

    @precondition(lambda self: self.up)
    @rule(at=st.integers(0, 5), again=st.booleans())
    def drop_or_double_up(self, at: int, again: bool) -> None:
        frames = self.up[at % len(self.up)]
        self.up.append(frames) if again else self.up.remove(frames)

    @precondition(lambda self: self.down)
    @rule(at=st.integers(0, 5), again=st.booleans())
    def drop_or_double_down(self, at: int, again: bool) -> None:
        frames = self.down[at % len(self.down)]
        self.down.append(frames) if again else self.down.remove(frames)

    @rule()
    def kill_the_sender(self) -> None:
        self.start_sender()

    @rule(cut=st.integers(0, 20))
    def kill_the_receiver(self, cut: int) -> None:
        for part in self.disk.parts.values():  # what was not synced may be gone, from its end on
            del part[max(0, len(part) - cut) :]
        self.start_receiver()

    @invariant()
    def what_is_kept_is_whole(self) -> None:
        for digest, data in getattr(self, "disk", Disk()).kept.items():
            assert hashlib.sha256(data).digest() == digest

    def teardown(self) -> None:
        """With a wire that carries and a store that works everything arrives, and each was stored once."""
        if not hasattr(self, "disk"):
            return
        for _ in range(2_000):
            if not self.outbox:
                break
            if not self.sender.digest:
                self.offer(0)
            self.chunks()
            self.wires_carry(9)
            self.store_works(9)
            self.commit()
            self.time_passes(0.5)
        assert not self.outbox
        assert self.disk.kept == self.original
        assert self.n_stored == len(self.original)


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "whatever_happens" in request.node.name:
        monkeypatch.setattr(file_delivery, "FILE_CHUNK_BYTES", CHUNK)
        monkeypatch.setattr(file_delivery, "FILE_CREDIT_BYTES", CREDIT)


def test_every_file_arrives_once_and_whole_whatever_happens() -> None:
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(Ends, settings=settings(max_examples=150, stateful_step_count=60, deadline=None))
