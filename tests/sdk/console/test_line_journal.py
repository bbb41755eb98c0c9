"""The journal of a helper: a producer beside the rank's, offline, delivered to an agent, or left to be adopted."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chiplog.console import line_journal
from chiplog.console.line_journal import ConsoleJournal
from chiplog_schemas.clock import now_us
from chiplog_schemas.limit_settings import Limits
from chiplog_schemas.limits import MIB
from chiplog_schemas.model.events import EventKind
from chiplog_schemas.paths import ensure_private_dir, paths_for_root
from chiplog_schemas.process.file_lock import lock_holder_pid
from tests.support.journals import Event, read_events
from tests.support.node import Node
from tests.support.waiting import wait_until

RANK = "11" * 16


@pytest.fixture
def open_journal(chiplog_dir: Path) -> Iterator[Callable[..., ConsoleJournal]]:
    opened: list[ConsoleJournal] = []

    def open_in(mode: str, **limits: Any) -> ConsoleJournal:
        place = paths_for_root(chiplog_dir)
        ensure_private_dir(place.root)
        orders = {
            "places": [str(path) for path in (place.root, place.local, place.run)],
            "mode": mode,
            "agent": "",
            "limits": dataclasses.asdict(Limits(**limits)),
            "identity": {"node": "a", "sdk": "1", "of": RANK},
        }
        opened.append(ConsoleJournal(orders, lambda message: None))
        return opened[-1]

    yield open_in
    for journal in opened:
        journal.seal()
        journal.close()


def of(events: list[Event], kind: EventKind) -> list[dict[str, Any]]:
    return [event.fields for event in events if event.kind == kind]


def test_lines_and_losses_are_events_of_a_producer_beside_the_ranks(open_journal, offline) -> None:
    journal = open_journal("offline")
    before_us = now_us()
    journal.line(2, 1, "a line")
    journal.line(1, 2, "another")
    journal.lost("3 lines", {"lines": 3})
    journal.seal()
    [identity] = of(offline(), EventKind.IDENTITY)
    assert (identity["identity"]["role"], identity["identity"]["of"]) == ("console", RANK)
    assert not {"pid", "run_id", "label"} & set(identity["identity"]), "it is no rank, and no process to be sampled"
    lines = [event for event in offline() if event.kind == EventKind.CONSOLE]
    assert before_us <= lines[0].ts <= lines[1].ts <= now_us()
    assert [tuple(event.fields.values()) for event in lines] == [(2, 1, "a line"), (1, 2, "another")]
    [notice] = of(offline(), EventKind.NOTICE)
    assert (notice["notice"], notice["level"], notice["body"]) == ("console_lost", "warning", {"lines": 3})
    assert [fields["state"] for fields in of(offline(), EventKind.STATE)] == [{"state": "finished"}]


def test_an_offline_journal_is_closed_and_complete_with_its_seal(open_journal, chiplog_dir: Path) -> None:
    journal = open_journal("offline")
    journal.line(1, 1, "a line")
    [folder] = wait_until(lambda: list((chiplog_dir / "offline").glob("[!.]*")), "a journal")
    assert lock_holder_pid(folder / "lock") > 0
    journal.seal()
    assert lock_holder_pid(folder / "lock") == 0
    journal.seal()  # once more is harmless
    assert len(read_events(chiplog_dir / "offline")) == 3


def test_without_a_line_no_journal_is_opened(open_journal, chiplog_dir: Path) -> None:
    journal = open_journal("offline")
    assert not journal.is_crowded
    journal.seal()
    journal.close()
    assert not (chiplog_dir / "offline").exists()


def test_a_journal_that_is_nearly_full_says_so(open_journal) -> None:
    journal = open_journal("offline", spool_bytes_max=4 * MIB)
    for number in range(1100):
        journal.line(1, number, "x" * 4096)
    wait_until(lambda: journal.is_crowded, "a journal that is nearly full")


def test_lines_that_a_slow_journal_leaves_queued_are_bounded(open_journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """The printing process waits as for a slow terminal, and no line is lost."""
    monkeypatch.setattr(line_journal, "_QUEUED_CHARS_MAX", 100)
    journal = open_journal("offline")
    for number in range(1000):
        journal.line(1, number, "x" * 60)
        assert journal._queue.qsize() <= 2
    journal.seal()
    assert journal._n_appended == 60_000


def test_a_journal_whose_thread_has_ended_is_not_written_to(open_journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """The helper ends then, and its rank starts another one or falls back."""
    monkeypatch.setattr("threading.excepthook", lambda error: None)
    journal = open_journal("offline")
    journal._orders["places"] = []
    with pytest.raises(RuntimeError, match="has ended"):
        while True:
            journal.line(1, 1, "a line")
    journal.seal()


def test_what_an_agent_has_taken_is_delivered_and_leaves_nothing(open_journal, bare_node: Node) -> None:
    bare_node.start_agent()
    journal = open_journal("online")
    journal.line(1, 1, "a line")
    journal.seal()
    journal.close()
    assert list(bare_node.place.journals.glob("[!.]*")) == []


def test_without_an_agent_the_journal_is_left_and_none_is_started(
    open_journal, chiplog_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_journal, "_DELIVER_WAIT_S", 0.5)
    place = paths_for_root(chiplog_dir)
    journal = open_journal("online")
    journal.line(1, 1, "a line")
    journal.seal()
    assert journal._thread.is_alive(), "an agent may still come"
    journal.close()
    assert [fields["line"] for fields in of(read_events(place.journals), EventKind.CONSOLE)] == ["a line"]
    assert list(place.run.glob("chiplog_agent*")) == [], "neither a stamp of a start nor its output"
