"""Files as a piece of a store has them."""

from pathlib import Path

import duckdb
from arro3.io import write_parquet

LOG, DAY = "cd" * 16, "2026-11-28"
_ROWS = "SELECT 'a'' \"/\n😀' AS key, i AS step, 'nan'::DOUBLE AS value, now() AS ts FROM range(3) t(i)"


def parquet(path: Path, query: str = _ROWS) -> Path:
    """Write the rows of a query, by default three."""
    with duckdb.connect() as connection:
        write_parquet(connection.sql(query), path, skip_arrow_metadata=True)
    return path
