"""Two runs for the view that compares runs: one value of the config, one of the summary and one phase differ."""

import duckdb


def fill_compared_runs(database: duckdb.DuckDBPyConnection) -> None:
    """run-1 and run-2 of two labels each; `data` takes 0.1 s of each step in run-1, and 0.4 s in run-2."""
    database.execute(
        "INSERT INTO base.runs (run, run_id, tags, primary_label, name) VALUES (1, 'run-1', [], 'rank0', NULL), "
        "(2, 'run-2', [], 'rank0', '<b>second</b>')"
    )
    database.execute(
        "INSERT INTO base.producers (producer, role, run, label, attempt, is_primary, rank, state, exit_code, "
        "started_at, ended_at, produced) SELECT run * 10 + r, 'rank', run, 'rank' || r, 0, r = 0, r, 'finished', 0, "
        "TIMESTAMP '2026-01-02', TIMESTAMP '2026-01-02' + to_minutes(run), 10 FROM base.runs, range(2) t(r)"
    )
    database.execute("INSERT INTO base.names VALUES (1, 'data'), (2, 'forward')")
    database.execute(
        "INSERT INTO base.phases SELECT producer, k, s, s, TIMESTAMP '2026-01-02', CASE WHEN k = 2 THEN 0.25 "
        "WHEN run = 2 THEN 0.4 ELSE 0.1 END FROM base.producers, range(1, 3) t(k), range(4) u(s)"
    )
    database.execute(
        "INSERT INTO base.config SELECT producer, 0, TIMESTAMP '2026-01-02', k, CASE WHEN k = 'lr' THEN "
        "CAST(run * 0.1 AS VARCHAR) ELSE '\"gpt2\"' END FROM base.producers, (VALUES ('lr'), ('model')) t(k) "
        "WHERE is_primary"
    )
    database.execute(
        "INSERT INTO base.summary SELECT producer, 1, TIMESTAMP '2026-01-02', 'loss', CAST(4 - run AS VARCHAR) "
        "FROM base.producers WHERE is_primary"
    )
