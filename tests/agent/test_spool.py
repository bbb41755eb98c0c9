"""The spool: real files; what the collector does not have stays, in order, through restarts, damage and full disks."""

from pathlib import Path

import pytest

from chiplog_agent import spool as spool_module
from chiplog_agent.spool import DAMAGED, TRIMMED, Spool
from chiplog_schemas import segments
from chiplog_schemas.limits import MIB
from chiplog_schemas.record import Record, scan
from chiplog_schemas.segments import END_NAME, list_segments
from chiplog_schemas.synced import Synced

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
        found = [record for record in scan(piece.payload) if isinstance(record, Record)]
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
    for _ in range(2):  # what tells of it may be lost with a session: the next one tells again
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
    Synced(tmp_path / "spool" / END_NAME, writable=True).set(3)  # the last write was never synced
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
    assert again.is_drained, "nobody waits for what is declared"
    fill(again, 4, 5)
    assert drain(again) == [4, 5]


def test_a_disk_that_refuses_keeps_everything_for_the_next_sync(opened, monkeypatch) -> None:
    spool = opened()
    fill(spool, 0, 1)

    def refuse(descriptor: int, buffers) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(segments.os, "writev", refuse)
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
