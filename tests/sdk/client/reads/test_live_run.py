"""Frames of `chiplog top`: what a few queries find out about each label."""

import itertools
import threading
from pathlib import Path
from typing import Any

import duckdb
import pytest

from chiplog_client.client import Client, connect
from chiplog_client.reads import live_run
from chiplog_client.reads.live_run import Frame, LiveRun
from chiplog_client.reads.rank_states import Severity
from chiplog_client.results.result import QueryError
from tests.support.hand_written import hand_written, kept_open
from tests.support.live_runs import fill_live_runs
from tests.support.run_builder import NOW, RunBuilder, Sql
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S

fill = fill_live_runs  # for the fixture `client`


def fill_far_behind(database: duckdb.DuckDBPyConnection) -> None:
    """Write a run in which rank1 is 500 steps behind the others, and takes twice as long for a step."""
    build = RunBuilder(database, NOW)
    build.run("r")
    build.ranks("r", 3, started_s=-3600)
    for rank, last, pace in ((0, 1_000, 1), (1, 500, 2), (2, 1_000, 1)):
        steps = {"steps": range(last - 60, last + 1), "at": f"{pace} * (step - {last})", "where": f"rank = {rank}"}
        build.metrics({"loss": 0.5}, **steps)
        build.phases({"forward": 0.5, "step": 0.5}, **steps)


@pytest.mark.full
def test_of_a_thousand_ranks_the_one_that_hangs_is_found(client: Client) -> None:
    frame = LiveRun("large").read(client)
    assert frame is not None and len(frame.rows) == 1000
    [row] = [row for row in frame.rows if row.severity == Severity.HANGS]
    assert (row.label, row.node, row.step, row.steps_behind, row.open_phase) == ("rank417", "node52", 28, 1, "forward")
    assert row.idle_s is not None and 60 <= row.idle_s < 180
    assert {other.severity for other in frame.rows if other is not row} == {Severity.WAITS}


def test_a_label_has_step_time_phase_gpu_and_memory(client: Client) -> None:
    frame = LiveRun("healthy").read(client)
    assert frame is not None
    rows = {row.label: row for row in frame.rows}
    assert (rows["rank0"].pace_s, rows["rank3"].pace_s) == (1.0, 2.0)
    assert rows["rank3"].severity == Severity.SLOW
    row = rows["rank1"]
    assert (row.gpu, row.gpu_memory, row.gpu_memory_limit) == (0.97, 60 * 2**30, 80 * 2**30)
    assert row.phase in ("forward", "all_reduce")
    assert frame.goodput is None, "no label timed its steps"


def test_a_frame_has_the_newest_trouble_of_a_gpu_of_its_labels(client: Client) -> None:
    frame = LiveRun("healthy").read(client)
    assert frame is not None and frame.gpu_event is not None
    assert {name: frame.gpu_event[name] for name in ("label", "kind", "message")} == {
        "label": "rank2",
        "kind": "gpu.xid",
        "message": "gpu.xid of a GPU",
    }
    assert 40 <= frame.gpu_event["ago_s"] < 160
    even = LiveRun("even").read(client)
    assert even is not None and even.gpu_event is None


def test_a_run_that_has_ended_shows_no_trouble_of_a_gpu(tmp_path: Path) -> None:
    """What its GPUs do later is another run's."""
    with hand_written(tmp_path) as database:
        build = RunBuilder(database, NOW)
        build.run("r")
        build.ranks(
            "r",
            1,
            node="n",
            agent_node="n",
            pid=1,
            gpus=["GPU-1"],
            started_s=-300,
            ended_s=-60,
            state="finished",
            exit_code=0,
        )
        build.event("device_stale", level="warning", body={"device": "GPU-1"}, seq=1, at=-50)
    with kept_open(tmp_path), connect(dir=tmp_path, start=False) as client:
        assert client.sql("SELECT kind FROM gpu_events WHERE run_id = 'r'").rows() == [{"kind": "device_stale"}]
        frame = LiveRun("r").read(client)
    assert frame is not None and frame.state == "finished" and frame.gpu_event is None


def test_at_the_same_step_the_open_phases_show_which_label_hangs(client: Client) -> None:
    frame = LiveRun("even").read(client)
    assert frame is not None
    assert [row.label for row in frame.rows if row.severity == Severity.HANGS] == ["rank2"]


@pytest.mark.parametrize(("sampled_s", "is_late"), [((-90, -60), True), ((-60, 0), False), ((), False)])
def test_a_node_from_which_nothing_arrives_is_late(tmp_path: Path, sampled_s: tuple[int, ...], is_late: bool) -> None:
    """Without samples, silent labels may hang: a collector cannot tell."""
    with hand_written(tmp_path) as database:
        build = RunBuilder(database, NOW)
        build.run("r")
        build.ranks("r", 2, node="n", agent_node="n", started_s=-200, produced=10)
        build.received(0, 9, at=-60)
        build.metrics({"loss": 1}, steps=10, at="step - 70")
        if sampled_s:
            steps = range(*sampled_s)
            build.samples("''", {"system.memory.usage": 1}, steps=len(steps), at=f"step + {steps[0]}")
    with connect(dir=tmp_path, start=False) as client:
        frame = LiveRun("r").read(client)
    assert frame is not None
    assert {row.severity for row in frame.rows} == {Severity.LATE if is_late else Severity.STALLED}


@pytest.mark.full
def test_a_frame_of_many_points_is_answered(tmp_path: Path) -> None:
    """With 2,000 steps of 64 ranks one query for all parts of a frame was an internal error of DuckDB 2.0."""
    with hand_written(tmp_path) as database:
        build = RunBuilder(database, NOW)
        build.run("r")
        build.ranks("r", 64, node=Sql("'node' || rank // 8"))
        for first in range(0, 2000, 250):
            steps = {"steps": range(first, first + 250), "at": "step - 2000"}
            build.metrics({"loss": 0.5}, **steps)
            build.phases({"forward": 0.5}, **steps)
        database.execute("CHECKPOINT")
    with kept_open(tmp_path), connect(dir=tmp_path, start=False) as client:
        frame = LiveRun("r").read(client)
    assert frame is not None
    assert {(row.step, row.phase) for row in frame.rows} == {(1999, "forward")}
    assert all(row.pace_s == pytest.approx(1.0, abs=0.2) for row in frame.rows)


def test_a_run_that_is_not_there_has_no_frame(client: Client) -> None:
    assert LiveRun("nope").read(client) is None


def test_a_phase_that_ended_is_not_open_and_the_newest_attempt_counts(tmp_path: Path) -> None:
    with hand_written(tmp_path) as database:
        build = RunBuilder(database, NOW)
        build.run("r")
        build.label("r", "rank0", rank=0, started_s=-3600, state="crashed")
        build.label("r", "rank0", attempt=1, rank=0, started_s=-60)
        build.metrics({"loss": 1}, steps=[500], at=-120, where="attempt = 0")
        opened = Sql(f"json_object('phase', 'data', 'step', 0, 'since_us', epoch_us({NOW} - INTERVAL 35 SECOND))")
        build.event("phase_open", body=opened, seq=1, at=-30, where="attempt = 1")
    with kept_open(tmp_path), connect(dir=tmp_path, start=False) as client:
        frame = LiveRun("r").read(client)
        assert frame is not None
        [row] = frame.rows
        assert (row.attempt, row.step, row.severity, row.open_phase) == (1, None, Severity.STARTING, "data")
    with hand_written(tmp_path) as database:
        RunBuilder(database, NOW).metrics({"loss": 1}, seq=2, at=-1, where="attempt = 1")
    with kept_open(tmp_path), connect(dir=tmp_path, start=False) as client:
        frame = LiveRun("r").read(client)
        assert frame is not None
        assert (frame.rows[0].step, frame.rows[0].open_phase) == (0, None)


@pytest.mark.full
def test_a_phase_that_ended_is_not_open_far_behind_the_foremost_label_either(tmp_path: Path) -> None:
    with hand_written(tmp_path) as database:
        build = RunBuilder(database, NOW)
        build.run("r")
        opened = f"json_object('phase', 'data', 'step', step, 'since_us', epoch_us({NOW} - INTERVAL 60 SECOND))"
        for label, step in (("rank0", 1_000), ("eval", 5), ("busy", 5)):
            build.label("r", label, started_s=-300)
            of_label = {"steps": [step], "where": f"label = '{label}'"}
            if label == "busy":
                build.phases({"data": 1}, seq=1, at=-90, **of_label)
            else:
                build.metrics({"data": 1}, seq=1, at=-10, **of_label)
            build.event("phase_open", body=Sql(opened), seq=2, at=-30, **of_label)
    with kept_open(tmp_path), connect(dir=tmp_path, start=False) as client:
        frame = LiveRun("r").read(client)
    assert frame is not None
    assert {row.label: row.open_phase for row in frame.rows} == {"rank0": None, "eval": None, "busy": "data"}


@proves("wrong-clock-is-no-stall", "a node whose clock is wrong does not seem to hang", value="idle_s")
@pytest.mark.full
def test_a_label_whose_clock_is_an_hour_slow_does_not_stall_while_it_moves(tmp_path: Path) -> None:
    with hand_written(tmp_path) as database:
        build = RunBuilder(database, NOW)
        build.run("r")
        build.ranks("r", 2, started_s="-3600 * rank - 60")
        build.metrics({"loss": 1}, steps=[5], at="-3600 * rank")
    live = LiveRun("r")
    with kept_open(tmp_path), connect(dir=tmp_path, start=False) as client:
        frame = live.read(client)
        assert frame is not None and frame.rows[1].idle_s is not None and frame.rows[1].idle_s >= 3600
    with hand_written(tmp_path) as database:
        RunBuilder(database, NOW).metrics({"loss": 1}, steps=[6], at="-3600 * rank")
    with kept_open(tmp_path), connect(dir=tmp_path, start=False) as client:
        frame = live.read(client)
    assert frame is not None
    assert [row.severity for row in frame.rows] == [Severity.RUNNING] * 2
    assert frame.rows[1].idle_s == 0.0


@pytest.mark.full
def test_goodput_is_that_of_the_view_and_read_again_when_the_run_has_moved_or_ended(tmp_path: Path) -> None:
    with hand_written(tmp_path) as database:
        build = RunBuilder(database, "TIMESTAMP '2026-01-02'")
        build.run("r")
        build.ranks("r")
        build.phases({"step": 4}, steps=10, at="10 + step * 10")
    live = LiveRun("r")

    def goodput() -> float | None:
        with kept_open(tmp_path), connect(dir=tmp_path, start=False) as client:
            frame = live.read(client)
            assert frame is not None
            assert (row := client.sql("FROM goodput").rows()) and row[0]["goodput"] is not None
            return frame.goodput

    assert goodput() == pytest.approx(40 / 100)
    with hand_written(tmp_path) as database:
        RunBuilder(database, "TIMESTAMP '2026-01-02'").phases({"step": 10}, steps=[10], at=110)
    assert goodput() == pytest.approx(40 / 100), "it was read a moment ago"
    with hand_written(tmp_path) as database:
        RunBuilder(database, "TIMESTAMP '2026-01-02'").update("true", state="finished", ended_s=110)
    assert goodput() == pytest.approx(50 / 110)


@proves("step-time-of-label-far-behind", "a label that is far behind has a step time", value="{}")
@pytest.mark.full
def test_a_label_that_is_far_behind_has_its_step_time_and_phase(tmp_path: Path) -> None:
    with hand_written(tmp_path) as database:
        fill_far_behind(database)
    live = LiveRun("r")
    for _ in range(2):  # the second frame does not ask again
        with kept_open(tmp_path), connect(dir=tmp_path, start=False) as client:
            frame = live.read(client)
        assert frame is not None
        found = {row.label: (row.pace_s, row.phase) for row in frame.rows}
        assert found == {"rank0": (1.0, "forward"), "rank1": (2.0, "forward"), "rank2": (1.0, "forward")}


def test_what_a_query_that_failed_was_asked_for_comes_with_a_later_frame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_run, "ALL_STEPS_INTERVAL_S", 0.0)
    with hand_written(tmp_path) as database:
        fill_far_behind(database)

    class Failing(Client):
        """Fails in one of its queries, as one that takes too long does."""

        def __init__(self, client: Client, failing: int) -> None:
            self.client, self.queries = client, itertools.count()
            self.failing = failing

        def sql(self, *given: Any, **named: Any) -> Any:
            if next(self.queries) == self.failing:
                raise QueryError("timeout", "the query took too long")
            return self.client.sql(*given, **named)

    def shown(frame: Frame | None) -> object:
        assert frame is not None
        return frame.goodput, frame.verdict, [(row.label, row.pace_s, row.phase) for row in frame.rows]

    with kept_open(tmp_path), connect(dir=tmp_path, start=False) as client:
        whole = Failing(client, -1)
        expected = shown(LiveRun("r").read(whole))
        n_queries = next(whole.queries)
        assert n_queries > 8
        for failing in range(n_queries):
            live = LiveRun("r")
            with pytest.raises(QueryError):
                live.read(Failing(client, failing))
            assert shown(live.read(client)) == expected, failing


@pytest.mark.full
def test_two_threads_read_one_frame_after_the_other(client: Client) -> None:
    live, asked, start = LiveRun("even"), [], threading.Barrier(2)

    class Watched(Client):
        def __init__(self) -> None:
            pass

        def sql(self, *given: Any, **named: Any) -> Any:
            asked.append(threading.get_ident())
            return client.sql(*given, **named)

    def read() -> None:
        start.wait(WAIT_S)
        live.read(Watched())

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(asked) > 2 and len(list(itertools.groupby(asked))) == 2
