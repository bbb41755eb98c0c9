"""Exactly once: each seq is stored once or declared lost, whatever repeats and in any order."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chiplog_collector.index.apply.applier import Applier
from chiplog_collector.index.apply.apply_context import ApplyContext
from chiplog_collector.index.apply.ledger import Ledger, without_range
from chiplog_collector.index.apply.node_loss import NodeLossTracker
from chiplog_collector.index.apply.state import Producer, State
from chiplog_schemas.model.block_builder import BlockBuilder
from chiplog_schemas.model.events import EventKind
from tests.support.collector_log import START_US, Rank, apply, block_of, whole
from tests.support.index import Index


@pytest.fixture
def context() -> ApplyContext:
    return ApplyContext(State())


@pytest.fixture
def producer(context: ApplyContext) -> Producer:
    return context.producer(b"p" * 16)


@pytest.fixture
def ledger(context: ApplyContext) -> Ledger:
    return Ledger(context, NodeLossTracker(context))


def points(applier: Applier) -> list[tuple[int, int]]:
    """Return (producer, seq) of every row of a matrix, each value once."""
    return sorted(
        (int(producer), int(seq))
        for matrices in applier.batch.metrics.values()
        for matrix in matrices
        for producer, seq in zip(matrix.producer, matrix.seq, strict=True)
    )


@pytest.mark.promise(1)
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


@pytest.mark.promise(4)
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


def test_only_missing_seqs_are_declared_lost_and_only_once(
    context: ApplyContext, ledger: Ledger, producer: Producer
) -> None:
    context.state.have[producer.producer].add(2, 3)
    assert ledger.declare_lost(producer, 0, 5, "first") == 4
    assert ledger.declare_lost(producer, 4, 6, "second") == 3, "all that are not there, whether declared or not"
    assert context.batch.losses[producer.producer] == [(0, 1, "first"), (4, 5, "first"), (6, 6, "second")]
    assert ledger.declare_lost(producer, 5, 4, "no range") == 0


def test_what_an_ended_producer_lacks_is_declared_only_after_records_were_lost(
    context: ApplyContext, ledger: Ledger, producer: Producer
) -> None:
    producer.state, producer.produced = "finished", 3
    ledger.declare_missing(producer)
    assert not context.batch.losses
    context.state.damaged = True
    ledger.declare_missing(producer)
    assert [(first, last) for first, last, _ in context.batch.losses[producer.producer]] == [(0, 2)]


@pytest.mark.parametrize(
    ("cut", "left"),
    [((3, 4), [(0, 2), (5, 9)]), ((0, 9), []), ((20, 30), [(0, 9)]), ((5, 30), [(0, 4)]), ((-3, 2), [(3, 9)])],
)
def test_a_range_without_another_one(cut: tuple[int, int], left: list[tuple[int, int]]) -> None:
    assert without_range(0, 9, *cut) == left
