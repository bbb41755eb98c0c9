"""The values of one dict by what becomes of them: numbers, events, or a report."""

from typing import Any

import pytest

from chiplog.recording.log.logged_dict import DictSorter
from chiplog.recording.log.logged_keys import LoggedKeys
from chiplog.safety.diagnostics import Diagnostic
from chiplog.values.metrics import Histogram
from chiplog_schemas.model.events import EventKind


class Sorted:
    """A sorter of its own, with what it emits and reports."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.media: list[tuple[Any, ...]] = []
        self.reported: list[Diagnostic] = []
        keys = LoggedKeys(4, lambda key, limit: None)
        self.sorter = DictSorter(
            keys,
            lambda *fields: self.events.append(fields),
            lambda *fields: self.media.append(fields),
            self.reported.append,
        )


@pytest.fixture
def given() -> Sorted:
    return Sorted()


def test_numbers_are_returned_and_texts_and_histograms_are_events(given: Sorted) -> None:
    data = {"loss": 1, "opt": {"lr": 0.5}, "note": "warm", "w": Histogram([1.0, 2.0])}
    assert given.sorter.sort(data, 3) == ({"loss": 1.0, "opt/lr": 0.5}, {})
    assert [event[:3] for event in given.events] == [(EventKind.TEXT, 3, "note"), (EventKind.HISTOGRAM, 3, "w")]
    assert not given.reported


def test_a_key_that_comes_twice_is_reported_and_one_over_the_limit_is_left_out(given: Sorted) -> None:
    numbers, _ = given.sorter.sort({"a/b": 1, "a": {"b": 2}, "c": 3, "d": 4, "e": 5, "f": 6}, 0)
    assert numbers == {"a/b": 2.0, "c": 3.0, "d": 4.0, "e": 5.0}
    assert [bad.kind for bad in given.reported] == ["same_key"]


def test_what_is_no_value_is_reported_by_its_key(given: Sorted) -> None:
    assert given.sorter.sort({"x": object()}, 0) == ({}, {})
    assert len(given.reported) == 1
