"""The messages of both hops: building and parsing are inverse; any input is a message or a WireError."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chiplog_schemas.codec import pack
from chiplog_schemas.protocol import messages
from chiplog_schemas.protocol.messages import Message, MessageKind, WireError, parse
from tests.schemas.make_vectors import MESSAGES, SENDER, SESSION

numbers = st.integers(0, (1 << 63) - 2)


@given(numbers, numbers, st.text(max_size=600), st.binary(max_size=40))
def test_every_message_parses_into_what_it_was_made_of(a: int, b: int, reason: str, payload: bytes) -> None:
    first, last = sorted((a, b))
    short = reason[: messages.REASON_CHARS_MAX]
    info = {"node": "n", "pid": 1}
    cases = [
        (
            messages.hello(SESSION, SENDER, a, info),
            Message(MessageKind.HELLO, SESSION, SENDER, messages.PROTOCOL_VERSIONS, first=a, info=info),
        ),
        (messages.welcome(SESSION, a, b), Message(MessageKind.WELCOME, SESSION, next=a, credit=b)),
        (
            messages.data(SESSION, first, last, payload),
            Message(MessageKind.DATA, SESSION, first=first, last=last, payload=payload),
        ),
        (messages.ack(SESSION, a, b), Message(MessageKind.ACK, SESSION, next=a, credit=b)),
        (messages.ack(SESSION, a, b, 7), Message(MessageKind.ACK, SESSION, next=a, credit=b, refused=7)),
        (
            messages.ack(SESSION, a, b, 7, queried=True),
            Message(MessageKind.ACK, SESSION, next=a, credit=b, refused=7, queried=True),
        ),
        (
            messages.lost(SESSION, first, last, reason),
            Message(MessageKind.LOST, SESSION, first=first, last=last, reason=short),
        ),
        (messages.ping(SESSION, a), Message(MessageKind.PING, SESSION, next=a)),
        (
            messages.ping(SESSION, a, {"chiplog.sdk.events": 2.0}),
            Message(MessageKind.PING, SESSION, next=a, health={"chiplog.sdk.events": 2.0}),
        ),
        (messages.bye(SESSION), Message(MessageKind.BYE, SESSION)),
        (messages.reset(SESSION, reason), Message(MessageKind.RESET, SESSION, reason=short)),
    ]
    assert {message.kind for _, message in cases} == set(MessageKind)
    for frames, message in cases:
        assert parse(frames) == message  # type: ignore[arg-type]


@given(st.lists(st.binary(max_size=60), max_size=3))
def test_any_frames_are_a_message_or_a_wire_error(frames: list[bytes]) -> None:
    try:
        parse(frames)
    except WireError:
        pass


hostile = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-1, (1 << 64) - 1)
    | st.floats()
    | st.text(max_size=4)
    | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(st.integers(0, 12), st.lists(hostile, max_size=7), st.booleans(), st.booleans())
def test_fields_of_any_type_are_a_message_or_a_wire_error(
    kind: int, fields: list[Any], with_session: bool, with_payload: bool
) -> None:
    head = [kind, *([SESSION] if with_session else []), *fields]
    try:
        message = parse([pack(head), b"x"] if with_payload else [pack(head)])
    except WireError:
        return
    assert message.session == SESSION
    assert all(type(value) is int and value >= 0 for value in (message.first, message.last, message.next))


@pytest.mark.parametrize("name", MESSAGES)
def test_fields_that_a_newer_version_adds_are_ignored(name: str) -> None:
    from chiplog_schemas.codec import unpack

    head, *rest = MESSAGES[name]
    assert parse([pack([*unpack(head), "new", 7]), *rest]) == parse(MESSAGES[name])


def test_an_acknowledgement_of_an_older_peer_reports_no_queries() -> None:
    for optional in ([], [3], [3, None], [3, 1], ["new", "newer"]):
        assert not parse([pack([int(MessageKind.ACK), SESSION, 1, 2, *optional])]).queried
    assert parse([pack([int(MessageKind.ACK), SESSION, 1, 2, None, True, "new"])]).queried


def test_numbers_that_go_back_are_refused() -> None:
    for frames in (messages.data(SESSION, 5, 4, b""), messages.lost(SESSION, 5, 4, "")):
        with pytest.raises(WireError, match="ascending"):
            parse(frames)  # type: ignore[arg-type]


def test_an_info_that_is_too_long_for_a_frame_leaves_out_what_is_long() -> None:
    message = parse(messages.hello(SESSION, SENDER, 0, {"label": "rank3", "notes": "x" * 100_000}))
    assert message.info == {"label": "rank3"}


def test_a_first_frame_beyond_the_limit_is_refused_unread() -> None:
    with pytest.raises(WireError, match="at most"):
        parse([bytes(100_000)])


def test_a_number_that_is_a_deep_list_is_refused_and_not_shown() -> None:
    deep = b"\x93\x06\xc4\x08" + bytes(8) + b"\x91" * 400 + b"\x01"
    with pytest.raises(messages.WireError, match=r"PING\.next is list, not a number"):
        messages.parse([deep])
