"""How much of a run's time was training, what throttling cost, and what GPUs reported: examples worked out by hand."""

import struct
from typing import Any

import pynvml
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


def test_the_bits_of_throttle_reasons_are_those_of_nvml(index: Index) -> None:
    """The name of each bit is NVML's in another form: sw_power_cap is nvmlClocksEventReasonSwPowerCap."""
    found = index.sql("SELECT reason, bit FROM base.throttle_reasons")
    for reason, bit in found:
        name = "nvmlClocksEventReason" + reason.title().replace("_", "")
        assert getattr(pynvml, name) == bit, name
    others = pynvml.nvmlClocksEventReasonGpuIdle | pynvml.nvmlClocksEventReasonApplicationsClocksSetting
    others |= pynvml.nvmlClocksEventReasonDisplayClockSetting
    assert sum(bit for _, bit in found) == pynvml.nvmlClocksEventReasonAll & ~others == 252


def throttled(index: Index) -> list[tuple[Any, ...]]:
    return index.sql("SELECT * EXCLUDE (run_id, rank, node, measured_by, in_steps_s) FROM throttle_cost ORDER BY ALL")


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


def count(agent: Rank, at_s: float, clock_hz: float = 2e9, **seconds: float) -> None:
    """Record a sample of GPU-0 with its mask, its clock, and counters of throttled time."""
    values = {"hw.gpu.clock.sm": clock_hz, "hw.gpu.throttle.reasons": 4.0}
    values |= {f"hw.gpu.throttle.time.{reason}": value for reason, value in seconds.items()}
    packed = struct.pack(f"<{len(values)}d", *values.values())
    agent.say(EventKind.SYSTEM, "GPU-0", pack(list(values)), packed, ts=START_US + round(at_s * 1e6))


def by_time(index: Index) -> list[tuple[Any, ...]]:
    return index.sql("SELECT * EXCLUDE (run_id, label, rank, node, device) FROM throttle_cost ORDER BY ALL")


@proves(
    "counters-before-mask",
    "the counter of a reason counts in place of its bit in the mask",
    part=" & ~coalesce(t.bits, 0)",
)
def test_throttling_is_measured_by_the_times_that_a_gpu_counts(index: Index) -> None:
    """The example worked by hand: from second 4 to 7 the counter grows by 0.5 s in each second.

    Steps end half a second after a sample. The four until then take 0.5 s, the next four 0.75 s, of which 0.25, 0.375,
    0.375 and 0.125 s are throttled: the last sample, at second 7, is before the end of the last step.
    """
    rank, agent = Rank(0, gpus=["GPU-0"]), agent_of("node-a")
    for second in range(8):
        count(agent, second, 1.5e9 if second >= 4 else 2e9, sw_power=100 + max(second - 4, 0) / 2, sw_thermal=3.0)
        take_step(rank, second, second + 0.5, 0.75 if second >= 4 else 0.5)
    index.take(whole(rank, agent))
    expected = ("sw_power_cap", 1.5, 1.5 / 7, 1.5e9, (4 * 2e9 + 1.5e9) / 5, 4, 0.75, 0.5, 1.0, "time", 1.125)
    assert by_time(index) == [expected]


@proves("counter-begins-again", "a counter that falls began again", part="least(next, next_us)", new="0")
def test_a_counter_that_falls_began_again_and_one_that_is_missing_is_measured_by_the_mask(index: Index) -> None:
    """Worked by hand: 0.5 s, then the driver is loaded again, and the counter has 0.25 s."""
    rank, agent = Rank(0, gpus=["GPU-0"]), agent_of("node-a")
    for second, seconds in enumerate((7.0, 7.5, 0.25, 0.25)):
        count(agent, second, hw_thermal=seconds)
    take_step(rank, 0, 3.0, 3.0)
    index.take(whole(rank, agent))
    assert by_time(index) == [
        ("hw_thermal_slowdown", 0.75, 0.25, 2e9, 2e9, 1, 3.0, None, None, "time", 0.75),
        ("sw_power_cap", 3.0, 1.0, 2e9, None, 1, 3.0, None, None, "mask", 3.0),
    ]


def test_a_step_that_is_throttled_for_less_than_a_hundredth_is_one_to_compare_with(index: Index) -> None:
    rank, agent = Rank(0, gpus=["GPU-0"]), agent_of("node-a")
    for second, seconds in enumerate((0.0, 0.005, 0.505, 0.505)):
        count(agent, second, sync_boost=seconds, sw_power=1.0)
    for second, seconds in enumerate((1.0, 2.0, 1.0), 1):
        take_step(rank, second, float(second), min(seconds, 1.0))
    index.take(whole(rank, agent))
    [(reason, throttled_s, *_, n_steps, step_s, free_step_s, _, measured_by, in_steps_s)] = by_time(index)
    assert (reason, throttled_s, measured_by, in_steps_s) == ("sync_boost", 0.505, "time", 0.505)
    assert (n_steps, step_s, free_step_s) == (1, 1.0, 1.0)


def test_growth_while_the_label_was_away_and_hostile_numbers_cost_nothing(index: Index) -> None:
    rank, agent = Rank(0, gpus=["GPU-0"]), agent_of("node-a")
    for at_s, seconds in ((0, 1.0), (1, 1.5), (2, float("nan")), (3, 1e300), (4, -5.0), (5, 1.5), (4000, 900.0)):
        count(agent, at_s, sw_power=seconds)
    for step, seconds in enumerate((float("inf"), -1.0, float("nan"), 1e300)):
        take_step(rank, step, 10.0 + step, seconds)
    index.take(whole(rank, agent))
    [(_, throttled_s, *_)] = by_time(index)
    assert throttled_s == 0.5


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


@proves(
    "gpu-event-of-the-newer-run",
    "an event of a GPU that a newer run uses is not charged to the run before it",
    part=" = c.run_id",
    new=" IS NOT NULL",
)
def test_an_event_of_a_gpu_is_of_the_run_that_uses_it_by_then(index: Index) -> None:
    before, after = Rank(0, gpus=["GPU-0"]), Rank(1, run_id="s", gpus=["GPU-0"], started_at=START_US + 20_000_000)
    agent = agent_of("node-a")
    end(before, 15, "finished")
    for second in (17, 30):
        agent.say(EventKind.NOTICE, "gpu.xid", "error", "x", {"device": "GPU-0"}, ts=START_US + second * 1_000_000)
    index.take(whole(before), whole(after, agent))
    rows = index.sql("SELECT run_id, epoch_us(ts) FROM gpu_events ORDER BY ts")
    assert rows == [("r", START_US + 17_000_000), ("s", START_US + 30_000_000)]


def test_an_event_has_the_last_step_that_its_label_had_begun(index: Index) -> None:
    """Worked by hand: rank0 does steps of 2 s, rank1 logs numbers, rank2 only has a part of a step, rank3 has none."""
    ranks = [Rank(number, gpus=[f"GPU-{number}"]) for number in range(4)]
    for step in range(4):
        take_step(ranks[0], step, 2 + 2 * step, 1.5)  # step 1 begins at 2.5 s
        ranks[1].say(
            EventKind.METRICS, 7 + step, pack(["loss"]), struct.pack("<d", 1.0), ts=START_US + step * 2_000_000
        )
    data = struct.pack("<d", 0.25)
    ranks[2].say(EventKind.PHASES, 5, pack(["data"]), data, ts=START_US + 1_000_000)
    agent = agent_of("node-a")
    for device in range(5):
        for at_s in (0.0, 2.25, 2.5, 60.0):
            body = {"device": f"GPU-{device}", "code": 31}
            agent.say(EventKind.NOTICE, "gpu.xid", "warning", "x", body, ts=START_US + round(at_s * 1e6))
    index.take(whole(*ranks, agent))
    rows = index.sql("SELECT device, list(step ORDER BY ts) FROM gpu_events GROUP BY device ORDER BY device")
    assert rows == [
        ("GPU-0", [None, 0, 1, 3]),
        ("GPU-1", [7, 8, 8, 10]),
        ("GPU-2", [None, 5, 5, 5]),
        ("GPU-3", [None] * 4),
        ("GPU-4", [None] * 4),
    ]


def test_an_attempt_that_ended_in_a_step_had_begun_it(index: Index) -> None:
    """Its phase `step` is not there yet, but it has waited for the data of step 2."""
    rank, agent = Rank(0, gpus=["GPU-0"]), agent_of("node-a")
    take_step(rank, 1, 1.0, 1.0)
    rank.say(EventKind.PHASES, 2, pack(["data"]), struct.pack("<d", 0.25), ts=START_US + 2_000_000)
    agent.say(EventKind.NOTICE, "gpu.lost", "error", "lost", {"device": "GPU-0"}, ts=START_US + 3_000_000)
    index.take(whole(rank, agent))
    assert index.sql("SELECT step FROM gpu_events") == [(2,)]


def test_an_event_of_a_gpu_concerns_the_labels_on_its_instances(index: Index) -> None:
    """One label has an instance, one has two. Other GPUs and nodes are not concerned; without a device all GPUs are."""
    ranks = [Rank(0, gpus=["MIG-1"]), Rank(1, gpus=["MIG-2", "MIG-3"]), Rank(2, gpus=["MIG-9"])]
    other = Rank(3, gpus=["MIG-1"], node="node-b")
    agent = agent_of("node-a")
    whole_gpu = {"device": "GPU-0", "code": 79, "instances": ["MIG-1", "MIG-2", "MIG-3"]}
    agent.say(EventKind.NOTICE, "gpu.xid", "error", "x", whole_gpu, ts=START_US + 1_000_000)
    agent.say(EventKind.NOTICE, "gpu.xid", "error", "x", {"device": "MIG-2", "code": 13}, ts=START_US + 2_000_000)
    agent.say(EventKind.NOTICE, "gpu.driver_unbind", "error", "x", {"device": ""}, ts=START_US + 2_500_000)
    hostile = {"device": 5, "instances": {"a": 1}}
    agent.say(EventKind.NOTICE, "gpu.xid", "error", "x", hostile, ts=START_US + 3_000_000)
    index.take(whole(*ranks, other, agent))
    assert index.sql("SELECT label, device, xid FROM gpu_events ORDER BY ts, label") == [
        ("rank0", "GPU-0", 79),
        ("rank1", "GPU-0", 79),
        ("rank1", "MIG-2", 13),
        ("rank0", "", None),
        ("rank1", "", None),
        ("rank2", "", None),
        (None, "5", None),
    ]
