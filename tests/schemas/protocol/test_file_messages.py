"""The messages that carry files: building and parsing are inverse; any input is a message or a WireError."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chiplog_schemas.codec import pack
from chiplog_schemas.protocol import file_messages, messages
from chiplog_schemas.protocol.file_messages import FileMessage, FileMessageKind, is_file_message, parse
from chiplog_schemas.protocol.messages import MessageKind, WireError
from tests.schemas.make_vectors import SENDER, SESSION

DIGEST = b"d" * 32
numbers = st.integers(0, (1 << 62) - 1)


@given(numbers, numbers, st.text(max_size=600), st.binary(min_size=1, max_size=40))
def test_every_message_parses_into_what_it_was_made_of(a: int, b: int, reason: str, payload: bytes) -> None:
    kind, short, info = FileMessageKind, reason[: messages.REASON_CHARS_MAX], {"node": "n"}
    cases = [
        (
            file_messages.offer(SESSION, SENDER, DIGEST, a, info),
            FileMessage(kind.OFFER, SESSION, file_messages.FILE_VERSIONS, SENDER, DIGEST, a, info=info),
        ),
        (file_messages.chunk(SESSION, a, payload), FileMessage(kind.CHUNK, SESSION, offset=a, payload=payload)),
        (file_messages.want(SESSION, a, b), FileMessage(kind.WANT, SESSION, offset=a, credit=b)),
        (file_messages.stored(SESSION), FileMessage(kind.STORED, SESSION)),
        (file_messages.denied(SESSION, 1.5, reason), FileMessage(kind.DENIED, SESSION, wait_ms=1500, reason=short)),
        (file_messages.mismatch(SESSION), FileMessage(kind.MISMATCH, SESSION)),
    ]
    assert {message.kind for _, message in cases} == set(kind)
    for frames, message in cases:
        assert is_file_message(frames)  # type: ignore[arg-type]
        assert parse(frames) == message  # type: ignore[arg-type]


def test_a_reset_is_that_of_the_other_messages() -> None:
    frames = messages.reset(SESSION, "who?")
    assert not is_file_message(frames)
    assert parse(frames) == FileMessage(MessageKind.RESET, SESSION, reason="who?")


@given(st.lists(st.binary(max_size=60), max_size=3))
def test_any_frames_are_a_message_or_a_wire_error(frames: list[bytes]) -> None:
    is_file_message(frames)
    try:
        parse(frames)
    except WireError:
        pass


@pytest.mark.parametrize(
    "frames",
    [
        [pack([9, SESSION, [1, 1], SENDER, DIGEST[:-1], 5, {}])],
        [pack([9, SESSION, [1, 1], SENDER, DIGEST, -1, {}])],
        [pack([9, SESSION, [1, 1], SENDER, DIGEST, True, {}])],
        [pack([9, SESSION, [1, 1], SENDER, DIGEST, 1 << 62, {}])],
        [pack([10, SESSION, 0])],
        [pack([10, SESSION, 0]), b""],
        [pack([10, SESSION, 0]), bytes((256 << 10) + 1)],
        [pack([11, SESSION, 0])],
        [pack([12, SESSION]), b"one more"],
        [pack([13, SESSION, 1.5, "later"])],
        [pack([15, SESSION])],
    ],
)
def test_a_field_beyond_its_bounds_is_a_wire_error(frames: list[bytes]) -> None:
    with pytest.raises(WireError):
        parse(frames)


def test_a_receiver_cannot_pause_a_file_for_ever() -> None:
    assert parse([pack([13, SESSION, 1 << 60, "never"])]).wait_ms == 60_000
