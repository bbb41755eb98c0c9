"""Files between two machines: with messages dropped, duplicated, reordered and ends killed, each file arrives once.

The invariant of the simulation: what lies under a digest at the receiver has that digest; a copy is removed only when
the log of the receiver says that it is there, and it is; with a wire that carries, everything arrives.
"""

import hashlib
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from chiplog_schemas.protocol import file_receiver, file_sender
from chiplog_schemas.protocol.actions import Reply, Send
from chiplog_schemas.protocol.file_receiver import Close, FileReceiverProtocol, Finish, Open, Write
from chiplog_schemas.protocol.file_sender import DigestMismatch, FileDenied, FileSenderProtocol, FileStored, PeerTimeout
from tests.support.file_delivery import SENDER, sessions

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


def test_every_file_arrives_once_and_whole_whatever_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_sender, "FILE_CHUNK_BYTES", CHUNK)
    monkeypatch.setattr(file_receiver, "FILE_CREDIT_BYTES", CREDIT)
    run_state_machine_as_test(Ends, settings=settings(max_examples=150, stateful_step_count=60, deadline=None))
