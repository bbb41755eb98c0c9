"""A transaction commits as a whole, or not at all."""

import duckdb
import pytest

from chiplog_collector.transaction import transaction


def test_a_transaction_is_committed_at_its_end_and_rolled_back_on_an_exception() -> None:
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE t (n INTEGER)")
        with transaction(connection):
            connection.execute("INSERT INTO t VALUES (1)")
        with pytest.raises(KeyboardInterrupt), transaction(connection):
            connection.execute("INSERT INTO t VALUES (2)")
            raise KeyboardInterrupt
        assert connection.execute("FROM t").fetchall() == [(1,)]


def test_the_reason_is_raised_where_duckdb_has_already_rolled_back() -> None:
    with duckdb.connect() as connection:
        with pytest.raises(ZeroDivisionError), transaction(connection):
            connection.execute("ROLLBACK")
            raise ZeroDivisionError
        with transaction(connection):
            connection.execute("CREATE TABLE t (n INTEGER)")
        assert connection.execute("FROM t").fetchall() == []
