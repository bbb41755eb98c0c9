"""Files at the collector: what the store keeps, and in the index what was reported, by whom, and when it arrived."""

import hashlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chiplog_collector.receiver import file_store
from chiplog_collector.receiver.daemon import ReceiverDaemon, ReceiverSettings
from chiplog_collector.receiver.file_store import (
    Answer,
    ContentMismatch,
    ContentStored,
    FileStore,
    OpenPhase,
    PartClosed,
    PartWritten,
    WriteDenied,
)
from chiplog_schemas.codec import pack, unpack
from chiplog_schemas.model.events import EventKind
from chiplog_schemas.paths import paths_for_root
from chiplog_schemas.protocol import file_messages, messages
from chiplog_schemas.protocol.file_messages import FileMessage, FileMessageKind
from chiplog_schemas.protocol.file_receiver import Close, Finish, Open, Write
from chiplog_schemas.storage.record import Kind, Record
from chiplog_schemas.storage.segment_format import list_segments, read_segment
from tests.support.collector_log import START_US, Rank, apply, whole
from tests.support.dealer_by_hand import DealerByHand
from tests.support.index import Index
from tests.support.safeguard import proves
from tests.support.waiting import wait_until

ONE, TWO = bytes(range(32)), bytes(range(32, 64))
DATA = b"weights" * 100_000
DIGEST = hashlib.sha256(DATA).digest()
NAME = DIGEST.hex()


def stored(digest: bytes, n_bytes: int) -> tuple[int, bytes]:
    return Kind.STORED, pack([b"S" * 16, digest, n_bytes])


def test_files_are_the_last_word_of_the_primary_on_each_path(index: Index) -> None:
    primary, other = Rank(0), Rank(1)
    primary.say(EventKind.FILE, "last.pt", 10, ONE)
    primary.say(EventKind.FILE, "last.pt", 11, TWO)
    primary.say(EventKind.FILE, "sub/notes.txt", 0, ONE)
    other.say(EventKind.FILE, "mine.txt", 12, ONE)
    primary.say(EventKind.FILE, "mlflow/artifacts/shared.txt", 13, ONE)
    other.say(EventKind.FILE, "mlflow/artifacts/shared.txt", 14, TWO, ts=START_US + 100)  # any label's, by contract
    index.take(whole(primary), whole(other))
    assert index.sql("SELECT run_id, path, bytes, sha256, epoch_us(ts) FROM files ORDER BY path") == [
        ("r", "last.pt", 11, TWO.hex(), START_US + 2),
        ("r", "mlflow/artifacts/shared.txt", 14, TWO.hex(), START_US + 100),
        ("r", "sub/notes.txt", 0, ONE.hex(), START_US + 3),
    ]
    refused = index.sql("SELECT label, message, body FROM events WHERE kind = 'file_refused'")
    assert refused == [("rank1", "file 'mine.txt' of rank1 is refused: rank0 is the primary", '{"path": "mine.txt"}')]


@pytest.mark.parametrize("first", ["said", "stored"])
def test_a_file_is_stored_once_both_its_event_and_its_bytes_are_there(index: Index, first: str) -> None:
    primary = Rank(0)
    primary.say(EventKind.FILE, "last.pt", 10, ONE)
    primary.say(EventKind.FILE, "next.pt", 10, TWO)
    parts = [whole(primary), stored(ONE, 10)]
    index.take(*(parts if first == "said" else reversed(parts)))
    index.take(stored(ONE, 10), stored(TWO, 9))  # again; and a content of another size is another content
    rows = index.sql("SELECT label, seq, level, message, body FROM events WHERE kind = 'file_stored'")
    ((label, seq, level, message, body),) = rows
    assert (label, seq, level, message) == ("rank0", 1, "info", "file last.pt arrived whole, 10 bytes")
    assert json.loads(body) == {"path": "last.pt", "bytes": 10, "sha256": ONE.hex()}
    before = index.views()
    index.reopen()
    assert index.views() == before


@pytest.mark.parametrize(
    "fields",
    [
        ("../up", 1, ONE),
        ("/etc/passwd", 1, ONE),
        ("a//b", 1, ONE),
        ("a\nb", 1, ONE),
        ("x" * 1_025, 1, ONE),
        (b"bytes", 1, ONE),
        ("a", -1, ONE),
        ("a", 1, ONE.hex()),
        ("a", 1, ONE[:31]),
    ],
    ids=lambda fields: repr(fields)[:30],
)
def test_a_file_that_no_path_or_digest_fits_is_set_aside(fields: tuple[object, int, object]) -> None:
    primary = Rank(0)
    primary.say(EventKind.FILE, *fields)
    rows = apply(whole(primary)).batch.rows
    assert "files" not in rows
    assert [row[3] for row in rows["events"]] == ["quarantined"]


@pytest.mark.parametrize("payload", [b"\xc1", pack([b"S" * 16, ONE]), pack([b"S", ONE, -1]), pack([b"S", "x", 1])])
def test_a_record_of_a_stored_file_that_cannot_be_read_is_set_aside(payload: bytes) -> None:
    rows = apply((Kind.STORED, payload)).batch.rows
    assert "stored" not in rows
    assert [row[3] for row in rows["events"]] == ["quarantined"]


# -- the store --


class Bench:
    """A store whose answers are waited for."""

    def __init__(self, directory: Path, bytes_max: int = 1 << 40) -> None:
        self.directory = directory
        self.store = FileStore(directory, bytes_max)

    def do(self, *jobs: Any) -> list[Answer]:
        """Post jobs and return as many answers."""
        for job in jobs:
            self.store.submit(job)
        answers: list[Answer] = []

        def answered() -> bool:
            answers.extend(self.store.results())
            return len(answers) >= len(jobs)

        wait_until(answered, f"{len(jobs)} answers")
        return answers

    def names(self) -> list[str]:
        return sorted(str(path.relative_to(self.directory)) for path in self.directory.rglob("*") if path.is_file())


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "files")
    yield bench
    bench.store.close()


@proves(
    "wanted-content-is-young",
    "a content that is wanted again counts as young, because the row that names it comes later",
)
def test_a_content_is_kept_under_its_digest_and_only_once(bench: Bench) -> None:
    half = len(DATA) // 2
    open_ = Open(1, DIGEST, len(DATA))
    answers = bench.do(open_, Write(1, memoryview(DATA)[:half]), Write(1, DATA[half:]), Finish(1))
    assert answers == [
        OpenPhase(1, 0),
        PartWritten(1, half),
        PartWritten(1, len(DATA)),
        ContentStored(1, DIGEST, len(DATA)),
    ]
    assert bench.names() == [f"{NAME[:2]}/{NAME}"]
    assert (bench.directory / NAME[:2] / NAME).read_bytes() == DATA
    assert (bench.directory / NAME[:2] / NAME).stat().st_mode & 0o777 == 0o600
    os.utime(bench.directory / NAME[:2] / NAME, (0, 0))
    assert bench.do(Open(2, DIGEST, len(DATA))) == [ContentStored(2, DIGEST, len(DATA))]
    assert (bench.directory / NAME[:2] / NAME).stat().st_mtime > 0, "an old one is wanted again: it must not be removed"
    assert bench.do(Open(3, DIGEST, 5)) == [ContentMismatch(3)]  # the sender's is no copy of it
    assert bench.names() == [f"{NAME[:2]}/{NAME}"]


@proves(
    "file-digest-checked", "a file gets its name only if its digest is right", new="if part.offset != part.n_bytes:"
)
def test_bytes_of_another_content_are_dropped(bench: Bench) -> None:
    answers = bench.do(Open(1, DIGEST, 5), Write(1, b"wrong"), Finish(1))
    assert answers[-1] == ContentMismatch(1)
    assert bench.names() == []


def test_a_part_is_gone_on_with_by_another_store_and_its_torn_end_is_noticed(bench: Bench) -> None:
    bench.do(Open(1, DIGEST, len(DATA)), Write(1, DATA[:1_000]), Close(1))
    bench.store.close()
    bench.store = FileStore(bench.directory, 1 << 40)
    assert bench.do(Open(1, DIGEST, len(DATA))) == [OpenPhase(1, 1_000)]
    assert bench.do(Write(1, DATA[1_000:]), Finish(1))[-1] == ContentStored(1, DIGEST, len(DATA))

    other = hashlib.sha256(b"abcdef").digest()
    bench.do(Open(2, other, 6), Write(2, b"abc"), Close(2))
    (bench.directory / f"{other.hex()}.part").write_bytes(b"ab\0")  # as a power failure leaves it
    assert bench.do(Open(3, other, 6), Write(3, b"def"), Finish(3))[-1] == ContentMismatch(3)
    assert bench.do(Open(4, other, 6)) == [OpenPhase(4, 0)]


def test_what_finds_no_room_is_denied_with_what_sets_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "files", 1_000)
    bench.do(Open(1, ONE, 700), Write(1, bytes(700)), Close(1))
    (denied,) = bench.do(Open(2, TWO, 301))
    assert isinstance(denied, WriteDenied)
    assert denied.reason.endswith("700 bytes, the limit is 1000, set by CHIPLOG_FILES_BYTES_MAX")
    assert bench.do(Open(3, TWO, 300)) == [OpenPhase(3, 0)]
    assert bench.do(Open(4, ONE, 700)) == [OpenPhase(4, 700)]
    assert isinstance(bench.do(Open(5, DIGEST, 1))[0], WriteDenied), "an incoming file counts with its full size"
    bench.store.close()
    again = Bench(tmp_path / "files", 1_000)  # existing files are counted again
    assert isinstance(again.do(Open(1, TWO, 301))[0], WriteDenied)
    (denied,) = Bench(tmp_path / "other").do(Open(1, ONE, 1 << 39))
    assert isinstance(denied, WriteDenied)
    assert "are kept for events; make room" in denied.reason
    again.store.close()


def test_a_disk_that_refuses_costs_the_file_and_not_the_store(bench: Bench) -> None:
    bench.directory.mkdir(mode=0o700)
    target = bench.directory.with_name("target")
    target.touch()  # now: a part that is a day old is removed
    (bench.directory / f"{ONE.hex()}.part").symlink_to(target)  # a link is not opened
    first, second = bench.do(Open(1, ONE, 1 << 20), Open(2, DIGEST, len(DATA)))
    assert isinstance(first, WriteDenied)
    assert first.reason.startswith("it cannot be written: ")
    assert second == OpenPhase(2, 0)
    assert bench.do(Write(2, DATA), Finish(2))[-1] == ContentStored(2, DIGEST, len(DATA))


def test_half_arrived_files_are_bounded_and_idle_ones_go(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_store, "FILE_PARTS_MAX", 3)
    digests = [bytes([number]) * 32 for number in range(6)]
    for number, digest in enumerate(digests[:5]):
        bench.do(Open(number, digest, 10), Write(number, b"abc"), Close(number))
        os.utime(bench.directory / f"{digest.hex()}.part", (1_000 + number, 1_000 + number))
        assert len(bench.names()) == min(3, number + 1)
    assert bench.names() == [f"{digest.hex()}.part" for digest in digests[2:5]]
    bench.store.close()
    recent = bench.directory / f"{digests[4].hex()}.part"
    os.utime(recent, (time.time(), time.time()))
    bench.store = FileStore(bench.directory, 1 << 40)
    assert bench.do(Open(9, digests[5], 10)) == [OpenPhase(9, 0)]
    assert bench.names() == [f"{digest.hex()}.part" for digest in digests[4:]]


def test_closing_a_token_that_is_not_open_is_answered(bench: Bench) -> None:
    assert bench.do(Close(7)) == [PartClosed(7)]
    assert bench.do(Open(1, ONE, 0), Finish(1)) == [OpenPhase(1, 0), ContentMismatch(1)]


# -- the receiver --


class Agent(DealerByHand):
    """An agent's end, written by hand."""

    def __init__(self, receiver: ReceiverDaemon, address: str) -> None:
        super().__init__(address)
        self.receiver = receiver

    def send(self, frames: list[Any]) -> None:
        self.socket.send_multipart(frames)

    def receive(self) -> FileMessage:
        def came() -> bool:
            self.receiver.turn()
            return bool(self.socket.poll(1))

        wait_until(came, "an answer")
        return file_messages.parse(self.socket.recv_multipart())

    def offer(self, digest: bytes, n_bytes: int, session: bytes = b"session1") -> FileMessage:
        self.send(file_messages.offer(session, b"s" * 16, digest, n_bytes, {"node": "a"}))
        return self.receive()


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[ReceiverDaemon]:
    place = paths_for_root(tmp_path / "chiplog")
    receiver = ReceiverDaemon(ReceiverSettings(place, [place.collector_address]), with_index=False)
    yield receiver
    receiver.close()


@pytest.fixture
def agent(receiver: ReceiverDaemon) -> Iterator[Agent]:
    agent = Agent(receiver, receiver.settings.places.collector_address)
    yield agent
    agent.close()


def logged(receiver: ReceiverDaemon) -> list[list[Any]]:
    """Return the content of the records of stored files on disk."""
    paths = [path for _, path in list_segments(receiver.settings.places.collector / "log")]
    items = [item for path in paths for item in read_segment(path)]
    return [unpack(item.payload) for item in items if isinstance(item, Record) and item.kind == Kind.STORED]


@proves(
    "stored-after-log",
    "an agent gets STORED once the log has the record of the file",
    new="replies += self._act(self._protocol.stored(token))",
)
def test_a_file_is_stored_before_its_agent_is_told_and_the_log_says_so_first(
    receiver: ReceiverDaemon, agent: Agent
) -> None:
    want = agent.offer(DIGEST, len(DATA))
    assert (want.kind, want.offset) == (FileMessageKind.WANT, 0)
    for offset in range(0, len(DATA), 1 << 18):
        agent.send(file_messages.chunk(b"session1", offset, DATA[offset : offset + (1 << 18)]))
    while (message := agent.receive()).kind == FileMessageKind.WANT:
        pass
    assert message.kind == FileMessageKind.STORED
    assert logged(receiver) == [[b"s" * 16, DIGEST, len(DATA)]]
    assert (receiver.settings.places.files / NAME[:2] / NAME).read_bytes() == DATA
    # The first STORED may have been lost.
    assert agent.offer(DIGEST, len(DATA), b"session2").kind == FileMessageKind.STORED
    assert len(logged(receiver)) == 2
    assert receiver._commits.next_numbers == {}, "it uses no numbers of the sender's log"


def test_chunks_without_an_offer_and_messages_that_are_none_store_nothing(
    receiver: ReceiverDaemon, agent: Agent
) -> None:
    agent.send(file_messages.chunk(b"session1", 0, b"bytes"))
    reply = agent.receive()
    assert (reply.kind, reply.reason) == (messages.MessageKind.RESET, "session is unknown here")
    for digest in (b"../../../../etc/passwd".ljust(32), b"x" * 31, "text"):
        agent.send([pack([9, b"session3", [1, 1], b"s" * 16, digest, 5, {}])])
    assert agent.receive().kind == FileMessageKind.WANT  # any 32 bytes are a digest
    agent.send(file_messages.chunk(b"session3", 0, b"hello"))
    assert agent.receive().kind in (FileMessageKind.WANT, FileMessageKind.MISMATCH)
    wait_until(lambda: receiver.turn() or not list(receiver.settings.places.files.iterdir()), "a part that goes")
    assert logged(receiver) == []
