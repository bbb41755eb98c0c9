"""Records in, rows out: decided in log order, and nothing that arrives can stop it."""

import pytest

from chiplog_collector.index.apply.applier import Applier
from chiplog_collector.index.apply.state import State
from chiplog_collector.index.apply.validation import json_of, json_text
from chiplog_schemas.codec import pack
from chiplog_schemas.model.events import EventKind
from chiplog_schemas.storage.record import CorruptRange, Kind
from tests.support.collector_log import START_US, Rank, apply, block_of, quarantined, receipt, records, whole
from tests.support.index import Index
from tests.support.marks import everyday
from tests.support.safeguard import proves


def test_nothing_is_applied_before_its_receipt() -> None:
    rank = Rank(0)
    rank.log(0, a=1.0)
    applier = Applier(State())
    block, behind = records(whole(rank))
    applier.apply(block, block.number)
    assert not applier.is_between_receipts
    assert applier.batch.n_events == 0
    applier.apply(behind, behind.number)
    assert applier.is_between_receipts
    assert applier.batch.n_events == 2


def test_when_something_came_is_the_receipts_time_so_that_a_rebuild_is_the_same() -> None:
    applier = apply(whole(Rank(0)))
    assert [seen for *_, seen in applier.batch.intervals] == [START_US + 1_000_001]


# -- what cannot be applied --


def test_a_block_of_a_newer_version_is_parked_and_its_neighbours_applied() -> None:
    rank = Rank(0)
    newer = bytearray(whole(Rank(1)))
    newer[4:6] = (2).to_bytes(2, "little")
    applier = apply(bytes(newer), whole(rank))
    [reason] = quarantined(applier)
    assert "version 2 is newer" in reason
    assert set(applier.state.producers) == {rank.uuid}
    [row] = applier.batch.rows["quarantine"]
    assert row[3] == b"", "the log keeps it; the database does not need to"


@pytest.mark.parametrize("cut", [0, 5, 50, 200])
def test_bytes_that_are_no_block_are_set_aside_with_a_row_in_events(cut) -> None:
    rank = Rank(0)
    applier = apply(whole(Rank(1))[:cut], whole(rank))
    assert len(quarantined(applier)) == 1
    assert [row[3] for row in applier.batch.rows["events"]] == ["quarantined"]
    assert set(applier.state.producers) == {rank.uuid}


def test_records_of_other_kinds_damage_and_gaps_leave_a_row_each() -> None:
    applier = apply((77, b"x"), (Kind.GAP, pack([b"S" * 16, 3, 5, "trimmed"])), (Kind.GAP, b"\xc1"))
    applier.apply(CorruptRange(10, 20, "checksum mismatch"), 9)
    kinds = [row[3] for row in applier.batch.rows["events"]]
    assert kinds == ["quarantined", "gap", "gap", "quarantined"]
    assert "3..5" in applier.batch.rows["events"][1][5]
    assert quarantined(applier) == ["record of kind 77 is unknown", "log damaged: checksum mismatch"]


HOSTILE_IDENTITIES = [
    {"label": "half \udcff", "node": "\udcff", "project": "\udcff"},
    {"tags": ["\udcff", 5, None], "gpus": [b"x", {}]},
    {"pid": 2**64 - 1, "restart": 2**64 - 1, "started_at": 2**64 - 1},
    {"started_at": 2**62, "rank": 2**40, "world_size": -(2**40)},
    {"started_at": -(2**63), "restart": -5},
    {"label": "x" * 100_000, "run_id": "y" * 100_000},
    {"label": "nul \0 and 'quotes' \"too\"", "notes": "\\u0000"},
    {"role": None, "rank": "one", "primary": "yes", "tags": "no list", "pid": True},
]


@pytest.mark.parametrize("identity", everyday(3, HOSTILE_IDENTITIES), ids=str)
def test_an_identity_of_odd_values_is_taken_as_far_as_it_makes_sense(index: Index, identity) -> None:
    rank = Rank(0, **identity)
    rank.log(5, a=1.0)
    rank.say(EventKind.STATE, {"state": "failed", "reason": "\udcff", "exit_code": 2**40, "exit_signal": 9})
    index.take(whole(rank))
    assert index.sql("SELECT count(*) FROM base.quarantine") == [(0,)]
    assert index.sql("SELECT state, exit_code, exit_signal FROM labels") in ([], [("failed", None, 9)])
    assert index.sql("SELECT step FROM metrics") == [(5,)]
    before = index.views()
    index.reopen()
    assert index.views() == before


@proves("identity-bounded", "what the index keeps of one identity is bounded", value="text")
@proves("metric-name-bounded", "a metric's name is bounded where it is kept")
def test_what_the_index_keeps_of_one_identity_is_bounded(index: Index) -> None:
    """All of it stays in memory forever: an agent that may deliver must not be able to fill the memory."""
    long = "x" * 100_000
    texts = ("role", "run_id", "project", "name", "group", "job_type", "notes", "label", "node", "launch", "sdk")
    rank = Rank(0, **dict.fromkeys(texts, long), gpus=["x" * 500] * 1_000, tags=[long, *map(str, range(1_000))])
    rank.say(EventKind.LOST, b"", 100, 200, long)
    rank.say(EventKind.TEXT, 0, long, "text")
    rank.say(EventKind.STATE, {"state": "failed", "reason": long})
    index.take(whole(rank))
    state = index.follower._applier.state
    kept = [*state.producers.values(), *state.runs.values(), *state.lost.values(), *state.names]
    assert sum(len(str(entry)) for entry in kept) < 100_000
    assert index.sql("SELECT count(*) FROM base.quarantine") == [(0,)]
    [(message,)] = index.sql("SELECT message FROM events WHERE kind = 'bad_value'")
    assert message.startswith("identity: role, run_id, project, name, group, job_type, tags, notes, label, node, gpus")
    [(node, gpus)] = index.sql("SELECT node, gpus FROM base.producers")
    assert (node, gpus) == ("x" * 128, ["x" * 128] * 64)
    before = index.views()
    index.reopen()
    assert index.views() == before
    again = rank.become(node=long + "y")
    index.take(block_of((rank, again, again)))
    assert index.sql("SELECT count(*) FROM base.producers") == [(1,)]


def test_half_characters_never_make_json_that_duckdb_refuses() -> None:
    assert json_of('{"a": "\\ud800", "b": NaN}') == '{"a": "\ufffd", "b": "NaN"}'
    assert json_text({"\udcff": "ü\U0001f600"}) == '{"\ufffd": "ü\U0001f600"}'
    with pytest.raises(ValueError, match="JSON"):
        json_of("1e999")


# -- who is who --


def test_an_identity_that_is_known_later_moves_rows_without_rewriting_facts(index: Index) -> None:
    rank = Rank(1, label="host-bbb", run_id="provisional", rank=None)
    rank.log(0, a=1.0)
    index.take(whole(rank))
    assert index.sql("SELECT run_id, label, rank FROM metrics") == [("provisional", "host-bbb", None)]
    facts = index.sql("SELECT rowid, * FROM base.metrics_recent")
    moved = rank.become(run_id="agreed", label="rank1", rank=1)
    index.take(block_of((rank, moved, moved)))
    assert index.sql("SELECT run_id, label, rank FROM metrics") == [("agreed", "rank1", 1)]
    assert index.sql("SELECT rowid, * FROM base.metrics_recent") == facts
    assert index.sql("SELECT run_id FROM runs") == [("agreed",)], "the provisional run has no members any more"


def test_events_before_their_identity_find_their_run_once_it_is_known(index: Index) -> None:
    rank = Rank(0)
    rank.log(3, a=1.0)
    index.take(block_of((rank, 1, 1)))
    assert index.sql("SELECT run_id, step FROM metrics") == [(None, 3)]
    index.take(block_of((rank, 0, 0)))
    assert index.sql("SELECT run_id, step FROM metrics") == [("r", 3)]


def test_a_rank_that_vanished_is_crashed_and_what_it_produced_is_known(index: Index) -> None:
    rank, agent = Rank(0), Rank(9, role="agent", label="agent")
    agent.say(EventKind.PEER, rank.uuid, {"state": "crashed", "reason": "vanished", "produced": 5})
    index.take(whole(rank), whole(agent))
    assert index.sql("SELECT label, state, reason FROM labels") == [("rank0", "crashed", "vanished")]
    assert index.sql("SELECT produced, stored, lost, pending FROM completeness") == [(5, 1, 0, 4)]
    assert index.sql("SELECT kind, label, message FROM events") == [("crashed", "rank0", "rank0 crashed: vanished")]


def test_an_end_that_is_told_before_the_identity_names_its_label_once_that_is_known(index: Index) -> None:
    rank, agent = Rank(0), Rank(9, role="agent", label="agent")
    helper = Rank(8, role="console", of=rank.uuid.hex(), run_id=None, label=None, primary=None)
    for ended in (rank, helper):
        agent.say(EventKind.PEER, ended.uuid, {"state": "crashed", "reason": "killed by SIGKILL"})
    index.take(whole(agent))
    told = "SELECT kind, level, label, message FROM events ORDER BY kind DESC"
    assert index.sql(told) == [("crashed", "error", None, "a producer crashed: killed by SIGKILL")] * 2
    index.take(whole(rank), whole(helper))
    of_helper = "the helper that recorded the console crashed: killed by SIGKILL"
    assert index.sql(told) == [
        ("crashed", "error", "rank0", "rank0 crashed: killed by SIGKILL"),
        ("console_helper", "warning", "rank0", of_helper),
    ]


@proves(
    "early-end-by-outcome",
    "only an end that was reported before its label was known is worded again",
    part="e.outcome IS NOT NULL",
    new="e.message LIKE 'a producer %'",
)
def test_what_a_producer_words_like_an_early_end_stays_as_it_is(index: Index) -> None:
    rank = Rank(0)
    rank.say(EventKind.NOTICE, "failed", "error", "a producer failed: of hydrogen", {})
    index.take(whole(rank))
    assert index.sql("SELECT kind, message FROM events") == [("failed", "a producer failed: of hydrogen")]


def test_each_event_is_one_row_whatever_the_database_optimizes(index: Index) -> None:
    ranks, agent = [Rank(number) for number in range(4)], Rank(9, role="agent", label="agent")
    for rank in ranks:
        rank.say(EventKind.NOTICE, "alert", "info", "a word", {})
        agent.say(EventKind.PEER, rank.uuid, {"state": "crashed", "reason": "killed by SIGKILL"})
    index.take(whole(agent), *map(whole, ranks))
    # As for people who ask chiplog, or open the file with DuckDB itself.
    for disabled in ("common_subplan,compressed_materialization", ""):
        index.sql(f"SET GLOBAL disabled_optimizers = '{disabled}'")
        assert len(index.sql("SELECT run_id, label, kind, message, ts FROM events")) == 8


def test_the_receipts_of_hand_made_logs_are_the_receivers() -> None:
    from chiplog_schemas.model.receipt import decode_receipt

    assert decode_receipt(receipt(3)).received_us == START_US + 1_000_003
