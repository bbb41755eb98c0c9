"""Few bytes that claim much: each is refused at its claim, or costs a stated multiple of its size and ends in time."""

import struct
import subprocess
import sys
from pathlib import Path

import pytest

from chiplog_agent.pipeline.batcher import EventBatcher
from chiplog_agent.stats.frames import FrameError, FrameReader
from chiplog_client.results.result import QueryError, Result
from chiplog_schemas.codec import CodecError, pack, unpack
from chiplog_schemas.limits import EVENT_BYTES_MAX, MIB, RECORD_BYTES_MAX
from chiplog_schemas.model.block_builder import BlockBuilder
from chiplog_schemas.model.block_decoder import decode_block
from chiplog_schemas.model.block_format import BlockError
from chiplog_schemas.model.events import EventKind, encode
from chiplog_schemas.protocol import messages
from chiplog_schemas.storage import record
from chiplog_schemas.storage.record import Kind, Record, scan_records
from tests.fuzz.decoders import Arrow
from tests.fuzz.grammar import TOKENS, frame
from tests.schemas.make_vectors import PRODUCER_A, SESSION, TS
from tests.support.safeguard import proves

ROOT = Path(__file__).resolve().parents[2]


@proves("extension-types-refused", "extension types are refused", part="_refuse", new="lambda code, data: data")
@pytest.mark.parametrize("token", [token for token in TOKENS if token[0] in b"\xd4\xd6\xd8\xc7\xc9"])
def test_extension_types_are_refused(token: bytes) -> None:
    for data in (token, b"\x92\x01" + token, b"\x81\x01" + token):
        with pytest.raises(CodecError):
            unpack(data)


def test_depth_is_refused_before_it_ends_the_process() -> None:
    for depth in (2_000, 10_000, 4_000_000):
        for opening in (b"\x91", b"\x81\x00"):
            with pytest.raises(CodecError):
                pack(unpack(opening * depth + b"\xc0"))


@proves("first-frame-bounded", "a first frame is bounded", new="if not frames or len(frames) > 2:")
def test_a_first_frame_of_megabytes_is_not_even_decoded() -> None:
    big = pack([5, SESSION, 1, 2, "reason", b"x" * 100_000])
    with pytest.raises(messages.WireError, match="at most"):
        messages.parse([big])


@proves("frame-length-bounded", "a damaged length makes no reader allocate", condition=False)
def test_a_frame_of_four_gigabytes_is_refused_at_its_length() -> None:
    with pytest.raises(FrameError):
        FrameReader().feed(struct.pack("<I", 0xFFFFFFFF) + b"\x90")


@proves("columns-apart", "columns do not lie over each other")
def test_columns_that_lie_over_each_other_claim_no_memory() -> None:
    n_rows, n_groups = 20_000, 300  # 0.2 MB of columns, named three hundred times
    area = bytes(8 * n_rows) + b"\xdd" + struct.pack(">I", n_rows) + b"\xc0" * n_rows
    columns = [["producer", "<u4", 0, 4 * n_rows], ["seq", "<i8", 0, 8 * n_rows], ["ts", "<i8", 0, 8 * n_rows]]
    columns.append(["payload", "o", 8 * n_rows, n_rows + 5])
    header = pack([TS, [[PRODUCER_A, [0, n_rows * n_groups - 1]]], [[0, None, n_rows, columns]] * n_groups])
    block = struct.pack("<IHH", len(header), 1, 0) + header + bytes(-(8 + len(header)) % 8) + area
    assert len(block) < RECORD_BYTES_MAX
    with pytest.raises(BlockError, match="do not fit"):
        decode_block(block)


def test_ranges_handed_to_other_producers_are_noticed() -> None:
    """As many ranges as producers, but not one each: rows of the second would count as seqs of the first."""
    builder = BlockBuilder()
    for index, seq in ((0, 0), (1, 5), (2, 7)):
        builder.add(bytes([index]) * 16, seq, encode(EventKind.TEXT, TS, 1, "key", "text"))
    block = builder.build(TS)
    start = 8 + int.from_bytes(block[:4], "little")
    header = unpack(block[8:start])
    header[1] = [[bytes(16), [0, 0, 5, 5]], [b"\x01" * 16, []], [b"\x02" * 16, [7, 7]]]
    packed = pack(header)
    block = (
        struct.pack("<IHH", len(packed), 1, 0) + packed + bytes(-(8 + len(packed)) % 8) + block[start + -start % 8 :]
    )
    with pytest.raises(BlockError, match="other rows"):
        decode_block(block)


@proves(
    "resync-bounded",
    "what a resync may cost is bounded, records inside of records included",
    new="if found == MISMATCH:",
)
def test_records_inside_of_records_are_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each header's payload is all that follows it: to check them all takes the square of their number."""
    monkeypatch.setattr(record, "RESYNC_BYTES_MAX", MIB)
    nested = bytes(100_000)
    for _ in range(100):
        nested = frame(Kind.EVENT, 1, nested)
    front = frame(Kind.EVENT, 10, b"good") + frame(Kind.EVENT, 11, b"good")
    found = [
        item.number
        for item in scan_records(front + b"?" + nested + frame(Kind.EVENT, 12, b""))
        if isinstance(item, Record)
    ]
    assert found == [10, 11]


def core() -> EventBatcher:
    return EventBatcher(b"agent-producer!!", "node", 1, "0", TS)


@proves("block-size-bounded", "an agent that has much to say makes several blocks of it", condition=False)
def test_a_slice_full_of_holes_makes_no_block_larger_than_a_record() -> None:
    agent = core()
    holes = b"".join(frame(Kind.EVENT, number, b"") for number in range(0, 160_000, 2))
    agent.add_slice(PRODUCER_A, 0, 160_000, b"?" + holes, 0.0, TS)
    blocks, _ = agent.build(TS)
    assert max(map(len, blocks)) <= RECORD_BYTES_MAX
    kinds = [group.kind for block in blocks for group in decode_block(block).groups]
    assert EventKind.LOST in kinds


@proves("float32-growth-counted", "a block's size counts what it will be when written", value="len(payload)")
def test_short_floats_make_no_block_larger_than_a_record() -> None:
    agent = core()
    floats = b"\xdd" + struct.pack(">I", 180_000) + b"\xca\x3d\xcc\xcc\xcd" * 180_000
    event = b"\x95\x03" + pack(TS) + pack(1) + pack("key") + floats
    assert len(event) < EVENT_BYTES_MAX
    for seq in range(8):
        agent.add_slice(PRODUCER_A, seq, seq, frame(Kind.EVENT, seq, event), 0.0, TS)
    blocks, _ = agent.build(TS)
    assert max(map(len, blocks)) <= RECORD_BYTES_MAX
    assert sum(len(group.seq) for block in blocks for group in decode_block(block).groups) == 8 + 1


@pytest.mark.parametrize(
    "data",
    [
        b"\xdd" + struct.pack(">I", 1_000_000) + b"\x80" * 1_000_000,
        (b"\xdd" + struct.pack(">I", 60_000)) * 400 + b"\xc0" * 63_000,
        b"\xdf"
        + struct.pack(">I", 300_000)
        + b"".join(b"\xce" + struct.pack(">I", n) + b"\xc0" for n in range(300_000)),
        pack(["k" * 8] * 100_000),
    ],
    ids=["empty maps", "nested claims", "large map", "keys that repeat"],
)
def test_memory_is_bounded_by_a_multiple_of_the_bytes(data: bytes, tmp_path: Path) -> None:
    """At most a hundred times the input: an empty map is one byte on the wire and 64 in Python."""
    path = tmp_path / "input"
    path.write_bytes(data)
    program = (
        "import sys, resource, pathlib\n"
        "from chiplog_schemas.codec import unpack, CodecError\n"
        "data = pathlib.Path(sys.argv[1]).read_bytes()\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try: unpack(data)\n"
        "except CodecError: pass\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, path], cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 100 * len(data) + MIB


@proves("buffers-apart", "buffers of an answer do not lie over each other", condition=False)
def test_buffers_of_an_answer_that_lie_over_each_other_claim_no_memory() -> None:
    """44 KB of zeros, packed, as each of a hundred columns were 800 MB once."""
    for data, _, sizes in Arrow()._streams:
        changed = bytearray(data)
        entries = [at for at, _ in sizes[3::2]]  # of two messages, a body and pairs of offset and length
        largest = max((struct.unpack_from("<qq", changed, at) for at in entries), key=lambda pair: pair[1])
        for at in entries:
            struct.pack_into("<qq", changed, at, *largest)
        with pytest.raises(QueryError, match="over each other"):
            Result(bytes(changed))


@pytest.mark.xfail(strict=True, reason="arrow-rs ends the process on a column of more rows than its buffers hold")
def test_a_collector_that_lies_about_the_rows_of_a_column_gets_a_query_error() -> None:
    program = (
        "import struct, resource\n"
        "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
        "from chiplog_client.results.result import QueryError, Result\n"
        "from tests.fuzz.decoders import Arrow\n"
        "data = bytearray(Arrow()._streams[0][0])\n"
        "rows = struct.pack('<q', 50)\n"
        "at = data.index(rows + bytes(8))\n"
        "while at >= 0:\n"
        "    data[at:at + 16] = struct.pack('<qq', 1 << 31, 1)\n"
        "    at = data.find(rows + bytes(8))\n"
        "try: Result(bytes(data)).tuples()\n"
        "except QueryError: pass\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, stderr=subprocess.DEVNULL)
    assert done.returncode == 0
