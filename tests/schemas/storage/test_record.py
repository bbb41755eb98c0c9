"""The record: what is sound is read, in order, and nothing is made up."""

import struct
import time
from itertools import pairwise
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chiplog_schemas.limits import RECORD_BYTES_MAX
from chiplog_schemas.storage import record
from chiplog_schemas.storage.record import (
    HEADER_BYTES,
    MAGIC_BYTES,
    CorruptRange,
    Kind,
    Record,
    encode,
    reframe,
    scan_records,
)

payloads = st.lists(st.binary(max_size=80) | st.just(MAGIC_BYTES * 8), min_size=1, max_size=12)


def build(contents: list[bytes], gaps: list[int] | None = None) -> tuple[bytes, list[tuple[int, int, int, bytes]]]:
    """Return a log's bytes and (number, start, end, payload) of each record."""
    out, placed, number = b"", [], 0
    for index, payload in enumerate(contents):
        number += 1 + (gaps[index % len(gaps)] if gaps else 0)
        framed = encode(Kind.EVENT, number, payload)
        placed.append((number, len(out), len(out) + len(framed), payload))
        out += framed
    return out, placed


def records_of(items: list[Record | CorruptRange]) -> list[tuple[int, bytes]]:
    return [(item.number, bytes(item.payload)) for item in items if isinstance(item, Record)]


@given(payloads, st.lists(st.integers(0, 3), min_size=1, max_size=4))
def test_sound_records_come_back_in_order(contents: list[bytes], gaps: list[int]) -> None:
    data, placed = build(contents, gaps)
    assert records_of(list(scan_records(data))) == [(number, payload) for number, _, _, payload in placed]


@pytest.mark.promise(5)
@given(payloads, st.data())
def test_every_undamaged_record_is_recovered_and_nothing_is_invented(
    contents: list[bytes], draw: st.DataObject
) -> None:
    # Invariant: a record none of whose bytes changed is read; nothing else is, but bytes changed into what they were.
    data, placed = build(contents)
    damaged = bytearray(data)
    for _ in range(draw.draw(st.integers(1, 4))):
        at = draw.draw(st.integers(0, len(data) - 1))
        how = draw.draw(st.sampled_from(["flip", "zeros", "noise"]))
        width = 1 if how == "flip" else draw.draw(st.integers(1, 60))
        part = damaged[at : at + width]
        if how == "flip":
            part[0] ^= 1 << draw.draw(st.integers(0, 7))
        elif how == "zeros":
            part[:] = bytes(len(part))
        else:
            part[:] = draw.draw(st.binary(min_size=len(part), max_size=len(part)))
        damaged[at : at + width] = part
    sound = [(n, payload) for n, start, end, payload in placed if damaged[start:end] == data[start:end]]
    assert records_of(list(scan_records(bytes(damaged)))) == sound


@given(payloads, st.data())
def test_a_cut_costs_the_cut_record_only(contents: list[bytes], draw: st.DataObject) -> None:
    data, placed = build(contents)
    cut = draw.draw(st.integers(0, len(data)))
    whole = [(n, payload) for n, _, end, payload in placed if end <= cut]
    sealed, live = list(scan_records(data[:cut])), list(scan_records(data[:cut], sealed=False))
    assert records_of(sealed) == records_of(live) == whole
    assert all(isinstance(item, Record) for item in live)
    at_edge = cut in (0, *(end for _, _, end, _ in placed))
    assert [item for item in sealed if isinstance(item, CorruptRange)] == (
        []
        if at_edge
        else [CorruptRange(max([end for _, _, end, _ in placed if end <= cut], default=0), cut, sealed[-1].reason)]  # type: ignore[union-attr]
    )


@given(payloads, st.integers(0, 200))
def test_zeros_behind_the_last_record_are_unused_space(contents: list[bytes], n_zeros: int) -> None:
    data, placed = build(contents)
    items = list(scan_records(data + bytes(n_zeros)))
    assert len(items) == len(placed)
    assert all(isinstance(item, Record) for item in items)


@given(payloads, st.integers(1, 50))
def test_damage_and_records_cover_all_bytes_without_overlap(contents: list[bytes], width: int) -> None:
    data, placed = build(contents)
    start = placed[len(placed) // 2][1]
    damaged = data[:start] + b"\xff" * width + data[start + width :]
    spans = [
        (item.start, item.end)
        if isinstance(item, CorruptRange)
        else (item.end - HEADER_BYTES - len(item.payload), item.end)
        for item in scan_records(damaged)
    ]
    assert spans[0][0] == 0
    assert spans[-1][1] == len(damaged)
    assert all(before[1] == after[0] for before, after in pairwise(spans))


@given(st.binary(max_size=400))
def test_any_bytes_can_be_scanned(data: bytes) -> None:
    for sealed in (True, False):
        for cut in (True, False):
            for item in scan_records(data, sealed=sealed, cut=cut):
                assert item.end <= len(data)


def test_a_record_inside_of_a_payload_is_not_read_when_the_outer_one_is_damaged_but_older() -> None:
    inner = encode(Kind.EVENT, 3, b"inner")
    data = encode(Kind.EVENT, 5, b"first") + encode(Kind.EVENT, 6, b"outer" + inner) + encode(Kind.EVENT, 7, b"last")
    damaged = bytearray(data)
    damaged[len(encode(Kind.EVENT, 5, b"first")) + HEADER_BYTES] ^= 1
    assert records_of(list(scan_records(bytes(damaged)))) == [(5, b"first"), (7, b"last")]


def test_a_sound_record_whose_number_does_not_grow_is_damage() -> None:
    data = encode(Kind.EVENT, 5, b"a") + encode(Kind.EVENT, 5, b"again") + encode(Kind.EVENT, 6, b"b")
    items = list(scan_records(data))
    assert records_of(items) == [(5, b"a"), (6, b"b")]
    assert [item.reason for item in items if isinstance(item, CorruptRange)] == ["numbers out of order"]


def test_a_number_that_no_column_can_hold_is_damage() -> None:
    payload = b"x"
    back = record.pack_back(len(payload), Kind.EVENT, 1, 0, 1 << 63)
    framed = record.pack_front(record.MAGIC, crc32(back, crc32(payload))) + back + payload
    assert [type(item) for item in scan_records(framed + encode(Kind.EVENT, 1, b"y"))] == [CorruptRange, Record]


def test_a_length_beyond_the_limit_is_damage_and_not_an_allocation() -> None:
    header = bytearray(encode(Kind.EVENT, 1, b""))
    header[8:12] = struct.pack("<I", RECORD_BYTES_MAX + 1)
    assert records_of(list(scan_records(bytes(header) + encode(Kind.EVENT, 2, b"ok")))) == [(2, b"ok")]


def test_a_record_that_runs_over_the_end_of_a_cut_read_ends_the_walk_silently() -> None:
    data, _ = build([b"a" * 40, b"b" * 40])
    items = list(scan_records(data[:-10], cut=True))
    assert records_of(items) == [(1, b"a" * 40)]
    assert len(items) == 1


def test_false_headers_are_given_up_after_a_bounded_amount_of_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "RESYNC_BYTES_MAX", 10_000)
    checked = []
    read_one = record.parse_record
    monkeypatch.setattr(record, "parse_record", lambda data, at: checked.append(at) or read_one(data, at))
    hostile = b"".join(MAGIC_BYTES + struct.pack("<IIBBHQ", 0, 1_000, 1, 1, 0, n) for n in range(500)) + b"x" * 1_000
    items = list(scan_records(hostile))
    assert [type(item) for item in items] == [CorruptRange]
    assert len(checked) <= 12


def test_many_damaged_places_do_not_copy_the_bytes_each_time() -> None:
    data = b"".join(encode(Kind.EVENT, number, b"") + b"\xff" for number in range(50_000))
    started = time.process_time()  # quadratic copying would need minutes: the runner's time limit decides
    items = list(scan_records(data))
    print(time.process_time() - started)
    assert len(records_of(items)) == 50_000


@given(st.binary(max_size=100), st.integers(0, 1 << 62), st.integers(0, 1 << 62))
def test_reframing_equals_encoding_anew(payload: bytes, number: int, other: int) -> None:
    (item,) = scan_records(encode(Kind.BLOCK, number, payload, version=3))
    assert isinstance(item, Record)
    header, same = reframe(item, other)
    assert header + same == encode(Kind.BLOCK, other, payload, version=3)
