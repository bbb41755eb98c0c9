"""Events become rows. A wrong one costs only itself, and is a row too."""

import pytest

from chiplog_collector.index.apply import event_handlers
from chiplog_schemas.codec import pack
from chiplog_schemas.model.events import EventKind
from tests.schemas.make_vectors import EVENTS
from tests.support.collector_log import START_US, Rank, apply, quarantined, whole
from tests.support.index import Index
from tests.support.safeguard import proves

HOSTILE_EVENTS = [
    (EventKind.SUMMARY, ("no map",)),
    (EventKind.SUMMARY, ({"k": "[" * 100_000},)),
    (EventKind.SUMMARY, ({"k": "no json"},)),
    (EventKind.SUMMARY, ({"k": "1e999"},)),
    (EventKind.SUMMARY, ({1: "1"},)),
    (EventKind.CONFIG, (None,)),
    (EventKind.CONFIG, ([1, 2],)),
    (EventKind.CONFIG, ({"k": 5},)),
    (EventKind.STATE, ("no map",)),
    (EventKind.STATE, ({"state": "exploded"},)),
    (EventKind.STATE, ({},)),
    (EventKind.PEER, (b"short", {"state": "crashed"})),
    (EventKind.PEER, (None, {"state": "crashed"})),
    (EventKind.LOST, ("no bytes", 0, 1, "reason")),
    (EventKind.LOST, (b"", 0, 1, None)),
    (EventKind.TEXT, (0, 5, "value")),
    (EventKind.TEXT, (0, "key", None)),
    (EventKind.HISTOGRAM, (0, "key", b"odd", b"")),
    (EventKind.MEDIA, (0, 5, "image", bytes(32), 1, "{}")),
    (EventKind.MEDIA, (0, "key", None, bytes(32), 1, "{}")),
    (EventKind.MEDIA, (0, "key", "image", b"short", 1, "{}")),
    (EventKind.MEDIA, (0, "key", "image", "../etc/passwd", 1, "{}")),
    (EventKind.MEDIA, (0, "key", "image", bytes(32), 1, "no json")),
    (EventKind.CONSOLE, (1, 1, b"bytes")),
    (EventKind.NOTICE, (1, 2, 3, 4)),
    (EventKind.NOTICE, ("alert", "info", "nan in the body", {"x": float("nan")})),
    (EventKind.NOTICE, ("alert", "info", "bytes as a key", {b"x": 1})),
]


def test_an_event_with_the_wrong_types_costs_itself_and_is_a_row(index: Index) -> None:
    for number, (kind, fields) in enumerate(HOSTILE_EVENTS):
        rank = Rank(number, run_id=f"run{number}", primary=True)
        rank.say(kind, *fields)
        rank.log(5, a=1.0)
        index.take(whole(rank))
        of_run = f"WHERE run_id = 'run{number}'"
        assert index.sql(f"SELECT step, value FROM metrics {of_run}") == [(5, 1.0)], (kind, fields)
        assert index.sql("SELECT count(*) FROM base.quarantine") == [(number + 1,)], (kind, fields)
        assert index.sql(f"SELECT kind, label, level FROM events {of_run}") == [
            ("quarantined", f"rank{number}", "error")
        ], (kind, fields)
        completeness = index.sql(f"SELECT produced, stored, lost, pending FROM completeness {of_run}")
        assert completeness == [(3, 2, 1, 0)], (kind, fields)
    index.views()


@proves("key-cache-bounded", "keys at hand are bounded", condition=False)
def test_keys_at_hand_are_bounded_and_keep_their_integers(monkeypatch) -> None:
    monkeypatch.setattr(event_handlers, "_KEY_IDS_BYTES_MAX", 100)
    rank = Rank(0)
    for step in range(60):
        rank.log(step, **{f"key{step % 30}": 1.0})
    applier = apply(whole(rank))
    assert 0 < len(applier._events._key_ids) < 30
    assert applier.state.names == {f"key{number}": number + 1 for number in range(30)}


def test_texts_of_undecodable_bytes_are_rows_like_others(index: Index) -> None:
    rank = Rank(0)
    rank.say(EventKind.TEXT, 0, "\udcff", "\udcfe")
    rank.say(EventKind.CONSOLE, 1, 1, "\udcff\0")
    rank.say(EventKind.CONFIG, {"k\udcff": '"\\udcff"'})
    rank.say(EventKind.SUMMARY, {"k": '"\\ud800"'})
    rank.say(EventKind.NOTICE, "alert", "odd", "\udcff", {"\udcff": "\udcff"})
    index.take(whole(rank))
    assert index.sql("SELECT key, value FROM texts") == [("\\xff", "\\xfe")]
    assert index.sql("SELECT line FROM console") == [("\\xff\0",)]
    assert index.sql("SELECT key, value FROM config") == [("k\\xff", '"\ufffd"')]
    assert index.sql("SELECT value FROM summary") == [('"\ufffd"',)]
    assert index.sql("SELECT level, message FROM events") == [("info", "\\xff")]


def test_an_event_that_only_the_collector_understands_is_applied_from_its_payload(index: Index) -> None:
    """An agent older than its ranks keeps such events verbatim; more fields at the end are of a newer rank."""
    rank = Rank(0)
    rank.events.append(pack([int(EventKind.TEXT), START_US, 3, "key", "value", "a newer field"]))
    rank.events.append(pack([99, START_US, "unknown"]))
    rank.events.append(b"\xc1")
    index.take(whole(rank))
    assert index.sql("SELECT key, step, value FROM texts") == [("key", 3, "value")]
    assert index.sql("SELECT count(*) FROM base.quarantine") == [(2,)]
    assert index.sql("SELECT kind, seq FROM events ORDER BY seq") == [("quarantined", 2), ("quarantined", 3)]
    assert index.sql("SELECT stored, lost, pending FROM completeness") == [(2, 2, 0)]


def test_a_wrong_text_costs_none_of_the_texts_around_it() -> None:
    rank = Rank(0)
    for key, value in (("a", "1"), ("b", "2"), ("c", 3), (4, "4"), ("d", "5")):
        rank.say(EventKind.TEXT, 7, key, value)
    applier = apply(whole(rank))
    ids = applier.state.names
    assert [row[4:] for row in applier.batch.rows["texts"]] == [(ids["a"], "1"), (ids["b"], "2"), (ids["d"], "5")]
    assert len(quarantined(applier)) == 2


@pytest.mark.parametrize("kind", [kind for kind in EventKind if kind != EventKind.SYSTEM], ids=lambda kind: kind.name)
def test_an_event_of_each_kind_can_be_applied_if_its_agent_kept_it_verbatim(kind: EventKind) -> None:
    rank = Rank(0)
    rank.events.append(pack([kind, START_US, *EVENTS[kind], "a later field"]))
    assert quarantined(apply(whole(rank))) == []


@pytest.mark.parametrize("kind", EventKind, ids=lambda kind: kind.name)
def test_an_event_of_each_kind_can_be_applied(kind: EventKind) -> None:
    rank = Rank(0)
    rank.say(kind, *EVENTS[kind])
    assert apply(whole(rank)).batch.rows.get("quarantine", []) == []
