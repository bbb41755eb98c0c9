"""Imported events: identities and rows as another collector decided them, once, and only for nodes of the sender."""

from typing import Any

import pytest

from chiplog_collector.index.apply.imports import parse_part
from chiplog_schemas.model.change_record import Action, Change, encode_change
from chiplog_schemas.model.events import EventKind
from chiplog_schemas.storage.record import Kind
from tests.schemas.make_vectors import EVENTS
from tests.support.collector_log import START_US, Rank, whole
from tests.support.imported_blocks import PRODUCER, block, head
from tests.support.index import Index
from tests.support.safeguard import proves


def test_an_identity_is_entered_as_the_other_collector_had_it(index: Index) -> None:
    body = head(
        attempt=7,
        rank=3,
        state="failed",
        exit_code=1,
        reason="boom",
        cause="exception",
        ended_at=START_US + 10,
        produced=9,
        gpus=["GPU-1"],
        clock_us=42,
        late_us=3,
    )
    body |= {"seqs": [1, 5], "lost": [[6, 8, "disk full"]]}
    index.take(block(body))
    columns = "run_id, label, attempt, is_primary, rank, node, state, exit_code, reason, gpus, last_seen_at"
    [row] = index.sql(f"SELECT {columns} FROM labels")
    seen = index.sql(f"SELECT make_timestamp({START_US + 5})")[0][0]
    assert row == ("r", "rank0", 0, True, 3, "node-a", "failed", 1, "boom", ["GPU-1"], seen)
    assert index.sql("SELECT produced, stored, lost, pending, reasons FROM completeness") == [(9, 6, 3, 0, "disk full")]
    assert index.sql("SELECT project, state, primary_label FROM runs") == [("p", "failed", "rank0")]
    assert index.sql("SELECT clock_us, late_us, cause FROM base.producers") == [(42, 3, "exception")]
    assert index.sql("SELECT kind FROM events") == [], "its end was reported where it was recorded"


def test_rows_keep_their_seqs_and_times(index: Index) -> None:
    rows = {
        "config": [[1, START_US, "lr", "0.1"]],
        "files": [[2, START_US + 1, "a/b", 10, bytes(32)]],
        "stored": [[bytes(32), 10, START_US + 9]],
        "events": [[3, START_US + 2, "alert", "warning", "high", '{"x": 1}', None]],
    }
    index.take(block({**rows, "seqs": [4, 6]}, head()))
    assert index.sql("SELECT key, value, epoch_us(ts) FROM config") == [("lr", "0.1", START_US)]
    assert index.sql("SELECT path, bytes, epoch_us(ts) FROM files") == [("a/b", 10, START_US + 1)]
    assert index.sql("SELECT seq, epoch_us(ts), kind, message FROM events ORDER BY seq") == [
        (2, START_US + 9, "file_stored", "file a/b arrived whole, 10 bytes"),
        (3, START_US + 2, "alert", "high"),
    ]


def test_the_same_import_twice_changes_nothing(index: Index) -> None:
    rank = Rank(5)
    rank.log(1, loss=0.5)
    payload = block({"config": [[1, START_US, "lr", "0.1"]]}, head(), metrics=rank)
    before = index.take(payload).views()
    assert len(before["metrics"]) == 1
    assert index.take(payload, payload).views() == before
    index.reopen()
    assert index.take(payload).views() == before


@proves(
    "known-producer-keeps-identity",
    "an import changes no identity that is known, and adds none of its rows",
    condition=False,
)
def test_what_its_agent_delivered_has_priority(index: Index) -> None:
    rank = Rank(0, state="x")
    before = index.take(whole(rank)).views()
    body = head(run="other", rank=9) | {"config": [[1, START_US, "lr", "0.1"]], "seqs": [50, 60]}
    after = index.take(block(body, uuid=rank.uuid, first=30)).views()
    assert {view for view in after if after[view] != before[view]} == {"completeness"}
    assert index.sql("SELECT run_id, label, rank, stored FROM labels JOIN completeness USING (run_id, label)") == [
        ("r", "rank0", 0, 2)
    ], "only the event itself is new"


@proves(
    "import-shows-no-clock",
    "the age of imported data says nothing about its node's clock",
    part="not block.is_imported and ",
)
@proves(
    "import-is-no-agent",
    "a label is not presumed dead because its importer has left",
    part="not block.is_imported and ",
)
def test_an_import_shows_no_clock_no_time_of_arrival_and_no_agent(index: Index) -> None:
    rank = Rank(5)
    rank.log(1, loss=0.5)
    index.take(block(head(), metrics=rank))
    assert index.sql("SELECT clock_us, sender FROM base.producers") == [(None, None)]
    assert index.sql("SELECT epoch_us(max(last_seen_at)) FROM labels") == [(START_US + 5,)]


def test_attempts_are_counted_as_they_were(index: Index) -> None:
    uuids = [bytes([number]) * 16 for number in range(3)]
    for number, uuid in enumerate(uuids):
        index.take(block(head(launch="one", restart=number, is_primary=number == 0), uuid=uuid))
    index.take(block(head(label="rank1", is_primary=False), uuid=b"u" * 16))
    assert index.sql("SELECT attempt, is_primary FROM labels WHERE label = 'rank0' ORDER BY attempt") == [
        (0, True),
        (1, False),
        (2, False),
    ]


def test_an_import_completes_a_run_and_replaces_nothing_of_it(index: Index) -> None:
    index.take(whole(Rank(0, project="mine", run_id="r")))
    body = head(label="eval", is_coauthor=True)
    body["run"] |= {"project": "theirs", "name": "new", "primary_label": "eval"}
    index.take(block(body))
    assert index.sql("SELECT project, name, primary_label FROM runs") == [("mine", "new", "rank0")]
    assert index.sql("SELECT label FROM labels WHERE is_primary") == [("rank0",)]
    assert index.sql("SELECT is_coauthor FROM base.identified WHERE label = 'eval'") == [(False,)]


def test_a_console_follows_its_owner(index: Index) -> None:
    lines = Rank(5)
    lines.say(EventKind.CONSOLE, 1, 1, "hello")
    console = {"producer": {"role": "console", "node": "node-a"}, "owner": PRODUCER}
    index.take(block(console, uuid=b"imported-console", metrics=lines), block(head()))
    assert index.sql("SELECT run_id, label, line FROM console") == [("r", "rank0", "hello")]


@proves("import-of-foreign-node-refused", "an import is refused for nodes that its key does not cover", value="None")
def test_a_key_admits_only_producers_of_its_nodes(index: Index) -> None:
    index.take_from("node-b", block(head()))
    assert index.sql("FROM labels") == []
    assert index.sql("SELECT kind, run_id, label FROM events") == [("refused_node", "r", "rank0")]
    index.take_from("node-a", block(head()))
    assert index.sql("SELECT label FROM labels") == [("rank0",)]


@proves(
    "import-joins-no-foreign-run",
    "an import adds no label to a run of nodes that its key does not cover",
    condition=False,
)
def test_a_restricted_import_joins_no_run_of_other_nodes(index: Index) -> None:
    index.take(whole(Rank(0, run_id="r", node="node-a")))
    index.take_from("node-b", block(head(label="intruder", node="node-b")))
    assert index.sql("SELECT label FROM labels") == [("rank0",)]
    [(reason,)] = index.sql("SELECT reason FROM base.quarantine")
    assert "run r has labels of nodes that the sender's key does not cover" in reason
    index.take_from("node-a", block(head(label="rank1", is_primary=False), uuid=b"x" * 16))
    assert index.sql("SELECT label FROM labels ORDER BY label") == [("rank0",), ("rank1",)]


def test_a_deleted_producer_stays_deleted(index: Index) -> None:
    body = {"producers": [PRODUCER], "runs": ["r"], "why": ""}
    index.take(block(head()), (Kind.MANAGE, encode_change(Change(bytes(8), Action.DELETE, body))), block(head()))
    assert index.sql("FROM labels") == []


MALFORMED: list[Any] = [
    None,
    [],
    {"producer": []},
    {"producer": {"label": "a"}},
    {"producer": {"role": "rank"}, "run": {"run_id": "r"}},
    {"producer": {"role": "rank", "label": "a"}, "run": {}},
    {"producer": {"role": "rank", "label": "a", "state": "gone"}, "run": {"run_id": "r"}},
    {"producer": {"role": "console"}, "owner": b"short"},
    {"seqs": [1]},
    {"seqs": [5, 4]},
    {"seqs": [1, 2, 2, 3]},
    {"seqs": [0, 1 << 53]},
    {"seqs": "12"},
    {"seen_at": "now"},
    {"seen_at": 1 << 63},
    {"lost": [[1, 2]]},
    {"config": [[1, START_US, "lr", "{"]]},
    {"config": [[1, START_US, "lr", "1e999"]]},
    {"config": [[-1, START_US, "lr", "1"]]},
    {"files": [[1, START_US, "../up", 1, bytes(32)]]},
    {"files": [[1, START_US, "a", -1, bytes(32)]]},
    {"files": [[1, START_US, "a", 1, bytes(31)]]},
    {"stored": [[bytes(32), 1, None]]},
    {"events": [[1, START_US, "alert", "info", "x", "[]", None]]},
    {"events": [[1, START_US, "alert", "info", 5, "{}", None]]},
]


@pytest.mark.parametrize("body", MALFORMED, ids=repr)
def test_a_malformed_event_is_quarantined_and_changes_nothing_else(index: Index, body: Any) -> None:
    rows = {"config": [[1, START_US, "lr", "0.1"]], "events": [[3, START_US, "alert", "info", "high", "{}", None]]}
    index.take(block({**rows, **body} if isinstance(body, dict) else body))
    [(code, reason)] = index.sql("SELECT code, reason FROM base.quarantine")
    assert (code, reason.partition(":")[0]) == ("event_rejected", "event of kind 17 cannot be applied")
    assert [kind for (kind,) in index.sql("SELECT kind FROM events")] == ["quarantined"]
    assert index.sql("FROM base.config") == index.sql("FROM base.runs") == []


def test_the_golden_vector_is_valid() -> None:
    part = parse_part(EVENTS[EventKind.IMPORTED][0])
    assert part.producer is not None
    assert part.producer["cause"] == "exception"
    assert part.seqs == [(1, 4), (9, 9)]


def test_values_out_of_range_are_dropped_from_an_identity() -> None:
    said = {
        "role": "rank",
        "rank": 1 << 40,
        "produced": -1,
        "clock_us": 1 << 60,
        "late_us": -5,
        "cause": "none",
        "pid": "x",
    }
    assert parse_part({"producer": said}).producer == {"role": "rank", "late_us": 0}
