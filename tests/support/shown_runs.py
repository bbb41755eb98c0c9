"""Runs for `chiplog show`, written without a collector: many ranks, stragglers, several attempts, failures."""

import re

import duckdb

from tests.support.run_builder import NOW, RunBuilder, Sql


def fill_shown_runs(database: duckdb.DuckDBPyConnection) -> None:
    """A run of 200 ranks, of which three crashed, rank7 is behind and rank150 silent; one of two; one that failed."""
    build = RunBuilder(database)
    for run_id, n_ranks in (("large", 200), ("small", 2), ("skewed", 4)):
        build.run(run_id)
        build.ranks(run_id, n_ranks, node=Sql("'node' || rank // 8"), produced=10)
    build.update("run_id = 'large' AND rank IN (30, 60, 90)", state="crashed", exit_signal=9, ended_s="2000 - rank")
    RunBuilder(database, NOW).received(0, 9, at="CASE rank WHEN 150 THEN -500 ELSE -5 END")
    values = {"loss": "100 - step", "chiplog/cuda/peak": "100 - step"}
    build.metrics(values, steps=range(90, 100), where="NOT (rank = 7 AND step > 95)")
    small = {"at": 0, "where": "run_id = 'small'"}
    build.phases({"step": 2, "data": "CASE rank WHEN 1 THEN 1.5 ELSE 0.5 END"}, steps=[99], **small)
    # One of four labels is slow: a median over labels would hide it.
    slow = "CASE rank WHEN 3 THEN 0.0255 ELSE 0.001 END"
    build.phases({"forward": slow}, steps=2, at=0, where="run_id = 'skewed'")
    for step, seconds in ((99, 0.3), (99, 0.2), (89, 2.5)):  # a step in two parts, and one whose length is not known
        build.phases({"forward": seconds}, steps=[step], **small)
    first = "run_id = 'small' AND rank = 0"
    build.define("loss", summary="max", seq=1, where=first)
    build.summary({"best/epoch": 7}, seq=2, where=first)
    alert = {"level": "error", "body": Sql("json_object('text', 'at step ' || step)"), "seq": "step"}
    build.event("alert", "loss is NaN", steps=30, **alert, where="run_id = 'small' AND rank = step % 2")
    build.event("traceback", "ValueError: boom", level="error", seq=50, where=first)
    build.run("again")
    for label, attempt, rank, state, reason, begun_s, ended_s in (
        ("rank1", 0, 1, "failed", "ValueError: train", 0, 260),
        ("rank1", 1, 1, "finished", None, 300, 400),
        ("eval", 0, None, "failed", "ValueError: eval 0", 0, 50),
        ("eval", 1, None, "failed", "ValueError: eval 1", 100, 150),
        ("eval", 2, None, "failed", "ValueError: eval 2", 200, 250),
    ):
        times = {"started_s": begun_s, "ended_s": ended_s}
        build.label("again", label, attempt=attempt, rank=rank, state=state, reason=reason, **times)
    for attempt, n_steps in enumerate((363, 20)):  # the second attempt of rank1 is not as far as the first one was
        where = f"run_id = 'again' AND label = 'rank1' AND attempt = {attempt}"
        build.metrics({"loss": "400 - step"}, steps=n_steps, at=0, where=where)
    fill_interrupted(database)
    fill_killed(database)


def fill_interrupted(database: duckdb.DuckDBPyConnection) -> None:
    """A run of three ranks that Ctrl-C ended, and one of two that were ended by SIGTERM."""
    build = RunBuilder(database)
    build.run("interrupted")
    build.run("ended")
    for run_id, rank, exit_code, exit_signal, cause, reason, late_us in (
        ("interrupted", 0, None, 2, "exit_status", None, 1),
        ("interrupted", 1, 1, None, "interrupted", "KeyboardInterrupt", 0),
        ("interrupted", 2, 130, None, "exit_status", None, 2),
        ("ended", 0, None, 15, "exit_status", None, 4),
        ("ended", 1, 143, None, "interrupted", "SystemExit: 143", 0),
    ):
        status = {"state": "failed", "exit_code": exit_code, "exit_signal": exit_signal, "cause": cause}
        build.ranks(run_id, [rank], node="vm", **status, reason=reason, ended_s=100 + late_us / 1e6)
    error = {"level": "error", "body": {"exception": "KeyboardInterrupt"}, "cause": "interrupted"}
    where = "run_id = 'interrupted' AND rank = 1"
    build.event("traceback", "KeyboardInterrupt", **error, seq=9, at=100, where=where)


def fill_killed(database: duckdb.DuckDBPyConnection) -> None:
    """A run of two ranks, one killed and one failed, with their events: the ends, two tracebacks and an environment."""
    build = RunBuilder(database)
    build.run("killed")
    killed = {"state": "crashed", "exit_signal": 9, "reason": "killed by SIGKILL"}
    failed = {"state": "failed", "exit_code": 1, "reason": "ValueError: bad batch"}
    for rank, columns in enumerate((killed, failed)):
        build.ranks("killed", [rank], node="vm", ended_s=9, **columns)
    for rank, seq, kind, level, message in (
        (0, 1, "environment", "info", "no commit: train.py"),
        (0, 2, "crashed", "error", "rank0 crashed: killed by SIGKILL"),
        (1, 1, "traceback", "error", "ValueError: bad batch"),
        (1, 2, "traceback", "error", "OSError: while it ended"),
        (1, 3, "failed", "error", "rank1 failed: ValueError: bad batch"),
    ):
        build.event(kind, message, level=level, seq=seq, at=9, where=f"run_id = 'killed' AND rank = {rank}")


def labels_of(page: str) -> list[list[str]]:
    """Return the rows of the table of labels."""
    rows = page.partition("\nLabels\n")[2].partition("\n* primary")[0].splitlines()
    return [re.split(" {2,}", row.strip()) for row in rows[2:]]
