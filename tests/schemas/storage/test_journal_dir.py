"""A journal as its adopter sees it: head page and records in the order of their seqs, despite any damage."""

import os
import signal
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chiplog_schemas.codec import pack
from chiplog_schemas.storage.journal_dir import (
    FINISHED,
    HEAD_NAME,
    HEAD_PAGE_BYTES,
    IDENTITY_OFFSET,
    JournalHead,
    JournalReader,
    decode_head,
    encode_head,
    head_bytes,
    list_journals,
    remove_journal,
)
from chiplog_schemas.storage.record import CorruptRange, Kind, Record, encode
from chiplog_schemas.storage.segment_format import SegmentHeader, encode_header, segment_name
from tests.support.safeguard import proves

PRODUCER = bytes(range(16))
IDENTITY = pack({"run_id": "r", "rank": 3, "unknown": 1, "label": 7})


def write_segment(directory: Path, ordinal: int, first: int, count: int, *, instead: bytes = b"") -> None:
    head = instead or encode_header(SegmentHeader(PRODUCER, first, 0))
    body = b"".join(encode(Kind.EVENT, seq, b"%d" % seq) for seq in range(first, first + count))
    (directory / segment_name(ordinal)).write_bytes(head + body + bytes(100))


def seqs_of(journal: JournalReader, first: int = 0) -> list[int]:
    return [item.number for item in journal.records(first) if isinstance(item, Record)]


def test_a_head_page_comes_back_with_what_we_know_of_the_identity() -> None:
    page = encode_head(PRODUCER, IDENTITY, acked=5, produced=9, flags=FINISHED)
    padded = page.ljust(head_bytes(IDENTITY), b"\0")
    assert len(padded) == HEAD_PAGE_BYTES
    assert decode_head(padded) == JournalHead(PRODUCER, 5, 9, True, {"run_id": "r", "rank": 3})


def test_a_head_page_keeps_its_counters_when_the_identity_is_damaged() -> None:
    page = bytearray(encode_head(PRODUCER, IDENTITY, acked=5, produced=9))
    page[IDENTITY_OFFSET] ^= 1
    assert decode_head(bytes(page)) == JournalHead(PRODUCER, 5, 9, False, {})
    assert decode_head(bytes(page[:-3])) == JournalHead(PRODUCER, 5, 9, False, {})


def test_an_identity_of_any_length_gets_the_pages_it_needs() -> None:
    assert head_bytes(b"") == HEAD_PAGE_BYTES
    assert head_bytes(bytes(HEAD_PAGE_BYTES - IDENTITY_OFFSET)) == HEAD_PAGE_BYTES
    assert head_bytes(bytes(HEAD_PAGE_BYTES - IDENTITY_OFFSET + 1)) == 2 * HEAD_PAGE_BYTES


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_a_head_page_or_none(data: bytes, with_magic: bool) -> None:
    head = decode_head(b"CHIPJRN\x01" + data if with_magic else data)
    assert head is None or with_magic


@pytest.mark.promise(10)
def test_a_dead_journal_is_read_by_seq_though_its_files_were_allocated_in_another_order(tmp_path: Path) -> None:
    write_segment(tmp_path, 1, 0, 3)
    write_segment(tmp_path, 2, 6, 3)
    write_segment(tmp_path, 3, 3, 3)
    (tmp_path / segment_name(4)).write_bytes(bytes(4096))  # allocated ahead, never begun
    (tmp_path / HEAD_NAME).write_bytes(encode_head(PRODUCER, IDENTITY))
    journal = JournalReader(tmp_path)
    assert seqs_of(journal) == list(range(9))
    assert seqs_of(journal, first=4) == list(range(4, 9))
    assert journal.head is not None
    assert journal.head.identity["rank"] == 3


@pytest.mark.parametrize("instead", [b"\xff" * 48, bytes(48)], ids=["bits", "zeros"])
def test_a_segment_whose_header_is_damaged_keeps_its_place(tmp_path: Path, instead: bytes) -> None:
    write_segment(tmp_path, 1, 0, 3)
    write_segment(tmp_path, 2, 3, 3)
    write_segment(tmp_path, 3, 6, 3, instead=instead)
    items = list(JournalReader(tmp_path).records())
    assert [item.number for item in items if isinstance(item, Record)] == list(range(9))
    assert [item.reason for item in items if isinstance(item, CorruptRange)] == ["segment header damaged"]


def test_a_journal_without_a_head_page_still_gives_its_records(tmp_path: Path) -> None:
    write_segment(tmp_path, 1, 0, 2)
    journal = JournalReader(tmp_path)
    assert journal.head is None
    assert seqs_of(journal) == [0, 1]


def test_only_complete_journals_are_listed(tmp_path: Path) -> None:
    for name in (PRODUCER.hex(), f".new-{PRODUCER.hex()}", "short", "Z" * 32, PRODUCER.hex().upper()):
        (tmp_path / name).mkdir()
    assert list_journals(tmp_path) == [(PRODUCER, tmp_path / PRODUCER.hex())]
    assert list_journals(tmp_path / "absent") == []


def test_removing_a_journal_removes_all_of_it_and_twice_is_once(tmp_path: Path) -> None:
    directory = tmp_path / PRODUCER.hex()
    directory.mkdir()
    write_segment(directory, 1, 0, 1)
    JournalReader(directory).remove()
    remove_journal(directory)
    assert list(tmp_path.iterdir()) == []


@proves(
    "interrupt-passes-removal",
    "what a signal handler raises passes through the end of a run, which removes its journal",
    new="if True:",
)
def test_what_a_signal_handler_raises_is_raised_once_the_journal_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / PRODUCER.hex()
    directory.mkdir()
    write_segment(directory, 1, 0, 1)
    real, signals = os.lstat, [signal.SIGALRM]

    def lstat(*args: Any, **more: Any) -> os.stat_result:
        while signals:
            signal.raise_signal(signals.pop())
        return real(*args, **more)

    def time_out(number: int, frame: FrameType | None) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, time_out)
    monkeypatch.setattr(os, "lstat", lstat)
    try:
        with pytest.raises(TimeoutError):
            remove_journal(directory)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert list(tmp_path.iterdir()) == []
