"""Trackio's SQLite file in SQL has the rows of its tables; tests/integrations compares a file of Trackio itself."""

import contextlib
import hashlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from chiplog_client.transfer.importers.formats import guess_format
from chiplog_client.transfer.importers.imported_run import ImporterError
from tests.support.imported_runs import import_path
from tests.support.index import Index
from tests.support.safeguard import proves

TIME, US = "2026-01-02T03:04:05.678901+00:00", 1_767_323_045_678_901
_TABLES = {
    "metrics": "run_id, timestamp, run_name, step, metrics",
    "configs": "run_id, run_name, config, created_at",
    "system_metrics": "run_id, timestamp, run_name, metrics",
    "alerts": "run_id, timestamp, run_name, title, text, level, step",
}


def make_file(path: Path, *logged: dict[str, Any], without: str = "-") -> Path:
    """Write the file of a project with one run. without: a column that the tables lack."""
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        for table, columns in _TABLES.items():
            connection.execute(f"CREATE TABLE {table} ({columns.replace(without + ', ', '')})")
        rows = [
            {"run_id": "abc", "run_name": "first run", "timestamp": TIME, "step": step, "metrics": json.dumps(values)}
            for step, values in enumerate(logged)
        ]
        of_run = {"run_id": "abc", "run_name": "first run", "timestamp": TIME, "created_at": TIME}
        config = {"lr": 0.1, "_Group": "g"}
        _insert(connection, "metrics", rows, without)
        _insert(connection, "configs", [{**of_run, "config": json.dumps(config)}], without)
        _insert(connection, "system_metrics", [{**of_run, "metrics": '{"gpu": {"0": {"power": 99.5}}}'}], without)
        alert = {"title": "high", "text": "loss is 9", "level": "warn", "step": 1}
        _insert(connection, "alerts", [{**of_run, **alert}], without)
    return path


def _insert(connection: sqlite3.Connection, table: str, rows: list[dict[str, Any]], without: str) -> None:
    columns = [column for column in _TABLES[table].split(", ") if column != without]
    places = ", ".join("?" * len(columns))
    values = [[row[column] for column in columns] for row in rows]
    connection.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places})", values)


def test_each_row_of_a_file_is_imported(index: Index, tmp_path: Path) -> None:
    image = tmp_path / "media" / "mnist" / "first run" / "1" / "x.png"
    image.parent.mkdir(parents=True)
    image.write_bytes(b"an image")
    logged = (
        {
            "loss": 0.5,
            "nested": {"a": 1},
            "odd": "NaN",
            "huge": "-Infinity",
            "flag": True,
            "note": "text",
            "none": None,
        },
        {
            "image": {"_type": "trackio.image", "file_path": "mnist/first run/1/x.png", "caption": "ü"},
            "table": {"_type": "trackio.table", "_value": [{"a": 1, "b": "x"}]},
            "weights": {"_type": "trackio.histogram", "bins": [0, 1, 2], "values": [3, 4]},
            "words": {"_type": "trackio.markdown", "_value": "# hi"},
            "list": [1, 2],
            "broken": {"_type": "trackio.histogram"},
            "no rows": {"_type": "trackio.table", "_value": [[1]]},
        },
    )
    path = make_file(tmp_path / "mnist.db", *logged)
    assert guess_format(path) == "trackio"
    [written] = import_path(index, "trackio", path)
    assert index.sql("SELECT run_id, project, name, run_group, state FROM runs") == [
        ("abc", "mnist", "first run", "g", "finished")
    ]
    metrics = index.sql("SELECT key, step, epoch_us(ts), value::VARCHAR FROM metrics ORDER BY key")
    assert metrics == [
        ("flag", 0, US, "1.0"),
        ("huge", 0, US, "-inf"),
        ("loss", 0, US, "0.5"),
        ("nested/a", 0, US, "1.0"),
        ("odd", 0, US, "nan"),
    ]
    assert index.sql("SELECT key, step, value FROM texts ORDER BY key") == [("note", 0, "text"), ("words", 1, "# hi")]
    assert index.sql("SELECT key, edges, counts FROM histograms") == [("weights", [0, 1, 2], [3, 4])]
    digest = hashlib.sha256(b"an image").hexdigest()
    assert index.sql("SELECT key, kind, sha256, metadata->>'caption' FROM media WHERE kind = 'image'") == [
        ("image", "image", digest, "ü")
    ]
    assert index.sql("SELECT key FROM media WHERE kind = 'table'") == [("table",)]
    assert index.sql("SELECT key, value FROM config ORDER BY key") == [("_Group", '"g"'), ("lr", "0.1")]
    assert index.sql("SELECT name, value FROM system") == [("gpu/0/power", 99.5)]
    alert = index.sql("SELECT level, message, body->>'text' FROM events WHERE kind = 'alert'")
    assert alert == [("warning", "high", "loss is 9")]
    assert {what: count for what, (count, _) in written.unmapped.items()} == {
        "values of type list": 1,
        "values that cannot be read": 2,
    }


def test_a_file_of_an_early_release_knows_runs_by_name(index: Index, tmp_path: Path) -> None:
    path = make_file(tmp_path / "old.db", {"loss": 1.0}, without="run_id")
    [first], [second] = (import_path(index, "trackio", path) for _ in range(2))
    assert first.run.run_id == second.run.run_id and first.run.run_id.startswith("trackio-")
    assert index.sql("SELECT name, count(*) FROM metrics JOIN runs USING (run_id) GROUP BY name") == [("first run", 1)]


@proves(
    "imported-media-below-their-folder",
    "a row of a Trackio file that names a file elsewhere does not bring it in",
    condition=False,
)
def test_media_outside_of_their_folder_are_left_out(index: Index, tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(b"secret")
    value = {"_type": "trackio.image", "file_path": "../secret.png"}
    [written] = import_path(index, "trackio", make_file(tmp_path / "p.db", {"loss": 1.0, "image": value}))
    assert index.sql("SELECT count(*) FROM media") == [(0,)]
    assert list(written.unmapped) == ["media outside of the folder of media"]


def test_bad_files_are_one_line_each(index: Index, tmp_path: Path) -> None:
    newer = make_file(tmp_path / "newer.db", {"loss": 1.0}, without="step")
    broken = make_file(tmp_path / "broken.db", {"loss": 1.0})
    with contextlib.closing(sqlite3.connect(broken)) as connection, connection:
        connection.execute("UPDATE metrics SET metrics = '{'")
    late = make_file(tmp_path / "late.db", {"loss": 1.0})
    with contextlib.closing(sqlite3.connect(late)) as connection, connection:
        connection.execute("UPDATE metrics SET timestamp = 'yesterday'")
    empty = make_file(tmp_path / "empty.db")
    with contextlib.closing(sqlite3.connect(empty)) as connection, connection:
        for table in _TABLES:
            connection.execute(f"DELETE FROM {table}")
    cut = make_file(tmp_path / "cut.db", *({"loss": 1.0 * step} for step in range(9_000)))
    cut.write_bytes(cut.read_bytes()[:100_000])
    reasons = {
        newer: "no column step",
        broken: "table metrics, row 1: metrics cannot be read",
        late: "table metrics, row 1: timestamp cannot be read",
        empty: "no run of Trackio",
        cut: "damaged",
    }
    for path, reason in reasons.items():
        with pytest.raises(ImporterError, match=reason) as raised:
            import_path(index, "trackio", path)
        assert str(path) in str(raised.value) and "\n" not in str(raised.value) and ";" in str(raised.value)
    assert index.sql("FROM runs") == []
