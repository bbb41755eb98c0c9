"""Runs that turn out to be one, provisional claims to be primary, labels used twice, ranks without a primary."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from chiplog_schemas.codec import pack
from chiplog_schemas.model.events import EventKind
from chiplog_schemas.storage.record import Kind
from tests.support.collector_log import START_US, Rank, block_of, whole
from tests.support.index import Index
from tests.support.marks import everyday
from tests.support.safeguard import proves

LABELS = "SELECT run_id, label, attempt, is_primary, rank FROM labels ORDER BY ALL"
SECOND = 1_000_000


def kinds(index: Index) -> list[str]:
    return [kind for (kind,) in index.sql("SELECT kind FROM events ORDER BY ALL")]


def provisional(number: int, **identity: object) -> Rank:
    """Return a rank that does not know its rank yet, in a run of its own."""
    said = {"run_id": f"own{number}", "primary": True, "rank": None, "launch": f"l{number}"} | identity
    rank = Rank(number, f"host-{number}", **said)
    rank.log(0, early=float(number))
    return rank


def agreed(rank: Rank, number: int) -> int:
    former = rank.identity["run_id"]
    more = {} if former == "own0" else {"formerly": former}
    return rank.become(run_id="own0", label=f"rank{number}", rank=number, primary=number == 0, **more)


@proves("late-agreement-merges-runs", "ranks that agreed late are one run, with all that is theirs")
def test_a_provisional_run_is_merged_with_all_that_is_in_it_and_all_that_names_it_later(index: Index) -> None:
    zero, one = provisional(0), provisional(1)
    child = Rank(2, "host-1.77", run_id="own1", primary=False, rank=None)
    child.log(0, early=2.0)
    late = Rank(3, "host-1.78", run_id="own1", primary=False, rank=None)
    late.log(0, early=3.0)
    index.take(whole(zero, one), whole(child))
    facts = index.sql("SELECT * FROM base.metric_facts ORDER BY ALL")
    for number, rank in enumerate((zero, one)):
        at = agreed(rank, number)
        index.take(block_of((rank, at, at)))
    assert index.sql("SELECT * FROM base.metric_facts ORDER BY ALL") == facts, "names move, facts stay where they are"
    index.reopen()
    index.take(whole(late))
    assert index.sql(LABELS) == [
        ("own0", "host-1.77", 0, False, None),
        ("own0", "host-1.78", 0, False, None),
        ("own0", "rank0", 0, True, 0),
        ("own0", "rank1", 0, False, 1),
    ]
    assert index.sql("SELECT DISTINCT run_id, label, value FROM metrics ORDER BY value") == [
        ("own0", "rank0", 0.0),
        ("own0", "rank1", 1.0),
        ("own0", "host-1.77", 2.0),
        ("own0", "host-1.78", 3.0),
    ]
    assert index.sql("SELECT run_id, primary_label, n_labels FROM runs") == [("own0", "rank0", 4)], "none is left empty"
    assert index.sql("SELECT kind, level, body->>'from', body->>'to' FROM events") == [
        ("run_merged", "info", "own1", "own0")
    ]


def test_ranks_that_agree_in_any_order_are_one_run_with_one_primary(index: Index) -> None:
    """Also when the agreed run's events arrive last, and when the ranks of the agreed run died."""
    ranks = [provisional(number) for number in range(4)]
    index.take(*(whole(rank) for rank in reversed(ranks)))
    for number in (2, 3, 1):
        at = agreed(ranks[number], number)
        index.take(block_of((ranks[number], at, at)))
    rows = [("own0", "host-0", 0, True, None), *(("own0", f"rank{n}", 0, False, n) for n in (1, 2, 3))]
    assert index.sql(LABELS) == rows
    at = agreed(ranks[0], 0)
    index.take(block_of((ranks[0], at, at)))
    assert index.sql(LABELS)[0] == ("own0", "rank0", 0, True, 0)
    assert "primary_refused" not in kinds(index)


def test_a_run_that_a_rank_never_was_in_is_not_merged_by_its_word(index: Index) -> None:
    other, liar = Rank(1, run_id="theirs"), Rank(2, run_id="mine")
    index.take(whole(other, liar))
    at = liar.become(formerly="theirs")
    index.take(block_of((liar, at, at)))
    assert index.sql("SELECT run_id FROM runs ORDER BY ALL") == [("mine",), ("theirs",)]


def test_a_merged_run_keeps_what_only_the_former_one_knew(index: Index) -> None:
    known, bare = provisional(1, project="gpt"), provisional(0)
    index.take(whole(known, bare))
    at = agreed(known, 1)
    index.take(block_of((known, at, at)))
    assert index.sql("SELECT run_id, project FROM runs") == [("own0", "gpt")]


def test_of_siblings_that_claim_for_want_of_a_better_one_is_primary_and_nobody_is_refused(index: Index) -> None:
    siblings = [provisional(number, run_id="r", fallback=True) for number in (1, 2)]
    for rank in siblings:
        rank.say(EventKind.CONFIG, {"lr": "0.1"})
    index.take(whole(*siblings))
    assert [row[3] for row in index.sql(LABELS)] == [True, False]
    assert index.sql("SELECT key, label FROM config") == [("lr", "host-1")]
    at = siblings[1].become(label="rank0", rank=0, fallback=False)
    index.take(block_of((siblings[1], at, at)))
    at = siblings[0].become(label="rank1", rank=1, primary=False, fallback=False)
    index.take(block_of((siblings[0], at, at)))
    assert index.sql(LABELS) == [("r", "rank0", 0, True, 0), ("r", "rank1", 0, False, 1)]
    assert index.sql("SELECT key, label FROM config") == [("lr", "rank0")]
    assert kinds(index) == []


@proves("shared-label-reported", "a label that two live processes use is reported")
def test_a_label_that_two_processes_use_at_a_time_is_told_once_and_nothing_of_either_is_dropped(index: Index) -> None:
    first = Rank(1, "eval", pid=11)
    second = Rank(2, "eval", pid=22, launch="other", started_at=START_US + 5 * SECOND)
    index.take(whole(first), whole(second))
    assert kinds(index) == [], "a restart looks the same, until the first process logs again"
    for step in range(3):
        at = first.say(EventKind.TEXT, step, "t", "still here", ts=START_US + (8 + step) * SECOND)
        index.take(block_of((first, at, at)))
        index.reopen()
    [(message, body)] = index.sql("SELECT message, body FROM events WHERE kind = 'label_twice'")
    assert "11 on node-a and 22 on node-a" in message
    assert "CHIPLOG_LABEL" in message
    assert [entry["pid"] for entry in json.loads(body)["processes"]] == [11, 22]
    assert index.sql("SELECT label, attempt, pid FROM labels ORDER BY attempt") == [("eval", 0, 11), ("eval", 1, 22)]
    assert index.sql("SELECT count(*) FROM texts") == [(3,)]
    assert index.sql("SELECT sum(lost + pending) FROM completeness") == [(0,)]


def test_a_restart_is_no_second_use_of_a_label_also_when_it_is_told_late_or_a_clock_is_off(index: Index) -> None:
    first = Rank(1, "eval", node="node-a")
    for step in range(3):
        first.say(EventKind.TEXT, step, "t", "x", ts=START_US + step * SECOND)
    again = Rank(2, "eval", launch="again", node="node-a", started_at=START_US + 2 * SECOND + 10)
    elsewhere = Rank(3, "eval", launch="third", node="node-b", started_at=START_US - 30 * SECOND)
    index.take(whole(again), whole(elsewhere), whole(first))
    assert kinds(index) == []


@proves("foreign-nodes-merge-nothing", "a key for other nodes cannot take over a run", condition=True)
def test_a_key_for_other_nodes_merges_nobody_elses_run_away(index: Index) -> None:
    victims = [Rank(number, run_id="victim", node=f"node-{number}") for number in (0, 1)]
    for victim in victims:
        index.take_from(victim.identity["node"], whole(victim))
    evil = Rank(9, "x", run_id="victim", primary=False, node="evil")
    mine = Rank(8, "x.7", run_id="victim", primary=False, node="evil")
    evil.become(run_id="attackers", formerly="victim")
    index.take_from("evil", whole(mine))
    index.take_from("evil", whole(evil))
    later = Rank(3, run_id="victim", node="node-0")
    index.take_from("node-0", whole(later))
    assert index.sql("SELECT run_id, label, is_primary FROM labels ORDER BY ALL") == [
        ("attackers", "x", False),
        ("attackers", "x.7", False),
        ("victim", "rank0", True),
        ("victim", "rank1", False),
        ("victim", "rank3", False),
    ]
    assert index.sql("SELECT run_id, primary_label FROM runs ORDER BY ALL") == [
        ("attackers", None),
        ("victim", "rank0"),
    ]
    [(kind, level, body)] = index.sql("SELECT kind, level, body FROM events")
    assert (kind, level) == ("merge_refused", "warning")
    assert json.loads(body) == {"from": "victim", "to": "attackers", "stay": 2, "nodes": ["evil"]}


@proves(
    "alias-binds-own-nodes",
    "an alias that a key made of a run does not bind later producers on other nodes",
    new="while run.alias_of is not None and run.run not in passed:",
)
def test_another_name_that_a_key_made_of_a_run_binds_only_those_whom_it_speaks_for(index: Index) -> None:
    """A process that guesses a run ID may name it first; its rightful producers are in that run all the same."""
    evil = Rank(9, "x", run_id="victim", primary=True, node="evil", project="theirs", tags=["theirs"])
    index.take_from("evil", whole(evil))
    at = evil.become(run_id="attackers", formerly="victim")
    index.take_from("evil", block_of((evil, at, at)))
    index.reopen()
    rank = Rank(0, run_id="victim", node="node-0")
    rank.say(EventKind.CONFIG, {"lr": "0.1"})
    mine = Rank(8, "x.7", run_id="victim", primary=False, node="evil")
    index.take_from("node-0", whole(rank))
    index.take_from("evil", whole(mine))
    assert index.sql("SELECT run_id, label, is_primary FROM labels ORDER BY ALL") == [
        ("attackers", "x", True),
        ("attackers", "x.7", False),
        ("victim", "rank0", True),
    ]
    assert index.sql("SELECT run_id, key FROM config") == [("victim", "lr")]
    assert index.sql("SELECT run_id, project, tags FROM runs ORDER BY ALL") == [
        ("attackers", "theirs", ["theirs"]),
        ("victim", None, []),
    ]


@proves("alias-decided-once", "a second key cannot change an alias", condition=False)
def test_another_name_of_a_run_is_not_taken_away_by_a_key_that_does_not_speak_for_those_who_bear_it(
    index: Index,
) -> None:
    """A process that learns a provisional run ID after the merge finds it empty, and may define it again."""
    zero = Rank(0, run_id="own0", node="node-0")
    one = Rank(1, "host-1", run_id="own1", primary=False, node="node-1", rank=None)
    index.take_from("node-0", whole(zero))
    index.take_from("node-1", whole(one))
    at = one.become(run_id="own0", label="rank1", rank=1, formerly="own1")
    index.take_from("node-1", block_of((one, at, at)))
    evil = Rank(9, "x", run_id="own1", primary=False, node="evil", rank=None)
    index.take_from("evil", whole(evil))
    at = evil.become(run_id="attackers", formerly="own1")
    index.take_from("evil", block_of((evil, at, at)))
    index.reopen()
    child = Rank(2, "host-1.77", run_id="own1", primary=False, rank=None, node="node-1")
    index.take_from("node-1", whole(child))
    assert index.sql("SELECT run_id, label FROM labels ORDER BY ALL") == [
        ("attackers", "x"),
        ("own0", "host-1.77"),
        ("own0", "rank0"),
        ("own0", "rank1"),
    ]
    told = index.sql("SELECT kind, body->>'from', body->>'to', body->>'is' FROM events ORDER BY ALL")
    assert told == [("merge_refused", "own1", "attackers", "own0"), ("run_merged", "own1", "own0", None)]


def test_names_that_lead_to_one_another_end_somewhere(index: Index) -> None:
    """Two keys, of which one speaks for the other's node too, make each run another name of the other."""
    one = Rank(1, run_id="a", node="y", primary=False)
    index.take_from("y", whole(one))
    at = one.become(run_id="b", formerly="a")
    index.take_from("y", block_of((one, at, at)))
    both = Rank(2, run_id="b", node="x", primary=False)
    index.take_from("*", whole(both))
    at = both.become(run_id="a", formerly="b")
    index.take_from("*", block_of((both, at, at)))
    later = Rank(3, run_id="a", node="y", primary=False)
    index.take_from("y", whole(later))
    assert index.sql("SELECT run_id, label FROM labels ORDER BY ALL") == [("a", f"rank{n}") for n in (1, 2, 3)]


def test_a_run_whose_ranks_all_ended_without_a_primary_says_so_once(index: Index) -> None:
    ranks = [Rank(number, primary=False) for number in (0, 1)]
    for rank in ranks:
        rank.say(EventKind.STATE, {"state": "finished" if rank.label == "rank0" else "failed", "exit_code": 0})
    index.take(whole(ranks[0]))
    index.take(whole(ranks[1]))
    found = index.sql("SELECT level, message FROM events WHERE kind = 'no_primary'")
    assert len(found) == 1
    assert "run r" in found[0][1]
    assert index.sql("SELECT state FROM runs") == [("failed",)], "the worst of all labels"


@pytest.mark.parametrize("seed", everyday(1, [1, 2]))
def test_what_was_merged_and_told_is_the_same_after_restarts_of_the_index_as_without(tmp_path: Path, seed: int) -> None:
    """Invariant: views are a function of the log's bytes, wherever the index was stopped and started in between."""
    chooser = random.Random(seed)
    ranks = [provisional(number, fallback=chooser.random() < 0.3) for number in range(5)]
    ranks += [Rank(10 + n, f"host-{n}.{n}", run_id=f"own{n}", primary=False, rank=None) for n in range(3)]
    ranks += [Rank(20 + n, "eval", run_id=f"own{n}", primary=n == 1, started_at=START_US + n) for n in range(3)]
    payloads: list[Any] = [whole(rank) for rank in chooser.sample(ranks, len(ranks))]
    for number in chooser.sample(range(5), 5):
        rank = ranks[number]
        at = agreed(rank, number)
        end = rank.say(EventKind.STATE, {"state": chooser.choice(["finished", "failed"])}, ts=START_US + 90 * SECOND)
        payloads.append(block_of((rank, at, end)))
    presence = [(Kind.PRESENCE, pack([b"S" * 16, is_here, 12 * SECOND, "node-a", "b"])) for is_here in (False, True)]
    payloads += presence
    for rank in ranks[5:]:
        end = rank.say(EventKind.STATE, {"state": "finished"}, ts=START_US + 95 * SECOND)
        payloads.append(block_of((rank, end, end)))
    seen = []
    for restarts in (False, True):
        (tmp_path / str(restarts)).mkdir()
        index = Index(tmp_path / str(restarts))
        for payload in payloads:
            index.take(payload)
            if restarts and chooser.random() < 0.4:
                index.reopen()
        index.reopen()
        seen.append((index.views(), index.sql("SELECT * FROM base.runs ORDER BY run")))
        index.close()
    assert seen[0] == seen[1], seed
    assert any("label_twice" in row for row in seen[0][0]["events"])
    assert any("node_lost" in row for row in seen[0][0]["events"])


@pytest.mark.parametrize("boots", [("b", "b"), ("b", "c")])
def test_attempts_on_one_boot_are_counted_by_their_start_whichever_arrives_first(index: Index, boots) -> None:
    first = Rank(1, "trainer", boot=boots[0], uptime=1_000, launch="first", primary=True)
    second = Rank(2, "trainer", boot=boots[1], uptime=2_000, launch="second", primary=True)
    for rank, rate in ((first, "0.1"), (second, "0.2")):
        rank.say(EventKind.CONFIG, {"lr": rate})
    index.take(whole(second), whole(first))
    by_launch = dict(index.sql("SELECT launch, attempt FROM base.producers WHERE launch IS NOT NULL"))
    assert by_launch == ({"first": 0, "second": 1} if boots == ("b", "b") else {"second": 0, "first": 1})
    [(rate,)] = index.sql("SELECT value FROM config")
    assert rate == ("0.2" if boots == ("b", "b") else "0.1")
