"""The kinds of DuckDB's messages, where it gives no type: real ones, and those that a query can imitate."""

from pathlib import Path

import duckdb
import pytest

from chiplog_schemas.query.duckdb_errors import (
    STREAM_PREFIX,
    foreign_path_reason,
    is_damage,
    is_lock_conflict,
    is_out_of_memory,
    is_refused_commit,
    is_stream_error,
    remedy_of_query,
)
from tests.support.safeguard import proves


@proves(
    "lack-of-memory-by-prefix", "a query's own message does not count as a lack of memory", part=".match", new=".search"
)
@pytest.mark.parametrize(
    "said", ["Out of Memory Error: x", "Data Corruption Error: Corrupt database file: x", "Failed to commit: Could not"]
)
def test_what_a_query_says_itself_is_neither_damage_nor_a_lack_of_memory(said: str) -> None:
    with duckdb.connect() as connection, pytest.raises(duckdb.Error) as caught:
        connection.execute("SELECT error(?)", [said]).fetchall()
    for text in (str(caught.value), STREAM_PREFIX + str(caught.value)):
        assert said in text
        assert not (is_damage(text) or is_out_of_memory(text) or is_refused_commit(text))
    assert is_stream_error(STREAM_PREFIX + str(caught.value))
    assert not is_stream_error(str(caught.value))


def test_a_lack_of_memory_is_known_by_duckdbs_message() -> None:
    bounds = {"memory_limit": "10MB", "max_temp_directory_size": "0KB"}
    with duckdb.connect(config=bounds) as connection, pytest.raises(duckdb.OutOfMemoryException) as caught:
        connection.execute("SELECT list(range) FROM range(100000000)").fetchall()
    assert is_out_of_memory(str(caught.value))
    assert is_out_of_memory(STREAM_PREFIX + str(caught.value))


def test_a_file_of_wrong_bytes_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "x.duckdb"
    path.write_bytes(b"x" * 10_000)
    with pytest.raises(duckdb.IOException) as caught:
        duckdb.connect(str(path))
    assert is_damage(str(caught.value))


def test_the_name_of_a_file_is_no_conflict() -> None:
    path = "/tmp/Conflicting lock is held in x/index.duckdb"
    assert not is_lock_conflict(f'IO Error: Cannot open file "{path}": Permission denied', path)
    assert is_lock_conflict(f'IO Error: Could not set lock on file "{path}": Conflicting lock is held in python', path)


@pytest.mark.parametrize(
    "name", ["key=lr", "star*", "[a]", "a b", "quo'te", "new\nline", "ü", "-x", "~", "file:", "%41", "#"]
)
def test_a_database_is_opened_at_its_path(tmp_path: Path, name: str) -> None:
    path = tmp_path / name / "index.duckdb"
    path.parent.mkdir()
    assert foreign_path_reason(path) is None
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE t AS SELECT 1")
    assert path.exists()


@pytest.mark.parametrize("name", ["back\\slash", "what?"])
def test_a_path_under_which_duckdb_opens_another_file_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / name / "index.duckdb"
    path.parent.mkdir()
    reason = foreign_path_reason(path)
    assert reason is not None and str(path.parent) in reason
    with pytest.raises(duckdb.Error):  # if this opens it, the check is needless
        duckdb.connect(str(path)).execute("CREATE TABLE t AS SELECT 1")


@pytest.mark.parametrize(
    ("query", "remedy"),
    [
        ('SELECT value FROM metrics WHERE key = "loss"', "single quotes: key = 'loss'; DESCRIBE metrics"),
        ("SELECT los FROM metrics", "DESCRIBE metrics lists the columns of a view"),
        ("FROM metric", "SHOW TABLES lists the views"),
        ("SELECT group FROM metrics", "needs double quotes; DESCRIBE runs lists"),
        ("FROM 'x.parquet'", "queries read the views of chiplog only"),
    ],
)
def test_a_mistake_in_a_query_has_a_remedy(query: str, remedy: str) -> None:
    with duckdb.connect(config={"enable_external_access": False}) as connection:
        connection.execute("CREATE TABLE metrics (key VARCHAR, value DOUBLE)")
        with pytest.raises(duckdb.Error) as caught:
            connection.execute(query)
    assert remedy in remedy_of_query(str(caught.value))
    assert remedy_of_query("Conversion Error: Parser Error: x") == ""
