"""The Parquet files of a store: how they are encoded, and what Delta notes of them."""

import errno
import os
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import duckdb
from arro3.io import write_parquet

# Columns by which queries choose files. Numbers with a NaN among them have no order, so no DOUBLE has a range.
_RANGED = frozenset({"BIGINT", "INTEGER", "VARCHAR", "TIMESTAMP WITH TIME ZONE"})
MEMORY_BYTES = 1 << 30  # to sort in; more is sorted on the disk
ROW_GROUP_ROWS = 131_072  # what readers skip and decode at once
# Numbers that grow along a series. All engines tried read it; plain and dictionary pages are twice as large.
_DELTA_ENCODED = frozenset({"BIGINT", "TIMESTAMP WITH TIME ZONE"})


def write_rows(rows: duckdb.DuckDBPyRelation, path: Path) -> None:
    """Write the rows of a query in their order. Raises OSError, duckdb.Error."""
    types = {name: str(kind) for name, kind in zip(rows.columns, rows.types, strict=True)}
    is_delta = [name for name, kind in types.items() if kind in _DELTA_ENCODED]
    plain = [name for name, kind in types.items() if kind.startswith("DOUBLE")]
    with path.open("wb") as file:
        target = _Target(file)
        try:
            write_parquet(
                rows,
                target,  # type: ignore[arg-type]
                compression="zstd(3)",
                max_row_group_size=ROW_GROUP_ROWS,
                skip_arrow_metadata=True,  # it would name the time zone of this session
                column_encoding=dict.fromkeys(is_delta, "delta_binary_packed"),
                column_dictionary_enabled=dict.fromkeys([*is_delta, *plain], False),
            )
        except Exception as error:  # of DuckDB, while it passes rows on: arro3 gives all of them this type
            raise OSError(f"{path.name} cannot be made: {error}") from error
        if target.error is not None:  # safeguard: refused-write-raises
            raise target.error


class _Target:
    """A file for arro3, which panics if one refuses to be written: it keeps the error, and ignores what follows."""

    def __init__(self, file: BinaryIO) -> None:
        self.error: OSError | None = None
        self._file = file

    def write(self, data: bytes) -> int:
        try:
            if self.error is None:
                self._file.write(data)
        except OSError as error:
            self.error = error
        return len(data)

    def flush(self) -> None:
        """Do nothing: the file is closed afterwards."""

    def seek(self, *_: int) -> int:
        """Refuse; arro3 only checks that there is one."""
        raise OSError(errno.ESPIPE, os.strerror(errno.ESPIPE))


def bounded_engine(spill: Path) -> duckdb.DuckDBPyConnection:
    """Return a DuckDB in memory that sorts in MEMORY_BYTES, and beyond that in a directory. Times are UTC."""
    engine = duckdb.connect(config={"memory_limit": f"{MEMORY_BYTES}B", "temp_directory": str(spill)})
    engine.execute("SET TimeZone = 'UTC'; SET enable_progress_bar = false")  # of a program without a file of its own
    return engine


@cache
def _footer_engine() -> duckdb.DuckDBPyConnection:
    """Return a DuckDB in memory, kept for footers: to open one takes ten times as long as to read a footer."""
    return duckdb.connect(config={"threads": 1, "enable_external_file_cache": False})


def row_count(path: Path) -> int:
    """Return the number of rows of a file, from its footer."""
    with _footer_engine().cursor() as connection:
        [(n_rows,)] = connection.execute("SELECT num_rows FROM parquet_file_metadata(?)", [str(path)]).fetchall()
    return int(n_rows)


def columns_of(path: Path) -> dict[str, str]:
    """Return the columns of a file with their types in DuckDB."""
    with _footer_engine().cursor() as connection:
        return _columns(connection, path)


def _columns(connection: duckdb.DuckDBPyConnection, path: Path) -> dict[str, str]:
    query = "SELECT column_name, column_type FROM (DESCRIBE FROM read_parquet(?, hive_partitioning = false))"
    return dict(connection.execute(query, [str(path)]).fetchall())


def statistics(path: Path) -> dict[str, Any]:
    """Return what Delta notes of a file, from its footer: rows, smallest, largest and nulls of each column.

    https://github.com/delta-io/delta/blob/master/PROTOCOL.md#per-file-statistics
    """
    with _footer_engine().cursor() as connection:
        types = _columns(connection, path)
        rows = connection.execute(
            """SELECT path_in_schema, stats_min_value, stats_max_value, stats_null_count, num_values,
               row_group_num_rows, row_group_id FROM parquet_metadata(?)""",
            [str(path)],
        ).fetchall()
    n_rows = sum({group: n for *_, n, group in rows}.values())
    columns: dict[str, list[tuple[Any, ...]]] = {}
    for column, *group in rows:
        if column in types:
            columns.setdefault(column, []).append(tuple(group))
    nulls = {name: sum(group[2] or 0 for group in groups) for name, groups in columns.items()}
    ranges = {name: _range(types[name], groups) for name, groups in columns.items() if types[name] in _RANGED}
    known = {name: found for name, found in ranges.items() if found is not None}
    return {
        "numRecords": n_rows,
        "minValues": {name: smallest for name, (smallest, _) in known.items()},
        "maxValues": {name: largest for name, (_, largest) in known.items()},
        "nullCount": nulls,
    }


def _range(kind: str, groups: list[tuple[Any, ...]]) -> tuple[Any, Any] | None:
    """Return the smallest and the largest value of all row groups as JSON has them; None if they are not known."""
    filled = [group for group in groups if group[2] != group[3]]  # the others hold nulls alone
    if not filled or any(group[0] is None or group[1] is None for group in filled):
        return None
    if kind in ("BIGINT", "INTEGER"):
        return min(int(group[0]) for group in filled), max(int(group[1]) for group in filled)
    smallest, largest = min(group[0] for group in filled), max(group[1] for group in filled)
    if kind == "TIMESTAMP WITH TIME ZONE":  # engines read milliseconds there
        return _milliseconds(smallest), _milliseconds(largest, add=1)
    return smallest, largest


def _milliseconds(text: str, add: int = 0) -> str:
    """Return a time of DuckDB's in whole milliseconds, as ISO 8601."""
    at = datetime.fromisoformat(text.removesuffix("+00")).replace(tzinfo=None) + timedelta(milliseconds=add)
    return at.isoformat(timespec="milliseconds") + "Z"
