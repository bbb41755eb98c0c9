"""Outages of a store: one event when it is away, one when it is back, also if the receiver was restarted."""

from pathlib import Path

import pytest

from chiplog_collector.receiver.store_watch import StoreWatch
from chiplog_collector.store.outbox import Outage, Outbox
from chiplog_schemas.model.change_record import NOTE_CHARS_MAX, decode_change
from chiplog_schemas.storage.record import Kind
from tests.support.index import Index
from tests.support.safeguard import proves

EVENTS = "SELECT kind, level, message FROM events WHERE kind LIKE 'store_%' ORDER BY seq"
AWAY = Outage("0a" * 8, False, "the store s3://lake cannot be used: 503 Slow Down")
BACK = Outage("0a" * 8, True, AWAY.text)
BACK_TEXT = "the store can be used again; pieces that wait are published now"


def kinds(payloads: list[bytes]) -> list[str]:
    return [decode_change(payload).body["kind"] for payload in payloads]


def test_each_outage_is_noted_when_it_begins_and_when_it_is_over(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "store")
    watch = StoreWatch(outbox)
    assert watch.turn() == []
    outbox.set_outage(AWAY)
    assert kinds(watch.turn()) == ["store_away"]
    assert watch.turn() == []
    outbox.set_outage(BACK)
    assert kinds(watch.turn()) == ["store_back"]
    assert watch.turn() == []
    outbox.set_outage(Outage("0b" * 8, True, "both since the last look"))
    assert kinds(watch.turn()) == ["store_away", "store_back"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"id": 1}', b"\xff"])
def test_a_damaged_note_is_none(tmp_path: Path, content: bytes) -> None:
    outbox = Outbox(tmp_path / "store")
    outbox.set_outage(AWAY)
    (tmp_path / "store" / "outage.json").write_bytes(content)
    assert StoreWatch(outbox).turn() == []


@proves("outage-noted-once", "an outage that a restarted receiver notes again is one event")
def test_what_receivers_note_is_an_event_once(index: Index, tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "store")
    outbox.set_outage(AWAY)
    for _ in range(2):  # the second is of a receiver that was restarted
        index.take(*((Kind.MANAGE, payload) for payload in StoreWatch(outbox).turn()))
        index.reopen()
    assert index.sql(EVENTS) == [("store_away", "warning", AWAY.text)]
    outbox.set_outage(BACK)
    index.take(*((Kind.MANAGE, payload) for payload in StoreWatch(outbox).turn()))
    assert index.sql(EVENTS) == [("store_away", "warning", AWAY.text), ("store_back", "info", BACK_TEXT)]


def test_a_long_text_is_cut(index: Index, tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "store")
    outbox.set_outage(Outage("0c" * 8, False, "x" * 10_000))
    index.take(*((Kind.MANAGE, payload) for payload in StoreWatch(outbox).turn()))
    assert index.sql(EVENTS) == [("store_away", "warning", "x" * NOTE_CHARS_MAX)]
