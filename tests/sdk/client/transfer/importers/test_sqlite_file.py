"""SQLite files of other programs are read without a change, also while they are written; others are one line."""

import contextlib
import sqlite3
from pathlib import Path

import pytest

from chiplog_client.transfer.importers import sqlite_file
from chiplog_client.transfer.importers.imported_run import ImporterError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "odd ?#% name.db"
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE a (x)")
        connection.execute("INSERT INTO a VALUES (1)")
    return path


def test_tables_are_found_in_sqlite_files_only(path: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("SQLite is a text here")
    assert sqlite_file.has_tables(path, frozenset({"a"}))
    assert not sqlite_file.has_tables(path, frozenset({"a", "b"}))
    for other in (tmp_path / "text", tmp_path / "absent", tmp_path):
        assert not sqlite_file.has_tables(other, frozenset())


def test_a_snapshot_is_read_while_another_process_writes(path: Path) -> None:
    before = path.read_bytes()
    with sqlite_file.opened(path) as connection:
        assert connection.execute("SELECT x FROM a").fetchone()["x"] == 1
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            connection.execute("DELETE FROM a")
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_locked_file_is_one_line(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_file, "_BUSY_WAIT_S", 0.01)
    with contextlib.closing(sqlite3.connect(path)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        assert sqlite_file.has_tables(path, frozenset({"a"}))
        with pytest.raises(ImporterError, match="locked; stop the program that writes it"), sqlite_file.opened(path):
            pass


def test_a_file_that_is_not_sqlite_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database" * 1000)
    with pytest.raises(ImporterError, match="text is no SQLite file"), sqlite_file.opened(tmp_path / "text"):
        pass
