"""Runs for `chiplog top`, written without a collector: ranks that run now, wait and hang, of one node and of 125."""

import duckdb

_NOW = "now()::TIMESTAMP"
_LATER = f"{_NOW} + INTERVAL 10 MINUTE"  # a time in the future has the age 0: it is new for the whole test
STEPS = 30  # that each rank logged


def fill_live_runs(database: duckdb.DuckDBPyConnection) -> None:
    """Write three runs.

    - `large`: 1,000 ranks on 125 nodes with a GPU each. rank417 is one step behind and in `forward`, the others wait.
    - `healthy`: 8 ranks on one node, of which rank3 takes twice as long for a step as the others.
    - `even`: 4 ranks without a new step, all at the same step; rank2 is in `data`, the others in `all_reduce`.
    """
    database.execute(
        "INSERT INTO base.runs (run, run_id, project, tags, primary_label) VALUES "
        "(1, 'large', 'gpt', [], 'rank0'), (2, 'healthy', 'gpt', [], 'rank0'), (3, 'even', 'gpt', [], 'rank0')"
    )
    database.execute(
        "INSERT INTO base.producers (producer, role, run, label, attempt, is_primary, rank, node, agent_node, pid, "
        "gpus, started_at, produced) "
        "SELECT run * 10000 + r, 'rank', run, 'rank' || r, 0, r = 0, r, 'node' || r // 8, 'node' || r // 8, r + 1, "
        f"['GPU-' || run || '-' || r], {_NOW} - to_seconds(CASE run WHEN 2 THEN 60 ELSE 200 END), 10 "
        "FROM (VALUES (1, 1000), (2, 8), (3, 4)) t(run, n), range(1000) u(r) WHERE r < n"
    )
    database.execute(
        f"INSERT INTO base.intervals SELECT producer, 0, 9, CASE WHEN run = 2 THEN {_LATER} "
        f"ELSE {_NOW} - to_seconds(60) END FROM base.producers"
    )
    database.execute(
        "INSERT INTO base.names VALUES (1, 'loss'), (2, 'forward'), (3, 'all_reduce'), (4, 'hw.gpu.utilization'), "
        "(5, 'hw.gpu.memory.usage'), (6, 'hw.gpu.memory.limit'), (7, 'process.memory.usage')"
    )
    # A second a step, and two for rank3 of `healthy`, which is the last one of its run at each step.
    database.execute(
        f"INSERT INTO base.metrics SELECT producer, 1, s, s, CASE WHEN run = 2 THEN {_LATER} ELSE {_NOW} - "
        "to_seconds(60) END - to_seconds(CASE WHEN run = 2 AND rank = 3 THEN 2 ELSE 1 END * (29 - s)), "
        f"1 / (s + 1) FROM base.producers, range({STEPS}) t(s) WHERE NOT (run = 1 AND rank = 417 AND s = 29)"
    )
    database.execute(
        "INSERT INTO base.phases SELECT producer, phase, step, step, ts, 0.4 FROM base.metrics, range(2, 4) t(phase) "
        "WHERE step < 29"
    )
    database.execute(
        "INSERT INTO base.events (producer, seq, ts, kind, level, message, body) "
        f"SELECT producer, 9, {_NOW} - to_seconds(50), 'phase_open', 'info', 'in phase', json_object('phase', "
        "CASE WHEN run = 1 THEN CASE WHEN rank = 417 THEN 'forward' ELSE 'all_reduce' END "
        "ELSE CASE WHEN rank = 2 THEN 'data' ELSE 'all_reduce' END END, 'step', 30, "
        f"'since_us', epoch_us({_NOW} - to_seconds(55))) FROM base.producers WHERE run <> 2"
    )
    # Samples of agents: per node a producer of its own.
    database.execute(
        "INSERT INTO base.producers (producer, role, label, attempt, node) "
        "SELECT 100000 + n, 'agent', 'agent', 0, 'node' || n FROM range(125) t(n)"
    )
    database.execute(
        "INSERT INTO base.names SELECT 1000 + row_number() OVER (), name FROM (SELECT DISTINCT unnest(gpus) AS name "
        "FROM base.producers UNION SELECT DISTINCT 'pid:' || pid FROM base.producers WHERE pid IS NOT NULL)"
    )
    database.execute(
        f"INSERT INTO base.system SELECT 100000 + p.rank // 8, d.id, k.key, {_LATER} - to_seconds(a), k.value "
        "FROM base.producers p JOIN base.names d ON d.name = p.gpus[1], "
        "(VALUES (4, 0.97), (5, 60.0 * 1073741824), (6, 80.0 * 1073741824)) k(key, value), range(3) u(a) "
        "WHERE p.role = 'rank'"
    )
    database.execute(
        f"INSERT INTO base.system SELECT 100000 + p.rank // 8, d.id, 7, {_LATER} - to_seconds(a), 3.5 * 1073741824 "
        "FROM base.producers p JOIN base.names d ON d.name = 'pid:' || p.pid, range(3) u(a) "
        "WHERE p.role = 'rank' AND p.run = 1"
    )
