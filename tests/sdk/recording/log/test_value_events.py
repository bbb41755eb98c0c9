"""Numbers as events: the cache of key sets, its bounds, and events that are too large for one."""

from types import SimpleNamespace
from typing import Any

from chiplog.journal.event_sink import NullJournal
from chiplog.recording.log.logged_keys import LoggedKeys
from chiplog.recording.log.value_events import _SHAPES_MAX, ValueEvents
from chiplog.safety.diagnostics import Diagnostics
from chiplog.values.logged_values import LoggedValues
from chiplog_schemas.codec import packer, unpack
from chiplog_schemas.model.events import EventKind


class _Journal:
    def __init__(self) -> None:
        self.next_seq = 0
        self.events: list[Any] = []

    def append(self, payload: bytes, *, urgent: bool = False) -> None:
        self.next_seq += 1
        self.events.append(unpack(payload))


def values(event_bytes_max: int = 1_000, keys_max: int = 100) -> tuple[ValueEvents, Any, Diagnostics]:
    calls: Any = SimpleNamespace(_journal=_Journal(), _pack=packer().pack, _finished=False)
    diagnostics = Diagnostics(lambda *event: None)
    keys = LoggedKeys(keys_max, diagnostics.report_too_many_keys)
    return ValueEvents(calls, keys, LoggedValues(), diagnostics, event_bytes_max), calls, diagnostics


def test_the_cached_form_of_a_key_set_makes_the_same_event() -> None:
    events, calls, _ = values()
    for _ in range(2):
        events.append(EventKind.METRICS, 3, {"a": 1.0, "b": 2.0}, 5)
    assert calls._journal.events[0] == calls._journal.events[1]
    assert list(calls._key_sets) == [("a", "b")]


def test_numbers_that_exceed_an_event_are_split_and_none_is_lost() -> None:
    events, calls, _ = values(event_bytes_max=120)
    events.append(EventKind.METRICS, 0, {f"key{i:010}": float(i) for i in range(20)}, 5)
    keys = [key for event in calls._journal.events for key in unpack(event[3])]
    assert len(calls._journal.events) > 2 and keys == [f"key{i:010}" for i in range(20)]


def test_a_finished_run_caches_no_key_set() -> None:
    events, calls, _ = values()
    calls._finished, calls._journal = True, NullJournal()
    events.append(EventKind.METRICS, 0, {"a": 1.0})
    assert calls._key_sets == {}


def test_the_cache_begins_again_when_it_is_full() -> None:
    events, calls, _ = values(keys_max=2 * _SHAPES_MAX)
    for i in range(_SHAPES_MAX + 1):
        events.append(EventKind.PHASES, 0, {f"{i}": 1.0})
    assert len(calls._key_sets) == 1


def test_resolved_numbers_count_as_keys_and_report_nan() -> None:
    events, calls, diagnostics = values(keys_max=1)
    events.append_resolved(2, 9, {"a": float("nan"), "b": 1.0})
    [event] = calls._journal.events
    assert event[1:3] == [9, 2] and unpack(event[3]) == ["a"]
    assert diagnostics.counts == {"too_many_keys": 1, "not_finite": 1}
