"""The rows of a store, read as its readers do: the files of Delta tables, by DuckDB."""

from pathlib import Path
from typing import Any
from urllib.parse import unquote

import duckdb
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError


def stored_rows(lake: Path, table: str, columns: str) -> list[tuple[Any, ...]]:
    """Return the rows of a table of a store, in any order; none while it does not exist."""
    try:
        files = list(map(unquote, DeltaTable(str(lake / table)).file_uris()))
    except TableNotFoundError:
        return []
    with duckdb.connect() as connection:
        query = f"SELECT {columns} FROM read_parquet(?, hive_partitioning = false)"
        return connection.execute(query, [files]).fetchall() if files else []
