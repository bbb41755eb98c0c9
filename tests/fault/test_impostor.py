"""An agent's key is bound to node names: its events for another node are not stored, and the true events still are.

The receiver's own CommitBuilder makes the records; the index's own follower applies them to a DuckDB file.
"""

import json
import random
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from chiplog_collector.index.apply import authorization
from chiplog_collector.index.follower import LogFollower
from chiplog_collector.receiver.commit import CommitBuilder
from chiplog_schemas.codec import pack
from chiplog_schemas.model.events import EventKind, encode
from chiplog_schemas.storage.record import Kind
from chiplog_schemas.storage.record import encode as frame
from tests.support.collector_log import START_US, VIEWS, Rank, block_of, contents_of, whole
from tests.support.index import Index, empty_database
from tests.support.rounds import Rounds
from tests.support.safeguard import proves

# What these tests store shows in these views; to plan all of them costs half a second of CPU time.
DIRECT = ("runs", "labels", "metrics", "texts", "config", "keys", "events", "completeness", "system_samples")
A, B = ("node-a",), ("node-b",)
TRUE, FALSE = b"T" * 16, b"F" * 16  # senders


class Centre:
    """A collector's log, made as the receiver makes it, and its index."""

    def __init__(self, directory: Path) -> None:
        self.index = Index(directory)
        self.intake = CommitBuilder({})
        self._next: dict[bytes, int] = {}

    def take(self, sender: bytes, nodes: tuple[str, ...] | None, *blocks: bytes) -> None:
        """Log a slice of blocks."""
        first = self._next.get(sender, 0)
        self._next[sender] = first + len(blocks)
        payload = b"".join(frame(Kind.BLOCK, first + n, block) for n, block in enumerate(blocks))
        for entry in self.intake.add_slice(sender, first, first + len(blocks) - 1, payload, nodes):
            assert entry.record is not None
            self.index.log.append_record(entry.record)

    def commit(self) -> None:
        """Write the receipt and let the index follow."""
        receipt = self.intake.receipt_record(START_US + self.index.log.next_number)
        self.index.log.append(receipt.kind, receipt.payload)
        self.intake.committed()
        self.index.log.commit()
        self.index.follow()

    def say(self, sender: bytes, nodes: tuple[str, ...] | None, *blocks: bytes) -> None:
        self.take(sender, nodes, *blocks)
        self.commit()

    def refusals(self) -> list[dict[str, object]]:
        rows = self.index.sql("SELECT level, body FROM events WHERE kind = 'refused_node' ORDER BY seq")
        assert {level for level, _ in rows} <= {"error"}
        return [json.loads(body) for _, body in rows]

    def assert_rebuilt_is_the_same(self, views: Sequence[str] = VIEWS) -> None:
        path = self.index.directory / "rebuilt.duckdb"
        database = empty_database(path)
        follower = LogFollower(database, self.index.directory / "log")
        while follower.step(self.index.log.next_number):
            pass
        rebuilt = {
            name: contents_of(lambda query: database.connection.execute(query).fetchall(), name) for name in views
        }
        database.close()
        path.unlink()
        assert rebuilt == {name: contents_of(self.index.sql, name) for name in views}


@pytest.fixture
def centre(tmp_path: Path) -> Iterator[Centre]:
    centre = Centre(tmp_path)
    yield centre
    centre.assert_rebuilt_is_the_same(DIRECT)
    centre.index.close()


def rank_of(number: int, node: str, **identity: object) -> Rank:
    """Return a rank of a node that logged its node's number three times."""
    rank = Rank(number, node=node, **identity)
    for step in range(3):
        rank.log(step, value=float(ord(node[-1])))
    return rank


def forged(rank: Rank, *events: tuple[EventKind, list[object]], first: int = 0) -> bytes:
    """Return a block in which another producer uses a rank's ID."""
    liar = Rank(0)
    liar.uuid, liar.events = rank.uuid, [b""] * first
    for kind, fields in events:
        liar.say(kind, *fields)
    return block_of((liar, first, len(liar.events) - 1))


def numbers(step: int, value: float) -> tuple[EventKind, list[object]]:
    """Return a metrics event in the form that `forged` accepts."""
    return EventKind.METRICS, [step, pack(["value"]), struct.pack("<d", value)]


STORED = "SELECT step, value FROM metrics WHERE key = 'value' ORDER BY ALL"


@proves("foreign-node-refused", "nothing that a key sends for another node is stored", value="True")
def test_a_producer_of_another_node_is_refused_and_the_true_one_still_arrives(centre: Centre) -> None:
    rank = rank_of(1, "node-a")
    centre.say(FALSE, B, whole(rank))
    assert centre.index.sql("SELECT * FROM metrics") == centre.index.sql("SELECT * FROM labels") == []
    [row] = centre.refusals()
    assert (row["nodes"], row["node"], row["producer"]) == (["node-b"], "node-a", rank.uuid.hex())
    assert row["sender"] == FALSE.hex()
    centre.say(TRUE, A, whole(rank))
    assert len(centre.index.sql(STORED)) == 3
    assert centre.index.sql("SELECT produced, stored, pending FROM completeness") == [(4, 4, 0)]


def test_seqs_that_an_impostor_sends_ahead_are_not_taken_and_the_true_ones_are(centre: Centre) -> None:
    rank = rank_of(1, "node-a")
    centre.say(TRUE, A, block_of((rank, 0, 1)))
    centre.say(FALSE, B, forged(rank, numbers(1, -1.0), numbers(2, -1.0), first=2))
    centre.say(TRUE, A, block_of((rank, 2, 3)))
    assert [value for _, value in centre.index.sql(STORED)] == [97.0] * 3
    assert len(centre.refusals()) == 1


def test_a_known_producer_cannot_be_moved_to_the_impostors_node(centre: Centre) -> None:
    rank = rank_of(1, "node-a")
    centre.say(TRUE, A, whole(rank))
    centre.say(FALSE, B, forged(rank, (EventKind.IDENTITY, [rank.identity | {"node": "node-b"}]), first=9))
    assert centre.index.sql("SELECT node, label FROM labels") == [("node-a", "rank1")]
    assert [row["node"] for row in centre.refusals()] == ["node-a"]


@pytest.mark.full
def test_an_identity_cannot_move_ones_own_producer_to_another_node(centre: Centre) -> None:
    rank = rank_of(1, "node-b")
    centre.say(FALSE, B, whole(rank))
    moved = rank.become(node="node-a")
    centre.say(FALSE, B, block_of((rank, moved, moved)))
    assert centre.index.sql("SELECT node FROM labels") == [("node-b",)]
    assert [row["node"] for row in centre.refusals()] == ["node-a"]


@proves(
    "opaque-identity-found",
    "an identity is also found in events that an agent could not decode",
    part="OPAQUE",
    new="-1",
)
def test_an_identity_that_hides_in_an_opaque_event_is_found(centre: Centre) -> None:
    rank = Rank(1, node="node-a")
    event = bytearray(encode(EventKind.IDENTITY, START_US, rank.identity))
    event[0] += 1  # one field more than this version's agent knows: it keeps the event verbatim
    rank.events = [bytes(event) + b"\xc0"]
    centre.say(FALSE, B, whole(rank))
    assert centre.index.sql("SELECT count(*) FROM labels") == [(0,)]
    assert [row["node"] for row in centre.refusals()] == ["node-a"]
    centre.say(TRUE, A, whole(rank))
    assert centre.index.sql("SELECT node FROM labels") == [("node-a",)]


@proves("foreign-loss-not-believed", "losses and ends of another node's ranks are not believed", condition=True)
def test_nobody_declares_losses_or_deaths_of_another_nodes_ranks(centre: Centre) -> None:
    rank, own = rank_of(1, "node-a"), rank_of(2, "node-b")
    agent = Rank(9, label="agent", role="agent", node="node-b")
    centre.say(TRUE, A, block_of((rank, 0, 1)))
    for about in (rank, own):
        agent.say(EventKind.LOST, about.uuid, 2, 3, "said so")
        agent.say(EventKind.PEER, about.uuid, {"state": "crashed", "reason": "said so", "produced": 99})
    centre.say(FALSE, B, block_of((own, 0, 1)), whole(agent))
    assert centre.index.sql("SELECT label, state FROM labels WHERE label <> 'agent' ORDER BY label") == [
        ("rank1", "running"),
        ("rank2", "crashed"),
    ]
    rows = "SELECT label, produced, stored, lost FROM completeness WHERE label <> 'agent' ORDER BY label"
    assert centre.index.sql(rows) == [("rank1", 2, 2, 0), ("rank2", 99, 2, 2)]
    assert [row["producer"] for row in centre.refusals()] == [rank.uuid.hex()], "one row for both"


def agent_of(node: str, *located: tuple[Rank, dict[str, object]], number: int = 9) -> Rank:
    """Return an agent's own producer, which reports where ranks are."""
    agent = Rank(number, label="agent", role="agent", node=node)
    for rank, about in located:
        agent.say(EventKind.PEER, rank.uuid, {"node": node} | about)
    return agent


LABELS = "SELECT label, node, pid, hostname, rank_pid FROM labels WHERE label <> 'agent' ORDER BY label"


@proves("key-checked-against-node", "a key is checked against the node of the agent", value="()")
@pytest.mark.parametrize("before", [pytest.param(False, marks=pytest.mark.full), True])
def test_a_key_is_checked_against_the_node_of_the_agent_whatever_its_ranks_call_their_host(
    centre: Centre, before: bool
) -> None:
    rank = rank_of(1, "pod-1", pid=1)
    agent = agent_of("node-a", (rank, {"pid": 4711, "start": 99}))
    if before:
        centre.say(TRUE, A, whole(agent))
        centre.index.reopen()
        centre.say(TRUE, A, whole(rank))
    else:
        centre.say(TRUE, A, whole(rank, agent))
    more = rank.become(node="pod-2")
    centre.say(TRUE, A, block_of((rank, more, more)))
    assert len(centre.index.sql(STORED)) == 3
    assert centre.index.sql(LABELS) == [("rank1", "node-a", 4711, "pod-2", 1)]
    centre.say(FALSE, B, forged(rank, numbers(9, -1.0), first=9))
    assert [row["node"] for row in centre.refusals()] == ["node-a"], "and no other node delivers it"


def test_an_agent_cannot_place_ranks_on_a_node_that_its_key_does_not_cover(centre: Centre) -> None:
    rank, other = rank_of(1, "node-b"), rank_of(2, "node-a")
    centre.say(FALSE, B, whole(rank), whole(agent_of("node-a", (rank, {"pid": 1, "start": 1}))))
    centre.say(TRUE, A, whole(other))
    centre.say(FALSE, B, whole(agent_of("node-b", (other, {"pid": 66, "start": 6}), number=8)))
    assert centre.index.sql(LABELS) == [
        ("rank1", "node-b", 101, "node-b", 101),
        ("rank2", "node-a", 102, "node-a", 102),
    ]


@proves(
    "sample-of-agents-node",
    "samples are of the node of the agent that took them",
    part="coalesce(p.agent_node, p.node) AS node",
    new="p.node",
)
@pytest.mark.full
def test_a_rank_on_another_machine_keeps_the_node_that_it_names_and_is_not_the_key_of_it(centre: Centre) -> None:
    rank = rank_of(1, "node-b", pid=5)
    centre.say(TRUE, A, whole(rank, agent_of("node-a", (rank, {"remote": True}))))
    assert centre.index.sql(LABELS) == [("rank1", "node-b", None, "node-b", 5)]
    rank.say(EventKind.SYSTEM, "", pack(["system.memory.usage"]), struct.pack("<d", 1.0))
    centre.say(TRUE, A, block_of((rank, 4, 4)))
    assert centre.index.sql("SELECT node FROM system_samples") == [("node-a",)], "nor are its samples that node's"


@pytest.mark.full
def test_a_report_of_a_living_process_is_kept(centre: Centre) -> None:
    rank = rank_of(1, "pod-1", pid=1)
    centre.say(TRUE, A, whole(rank, agent_of("node-a", (rank, {"pid": 4711, "start": 99}))))
    centre.index.reopen()
    centre.say(TRUE, None, whole(agent_of("node-c", (rank, {"remote": True}), number=8)))
    assert centre.index.sql(LABELS) == [("rank1", "node-a", 4711, "pod-1", 1)]
    centre.say(TRUE, None, whole(agent_of("node-a", (rank, {"pid": 4712, "start": 98}), number=7)))
    assert centre.index.sql(LABELS) == [("rank1", "node-a", 4712, "pod-1", 1)]


@proves(
    "pid-sample-of-one-process",
    "the sample of a PID belongs to one process",
    part="min(p.started_at)",
    new="max(p.left_at)",
)
def test_a_pid_that_is_given_out_again_ends_the_claim_of_the_process_before(centre: Centre) -> None:
    first, second = rank_of(1, "pod-1"), rank_of(2, "pod-2", started_at=START_US + 500)
    agent = agent_of("node-a", (first, {"pid": 7, "start": 10}), (second, {"pid": 7, "start": 20}))
    for at in (100, 600):
        names, values = pack(["process.threads"]), struct.pack("<d", float(at))
        agent.say(EventKind.SYSTEM, "pid:7", names, values, ts=START_US + at)
    centre.say(TRUE, A, whole(first, second, agent))
    query = "SELECT label, value FROM system WHERE device = 'pid:7' ORDER BY ALL"
    assert centre.index.sql(query) == [("rank1", 100.0), ("rank2", 600.0)]


def kept(centre: Centre) -> dict[bytes, int]:
    return {sender: refused.events for sender, refused in centre.index.follower.refused.items()}


@proves("kept-blocks-applied", "what was refused is applied once the key covers it")
@pytest.mark.parametrize("reopened", [pytest.param(False, marks=pytest.mark.full), True])
def test_what_was_refused_is_kept_and_applied_once_the_key_covers_its_node(centre: Centre, reopened: bool) -> None:
    rank = rank_of(1, "node-a")
    centre.say(TRUE, A, block_of((rank, 0, 1)))
    agent = agent_of("node-b", (rank, {}))
    agent.say(EventKind.PEER, rank.uuid, {"state": "crashed", "reason": "killed", "produced": 4})
    for block in (block_of((rank, 2, 2)), block_of((rank, 3, 3), (agent, 0, 2))):
        centre.say(FALSE, B, block)
    assert kept(centre) == {FALSE: 4}, "two of its own, and two that its agent reported about it"
    query = "SELECT run_id, label, level FROM events WHERE kind = 'refused_node'"
    assert centre.index.sql(query) == [("r", "rank1", "error")]
    if reopened:
        centre.index.reopen()
    other = rank_of(5, "node-b")
    centre.say(FALSE, B, whole(other))
    assert kept(centre) == {FALSE: 4}
    centre.intake.renew(FALSE, ("node-b", "node-a"))
    centre.commit()
    assert kept(centre) == {}
    assert centre.index.sql("SELECT node, state FROM labels WHERE label = 'rank1'") == [("node-b", "crashed")]
    assert centre.index.sql("SELECT stored, pending FROM completeness WHERE label = 'rank1'") == [(4, 0)]
    assert len(centre.index.sql(STORED)) == 6
    assert centre.index.sql("SELECT count(*) FROM events WHERE kind = 'accepted_node'") == [(1,)]
    centre.index.reopen()
    assert kept(centre) == {}


@pytest.mark.full
def test_what_was_refused_by_two_names_waits_for_both(centre: Centre) -> None:
    one, two = rank_of(1, "node-c"), rank_of(2, "node-d")
    centre.say(FALSE, B, whole(one, two))
    assert kept(centre) == {FALSE: 8}
    centre.say(FALSE, ("node-c",), whole(rank_of(3, "node-c")))
    assert kept(centre) == {FALSE: 4}
    assert centre.index.sql("SELECT DISTINCT label FROM metrics ORDER BY label") == [("rank1",), ("rank3",)]
    centre.say(FALSE, ("node-*",), whole(rank_of(4, "node-e")))
    assert kept(centre) == {}
    assert len(centre.index.sql("SELECT DISTINCT label FROM metrics")) == 4


@proves(
    "refused-stays-out-of-ledger", "what is refused is not entered in the ledger", new="self._context.producer(uuid)"
)
def test_own_ranks_of_a_block_are_stored_beside_a_strangers(centre: Centre) -> None:
    own, foreign = rank_of(1, "node-b"), rank_of(2, "node-a")
    centre.say(FALSE, B, whole(own, foreign))
    assert centre.index.sql("SELECT DISTINCT label FROM metrics") == [("rank1",)]
    assert len(centre.refusals()) == 1
    centre.say(TRUE, A, whole(foreign))
    assert centre.index.sql("SELECT label, stored, pending FROM completeness ORDER BY label") == [
        ("rank1", 4, 0),
        ("rank2", 4, 0),
    ]


@proves("unnamed-producer-bound-to-key", "a producer without identity is bound to the key that spoke for it first")
def test_a_producer_without_identity_belongs_to_the_first_that_speaks_for_it(centre: Centre) -> None:
    rank = rank_of(1, "node-a")
    centre.say(TRUE, A, block_of((rank, 1, 1)))  # event 0 is damaged, or comes later
    centre.index.reopen()
    centre.say(FALSE, B, forged(rank, numbers(1, -1.0), first=2))
    centre.say(FALSE, B, forged(rank, (EventKind.IDENTITY, [rank.identity | {"node": "node-b"}])))
    centre.say(TRUE, A, block_of((rank, 2, 3)), block_of((rank, 0, 0)))
    assert [value for _, value in centre.index.sql(STORED)] == [97.0] * 3
    assert centre.index.sql("SELECT node, label FROM labels") == [("node-a", "rank1")]
    assert len(centre.refusals()) == 1


@proves("refusal-is-one-row", "a refusal is one row, however often it is tried", condition=False)
@pytest.mark.full
def test_a_thousand_tries_are_one_row_also_across_restarts(centre: Centre) -> None:
    rank = rank_of(1, "node-a")
    for _ in range(4):
        centre.say(FALSE, B, *[whole(rank)] * 250)
        centre.index.reopen()
    assert len(centre.refusals()) == 1
    centre.say(b"another sender..", B, whole(rank))
    assert len(centre.refusals()) == 2


@pytest.mark.full
def test_made_up_producers_and_senders_do_not_fill_the_events(centre: Centre, monkeypatch) -> None:
    monkeypatch.setattr(authorization, "REFUSALS_PER_KEY_MAX", 5)
    for number in range(20):
        centre.say(bytes([number]) * 16, B, whole(rank_of(number, "node-a")))
        if number == 3:
            centre.index.reopen()
    assert len(centre.refusals()) == 5
    assert centre.index.sql("SELECT count(*) FROM metrics") == [(0,)]


def test_names_may_be_patterns_and_no_names_are_no_nodes(centre: Centre) -> None:
    one, two, three = rank_of(1, "gpu-17"), rank_of(2, "cpu-1"), rank_of(3, "gpu-2")
    centre.say(TRUE, ("gpu-*", "head"), whole(one, two))
    centre.say(FALSE, (), whole(three), forged(rank_of(4, "x"), numbers(0, 1.0), first=1))
    assert centre.index.sql("SELECT DISTINCT label FROM metrics") == [("rank1",)]
    assert len(centre.refusals()) == 3


@pytest.mark.full
def test_who_is_not_restricted_may_speak_for_all(centre: Centre) -> None:
    rank, other = rank_of(1, "node-a"), rank_of(2, "node-b")
    centre.say(TRUE, A, block_of((rank, 0, 1)))
    centre.say(FALSE, None, whole(rank, other))
    assert centre.index.sql("SELECT stored FROM completeness") == [(4,), (4,)]
    assert centre.refusals() == []


@proves("records-judged-by-sender", "each record of a commit is judged by its own sender", new="if run is None:")
@pytest.mark.full
def test_records_of_several_senders_in_one_commit_are_each_judged_by_their_own(centre: Centre) -> None:
    """A permit that changes between two slices counts from the second on, within one commit too."""
    ranks = [rank_of(number, f"node-{'ab'[number % 2]}") for number in range(6)]
    centre.take(TRUE, A, whole(ranks[0]))
    centre.take(FALSE, B, whole(ranks[1]), whole(ranks[2]))  # 2 is of node-a
    centre.take(TRUE, A, whole(ranks[3]))  # 3 is of node-b
    centre.take(TRUE, ("node-a", "node-b"), whole(ranks[3]), whole(ranks[4]))  # and now it may
    centre.take(TRUE, B, whole(ranks[5]))
    centre.commit()
    labels = centre.index.sql("SELECT label FROM labels ORDER BY label")
    assert labels == [("rank0",), ("rank1",), ("rank3",), ("rank4",), ("rank5",)]
    assert sorted(str(row["producer"])[:2] for row in centre.refusals()) == ["02", "03"]


@proves("unfinished-commit-not-applied", "a commit that never ended is not applied", condition=True)
@pytest.mark.full
def test_a_commit_that_never_ended_stores_nothing(centre: Centre) -> None:
    """Power fails between a slice and its receipt: the sender of the slice is unknown, so it is sent again."""
    rank, other = rank_of(1, "node-a"), rank_of(2, "node-b")
    centre.take(FALSE, B, whole(rank))
    centre.intake.committed()  # what the receiver knew is gone with it
    centre.say(TRUE, A, whole(rank_of(3, "node-a")))
    assert centre.index.sql("SELECT label FROM labels") == [("rank3",)]
    centre.take(FALSE, B, whole(other))
    centre.say(TRUE, A, whole(rank))
    assert centre.index.sql("SELECT label FROM labels ORDER BY label") == [("rank1",), ("rank2",), ("rank3",)]
    assert centre.refusals() == []


@pytest.mark.full
def test_a_damaged_receipt_costs_itself_and_not_its_records(centre: Centre) -> None:
    centre.take(TRUE, A, whole(rank_of(1, "node-a")))
    centre.index.log.next_number += 1  # the receipt's place
    centre.intake.committed()
    centre.say(TRUE, A, whole(rank_of(2, "node-a")))
    assert centre.index.sql("SELECT label FROM labels ORDER BY label") == [("rank1",), ("rank2",)]


@pytest.mark.full
def test_a_node_with_a_long_name_is_judged_by_what_is_kept_of_it(centre: Centre) -> None:
    rank = rank_of(1, "gpu-" + "x" * 100_000)
    centre.say(FALSE, B, whole(rank))
    centre.say(TRUE, ("gpu-*",), whole(rank))
    centre.index.reopen()
    more = rank.log(9, value=1.0)
    centre.say(TRUE, ("gpu-*",), block_of((rank, more, more)))
    assert centre.index.sql("SELECT node FROM labels") == [("gpu-" + "x" * 124,)]
    assert len(centre.index.sql(STORED)) == 4
    assert len(centre.refusals()) == 1


def moves(centre: Centre) -> list[tuple[str, str, bool]]:
    rows = centre.index.sql("SELECT level, body FROM events WHERE kind = 'primary_moved' ORDER BY ALL")
    assert {level for level, _ in rows} <= {"warning"}
    bodies = [json.loads(body) for _, body in rows]
    return [(body["from"], body["to"], body["had_ended"]) for body in bodies]


@proves("foreign-primary-leaves-row", "a primary that moves to another key's node leaves a row", condition=True)
@pytest.mark.parametrize("label", ["rank0", pytest.param("rank7", marks=pytest.mark.full)])
@pytest.mark.parametrize("claims", [True, pytest.param(False, marks=pytest.mark.full)])
def test_a_primary_that_is_suddenly_on_another_keys_node_leaves_a_row(centre: Centre, label: str, claims: bool) -> None:
    """As after an elastic restart that moved rank 0: the two cannot be distinguished, so a row must report it."""
    first = rank_of(1, "node-a", label="rank0", primary=True)
    centre.say(TRUE, A, whole(first))
    centre.index.reopen()
    second = rank_of(2, "node-b", label=label, primary=claims, restart=99)
    second.become(rank=0)  # repeated: no second row
    centre.say(FALSE, B, whole(second))
    granted = claims or label == "rank0"
    assert centre.index.sql("SELECT is_primary FROM labels WHERE node = 'node-b'") == [(granted,)]
    assert moves(centre) == ([("node-a", "node-b", False)] if granted else [])
    assert centre.refusals() == []


@pytest.mark.full
def test_a_primary_that_moves_where_its_key_speaks_for_both_nodes_leaves_no_row(centre: Centre) -> None:
    ranks = [rank_of(n, f"node-{'ab'[n % 2]}", label="rank0", primary=True, restart=n) for n in range(4)]
    for rank, nodes in zip(ranks, [A, None, ("node-*",), B], strict=True):
        rank.say(EventKind.STATE, {"state": "failed"})
        centre.say(TRUE, nodes, whole(rank))
    assert moves(centre) == [("node-a", "node-b", True)], "of the last one, whose key is for one node only"


@pytest.mark.promise(8)
@pytest.mark.soak
def test_by_whatever_order_nothing_of_an_impostor_is_stored_and_nothing_true_is_lost(
    tmp_path: Path, rounds: Rounds
) -> None:
    """Invariant: in the end the database holds exactly what each node's own key sent, and so does a rebuild.

    Three nodes with two ranks and a key each. Every key sends pieces of every rank, those of others with false values.
    Only an unknown producer can be claimed, so an impostor never comes before the first event of the true producer.
    """
    for seed in rounds(1):
        chooser = random.Random(seed)
        centre = Centre(tmp_path / str(seed))
        nodes = [f"node-{letter}" for letter in "abc"]
        ranks = {number: rank_of(number, nodes[number // 2]) for number in range(6)}
        for rank in ranks.values():
            for step in range(3, 10):
                rank.log(step, value=float(ord(rank.identity["node"][-1])))
        pieces = [(number, first) for number in ranks for first in range(11)]
        todo = [(number, seq, False) for number, seq in pieces] + [(number, seq, True) for number, seq in pieces]
        chooser.shuffle(todo)
        known: set[int] = set()
        for number, seq, is_false in todo:
            rank, home = ranks[number], number // 2
            if not is_false or number not in known:
                known.add(number)
                centre.take(TRUE[:15] + bytes([home]), (nodes[home],), block_of((rank, seq, seq)))
            if is_false:
                other = (home + chooser.randint(1, 2)) % 3
                lie = forged(rank, numbers(seq, -1.0), first=seq)
                centre.take(FALSE[:15] + bytes([other]), (nodes[other],), lie)
                rounds.count("lies")
            if chooser.random() < 0.2:
                centre.commit()
            if chooser.random() < 0.02:
                centre.commit()
                centre.index.reopen()
        centre.commit()
        query = (
            "SELECT label, count(*), min(value), max(value), min(node) "
            "FROM metrics JOIN labels USING (run_id, label) GROUP BY label ORDER BY label"
        )
        rows = centre.index.sql(query)
        expected = [
            (f"rank{number}", 10, float(ord("abc"[number // 2])), float(ord("abc"[number // 2])), nodes[number // 2])
            for number in ranks
        ]
        assert rows == expected, f"seed {seed}"
        assert all(row["producer"] for row in centre.refusals())
        centre.assert_rebuilt_is_the_same()
        centre.index.close()
