"""How much of a run's time was training, what throttling cost, and what GPUs reported: examples worked out by hand."""

import struct
from typing import Any

import pytest

from chiplog_schemas.codec import pack
from chiplog_schemas.model.events import EventKind
from tests.support.collector_log import START_US, Rank, block_of, whole
from tests.support.index import Index
from tests.support.marks import everyday
from tests.support.random_facts import SEEDS, fill_randomly, make_database
from tests.support.safeguard import proves

GOODPUT = "SELECT * EXCLUDE (run_id) FROM goodput"


def take_step(rank: Rank, step: int, ended_s: float, seconds: float) -> None:
    """Record a whole step that ended at that time."""
    rank.say(EventKind.PHASES, step, pack(["step"]), struct.pack("<d", seconds), ts=START_US + round(ended_s * 1e6))


def end(rank: Rank, at_s: float, state: str) -> None:
    """Record the end of an attempt."""
    rank.say(EventKind.STATE, {"state": state}, ts=START_US + round(at_s * 1e6))


def sample(agent: Rank, device: str, at_s: float, reasons: int, clock_hz: float = 2e9) -> None:
    """Record a sample of a GPU."""
    names = pack(["hw.gpu.clock.sm", "hw.gpu.throttle.reasons"])
    values = struct.pack("<2d", clock_hz, float(reasons))
    agent.say(EventKind.SYSTEM, device, names, values, ts=START_US + round(at_s * 1e6))


def agent_of(node: str) -> Rank:
    return Rank(9, label="agent", role="agent", node=node, run_id="", rank=None)


@proves(
    "repeated-steps-not-productive", "steps that were done again are not productive", part=" FILTER (a.attempt IS NULL)"
)
def test_the_goodput_of_a_run_that_was_restarted(index: Index) -> None:
    """The example worked by hand: 125 s, in which steps 0 to 5 of 10 s each were done, two of them twice."""
    first = Rank(0, launch="a")
    again = Rank(1, rank=0, label="rank0", restart=1, launch="a", started_at=START_US + 70_000_000)
    for step in range(4):
        take_step(first, step, 20 + 10 * step, 10.0)
    end(first, 55, "failed")
    for step in range(2, 6):
        take_step(again, step, 90 + 10 * (step - 2), 10.0)
    end(again, 125, "finished")
    index.take(whole(first), whole(again))
    assert index.sql(GOODPUT) == [(1, 1, 125.0, 60.0, 0.48, 10.0, 20.0, 30.0, 5.0)]


def test_goodput_is_a_mean_over_ranks_and_other_labels_count_for_nothing(index: Index) -> None:
    ranks = [Rank(0), Rank(1)]
    helper = Rank(2, rank=None, label="eval", primary=False)
    for rank, seconds in zip(ranks, (10.0, 6.0), strict=True):
        take_step(rank, 0, 10.0, seconds)
        end(rank, 20, "finished")
    take_step(helper, 0, 500.0, 500.0)
    index.take(whole(*ranks, helper))
    assert index.sql(GOODPUT) == [(2, 0, 20.0, 8.0, 0.4, 2.0, 0.0, 0.0, 10.0)]


def test_the_wall_time_of_a_running_run_ends_with_its_last_step(index: Index) -> None:
    rank = Rank(0)
    take_step(rank, 0, 10.0, 4.0)
    take_step(rank, 1, 16.0, 6.0)
    index.take(whole(rank))
    assert index.sql(GOODPUT) == [(1, 0, 16.0, 10.0, 0.625, 6.0, 0.0, 0.0, 0.0)]


def test_a_run_without_steps_of_known_length_has_no_goodput(index: Index) -> None:
    rank = Rank(0)
    rank.log(1, loss=1.0)
    index.take(whole(rank))
    assert index.sql("SELECT * FROM goodput") == []


@pytest.mark.parametrize("seed", everyday(2, SEEDS))
def test_productive_and_repeated_time_are_those_of_the_plain_query(seed: int) -> None:
    plain = """
    WITH steps AS (
        SELECT run_id, label, rank, step, attempt, sum(seconds) AS seconds,
               attempt = max(attempt) OVER (PARTITION BY run_id, label, step) AS is_newest
        FROM phases WHERE phase = 'step' AND run_id IS NOT NULL GROUP BY run_id, label, rank, step, attempt
    ), by_label AS (
        SELECT run_id, label, coalesce(sum(seconds) FILTER (is_newest), 0) AS productive_s,
               coalesce(sum(seconds) FILTER (NOT is_newest), 0) AS repeated_s
        FROM steps WHERE (run_id, label) IN (SELECT run_id, label FROM labels WHERE rank IS NOT NULL)
            OR run_id NOT IN (SELECT run_id FROM labels WHERE rank IS NOT NULL)
        GROUP BY run_id, label
    )
    SELECT run_id, count(*), round(avg(productive_s), 9), round(avg(repeated_s), 9) FROM by_label GROUP BY run_id
    """
    with make_database() as database:
        fill_randomly(database, seed)
        expected = database.execute(f"{plain} ORDER BY ALL").fetchall()
        query = "SELECT run_id, n_labels, round(productive_s, 9), round(repeated_s, 9) FROM goodput ORDER BY ALL"
        assert database.execute(query).fetchall() == expected and expected, f"seed {seed}"
        parts = "SELECT wall_s - productive_s - startup_s - repeated_s - down_s - other_s FROM goodput"
        assert all(abs(rest) < 1e-6 for (rest,) in database.execute(parts).fetchall())


def throttled(index: Index) -> list[tuple[Any, ...]]:
    return index.sql("SELECT * EXCLUDE (run_id, rank, node) FROM throttle_cost ORDER BY ALL")


def test_throttling_costs_what_its_steps_take_longer_than_others(index: Index) -> None:
    """The example worked by hand: a sample each second for 8 s; from second 4 on it is hot, at 1.2 instead of 2 GHz.

    Steps end half a second after a sample: four take 0.5 s, then three take 0.8 s and one 0.9 s.
    """
    rank, agent = Rank(0, gpus=["GPU-0"]), agent_of("node-a")
    for second in range(8):
        is_hot = second >= 4
        sample(agent, "GPU-0", second, 32 if is_hot else 0, 1.2e9 if is_hot else 2e9)
        take_step(rank, second, second + 0.5, 0.9 if second == 7 else 0.8 if is_hot else 0.5)
    index.take(whole(rank, agent))
    [(*names, throttled_s, share, clock_hz, free_clock_hz, n_steps, step_s, free_step_s, cost_s)] = throttled(index)
    assert names == ["rank0", "GPU-0", "sw_thermal_slowdown"]
    # The last sample holds for an unknown time: 7 s are known, 3 of them hot.
    assert (throttled_s, share, clock_hz, free_clock_hz) == (3.0, 3 / 7, 1.2e9, 2e9)
    assert (n_steps, step_s, free_step_s, round(cost_s, 9)) == (4, 0.8, 0.5, 1.3)  # 0.3 three times and 0.4


@proves("idle-is-not-throttled", "an idle GPU and chosen clocks are no throttling", part=" & 252")
def test_an_idle_gpu_and_chosen_clocks_are_no_throttling(index: Index) -> None:
    rank, agent = Rank(0, gpus=["GPU-0"]), agent_of("node-a")
    for second, reasons in enumerate((1, 2, 3, 256)):
        sample(agent, "GPU-0", second, reasons, 1e9)
        take_step(rank, second, second + 0.5, 0.25)
    index.take(whole(rank, agent))
    assert throttled(index) == []
    sample(agent, "GPU-0", 4, 4 | 1, 0.5e9)
    sample(agent, "GPU-0", 5, 0, 1e9)
    take_step(rank, 4, 4.5, 0.75)
    n_before = len(agent.events) - 2, len(rank.events) - 1
    index.take(block_of((agent, n_before[0], n_before[0] + 1), (rank, n_before[1], n_before[1])))
    assert throttled(index) == [("rank0", "GPU-0", "sw_power_cap", 1.0, 0.2, 0.5e9, 1e9, 1, 0.75, 0.25, 0.5)]


def test_a_step_has_the_state_of_a_recent_sample_only_and_each_reason_is_a_row(index: Index) -> None:
    """The only sample before step 1 is 11 s old. Without a free step there is no cost to compare with."""
    rank, agent = Rank(0, gpus=["GPU-0"]), agent_of("node-a")
    sample(agent, "GPU-0", 1, 8 | 64)
    take_step(rank, 0, 2.0, 1.0)
    take_step(rank, 1, 12.0, 1.0)
    index.take(whole(rank, agent))
    assert throttled(index) == [
        ("rank0", "GPU-0", reason, 0.0, None, 2e9, None, 1, 1.0, None, None)
        for reason in ("hw_slowdown", "hw_thermal_slowdown")
    ]


def test_gpus_of_two_nodes_with_one_name_are_two_rows(index: Index) -> None:
    """A label moves to another node, whose GPU has the same name and is never hot."""
    began_us = START_US + 9_000_000
    first = Rank(0, label="worker", gpus=["GPU-0"])
    again = Rank(1, label="worker", restart=1, gpus=["GPU-0"], node="node-b", start_us=began_us, started_at=began_us)
    agents = agent_of("node-a"), agent_of("node-b")
    agents[1].uuid = b"B" * 16
    end(first, 8, "failed")
    for second in range(4):
        sample(agents[0], "GPU-0", second, 32 * (second % 2))
        take_step(first, second, second + 0.5, 0.8 if second % 2 else 0.5)
        sample(agents[1], "GPU-0", 10 + second, 0)
        take_step(again, 4 + second, 10.5 + second, 2.0)
    index.take(whole(first, agents[0]), whole(again, agents[1]))
    rows = index.sql("SELECT node, throttled_s, n_steps, step_s, free_step_s FROM throttle_cost")
    assert rows == [("node-a", 1.0, 2, 0.8, 0.5)]


def test_a_gpu_is_counted_once_also_if_its_label_got_another_rank(index: Index) -> None:
    """Worked by hand: of the 11 s between four samples, which turn hot at 1 and at 11 s, 9 are hot."""
    first = Rank(0, label="worker", gpus=["GPU-0"])
    began_us = START_US + 9_000_000
    again = Rank(1, label="worker", rank=3, restart=1, gpus=["GPU-0"], start_us=began_us, started_at=began_us)
    agent = agent_of("node-a")
    end(first, 8, "failed")
    for number, (rank, second) in enumerate(((first, 0), (first, 1), (again, 10), (again, 11))):
        sample(agent, "GPU-0", second, 32 * (number % 2))
        take_step(rank, number, second + 0.5, 0.8 if number % 2 else 0.5)
    index.take(whole(first), whole(again, agent))
    assert [round(row, 9) if isinstance(row, float) else row for [*rows] in throttled(index) for row in rows] == [
        *("worker", "GPU-0", "sw_thermal_slowdown", 9.0, round(9 / 11, 9), 2e9, 2e9, 2, 0.8, 0.5, 0.6)
    ]
    assert index.sql("SELECT rank, node FROM throttle_cost") == [(3, "node-a")]


@proves(
    "lost-gpu-of-ended-label",
    "a GPU that is lost belongs to the label whose process it ended",
    part=" - INTERVAL 60 SECOND",
)
def test_an_event_of_a_gpu_names_the_label_that_used_it_also_when_its_end_came_first(index: Index) -> None:
    zero, one = Rank(0, gpus=["GPU-0"]), Rank(1, gpus=["GPU-1"])
    end(zero, 10, "crashed")
    agent = agent_of("node-a")
    for kind, level, device, at_s in (
        ("gpu.lost", "error", "GPU-0", 12),
        ("gpu.back", "info", "GPU-0", 90),
        ("device_stale", "warning", "GPU-1", 20),
        ("gpu.xid", "error", "GPU-1", 21),
        ("gpu.lost", "error", "GPU-7", 22),
    ):
        body = {"device": device, **({"code": 79} if kind == "gpu.xid" else {})}
        agent.say(EventKind.NOTICE, kind, level, f"{device} {kind}", body, ts=START_US + at_s * 1_000_000)
    agent.say(EventKind.NOTICE, "sampler", "info", "no GPU", {}, ts=START_US)
    index.take(whole(zero, one, agent))
    query = "SELECT run_id, label, rank, node, device, kind, level, xid, message FROM gpu_events ORDER BY ts"
    assert index.sql(query) == [
        ("r", "rank0", 0, "node-a", "GPU-0", "gpu.lost", "error", None, "GPU-0 gpu.lost"),
        ("r", "rank1", 1, "node-a", "GPU-1", "device_stale", "warning", None, "GPU-1 device_stale"),
        ("r", "rank1", 1, "node-a", "GPU-1", "gpu.xid", "error", 79, "GPU-1 gpu.xid"),
        (None, None, None, "node-a", "GPU-7", "gpu.lost", "error", None, "GPU-7 gpu.lost"),
        (None, None, None, "node-a", "GPU-0", "gpu.back", "info", None, "GPU-0 gpu.back"),
    ]


def test_of_a_gpu_that_two_attempts_used_an_event_names_the_label_once(index: Index) -> None:
    first = Rank(0, gpus=["GPU-0"])
    again = Rank(1, rank=0, label="rank0", restart=1, gpus=["GPU-0"], started_at=START_US + 20_000_000)
    agent = agent_of("node-a")
    end(first, 15, "failed")
    agent.say(EventKind.NOTICE, "gpu.lost", "error", "lost", {"device": "GPU-0"}, ts=START_US + 30_000_000)
    index.take(whole(first), whole(again, agent))
    assert index.sql("SELECT label, kind FROM gpu_events") == [("rank0", "gpu.lost")]
