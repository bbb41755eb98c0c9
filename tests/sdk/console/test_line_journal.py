"""The journal of a helper: a producer beside the rank's, offline, delivered to an agent, or left to be adopted."""

import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chiplog.console.line_journal import ConsoleJournal
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

    def open_in(mode: str, **bounds: Any) -> ConsoleJournal:
        place = paths_for_root(chiplog_dir)
        ensure_private_dir(place.root)
        orders = {
            "places": [str(path) for path in (place.root, place.local, place.run)],
            "mode": mode,
            "agent": "",
            "bounds": dataclasses.asdict(Limits(**bounds)),
            "identity": {"node": "a", "sdk": "1", "of": RANK},
        }
        opened.append(ConsoleJournal(orders, lambda message: None))
        return opened[-1]

    yield open_in
    for journal in opened:
        journal.close(0.0)


def of(events: list[Event], kind: EventKind) -> list[dict[str, Any]]:
    return [event.fields for event in events if event.kind == kind]


def test_lines_and_notices_are_events_of_a_producer_beside_the_ranks(open_journal, offline) -> None:
    journal = open_journal("offline")
    journal.line(5, 2, 1, "a line")
    journal.line(6, 1, 2, "another")
    journal.notice("console_lost", "3 lines", {"lines": 3})
    journal.seal()
    [identity] = of(offline(), EventKind.IDENTITY)
    assert (identity["identity"]["role"], identity["identity"]["of"]) == ("console", RANK)
    assert not {"pid", "run_id", "label"} & set(identity["identity"]), "it is no rank, and no process to be sampled"
    lines = [event for event in offline() if event.kind == EventKind.CONSOLE]
    assert [event.ts for event in lines] == [5, 6]
    assert [tuple(event.fields.values()) for event in lines] == [(2, 1, "a line"), (1, 2, "another")]
    [notice] = of(offline(), EventKind.NOTICE)
    assert (notice["notice"], notice["level"], notice["body"]) == ("console_lost", "warning", {"lines": 3})
    assert [fields["state"] for fields in of(offline(), EventKind.STATE)] == [{"state": "finished"}]


def test_an_offline_journal_is_closed_and_complete_with_its_seal(open_journal, chiplog_dir: Path) -> None:
    journal = open_journal("offline")
    [folder] = (chiplog_dir / "offline").iterdir()
    assert lock_holder_pid(folder / "lock") > 0
    journal.line(5, 1, 1, "a line")
    journal.seal()
    assert lock_holder_pid(folder / "lock") == 0
    journal.close(0.0)  # once more is harmless
    assert len(read_events(chiplog_dir / "offline")) == 3


def test_a_journal_that_is_nearly_full_says_so(open_journal) -> None:
    journal = open_journal("offline", spool_bytes_max=4 * MIB)
    assert not journal.is_crowded
    for number in range(1100):
        journal.line(5, 1, number, "x" * 4096)
        if journal.is_crowded:
            break
    assert journal.is_crowded
    assert number > 100


def test_what_an_agent_has_taken_is_delivered_and_leaves_nothing(open_journal, bare_node: Node) -> None:
    bare_node.start_agent()
    journal = open_journal("online")
    journal.line(5, 1, 1, "a line")
    journal.seal()
    wait_until(lambda: journal.is_delivered_or_expired(1e9), "an agent that has the lines")
    bare_node.stop_agent()  # it would remove a journal that is left
    journal.close(0.0)
    assert list(bare_node.place.journals.glob("[!.]*")) == []


def test_without_an_agent_the_journal_is_left_and_none_is_started(open_journal, chiplog_dir: Path) -> None:
    place = paths_for_root(chiplog_dir)
    journal = open_journal("online")
    journal.line(5, 1, 1, "a line")
    assert not journal.is_delivered_or_expired(0.0), "the journal is not sealed"
    journal.seal()
    assert not journal.is_delivered_or_expired(1e9)
    time.sleep(0.01)
    assert journal.is_delivered_or_expired(0.01)
    journal.close(0.0)
    assert [fields["line"] for fields in of(read_events(place.journals), EventKind.CONSOLE)] == ["a line"]
    assert list(place.run.glob("chiplog_agent*")) == [], "neither a stamp of a start nor its output"
