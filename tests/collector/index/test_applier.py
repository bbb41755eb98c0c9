"""Records in, rows out: exactly once, decided in log order, and nothing that arrives can stop it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chiplog_collector.index import applier as applier_module
from chiplog_collector.index.applier import Applier
from chiplog_collector.index.state import State
from chiplog_collector.index.validation import json_of, json_text
from chiplog_schemas.codec import pack
from chiplog_schemas.model.blocks import BlockBuilder
from chiplog_schemas.model.events import EventKind
from chiplog_schemas.storage.record import CorruptRange, Kind
from tests.schemas.make_vectors import EVENTS
from tests.support.collector_log import START_US, Rank, apply, block_of, receipt, records, whole
from tests.support.index import Index
from tests.support.safeguard import Safeguard

SAFEGUARDS = [
    Safeguard(
        "only an end that was reported before its label was known is worded again",
        "early-end-by-outcome",
        part="e.outcome IS NOT NULL",
        new="e.message LIKE 'a producer %'",
        test="test_what_a_producer_words_like_an_early_end_stays_as_it_is",
    ),
    Safeguard(
        "what the index keeps of one identity is bounded",
        "identity-bounded",
        value="text",
        test="test_what_the_index_keeps_of_one_identity_is_bounded",
    ),
    Safeguard(
        "a metric's name is bounded where it is kept",
        "metric-name-bounded",
        test="test_what_the_index_keeps_of_one_identity_is_bounded",
    ),
    Safeguard(
        "keys at hand are bounded",
        "key-cache-bounded",
        condition=False,
        test="test_keys_at_hand_are_bounded_and_keep_their_integers",
    ),
]


def points(applier: Applier) -> list[tuple[int, int]]:
    """Return (producer, seq) of every row of a matrix, each value once."""
    return sorted(
        (int(producer), int(seq))
        for matrices in applier.batch.metrics.values()
        for matrix in matrices
        for producer, seq in zip(matrix.producer, matrix.seq, strict=True)
    )


# -- exactly once --


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 12)), min_size=1, max_size=4),
        max_size=12,
    )
)
def test_every_event_becomes_a_row_once_however_blocks_overlap_repeat_and_come(blocks) -> None:
    """Invariant: the rows are the union of all events that arrived, each (producer, seq) once; so is the ledger."""
    ranks = [Rank(number) for number in range(3)]
    for rank in ranks:
        for step in range(43):
            rank.log(step, a=1.0, b=float(step))
    expected: set[tuple[int, int]] = set()
    payloads = []
    for parts in blocks:
        payloads.append(block_of(*((ranks[who], first, first + more) for who, first, more in parts)))
        expected |= {(who, seq) for who, first, more in parts for seq in range(first, first + more + 1)}
    applier = apply(*payloads)
    uuids = {producer.producer: producer.uuid[0] for producer in applier.state.producers.values()}
    rows = [(uuids[number], seq) for number, seq in points(applier)]
    assert sorted(rows) == sorted((who, seq) for who, seq in expected if seq > 0), "seq 0 is the identity"
    ledger = {
        (uuids[number], seq)
        for number, have in applier.state.have.items()
        for first, last in have
        for seq in range(first, last + 1)
    }
    assert ledger == expected
    written = sum(last - first + 1 for _, first, last, _ in applier.batch.intervals)
    assert written == len(expected) == applier.batch.n_events


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40), st.integers(0, 15)), min_size=1, max_size=15))
def test_produced_is_stored_and_lost_and_pending_in_any_order_of_data_and_losses(steps) -> None:
    """Invariant: stored and lost are disjoint, what came after all is not lost, and each loss is counted once."""
    rank, teller = Rank(0), Rank(1)
    for step in range(60):
        rank.log(step, a=1.0)
    stored: set[int] = set()
    lost: set[int] = set()
    payloads = [whole(teller)]
    for is_data, first, more in steps:
        seqs = set(range(first, first + more + 1))
        if is_data:
            payloads.append(block_of((rank, first, first + more)))
            stored |= seqs
            lost -= seqs
        else:
            seq = teller.say(EventKind.LOST, rank.uuid, first, first + more, "gone")
            payloads.append(block_of((teller, seq, seq)))
            lost |= seqs - stored
    applier = apply(*payloads)
    number = applier.state.producers[rank.uuid].producer
    found = [seq for first, last, _ in applier.state.lost.get(number, []) for seq in range(first, last + 1)]
    assert sorted(found) == sorted(lost)
    assert {seq for a, b in applier.state.have[number] for seq in range(a, b + 1)} == stored


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


def quarantined(applier: Applier) -> list[str]:
    return [row[2] for row in applier.batch.rows.get("quarantine", [])]


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
    (EventKind.CONSOLE, (1, 1, b"bytes")),
    (EventKind.NOTICE, (1, 2, 3, 4)),
    (EventKind.NOTICE, ("alert", "info", "nan in the body", {"x": float("nan")})),
    (EventKind.NOTICE, ("alert", "info", "bytes as a key", {b"x": 1})),
]


@pytest.mark.parametrize(("kind", "fields"), HOSTILE_EVENTS, ids=lambda value: getattr(value, "name", ""))
def test_an_event_with_the_wrong_types_costs_itself_and_is_a_row(index: Index, kind, fields) -> None:
    rank = Rank(0)
    rank.say(kind, *fields)
    rank.log(5, a=1.0)
    index.take(whole(rank))
    assert index.sql("SELECT step, value FROM metrics") == [(5, 1.0)]
    assert index.sql("SELECT count(*) FROM base.quarantine") == [(1,)]
    assert index.sql("SELECT kind, label, level FROM events") == [("quarantined", "rank0", "error")]
    assert index.sql("SELECT produced, stored, lost, pending FROM completeness") == [(3, 3, 0, 0)]
    index.views()


def test_losses_that_make_no_sense_count_nothing(index: Index) -> None:
    rank = Rank(0)
    for first, last in ((5, 3), (-1, 4), (0, 2**63 - 1), (-(2**63), 2**63 - 1)):
        rank.say(EventKind.LOST, b"", first, last, "hostile")
    index.take(whole(rank))
    assert index.sql("SELECT produced, stored, lost, pending FROM completeness") == [(5, 5, 0, 0)]


def test_events_agree_with_completeness_about_what_is_lost(index: Index) -> None:
    """An agent that adopts a journal cannot know what the rank's sender delivered from memory, or still delivers."""
    rank = Rank(0)
    for step in range(9):
        rank.log(step, a=1.0)
    teller = Rank(1)
    told = [teller.say(EventKind.LOST, rank.uuid, first, last, "gone") for first, last in ((1, 2), (3, 6), (7, 9))]
    index.take(block_of((rank, 0, 4)), block_of((teller, 0, told[-1])))
    rows = "SELECT level, message FROM events WHERE kind IN ('lost', 'found') ORDER BY ALL"
    assert index.sql(rows) == [
        ("error", "2 of events 3..6 are lost: gone"),
        ("error", "events 7..9 are lost: gone"),
        ("info", "0 of events 1..2 are lost: gone"),
    ]
    index.take(block_of((rank, 5, 7)))
    assert len(index.sql(rows)) == 3
    index.take(block_of((rank, 8, 9)))
    assert index.sql(rows)[-1] == ("info", "all events that were declared lost have arrived")
    rank.log(9, a=1.0)
    index.take(block_of((rank, 10, 10)))
    assert len(index.sql(rows)) == 4, "it is reported once"
    assert index.sql("SELECT produced, stored, lost, pending FROM completeness WHERE label = 'rank0'") == [
        (11, 11, 0, 0)
    ]


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


@pytest.mark.parametrize("identity", HOSTILE_IDENTITIES, ids=str)
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


def test_keys_at_hand_are_bounded_and_keep_their_integers(monkeypatch) -> None:
    monkeypatch.setattr(applier_module, "_KEY_IDS_BYTES_MAX", 100)
    rank = Rank(0)
    for step in range(60):
        rank.log(step, **{f"key{step % 30}": 1.0})
    applier = apply(whole(rank))
    assert 0 < len(applier._key_ids) < 30
    assert applier.state.names == {f"key{number}": number + 1 for number in range(30)}


def test_half_characters_never_make_json_that_duckdb_refuses() -> None:
    assert json_of('{"a": "\\ud800", "b": NaN}') == '{"a": "\ufffd", "b": "NaN"}'
    assert json_text({"\udcff": "ü\U0001f600"}) == '{"\ufffd": "ü\U0001f600"}'
    with pytest.raises(ValueError, match="JSON"):
        json_of("1e999")


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
    assert index.sql("SELECT stored, pending FROM completeness") == [(4, 0)]


# -- who is who --


def test_an_identity_that_is_known_later_moves_rows_without_rewriting_facts(index: Index) -> None:
    rank = Rank(1, label="host-bbb", run_id="provisional", rank=None)
    rank.log(0, a=1.0)
    index.take(whole(rank))
    assert index.sql("SELECT run_id, label, rank FROM metrics") == [("provisional", "host-bbb", None)]
    facts = index.sql("SELECT rowid, * FROM base.metrics")
    moved = rank.become(run_id="agreed", label="rank1", rank=1)
    index.take(block_of((rank, moved, moved)))
    assert index.sql("SELECT run_id, label, rank FROM metrics") == [("agreed", "rank1", 1)]
    assert index.sql("SELECT rowid, * FROM base.metrics") == facts
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
    from chiplog_collector.receiver.commit import decode_receipt

    assert decode_receipt(receipt(3)).received_us == START_US + 1_000_003


def test_counts_that_no_process_reaches_break_completeness_for_nobody(index: Index) -> None:
    good, far = Rank(0), Rank(9, run_id="bad")
    index.take(whole(good))
    for number in (1, 2, 3):
        liar = Rank(number, role="console", of=good.uuid.hex())
        liar.say(EventKind.STATE, {"state": "finished", "produced": (1 << 62) - 1})
        liar.say(EventKind.LOST, b"", 1 << 61, (1 << 62) - 1, "made up")
        index.take(whole(liar))
    builder = BlockBuilder()
    builder.add(far.uuid, (1 << 62) - 1, far.events[0])
    at = good.log(1, loss=1.0)
    builder.add(good.uuid, at, good.events[at])
    index.take(builder.build(START_US))
    rows = index.sql("SELECT run_id, produced, stored, lost, pending FROM completeness")
    assert rows == [("r", 11, 11, 0, 0)]
    assert index.sql("SELECT count(*) FROM metrics") == [(1,)], "the other producers of its block are applied"
    assert (
        len(index.sql("SELECT 1 FROM events WHERE kind = 'quarantined' AND message LIKE 'seqs of 1 producers%'")) == 1
    )


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
