"""The golden vectors: each decodes into what it was made of, and encodes into the same bytes again."""

import json
from pathlib import Path

import pytest

from chiplog_schemas.codec import pack, unpack
from chiplog_schemas.model.block_builder import BlockBuilder
from chiplog_schemas.model.block_decoder import decode_block
from chiplog_schemas.model.events import EventKind, decode, encode, matches_schema, with_known_fields
from chiplog_schemas.protocol import file_messages, messages
from chiplog_schemas.query import query_messages
from chiplog_schemas.storage.journal_dir import HEAD_FIXED, IDENTITY_OFFSET, decode_head, encode_head
from chiplog_schemas.storage.record import Kind, Record, scan_records
from chiplog_schemas.storage.record import encode as encode_record
from chiplog_schemas.storage.segment_format import decode_header, encode_header
from tests.schemas import make_vectors
from tests.schemas.make_vectors import (
    BLOCK_ROWS,
    EVENTS,
    FILES,
    INDEX,
    LATER_PAYLOADS,
    MESSAGES,
    QUESTIONS,
    RECORD_PAYLOADS,
    TS,
    VECTORS,
)
from tests.support.blocks import block_to_rows


def golden(name: str) -> bytes:
    return (VECTORS / name).read_bytes()


def frames_of(prefix: str, count: int) -> list[bytes]:
    return [golden(f"{prefix}.{index}.bin") for index in range(count)]


def test_every_vector_is_in_the_index_and_every_entry_is_there() -> None:
    index = json.loads((VECTORS / INDEX).read_text(encoding="utf-8"))
    assert sorted(index) == sorted(path.name for path in VECTORS.glob("*.bin"))
    assert all(index.values())


def test_our_code_makes_the_golden_bytes() -> None:
    made = {name: data for name, data, _ in make_vectors.all_vectors()}
    assert set(made) == {path.name for path in VECTORS.glob("*.bin")}
    for name, data in made.items():
        assert data == golden(name), name


def test_an_existing_vector_is_never_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_vectors, "VECTORS", tmp_path)
    (tmp_path / "block.bin").write_bytes(b"golden")
    make_vectors.main()
    assert (tmp_path / "block.bin").read_bytes() == b"golden"
    assert (tmp_path / "message-ack.0.bin").exists()


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.name)
def test_records(kind: Kind) -> None:
    data = golden(f"record-{kind.name.lower()}.bin")
    (record,) = scan_records(data)
    assert isinstance(record, Record)
    assert (record.kind, record.version, record.number) == (kind, 1, 1_000 + kind)
    assert record.payload == RECORD_PAYLOADS[kind]
    assert encode_record(record.kind, record.number, record.payload, record.version) == data


@pytest.mark.parametrize("name", LATER_PAYLOADS)
def test_later_forms_of_records(name: str) -> None:
    kind, payload = LATER_PAYLOADS[name]
    (record,) = scan_records(golden(f"record-{name}.bin"))
    assert isinstance(record, Record)
    assert (record.kind, record.payload) == (kind, payload)


def test_segment_header() -> None:
    header = decode_header(golden("segment-header.bin"))
    assert header is not None
    assert (header.owner, header.base, header.created_us) == (make_vectors.PRODUCER_A, 1_001, TS)
    assert encode_header(header) == golden("segment-header.bin")


def test_head_page() -> None:
    data = golden("head-page.bin")
    head = decode_head(data)
    assert head is not None
    assert (head.producer, head.acked, head.produced, head.finished) == (make_vectors.PRODUCER_A, 5, 10, True)
    assert head.identity == EVENTS[EventKind.IDENTITY][0]
    flags = HEAD_FIXED.unpack_from(data)[-1]
    assert encode_head(head.producer, pack(head.identity), head.acked, head.produced, flags) == data
    assert data[HEAD_FIXED.size : IDENTITY_OFFSET] == bytes(IDENTITY_OFFSET - HEAD_FIXED.size)


@pytest.mark.parametrize("kind", EventKind, ids=lambda kind: kind.name)
def test_events(kind: EventKind) -> None:
    data = golden(f"event-{kind.name.lower()}.bin")
    event = decode(data)
    assert event == [kind, TS, *EVENTS[kind]]
    assert matches_schema(with_known_fields(event))
    assert encode(EventKind(event[0]), *event[1:]) == data


def test_block() -> None:
    data = golden("block.bin")
    decoded = decode_block(data)
    assert block_to_rows(decoded) == sorted(BLOCK_ROWS)
    builder = BlockBuilder()
    for row in BLOCK_ROWS:
        builder.add(*row)
    assert builder.build(decoded.created_ts) == data


@pytest.mark.parametrize("name", MESSAGES)
def test_messages(name: str) -> None:
    frames = frames_of(f"message-{name}", len(MESSAGES[name]))
    message = messages.parse(frames)
    assert message.kind == messages.MessageKind[name.upper()]
    assert message.session == make_vectors.SESSION
    assert message == messages.parse(MESSAGES[name])
    assert not file_messages.is_file_message(frames)
    assert pack(unpack(frames[0])) == frames[0]


def test_an_acknowledgement_may_tell_of_refusals() -> None:
    message = messages.parse(frames_of("message-ack-refused", 1))
    assert (message.kind, message.next, message.credit, message.refused) == (
        messages.MessageKind.ACK,
        4,
        16_777_216,
        42,
    )
    assert messages.parse(frames_of("message-ack", 1)).refused == 0


def test_an_acknowledgement_may_report_queries() -> None:
    assert messages.parse(frames_of("message-ack-queried", 1)).queried
    assert not messages.parse(frames_of("message-ack-refused", 1)).queried
    assert not messages.parse(frames_of("message-ack", 1)).queried


@pytest.mark.parametrize("name", FILES)
def test_messages_of_files(name: str) -> None:
    frames = frames_of(f"file-{name}", len(FILES[name]))
    message = file_messages.parse(frames)
    assert message.kind == file_messages.FileMessageKind[name.upper()]
    assert message == file_messages.parse(FILES[name])
    assert file_messages.is_file_message(frames)
    assert pack(unpack(frames[0])) == frames[0]


@pytest.mark.parametrize("name", QUESTIONS)
def test_questions(name: str) -> None:
    frames = frames_of(f"question-{name}", len(QUESTIONS[name]))
    question = query_messages.parse(frames)
    kinds = query_messages.QueryMessageKind.__members__
    assert question.kind == kinds.get(name.upper(), kinds[name.partition("_")[0].upper()])
    assert question == query_messages.parse(QUESTIONS[name])
    assert pack(unpack(frames[0])) == frames[0]
