"""Who is who: attempts, the primary, whose config counts, and how each process ended, decided in log order."""

import json

import pytest

from chiplog_collector.index.apply.applier import Applier
from chiplog_schemas.model.events import EventKind
from tests.support.collector_log import START_US, Rank, apply, block_of, whole
from tests.support.index import Index


def labels(applier: Applier) -> dict[int, tuple[str | None, int, bool]]:
    """Return {first byte of the producer: (label, attempt, is primary)}."""
    return {p.uuid[0]: (p.label, p.attempt, p.is_primary) for p in applier.state.producers.values()}


def said(applier: Applier, kind: str) -> list[str]:
    return [row[5] for row in applier.batch.rows.get("events", []) if row[3] == kind]


def test_attempts_count_by_launch_then_restart_then_order() -> None:
    names = [
        Rank(10, "rank0", launch="one", restart=0),
        Rank(11, "rank0", launch="one", restart=2),
        Rank(12, "rank0", launch="two", restart=0),
        Rank(13, "rank0", launch="one", restart=1),  # delivered late
        Rank(14, "rank1", launch="one", restart=0),
    ]
    found = labels(apply(*(whole(rank) for rank in names)))
    assert [found[number][1] for number in (10, 13, 11, 12)] == [0, 1, 2, 3]
    assert found[14][1] == 0


def test_a_launch_that_follows_one_which_left_is_not_taken_for_another() -> None:
    first, second, third = (Rank(n, "rank0", launch=f"l{n}", restart=2 - n) for n in range(3))
    moved = first.become(label="other")
    found = labels(apply(block_of((first, 0, 0)), whole(second), block_of((first, moved, moved)), whole(third)))
    assert (found[1][1], found[2][1]) == (0, 1)


def test_the_first_claim_is_granted_and_a_second_is_refused_and_recorded() -> None:
    one, two = Rank(0, launch="a"), Rank(1, primary=True, launch="b")
    applier = apply(whole(one), whole(two))
    assert labels(applier) == {0: ("rank0", 0, True), 1: ("rank1", 0, False)}
    assert said(applier, "primary_refused") == ["rank1 claims to be primary; rank0 is, and has not ended"]


@pytest.mark.parametrize(("restart", "wins"), [(0, False), (1, False), (2, True)])
def test_within_a_launch_the_higher_restart_count_wins(restart, wins) -> None:
    one, two = Rank(0, restart=1), Rank(1, primary=True, restart=restart)
    applier = apply(whole(one), whole(two))
    assert labels(applier)[1][2] is wins
    assert labels(applier)[0][2] is not wins
    assert bool(said(applier, "primary_refused")) is not wins


@pytest.mark.promise(7)
def test_a_later_incarnation_of_the_primary_is_primary_and_a_stale_one_takes_nothing_back() -> None:
    newer, older = Rank(10, "rank0", primary=True, restart=3), Rank(11, "rank0", primary=True, restart=0)
    rival = Rank(1, primary=True, restart=2)
    applier = apply(whole(newer), whole(older), whole(rival))
    assert labels(applier) == {10: ("rank0", 1, True), 11: ("rank0", 0, True), 1: ("rank1", 0, False)}
    assert applier.state.runs["r"].primary_restart == 3


def test_another_launch_takes_over_only_when_the_holder_has_ended() -> None:
    holder, early, late = Rank(0, launch="a"), Rank(1, primary=True, launch="b"), Rank(2, primary=True, launch="c")
    end = holder.say(EventKind.STATE, {"state": "finished"})
    applier = apply(block_of((holder, 0, 0)), whole(early), block_of((holder, end, end)), whole(late))
    assert labels(applier) == {0: ("rank0", 0, False), 1: ("rank1", 0, False), 2: ("rank2", 0, True)}
    assert applier.state.runs["r"].primary_label == "rank2"
    assert len(said(applier, "primary_refused")) == 1


def test_a_primary_that_learns_its_label_later_stays_primary() -> None:
    """torch.multiprocessing.spawn: each process is alone at first, then they agree on a run and on ranks."""
    zero = Rank(0, label="host-aaa", run_id="run-a", launch="process:a")
    one = Rank(1, label="host-bbb", run_id="run-b", launch="process:b", primary=True)
    zero.become(run_id="run-a", label="rank0", primary=True)
    one.become(run_id="run-a", label="rank1", primary=False)
    for payloads in ((whole(zero), whole(one)), (whole(one), whole(zero))):
        applier = apply(*payloads)
        assert labels(applier) == {0: ("rank0", 0, True), 1: ("rank1", 0, False)}
        assert applier.state.runs["run-a"].primary_label == "rank0"
        assert said(applier, "primary_refused") == []


def test_only_the_primarys_config_is_the_runs_and_that_of_others_is_refused_and_recorded(index: Index) -> None:
    zero, one = Rank(0), Rank(1)
    zero.say(EventKind.CONFIG, {"lr": "0.1", "model": '"gpt"'})
    one.say(EventKind.CONFIG, {"lr": "0.2"})
    zero.say(EventKind.CONFIG, {"lr": "0.3"})
    index.take(whole(zero, one))
    assert index.sql("SELECT key, value, label FROM config ORDER BY key") == [
        ("lr", "0.3", "rank0"),
        ("model", '"gpt"', "rank0"),
    ]
    [(kind, label, message, body)] = index.sql("SELECT kind, label, message, body FROM events")
    assert (kind, label, message) == ("config_refused", "rank1", "config of rank1 is refused: rank0 is the primary")
    assert json.loads(body) == {"keys": ["lr"]}


def test_config_waits_until_the_primary_is_known(index: Index) -> None:
    rank = Rank(0)
    said_at = rank.say(EventKind.CONFIG, {"lr": "0.1"})
    index.take(block_of((rank, said_at, said_at)))
    assert index.sql("SELECT * FROM config") == []
    index.take(block_of((rank, 0, 0)))
    assert index.sql("SELECT key, value FROM config") == [("lr", "0.1")]


@pytest.mark.parametrize("own_first", [True, False])
@pytest.mark.parametrize("own", ["finished", "failed"])
def test_what_a_rank_said_of_its_own_end_wins_over_its_agent_whichever_comes_first(own, own_first) -> None:
    rank, agent = Rank(0), Rank(9, role="agent")
    rank.say(EventKind.STATE, {"state": own, "exit_code": 3, "reason": "mine"})
    agent.say(EventKind.PEER, rank.uuid, {"state": "crashed", "reason": "vanished", "produced": 7})
    payloads = (whole(rank), whole(agent)) if own_first else (whole(agent), whole(rank))
    producer = apply(*payloads).state.producers[rank.uuid]
    assert (producer.state, producer.reason, producer.exit_code) == (own, "mine", 3)
    assert producer.produced == 7


def test_a_death_that_is_told_again_is_no_second_event() -> None:
    rank, agent = Rank(0), Rank(9, label="agent", role="agent")
    for at, said in enumerate([{"reason": "gone"}, {"reason": "gone", "exit_code": 9}, {"reason": "gone"}]):
        agent.say(EventKind.PEER, rank.uuid, {"state": "crashed", **said}, ts=START_US + at)
    applier = apply(whole(rank), whole(agent))
    assert [row[3] for row in applier.batch.rows["events"]] == ["crashed"]
    producer = applier.state.producers[rank.uuid]
    assert (producer.exit_code, producer.ended_at) == (9, START_US), "found dead once; what became known is kept"


def test_a_provisional_claim_that_is_given_up_leaves_the_run_to_the_primary_that_it_deposed() -> None:
    ended, late = Rank(0, launch="a", sets_run=True), Rank(1, "host-x", primary=True, launch="b", rank=None)
    end = ended.say(EventKind.STATE, {"state": "finished"})
    moved = late.become(label="rank1", primary=False)
    applier = apply(block_of((ended, 0, end)), block_of((late, 0, 0)), block_of((late, moved, moved)))
    assert labels(applier) == {0: ("rank0", 0, True), 1: ("rank1", 0, False)}
