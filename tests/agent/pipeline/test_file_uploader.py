"""The lane of saved files: a real socket and a real outbox; the collector's end is written by hand."""

import errno
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from chiplog_agent.pipeline import file_uploader
from chiplog_agent.pipeline.file_uploader import FileUploader
from chiplog_schemas.limits import PEER_SILENT_S
from chiplog_schemas.protocol import file_messages, messages
from chiplog_schemas.protocol.file_messages import FileMessage, FileMessageKind
from tests.support.waiting import wait_until

DATA = b"weights" * 1_000
DIGEST = hashlib.sha256(DATA).digest()


class Collector:
    """The other end: sends what the test requests."""

    def __init__(self, context: "zmq.Context[Any]", address: str) -> None:
        self.socket = context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(address)
        self.routing = b""

    def receive(self) -> FileMessage | None:
        if not self.socket.poll(5):
            return None
        self.routing, *frames = self.socket.recv_multipart()
        return file_messages.parse(frames)

    def say(self, frames: list[bytes]) -> None:
        self.socket.send_multipart([self.routing, *frames])


class Bench:
    """A lane, its outbox and a clock."""

    def __init__(self, directory: Path) -> None:
        self.context: zmq.Context[Any] = zmq.Context()
        self.outbox = directory / "outbox"
        self.outbox.mkdir()
        address = f"ipc://{directory}/c.sock"
        self.collector = Collector(self.context, address)
        self.said: list[tuple[str, dict[str, Any]]] = []
        self.lane = FileUploader(self.context, address, b"s" * 16, {"node": "a"}, self.outbox, self._emit)
        self.now = 1_000.0

    def _emit(self, kind: str, level: str, message: str, body: dict[str, Any]) -> None:
        assert "\n" not in message
        self.said.append((kind, body))

    def put(self, data: bytes = DATA, name: str = "") -> Path:
        path = self.outbox / (name or hashlib.sha256(data).hexdigest())
        path.write_bytes(data)
        return path

    def step(self, seconds: float = 0.01, *, is_open: bool = True) -> None:
        self.now += seconds
        self.lane.step(self.now, is_open=is_open)

    def until(self, kind: int) -> FileMessage:
        """Step until a message of this kind arrives."""
        found: list[FileMessage] = []

        def came() -> bool:
            self.step()
            message = self.collector.receive()
            if message is not None and message.kind == kind:
                found.append(message)
            return bool(found)

        wait_until(came, f"a message of kind {kind}")
        return found[0]

    def until_holds(self, holds: Callable[[], Any]) -> None:
        def stepped() -> Any:
            self.step()
            return holds()

        wait_until(stepped, "what the lane is to do")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.lane.close()
    bench.collector.socket.close(0)
    bench.context.term()


def test_a_file_is_offered_sent_from_where_the_collector_stands_and_removed_once_stored(bench: Bench) -> None:
    path = bench.put()
    offer = bench.until(FileMessageKind.OFFER)
    assert (offer.digest, offer.bytes, offer.sender, offer.info) == (DIGEST, len(DATA), b"s" * 16, {"node": "a"})
    bench.collector.say(file_messages.want(offer.session, 1_000, 2_000))
    chunk = bench.until(FileMessageKind.CHUNK)
    assert (chunk.offset, chunk.payload) == (1_000, DATA[1_000:3_000])
    bench.collector.say(file_messages.want(offer.session, 3_000, 1 << 20))
    assert bench.until(FileMessageKind.CHUNK).payload == DATA[3_000:]
    assert path.exists()
    assert not bench.lane.is_idle
    bench.collector.say(file_messages.stored(offer.session))
    bench.until_holds(lambda: not path.exists())
    bench.step()
    assert bench.lane.is_idle
    assert bench.said == []


def test_nothing_is_offered_while_the_events_have_no_collector(bench: Bench) -> None:
    bench.put()
    for _ in range(5):
        bench.step(is_open=False)
    assert bench.lane.socket is None
    assert not bench.lane.is_idle
    bench.until(FileMessageKind.OFFER)


def test_a_file_that_is_refused_stays_is_told_once_and_offered_again_while_others_go_on(bench: Bench) -> None:
    first = bench.put()
    os.utime(first, (1, 1))  # the oldest is the first
    bench.put(b"small")
    for _ in range(2):
        offer = bench.until(FileMessageKind.OFFER)
        assert offer.digest == DIGEST
        bench.collector.say(file_messages.denied(offer.session, 30.0, "no room"))
        small = bench.until(FileMessageKind.OFFER)
        assert small.digest == hashlib.sha256(b"small").digest()
        bench.collector.say(file_messages.stored(small.session))
        bench.until_holds(lambda: len(list(bench.outbox.iterdir())) == 1)
        bench.step()
        assert bench.lane.is_idle, "the next agent may try again"
        bench.put(b"small")
        bench.step(31.0)
    assert [kind for kind, _ in bench.said] == ["file_waits"]
    assert bench.said[0][1] == {"sha256": DIGEST.hex(), "reason": "no room"}
    assert first.exists()


def test_a_collector_that_is_busy_is_asked_again_soon_and_nothing_is_told(bench: Bench) -> None:
    bench.put()
    offer = bench.until(FileMessageKind.OFFER)
    bench.collector.say(file_messages.denied(offer.session, 1.0, "busy"))
    bench.until_holds(lambda: bench.lane._offer_at > bench.now)
    assert not bench.lane.is_idle
    assert bench.until(FileMessageKind.OFFER).session != offer.session
    assert bench.said == []


@pytest.mark.parametrize("is_damaged", [True, False])
def test_a_copy_that_arrived_as_another_content_is_read_again_and_given_up_only_if_it_is_one(
    bench: Bench, is_damaged: bool
) -> None:
    path = bench.put(DATA[:-1] + b"?" if is_damaged else DATA, DIGEST.hex())
    offer = bench.until(FileMessageKind.OFFER)
    bench.collector.say(file_messages.mismatch(offer.session))
    bench.until_holds(lambda: bench.said)
    assert bench.said[0][0] == ("file_damaged" if is_damaged else "file_waits")
    assert path.exists() is not is_damaged
    bench.step()
    assert bench.lane.is_idle


def test_a_copy_that_was_cut_since_it_was_offered_is_given_up(bench: Bench) -> None:
    path = bench.put()
    offer = bench.until(FileMessageKind.OFFER)
    os.truncate(path, 10)
    bench.collector.say(file_messages.want(offer.session, 10, 1 << 20))
    bench.until_holds(lambda: bench.said)
    assert bench.said[0] == ("file_damaged", {"sha256": DIGEST.hex()})


def test_a_session_that_is_unknown_and_a_collector_that_says_nothing_are_asked_again(bench: Bench) -> None:
    path = bench.put()
    offer = bench.until(FileMessageKind.OFFER)
    bench.collector.say(messages.reset(offer.session, "unknown"))
    again = bench.until(FileMessageKind.OFFER)
    assert again.session != offer.session
    before = bench.lane.socket
    bench.step(PEER_SILENT_S + 1)
    assert bench.lane.socket is None
    assert before is not None
    assert not bench.lane.is_idle, "the file is still to be delivered"
    bench.step(1.0)
    bench.until(FileMessageKind.OFFER)
    assert path.exists()


def test_what_has_no_name_of_a_content_is_left_alone_and_what_the_dead_left_half_made_goes(bench: Bench) -> None:
    old, new, other = bench.put(b"1", ".new-1"), bench.put(b"2", ".new-2"), bench.put(b"3", "notes.txt")
    long_ago = time.time() - file_uploader._LEFTOVER_AGE_S - 60
    os.utime(old, (long_ago, long_ago))
    for _ in range(3):
        bench.step(1.0)
    assert not old.exists()
    assert new.exists()
    assert other.exists()
    assert bench.lane.is_idle
    assert bench.lane.socket is None


def test_an_outbox_that_is_not_there_is_nothing_to_do(bench: Bench) -> None:
    bench.outbox.rmdir()
    bench.step()
    assert bench.lane.is_idle


@pytest.mark.parametrize("kind", ["link", "directory", "pipe"])
def test_an_entry_that_cannot_be_read_is_told_once_and_those_behind_it_go_on(bench: Bench, kind: str) -> None:
    entry = bench.outbox / ("a" * 64)
    if kind == "link":
        entry.symlink_to("/nonexistent")
    elif kind == "directory":
        entry.mkdir()
    else:
        os.mkfifo(entry)
    os.utime(entry, (1, 1), follow_symlinks=False)  # the oldest is the first
    bench.put()
    for _ in range(2):
        offer = bench.until(FileMessageKind.OFFER)
        assert offer.digest == DIGEST
        bench.collector.say(file_messages.stored(offer.session))
        bench.until_holds(lambda: len(list(bench.outbox.iterdir())) == 1)
        bench.step(1.0)
        assert bench.lane.is_idle
        bench.put()
        bench.step(file_uploader.FILE_PAUSE_MAX_S + 1)
    assert [(kind, body["sha256"]) for kind, body in bench.said] == [("file_waits", "a" * 64)]


def test_a_copy_whose_bytes_the_disk_does_not_give_is_put_off(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = bench.put(b"bad")
    os.utime(bad, (1, 1))
    bench.put()
    read = os.pread

    def pread(descriptor: int, n_bytes: int, offset: int) -> bytes:  # simulates a bad sector
        if os.readlink(f"/proc/self/fd/{descriptor}") == str(bad):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(descriptor, n_bytes, offset)

    monkeypatch.setattr(os, "pread", pread)
    offer = bench.until(FileMessageKind.OFFER)
    bench.collector.say(file_messages.want(offer.session, 0, 1 << 20))
    assert bench.until(FileMessageKind.OFFER).digest == DIGEST
    assert bench.said[0][1]["reason"] == "its copy cannot be read: Input/output error"


def test_an_outbox_whose_files_wait_is_listed_again_only_when_something_came_or_one_may_go(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.put()
    long_ago = time.time() - 60
    os.utime(bench.outbox, (long_ago, long_ago))
    offer = bench.until(FileMessageKind.OFFER)
    bench.collector.say(file_messages.denied(offer.session, 30.0, "no room"))
    bench.until_holds(lambda: bench.said)
    bench.step(1.0)
    listings, scandir = [], os.scandir

    def lists(path: Any) -> Any:
        listings.append(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", lists)
    for _ in range(10):
        bench.step(1.0)
    assert listings == []
    bench.put(b"small")
    assert bench.until(FileMessageKind.OFFER).digest == hashlib.sha256(b"small").digest()
    bench.collector.say(file_messages.stored(bench.lane._protocol._session))
    bench.until_holds(lambda: len(list(bench.outbox.iterdir())) == 1)
    bench.step(30.0)
    assert bench.until(FileMessageKind.OFFER).digest == DIGEST


def test_a_large_outbox_is_listed_in_parts_and_the_oldest_is_still_the_first(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_uploader, "_ENTRIES_PER_STEP", 10)
    for number in range(25):
        os.utime(bench.put(b"%d" % number), (1_000 - number, 1_000 - number))
    for _ in range(2):
        bench.step()
        assert not bench.lane._protocol.digest
        assert not bench.lane.is_idle
    assert bench.until(FileMessageKind.OFFER).digest == hashlib.sha256(b"24").digest()
