"""The journal: real mapped files, real signals, real full disks, killed processes."""

import os
import resource
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chiplog.journal import appender as appender_module
from chiplog.journal import journal as journal_module
from chiplog.journal import segment as mapped_module
from chiplog.journal.journal import Journal
from chiplog.native.loader import hot_path
from chiplog_schemas.codec import pack, unpack
from chiplog_schemas.limits import EVENT_BYTES_MAX, JOURNAL_RESERVE_BYTES, KIB, MIB
from chiplog_schemas.model.events import EventKind, decode, encode
from chiplog_schemas.storage.journal_dir import HEAD_NAME, JournalReader, decode_head, list_journals
from chiplog_schemas.storage.record import Record, scan_records
from chiplog_schemas.transport.dealer import LogSlice
from tests.support.marks import only_if
from tests.support.safeguard import proves
from tests.support.signals import handling, raising
from tests.support.waiting import WAIT_S

PRODUCER = bytes(range(16))
IDENTITY = pack({"role": "rank", "label": "rank0", "run_id": "r"})


@pytest.fixture
def make(tmp_path: Path) -> Iterator:
    made: list[Journal] = []

    def build(name: str = PRODUCER.hex(), **options) -> Journal:
        directory = None if name is None else tmp_path / "journals" / name
        journal = Journal(directory, PRODUCER, IDENTITY, **options)
        journal.publish()
        made.append(journal)
        return journal

    yield build
    for journal in made:
        journal.close(remove=False)


def payload(number: int, size: int = 0) -> bytes:
    return encode(EventKind.TEXT, number, number, "key", "x" * size)


def numbers_of(pieces: list[LogSlice]) -> list[int]:
    return [record.number for piece in pieces for record in scan_records(piece.payload) if isinstance(record, Record)]


def read_all(journal: Journal, max_bytes: int = MIB) -> list[LogSlice]:
    pieces = []
    while (piece := journal.read(max_bytes)) is not None:
        pieces.append(piece)
    return pieces


def on_disk(journal: Journal) -> list[Record]:
    items = list(JournalReader(journal.directory).records())
    assert all(isinstance(item, Record) for item in items)
    return items


def test_what_was_appended_is_read_in_order_and_once(make) -> None:
    journal = make()
    for number in range(1000):
        journal.append(payload(number))
    assert numbers_of(read_all(journal)) == list(range(1000))
    assert journal.read(MIB) is None
    journal.append(payload(1000))
    assert numbers_of(read_all(journal)) == [1000]
    assert [decode(record.payload)[1] for record in on_disk(journal)] == list(range(1001))


def test_a_slice_is_cut_at_a_record_and_holds_at_least_one(make) -> None:
    journal = make()
    for number in range(50):
        journal.append(payload(number, 1000))
    pieces = read_all(journal, 2500)
    assert all(len(piece.payload) <= 2500 for piece in pieces)
    assert [(piece.first, piece.last) for piece in pieces[:2]] == [(0, 1), (2, 3)]
    assert numbers_of(pieces) == list(range(50))
    journal.append(payload(50, 5000))
    assert numbers_of([journal.read(100)]) == [50], "a record larger than the window goes alone"


def test_records_roll_over_into_further_segments_and_acknowledged_ones_are_deleted(make) -> None:
    journal = make()
    for number in range(3000):
        journal.append(payload(number, 1000))
    n_segments = len(list(journal.directory.glob("*.seg")))
    assert n_segments > 3
    assert numbers_of(read_all(journal)) == list(range(3000))
    journal.acknowledged(2000)
    assert len(list(journal.directory.glob("*.seg"))) < n_segments
    assert journal.first_number == 2000
    assert decode_head((journal.directory / HEAD_NAME).read_bytes()).acked == 2000
    remaining = [record.number for record in JournalReader(journal.directory).records(2000)]
    assert remaining == list(range(2000, 3000))
    journal.acknowledged(1500)
    assert journal.acked == 2000, "an acknowledgement never goes back"


def test_seek_reads_again_from_any_number_that_is_still_there(make) -> None:
    journal = make()
    for number in range(2000):
        journal.append(payload(number, 500))
    read_all(journal)
    for number in (0, 1, 700, 1999):
        journal.seek(number)
        assert numbers_of(read_all(journal)) == list(range(number, 2000))
    journal.acknowledged(1000)
    journal.seek(3)
    assert numbers_of(read_all(journal))[0] == 1000
    journal.seek(2000)
    assert journal.read(MIB) is None


@pytest.mark.promise(4)
def test_a_full_journal_declares_exactly_what_it_dropped_once_there_is_room(make) -> None:
    """Produced = kept + declared lost, for any quota."""
    journal = make(bytes_max=2 * MIB)
    for number in range(5000):
        journal.append(payload(number, 1000))
    assert journal.next_seq == 5000
    assert journal.dropped > 0
    head = decode_head((journal.directory / HEAD_NAME).read_bytes())
    assert head.produced == 5000, "the agent that adopts the journal learns the number of events"
    kept = numbers_of(read_all(journal))
    assert kept == list(range(len(kept))), "the oldest stay, the newest are dropped"
    journal.acknowledged(kept[-1] + 1)
    journal.append(payload(5000))
    after = [record for piece in read_all(journal) for record in scan_records(piece.payload)]
    lost, last = (decode(record.payload) for record in after)
    assert lost[0] == EventKind.LOST
    assert (lost[2], lost[3], lost[4]) == (b"", kept[-1] + 1, 4999)
    assert [record.number for record in after] == [5000, 5001], "the declaration has a seq of its own"
    assert last[1] == 5000
    assert len(kept) + journal.dropped == 5000


def test_urgent_events_find_room_in_a_full_journal_and_the_loss_before_them_is_declared(make) -> None:
    journal = make(bytes_max=1 * MIB)
    for number in range(2000):
        journal.append(payload(number, 1000))
    assert journal.dropped > 0
    journal.append(encode(EventKind.STATE, 1, {"state": "finished"}), urgent=True)
    kinds = [decode(record.payload)[0] for record in on_disk(journal)][-2:]
    assert kinds == [EventKind.LOST, EventKind.STATE]
    used = sum(path.stat().st_size for path in journal.directory.glob("*.seg"))
    assert used <= 1 * MIB, "the reserve is part of the quota"
    assert used > 1 * MIB - JOURNAL_RESERVE_BYTES - 64 * KIB


def test_an_event_of_the_largest_size_fits(make) -> None:
    journal = make()
    largest = pack([int(EventKind.TEXT), 1, 0, "k", "x" * (EVENT_BYTES_MAX - 32)])
    assert EVENT_BYTES_MAX - 32 < len(largest) <= EVENT_BYTES_MAX
    for _ in range(4):
        journal.append(largest)
    assert numbers_of(read_all(journal)) == [0, 1, 2, 3]


def test_the_finish_stays_noted_when_an_acknowledgement_comes_after_it(make) -> None:
    journal = make()
    journal.append(payload(0))
    journal.mark_finished()
    journal.acknowledged(1)
    journal.set_identity(pack({"label": "rank1"}))
    head = decode_head((journal.directory / HEAD_NAME).read_bytes())
    assert (head.finished, head.acked, head.produced, head.identity) == (True, 1, 1, {"label": "rank1"})


def test_a_journal_appears_under_its_name_only_when_it_is_whole(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journals" / PRODUCER.hex(), PRODUCER, IDENTITY)
    assert list_journals(tmp_path / "journals") == []
    journal.append(payload(0))
    journal.publish()
    assert list_journals(tmp_path / "journals") == [(PRODUCER, journal.directory)]
    for number in range(1, 600):
        journal.append(payload(number, 1000))
    assert len(on_disk(journal)) == 600, "segments after the renaming lie beside those before it"
    journal.close(remove=True)
    assert os.listdir(tmp_path / "journals") == []


def test_a_journal_without_a_directory_keeps_everything_in_bounded_memory(make) -> None:
    journal = make(None, bytes_max=2 * MIB)
    for number in range(5000):
        journal.append(payload(number, 1000))
    kept = numbers_of(read_all(journal))
    assert kept == list(range(len(kept)))
    assert journal.dropped == 5000 - len(kept) > 0


KILLED = """
import os, sys
import chiplog
run = chiplog.init(mode="offline", dir=sys.argv[1], label="rank0", capture_console=False)
oracle = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
step = 0
while True:
    run.log({"value": step * 0.5, "text": "t" * (step % 50)}, step=step)
    os.write(oracle, b"%d\\n" % step)
    step += 1
"""


@pytest.mark.promise(1)
def test_every_record_whose_log_returned_is_readable_after_sigkill(tmp_path: Path) -> None:
    """The oracle's file is written, with O_APPEND, after each log(): its content is in the journal."""
    oracle = tmp_path / "oracle"
    for attempt in range(3):
        root = tmp_path / f"chiplog{attempt}"
        oracle.unlink(missing_ok=True)
        process = subprocess.Popen([sys.executable, "-c", KILLED, str(root), str(oracle)])
        try:
            while not oracle.exists() or oracle.stat().st_size < 3000 * (attempt + 1):
                assert process.poll() is None, "the rank ended by itself"
        finally:
            process.kill()
            process.wait()
        logged = {int(line) for line in oracle.read_text().split("\n")[:-1]}
        [(_, directory)] = list_journals(root / "offline")
        steps = []
        for item in JournalReader(directory).records():
            if isinstance(item, Record):
                event = decode(item.payload)
                if event[0] == EventKind.METRICS:
                    steps.append(event[2])
                    assert struct.unpack("<d", event[4]) == (event[2] * 0.5,)
        assert len(steps) == len(set(steps))
        assert logged <= set(steps)
        assert len(set(steps) - logged) <= 1, "at most the one that was logged and not yet written down"


def test_appends_from_a_signal_handler_inside_of_an_append_lose_nothing_and_deadlock_nothing(make) -> None:
    journal = make(bytes_max=64 * MIB)
    from_handler = 0

    def handler(*_: object) -> None:
        nonlocal from_handler
        journal.append(payload(-1))
        from_handler += 1

    with handling(signal.SIGALRM, handler):
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        n_loop = 0
        while from_handler < 200:
            journal.append(payload(n_loop))
            n_loop += 1
            assert n_loop < 5_000_000, "the handler is never called"
    records = on_disk(journal)
    assert [record.number for record in records] == list(range(n_loop + from_handler))
    times = [decode(record.payload)[1] for record in records]
    assert times.count(-1) == from_handler
    assert [ts for ts in times if ts >= 0] == list(range(n_loop)), "the interrupted loop's own order is kept"


class Once:
    """Wraps a function that an append calls, and does something else first, once, as a signal handler may."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, what: Callable[[], object]) -> None:
        module = journal_module if hasattr(journal_module, name) else appender_module
        self._function, self._what = getattr(module, name), what
        self.begun = False
        monkeypatch.setattr(module, name, self)

    def __call__(self, *given: object, **named: object) -> object:
        if not self.begun:
            self.begun = True
            self._what()
        return self._function(*given, **named)


in_python = only_if(hot_path is None)  # nothing runs within an append in C; test_python_path.py runs these


@in_python
@proves(
    "overtaken-append-restarts",
    "an append that was overtaken since it read the tail begins again",
    condition=True,
    environment={"CHIPLOG_NATIVE": "0"},
)
@pytest.mark.parametrize("where", ["crc32", "pack_back", "pack_front", "slice"])
def test_an_append_within_an_append_is_in_the_file_at_once_and_comes_first(make, monkeypatch, where) -> None:
    journal = make()
    seen: list[int] = []

    def nested() -> None:
        journal.append(payload(1))
        seen.extend(decode(record.payload)[1] for record in on_disk(journal))

    if where == "slice":
        monkeypatch.setattr(appender_module, "slice", slice, raising=False)
    once = Once(monkeypatch, where, nested)
    journal.append(payload(2))
    assert once.begun
    assert seen == [1], "in the file when it returned"
    assert [decode(record.payload)[1] for record in on_disk(journal)] == [1, 2]


@proves(
    "overtaken-long-append-restarts",
    "an append on the long way that was overtaken begins again",
    condition=True,
    environment={"CHIPLOG_NATIVE": "0"},
)
@pytest.mark.parametrize("where", ["Segment", "encode_header", "replace", "frame"])
def test_an_append_within_the_making_of_a_segment_is_in_the_file_at_once_and_comes_first(
    make, monkeypatch, where
) -> None:
    journal = make()
    number = 0
    while journal._tail[0] + 1024 + 100 < journal._tail[2].limit:
        journal.append(payload(number, 1024))
        number += 1
    seen: list[int] = []

    def nested() -> None:
        journal.append(payload(-1, 1024))
        seen.extend(decode(record.payload)[1] for record in on_disk(journal))

    once = Once(monkeypatch, where, nested)
    for _ in range(3):
        journal.append(payload(number, 1024))
        number += 1
    assert once.begun
    assert seen[-1] == -1, "in the file when it returned"
    records = on_disk(journal)
    assert [record.number for record in records] == list(range(number + 1))
    times = [decode(record.payload)[1] for record in records]
    assert times.count(-1) == 1
    assert [ts for ts in times if ts >= 0] == list(range(number))


@proves("timeout-is-no-disk-error", "a time-out is no disk that refuses", value="OSError")
def test_what_a_handler_raises_while_a_segment_is_made_passes_and_leaves_the_journal_as_it_was(
    make, monkeypatch
) -> None:
    """TimeoutError is an OSError, and so are the errors of the disk."""
    journal = make()
    number = 0
    with handling(signal.SIGUSR1, raising(TimeoutError("of the training"))):
        while len(list(journal.directory.glob("*.seg"))) < 2:
            journal.append(payload(number, 1000))
            number += 1
        kept = journal.next_seq
        once = Once(monkeypatch, "Segment", lambda: signal.raise_signal(signal.SIGUSR1))
        with pytest.raises(TimeoutError):
            while number < 5000:
                journal.append(payload(number, 1000))
                number += 1
    assert once.begun
    assert journal.disk_error is None
    assert journal.next_seq > kept
    journal.append(payload(number, 1000))
    assert [decode(record.payload)[1] for record in on_disk(journal)] == list(range(number + 1))


@in_python
def test_an_event_that_a_handler_seals_before_is_refused(make, monkeypatch) -> None:
    journal = make()
    refused: list[int] = []
    once = Once(monkeypatch, "pack_front", lambda: journal.seal(payload(1), lambda: refused.append(1)))
    journal.append(payload(0))
    assert once.begun
    assert [decode(record.payload)[1] for record in on_disk(journal)] == [1]
    assert refused == [1]


def test_a_segment_that_another_thread_makes_is_waited_for_only_as_long_as_that_may_take(make, monkeypatch) -> None:
    journal = make()
    while journal._tail[0] + 2048 < journal._tail[2].segment.size:
        journal._making_by = (1, time.monotonic() + 1000)  # so that the last part is used
        journal.append(payload(0, 1000))
    begun = time.monotonic()
    journal._making_by = (1, begun + 0.2)  # a thread that is gone
    for _ in range(5):
        journal.append(payload(1, 1000))
    assert time.monotonic() - begun > 0.15
    assert numbers_of(read_all(journal)) == list(range(journal.next_seq))


@proves("writer-waits-for-segment", "a writer in need waits for a segment that the sender thread is making")
def test_a_writer_in_need_waits_for_the_segment_that_is_being_made_rather_than_drop(make, monkeypatch) -> None:
    monkeypatch.setattr(journal_module, "_MAKING_S", 60.0)  # however busy the machine is
    journal = make(bytes_max=2 * MIB)
    n_appended = 0
    while journal._tail[0] * 4 <= journal._tail[2].segment.size or journal._tail[2].segment.size < MIB // 2:
        journal.append(payload(n_appended, 1000))
        n_appended += 1
    writer = threading.Thread(target=lambda: [journal.append(payload(0, 1000)) for _ in range(500)])
    DuringAllocation(journal, lambda: (writer.start(), time.sleep(0.03)))
    journal.preallocate()
    writer.join(WAIT_S)
    assert journal.dropped == 0
    assert numbers_of(read_all(journal)) == list(range(n_appended + 500))


def test_segments_that_are_used_in_another_order_than_made_are_read_in_that_of_their_events(make, monkeypatch) -> None:
    """Two threads may each make one at the same moment. Here the second one is made within the making of the first."""
    journal = make()
    first, new_segment, numbers = journal._tail[2].segment, journal._new_segment, iter(range(1_000_000))

    def make_and_be_overtaken(size: int, urgent: bool = False) -> mapped_module.Segment | None:
        made = new_segment(size, urgent)
        monkeypatch.undo()
        while journal._tail[2].segment is first:
            journal.append(payload(next(numbers), 500))
        return made

    monkeypatch.setattr(journal, "_new_segment", make_and_be_overtaken)
    while len(journal._tail[2].full) < 2:
        journal.append(payload(next(numbers), 500))
    layout = journal._tail[2]
    names = [segment.path.name for segment in (*layout.full, layout.segment)]
    assert names != sorted(names)
    assert [record.number for record in on_disk(journal)] == list(range(journal.next_seq))
    assert numbers_of(read_all(journal)) == list(range(journal.next_seq))


def test_threads_append_side_by_side_while_another_one_prepares_reads_and_trims(make, monkeypatch) -> None:
    """Each thread's events keep their order, each seq is read once."""
    monkeypatch.setattr(journal_module, "_MAKING_S", WAIT_S)  # a busy machine makes a segment slowly
    journal = make()
    n_threads, n_each = 4, 2500
    seen: list[tuple[int, int, int]] = []
    errors: list[BaseException] = []
    done = threading.Event()

    def append(thread: int) -> None:
        try:
            for number in range(n_each):
                journal.append(encode(EventKind.TEXT, thread, number, "key", "x" * 500))
        except BaseException as error:
            errors.append(error)

    def send() -> None:
        try:
            while True:
                last = done.is_set()
                journal.declare_dropped()
                journal.preallocate()
                for piece in read_all(journal):
                    for record in scan_records(piece.payload):
                        event = decode(record.payload)
                        seen.append((record.number, event[1], event[2]))
                    journal.acknowledged(piece.last + 1)
                if last:
                    return
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=append, args=(thread,)) for thread in range(n_threads)]
    sender = threading.Thread(target=send)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in (*threads, sender):
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        done.set()
        sender.join(WAIT_S)
    finally:
        sys.setswitchinterval(interval)
    assert not errors
    assert [number for number, _, _ in seen] == list(range(n_threads * n_each))
    for thread in range(n_threads):
        assert [step for _, who, step in seen if who == thread] == list(range(n_each))


@pytest.fixture
def small_files() -> Iterator:
    """Return what makes every file beyond some bytes fail as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(size: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))

    yield limit
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_refuses_leaves_memory_bounded_and_says_how_much_there_was(make, small_files) -> None:
    journal = make()
    small_files(300 * KIB)
    for number in range(30_000):
        journal.append(payload(number, 1000))
    small_files(resource.RLIM_INFINITY)
    assert isinstance(journal.disk_error, OSError)
    in_memory = journal._tail[2].memory_bytes
    assert 14 * MIB < in_memory <= 16 * MIB
    kept = numbers_of(read_all(journal))
    assert kept == list(range(len(kept)))
    assert len(kept) + journal.dropped == 30_000
    assert decode_head((journal.directory / HEAD_NAME).read_bytes()).produced == 30_000


def test_a_journal_that_is_large_on_disk_still_has_its_memory_when_the_disk_refuses(make, small_files) -> None:
    journal = make()
    for number in range(20_000):
        journal.append(payload(number, 1000))
    small_files(100 * KIB)
    journal.preallocate()  # must not raise into the sender thread
    for number in range(20_000, 30_000):
        journal.append(payload(number, 1000))
    assert journal.dropped == 0
    small_files(resource.RLIM_INFINITY)
    assert numbers_of(read_all(journal)) == list(range(30_000))


def test_the_disk_is_used_again_when_it_takes_files_again(make, small_files) -> None:
    journal = make()
    small_files(100 * KIB)
    for number in range(1000):
        journal.append(payload(number, 1000))
    assert journal.disk_error is not None
    small_files(resource.RLIM_INFINITY)
    for number in range(1000, 5000):
        journal.append(payload(number, 1000))
    assert journal.disk_error is None
    assert journal.last_disk_error is not None, "what is still in memory is there because of it"
    assert numbers_of(read_all(journal)) == list(range(5000))
    on_file = [record.number for record in JournalReader(journal.directory).records()]
    assert on_file[-1] == 4999
    assert 0 < len(on_file) < 5000, "what was in memory is not on disk"


def test_a_directory_that_cannot_be_made_is_an_oserror(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    with pytest.raises(OSError, match="file"):
        Journal(tmp_path / "file" / PRODUCER.hex(), PRODUCER, IDENTITY)


def test_the_head_page_holds_the_whole_identity_however_long(make, tmp_path: Path) -> None:
    long = pack({"label": "rank0", "notes": "n" * 20_000})
    journal = Journal(tmp_path / "long" / PRODUCER.hex(), PRODUCER, long)
    journal.publish()
    head = JournalReader(journal.directory).head
    assert head is not None
    assert head.identity == unpack(long)
    journal.close(remove=True)


def mapped(journal: Journal) -> int:
    """How many of the journal's segments this process has mapped, each with a descriptor."""
    with open("/proc/self/maps") as maps:
        return sum(f"{journal.directory}/" in line and ".seg" in line for line in maps)


def test_full_segments_keep_no_mapping_and_no_descriptor_and_are_still_read(make) -> None:
    journal = make()
    before = len(os.listdir("/proc/self/fd"))
    first = journal.read(100)
    for number in range(20_000):
        journal.append(payload(number, 1000))
    assert mapped(journal) <= 3, "the first one, the current one and the next"
    assert len(os.listdir("/proc/self/fd")) - before <= 2
    assert first is None
    assert numbers_of(read_all(journal, 300 * KIB)) == list(range(20_000))
    journal.seek(7777)
    assert numbers_of(read_all(journal)) == list(range(7777, 20_000))


def test_a_full_segment_that_somebody_deleted_is_declared_lost(make) -> None:
    journal = make()
    for number in range(3000):
        journal.append(payload(number, 1000))
    second = sorted(journal.directory.glob("*.seg"))[1]
    second.unlink()
    for first in (0, 300):  # from the start, and from the middle of it
        journal.seek(first)
        pieces = read_all(journal)
        [gone] = [piece for piece in pieces if piece.lost]
        assert "removed" in gone.lost and len(gone.payload) == 0
        declared = set(range(gone.first, gone.last + 1))
        assert len(declared) > 100
        assert sorted({*numbers_of(pieces), *declared}) == list(range(first, 3000))
        assert not declared & set(numbers_of(pieces))


def test_a_sealed_journal_refuses_what_comes_later_and_says_so(make) -> None:
    journal = make()
    refused: list[int] = []
    journal.append(payload(0))
    journal.seal(payload(1), lambda: refused.append(1))
    for number in range(2, 5):
        journal.append(payload(number))
    assert [decode(record.payload)[1] for record in on_disk(journal)] == [0, 1]
    assert (journal.next_seq, len(refused)) == (2, 3)
    assert numbers_of(read_all(journal)) == [0, 1]


class DuringAllocation:
    """Does something else once while the next segment is made, as the training's thread may."""

    def __init__(self, journal: Journal, what: Callable[[], object]) -> None:
        self.begun = False
        self._make, self._what = journal._new_segment, what
        journal._new_segment = self

    def __call__(self, *given: object) -> object:
        if not self.begun:
            self.begun = True
            self._what()
        return self._make(*given)


@proves("new-segment-counts", "a segment that is being made counts towards the quota", condition=False)
def test_a_segment_that_is_being_made_counts_towards_the_quota(make) -> None:
    journal = make(bytes_max=MIB)
    for number in range(100):
        journal.append(payload(number, 1000))

    def fill() -> None:
        while not journal.dropped:
            journal.append(payload(0, 1000))

    DuringAllocation(journal, fill)
    journal.preallocate()
    assert journal.dropped
    assert sum(path.stat().st_size for path in journal.directory.glob("*.seg")) <= MIB


@proves("sealed-journal-stays-sealed", "a sealed journal takes no further segment", part="layout.refuse is not None or")
def test_a_segment_that_is_being_made_when_the_journal_is_sealed_does_not_stay(make) -> None:
    journal = make()
    for number in range(100):
        journal.append(payload(number, 1000))

    def end() -> None:
        journal.seal(payload(100), lambda: None)
        journal.close(remove=False)

    ending = DuringAllocation(journal, end)
    journal.preallocate()
    assert ending.begun
    assert mapped(journal) == 0
    assert len(list(journal.directory.glob("*.seg"))) == 1


def test_what_is_counted_while_the_identity_is_replaced_stays_counted(make, monkeypatch) -> None:
    journal = make()
    journal.append(payload(0))
    encode_head = mapped_module.encode_head

    def encode_and_finish(*given: object) -> bytes:
        content = encode_head(*given)
        journal.mark_finished()
        return content

    monkeypatch.setattr(mapped_module, "encode_head", encode_and_finish)
    journal._head.set_identity(b"other")
    head = decode_head((journal.directory / HEAD_NAME).read_bytes())
    assert (head.finished, head.produced) == (True, 1)


def test_threads_that_append_beside_the_close_are_refused_and_meet_no_mapping_that_is_gone(make) -> None:
    journal = make()
    refused: list[int] = []
    errors: list[BaseException] = []
    closed = threading.Event()

    def append() -> None:
        try:
            while not closed.is_set() or not refused:
                journal.append(payload(0))
                journal.set_identity(IDENTITY)
                journal.preallocate()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=append) for _ in range(3)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        while journal.next_seq < 500:
            pass
        journal.seal(payload(1), lambda: refused.append(1))
        journal.mark_finished()
        journal.close(remove=False)
        closed.set()
        for thread in threads:
            thread.join(WAIT_S)
    finally:
        sys.setswitchinterval(interval)
    assert not errors
    assert mapped(journal) == 0
    assert [record.number for record in on_disk(journal)] == list(range(journal.next_seq))
    head = decode_head((journal.directory / HEAD_NAME).read_bytes())
    assert (head.finished, head.produced) == (True, journal.next_seq)


def test_a_journal_is_crowded_before_it_is_full_and_no_longer_when_it_was_trimmed(make) -> None:
    journal = make(bytes_max=8 * MIB)
    while not journal.is_under_pressure:
        assert not journal.dropped
        journal.append(payload(0, 1000))
    for _ in range(500):
        journal.append(payload(0, 1000))
    assert not journal.dropped
    read_all(journal)
    journal.acknowledged(journal.next_seq)
    assert not journal.is_under_pressure


def test_what_was_dropped_is_not_sent_before_the_record_that_declares_it(make) -> None:
    """Otherwise an agent acknowledges it, and after a kill of the process the loss is unknown."""
    journal = make(bytes_max=1 * MIB)
    while not journal.dropped:
        journal.append(payload(0, 1000))
    first_dropped = journal.next_seq - 1
    pieces = read_all(journal)
    assert pieces[-1].last == first_dropped - 1
    journal.acknowledged(first_dropped)
    journal.append(payload(1))
    [piece] = read_all(journal)
    assert piece.first == first_dropped
    assert numbers_of([piece]) == [first_dropped + 1, first_dropped + 2]
