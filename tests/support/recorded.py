"""A database with the run of one rank, written without a collector."""

from pathlib import Path

import duckdb

from chiplog_schemas.paths import Paths, ensure_private_dir, paths_for_root
from chiplog_schemas.sql import tables_sql, views_sql


def create_database(root: Path, started_at: str) -> tuple[Paths, duckdb.DuckDBPyConnection]:
    """Create the database of a data directory, with run-a, whose rank0 started at that time (UTC)."""
    place = paths_for_root(root)
    ensure_private_dir(place.collector)
    database = duckdb.connect(str(place.index))
    database.execute(tables_sql())
    database.execute(views_sql())
    database.execute("INSERT INTO base.runs (run, run_id, project) VALUES (1, 'run-a', 'gpt')")
    database.execute(
        "INSERT INTO base.producers (producer, role, run, label, attempt, rank, started_at) "
        f"VALUES (1, 'rank', 1, 'rank0', 0, 0, TIMESTAMP '{started_at}')"
    )
    return place, database
