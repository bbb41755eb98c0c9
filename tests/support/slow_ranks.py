"""Runs with slow ranks, written without a collector: one of 8 ranks, one of 1,024, one without a difference."""

import duckdb

BEGUN = "TIMESTAMP '2026-01-02 03:00:00'"
WIDE_RANKS = 1_024


def fill_slow_ranks(database: duckdb.DuckDBPyConnection) -> None:
    """Write four runs. A step takes 1 s: 0.1 s `data`, 0.4 s `forward`, 0.5 s `backward`.

    - `slow`: 8 ranks and 1,000 steps. In steps 400 to 599 `data` of rank5 takes 0.3 s more, and the others wait in
      `backward`.
    - `wide`: 1,024 ranks and 24 steps. In step 17 `forward` of rank777 takes 3 s more.
    - `even`: 4 ranks and 100 steps without a difference.
    - `alone`: one rank without phases.
    """
    database.execute(
        "INSERT INTO base.runs (run, run_id, project, tags, primary_label) VALUES (1, 'slow', 'gpt', [], 'rank0'), "
        "(2, 'wide', 'gpt', [], 'rank0'), (3, 'even', 'gpt', [], 'rank0'), (4, 'alone', 'gpt', [], 'rank0')"
    )
    database.execute(
        "INSERT INTO base.producers (producer, role, run, label, attempt, is_primary, rank, node, started_at, "
        "produced, state, ended_at, exit_code) "
        "SELECT run * 10000 + r, 'rank', run, 'rank' || r, 0, r = 0, r, 'node' || r // 8, "
        f"{BEGUN}, 10, 'finished', {BEGUN} + to_seconds(1000), 0 "
        f"FROM (VALUES (1, 8), (2, {WIDE_RANKS}), (3, 4), (4, 1)) t(run, n), range({WIDE_RANKS}) u(r) WHERE r < n"
    )
    database.execute(f"INSERT INTO base.intervals SELECT producer, 0, 9, {BEGUN} FROM base.producers")
    database.execute("INSERT INTO base.names VALUES (1, 'step'), (2, 'data'), (3, 'forward'), (4, 'backward')")
    database.execute(
        f"""
        INSERT INTO base.phases
        SELECT producer, key, s, s, {BEGUN} + to_seconds(s + 1), CASE key
            WHEN 1 THEN 1 + extra
            WHEN 2 THEN 0.1 + CASE WHEN run = 1 AND rank = 5 THEN extra ELSE 0 END
            WHEN 3 THEN 0.4 + CASE WHEN run = 2 AND rank = 777 THEN extra ELSE 0 END
            ELSE 0.5 + CASE WHEN (run = 1 AND rank <> 5) OR (run = 2 AND rank <> 777) THEN extra ELSE 0 END END
        FROM (
            SELECT producer, run, rank, s,
                   CASE WHEN run = 1 AND s BETWEEN 400 AND 599 THEN 0.3
                        WHEN run = 2 AND s = 17 THEN 3 ELSE 0 END AS extra
            FROM base.producers, range(1000) t(s)
            WHERE (run = 1 OR run = 2 AND s < 24 OR run = 3 AND s < 100)
        ), range(1, 5) u(key)
        """
    )


def fill_rank_outside(database: duckdb.DuckDBPyConnection) -> None:
    """Write the runs of `fill_slow_ranks`, and `apart`: 4 ranks and 100 steps of 1 s, of which 0.9 s is in phases.

    Before step 60 rank0 writes for 10 s in no phase, and the others wait in `backward` of this step. Before step 80 it
    does so for 4 s in the phase `checkpoint`. The phase `step` has the step alone.

    And `mixed`: 4 ranks and 1,000 steps. `data` of rank1 takes 15 ms more in all of them, which is 15 s and still no
    slow rank. In steps 400 to 499 `forward` of rank2 takes 0.12 s more, and the others wait in `backward`.
    """
    fill_slow_ranks(database)
    database.execute(
        "INSERT INTO base.runs (run, run_id, project, tags, primary_label) VALUES (5, 'apart', 'gpt', [], 'rank0')"
    )
    database.execute("INSERT INTO base.names VALUES (5, 'checkpoint')")
    database.execute(
        "INSERT INTO base.producers (producer, role, run, label, attempt, is_primary, rank, node, started_at, "
        "produced, state, ended_at, exit_code) SELECT 50000 + r, 'rank', 5, 'rank' || r, 0, r = 0, r, 'node0', "
        f"{BEGUN}, 10, 'finished', {BEGUN} + to_seconds(114), 0 FROM range(4) u(r)"
    )
    database.execute(f"INSERT INTO base.intervals SELECT producer, 0, 9, {BEGUN} FROM base.producers WHERE run = 5")
    database.execute(
        f"""
        INSERT INTO base.phases
        SELECT producer, key, s, s, {BEGUN} + to_milliseconds(1000 * (s + 1 + CASE WHEN s >= 80 THEN 14
            WHEN s >= 60 THEN 10 ELSE 0 END)), CASE key WHEN 1 THEN 1 + waited WHEN 2 THEN 0.1 WHEN 3 THEN 0.3
            WHEN 4 THEN 0.5 + waited ELSE 4 END
        FROM (
            SELECT producer, s, rank,
                   CASE WHEN rank = 0 THEN 0 WHEN s = 60 THEN 10 WHEN s = 80 THEN 4 ELSE 0 END AS waited
            FROM base.producers, range(100) t(s) WHERE run = 5
        ), range(1, 6) u(key) WHERE key < 5 OR s = 80 AND rank = 0
        """
    )
    database.execute(
        "INSERT INTO base.runs (run, run_id, project, tags, primary_label) VALUES (6, 'mixed', 'gpt', [], 'rank0')"
    )
    database.execute(
        "INSERT INTO base.producers (producer, role, run, label, attempt, is_primary, rank, node, started_at, "
        "produced, state, ended_at, exit_code) SELECT 60000 + r, 'rank', 6, 'rank' || r, 0, r = 0, r, 'node0', "
        f"{BEGUN}, 10, 'finished', {BEGUN} + to_seconds(1000), 0 FROM range(4) u(r)"
    )
    database.execute(
        f"""
        INSERT INTO base.phases
        SELECT producer, key, s, s,
               {BEGUN} + to_milliseconds(1000 * s + 1000 + (120 * least(greatest(s - 399, 0), 100))),
               CASE key WHEN 1 THEN 1 + extra WHEN 2 THEN CASE rank WHEN 1 THEN 0.115 ELSE 0.1 END
                        WHEN 3 THEN 0.4 + CASE rank WHEN 2 THEN extra ELSE 0 END
                        ELSE 0.48 + CASE rank WHEN 2 THEN 0 ELSE extra END END
        FROM (
            SELECT producer, s, rank, CASE WHEN s BETWEEN 400 AND 499 THEN 0.12 ELSE 0 END AS extra
            FROM base.producers, range(1000) t(s) WHERE run = 6
        ), range(1, 5) u(key)
        """
    )
