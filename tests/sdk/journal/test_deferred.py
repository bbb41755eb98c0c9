"""Deferred events: appended in the order of their lane, or declared lost, and promised until then."""

import time
from collections.abc import Iterator

import pytest

from chiplog.journal.deferred import DeferredEvents
from chiplog.journal.journal import Journal
from chiplog_schemas.model.events import EventKind, decode, encode
from chiplog_schemas.storage.record import Record, scan_records


class Entry:
    """An event whose values the test makes ready."""

    def __init__(self, journal: Journal, step: int) -> None:
        self.journal = journal
        self.step = step
        self.ready = False
        self.error: Exception | None = None
        self.is_released = False

    def is_ready(self) -> bool:
        if self.error is not None:
            raise self.error
        return self.ready

    def append(self) -> None:
        if self.error is not None:
            raise self.error
        self.journal.append(encode(EventKind.TEXT, 1, self.step, "key", "value"))

    def release(self) -> None:
        self.is_released = True


@pytest.fixture
def journal() -> Iterator[Journal]:
    journal = Journal(None, bytes(16), b"")
    yield journal
    journal.close(remove=True)


@pytest.fixture
def failures() -> list[Exception]:
    return []


@pytest.fixture
def later(journal: Journal, failures: list[Exception]) -> DeferredEvents:
    return DeferredEvents(lambda: journal, failures.append)


def written(journal: Journal) -> list[object]:
    """Return the steps of the texts, and (number of events, reason) of each loss, as the journal has them."""
    found: list[object] = []
    end, _, layout = journal._tail
    for record in scan_records(bytes(layout.memory[48:end])):
        assert isinstance(record, Record)
        event = decode(record.payload)
        found.append((event[4] - event[3] + 1, event[5]) if event[0] == EventKind.LOST else event[2])
    return found


def test_events_of_a_lane_keep_their_order_and_lanes_do_not_wait_for_each_other(journal, later) -> None:
    entries = [Entry(journal, step) for step in range(4)]
    for entry in entries:
        later.add("gpu0" if entry.step < 3 else "gpu1", entry)
    assert journal._promised == later.pending == 4
    entries[1].ready = entries[3].ready = True
    later.poll()
    assert written(journal) == [3]
    entries[0].ready = True
    later.poll()
    assert written(journal) == [3, 0, 1]
    assert [entry.is_released for entry in entries] == [True, True, False, True]
    assert journal._promised == later.pending == 1


def test_a_value_that_cannot_be_read_is_declared_lost_and_holds_up_nothing(journal, later, failures) -> None:
    broken, good = Entry(journal, 0), Entry(journal, 1)
    broken.error, good.ready = RuntimeError("a device-side assert"), True
    later.add("gpu0", broken)
    later.add("gpu0", good)
    later.poll()
    assert written(journal) == [1, (1, "values on a device: could not be read")]
    assert [str(failure) for failure in failures] == ["a device-side assert"]
    assert broken.is_released and journal._promised == later.pending == 0


def test_the_end_waits_for_what_becomes_ready_and_declares_the_rest(journal, later) -> None:
    soon, never = Entry(journal, 0), Entry(journal, 1)
    ready_at = time.monotonic() + 0.05
    soon.is_ready = lambda: time.monotonic() >= ready_at
    later.add("gpu0", soon)
    later.add("gpu1", never)
    later.close(0.3, "not copied")
    assert written(journal) == [0, (1, "not copied")]
    assert not never.is_released, "a copy into its buffer may still be in progress"
    assert journal._promised == later.pending == 0


def test_events_that_could_not_be_added_are_promised_until_they_are_declared(journal, later) -> None:
    later.lose("no room", 3)
    later.lose("no room")
    assert journal._promised == later.pending == 4
    later.poll()
    assert written(journal) == [(4, "no room")]
    assert journal._promised == later.pending == 0


def test_a_poll_inside_of_a_poll_appends_nothing_twice(journal, later) -> None:
    entry = Entry(journal, 0)
    entry.ready = True

    def interrupted() -> bool:
        later.poll()  # as a signal handler that calls finish() does
        return True

    entry.is_ready = interrupted
    later.add("gpu0", entry)
    later.poll()
    assert written(journal) == [0]
