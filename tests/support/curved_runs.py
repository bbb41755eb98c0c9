"""Runs with curves of all kinds, written without a collector."""

import duckdb

STEPS = 1_000
LONG_STEPS = 4_000  # in buckets of 16 steps


def fill_curved_runs(database: duckdb.DuckDBPyConnection) -> None:
    """Write five runs.

    - `lines`: 4 ranks. rank3 has failed at step 300. `train/loss` has NaN, `bad/nan` nothing else, `epoch` is a
      hundredth of the step, in all ranks. A key and a value of the config are full of markup.
    - `band`: 20 ranks, of which rank7 is always the largest in `train/loss` and rank0 the smallest.
    - `other`: 1 rank with another config.
    - `silent`: 1 rank that has logged nothing.
    - `long`: 2 ranks of 4,000 steps. `train/loss` has 1 and 2 in turn, and half the rank at the end.
    """
    database.execute("INSERT INTO base.position (next_number) VALUES (1)")
    database.execute(
        "INSERT INTO base.runs (run, run_id, project, name, tags, primary_label) VALUES (1, 'lines', 'p', 'four', "
        "['<b>'], 'rank0'), (2, 'band', 'p', NULL, [], 'rank0'), (3, 'other', 'p', NULL, [], 'rank0'), "
        "(4, 'silent', 'p', NULL, [], 'rank0'), (5, 'long', 'p', NULL, [], 'rank0')"
    )
    database.execute(
        "INSERT INTO base.producers (producer, role, run, label, attempt, is_primary, rank, node, state, exit_code, "
        "reason, started_at, ended_at, produced) "
        "SELECT run * 100 + r, 'rank', run, 'rank' || r, 0, r = 0, r, 'node', "
        "CASE WHEN run = 1 AND r = 3 THEN 'failed' ELSE 'finished' END, (run = 1 AND r = 3)::INTEGER, "
        "CASE WHEN run = 1 AND r = 3 THEN 'ValueError: <img src=x onerror=alert(1)>' END, "
        "TIMESTAMP '2026-01-02 03:00:00', "
        "TIMESTAMP '2026-01-02 03:20:00' - to_minutes(CASE WHEN run = 1 AND r = 3 THEN 10 ELSE 0 END), 5000 "
        "FROM (VALUES (1, 4), (2, 20), (3, 1), (4, 1), (5, 2)) t(run, n), range(20) u(r) WHERE r < n"
    )
    database.execute("INSERT INTO base.intervals SELECT producer, 0, 4999, '2026-01-02 03:04:05' FROM base.producers")
    database.execute(
        "INSERT INTO base.names VALUES (1, 'train/loss'), (2, 'bad/nan'), (3, 'epoch'), "
        "(4, 'eval/<img src=x onerror=alert(1)>')"
    )
    database.execute(
        "INSERT INTO base.metrics SELECT p.producer, n.id, s, s, TIMESTAMP '2026-01-02 03:00:00' + to_seconds(s), "
        "CASE n.id WHEN 1 THEN CASE WHEN s % 10 = 5 AND run = 1 THEN 'nan' WHEN rank = 7 THEN 3.0::DOUBLE ELSE 2 END "
        "+ rank / 100 - s / 1000 WHEN 2 THEN 'nan' WHEN 3 THEN s // 100 ELSE sin(s / 50) + rank / 100 END "
        f"FROM base.producers p, base.names n, range({STEPS}) t(s) "
        "WHERE run < 4 AND (n.id < 4 OR s % 50 = 0) AND NOT (run = 1 AND rank = 3 AND s > 300)"
    )
    database.execute(
        "INSERT INTO base.metrics SELECT producer, id, s, s, "
        "TIMESTAMP '2026-01-02 03:00:00' + to_milliseconds(s * 250), "
        f"CASE WHEN id = 3 THEN s // 100 WHEN s = {LONG_STEPS - 1} THEN rank / 2 ELSE 1 + s % 2 END "
        f"FROM base.producers, (VALUES (1), (3)) k(id), range({LONG_STEPS}) t(s) WHERE run = 5"
    )
    database.execute(
        "INSERT INTO base.config VALUES (100, 0, '2026-01-02 03:00:00', 'lr', '0.1'), "
        "(100, 0, '2026-01-02 03:00:00', 'name', '\"<img src=x onerror=alert(1)>\"'), "
        "(300, 0, '2026-01-02 03:00:00', 'lr', '0.2')"
    )
