"""Hostile records between good ones, through the real index: each is quarantined with its reason, the good are stored.

Hostile values must not break a view for other users, or the next start.
"""

import random

import pytest

from chiplog_schemas.codec import pack
from chiplog_schemas.limits import NUMBER_LIMIT
from chiplog_schemas.model.events import EventKind
from chiplog_schemas.storage.record import Kind
from tests.fuzz.decoders import built_block
from tests.fuzz.machines import Index as Hostile
from tests.schemas.make_vectors import doubles
from tests.support.collector_log import START_US, Rank, block_of
from tests.support.index import Index
from tests.support.rounds import Rounds
from tests.support.safeguard import proves

RECORDS = 40  # hostile ones in a round, each followed by a good block


@pytest.mark.soak(2)
def test_hostile_records_are_set_aside_and_the_good_ones_around_them_stored(index: Index, rounds: Rounds) -> None:
    hostile, good = Hostile(), Rank(250, run_id="good")
    n_bad = 0
    for seed in rounds(2):
        chooser = random.Random(seed)
        for _ in range(RECORDS):
            kind, payload, version = hostile.make(chooser)
            if kind == Kind.RECEIPT:
                kind = Kind.GAP  # receipts are the log's own words: fuzzed elsewhere
            step = good.log(len(good.events), loss=1.5)
            n_bad += 1
            for part in ((kind, payload, version), (Kind.BLOCK, block_of((good, step if step > 1 else 0, step)))):
                index.log.append(*part)
                index.log.append(Kind.RECEIPT, pack([START_US, [[b"S" * 16, 0, n_bad, 1, None]]]))
        index.log.commit()
        index.follow()
        rounds.count("inputs", RECORDS)
        (stored,) = index.sql("SELECT count(*) FROM metrics WHERE run_id = 'good' AND value = 1.5")[0]
        assert stored == len(good.events) - 1, f"seed {seed}: good events are missing"
        index.views()
    unexplained = index.sql(
        "SELECT count(*) FROM events WHERE kind = 'quarantined' AND (message = '' OR message IS NULL)"
    )
    assert unexplained == [(0,)], f"seed {rounds.last_seed}"
    counted = index.sql("SELECT count(*) FROM events WHERE kind = 'quarantined'")[0][0]
    assert counted >= n_bad // 10, f"{counted} rows for {n_bad} hostile records"
    before = index.views()
    index.reopen()
    assert index.views() == before, f"seed {rounds.last_seed}: a start changes what is stored"


@proves("bad-block-quarantined", "a block that cannot be decoded is quarantined")
def test_a_bad_block_leaves_a_row_that_says_why(index: Index) -> None:
    index.take(b"\x08\0\0\0\x01\0\0\0no block", (99, b"of the future"))
    messages = [row[0] for row in index.sql("SELECT message FROM events WHERE kind = 'quarantined' ORDER BY 1")]
    assert len(messages) == 2
    assert "block cannot be decoded" in messages[0] and "kind 99 is unknown" in messages[1]


@proves(
    "bad-event-costs-itself", "an event that cannot be applied costs itself, and is a row", value="ZeroDivisionError"
)
def test_a_bad_event_costs_no_other_of_its_block(index: Index) -> None:
    rank = Rank(0)
    rank.log(1, loss=0.5)
    rank.say(EventKind.SUMMARY, {"best": 7})
    rank.say(EventKind.TEXT, 1, "key", b"no text")
    index.take(block_of((rank, 0, len(rank.events) - 1)))
    assert index.sql("SELECT value FROM metrics") == [(0.5,)]
    assert index.sql("SELECT count(*) FROM events WHERE message LIKE '%cannot be applied%'") == [(2,)]


def test_numbers_at_every_bound_break_no_view(index: Index) -> None:
    """Seqs, steps, times and counts at the ends of their types: each view answers, and the next event is stored."""
    edge = Rank(1)
    edge.say(EventKind.METRICS, -(1 << 63), pack(["loss"]), doubles(1.0), ts=-(1 << 63))
    edge.say(EventKind.METRICS, (1 << 63) - 1, pack(["loss"]), doubles(float("nan")), ts=(1 << 63) - 1)
    edge.say(EventKind.PHASES, 1, pack(["forward"]), doubles(float("-inf")), ts=(1 << 63) - 1)
    edge.say(EventKind.PHASES, 1, pack(["data"]), doubles(1e308))
    edge.say(EventKind.SYSTEM, "", pack(["gpu.util"]), doubles(float("inf")), ts=-(1 << 63))
    edge.say(EventKind.CONSOLE, -(1 << 63), (1 << 63) - 1, "\udcff\0")
    edge.say(EventKind.LOST, b"", 0, (1 << 62) - 1, "x")
    edge.say(EventKind.LOST, b"", -(1 << 63), (1 << 63) - 1, "y")
    edge.say(EventKind.PEER, b"p" * 16, {"state": "crashed", "produced": (1 << 62) - 1, "exit_code": 1 << 40})
    edge.say(EventKind.STATE, {"state": "failed", "produced": 1 << 63, "exit_signal": -(1 << 63)}, ts=(1 << 63) - 1)
    index.take(block_of((edge, 0, len(edge.events) - 1)))
    from chiplog_schemas.model.block_builder import BlockBuilder

    builder = BlockBuilder()
    builder.add(b"e" * 16, NUMBER_LIMIT - 1, edge.events[1])
    builder.add(b"f" * 16, NUMBER_LIMIT - 1, edge.events[-1])
    index.take(builder.build(START_US))
    assert index.views()
    assert index.sql("SELECT count(*) FROM metrics") == [(2,)] or index.sql("SELECT count(*) FROM metrics") == [(3,)]


def test_blocks_that_repeat_in_part_are_stored_once(rounds: Rounds, index: Index) -> None:
    """Hostile blocks sent again and again, in pieces: no seq of theirs is stored twice."""
    for seed in rounds(2):
        chooser = random.Random(seed)
        blocks = [built_block(chooser) for _ in range(20)]
        index.take(*blocks, *blocks[::-1])
        doubled = index.sql("SELECT producer, seq, key FROM base.metric_facts GROUP BY ALL HAVING count(*) > 1")
        assert not doubled, f"seed {seed}"
