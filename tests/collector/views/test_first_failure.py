"""The first failure: the cause, distinguished from its echoes, with clocks that disagree."""

from typing import Any

import duckdb
import pytest

from chiplog_schemas.codec import pack
from chiplog_schemas.model.block_builder import BlockBuilder
from chiplog_schemas.model.events import EventKind
from chiplog_schemas.storage.record import Kind
from tests.support.collector_log import START_US, Rank
from tests.support.index import Index
from tests.support.safeguard import proves

SENDER = b"S" * 16
FIRST = """
SELECT label, is_cause, uncertainty_s, is_certain, [o.label || ' ' || o.is_echo FOR o IN others] FROM first_failure
"""


def deliver(index: Index, made_us: int, received_us: int, *ranks: Rank) -> None:
    """Log a block that an agent made at one time of its clock and the collector received at one of its own."""
    builder = BlockBuilder()
    for rank in ranks:
        for seq, event in enumerate(rank.events):
            builder.add(rank.uuid, seq, event)
    index.log.append(Kind.BLOCK, builder.build(START_US + made_us))
    number = index.log.next_number
    index.log.append(Kind.RECEIPT, pack([START_US + received_us, [[SENDER, 0, number, 1, None]]]))
    index.log.commit()
    index.follow()


def raises(rank: Rank, at_us: int, reason: str, late_us: int = 0) -> None:
    detail = {"traceback": "Traceback …", "exception": reason.split(":")[0]}
    rank.say(EventKind.NOTICE, "traceback", "error", reason, detail, ts=START_US + at_us)
    rank.say(EventKind.STATE, {"state": "failed", "exit_code": 1, "reason": reason}, ts=START_US + at_us + late_us)


def vanishes(agent: Rank, rank: Rank, at_us: int, **said: Any) -> None:
    agent.say(
        EventKind.PEER, rank.uuid, {"state": "crashed", "produced": len(rank.events), **said}, ts=START_US + at_us
    )


def agent_of(number: int, node: str) -> Rank:
    return Rank(number, role="agent", node=node)


def test_the_example_worked_by_hand(index: Index) -> None:
    ranks = [Rank(0), Rank(1), Rank(2, node="node-b")]
    agents = [agent_of(8, "node-a"), agent_of(9, "node-b")]
    raises(ranks[1], 12_000_000, "ValueError: boom")
    vanishes(agents[0], ranks[0], 12_400_000, exit_signal=15, reason="killed by SIGTERM")
    raises(ranks[2], 17_100_000, "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.1]")
    deliver(index, 13_000_000, 13_050_000, ranks[0], ranks[1], agents[0])
    deliver(index, 18_000_000, 13_060_000, ranks[2], agents[1])
    assert index.sql(FIRST) == [("rank1", True, 0.1, True, ["rank2 true", "rank0 true"])]
    [(reason, code, others)] = index.sql("SELECT reason, exit_code, others FROM first_failure")
    assert (reason, code) == ("ValueError: boom", 1)
    assert [round(other["after_s"], 6) for other in others] == [0.11, 0.4]


def test_a_rank_that_raised_and_was_killed_before_it_could_say_its_state_failed_when_it_raised(index: Index) -> None:
    ranks, agent = [Rank(0), Rank(1)], agent_of(8, "node-a")
    ranks[0].say(EventKind.NOTICE, "traceback", "error", "ValueError: boom", {}, ts=START_US + 1_000_000)
    vanishes(agent, ranks[0], 9_000_000, exit_signal=9, reason="killed by SIGKILL")
    vanishes(agent, ranks[1], 5_000_000, exit_signal=6, reason="killed by SIGABRT")
    deliver(index, 0, 0, *ranks, agent)
    assert index.sql(FIRST) == [("rank0", True, 0.0, True, ["rank1 false"])]
    assert index.sql("SELECT reason, exit_signal FROM first_failure") == [("ValueError: boom", 9)]


@pytest.mark.parametrize(
    ("said", "is_echo"),
    [
        ({"exit_signal": 15, "reason": "killed by SIGTERM"}, True),
        ({"exit_signal": 9, "reason": "killed by SIGKILL"}, False),
        ({"exit_code": 143, "reason": "ended with exit code 143 without finish(): os._exit, or native code"}, True),
        ({"exit_code": 137, "reason": "ended with exit code 137 without finish(): os._exit, or native code"}, False),
        ({"exit_signal": 11, "reason": "killed by SIGSEGV"}, False),
        ({"exit_signal": 9, "reason": "out of memory: killed by the kernel"}, False),
        ({"exit_code": 1, "reason": "torch.distributed.DistBackendError: NCCL error"}, True),
        ({"exit_code": 1, "reason": "ChildFailedError: train.py FAILED"}, True),
        ({"exit_code": 1, "reason": "BrokenPipeError: [Errno 32] Broken pipe"}, False),
        ({"exit_code": 143, "reason": "SystemExit: 143"}, True),
        ({"exit_code": 1, "reason": "CUDA out of memory: OutOfMemoryError: Tried"}, False),
        ({"exit_code": 1, "reason": "RuntimeError: DataLoader timed out after 5 seconds"}, False),
    ],
    ids=lambda value: value["reason"] if isinstance(value, dict) else "",
)
def test_a_later_failure_is_the_cause_if_the_earlier_one_is_an_echo(
    index: Index, said: dict[str, Any], is_echo: bool
) -> None:
    ranks, agent = [Rank(0), Rank(1)], agent_of(8, "node-a")
    vanishes(agent, ranks[0], 1_000_000, **said)
    vanishes(agent, ranks[1], 2_000_000, exit_signal=11, reason="killed by SIGSEGV")
    deliver(index, 0, 0, *ranks, agent)
    assert index.sql("SELECT label FROM first_failure") == [("rank1" if is_echo else "rank0",)]


def test_echoes_alone_name_the_earliest_and_no_cause(index: Index) -> None:
    ranks, agent = [Rank(0), Rank(1)], agent_of(8, "node-a")
    for rank, at_us in zip(ranks, (2_000_000, 1_000_000), strict=True):
        vanishes(agent, rank, at_us, exit_signal=15, reason="killed by SIGTERM")
    deliver(index, 0, 0, *ranks, agent)
    assert index.sql(FIRST) == [("rank1", False, 0.0, True, ["rank0 true"])]


def test_two_failures_within_the_clocks_uncertainty_are_not_told_apart(index: Index) -> None:
    ranks = [Rank(0), Rank(1, node="node-b")]
    raises(ranks[0], 1_000_000, "ValueError: one")
    raises(ranks[1], 1_050_000, "ValueError: other")
    for rank in ranks:
        deliver(index, 2_000_000, 2_050_000, rank)
    assert index.sql(FIRST) == [("rank0", True, 0.1, False, ["rank1 false"])]


def test_an_end_that_nobody_saw_may_have_come_first(index: Index) -> None:
    ranks, agent = [Rank(0), Rank(1)], agent_of(8, "node-a")
    raises(ranks[0], 1_000_000, "ValueError: one")
    vanishes(agent, ranks[1], 1_300_000, reason="vanished", late_us=500_000)
    deliver(index, 0, 0, *ranks, agent)
    assert index.sql(FIRST) == [("rank0", True, 0.0, False, ["rank1 false"])]


def test_each_attempt_has_its_own_first_failure_and_a_run_without_failures_has_none(index: Index) -> None:
    first, second, fine = Rank(1), Rank(2, "rank1", restart=1), Rank(3, run_id="fine")
    raises(first, 1_000_000, "ValueError: first")
    raises(second, 5_000_000, "ValueError: second")
    fine.say(EventKind.STATE, {"state": "finished", "exit_code": 0})
    deliver(index, 0, 0, first, second, fine)
    rows = index.sql("SELECT run_id, attempt, reason, len(others) FROM first_failure ORDER BY attempt")
    assert rows == [("r", 0, "ValueError: first", 0), ("r", 1, "ValueError: second", 0)]


def test_who_joins_in_a_later_round_counts_into_that_one_whatever_its_restart_count_is(index: Index) -> None:
    """Each node has its own restart count, and a new node begins at 0, as its label's attempts do."""
    first = [Rank(0, started_at=START_US), Rank(1, started_at=START_US + 100_000)]
    raises(first[0], 10_000_000, "ValueError: first")
    first[1].say(EventKind.STATE, {"state": "failed", "reason": "KeyboardInterrupt"}, ts=START_US + 10_500_000)
    again = [
        Rank(10, "rank0", rank=0, restart=1, started_at=START_US + 20_000_000),
        Rank(11, "rank1", rank=1, started_at=START_US + 21_000_000),  # on a node whose workers did not fail
    ]
    joiner = Rank(12, "rank2", rank=2, node="node-b", started_at=START_US + 19_000_000)
    child = Rank(13, "rank0.77", rank=None, primary=False, started_at=START_US + 25_000_000)
    raises(joiner, 30_000_000, "ValueError: joined")
    raises(again[0], 31_000_000, "RuntimeError: Connection closed by peer")
    raises(again[1], 31_100_000, "ValueError: later")
    raises(child, 30_500_000, "ValueError: a child's")
    deliver(index, 0, 0, *first, *again, joiner, child)
    rows = index.sql("SELECT attempt, label, reason, [o.label FOR o IN others] FROM first_failure ORDER BY attempt")
    assert rows == [
        (0, "rank0", "ValueError: first", ["rank1"]),
        (1, "rank2", "ValueError: joined", ["rank0.77", "rank0", "rank1"]),
    ]


def test_a_rank_that_was_slow_to_start_fails_in_the_round_that_it_was_started_for(index: Index) -> None:
    quick, slow = Rank(0), Rank(1, started_at=START_US + 3_000_000)
    raises(quick, 1_000_000, "ValueError: at once")
    slow.say(EventKind.STATE, {"state": "failed", "reason": "KeyboardInterrupt"}, ts=START_US + 3_100_000)
    again = [Rank(10 + n, f"rank{n}", rank=n, started_at=START_US + 9_000_000 + n) for n in (0, 1)]
    raises(again[1], 20_000_000, "ValueError: again")
    deliver(index, 0, 0, quick, slow, *again)
    rows = index.sql("SELECT attempt, label, [o.label FOR o IN others] FROM first_failure ORDER BY attempt")
    assert rows == [(0, "rank0", ["rank1"]), (1, "rank1", [])]


CONNECTION = "ConnectionResetError: [Errno 104] Connection reset by peer"
NCCL = "torch.distributed.DistBackendError: NCCL error: remote process exited"


def test_an_exception_that_only_sounds_like_a_lost_peer_is_the_cause_when_nobody_failed_before_it(index: Index) -> None:
    alone, first, second = Rank(1, run_id="alone"), Rank(2, run_id="two"), Rank(3, run_id="two")
    raises(alone, 1_000_000, CONNECTION)
    raises(first, 1_000_000, CONNECTION)
    raises(second, 1_200_000, NCCL)
    deliver(index, 0, 0, alone, first, second)
    rows = index.sql(f"{FIRST} ORDER BY run_id")
    assert rows == [("rank1", True, 0.0, True, []), ("rank2", True, 0.0, True, ["rank3 true"])]


@pytest.mark.parametrize(("after_us", "is_echo"), [(50_000, True), (200_000, False)])
def test_one_that_sounds_so_within_the_clocks_uncertainty_of_another_failure_is_its_echo(
    index: Index, after_us: int, is_echo: bool
) -> None:
    early, late = Rank(1), Rank(2, node="node-b")
    raises(early, 1_000_000, CONNECTION)
    raises(late, 1_000_000 + after_us, "ValueError: boom")
    deliver(index, 0, 0, early, late)
    assert index.sql("SELECT label, is_cause FROM first_failure") == [("rank2" if is_echo else "rank1", True)]


def test_of_lost_peers_alone_the_first_is_the_cause_and_what_was_ended_for_it_is_an_echo(index: Index) -> None:
    ranks, agent = [Rank(0), Rank(1), Rank(2)], agent_of(8, "node-a")
    raises(ranks[0], 1_000_000, NCCL)
    raises(ranks[1], 1_100_000, NCCL)
    vanishes(agent, ranks[2], 1_500_000, exit_signal=15, reason="killed by SIGTERM")
    deliver(index, 0, 0, *ranks, agent)
    assert index.sql(FIRST) == [("rank0", True, 0.0, True, ["rank1 true", "rank2 true"])]


@proves(
    "lost-peer-by-cause",
    "a lost peer is known by the cause that a rank names",
    part="coalesce(s.cause, p.cause, '')",
    new="CASE WHEN s.message LIKE '%NCCL%' THEN 'peer_lost' ELSE '' END",
)
@pytest.mark.parametrize(
    ("reason", "cause", "is_echo"),
    [
        (NCCL, "exception", False),
        ("RuntimeError: in unknown words", "peer_lost", True),
        ("KeyboardInterrupt", "exception", False),
        ("Stopped: by the scheduler", "interrupted", True),
        (NCCL, "of the future", True),
    ],
)
def test_the_cause_that_a_rank_names_counts_and_not_the_words_of_its_exception(
    index: Index, reason: str, cause: str, is_echo: bool
) -> None:
    early, late = Rank(0), Rank(1)
    early.say(EventKind.NOTICE, "traceback", "error", reason, {"cause": cause}, ts=START_US + 1_000_000)
    state = {"state": "failed", "exit_code": 1, "reason": reason, "cause": cause}
    early.say(EventKind.STATE, state, ts=START_US + 1_001_000)
    raises(late, 2_000_000, "ValueError: boom")
    deliver(index, 0, 0, early, late)
    assert index.sql("SELECT label FROM first_failure") == [("rank1" if is_echo else "rank0",)]


@proves(
    "unobserved-end-by-cause",
    "an end that was not observed is known by its cause",
    part="AND cause = 'unseen' AS",
    new="AS",
)
@pytest.mark.parametrize(("cause", "is_certain"), [("exit_status", True), ("exception", True), ("unseen", False)])
def test_whether_an_end_was_seen_is_what_its_agent_names(index: Index, cause: str, is_certain: bool) -> None:
    ranks, agent = [Rank(0), Rank(1)], agent_of(8, "node-a")
    vanishes(agent, ranks[0], 1_000_000, reason="in other words", cause=cause)
    vanishes(agent, ranks[1], 1_500_000, exit_signal=15, reason="killed by SIGTERM", cause="exit_status")
    deliver(index, 0, 0, *ranks, agent)
    assert index.sql("SELECT label, is_certain FROM first_failure") == [("rank0", is_certain)]


def test_a_kill_for_lack_of_memory_is_known_by_its_cause(index: Index) -> None:
    ranks, agent = [Rank(0), Rank(1)], agent_of(8, "node-a")
    vanishes(agent, ranks[0], 1_000_000, reason="in other words", cause="unseen")
    vanishes(agent, ranks[1], 1_100_000, exit_signal=9, reason="in other words", cause="out_of_memory")
    deliver(index, 0, 0, *ranks, agent)
    assert index.sql(FIRST) == [("rank0", True, 0.0, True, ["rank1 false"])]


def test_who_loses_a_peer_that_was_ended_from_outside_is_no_cause(index: Index) -> None:
    ranks, agent = [Rank(0), Rank(1)], agent_of(8, "node-a")
    vanishes(agent, ranks[0], 1_000_000, exit_signal=15, reason="killed by SIGTERM")
    raises(ranks[1], 1_100_000, NCCL)
    deliver(index, 0, 0, *ranks, agent)
    assert index.sql(FIRST) == [("rank0", False, 0.0, True, ["rank1 true"])]


@pytest.mark.parametrize("view", ["first_failure", "restarts"])
def test_what_ended_one_run_is_asked_of_that_run_alone(index: Index, view: str) -> None:
    """The other run has a time that overflows: a query that also reads the other run fails."""
    ranks = [Rank(1, run_id="asked"), Rank(2, run_id="other")]
    for rank in ranks:
        rank.log(0, loss=1.0)
        raises(rank, 1_000_000, "ValueError: boom")
    deliver(index, 0, 0, *ranks)
    index.sql("UPDATE base.producers SET clock_us = 9223372036854775807 WHERE label = 'rank2'")
    with pytest.raises(duckdb.OutOfRangeException):
        index.sql(f"SELECT * FROM {view}")
    assert len(index.sql(f"SELECT * FROM {view} WHERE run_id = 'asked'")) == (view == "first_failure")


VANISHED = "vanished without finish(): killed, out of memory, or os._exit"


@pytest.mark.parametrize(
    ("at_us", "late_us", "said"),
    [
        (1_003_000, 500_000, ("rank0", False, 0.0, False, ["rank1 true"])),
        (5_000_000, 0, ("rank0", False, 0.0, True, ["rank1 true"])),
        (600_000, 0, ("rank1", True, 0.0, False, ["rank0 true"])),
        (50_000_000, 1_000_000, ("rank1", True, 1.0, True, ["rank0 true"])),
    ],
    ids=["in the same moment", "while the launcher ends all", "before", "long after"],
)
def test_who_ended_nobody_knows_how_is_no_certain_cause_beside_one_that_was_ended_from_outside(
    index: Index, at_us: int, late_us: int, said: tuple[Any, ...]
) -> None:
    ranks, agent = [Rank(0), Rank(1)], agent_of(8, "node-a")
    vanishes(agent, ranks[0], 1_000_000, exit_signal=15, reason="killed by SIGTERM")
    vanishes(agent, ranks[1], at_us, reason=VANISHED, late_us=late_us)
    deliver(index, 0, 0, *ranks, agent)
    assert index.sql(FIRST) == [said]


def test_who_ended_nobody_knows_how_is_no_certain_cause_before_one_that_was_killed(index: Index) -> None:
    ranks, agent = [Rank(0), Rank(1)], agent_of(8, "node-a")
    vanishes(agent, ranks[0], 1_000_000, exit_signal=9, reason="killed by SIGKILL")
    vanishes(agent, ranks[1], 900_000, reason=VANISHED)
    deliver(index, 0, 0, *ranks, agent)
    assert index.sql(FIRST) == [("rank1", True, 0.0, False, ["rank0 true"])]


def test_a_lost_peer_is_not_explained_by_one_that_ended_nobody_knows_how_while_all_were_ended(index: Index) -> None:
    ranks, agent = [Rank(0), Rank(1), Rank(2)], agent_of(8, "node-a")
    raises(ranks[0], 1_000_000, NCCL)
    vanishes(agent, ranks[1], 1_400_000, exit_signal=15, reason="killed by SIGTERM")
    vanishes(agent, ranks[2], 1_500_000, reason=VANISHED)
    deliver(index, 0, 0, *ranks, agent)
    assert index.sql(FIRST) == [("rank0", True, 0.0, True, ["rank1 true", "rank2 true"])]


def test_an_error_file_says_what_the_exit_status_does_not(index: Index) -> None:
    ranks, agent = [Rank(0), Rank(1)], agent_of(8, "node-a")
    vanishes(agent, ranks[0], 1_000_000, exit_signal=15, reason="killed by SIGTERM")
    vanishes(agent, ranks[1], 1_003_000, reason=f"{VANISHED}; its error file says: ValueError: boom", late_us=500_000)
    deliver(index, 0, 0, *ranks, agent)
    assert index.sql("SELECT label, is_cause FROM first_failure") == [("rank1", True)]


@proves(
    "gpu-event-near-failure",
    "a failure names what its GPU reported within a minute before",
    part="60 SECOND",
    new="6000 SECOND",
)
def test_a_failure_names_the_error_that_its_gpu_reported_before(index: Index) -> None:
    """Of several the first error counts. What is older, of another GPU, or of another kind, does not."""
    ranks = [Rank(0, gpus=["GPU-0"]), Rank(1, gpus=["GPU-1"])]
    agent = agent_of(8, "node-a")
    raises(ranks[0], 100_000_000, "RuntimeError: CUDA error: unspecified launch failure")
    for kind, level, device, at_s, code in (
        ("gpu.xid", "error", "GPU-0", 30, 48),
        ("gpu.xid", "warning", "GPU-0", 90, 13),
        ("gpu.reset", "error", "GPU-0", 91, None),
        ("gpu.xid", "error", "GPU-1", 92, 94),
        ("gpu.xid", "error", "GPU-0", 95, 79),
        ("gpu.lost", "error", "GPU-0", 104, None),
        ("gpu.lost", "error", "GPU-0", 111, None),
    ):
        body = {"device": device, **({} if code is None else {"code": code})}
        agent.say(EventKind.NOTICE, kind, level, f"{device} {kind}", body, ts=START_US + at_s * 1_000_000)
    deliver(index, 0, 0, *ranks, agent)
    [(found,)] = index.sql("SELECT gpu_event FROM first_failure")
    assert (found["kind"], found["xid"], found["level"], found["device"]) == ("gpu.xid", 79, "error", "GPU-0")
    assert found["message"] == "GPU-0 gpu.xid"
    assert index.sql("SELECT epoch_us(gpu_event.ts) FROM first_failure") == [(START_US + 95_000_000,)]


def test_what_a_gpu_only_reports_for_information_comes_last(index: Index) -> None:
    rank, agent = Rank(0, gpus=["GPU-0"]), agent_of(8, "node-a")
    raises(rank, 100_000_000, "RuntimeError: CUDA error: an illegal memory access was encountered")
    for level, at_s, code in (("info", 80, 63), ("warning", 99, 31), ("info", 99, 45)):
        body = {"device": "GPU-0", "code": code}
        agent.say(EventKind.NOTICE, "gpu.xid", level, "x", body, ts=START_US + at_s * 1_000_000)
    deliver(index, 0, 0, rank, agent)
    assert index.sql("SELECT gpu_event.xid FROM first_failure") == [(31,)]


def test_a_gpu_that_its_agent_finds_lost_after_the_failure_is_named_and_none_is_null(index: Index) -> None:
    ranks, agent = [Rank(0, gpus=["GPU-0"]), Rank(1, run_id="fine", launch="b", gpus=["GPU-1"])], agent_of(8, "node-a")
    for rank in ranks:
        raises(rank, 100_000_000, "RuntimeError: boom")
    agent.say(EventKind.NOTICE, "gpu.lost", "error", "lost", {"device": "GPU-0"}, ts=START_US + 105_000_000)
    deliver(index, 0, 0, *ranks, agent)
    assert index.sql("SELECT run_id, gpu_event.kind FROM first_failure ORDER BY ALL") == [
        ("fine", None),
        ("r", "gpu.lost"),
    ]


def of_gpu(agent: Rank, kind: str, at_us: int, code: int | None = None, level: str = "error") -> None:
    body = {"device": "GPU-0", **({} if code is None else {"code": code})}
    agent.say(EventKind.NOTICE, kind, level, f"GPU-0 {kind} {code}", body, ts=START_US + at_us)


@proves(
    "gpu-cleanup-is-no-cause",
    "what a driver cleans up after a process is not the cause of its end",
    part="g.xid IN (43, 45) AND g.ts > f.ts OR ",
)
@pytest.mark.parametrize(
    ("is_killed", "events", "cause"),
    [
        (True, [("gpu.xid", 100_050_000, 45)], None),
        (True, [("gpu.xid", 99_900_000, 45)], None),  # the exit status is known when the driver has cleaned up
        (True, [("gpu.xid", 100_050_000, 43), ("gpu.xid", 100_060_000, 45)], None),
        (True, [("gpu.xid", 99_000_000, 43), ("gpu.xid", 99_900_000, 45)], 43),
        (True, [("gpu.xid", 99_900_000, 45), ("gpu.xid", 102_000_000, 79)], 79),
        (True, [("gpu.xid", 99_900_000, 45), ("gpu.lost", 104_000_000, None)], "gpu.lost"),
        (False, [("gpu.xid", 98_000_000, 45)], 45),  # it was not this process, which ran and raised
        (False, [("gpu.xid", 100_300_000, 31), ("gpu.xid", 100_400_000, 43), ("gpu.xid", 101_000_000, 45)], 31),
        (False, [("gpu.xid", 101_000_000, 45)], None),
    ],
)
def test_what_a_driver_cleans_up_after_a_process_is_not_named_as_its_cause(
    index: Index, is_killed: bool, events: list[tuple[str, int, int | None]], cause: int | str | None
) -> None:
    rank, agent = Rank(0, gpus=["GPU-0"]), agent_of(8, "node-a")
    if is_killed:
        vanishes(agent, rank, 100_000_000, exit_signal=9, reason="killed by SIGKILL")
    else:
        raises(rank, 100_000_000, "RuntimeError: CUDA error: an illegal memory access was encountered")
    for kind, at_us, code in events:
        of_gpu(agent, kind, at_us, code, "warning" if code == 45 else "error")
    deliver(index, 0, 0, rank, agent)
    found = index.sql("SELECT coalesce(gpu_event.xid::VARCHAR, gpu_event.kind) FROM first_failure")
    assert found == [(None if cause is None else str(cause),)]
