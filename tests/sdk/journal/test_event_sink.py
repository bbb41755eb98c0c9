"""Substitutes for a journal: events are dropped, or wait until a forked child has opened its own."""

import threading
import time

import pytest

from chiplog.journal.event_sink import LazyJournal, NullJournal
from tests.support.threads import run_side_by_side
from tests.support.waiting import WAIT_S


class Memory:
    """A journal that keeps what it gets."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.next_seq = 0

    def append(self, payload: bytes, *, urgent: bool = False) -> None:
        self.payloads.append(payload)


def test_a_finished_run_is_told_of_each_event_that_is_dropped() -> None:
    refused: list[None] = []
    journal = NullJournal(7, lambda: refused.append(None))
    journal.append(b"a")
    journal.append(b"b", urgent=True)
    assert (len(refused), journal.next_seq) == (2, 7)


def test_a_child_opens_its_own_journal_with_its_first_event_and_none_for_its_end_alone() -> None:
    opened: list[Memory] = []

    def open_own() -> Memory:
        opened.append(Memory())
        return opened[-1]

    journal = LazyJournal(open_own)
    journal.append(b"the end", urgent=True)
    assert opened == []
    journal.append(b"first")
    journal.append(b"the end", urgent=True)
    journal.open()
    [own] = opened
    assert own.payloads == [b"first", b"the end"]


def test_threads_that_emit_their_first_events_at_once_share_one_journal_and_lose_none() -> None:
    opened: list[Memory] = []

    def open_own() -> Memory:
        time.sleep(0.05)
        opened.append(Memory())
        return opened[-1]

    journal = LazyJournal(open_own)
    start = threading.Barrier(8)

    def emit(number: int) -> None:
        start.wait(WAIT_S)
        journal.append(b"%d" % number)

    run_side_by_side(emit, range(8))
    [own] = opened
    assert sorted(own.payloads) == [b"%d" % number for number in range(8)]


def test_an_event_of_the_opening_itself_follows_into_the_journal() -> None:
    own = Memory()

    def open_own() -> Memory:
        journal.append(b"a warning of the opening")
        journal.append(b"another one", urgent=True)
        return own

    journal = LazyJournal(open_own)
    journal.append(b"first")
    assert sorted(own.payloads) == [b"a warning of the opening", b"another one", b"first"]


def test_a_journal_that_cannot_be_opened_is_tried_again_with_the_next_event() -> None:
    own, faults = Memory(), [OSError("no space")]

    def open_own() -> Memory:
        if faults:
            raise faults.pop()
        return own

    journal = LazyJournal(open_own)
    with pytest.raises(OSError, match="no space"):
        journal.append(b"first")
    journal.append(b"second")
    assert own.payloads == [b"second"]
