"""Runs for `chiplog plot` and `chiplog compare`, written without a collector."""

import duckdb

BEGUN = "TIMESTAMP '2026-01-02 03:00:00'"
STEPS = 1000
SPIKE_STEP, SPIKE = 321, 50.0


def fill_plotted_runs(database: duckdb.DuckDBPyConnection) -> None:
    """Write `gpt-a` and `gpt-b` with 4 ranks, `gpt-64` with 64, `again` with 2 attempts, and `still`.

    `loss` is (1 + rank) / (1 + step) in `gpt-a`, and twice that in `gpt-b`. `grad_norm` is 1 with one spike, and each
    hundredth value is infinite. `nan` is never finite. `tokens` is 1,000 times the step, `by_tokens` is
    defined over it.
    A step takes a second, and 2 in `gpt-b`, which logs half as many. `still` has a loss each second, all at step 0.
    """
    database.execute(
        "INSERT INTO base.runs (run, run_id, project, tags, primary_label) VALUES (1, 'gpt-a', 'gpt', [], 'rank0'), "
        "(2, 'gpt-b', 'gpt', [], 'rank0'), (3, 'gpt-64', 'gpt', [], 'rank0'), (4, 'again', 'gpt', [], 'rank0')"
    )
    database.execute(
        "INSERT INTO base.producers (producer, role, run, label, attempt, is_primary, rank, node, agent_node, pid, "
        "gpus, state, started_at, ended_at, produced) "
        "SELECT run * 1000 + r, 'rank', run, 'rank' || r, 0, r = 0, r, 'node', 'node', run * 1000 + r + 1, "
        f"['GPU-' || run || '-' || r], 'finished', {BEGUN}, {BEGUN} + to_seconds(run * 1000), 1 "
        "FROM (VALUES (1, 4), (2, 4), (3, 64)) t(run, n), range(64) u(r) WHERE r < n"
    )
    database.execute(
        "INSERT INTO base.producers (producer, role, run, label, attempt, is_primary, rank, state, started_at, "
        "ended_at) "
        f"SELECT 4000 + a, 'rank', 4, 'rank0', a, true, 0, 'finished', {BEGUN}, {BEGUN} FROM range(2) t(a)"
    )
    database.execute(
        "INSERT INTO base.names VALUES (1, 'loss'), (2, 'grad_norm'), (3, 'nan'), (4, 'tokens'), (5, 'by_tokens'), "
        "(6, 'acc'), (7, 'forward'), (8, 'data'), (9, 'hw.gpu.utilization'), (10, 'GPU-1-0'), (11, 'GPU-2-0'), "
        "(12, 'only_b'), (13, 'hw.gpu.memory.usage')"
    )
    step_at = f"{BEGUN} + to_seconds(s * CASE run WHEN 2 THEN 2 ELSE 1 END)"
    of_all = f"FROM base.producers, range({STEPS}) t(s) WHERE run < 4 AND (run <> 2 OR s < {STEPS // 2})"
    for key, value in (
        (1, "(1.0 + rank) / (1 + s) * CASE run WHEN 2 THEN 2 ELSE 1 END"),
        (
            2,
            f"CASE WHEN s = {SPIKE_STEP} AND rank = 2 THEN {SPIKE}::DOUBLE "
            "WHEN s % 100 = 99 THEN 'inf'::DOUBLE ELSE 1 END",
        ),
        (4, "s * 1000"),
        (5, "s"),
        (6, "s / 1000"),
    ):
        database.execute(
            f"INSERT INTO base.metrics SELECT producer, {key}, s, s * 10 + {key}, {step_at}, {value} {of_all}"
        )
    database.execute(
        f"INSERT INTO base.metrics SELECT producer, 3, s, s, {BEGUN}, 'nan' {of_all} AND run = 1 AND s < 100"
    )
    database.execute(f"INSERT INTO base.metrics SELECT producer, 12, s, s, {BEGUN}, 7 {of_all} AND run = 2 AND s = 5")
    database.execute(
        "INSERT INTO base.runs (run, run_id, project, tags, primary_label) VALUES (5, 'still', 'still', [], 'rank0')"
    )
    database.execute(
        "INSERT INTO base.producers (producer, role, run, label, attempt, is_primary, rank, state, started_at, "
        f"ended_at) VALUES (5000, 'rank', 5, 'rank0', 0, true, 0, 'finished', {BEGUN}, {BEGUN})"
    )
    database.execute(
        f"INSERT INTO base.metrics SELECT 5000, 1, 0, s, {BEGUN} + to_seconds(s), exp(-s / 50) FROM range(200) t(s)"
    )
    database.execute(  # the first attempt reached step 9, the second began again at 5
        f"INSERT INTO base.metrics SELECT 4000 + a, 1, s, s, {BEGUN} + to_seconds(s + a * 10), a * 100 + s "
        "FROM range(2) t(a), range(10) u(s) WHERE a = 0 OR s >= 5"
    )
    database.execute(
        f"INSERT INTO base.phases SELECT producer, p, s, s, {BEGUN}, CASE WHEN p = 7 THEN 0.5 ELSE 0.1 * run END "
        "FROM base.producers, range(10) t(s), range(7, 9) u(p) WHERE run < 3"
    )
    database.execute(
        "INSERT INTO base.definitions VALUES (1000, 1, '2026-01-02', 'by_*', '', 'tokens', ''), "
        "(1000, 2, '2026-01-02', 'acc', 'max', '', ''), (2000, 2, '2026-01-02', 'acc', 'max', '', '')"
    )
    for run, lr in ((1, "0.0003"), (2, "0.001")):
        database.execute(
            f"INSERT INTO base.config VALUES ({run}000, 1, {BEGUN}, 'lr', '{lr}'), "
            f"({run}000, 1, {BEGUN}, 'model', '\"gpt2\"')"
        )
    database.execute(f"INSERT INTO base.config VALUES (2000, 1, {BEGUN}, 'warmup', '100')")
    database.execute(
        "INSERT INTO base.producers (producer, role, label, attempt, node) VALUES (9000, 'agent', 'agent', 0, 'node')"
    )
    database.execute(
        f"INSERT INTO base.system SELECT 9000, d, k, {BEGUN} + to_seconds(s), CASE WHEN k = 9 "
        "THEN 0.5 + (d - 10) * 0.4 ELSE 20.0 * 1073741824 END FROM range(10, 12) t(d), "
        "range(1, 10) u(s), (VALUES (9), (13)) v(k)"
    )
