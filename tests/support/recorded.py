"""Databases that are written without a collector: the run of one rank, and three runs."""

from pathlib import Path

import duckdb

from chiplog_schemas.paths import Paths, ensure_private_dir, paths_for_root
from tests.support.hand_written import compute_rollups, empty_database
from tests.support.run_builder import RunBuilder, Sql


def create_database(root: Path, started_at: str) -> tuple[Paths, duckdb.DuckDBPyConnection]:
    """Create the database of a data directory, with run-a, whose rank0 started at that time (UTC)."""
    place = paths_for_root(root)
    ensure_private_dir(place.collector)
    database = empty_database(place.index)
    build = RunBuilder(database, f"TIMESTAMP '{started_at}'")
    build.run("run-a", project="gpt", primary_label=None, tags=None)
    build.ranks("run-a", is_primary=None)
    compute_rollups(database)
    return place, database


def fill_three_runs(database: duckdb.DuckDBPyConnection) -> None:
    """Three runs: one finished, one crashed and incomplete, one still running."""
    build = RunBuilder(database, "TIMESTAMP '2026-01-02 03:04:05'")
    ablation = {"tags": ["a", "b"], "name": "first try", "run_group": "ablation"}
    for run, (run_id, columns, ended) in enumerate(
        (
            ("gpt-20260102-7f3a91", {"project": "gpt", **ablation}, {"state": "finished", "exit_code": 0}),
            (
                "gpt-20260103-11aa22",
                {"project": "gpt"},
                {"state": "crashed", "exit_signal": 9, "reason": "out of memory"},
            ),
            ("vit-20260104-0042", {"project": "vision", "primary_label": None}, {"state": None}),
        )
    ):
        build.run(run_id, **columns)
        node = Sql("'node' || rank // 2 || '.cluster.local'")
        begun_s = run * 86400
        ended_s = None if ended["state"] is None else begun_s + 2 * 3600 + 6 * 60 + 40
        build.ranks(run_id, 4, node=node, started_s=begun_s, ended_s=ended_s, **ended, produced=1000)
    build.received(0, "CASE run WHEN 2 THEN 989 ELSE 999 END")
    build.lost(990, 992, "disk full", where="run = 2")
    build.metrics({"train/loss": "1 + step / 100"}, steps=100)
    build.metrics({"lr": "2 + step / 100"}, steps=100, where="is_primary")
    build.config({"lr": Sql("'3e-4'"), "model": "gpt2"}, where="run = 1 AND is_primary")
    ended_s = 86400 + 2 * 3600 + 6 * 60 + 40
    killed = {"seq": 991, "at": ended_s, "where": "run = 2 AND rank = 0"}
    build.event("exit", "killed by SIGKILL", level="error", body={"signal": 9}, **killed)
    environment = {"commit": "0123456789abcdef", "branch": "main", "command": ["train.py", "a b"]}
    build.event("environment", "told", body=environment, seq=1, where="run = 1 AND rank = 0")
    for rank, digest in ((0, "aa"), (2, "bb")):
        build.config_hashes({"lr": digest}, seq=2, where=f"run = 1 AND rank = {rank}")
    for path, size, digest in (("ckpt/last.pt", 1_234_567, "a" * 64), ("notes.txt", 12, "b" * 64)):
        build.saved_file(path, size, digest, seq=900, where="run = 1 AND rank = 0")
    build.store("a" * 64, 1_234_567, at=1)
    line = "'step ' || step || chr(27) || '[32m ok' || chr(27) || '[0m' || chr(27) || '[2J' || chr(7)"
    stream = Sql("CASE WHEN step % 3 = 0 THEN 'stderr' ELSE 'stdout' END")
    build.console(Sql(line), stream=stream, steps=20, at="step / 100 + rank / 1000", where="run = 1")
