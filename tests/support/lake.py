"""The rows of a store, read as its readers do: the files of Delta tables, by DuckDB."""

import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import duckdb
import obstore
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from obstore.store import from_url


def stored_rows(lake: Path, table: str, columns: str) -> list[tuple[Any, ...]]:
    """Return the rows of a table of a store, in any order; none while it does not exist."""
    try:
        files = list(map(unquote, DeltaTable(str(lake / table)).file_uris()))
    except TableNotFoundError:
        return []
    with duckdb.connect() as connection:
        query = f"SELECT {columns} FROM read_parquet(?, hive_partitioning = false)"
        return connection.execute(query, [files]).fetchall() if files else []


class VersionReader:
    """A reader of a store on a disk or in a bucket, which checks each version of a table once.

    Args:
        url: The store.
        directory: For copies of the files.
    """

    def __init__(self, url: str, directory: Path) -> None:
        self._url = url
        self._copies = Path(tempfile.mkdtemp(dir=directory))
        self._copied: dict[str, str] = {}  # by table and name
        self._checked: dict[str, int] = {}  # by table: the last version
        self._engine = duckdb.connect()
        self.n_versions = 0

    def rows(self, table: str, columns: str) -> list[tuple[Any, ...]]:
        """Return the rows of the newest version of a table, in any order; none while it does not exist."""
        opened = self._open(table)
        return [] if opened is None else self._rows(opened, columns)

    def check_versions(self, table: str, key: str) -> None:
        """Check of each version since the last call that no two rows have the same key, by which rows are told."""
        opened = self._open(table)
        newest = -1 if opened is None else opened.version()
        for version in range(self._checked.get(table, -1) + 1, newest + 1):
            opened = self._open(table, version)
            assert opened is not None
            found = self._rows(opened, key)
            assert len(found) == len(set(found)), f"{self._url}/{table}, version {version}"
            self.n_versions += 1
            self._checked[table] = version

    def close(self) -> None:
        """Remove the copies."""
        self._engine.close()
        for path in self._copies.iterdir():
            path.unlink()
        self._copies.rmdir()

    def _open(self, table: str, version: int | None = None) -> DeltaTable | None:
        try:
            return DeltaTable(f"{self._url}/{table}", version=version)
        except TableNotFoundError:
            return None

    def _rows(self, opened: DeltaTable, columns: str) -> list[tuple[Any, ...]]:
        files = [self._copy(unquote(uri)) for uri in opened.file_uris()]
        query = f"SELECT {columns} FROM read_parquet(?, union_by_name = true, hive_partitioning = false)"
        return self._engine.execute(query, [files]).fetchall() if files else []

    def _copy(self, address: str) -> str:
        """Return where a file is on this disk."""
        if not address.startswith("s3:"):
            return address
        if address not in self._copied:
            folder, _, name = address.rpartition("/")
            copy = self._copies / f"{len(self._copied)}.parquet"
            copy.write_bytes(obstore.get(from_url(folder), name).bytes())
            self._copied[address] = str(copy)
        return self._copied[address]
