"""Parquet files of a store: encodings that all engines read, and statistics that are true."""

import io
import json
from pathlib import Path

import duckdb
import pytest

from chiplog_collector.store.parquet_files import ROW_GROUP_ROWS, columns_of, statistics, write_rows
from tests.support.safeguard import proves
from tests.support.store_files import parquet


def test_statistics_bound_each_column_and_leave_out_numbers_that_may_be_nan(tmp_path: Path) -> None:
    query = """SELECT i % 7 - 3 AS step, CASE WHEN i % 2 = 0 THEN 'k' || i END AS key, [i::DOUBLE] AS edges,
        i::DOUBLE AS value, NULL::VARCHAR AS none,
        TIMESTAMPTZ '2026-11-28 10:00:00.123456+00' + INTERVAL (i) SECOND AS ts
        FROM range(300) t(i)"""
    found = statistics(parquet(tmp_path / "file.parquet", query))
    assert found["numRecords"] == 300
    assert found["minValues"] == {"step": -3, "key": "k0", "ts": "2026-11-28T10:00:00.123Z"}
    assert found["maxValues"] == {"step": 3, "key": "k98", "ts": "2026-11-28T10:04:59.124Z"}
    assert (found["nullCount"]["key"], found["nullCount"]["none"], found["nullCount"]["value"]) == (150, 300, 0)
    json.dumps(found, allow_nan=False)


def test_numbers_along_a_series_are_encoded_as_differences_and_values_plainly(tmp_path: Path) -> None:
    path = tmp_path / "file.parquet"
    with duckdb.connect() as connection:
        query = f"SELECT 'loss' AS key, i AS step, random() AS value FROM range({ROW_GROUP_ROWS + 1}) t(i)"
        write_rows(connection.sql(query), path)
        found = connection.execute(
            "SELECT DISTINCT path_in_schema, encodings, compression FROM parquet_metadata(?)", [str(path)]
        ).fetchall()
        groups = connection.execute("SELECT num_row_groups FROM parquet_file_metadata(?)", [str(path)]).fetchall()
    encodings = {name: set(text.split(", ")) for name, text, _ in found}
    assert "DELTA_BINARY_PACKED" in encodings["step"]
    assert "RLE_DICTIONARY" in encodings["key"]
    assert encodings["value"] == {"PLAIN", "RLE"}
    assert {compression for *_, compression in found} == {"ZSTD"}
    assert groups == [(2,)]
    assert columns_of(path) == {"key": "VARCHAR", "step": "BIGINT", "value": "DOUBLE"}


@proves("refused-write-raises", "a file that a disk has refused in part is not published", condition=False)
def test_one_write_that_the_disk_refuses_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class FullOnce(io.BytesIO):
        n_writes = 0

        def write(self, data) -> int:
            self.n_writes += 1
            if self.n_writes == 2:
                raise OSError(28, "No space left on device")
            return super().write(data)

    monkeypatch.setattr(Path, "open", lambda *_: FullOnce())
    with duckdb.connect() as connection, pytest.raises(OSError, match="No space left"):
        write_rows(connection.sql("SELECT random() AS value FROM range(1_000_000)"), tmp_path / "file.parquet")
