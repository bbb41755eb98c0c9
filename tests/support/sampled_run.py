"""A run with samples of its machines, written without a collector: two nodes with a GPU each, and twenty GPUs."""

import duckdb

BEGUN = "TIMESTAMP '2026-01-02 03:00:00'"


def fill_sampled_run(database: duckdb.DuckDBPyConnection) -> None:
    """Write two runs with a sample each ten seconds for 1,000 s, and one with a sample each second.

    - `sampled`: rank0 and rank1 on a node each. GPU-1-1 is 50 % busy and GPU-1-0 90 %; GPU-1-1 is too hot from second
      500 to 600, and lost at second 800. Each host receives 1,000 bytes per second. Each GPU may use
      700 W.
      A step takes 2 s; rank0 logs the loss in its middle, a second before the next sample, and rank1 2 s later.
    - `many`: 20 ranks with a GPU each, of which that of rank7 is idle.
    - `hot`: the power cap throttles one GPU in each second sample, 600 times. It is lost at second 1 and at
      the end.
    """
    database.execute(
        "INSERT INTO base.runs (run, run_id, tags, primary_label) VALUES (1, 'sampled', [], 'rank0'), "
        "(2, 'many', [], 'rank0'), (3, 'unsampled', [], 'rank0')"
    )
    database.execute(
        "INSERT INTO base.producers (producer, role, run, label, attempt, is_primary, rank, node, agent_node, gpus, "
        "started_at, produced) SELECT run * 100 + r, 'rank', run, 'rank' || r, 0, r = 0, r, "
        f"'node-' || run || '-' || r, 'node-' || run || '-' || r, ['GPU-' || run || '-' || r], {BEGUN}, 1 "
        "FROM (VALUES (1, 2), (2, 20), (3, 1)) t(run, n), range(20) u(r) WHERE r < n"
    )
    database.execute(
        "INSERT INTO base.producers (producer, role, label, attempt, node) "
        "SELECT 10000 + producer, 'agent', 'agent', 0, node FROM base.producers WHERE run <> 3"
    )
    database.execute(
        "INSERT INTO base.names VALUES (1, 'hw.gpu.utilization'), (2, 'hw.gpu.throttle.reasons'), "
        "(3, 'system.network.receive'), (4, ''), (5, 'loss'), (900, 'hw.power.limit')"
    )
    database.execute(
        f"INSERT INTO base.metrics SELECT 100 + r, 5, s, s, {BEGUN} + to_seconds(2 * s + 1 + 2 * r), 1 / (s + 1) "
        "FROM range(500) t(s), range(2) u(r)"
    )
    database.execute(
        "INSERT INTO base.names SELECT 1000 + producer, gpus[1] FROM base.producers WHERE gpus IS NOT NULL"
    )
    database.execute(
        "INSERT INTO base.system SELECT 10000 + producer, CASE WHEN key = 3 THEN 4 ELSE 1000 + producer END, key, "
        f"{BEGUN} + to_seconds(s * 10), CASE key WHEN 3 THEN s * 10000 WHEN 900 THEN 700 "
        "WHEN 2 THEN CASE WHEN run = 1 AND rank = 1 AND s BETWEEN 50 AND 59 THEN 64 ELSE 1 END "
        "WHEN 1 THEN CASE WHEN run = 1 AND rank = 1 THEN 0.5 WHEN run = 2 AND rank = 7 THEN 0 ELSE 0.9 END END "
        "FROM base.producers, (VALUES (1), (2), (3), (900)) t(key), range(101) u(s) WHERE role = 'rank' AND run <> 3"
    )
    database.execute(
        f"INSERT INTO base.events (producer, seq, ts, kind, level, message, body) VALUES (10101, 1, {BEGUN} + "
        "to_seconds(800), 'gpu.lost', 'error', 'GPU-1-1 is lost: fell off the bus', "
        "json_object('device', 'GPU-1-1', 'code', 79))"
    )
    database.execute("INSERT INTO base.runs (run, run_id, tags, primary_label) VALUES (4, 'hot', [], 'rank0')")
    database.execute(
        "INSERT INTO base.producers (producer, role, run, label, attempt, is_primary, rank, node, agent_node, gpus, "
        f"started_at, produced) VALUES (400, 'rank', 4, 'rank0', 0, true, 0, 'hot', 'hot', ['GPU-4'], {BEGUN}, 1), "
        "(10400, 'agent', NULL, 'agent', 0, NULL, NULL, 'hot', NULL, NULL, NULL, NULL)"
    )
    database.execute("INSERT INTO base.names VALUES (1400, 'GPU-4')")
    database.execute(
        f"INSERT INTO base.system SELECT 10400, 1400, key, {BEGUN} + to_seconds(s), "
        "CASE key WHEN 2 THEN 4 * (s % 2) ELSE s END FROM range(1, 3) t(key), range(1200) u(s)"
    )
    database.execute(
        f"INSERT INTO base.events (producer, seq, ts, kind, level, message, body) SELECT 10400, s, {BEGUN} + "
        "to_seconds(s), 'gpu.lost', 'error', 'GPU-4 is lost', json_object('device', 'GPU-4', 'code', 79) "
        "FROM (VALUES (1), (1200)) t(s)"
    )
