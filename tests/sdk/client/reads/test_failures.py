"""How the labels of a round ended: order, roles, last steps and lines, and the GPUs at that time."""

import duckdb
import pytest

from chiplog_client.client import Client
from chiplog_client.reads.failures import read_failures
from tests.support.run_builder import RunBuilder, Sql
from tests.support.safeguard import proves
from tests.support.sampled_run import fill_sampled_run


def fill(database: duckdb.DuckDBPyConnection) -> None:
    """Fail `sampled`: rank1 loses its GPU at second 800 and fails at 805, rank0 is ended 2 s later and starts again.

    rank2 has finished before, rank3 runs on.
    """
    fill_sampled_run(database)
    build = RunBuilder(database)
    build.delete("metrics", "run_id = 'sampled' AND step > 400 - rank")
    failed = {"state": "failed", "exit_code": 1, "reason": "CUDA error", "ended_s": 805}
    build.update("run_id = 'sampled' AND rank = 1", **failed)
    build.update("run_id = 'sampled' AND rank = 0", state="crashed", exit_signal=15, ended_s=807)
    build.label("sampled", "rank0", attempt=1, is_primary=True, rank=0, node="node-1-0", started_s=900, produced=1)
    finished = {"state": "finished", "exit_code": 0, "ended_s": 700}
    build.label("sampled", "rank2", rank=2, node="node-1-0", **finished)
    build.label("sampled", "rank3", rank=3, node="node-1-0")
    first = "run_id = 'sampled' AND rank = 1"
    build.console(Sql("'line ' || step"), stream="stderr", steps=4, at="800 + step", where=first)
    build.samples("p.gpus[1]", {"hw.temperature.core": 91}, at=800, where=first)
    build.samples("p.gpus[1]", {"hw.gpu.throttle.reasons": 64}, at=801, where=first)
    ended = "run_id = 'sampled' AND rank = 0 AND attempt = 0"  # its GPU has two counters, and the mask is a second old
    build.samples("p.gpus[1]", {"hw.gpu.throttle.reasons": 8 + 32}, at=806, where=ended)
    counters = {"sw_thermal": "5 + 0.001 * step", "sw_power": "CASE WHEN step < 3 THEN 9 ELSE 9.5 END"}
    times = {f"hw.gpu.throttle.time.{name}": value for name, value in counters.items()}
    build.samples("p.gpus[1]", times, steps=4, at="803 + step", where=ended)


def test_the_first_failure_comes_first_then_what_ended_after_it_what_runs_and_what_ended_before(client: Client) -> None:
    found = read_failures(client, "sampled", None)
    assert (found["rounds"], found["first"]["label"]) == ([0], "rank1")
    told = [
        (row["label"], row["after_s"], row["role"], row["exit_code"], row["exit_signal"], row["last_step"])
        for row in found["labels"]
    ]
    assert told == [
        ("rank1", 0.0, "first", 1, None, 399),
        ("rank0", 2.0, "echo", None, 15, 400),
        ("rank3", None, None, None, None, None),
        ("rank2", -105.0, None, 0, None, None),
    ]
    assert [row["last_line"] for row in found["labels"]] == ["line 3", None, None, None]


@proves("failures-by-counters", "the GPU of a label that ended is throttled by its counters where it has them")
def test_the_gpu_of_a_label_is_described_at_its_end(client: Client) -> None:
    [rank1, rank0, *_] = read_failures(client, "sampled", 0)["labels"]
    assert rank1["gpu"] == {
        "temperature_c": 91,
        "memory_share": None,
        "utilization": 0.5,
        "throttled": "HW thermal slowdown",
        "events": ["XID 79: GPU-1-1 is lost: fell off the bus"],
    }
    assert (rank0["gpu"]["utilization"], rank0["gpu"]["throttled"]) == (0.9, "SW power cap, HW slowdown")


def test_a_run_or_a_round_without_a_failure_has_none(client: Client) -> None:
    assert read_failures(client, "many", None) == {"rounds": [], "first": None, "labels": []}
    with pytest.raises(ValueError, match="attempt=1 has no failure; choose one of 0"):
        read_failures(client, "sampled", 1)
