"""A client of another version than the collector, or than the views of a database file: one line names both."""

import duckdb
import pytest

from chiplog_client.client import QueryError, connect
from chiplog_client.read_model import is_asked, is_outdated, mismatch_reason
from chiplog_schemas._version import __version__
from chiplog_schemas.paths import Paths
from chiplog_schemas.sql import READS
from tests.support.command_line import call
from tests.support.recorded import create_database

OURS = f"this client (chiplog {__version__}) asks read model {READS}"


@pytest.fixture
def older(tmp_path) -> Paths:
    """Return a data directory whose database has the views of a version without a read model."""
    place, database = create_database(tmp_path, "2026-01-02 03:04:05")
    with database:
        database.execute("DROP SCHEMA reads CASCADE")
    return place


@pytest.mark.parametrize(
    ("info", "reason"),
    [
        ({"reads": READS, "version": "0.0.1"}, None),
        ({}, f"X has no read model; {OURS}; upgrade X"),
        ({"reads": 0, "version": "0.0.1"}, f"X has read model 0 (chiplog 0.0.1); {OURS}; upgrade X"),
        (
            {"reads": READS + 1, "version": "9.1"},
            f"X has read model {READS + 1} (chiplog 9.1); {OURS}; upgrade this client",
        ),
        ({"reads": "1", "version": 7}, f"X has no read model; {OURS}; upgrade X"),
    ],
)
def test_the_reason_names_both_versions_and_the_side_to_upgrade(info: dict, reason: str | None) -> None:
    assert mismatch_reason("X", info, "upgrade X") == reason


def test_only_a_query_of_the_read_model_needs_it() -> None:
    assert is_asked("SELECT a FROM reads.state")
    assert not is_asked("SELECT n_reads.a FROM metrics n_reads WHERE key = 'reads'")


def test_a_file_of_an_older_version_answers_users_and_refuses_the_read_model(older: Paths) -> None:
    with connect(dir=older.root, start=False) as client:
        assert client.sql("SELECT run_id FROM runs").rows() == [{"run_id": "run-a"}]
        with pytest.raises(QueryError, match=f"^the database {older.index} has no read model; .*; start the"):
            client.sql("FROM reads.state")
    with duckdb.connect(str(older.index), read_only=True) as database:
        assert is_outdated(database)


def test_a_command_for_an_older_file_prints_one_line(older: Paths) -> None:
    code, text, errors = call(older.root, ("show", "run-a"), "")
    assert (code, text) == (1, "")
    [line] = errors.strip().splitlines()
    assert OURS in line and line.endswith("start the collector (chiplog up), which replaces its views")
