"""The spool: real files; what the collector does not have stays, in order, through restarts, damage and full disks."""

import os
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from chiplog_agent.pipeline import spool as spool_module
from chiplog_agent.pipeline.spool import DAMAGED, RAISED_NAME, TRIMMED, Spool
from chiplog_schemas.limits import MIB
from chiplog_schemas.storage import segment_log
from chiplog_schemas.storage.record import Record, scan_records
from chiplog_schemas.storage.segment_format import list_segments
from chiplog_schemas.storage.segment_log import END_NAME, OWED_NAME
from chiplog_schemas.storage.watermark import Watermark
from tests.support.rounds import Rounds
from tests.support.safeguard import proves

ID = b"spool-id" * 2


@pytest.fixture
def opened(tmp_path: Path, monkeypatch):
    """Return what opens the spool again: small segments, and little of it in memory."""
    original = spool_module.SegmentLog
    monkeypatch.setattr(
        spool_module, "SegmentLog", lambda directory, owner, **_: original(directory, owner, segment_bytes=1000)
    )
    monkeypatch.setattr(spool_module, "_RECENT_BYTES_MAX", 500)
    spools: list[Spool] = []

    def open_spool(new_id: bytes = ID, **options) -> Spool:
        if spools:
            spools.pop().close()
        spools.append(Spool(tmp_path / "spool", new_id, **options))
        return spools[0]

    yield open_spool
    for spool in spools:
        spool.close()


def block(number: int) -> bytes:
    return b"%06d" % number * 15


def fill(spool: Spool, first: int, last: int) -> None:
    for number in range(first, last + 1):
        spool.append(block(number))
        spool.sync()


def drain(spool: Spool, max_bytes: int = MIB, lost: list[tuple[int, int, str]] | None = None) -> list[int]:
    """Read what there is, and return the numbers; each payload must be its number's. Nothing but `lost` may be lost."""
    numbers = []
    while (piece := spool.read(max_bytes)) is not None:
        if piece.lost:
            assert lost is not None, piece
            lost.append((piece.first, piece.last, piece.lost))
            continue
        found = [record for record in scan_records(piece.payload) if isinstance(record, Record)]
        assert (found[0].number, found[-1].number) == (piece.first, piece.last)
        assert all(bytes(record.payload) == block(record.number) for record in found)
        numbers += [record.number for record in found]
    return numbers


def test_blocks_are_read_once_synced_in_order_from_memory_and_from_disk(opened) -> None:
    spool = opened()
    spool.append(block(0))
    assert spool.read(MIB) is None, "what is not on stable storage is not sent"
    spool.sync()
    assert drain(spool) == [0]
    fill(spool, 1, 40)
    assert drain(spool, 300) == list(range(1, 41))
    assert not spool.is_drained
    spool.acknowledged(41)
    assert spool.is_drained


@pytest.mark.promise(6)
def test_a_spool_that_is_opened_again_reads_on_from_what_was_acknowledged(opened) -> None:
    spool = opened()
    fill(spool, 0, 40)
    drain(spool)
    spool.acknowledged(20)
    again = opened(b"another-new-id..")
    assert again.id == ID
    assert again.first_number <= 20
    again.seek(20)
    assert drain(again) == list(range(20, 41))


def test_the_collector_may_ask_for_any_number_that_is_still_there(opened) -> None:
    spool = opened()
    fill(spool, 0, 40)
    for number in (0, 17, 40, 41):
        spool.seek(number)
        assert drain(spool) == list(range(number, 41))


def test_what_was_trimmed_and_is_asked_for_is_a_gap(opened) -> None:
    spool = opened()
    fill(spool, 0, 40)
    spool.acknowledged(30)
    spool.seek(5)
    lost: list[tuple[int, int, str]] = []
    assert drain(spool, lost=lost)[0] == 30
    assert lost == [(5, 29, TRIMMED)]


def test_acknowledged_segments_are_deleted(opened, tmp_path) -> None:
    spool = opened()
    fill(spool, 0, 40)
    before = spool.size_bytes
    assert len(list_segments(tmp_path / "spool")) > 3
    drain(spool)
    spool.acknowledged(41)
    assert len(list_segments(tmp_path / "spool")) <= 1
    assert spool.size_bytes < before / 3
    spool.acknowledged(10_000)
    fill(spool, 41, 42)
    assert drain(spool) == [41, 42]


def test_a_full_spool_says_so_until_it_is_trimmed(opened) -> None:
    spool = opened(bytes_max=3000)
    fill(spool, 0, 40)
    assert spool.is_full
    drain(spool)
    spool.acknowledged(41)
    assert not spool.is_full


def test_a_damaged_record_costs_itself_and_is_a_gap(opened, tmp_path) -> None:
    spool = opened()
    fill(spool, 0, 40)
    _, path = list_segments(tmp_path / "spool")[1]
    data = bytearray(path.read_bytes())
    at = data.index(block(12)[:6] * 3)
    data[at] ^= 1
    path.write_bytes(data)
    again = opened()
    for _ in range(2):  # a session may lose the declaration; the next session repeats it
        again.seek(0)
        lost: list[tuple[int, int, str]] = []
        assert drain(again, lost=lost) == [*range(12), *range(13, 41)]
        assert lost == [(12, 12, DAMAGED)]


def test_a_segment_that_was_deleted_by_hand_is_a_gap(opened, tmp_path) -> None:
    spool = opened()
    fill(spool, 0, 40)
    found = list_segments(tmp_path / "spool")
    (first, path), (following, _) = found[1], found[2]
    spool.close()
    path.unlink()
    again = opened()
    again.seek(0)
    lost: list[tuple[int, int, str]] = []
    assert drain(again, lost=lost) == [*range(first), *range(following, 41)]
    assert lost == [(first, following - 1, DAMAGED)]


def test_a_torn_tail_was_never_acknowledged_and_its_number_is_given_again(opened, tmp_path) -> None:
    spool = opened()
    fill(spool, 0, 3)
    spool.close()
    _, path = list_segments(tmp_path / "spool")[-1]
    path.write_bytes(path.read_bytes()[:-7])
    Watermark(tmp_path / "spool" / END_NAME, writable=True).set(3)  # the last write was never synced
    again = opened()
    again.seek(0)
    assert drain(again) == [0, 1, 2]
    fill(again, 3, 4)
    assert drain(again) == [3, 4]


@pytest.mark.parametrize("left_bytes", [-7, 48])
def test_a_synced_end_that_is_gone_is_a_gap_and_its_numbers_are_not_given_again(opened, tmp_path, left_bytes) -> None:
    spool = opened()
    fill(spool, 0, 3)
    spool.close()
    _, path = list_segments(tmp_path / "spool")[-1]
    path.write_bytes(path.read_bytes()[:left_bytes])
    again = opened()
    again.seek(0)
    lost: list[tuple[int, int, str]] = []
    found = drain(again, lost=lost)
    [(first, last, reason)] = lost
    assert (first, last) == (len(found), 3)
    assert reason in (DAMAGED, TRIMMED)
    assert found == list(range(len(found)))
    again.acknowledged(4)
    assert again.is_drained, "declared numbers are not waited for"
    fill(again, 4, 5)
    assert drain(again) == [4, 5]


@contextmanager
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the log's writes fail in this block."""

    def refuse(descriptor: int, buffers) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(segment_log.os, "writev", refuse)
        yield


def test_a_disk_that_refuses_keeps_everything_for_the_next_sync(opened, monkeypatch) -> None:
    spool = opened()
    fill(spool, 0, 1)
    with full_disk(monkeypatch):
        spool.append(block(2))
        spool.append(block(3))
        for _ in range(2):
            with pytest.raises(OSError, match="No space"):
                spool.sync()
        assert spool.waiting_bytes > 0
        assert drain(spool) == [0, 1]
    spool.append(block(4))
    spool.sync()
    assert spool.waiting_bytes == 0
    assert drain(spool) == [2, 3, 4]
    again = opened()
    again.seek(0)
    assert drain(again) == [0, 1, 2, 3, 4]


def test_an_empty_directory_begins_under_a_new_name(opened, tmp_path) -> None:
    first = opened()
    fill(first, 0, 3)
    first.close()
    for path in (tmp_path / "spool").iterdir():
        path.unlink()
    assert opened(b"another-new-id..").id == b"another-new-id.."


class Collector:
    """A collector's handling of a spool's numbers: it accepts a slice that ends after its last number."""

    def __init__(self) -> None:
        self.next: dict[bytes, int] = {}
        self.blocks: set[bytes] = set()
        self.n_lost = 0

    def welcome(self, spool: Spool) -> None:
        had = self.next.setdefault(spool.id, spool.first_number)
        assert spool.first_number <= had, "it would declare losses that did not happen"
        spool.seek(had)

    def take(self, spool: Spool, max_bytes: int = 300) -> bool:
        piece = spool.read(max_bytes)
        if piece is None or piece.last < self.next[spool.id]:
            return piece is not None
        self.next[spool.id] = piece.last + 1
        found = [record for record in scan_records(piece.payload) if isinstance(record, Record)]
        assert piece.lost or (found[0].number, found[-1].number) == (piece.first, piece.last)
        self.blocks |= {bytes(record.payload) for record in found}
        self.n_lost += bool(piece.lost)
        return True

    def take_all(self, spool: Spool) -> None:
        self.welcome(spool)
        while self.take(spool):
            pass
        spool.acknowledged(self.next[spool.id])


def set_back(spool: Spool, to: Path) -> None:
    spool.close()
    shutil.rmtree(spool._directory)
    shutil.copytree(to, spool._directory)


def set_back_to_five(opened, tmp_path) -> tuple[Spool, Collector]:
    """Return a spool of five blocks, and a collector that has eight of it."""
    spool, collector = opened(), Collector()
    fill(spool, 0, 4)
    shutil.copytree(tmp_path / "spool", tmp_path / "copy")
    fill(spool, 5, 7)
    collector.take_all(spool)
    set_back(spool, tmp_path / "copy")
    return opened(), collector


@proves(
    "raised-numbers-survive-restart",
    "a spool remembers through a restart by how much its numbers are raised",
    new="self._offset_is_known = file.is_valid",
)
def test_a_spool_that_was_set_back_sends_what_waits_under_higher_numbers(opened, tmp_path) -> None:
    spool, collector = set_back_to_five(opened, tmp_path)
    for block in (b"new 5", b"new 6"):
        spool.append(block)
        spool.sync()
    collector.take_all(spool)
    assert collector.blocks >= {b"new 5", b"new 6"}
    assert spool.is_drained
    again = opened(b"another-new-id..")
    later = {b"later %d" % number for number in range(20)}  # more than the collector has seen in all
    for block in sorted(later):
        again.append(block)
        again.sync()
    collector.take_all(again)
    assert collector.blocks >= later
    assert again.is_drained
    assert collector.n_lost == 0


@proves(
    "rewound-spool-raises-numbers",
    "a spool that was set back sends under numbers that the collector has not seen",
    part="or not self._offset_is_known",
    new="and not self.waiting_bytes",
)
def test_a_block_that_waits_for_a_full_disk_is_sent_by_a_spool_that_was_set_back(opened, tmp_path, monkeypatch) -> None:
    spool, collector = set_back_to_five(opened, tmp_path)
    with full_disk(monkeypatch):
        spool.append(b"waits")
        with pytest.raises(OSError, match="No space"):
            spool.sync()
        collector.welcome(spool)
        while collector.take(spool):
            pass
    spool.sync()
    for number in range(4):
        spool.append(b"later %d" % number)
    spool.sync()
    while collector.take(spool):
        pass
    spool.acknowledged(collector.next[ID])
    assert collector.blocks >= {b"waits", *(b"later %d" % number for number in range(4))}
    assert spool.is_drained
    assert collector.n_lost == 0


def test_a_disk_that_refuses_to_raise_the_numbers_changes_nothing(opened, tmp_path, monkeypatch) -> None:
    spool, collector = set_back_to_five(opened, tmp_path)
    spool.append(b"new 5")
    spool.sync()
    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", lambda descriptor: (_ for _ in ()).throw(OSError(5, "Input/output error")))
        for _ in range(2):
            with pytest.raises(OSError, match="Input/output"):
                spool.seek(collector.next[ID])
    collector.take_all(spool)
    assert b"new 5" in collector.blocks


@proves(
    "unreadable-offset-resends-all",
    "a spool that cannot read the offset of its numbers sends everything again",
    new="self._raised = found",
)
@pytest.mark.parametrize("what", ["damaged", "not to be opened"])
def test_a_spool_that_forgot_by_how_much_its_numbers_are_raised_sends_all_of_it_again(
    opened, tmp_path, monkeypatch, what
) -> None:
    spool, collector = set_back_to_five(opened, tmp_path)
    collector.take_all(spool)
    for number in range(20):  # more than the collector has seen in all: nothing seems to be wrong
        spool.append(b"new %d" % number)
    spool.sync()
    path = tmp_path / "spool" / RAISED_NAME
    with monkeypatch.context() as patched:
        if what == "damaged":
            data = bytearray(path.read_bytes())
            data[0] ^= 1
            path.write_bytes(data)
        else:
            patched.setattr(spool_module, "open_watermark", lambda path: None)
        again = opened(b"another-new-id..")
        assert again._raised == 0
    collector.take_all(again)
    assert collector.blocks >= {b"new %d" % number for number in range(20)}
    assert again.is_drained
    assert collector.n_lost == 0, "and declares no loss"


def test_a_collector_that_asks_for_a_number_that_cannot_be_is_not_followed(opened) -> None:
    spool = opened()
    fill(spool, 0, 4)
    with pytest.raises(OSError, match="asks for number"):
        spool.seek((1 << 63) - 1)
    spool.seek(0)
    assert drain(spool) == [0, 1, 2, 3, 4]


class Killed(BaseException):
    """SIGKILL at a sync."""


@pytest.mark.soak
def test_whatever_fails_while_a_spool_that_was_set_back_is_sent_nothing_of_it_is_lost(
    opened, tmp_path, monkeypatch, rounds: Rounds
) -> None:
    """Invariant: the collector gets every block that the spool accepted and still had when it was last set back."""
    real = os.fdatasync
    fate = ""

    def sync(descriptor: int) -> None:
        nonlocal fate
        what, fate = fate, ""
        if what in ("killed before", "refused"):
            raise Killed if what == "killed before" else OSError(28, "No space left on device")
        real(descriptor)
        if what == "killed behind":
            raise Killed

    def reopened() -> Spool:
        while True:
            try:
                return opened(b"id %013d" % chooser.randrange(10**9))
            except (Killed, OSError):
                pass  # the caller that starts agents tries again

    monkeypatch.setattr(os, "fdatasync", sync)
    for seed in rounds(10):
        chooser, collector, n_blocks = random.Random(seed), Collector(), 0
        spool, copy = reopened(), tmp_path / f"copy {seed}"
        wanted: set[bytes] = set()
        in_copy: set[bytes] | None = None
        unsynced: set[bytes] = set()
        may_append = 1 << 30  # a spool that gave out as many numbers again before it connects cannot know
        for _ in range(60):
            action = chooser.choice(["append"] * 4 + ["send"] * 4 + ["fail"] * 2 + ["restart", "copy", "set back"])
            try:
                if action == "append" and may_append:
                    block, n_blocks, may_append = b"%d of %d" % (n_blocks, seed), n_blocks + 1, may_append - 1
                    spool.append(block)
                    unsynced.add(block)
                    spool.sync()
                    wanted |= unsynced
                    unsynced.clear()
                elif action == "send":
                    collector.welcome(spool)
                    may_append = 1 << 30
                    for _ in range(chooser.randrange(4)):
                        collector.take(spool)
                    if chooser.random() < 0.5:
                        spool.acknowledged(collector.next[spool.id])
                elif action == "fail":
                    fate = chooser.choice(["killed before", "killed behind", "refused"])
                elif action == "restart":
                    unsynced.clear()
                    spool = reopened()
                elif action == "copy" and not unsynced:
                    shutil.rmtree(copy, ignore_errors=True)
                    shutil.copytree(tmp_path / "spool", copy)
                    in_copy = set(wanted)
                elif action == "set back" and in_copy is not None:
                    set_back(spool, copy)
                    unsynced.clear()
                    wanted = set(in_copy)
                    spool = reopened()
                    may_append = max(0, collector.next.get(spool.id, 0) - spool._log.next_number - spool._raised - 1)
                    rounds.count("set back")
            except Killed:
                unsynced.clear()  # perhaps there, perhaps not
                spool = reopened()
            except OSError:
                rounds.count("refused")
        fate = ""
        spool.sync()
        wanted |= unsynced
        collector.take_all(spool)
        assert not wanted - collector.blocks, (seed, sorted(wanted - collector.blocks))
        assert spool.is_drained, seed
        spool.close()
        shutil.rmtree(tmp_path / "spool")


@proves("delivered-spool-noted", "a spool is known to be delivered")
def test_a_spool_notes_whether_the_collector_lacks_events_of_ranks(opened, tmp_path: Path) -> None:
    def owed() -> int:
        return Watermark(tmp_path / "spool" / OWED_NAME, writable=False).get()

    spool = opened()
    spool.append(b"statistics")
    spool.sync()
    assert owed() == 0
    spool.append(b"events of a rank")
    spool.owe()
    assert owed() == 0, "not synced yet"
    spool.append(b"statistics")
    spool.sync()
    assert owed() == 2
    spool = opened()
    spool.acknowledged(1)
    assert owed() == 2
    spool.acknowledged(2)
    assert owed() == 0
    spool.append(b"statistics")
    spool.sync()
    assert owed() == 0


def test_a_spool_that_is_opened_again_has_the_ages_of_its_segments(opened, monkeypatch) -> None:
    made_us = iter(range(5_000_000, 100_000_000, 1_000_000))
    monkeypatch.setattr(segment_log, "now_us", lambda: next(made_us))
    spool = opened()
    assert spool.ages_s(0) == []
    fill(spool, 0, 19)
    spool = opened()
    bases = [base for base, _ in list_segments(spool._directory)]
    ends = [*bases[1:], 20]
    assert len(ends) > 1
    assert spool.ages_s(60_000_000) == [(end, 55.0 - number) for number, end in enumerate(ends)]
    assert spool.ages_s(0) == [(end, 0.0) for end in ends], "a clock that was set back"
    list_segments(spool._directory)[0][1].write_bytes(b"x" * 48)
    assert spool.ages_s(60_000_000)[0] == (ends[1], 54.0)
