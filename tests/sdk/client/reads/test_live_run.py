"""Frames of `chiplog top`: what a few queries find out about each label."""

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from chiplog_client.client import Client, connect
from chiplog_client.reads import live_run
from chiplog_client.reads.live_run import Frame, LiveRun
from chiplog_client.reads.rank_states import Severity
from chiplog_client.results.result import QueryError
from tests.support.hand_written import filled, hand_written
from tests.support.live_runs import fill_live_runs
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S


def fill_far_behind(database: duckdb.DuckDBPyConnection) -> None:
    """Write a run in which rank1 is 500 steps behind the others, and takes twice as long for a step."""
    database.execute("INSERT INTO base.runs (run, run_id, tags, primary_label) VALUES (1, 'r', [], 'rank0')")
    database.execute("INSERT INTO base.names VALUES (1, 'loss'), (2, 'forward'), (3, 'step')")
    for producer, last, pace in ((0, 1_000, 1), (1, 500, 2), (2, 1_000, 1)):
        database.execute(
            "INSERT INTO base.producers (producer, role, run, label, attempt, rank, is_primary, started_at) VALUES "
            f"({producer}, 'rank', 1, 'rank{producer}', 0, {producer}, {producer} = 0, "
            "now()::TIMESTAMP - INTERVAL 1 HOUR)"
        )
        for table, key in (("metrics", 1), ("phases", 2), ("phases", 3)):
            database.execute(
                f"INSERT INTO base.{table} SELECT {producer}, {key}, s, s, now()::TIMESTAMP "
                f"- to_seconds({pace} * ({last} - s)), 0.5 FROM range({last - 60}, {last} + 1) t(s)"
            )


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with filled(tmp_path_factory.mktemp("live"), fill_live_runs) as client:
        yield client


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


def test_at_the_same_step_the_open_phases_show_which_label_hangs(client: Client) -> None:
    frame = LiveRun("even").read(client)
    assert frame is not None
    assert [row.label for row in frame.rows if row.severity == Severity.HANGS] == ["rank2"]


@pytest.mark.full
def test_a_frame_of_many_points_is_answered(tmp_path: Path) -> None:
    """With 2,000 steps of 64 ranks one query for all parts of a frame was an internal error of DuckDB 2.0."""
    with hand_written(tmp_path) as database:
        database.execute("INSERT INTO base.runs (run, run_id, tags) VALUES (1, 'r', [])")
        database.execute("INSERT INTO base.names VALUES (1, 'loss'), (2, 'forward')")
        database.execute(
            "INSERT INTO base.producers (producer, role, run, label, attempt, rank, node, started_at) "
            "SELECT r, 'rank', 1, 'rank' || r, 0, r, 'node' || r // 8, now()::TIMESTAMP FROM range(64) t(r)"
        )
        for first in range(0, 2000, 250):
            for table, key in (("metrics", 1), ("phases", 2)):
                database.execute(
                    f"INSERT INTO base.{table} SELECT r, {key}, s, s, now()::TIMESTAMP - to_seconds(2000 - s), 0.5 "
                    f"FROM range(64) t(r), range({first}, {first + 250}) u(s)"
                )
        database.execute("CHECKPOINT")
    with connect(dir=tmp_path, start=False) as client:
        frame = LiveRun("r").read(client)
    assert frame is not None
    assert {(row.step, row.phase) for row in frame.rows} == {(1999, "forward")}
    assert all(row.pace_s == pytest.approx(1.0, abs=0.2) for row in frame.rows)


def test_a_run_that_is_not_there_has_no_frame(client: Client) -> None:
    assert LiveRun("nope").read(client) is None


def test_a_phase_that_ended_is_not_open_and_the_newest_attempt_counts(tmp_path: Path) -> None:
    with hand_written(tmp_path) as database:
        database.execute("INSERT INTO base.runs (run, run_id, tags) VALUES (1, 'r', [])")
        database.execute(
            "INSERT INTO base.producers (producer, role, run, label, attempt, rank, started_at, state) VALUES "
            "(1, 'rank', 1, 'rank0', 0, 0, now()::TIMESTAMP - INTERVAL 1 HOUR, 'crashed'), "
            "(2, 'rank', 1, 'rank0', 1, 0, now()::TIMESTAMP - INTERVAL 1 MINUTE, NULL)"
        )
        database.execute("INSERT INTO base.names VALUES (1, 'loss')")
        database.execute("INSERT INTO base.metrics SELECT 1, 1, 500, 1, now()::TIMESTAMP - INTERVAL 2 MINUTE, 1")
        database.execute(
            "INSERT INTO base.events (producer, seq, ts, kind, level, message, body) SELECT 2, 1, "
            "now()::TIMESTAMP - INTERVAL 30 SECOND, 'phase_open', 'info', '', "
            "json_object('phase', 'data', 'step', 0, 'since_us', epoch_us(now()::TIMESTAMP - INTERVAL 35 SECOND))"
        )
    with connect(dir=tmp_path, start=False) as client:
        frame = LiveRun("r").read(client)
        assert frame is not None
        [row] = frame.rows
        assert (row.attempt, row.step, row.severity, row.open_phase) == (1, None, Severity.STARTING, "data")
    with hand_written(tmp_path) as database:
        database.execute("INSERT INTO base.metrics SELECT 2, 1, 0, 2, now()::TIMESTAMP - INTERVAL 1 SECOND, 1")
    with connect(dir=tmp_path, start=False) as client:
        frame = LiveRun("r").read(client)
        assert frame is not None
        assert (frame.rows[0].step, frame.rows[0].open_phase) == (0, None)


@pytest.mark.full
def test_a_phase_that_ended_is_not_open_far_behind_the_foremost_label_either(tmp_path: Path) -> None:
    with hand_written(tmp_path) as database:
        database.execute("INSERT INTO base.runs (run, run_id, tags) VALUES (1, 'r', [])")
        database.execute("INSERT INTO base.names VALUES (1, 'loss'), (2, 'data')")
        for producer, label, step in ((0, "rank0", 1_000), (1, "eval", 5), (2, "busy", 5)):
            database.execute(
                "INSERT INTO base.producers (producer, role, run, label, attempt, started_at) "
                f"SELECT {producer}, 'rank', 1, '{label}', 0, now()::TIMESTAMP - INTERVAL 5 MINUTE"
            )
            table, age_s = ("phases", 90) if label == "busy" else ("metrics", 10)
            database.execute(
                f"INSERT INTO base.{table} SELECT {producer}, 2, {step}, 1, now()::TIMESTAMP - to_seconds({age_s}), 1"
            )
            database.execute(
                "INSERT INTO base.events (producer, seq, ts, kind, level, message, body) "
                f"SELECT {producer}, 2, now()::TIMESTAMP - INTERVAL 30 SECOND, 'phase_open', 'info', '', json_object("
                f"'phase', 'data', 'step', {step}, 'since_us', epoch_us(now()::TIMESTAMP - INTERVAL 60 SECOND))"
            )
    with connect(dir=tmp_path, start=False) as client:
        frame = LiveRun("r").read(client)
    assert frame is not None
    assert {row.label: row.open_phase for row in frame.rows} == {"rank0": None, "eval": None, "busy": "data"}


@proves("wrong-clock-is-no-stall", "a node whose clock is wrong does not seem to hang", value="idle_s")
@pytest.mark.full
def test_a_label_whose_clock_is_an_hour_slow_does_not_stall_while_it_moves(tmp_path: Path) -> None:
    with hand_written(tmp_path) as database:
        database.execute("INSERT INTO base.runs (run, run_id, tags) VALUES (1, 'r', [])")
        database.execute("INSERT INTO base.names VALUES (1, 'loss')")
        for rank, slow_s in ((0, 0), (1, 3600)):
            database.execute(
                "INSERT INTO base.producers (producer, role, run, label, attempt, rank, started_at) "
                f"SELECT {rank}, 'rank', 1, 'rank{rank}', 0, {rank}, now()::TIMESTAMP - to_seconds({slow_s} + 60)"
            )
            database.execute(
                f"INSERT INTO base.metrics SELECT {rank}, 1, 5, 5, now()::TIMESTAMP - to_seconds({slow_s}), 1"
            )
    live = LiveRun("r")
    with connect(dir=tmp_path, start=False) as client:
        frame = live.read(client)
        assert frame is not None and frame.rows[1].idle_s is not None and frame.rows[1].idle_s >= 3600
    with hand_written(tmp_path) as database:
        for rank, slow_s in ((0, 0), (1, 3600)):
            database.execute(
                f"INSERT INTO base.metrics SELECT {rank}, 1, 6, 6, now()::TIMESTAMP - to_seconds({slow_s}), 1"
            )
    with connect(dir=tmp_path, start=False) as client:
        frame = live.read(client)
    assert frame is not None
    assert [row.severity for row in frame.rows] == [Severity.RUNNING] * 2
    assert frame.rows[1].idle_s == 0.0


@pytest.mark.full
def test_goodput_is_that_of_the_view_and_read_again_when_the_run_has_moved_or_ended(tmp_path: Path) -> None:
    with hand_written(tmp_path) as database:
        database.execute("INSERT INTO base.runs (run, run_id, tags, primary_label) VALUES (1, 'r', [], 'rank0')")
        database.execute("INSERT INTO base.names VALUES (1, 'step')")
        database.execute(
            "INSERT INTO base.producers (producer, role, run, label, attempt, rank, is_primary, started_at) "
            "VALUES (1, 'rank', 1, 'rank0', 0, 0, true, TIMESTAMP '2026-01-02 00:00:00')"
        )
        steps = "range(10) t(s)"
        database.execute(
            "INSERT INTO base.phases SELECT 1, 1, s, s, TIMESTAMP '2026-01-02' + to_seconds(10 + s * 10), 4 "
            f"FROM {steps}"
        )
    live = LiveRun("r")

    def goodput() -> float | None:
        with connect(dir=tmp_path, start=False) as client:
            frame = live.read(client)
            assert frame is not None
            assert (row := client.sql("FROM goodput").rows()) and row[0]["goodput"] is not None
            return frame.goodput

    assert goodput() == pytest.approx(40 / 100)
    with hand_written(tmp_path) as database:
        database.execute("INSERT INTO base.phases VALUES (1, 1, 10, 10, TIMESTAMP '2026-01-02 00:01:50', 10)")
    assert goodput() == pytest.approx(40 / 100), "it was read a moment ago"
    with hand_written(tmp_path) as database:
        database.execute("UPDATE base.producers SET state = 'finished', ended_at = TIMESTAMP '2026-01-02 00:01:50'")
    assert goodput() == pytest.approx(50 / 110)


@proves("step-time-of-label-far-behind", "a label that is far behind has a step time", value="{}")
@pytest.mark.full
def test_a_label_that_is_far_behind_has_its_step_time_and_phase(tmp_path: Path) -> None:
    with hand_written(tmp_path) as database:
        fill_far_behind(database)
    live = LiveRun("r")
    for _ in range(2):  # the second frame does not ask again
        with connect(dir=tmp_path, start=False) as client:
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

    with connect(dir=tmp_path, start=False) as client:
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
