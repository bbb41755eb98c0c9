"""Databases that are written without a collector: the run of one rank, and three runs."""

from pathlib import Path

import duckdb

from chiplog_schemas.paths import Paths, ensure_private_dir, paths_for_root
from tests.support.hand_written import compute_rollups, empty_database


def create_database(root: Path, started_at: str) -> tuple[Paths, duckdb.DuckDBPyConnection]:
    """Create the database of a data directory, with run-a, whose rank0 started at that time (UTC)."""
    place = paths_for_root(root)
    ensure_private_dir(place.collector)
    database = empty_database(place.index)
    database.execute("INSERT INTO base.runs (run, run_id, project) VALUES (1, 'run-a', 'gpt')")
    database.execute(
        "INSERT INTO base.producers (producer, role, run, label, attempt, rank, started_at) "
        f"VALUES (1, 'rank', 1, 'rank0', 0, 0, TIMESTAMP '{started_at}')"
    )
    compute_rollups(database)
    return place, database


def fill_three_runs(database: duckdb.DuckDBPyConnection) -> None:
    """Three runs: one finished, one crashed and incomplete, one still running."""
    database.execute(
        "INSERT INTO base.runs (run, run_id, project, tags, primary_label, name, run_group) VALUES "
        "(1, 'gpt-20260102-7f3a91', 'gpt', ['a', 'b'], 'rank0', 'first try', 'ablation'), "
        "(2, 'gpt-20260103-11aa22', 'gpt', [], 'rank0', NULL, NULL), "
        "(3, 'vit-20260104-0042', 'vision', [], NULL, NULL, NULL)"
    )
    for run, state, code, number in ((1, "finished", 0, None), (2, "crashed", None, 9), (3, None, None, None)):
        for rank in range(4):
            producer = run * 10 + rank
            ended = None if state is None else f"2026-01-0{run + 1} 05:10:45"
            database.execute(
                "INSERT INTO base.producers (producer, role, run, label, attempt, is_primary, rank, node, state, "
                "exit_code, exit_signal, reason, started_at, ended_at, produced) "
                "VALUES (?, 'rank', ?, ?, 0, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1000)",
                [
                    *(producer, run, f"rank{rank}", rank == 0, rank, f"node{rank // 2}.cluster.local", state, code),
                    *(number, "out of memory" if number else None, f"2026-01-0{run + 1} 03:04:05", ended),
                ],
            )
            database.execute(
                "INSERT INTO base.intervals VALUES (?, 0, ?, '2026-01-02 03:04:05')",
                [producer, 989 if run == 2 else 999],
            )
            if run == 2:
                database.execute("INSERT INTO base.losses VALUES (?, 990, 992, 'disk full')", [producer])
    database.execute("INSERT INTO base.names VALUES (1, 'train/loss'), (2, 'lr')")
    database.execute(
        "INSERT INTO base.metrics SELECT p.producer, n.id, s, s, TIMESTAMP '2026-01-02 03:04:05' + to_seconds(s), "
        "n.id + s / 100 FROM base.producers p, base.names n, range(100) t(s) WHERE n.id = 1 OR p.is_primary"
    )
    database.execute(
        "INSERT INTO base.config VALUES (10, 0, '2026-01-02 03:04:05', 'lr', '3e-4'), "
        "(10, 0, '2026-01-02 03:04:05', 'model', '\"gpt2\"')"
    )
    database.execute(
        "INSERT INTO base.events (producer, seq, ts, kind, level, message, body) "
        "VALUES (20, 991, '2026-01-03 05:10:45', 'exit', 'error', 'killed by SIGKILL', "
        "'{\"signal\": 9}'), (10, 1, '2026-01-02 03:04:05', 'environment', 'info', 'told', "
        '\'{"commit": "0123456789abcdef", "branch": "main", "command": ["train.py", "a b"]}\')'
    )
    database.execute(
        "INSERT INTO base.config_hashes VALUES (10, 2, '2026-01-02 03:04:05', true, '{\"lr\": \"aa\"}'), "
        "(12, 2, '2026-01-02 03:04:05', true, '{\"lr\": \"bb\"}')"
    )
    for path, size, digest in (("ckpt/last.pt", 1_234_567, "a" * 64), ("notes.txt", 12, "b" * 64)):
        row = [path, size, digest]
        database.execute("INSERT INTO base.files VALUES (10, 900, '2026-01-02 03:04:05', ?, ?, ?)", row)
    database.execute("INSERT INTO base.stored VALUES (?, 1234567, '2026-01-02 03:04:06')", ["a" * 64])
    database.execute(
        "INSERT INTO base.console SELECT 10 + r, CASE WHEN s % 3 = 0 THEN 'stderr' ELSE 'stdout' END, s, s, "
        "TIMESTAMP '2026-01-02 03:04:05' + to_milliseconds(s * 10 + r), "
        "'step ' || s || chr(27) || '[32m ok' || chr(27) || '[0m' || chr(27) || '[2J' || chr(7) FROM range(20) t(s), "
        "range(4) u(r)"
    )
