"""Records of `.wandb` files: what is written is read; of a damaged or short file all that is whole, with a line."""

import io
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chiplog_client.transfer.wandb_file import WandbFileError, read_records

_BLOCK = 32768
_HEADER = b":W&B\xe1\xbe\x00"  # as wandb 0.31.0 writes it
_EXIT = "0cfb7257 0500 01 0812920100"  # its last record of a run

sizes = st.one_of(st.integers(0, 40), st.integers(_BLOCK - 40, _BLOCK + 40), st.integers(0, 4 * _BLOCK))
records_of_any_size = st.lists(
    st.builds(lambda size, byte: bytes([byte]) * size, sizes, st.integers(0, 255)), min_size=1, max_size=12
)


def fragment(kind: int, payload: bytes) -> bytes:
    checksum = zlib.crc32(bytes([kind]) + payload)
    return struct.pack("<I", checksum) + struct.pack("<H", len(payload)) + bytes([kind]) + payload


def written(records: list[bytes]) -> tuple[bytes, list[int]]:
    """Return a file of these records, and the offset at which each begins."""
    found, begins = bytearray(_HEADER), []
    for record in records:
        for number in range(len(record) // 100 + 2):
            free = _BLOCK - len(found) % _BLOCK
            if free < 7:
                found += bytes(free)
                free = _BLOCK
            if number == 0:
                begins.append(len(found))
            part, record = record[: free - 7], record[free - 7 :]
            found += fragment({(1, 1): 1, (1, 0): 2, (0, 0): 3, (0, 1): 4}[number == 0, not record], part)
            if not record:
                break
    return bytes(found), begins


def read(content: bytes) -> tuple[list[bytes], list[str]]:
    lines: list[str] = []
    return list(read_records(io.BytesIO(content), lines.append)), lines


def test_a_record_of_wandb_is_read() -> None:
    assert read(_HEADER + bytes.fromhex(_EXIT)) == ([bytes.fromhex("0812920100")], [])


@given(records_of_any_size)
def test_records_are_read_as_they_were_written(records: list[bytes]) -> None:
    assert read(written(records)[0]) == (records, [])


@given(records_of_any_size, st.data())
def test_of_a_file_that_was_cut_short_all_whole_records_are_read(records: list[bytes], data: st.DataObject) -> None:
    content, begins = written(records)
    end = data.draw(st.integers(len(_HEADER), len(content)))
    found, lines = read(content[:end])
    ends = [*begins[1:], len(content)]
    n_whole = sum(len(written(records[: n + 1])[0]) <= end for n in range(len(records)))
    assert found == records[:n_whole]
    if end in (len(_HEADER), *ends):
        assert lines == []
    elif lines:  # none if the file ends within the zeros before a record, at the end of its block
        assert len(lines) == 1
        assert lines[0].startswith(f"offset {begins[n_whole]}: the file ends within a record")


@given(records_of_any_size, st.data())
def test_one_damaged_byte_costs_records_of_one_block_and_is_one_line(records: list[bytes], data: st.DataObject) -> None:
    content, begins = written(records)
    at = data.draw(st.integers(len(_HEADER), len(content) - 1))
    damaged = bytearray(content)
    damaged[at] ^= data.draw(st.integers(1, 255))
    found, lines = read(bytes(damaged))
    block = at // _BLOCK
    ends = [len(written(records[: n + 1])[0]) for n in range(len(records))]
    apart = [r for r, b, e in zip(records, begins, ends, strict=True) if e <= at or b >= (block + 1) * _BLOCK]
    rest = iter(found)
    assert all(record in rest for record in apart), "records that have no byte in the block after the damage are read"
    rest = iter(records)
    assert all(record in rest for record in found), "nothing is read that was not written"
    assert len(lines) <= 2
    if found != records:
        assert len(lines) >= 1
        assert all(line.startswith("offset ") and "\n" not in line for line in lines)


@given(st.binary(max_size=3 * 40), st.booleans())
def test_any_bytes_are_read_or_reported(noise: bytes, is_begun: bool) -> None:
    try:
        found, lines = read((_HEADER if is_begun else b"") + noise)
    except WandbFileError as error:
        assert not is_begun or not noise.startswith(_HEADER)
        assert "\n" not in str(error)
    else:
        assert bool(found) or bool(lines) or not noise or noise == _HEADER


def test_fragments_out_of_order_are_reported_once_each() -> None:
    content = _HEADER + b"".join(fragment(kind, b"a") for kind in (3, 4, 2, 1, 2))
    found, lines = read(content)
    assert found == [b"a"]
    assert [line.split(":")[0] for line in lines] == ["offset 7", "offset 23", "offset 39"]


def test_zeros_and_unknown_fragments_are_damage() -> None:
    whole = fragment(1, b"a")
    for bad, words in ((bytes(500), "zeros where a record should begin"), (fragment(9, b"b"), "unknown type 9")):
        found, lines = read(_HEADER + whole + bad)
        assert found == [b"a"]
        assert len(lines) == 1 and lines[0].startswith(f"offset {7 + len(whole)}: ") and words in lines[0]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the file is empty"),
        (b":W&", "begins with b':W&'"),
        (b"PK\x03\x04 not a run at all", "name the run-….wandb of a run"),
        (b":W&B\xe1\xbe\x01", "version 1"),
    ],
)
def test_another_file_is_named_as_one(content: bytes, words: str) -> None:
    with pytest.raises(WandbFileError, match=words.replace("(", r"\(")):
        read(content)


class _Pipe(io.RawIOBase):
    """A file that returns a few bytes at a time."""

    def __init__(self, content: bytes) -> None:
        self._rest = content

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        part, self._rest = self._rest[: min(size, 1000)], self._rest[min(size, 1000) :]
        return part


def test_a_pipe_that_returns_less_than_a_block_is_read_to_its_end() -> None:
    records = [bytes([n]) * 30_000 for n in range(5)]
    lines: list[str] = []
    assert list(read_records(_Pipe(written(records)[0]), lines.append)) == records  # type: ignore[arg-type]
    assert lines == []
