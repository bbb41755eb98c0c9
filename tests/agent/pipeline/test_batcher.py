"""The agent's decisions: events in, blocks out, and a declaration for everything that is missing."""

import os
import struct

import pytest

from chiplog_agent.pipeline.batcher import EventBatcher
from chiplog_agent.ranks.origins import Origin
from chiplog_schemas.codec import pack
from chiplog_schemas.limits import EVENT_BYTES_MAX, RECORD_BYTES_MAX, SPOOL_SYNC_BYTES, SPOOL_SYNC_INTERVAL_SLOW_S
from chiplog_schemas.model.block_decoder import decode_block
from chiplog_schemas.model.events import EventKind, decode, encode
from chiplog_schemas.storage.record import Kind
from chiplog_schemas.storage.record import encode as frame
from tests.support.blocks import block_to_rows
from tests.support.safeguard import proves

AGENT, RANK, OTHER = b"A" * 16, b"R" * 16, b"O" * 16


@pytest.fixture
def core() -> EventBatcher:
    core = EventBatcher(AGENT, "node-a", 7, "0.1", 1_000)
    core.build(0)  # its own identity
    return core


def event(number: int, size: int = 0) -> bytes:
    return encode(EventKind.TEXT, number, number, "key", "x" * size)


def records(first: int, *payloads: bytes) -> bytes:
    return b"".join(frame(Kind.EVENT, first + index, payload) for index, payload in enumerate(payloads))


def built(core: EventBatcher) -> tuple[list[tuple[bytes, int, list]], dict[bytes, int]]:
    """Return (producer, seq, event) of all blocks, and the seqs to acknowledge."""
    blocks, taken = core.build(5)
    rows = [row for block in blocks for row in block_to_rows(decode_block(block))]
    return [
        (producer, seq, decode(payload) if payload != b"\xc1" else payload) for producer, seq, payload in rows
    ], taken


def test_the_agent_begins_with_its_own_identity() -> None:
    rows, taken = built(EventBatcher(AGENT, "node-a", 7, "0.1", 1_000))
    [(producer, seq, event)] = rows
    assert (producer, seq, event[0]) == (AGENT, 0, EventKind.IDENTITY)
    assert event[2] == {"role": "agent", "node": "node-a", "pid": 7, "started_at": 1_000, "sdk": "0.1"}
    assert taken == {}


def test_slices_of_several_producers_become_one_block_and_their_acknowledgements(core) -> None:
    core.add_slice(RANK, 0, 2, records(0, event(0), event(1), event(2)), 1.0, 5)
    core.add_slice(OTHER, 7, 7, records(7, event(7)), 1.0, 5)
    core.add_slice(RANK, 3, 3, records(3, event(3)), 1.0, 5)
    rows, taken = built(core)
    assert [(producer, seq) for producer, seq, _ in rows] == [(OTHER, 7), *((RANK, seq) for seq in range(4))]
    assert taken == {RANK: 4, OTHER: 8}
    assert core.build(6) == ([], {})


def test_a_block_is_due_after_the_interval_or_when_it_is_full(core) -> None:
    assert not core.is_flush_due(100.0)
    core.add_slice(RANK, 0, 0, records(0, event(0)), 10.0, 5)
    assert not core.is_flush_due(10.0)
    assert core.wait_s(10.0, 1.0) == pytest.approx(SPOOL_SYNC_INTERVAL_SLOW_S)
    assert core.is_flush_due(10.001 + SPOOL_SYNC_INTERVAL_SLOW_S)
    core.sync_interval_s = 0.1
    assert core.wait_s(10.0, 1.0) == pytest.approx(0.1)
    assert core.is_flush_due(10.11)
    core.sync_interval_s = SPOOL_SYNC_INTERVAL_SLOW_S
    core.build(5)
    core.add_slice(RANK, 1, 3, records(1, *(event(n, SPOOL_SYNC_BYTES // 3) for n in range(3))), 20.0, 5)
    assert core.is_flush_due(20.0)
    assert not core.has_capacity


@proves("end-of-rank-flushed-at-once", "the end of a rank is acknowledged at once")
def test_the_end_of_a_producer_makes_a_block_due(core) -> None:
    """An older SDK waits for its acknowledgement without requesting it."""
    core.add_slice(RANK, 0, 0, records(0, encode(EventKind.STATE, 1, {"state": "finished"})), 10.0, 5)
    assert core.is_flush_due(10.0)
    core.build(5)
    core.add_slice(OTHER, 0, 0, records(0, event(0)), 10.0, 5)
    assert not core.is_flush_due(10.0)


def test_blocks_never_exceed_a_record_however_large_the_slice(core) -> None:
    largest = event(0, EVENT_BYTES_MAX - 64)
    core.add_slice(RANK, 0, 6, records(0, *[largest] * 7), 1.0, 5)
    blocks, taken = core.build(5)
    assert len(blocks) > 1
    assert all(len(block) <= RECORD_BYTES_MAX for block in blocks)
    assert sum(len(block_to_rows(decode_block(block))) for block in blocks) == 7
    assert taken == {RANK: 7}


def test_an_event_above_the_limit_costs_itself_and_is_declared(core) -> None:
    core.add_slice(RANK, 0, 2, records(0, event(0), event(1, EVENT_BYTES_MAX + 1), event(2)), 1.0, 5)
    rows, taken = built(core)
    assert [(producer, seq) for producer, seq, _ in rows if producer == RANK] == [(RANK, 0), (RANK, 2)]
    [lost] = [event for producer, _, event in rows if producer == AGENT]
    assert lost[:1] + lost[2:5] == [EventKind.LOST, RANK, 1, 1]
    assert taken == {RANK: 3}


@pytest.mark.parametrize("what", ["flipped bit", "garbage between", "all garbage", "empty"])
def test_damage_on_the_way_costs_what_it_damaged_and_is_declared(core, what) -> None:
    """Invariant: what was sent = what is in the block + what is declared lost."""
    parts = [records(number, event(number, 50)) for number in range(6)]
    if what == "flipped bit":
        parts[2] = parts[2][:40] + bytes([parts[2][40] ^ 1]) + parts[2][41:]
    elif what == "garbage between":
        parts[2] = os.urandom(100)
    else:
        parts = [b"no records at all" * 10 if what == "all garbage" else b""]
    core.add_slice(RANK, 0, 5, b"".join(parts), 1.0, 5)
    rows, taken = built(core)
    there = {seq for producer, seq, _ in rows if producer == RANK}
    lost = [event for producer, _, event in rows if producer == AGENT]
    declared = {seq for event in lost for seq in range(event[3], event[4] + 1)}
    assert taken == {RANK: 6}
    if what == "empty":
        assert there | declared == set(), "numbers that the log does not have: its own events have the reason"
    else:
        assert there | declared == set(range(6))
        assert not there & declared
        assert core.damaged == 1


def test_numbers_that_a_slice_does_not_have_are_the_producers_own_to_declare(core) -> None:
    core.add_slice(RANK, 0, 9, records(0, event(0)) + records(9, event(9)), 1.0, 5)
    rows, taken = built(core)
    assert [seq for _, seq, _ in rows] == [0, 9]
    assert taken == {RANK: 10}


def test_what_is_no_event_is_kept_verbatim(core) -> None:
    core.add_slice(RANK, 0, 1, records(0, b"\xc1", pack([99, 5, "a kind of the future"])), 1.0, 5)
    rows, _ = built(core)
    assert rows == [(RANK, 0, b"\xc1"), (RANK, 1, [99, 5, "a kind of the future"])]


def test_where_a_producer_is_comes_before_its_events_and_once(core) -> None:
    core.locate(RANK, Origin(41, 1234), 1.0, 5)
    core.add_slice(RANK, 0, 0, records(0, event(0)), 1.0, 5)
    core.locate(RANK, Origin(41, 1234), 2.0, 6)
    core.locate(RANK, Origin(41), 2.0, 6)  # adopted: less is known then
    core.locate(OTHER, Origin(is_remote=True), 3.0, 7)
    rows, _ = built(core)
    assert [fields for producer, _, (kind, _, *fields) in rows if kind == EventKind.PEER] == [
        [RANK, {"node": "node-a", "pid": 41, "start": 1234}],
        [OTHER, {"node": "node-a", "remote": True}],
    ]
    core.forget(RANK)
    core.locate(RANK, Origin(42, 1250), 4.0, 8)
    [(_, _, (_, _, _, about))], _ = built(core)
    assert about == {"node": "node-a", "pid": 42, "start": 1250}


def test_an_event_that_comes_twice_is_in_a_block_once(core) -> None:
    core.add_slice(RANK, 0, 1, records(0, event(0), event(1)), 1.0, 5)
    core.add_slice(RANK, 0, 2, records(0, event(0), event(1), event(2)), 1.0, 5)
    rows, taken = built(core)
    assert [seq for _, seq, _ in rows] == [0, 1, 2]
    assert taken == {RANK: 3}


def test_what_a_producer_says_of_itself_is_known_and_its_types_are_not_trusted(core) -> None:
    core.register(RANK, {"pid": 5, "label": 7, "unknown": 1})
    assert core.peers[RANK].identity == {"pid": 5}
    identity = encode(EventKind.IDENTITY, 1, {"pid": 6, "label": "rank0", "rank": "x"})
    core.add_slice(RANK, 0, 2, records(0, identity, encode(EventKind.STATE, 2, "odd"), pack([8, 1])), 1.0, 5)
    assert core.peers[RANK].identity == {"pid": 6, "label": "rank0"}
    assert core.peers[RANK].finished
    assert core.peers[RANK].next_seq == 3
    core.forget(RANK)
    core.forget(RANK)
    assert core.peers == {}


def test_samples_notices_and_ends_are_events_of_the_agents_own_gapless_seq(core) -> None:
    core.sample("GPU-1", ("power", "util"), (1.0, 2.0), 9, 1.0)
    core.sample("GPU-1", ("power", "util"), (3.0, 4.0), 10, 1.0)
    core.notice("sampler", "info", "started", {"a": 1}, 1.0, 11)
    core.declare_lost(RANK, 3, 4, "gone", 12)
    core.report_exit(RANK, 7, {"state": "crashed", "reason": "killed"}, 1.0, 13)
    rows, taken = built(core)
    assert taken == {}
    assert [(producer, seq) for producer, seq, _ in rows] == [(AGENT, seq) for seq in range(1, 6)]
    events = [event for _, _, event in rows]
    assert [event[0] for event in events] == [
        EventKind.SYSTEM,
        EventKind.SYSTEM,
        EventKind.NOTICE,
        EventKind.LOST,
        EventKind.PEER,
    ]
    assert struct.unpack("<2d", events[1][4]) == (3.0, 4.0)
    assert events[4][2:] == [RANK, {"state": "crashed", "reason": "killed", "produced": 7}]
