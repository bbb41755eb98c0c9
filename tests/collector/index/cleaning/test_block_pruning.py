"""Blocks without deleted rows: what is left decodes, and is exactly the rest."""

import numpy as np
import pytest

from chiplog_collector.index.cleaning.block_pruning import prune_block
from chiplog_schemas.codec import pack
from chiplog_schemas.model.block_decoder import Block, decode_block
from chiplog_schemas.model.block_format import OPAQUE
from chiplog_schemas.model.events import EventKind, decode
from tests.support.collector_log import START_US, Rank, block_of, whole
from tests.support.safeguard import proves
from tests.support.sample_log import everything

pytestmark = pytest.mark.pure


def rows(block: Block) -> set[tuple[int, bytes, int]]:
    return {
        (group.kind, block.producers[index][0], seq)
        for group in block.groups
        for index, seq in zip(group.producer.tolist(), group.seq.tolist(), strict=True)
    }


def logged(number: int, **identity: object) -> Rank:
    rank = Rank(number, **identity)  # type: ignore[arg-type]
    for step in range(5):
        rank.log(step, x=float(step))
    rank.say(EventKind.TEXT, 3, "note", "text")
    rank.say(EventKind.STATE, {"state": "finished"})
    return rank


def test_rows_of_deleted_producers_go_except_what_decides_about_others() -> None:
    gone, kept = logged(1), logged(2)
    pruned = prune_block(whole(gone, kept), frozenset({gone.uuid}))
    assert pruned is not None
    block = decode_block(pruned)
    last = len(gone.events) - 1
    assert {row for row in rows(block) if row[1] == gone.uuid} == {(8, gone.uuid, 0), (9, gone.uuid, last)}
    assert dict(block.producers) == {gone.uuid: [(0, 0), (last, last)], kept.uuid: [(0, last)]}
    assert block.created_ts == START_US


@proves("imported-identity-stays", "a rebuild decides by imported identities of deleted runs, too", condition=False)
def test_what_an_import_says_about_identities_stays_and_its_rows_go() -> None:
    gone = Rank(1)
    gone.events.clear()
    identity = {"producer": {"role": "rank", "label": "rank1", "node": "a"}, "run": {"run_id": "r"}, "seqs": []}
    gone.say(EventKind.IMPORTED, {"rows": {"config": [["lr", "0.1"]]}})
    gone.say(EventKind.IMPORTED, identity)
    pruned = prune_block(whole(gone), frozenset({gone.uuid}))
    assert pruned is not None
    assert rows(decode_block(pruned)) == {(0, gone.uuid, 1)}


def test_a_block_is_pruned_once_and_another_one_stays_as_it_is() -> None:
    gone, kept = logged(1), logged(2)
    deleted = frozenset({gone.uuid})
    assert prune_block(whole(kept), deleted) is None
    pruned = prune_block(whole(gone, kept), deleted)
    assert pruned is not None
    assert prune_block(pruned, deleted) is None


def test_nothing_is_left_of_a_block_with_only_deleted_rows() -> None:
    gone = logged(1)
    assert prune_block(block_of((gone, 1, 4)), frozenset({gone.uuid})) == b""


def test_old_system_samples_go_and_newer_ones_and_other_rows_of_their_agent_stay() -> None:
    agent = Rank(9, label="agent", role="agent")
    for second in range(4):
        agent.say(EventKind.SYSTEM, "gpu", pack(["u"]), np.float64(second).tobytes(), ts=START_US + second * 1_000_000)
    agent.say(EventKind.NOTICE, "alert", "info", "text", {})
    pruned = prune_block(whole(agent), frozenset(), START_US + 2_000_000)
    assert pruned is not None
    assert rows(decode_block(pruned)) == {
        (8, agent.uuid, 0),
        (12, agent.uuid, 3),
        (12, agent.uuid, 4),
        (11, agent.uuid, 5),
    }
    assert prune_block(whole(agent), frozenset(), START_US) is None
    assert prune_block(whole(agent), frozenset(), None) is None


def test_every_block_of_a_real_history_is_pruned_to_exactly_the_rest() -> None:
    payloads = [payload for payload in everything() if isinstance(payload, bytes) and payload != b"garbage"]
    deleted = frozenset({bytes([1]) * 16, bytes([9]) * 16})
    for payload in payloads:
        before = decode_block(payload)
        pruned = prune_block(payload, deleted)
        versions = {
            (OPAQUE, before.producers[index][0], seq)
            for group in before.groups
            if group.kind == OPAQUE
            for index, seq, payload in zip(
                group.producer.tolist(), group.seq.tolist(), group.columns["payload"], strict=True
            )
            if decode(payload)[0] == EventKind.ARTIFACT
        }
        expected = {row for row in rows(before) if row[1] not in deleted or row[0] in (8, 9)} | versions
        if pruned is None:
            assert expected == rows(before)
        else:
            assert (rows(decode_block(pruned)) if pruned else set()) == expected


@pytest.mark.parametrize("payload", [b"", b"garbage", b"\xff" * 64, whole(Rank(1))[:40]])
def test_bytes_that_are_no_block_stay_as_they_are(payload: bytes) -> None:
    assert prune_block(payload, frozenset({bytes([1]) * 16}), START_US * 2) is None


def test_a_block_of_a_newer_version_stays_as_it_is() -> None:
    newer = bytearray(whole(logged(1)))
    newer[4:6] = (2).to_bytes(2, "little")
    assert prune_block(bytes(newer), frozenset({bytes([1]) * 16})) is None
