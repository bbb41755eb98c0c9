"""The rollups of the series of a log, as its store has them: those of facts that neither its index nor its log has."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb

from chiplog_collector.store.delta_store import DeltaStore
from chiplog_collector.store.published_tables import SERIES_COLUMNS
from chiplog_schemas.sql import SERIES, merged_series_sql


def read_series(url: str, log: str, until: int, parent: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Return one row for each series of the pieces up to a record.

    Args:
        url: The store.
        log: The ID of the log, 32 hex digits.
        until: The record.
        parent: A directory for copies.

    Returns:
        By table, rows with the 32 hex digits of a producer, the name of the key, and the columns of the rollups.

    Raises:
        StoreError, OSError, duckdb.Error.
    """
    store = DeltaStore(url, log)
    parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=parent, prefix="series-") as directory, duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        return {table: _rows_of(store, table, log, until, Path(directory), connection) for table in SERIES.values()}


def _rows_of(
    store: DeltaStore, table: str, log: str, until: int, directory: Path, connection: duckdb.DuckDBPyConnection
) -> list[tuple[Any, ...]]:
    files = [
        file
        for file in store.snapshot(table)
        if file.may_have("log", log) and file.ranges.get("number", (0, 0))[0] <= until
    ]
    if not files:
        return []
    selected = ", ".join(
        f"{name} AT TIME ZONE 'UTC' AS {name}" if kind == "TIMESTAMP" else name for name, kind in SERIES_COLUMNS.items()
    )
    parts = f"""SELECT {selected} FROM read_parquet($files, hive_partitioning = false)
        WHERE log = $log AND number <= $until"""
    given = {"files": store.fetch_all(table, files, directory), "log": log, "until": until}
    return connection.execute(merged_series_sql(parts), given).fetchall()
