"""A log whose synced end is gone gets an empty receipt, so that the index applies the rest and declares the loss."""

from pathlib import Path

from chiplog_collector.receiver.lost_tail import append_receipt_for_lost_tail, lost_end_note
from chiplog_schemas.model.receipt import decode_receipt
from chiplog_schemas.storage.log_reader import LogReader
from chiplog_schemas.storage.record import Kind, Record
from chiplog_schemas.storage.segment_format import list_segments
from chiplog_schemas.storage.segment_log import SegmentLog
from tests.support.index import Index

OWNER = b"L" * 16


def log_of(directory: Path, n_records: int) -> None:
    log = SegmentLog(directory, OWNER)
    for number in range(n_records):
        log.append(Kind.BLOCK, b"%d" % number)
        log.commit()
    log.close()


def records_of(directory: Path, limit: int) -> list[Record]:
    reader = LogReader(directory)
    found: list[Record] = []
    while items := reader.read(limit, 1 << 20):
        found += [item for item in items if isinstance(item, Record)]
    reader.close()
    return found


def test_a_log_that_lost_its_end_gets_one_empty_receipt_behind_the_lost_numbers(tmp_path: Path) -> None:
    log_of(tmp_path, 3)
    _, path = list_segments(tmp_path)[-1]
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size - 1)
    log = SegmentLog(tmp_path, OWNER)
    assert log.lost_tail == (2, 2)
    append_receipt_for_lost_tail(log)
    log.close()
    *_, last = records_of(tmp_path, log.next_number)
    assert (last.kind, last.number) == (Kind.RECEIPT, 3)
    receipt = decode_receipt(last.payload)
    assert receipt is not None and not receipt.runs
    again = SegmentLog(tmp_path, OWNER)
    append_receipt_for_lost_tail(again)
    assert again.next_number == 4, "the next start has nothing to say"
    again.close()


def test_a_complete_log_gets_nothing(tmp_path: Path) -> None:
    log_of(tmp_path, 3)
    log = SegmentLog(tmp_path, OWNER)
    append_receipt_for_lost_tail(log)
    assert log.next_number == 3
    log.close()


def test_a_lost_end_is_one_line_and_one_event(index: Index, caplog) -> None:
    assert lost_end_note(7, 7) is None
    for _ in range(2):  # after a crash it is noted again
        note = lost_end_note(5, 8)
        assert note is not None
        index.take((Kind.MANAGE, note))
    text = "the log lost its end: records 5..7 are gone; it continues at 8"
    assert index.sql("SELECT kind, level, message FROM events") == [("log_end_lost", "error", text)]
    assert caplog.messages == [text] * 2
