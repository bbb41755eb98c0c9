"""The files that a run saved."""

import duckdb

from chiplog_client.client import Client
from chiplog_client.reads.saved_files import read_saved_file
from tests.support.run_builder import RunBuilder


def fill(database: duckdb.DuckDBPyConnection) -> None:
    """Write a run with a file."""
    build = RunBuilder(database)
    build.run("run-1")
    build.label("run-1", "rank0", is_primary=True, rank=0)
    build.saved_file("a/model.pt", 7, "ab" * 32)


def test_a_file_has_its_size_and_digest(client: Client) -> None:
    assert read_saved_file(client, "run-1", "a/model.pt") == {"path": "a/model.pt", "bytes": 7, "sha256": "ab" * 32}


def test_a_file_that_was_not_saved_is_none(client: Client) -> None:
    assert read_saved_file(client, "run-1", "model.pt") is None and read_saved_file(client, "x", "a/model.pt") is None
