"""A reader of a store: a DuckDB with the merged views, and queries that run as the query service runs them."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb

from chiplog_collector.query.cold_needs import Need
from chiplog_collector.spanning.refresher import StoreReader
from chiplog_schemas.query.query_messages import disable_faulty_optimizers
from chiplog_schemas.sql import LARGE, rollups_sql, tables_sql


@cache
def _empty_file() -> bytes:
    """Return the file of a database with the tables of an index, and without rows."""
    with TemporaryDirectory() as directory:
        path = Path(directory) / "own.duckdb"
        with duckdb.connect(str(path)) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            connection.execute(tables_sql())
            connection.execute(rollups_sql())
        return path.read_bytes()


@cache
def _cache_file(log: str) -> bytes:
    """Return what a reader of another store keeps. Its views serve all stores; to make them takes half a second."""
    with TemporaryDirectory() as directory:
        Reader(f"file://{directory}/lake", Path(directory), log=log, is_first=True).close()
        return (Path(directory) / "reader" / "cache.duckdb").read_bytes()


class Reader:
    """A reader without rows of its own, unless a connection to an index is given."""

    def __init__(
        self,
        url: str,
        directory: Path,
        connection: duckdb.DuckDBPyConnection | None = None,
        log: str = "00" * 16,
        *,
        former: tuple[bytes, int] | None = None,
        is_first: bool = False,
    ) -> None:
        self._own = connection is None
        cache_path = directory / "reader" / "cache.duckdb"
        if self._own and not is_first and not cache_path.exists():
            cache_path.parent.mkdir(exist_ok=True)
            cache_path.write_bytes(_cache_file(log))
        if connection is None:
            path = directory / "own.duckdb"
            if not path.exists():
                path.write_bytes(_empty_file())
            connection = duckdb.connect(str(path))
            connection.execute("SET TimeZone = 'UTC'")
            disable_faulty_optimizers(connection)
        self.connection = connection
        self.store = StoreReader(
            connection, url, log, directory / "reader", 10, directory / "files", is_alone=self._own, former=former
        )
        self.cursor = connection.cursor()
        self.store.cold.prepare(self.cursor)
        self.store.refresh()

    def sql(self, query: str, needs: Mapping[str, Sequence[Need]] | None = None) -> list[tuple[Any, ...]]:
        needs = {table: [Need()] for table in LARGE} if needs is None else needs
        with self.store.cold.chosen(self.cursor, needs):
            return self.cursor.execute(query).fetchall()

    def close(self) -> None:
        self.store.close()
        self.cursor.close()
        if self._own:
            self.connection.close()
