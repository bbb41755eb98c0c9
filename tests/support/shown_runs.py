"""Runs for `chiplog show`, written without a collector: many ranks, stragglers, several attempts, failures."""

import re

import duckdb

BEGUN = "TIMESTAMP '2026-01-02 03:00:00'"


def fill_shown_runs(database: duckdb.DuckDBPyConnection) -> None:
    """A run of 200 ranks, of which three crashed, rank7 is behind and rank150 silent; one of two; one that failed."""
    database.execute(
        "INSERT INTO base.runs (run, run_id, tags, primary_label) "
        "VALUES (1, 'large', [], 'rank0'), (2, 'small', [], 'rank0'), (4, 'skewed', [], 'rank0')"
    )
    database.execute(
        "INSERT INTO base.producers "
        "(producer, role, run, label, attempt, is_primary, rank, node, started_at, produced) "
        f"SELECT run * 10000 + r, 'rank', run, 'rank' || r, 0, r = 0, r, 'node' || r // 8, {BEGUN}, 10 "
        "FROM (VALUES (1, 200), (2, 2), (4, 4)) t(run, n), range(200) u(r) WHERE r < n"
    )
    database.execute(
        f"UPDATE base.producers SET state = 'crashed', exit_signal = 9, ended_at = {BEGUN} + to_seconds(2000 - rank) "
        "WHERE run = 1 AND rank IN (30, 60, 90)"
    )
    database.execute(
        "INSERT INTO base.intervals SELECT producer, 0, 9, now()::TIMESTAMP - to_seconds(CASE WHEN rank = 150 THEN 500 "
        "ELSE 5 END) FROM base.producers"
    )
    database.execute(
        "INSERT INTO base.names VALUES (1, 'loss'), (2, 'chiplog/cuda/peak'), (3, 'step'), (4, 'data'), (5, 'forward')"
    )
    database.execute(
        f"INSERT INTO base.metrics SELECT producer, k, s, s, {BEGUN} + to_seconds(s), 100 - s FROM base.producers, "
        "range(1, 3) t(k), range(90, 100) u(s) WHERE NOT (rank = 7 AND s > 95)"
    )
    database.execute(
        f"INSERT INTO base.phases SELECT producer, k, 99, 99, {BEGUN}, CASE WHEN k = 3 THEN 2 WHEN rank = 1 THEN 1.5 "
        "ELSE 0.5 END FROM base.producers, range(3, 5) t(k) WHERE run = 2"
    )
    database.execute(  # one of four labels is slow: a median over labels would hide it
        f"INSERT INTO base.phases SELECT producer, 5, s, s, {BEGUN}, CASE WHEN rank = 3 THEN 0.0255 ELSE 0.001 END "
        "FROM base.producers, range(2) t(s) WHERE run = 4"
    )
    database.execute(  # a step that was said in two parts, and one whose length is not known
        f"INSERT INTO base.phases SELECT producer, 5, step, step, {BEGUN}, value FROM base.producers, "
        "(VALUES (99, 0.3), (99, 0.2), (89, 2.5)) t(step, value) WHERE run = 2"
    )
    database.execute("INSERT INTO base.definitions VALUES (20000, 1, '2026-01-02', 'loss', 'max', '', '')")
    database.execute("INSERT INTO base.summary VALUES (20000, 2, '2026-01-02', 'best/epoch', '7')")
    database.execute(
        "INSERT INTO base.events (producer, seq, ts, kind, level, message, body) "
        f"SELECT 20000 + n % 2, n, {BEGUN} + to_seconds(n), 'alert', 'error', 'loss is NaN', "
        "json_object('text', 'at step ' || n) FROM range(30) t(n) UNION ALL "
        f"SELECT 20000, 50, {BEGUN}, 'traceback', 'error', 'ValueError: boom', '{{}}'"
    )
    database.execute("INSERT INTO base.runs (run, run_id, tags, primary_label) VALUES (3, 'again', [], 'rank0')")
    database.execute(
        "INSERT INTO base.producers "
        "(producer, role, run, label, attempt, is_primary, rank, state, reason, started_at, ended_at) "
        f"SELECT 30000 + n, 'rank', 3, label, attempt, false, rank, state, reason, {BEGUN} + to_seconds(begun), "
        f"{BEGUN} + to_seconds(ended) FROM (VALUES "
        "(0, 'rank1', 0, 1, 'failed', 'ValueError: train', 0, 260), (1, 'rank1', 1, 1, 'finished', NULL, 300, 400), "
        "(2, 'eval', 0, NULL, 'failed', 'ValueError: eval 0', 0, 50), "
        "(3, 'eval', 1, NULL, 'failed', 'ValueError: eval 1', 100, 150), "
        "(4, 'eval', 2, NULL, 'failed', 'ValueError: eval 2', 200, 250)"
        ") t(n, label, attempt, rank, state, reason, begun, ended)"
    )
    database.execute(  # the second attempt of rank1 is not as far as the first one was
        f"INSERT INTO base.metrics SELECT 30000 + attempt, 1, s, s, {BEGUN}, 400 - s "
        "FROM (VALUES (0, 363), (1, 20)) t(attempt, n), range(400) u(s) WHERE s < n"
    )
    fill_interrupted(database)
    fill_killed(database)


def fill_interrupted(database: duckdb.DuckDBPyConnection) -> None:
    """A run of three ranks that Ctrl-C ended, and one of two that were ended by SIGTERM."""
    database.execute(
        "INSERT INTO base.runs (run, run_id, tags, primary_label) "
        "VALUES (5, 'interrupted', [], 'rank0'), (6, 'ended', [], 'rank0')"
    )
    database.execute(
        "INSERT INTO base.producers (producer, role, run, label, attempt, is_primary, rank, node, state, exit_code, "
        "exit_signal, cause, reason, started_at, ended_at) "
        f"SELECT run * 10000 + rank, 'rank', run, 'rank' || rank, 0, rank = 0, rank, 'vm', 'failed', code, signal, "
        f"cause, reason, {BEGUN}, {BEGUN} + to_microseconds(us) FROM (VALUES "
        "(5, 0, NULL, 2, 'exit_status', NULL, 100000001), "
        "(5, 1, 1, NULL, 'interrupted', 'KeyboardInterrupt', 100000000), "
        "(5, 2, 130, NULL, 'exit_status', NULL, 100000002), "
        "(6, 0, NULL, 15, 'exit_status', NULL, 100000004), "
        "(6, 1, 143, NULL, 'interrupted', 'SystemExit: 143', 100000000)"
        ") t(run, rank, code, signal, cause, reason, us)"
    )
    database.execute(
        "INSERT INTO base.events (producer, seq, ts, kind, level, message, body, cause) "
        f"SELECT 50001, 9, {BEGUN} + to_microseconds(100000000), 'traceback', 'error', 'KeyboardInterrupt', "
        "json_object('exception', 'KeyboardInterrupt'), 'interrupted'"
    )


def fill_killed(database: duckdb.DuckDBPyConnection) -> None:
    """A run of two ranks, one killed and one failed, with their events: the ends, two tracebacks and an environment."""
    database.execute("INSERT INTO base.runs (run, run_id, tags, primary_label) VALUES (7, 'killed', [], 'rank0')")
    database.execute(
        "INSERT INTO base.producers (producer, role, run, label, attempt, is_primary, rank, node, state, exit_code, "
        "exit_signal, reason, started_at, ended_at) "
        "SELECT 70000 + rank, 'rank', 7, 'rank' || rank, 0, rank = 0, rank, 'vm', state, code, signal, reason, "
        f"{BEGUN}, {BEGUN} + to_seconds(9) FROM (VALUES (0, 'crashed', NULL, 9, 'killed by SIGKILL'), "
        "(1, 'failed', 1, NULL, 'ValueError: bad batch')) t(rank, state, code, signal, reason)"
    )
    database.execute(
        "INSERT INTO base.events (producer, seq, ts, kind, level, message, body) "
        f"SELECT 70000 + rank, seq, {BEGUN} + to_seconds(9), kind, level, message, '{{}}' FROM (VALUES "
        "(0, 1, 'environment', 'info', 'no commit: train.py'), "
        "(0, 2, 'crashed', 'error', 'rank0 crashed: killed by SIGKILL'), "
        "(1, 1, 'traceback', 'error', 'ValueError: bad batch'), "
        "(1, 2, 'traceback', 'error', 'OSError: while it ended'), "
        "(1, 3, 'failed', 'error', 'rank1 failed: ValueError: bad batch')) t(rank, seq, kind, level, message)"
    )


def labels_of(page: str) -> list[list[str]]:
    """Return the rows of the table of labels."""
    rows = page.partition("\nLabels\n")[2].partition("\n* primary")[0].splitlines()
    return [re.split(" {2,}", row.strip()) for row in rows[2:]]
