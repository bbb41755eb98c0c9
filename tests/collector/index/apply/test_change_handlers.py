"""Deletions, edits and saved views: what they change, and the same after a restart and a rebuild."""

from pathlib import Path

import pytest

from chiplog_schemas.codec import pack
from chiplog_schemas.model.change_record import Action
from chiplog_schemas.model.events import EventKind
from chiplog_schemas.storage.record import Kind
from tests.support.changes import at_once_and_one_by_one, change, deletion, logged
from tests.support.collector_log import Rank, block_of, whole
from tests.support.index import Index
from tests.support.safeguard import proves
from tests.support.sample_log import everything

DELETED = "SELECT message, body->'runs' FROM events WHERE kind = 'run_deleted'"


def rows_of_producers(index: Index) -> dict[str, int]:
    """Return how many rows each table has that belong to a producer."""
    tables = index.database._tables_of_producers()
    assert {"metrics_recent", "producers", "identified", "intervals", "metric_series"} <= set(tables)
    [row] = index.sql(
        "SELECT " + ", ".join(f"(SELECT count(*) FROM base.{name} WHERE producer IS NOT NULL)" for name in tables)
    )
    return {name: n for name, n in zip(tables, row, strict=True) if n}


def test_a_deleted_run_leaves_no_row_and_others_stay_as_they_are(index: Index) -> None:
    other = logged(50, run_id="other", primary=True)
    index.take(whole(other))
    before, own = index.views(), rows_of_producers(index)
    index.take(*everything())
    producers = [uuid for uuid in index.follower._applier.state.producers if uuid != other.uuid]
    index.take(change(Action.DELETE, producers=producers, runs=["r"], why="prune"))
    after = index.views()
    assert rows_of_producers(index) == own
    assert index.sql("SELECT run_id FROM runs") == [("other",)]
    assert index.sql("SELECT count(*) FROM base.runs") == [(1,)]
    assert {name for name in after if after[name] != before[name]} <= {"events", "saved_views"}, (
        "damage and changes are reported"
    )
    assert index.sql(DELETED) == [("deleted run r (prune)", '["r"]')]
    index.reopen()
    assert index.views() == after


@proves("deleted-stays-deleted", "what arrives of a deleted producer is ignored, also after a restart", condition=False)
def test_what_still_arrives_of_a_deleted_run_is_ignored_also_after_a_restart(index: Index) -> None:
    rank, mate = logged(0, 6), logged(1, run_id="kept", primary=True)
    index.take(block_of((rank, 0, 3)), deletion(rank))
    index.take(block_of((rank, 4, 5), (mate, 0, 1)))
    index.reopen()
    index.take(block_of((rank, 6, 6), (mate, 2, 3)))
    assert index.sql("SELECT run_id, count(*) FROM metrics GROUP BY ALL") == [("kept", 3)]
    assert index.sql("SELECT run_id, stored FROM completeness") == [("kept", 4)]


def test_a_run_of_the_same_name_begins_anew_after_a_deletion(index: Index) -> None:
    first, second = logged(0, name="first"), logged(1, rank=0, primary=True, name="second", label="rank0")
    index.take(whole(first), deletion(first), whole(second))
    assert index.sql("SELECT run_id, name, primary_label, n_attempts FROM runs") == [("r", "second", "rank0", 1)]


@proves("report-about-deleted-ignored", "a report about a deleted producer does not bring it back", value="False")
def test_a_report_about_a_deleted_producer_does_not_bring_it_back(index: Index) -> None:
    rank, agent = logged(0), Rank(9, label="agent", role="agent")
    agent.say(EventKind.PEER, rank.uuid, {"state": "crashed", "reason": "gone", "produced": 500, "node": "n"})
    agent.say(EventKind.LOST, rank.uuid, 300, 350, "disk")
    index.take(whole(rank), deletion(rank), whole(agent))
    assert index.sql("SELECT DISTINCT role FROM base.producers") == [("agent",)]
    index.take((Kind.PRESENCE, pack([b"S" * 16, False, 20_000_000, "node-a", "boot"])))
    assert index.sql("SELECT count(*) FROM base.quarantine") == [(0,)]


@proves("console-deleted-with-owner", "the console of a deleted label is deleted with it")
@pytest.mark.parametrize("is_late", [False, True])
def test_the_console_of_a_deleted_label_goes_with_it_whenever_it_comes(index: Index, is_late: bool) -> None:
    rank, console = logged(0), Rank(5)
    console.events.clear()
    console.say(EventKind.IDENTITY, {"role": "console", "of": rank.uuid.hex(), "node": "node-a"})
    console.say(EventKind.CONSOLE, 1, 1, "a line")
    came = [deletion(rank), whole(console)] if is_late else [whole(console), deletion(rank)]
    index.take(whole(rank), *came)
    index.take(block_of((console, 1, 1)))
    assert rows_of_producers(index) == {}
    assert index.sql("SELECT count(*) FROM base.deleted") == [(2,)]


@proves(
    "label-not-deleted-as-console", "a label that says that it is a deleted one's console is not deleted", value="True"
)
def test_a_label_is_not_deleted_as_the_console_of_a_deleted_one(index: Index) -> None:
    gone, label = logged(0), logged(1)
    index.take(whole(gone, label), deletion(gone))
    label.say(EventKind.IDENTITY, {"role": "console", "of": gone.uuid.hex()})
    index.take(whole(label))
    assert index.sql("SELECT label FROM labels") == [("rank1",)]
    assert index.sql("SELECT count(*) FROM metrics") == [(3,)]


def test_labels_that_joined_after_the_deletion_was_decided_stay(index: Index) -> None:
    rank, late = logged(0), logged(1)
    index.take(whole(rank), whole(late), deletion(rank))
    assert index.sql("SELECT label FROM labels") == [("rank1",)]
    assert index.sql("SELECT count(*) FROM runs") == [(1,)]


def test_other_names_of_a_deleted_run_go_with_it(index: Index) -> None:
    rank = logged(0, run_id="provisional")
    rank.become(run_id="agreed", formerly="provisional")
    index.take(whole(rank))
    assert index.sql("SELECT run_id FROM base.runs ORDER BY ALL") == [("agreed",), ("provisional",)]
    index.take(deletion(rank, run="agreed"))
    assert index.sql("SELECT count(*) FROM base.runs") == [(0,)]
    index.take(whole(logged(2, run_id="provisional", primary=True)))
    assert index.sql("SELECT run_id FROM runs") == [("provisional",)]


@proves("numbers-not-given-again", "numbers of deleted runs and producers are not given to others")
def test_numbers_of_deleted_producers_are_not_given_to_others_after_a_restart(index: Index) -> None:
    rank = logged(0)
    index.take(whole(rank), deletion(rank))
    index.reopen()
    index.take(whole(logged(1, run_id="next")))
    assert index.sql("SELECT producer, run FROM base.producers") == [(2, 2)]


def test_what_was_restored_is_taken_again(index: Index) -> None:
    rank = logged(0)
    index.take(whole(rank), deletion(rank), change(Action.RESTORE, 2, producers=[rank.uuid], runs=["r"]))
    index.reopen()
    index.take(whole(rank))
    assert index.sql("SELECT run_id, count(*) FROM metrics GROUP BY ALL") == [("r", 3)]
    index.take(deletion(rank, number=3))
    assert index.sql("SELECT count(*) FROM runs") == [(0,)]


@proves(
    "edited-field-stays",
    "an edited field stays when a rank reports another value",
    part=" and column not in run.edited",
)
def test_an_edited_field_stays_when_a_rank_reports_another_value(index: Index) -> None:
    rank = logged(0, name="old", tags=["a"], notes="n", project="p")
    index.take(whole(rank))
    index.take(change(Action.EDIT, run="r", fields={"name": "new", "tags": ["b", "c"], "notes": None}))
    index.reopen()
    rank.become(name="old again", project="q")
    index.take(whole(rank))
    assert index.sql("SELECT name, tags, notes, project FROM runs") == [("new", ["b", "c"], None, "q")]
    query = "SELECT run_id, label, message FROM events WHERE kind = 'run_edited'"
    assert index.sql(query) == [("r", None, "edited name, tags, notes of run r")]


def test_a_view_is_kept_replaced_and_removed(index: Index) -> None:
    index.take(
        change(Action.SAVE_VIEW, 1, name="mine", view='{"a": 1}'), change(Action.SAVE_VIEW, 2, name="x", view="[]")
    )
    index.take(
        change(Action.SAVE_VIEW, 3, name="mine", view='{"a": 2}'), change(Action.SAVE_VIEW, 4, name="x", view=None)
    )
    assert index.sql("SELECT name, view FROM saved_views") == [("mine", '{"a": 2}')]


@proves("bad-change-costs-itself", "a change that cannot be read costs itself only", value="()")
@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        pack([]),
        pack([b"short", "delete", {}]),
        pack([b"8 bytes!", "explode", {}]),
        pack([b"8 bytes!", "delete", {"producers": [b"short"]}]),
        pack([b"8 bytes!", "delete", {"producers": {}}]),
        pack([b"8 bytes!", "edit", {"run": "r", "fields": {"state": "finished"}}]),
        pack([b"8 bytes!", "edit", {"run": "r", "fields": {"tags": "text"}}]),
        pack([b"8 bytes!", "edit", {"run": 3, "fields": {"name": "n"}}]),
        pack([b"8 bytes!", "save_view", {"name": "", "view": "{}"}]),
        pack([b"8 bytes!", "save_view", {"name": "n", "view": "x" * 40_000}]),
        pack([b"8 bytes!", "save_view", {"name": "n", "view": "{"}]),
        pack([b"8 bytes!", "save_view", {"name": "n", "view": "[" * 20_000}]),
    ],
)
def test_a_change_that_cannot_be_read_is_set_aside(index: Index, payload: bytes) -> None:
    rank = logged(0)
    index.take((Kind.MANAGE, payload), whole(rank))
    assert index.sql("SELECT code, loses_events FROM base.quarantine") == [("invalid_record", False)]
    assert index.sql("SELECT count(*) FROM metrics") == [(3,)]


def test_all_changes_are_the_same_after_a_rebuild_and_with_each_in_its_own_transaction(tmp_path: Path) -> None:
    rank, again, agent = logged(0), logged(1, rank=0, label="rank0"), Rank(9, label="agent", role="agent")
    agent.say(EventKind.PEER, rank.uuid, {"state": "crashed", "reason": "gone"})
    payloads = [
        whole(rank, agent),
        change(Action.EDIT, 1, run="r", fields={"name": "edited"}),
        deletion(rank, number=2),
        whole(again),
        change(Action.EDIT, 3, run="r", fields={"notes": "n"}),
        change(Action.EDIT, 4, run="gone", fields={"notes": "n"}),
        (Kind.PRUNED, b""),
        whole(rank, again, agent),
    ]

    def look(index: Index) -> tuple[object, ...]:
        tables = [index.sql(f"SELECT * EXCLUDE (flush) FROM base.{table}") for table in ("producers", "runs")]
        return index.views(), *tables

    found = at_once_and_one_by_one(tmp_path, payloads, look, reopens=True)
    assert found[0] == found[1]
