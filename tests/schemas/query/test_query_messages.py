"""The messages of a query: building and parsing are inverse, bad ones are refused with their ID."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chiplog_schemas.codec import pack
from chiplog_schemas.query import query_messages
from chiplog_schemas.query.query_messages import (
    QueryMessage,
    QueryMessageKind,
    QueryProtocolError,
    one_line,
    parse,
)

ID = b"12345678"


@given(st.text(max_size=40), st.lists(st.integers(-9, 9) | st.text(max_size=4), max_size=3), st.floats(0.1, 30.0))
def test_every_message_parses_into_what_it_was_made_of(sql: str, params: list[Any], timeout_s: float) -> None:
    ask = query_messages.request(ID, sql, params, timeout_s, "Europe/Berlin")
    assert parse(ask) == QueryMessage(QueryMessageKind.ASK, ID, sql, params, timeout_s, "Europe/Berlin")
    result = parse(query_messages.result(ID, 3, b"stream"))  # type: ignore[arg-type]
    assert result == QueryMessage(QueryMessageKind.RESULT, ID, n_rows=3, payload=b"stream")
    failure = parse(query_messages.failure(ID, "busy", "ask again\nlater"))
    assert failure == QueryMessage(QueryMessageKind.ERROR, ID, error_kind="busy", message="ask again")
    assert parse(query_messages.ping(ID)) == QueryMessage(QueryMessageKind.PING, ID)
    assert parse(query_messages.pong(ID, {"pid": 7})) == QueryMessage(QueryMessageKind.PONG, ID, info={"pid": 7})
    read = parse(query_messages.read_file(ID, bytes(32), 7, 1 << 40))  # no part exceeds the limit
    assert read == QueryMessage(QueryMessageKind.READ, ID, digest=bytes(32), offset=7, n_bytes=1 << 20)
    part = parse(query_messages.file_part(ID, 9, b"part"))
    assert part == QueryMessage(QueryMessageKind.PART, ID, n_bytes=9, payload=b"part")
    ask = query_messages.request(ID, sql, params, timeout_s, bytes_max=9)
    assert parse(ask) == QueryMessage(QueryMessageKind.ASK, ID, sql, params, timeout_s, bytes_max=9)
    fetch = parse(query_messages.fetch(ID, 7, 1 << 40))  # no part exceeds the limit
    assert fetch == QueryMessage(QueryMessageKind.FETCH, ID, offset=7, n_bytes=1 << 20)
    part = parse(query_messages.result_part(ID, 9, 3, 7, b"part"))
    expected = QueryMessage(QueryMessageKind.PART_OF_RESULT, ID, n_bytes=9, n_rows=3, offset=7, payload=b"part")
    assert part == expected
    assert parse(query_messages.cancel(ID)) == QueryMessage(QueryMessageKind.CANCEL, ID)
    manage = parse(query_messages.manage(ID, "edit", {"run": sql}))
    assert manage == QueryMessage(QueryMessageKind.MANAGE, ID, action="edit", arguments={"run": sql})
    assert parse(query_messages.done(ID, {"runs": 7})) == QueryMessage(QueryMessageKind.DONE, ID, info={"runs": 7})
    wait = parse(query_messages.wait_for(ID, 7, timeout_s))
    assert wait == QueryMessage(QueryMessageKind.WAIT, ID, number=7, timeout_s=timeout_s)


@given(st.lists(st.binary(max_size=60), max_size=3))
def test_any_frames_are_a_message_or_a_protocol_error(frames: list[bytes]) -> None:
    try:
        parse(frames)
    except QueryProtocolError:
        pass


@pytest.mark.parametrize(
    "frames",
    [
        [pack([2, ID, 1])],
        [pack([2, ID, -1]), b""],
        [pack([2, ID, True]), b""],
        [pack([3, ID, "sql", None])],
        [pack([4, ID]), b"one more"],
        [pack([5, ID, []])],
        [pack([6, ID])],
        [pack([8, ID, bytes(31), 0, 1])],
        [pack([8, ID, bytes(32), -1, 1])],
        [pack([8, ID, bytes(32), 0, 0])],
        [pack([8, ID, bytes(32), 0, True])],
        [pack([9, ID, 1])],
        [pack([9, ID, -1]), b""],
        [pack([20, ID]), b"one more"],
        [pack([21, ID, 0, 0])],
        [pack([21, ID, -1, 1])],
        [pack([22, ID, 1, 1, 0])],
        [pack([22, ID, 1, 1, -1]), b""],
        [pack([22, ID, 1, True, 0]), b""],
        [pack([1, ID, "SELECT 1", None, 1.0, "", -1])],
        [pack([1, ID, "SELECT 1", None, float("inf")])],
        [pack([1, ID, "SELECT 1", None, True])],
        [pack([1, ID, "SELECT 1", None, 1.0, "x" * 65])],
    ],
)
def test_a_message_of_wrong_shape_is_refused_with_the_id_of_its_query(frames: list[bytes]) -> None:
    with pytest.raises(QueryProtocolError) as caught:
        parse(frames)
    assert caught.value.id == ID


def test_an_error_of_a_kind_that_a_newer_collector_adds_keeps_its_message() -> None:
    message = parse([pack([3, ID, "too_many", "ask later", "a new field"])])
    assert (message.error_kind, message.message) == ("internal", "ask later")


def test_a_query_takes_no_longer_than_the_limit_whatever_its_client_asks() -> None:
    assert parse(query_messages.request(ID, "SELECT 1", None, 1e9)).timeout_s == 30.0


def test_a_message_of_duckdb_becomes_one_line_with_its_hints_and_its_place() -> None:
    message = 'Binder Error: no column\n\nLINE 1: SELECT nope\n               ^\nDid you mean "node"?\nmore'
    assert one_line(message) == 'Binder Error: no column Did you mean "node"? (LINE 1: SELECT nope)'
    assert one_line("\n \n") == "no message"
    assert one_line("a\x1b[31mb") == "a [31mb"
    assert len(one_line("x" * 9_000)) == 2_000


def test_a_time_zone_cannot_end_the_statement_that_sets_it() -> None:
    assert query_messages.time_zone_setting("a'; DROP TABLE b; --") == "SET TimeZone = 'a''; DROP TABLE b; --'"
