"""Who failed first and who was slow, from a database: a step that some labels did not finish blames no label."""

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from chiplog_client.client import Client, connect
from chiplog_client.reads.run_report import read_run
from chiplog_client.reads.run_verdict import read_verdict
from tests.support.hand_written import filled, hand_written
from tests.support.run_builder import RunBuilder, Sql

# Per run: the name, and of its four ranks state, exit code and seconds from the begin of the run to their end.
RUNS = {
    "failed": [("crashed", 1, 103), ("crashed", 1, 104), ("crashed", 1, 106), ("failed", 1, 44)],
    "hangs": [(None, None, None)] * 4,
    "early": [("crashed", 1, 62), ("crashed", 1, 63), ("crashed", 1, 64), ("failed", 1, 2)],
    "finished": [("finished", 0, 50)] * 4,
    "survived": [*[("finished", 0, 106)] * 3, ("failed", 1, 44)],
}
N_FINISHED = {
    "failed": 42,
    "hangs": 42,
    "early": 0,
    "finished": 43,
    "survived": 42,
}  # steps of rank3; the others have one more


def fill(database: duckdb.DuckDBPyConnection) -> None:
    """Write runs of four ranks with `data`, `forward` and `backward`; a step takes 1 s.

    rank3 ends or hangs within a step, and the others wait for it in `backward`: rank1 for 59 s and the others for 1 s,
    as after an error in one of them. In steps 10 to 19 `data` of rank2 takes 0.6 s more.
    """
    build = RunBuilder(database)
    for run_id, ranks in RUNS.items():
        build.run(run_id, project="gpt")
        for rank, (state, code, ended_s) in enumerate(ranks):
            reason = "ValueError: loss is NaN" if state == "failed" else "exit code 1" if code else None
            ended = {"state": state, "exit_code": code, "reason": reason, "ended_s": ended_s}
            build.ranks(run_id, [rank], node="node0", produced=1000, **ended)
        n_steps = N_FINISHED[run_id]
        is_late = "step BETWEEN 10 AND 19"
        waits = f"WHEN step = {n_steps} AND rank <> 3 THEN CASE rank WHEN 1 THEN 59 ELSE 1 END"
        is_finished = run_id == "finished"
        phases = {
            "data": f"0.1 + CASE WHEN rank = 2 AND {is_late} THEN 0.6 ELSE 0 END",
            "forward": 0.4,
            "backward": f"0.5 + CASE {'' if is_finished else waits} WHEN rank <> 2 AND {is_late} THEN 0.6 ELSE 0 END",
        }
        for phase, seconds in phases.items():
            has_begun = "true" if is_finished or (phase == "data" and n_steps) else f"(rank <> 3 OR step < {n_steps})"
            where = f"run_id = '{run_id}' AND {has_begun}"
            build.phases({phase: seconds}, steps=n_steps + 1, at="step + 1", where=where)


def fill_unfinished_steps(database: duckdb.DuckDBPyConnection) -> None:
    """Write runs of two ranks. A step takes 50 ms; `compute` of rank0 waits while `data` of rank1 takes 30 ms more.

    rank1 fails in step 80, after 4 s. rank0 waits for it for 3 s, and then fails as well. Both record the phases of
    step 80 under step 79, the last one that they logged.

    - `only`: there is only `compute`, in which rank1 fails. Until then it takes equally long.
    - `apart`: rank1 is on another node, whose clock is an hour ahead.
    - `lost`: rank1 is killed, and its end noticed after that of rank0; it may have been 4 s sooner.
    """
    build = RunBuilder(database)
    for run_id in ("unfinished", "only", "apart", "lost"):
        ahead_s = 3600 if run_id == "apart" else 0
        late_s = 4 if run_id == "lost" else 0
        build.run(run_id)
        for rank, reason, cause, ended_s in ((0, "peer lost", "peer_lost", 7.05), (1, "ValueError", "raised", 4.04)):
            clock = {"clock_us": -1_000_000 * ahead_s * rank, "late_us": rank * late_s * 1_000_000}
            times = {"started_s": rank * ahead_s, "ended_s": ended_s + rank * (ahead_s + late_s)}
            ended = {"state": "failed", "exit_code": 1, "reason": reason, "cause": cause, **times}
            build.ranks(run_id, [rank], node=f"node{rank}" if ahead_s else "node", **clock, **ended)
        at = f"CASE WHEN step < 80 THEN (step + 1) * 0.05 WHEN rank = 1 THEN 4.05 ELSE 7.06 END + rank * {ahead_s}"
        steps = {"steps": 81, "step": "least(step, 79)", "at": at}
        usual = "0.033" if run_id == "only" else "0.004 + 0.029 * (1 - rank)"
        compute = f"CASE WHEN step = 80 THEN 3 - 2.9 * rank ELSE {usual} END"
        fails_in_data = "true" if run_id == "only" else "(step < 80 OR rank = 0)"
        build.phases({"compute": compute}, **steps, where=f"run_id = '{run_id}' AND {fails_in_data}")
        if run_id != "only":
            build.phases({"data": "0.001 + 0.03 * rank"}, **steps, where=f"run_id = '{run_id}'")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    def fill_all(database: duckdb.DuckDBPyConnection) -> None:
        fill(database)
        fill_unfinished_steps(database)

    with filled(tmp_path_factory.mktemp("verdict"), fill_all) as client:
        yield client


FAILED = "rank3 failed first, after step 41"
SLOW = (
    "rank2 cost 6.0 s between steps 10 and 19: its data phase took 7 times as long as the median; "
    "3 other labels waited in backward."
)


def test_a_failed_run_names_the_first_failure_and_blames_no_survivor(client: Client) -> None:
    found = read_verdict(client, "failed")
    assert found["text"] == f"{FAILED}, 59 s before rank0: ValueError: loss is NaN. Until then {SLOW}"
    assert found["text"] == "".join(part["text"] for part in found["parts"])
    assert (found["has_failed"], found["is_slow"], found["culprit"]["label"]) == (True, True, "rank2")


def test_a_run_whose_primary_ended_well_names_the_label_that_failed(client: Client) -> None:
    found = read_verdict(client, "survived")
    assert found["text"] == f"{FAILED}: ValueError: loss is NaN. Until then {SLOW}"
    report = read_run(client, "survived")
    assert report is not None and report["state"] == "finished"
    assert read_verdict(client, "survived", report=report) == found


def test_a_step_that_a_living_label_has_not_finished_is_left_out(client: Client) -> None:
    assert read_verdict(client, "hangs")["text"] == SLOW


def test_a_label_that_failed_before_its_first_step_leaves_nothing_to_compare(client: Client) -> None:
    found = read_verdict(client, "early")
    assert found["text"] == "rank3 failed first, 60 s before rank0: ValueError: loss is NaN."
    assert not found["is_slow"]


def test_a_run_that_ended_well_is_judged_by_all_its_steps(client: Client) -> None:
    found = read_verdict(client, "finished")
    assert (found["text"], found["has_failed"]) == (SLOW, False)
    assert read_verdict(client, "unknown")["text"] == ""


@pytest.mark.parametrize("name", ["unfinished", "apart", "lost"])
def test_phases_that_a_label_recorded_after_the_first_failure_blame_no_survivor(client: Client, name: str) -> None:
    found = read_verdict(client, name)
    assert found["text"].startswith("rank1 failed first, after step 79"), found["text"]
    assert found["text"].endswith(
        " Until then rank1 cost 2.4 s between steps 0 and 78: its data phase took 31 times as long as in rank0; "
        "1 other label waited in compute."
    )


def test_a_crash_in_the_only_phase_of_a_step_blames_no_survivor(client: Client) -> None:
    found = read_verdict(client, "only")
    assert found["text"].startswith("rank1 failed first, after step 79, "), found["text"]
    assert not found["is_slow"]


@pytest.mark.parametrize(
    ("reasons", "counter", "words"),
    [
        (64, None, "for 80% of that time: HW thermal slowdown"),
        (4, None, ""),
        (1, None, ""),
        (64, "0.5 * step", "for 50% of that time: HW thermal slowdown"),
        (64, "7", ""),
        (0, "9 + 0.5 * step", "for 50% of that time: HW thermal slowdown"),
        (8 + 64, "7", "for 80% of that time: HW slowdown"),
        (8, "0.02 * step", "for 80% of that time: HW slowdown"),
    ],
)
def test_the_sentence_says_that_the_slow_ranks_gpu_was_slowed_down(
    tmp_path: Path, reasons: int, counter: str | None, words: str
) -> None:
    """A power cap is no slowdown, and neither is an idle GPU. A counter of the GPU is right where the bits differ."""
    with hand_written(tmp_path) as database:
        build = RunBuilder(database)
        build.run("r")
        build.ranks("r", 2, node="n", gpus=[Sql("'GPU-' || rank")], produced=1)
        build.phases({"forward": "CASE WHEN rank = 1 THEN 0.9 ELSE 0.3 END"}, steps=20, at="step + 1")
        throttled = f"CASE WHEN rank = 1 AND step % 5 < 4 THEN {reasons} ELSE 0 END"
        measured = {} if counter is None else {"hw.gpu.throttle.time.hw_thermal": counter}
        build.samples("p.gpus[1]", {"hw.gpu.throttle.reasons": throttled, **measured}, steps=range(1, 21))
    with connect(dir=tmp_path, start=False) as client:
        text = read_verdict(client, "r")["text"]
    assert text.startswith("rank1 cost ") and text.endswith(f"; its GPU was throttled {words}." if words else ".")
    assert bool(words) == ("throttled" in text)
