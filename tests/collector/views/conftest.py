"""Fixtures of the tests of views."""

from collections.abc import Iterator

import duckdb
import pytest

from tests.support.random_facts import make_database


@pytest.fixture
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    """Return a database without rows."""
    with make_database() as connection:
        yield connection
