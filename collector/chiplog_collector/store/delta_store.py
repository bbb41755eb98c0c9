"""Delta tables under a path or a bucket, and the only module that imports deltalake.

Exactly once: each commit carries the ID of the log and the table as its application, and as its version the number of
the log record that ends the piece. The handle that looks at the application's version also commits, so Delta refuses
the commit if another process has committed for this log since.
"""

import io
import json
import os
import re
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO, TypeVar
from urllib.parse import unquote, urlsplit

import duckdb
import obstore
from deltalake import CommitProperties, DeltaTable, Field, PostCommitHookProperties, Schema, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.schema import ArrayType, PrimitiveType
from deltalake.transaction import AddAction
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import from_url

from chiplog_schemas.atomic_file import sync_directory

TABLE_VERSION = 1  # of the tables' columns; only ever added to
CHECKPOINT_COMMITS = 20  # a reader lists and reads the commits since the last checkpoint
_DAY = "day"  # of receipt: the partition of each table
_DESCRIBED = "chiplog, version {}"  # of a table: Delta refuses properties that it does not know
_ERROR_CHARS = 300
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")  # delta-rs prints arrows between the causes of an error
T = TypeVar("T")
# Statistics are those of the columns by which queries choose files. Numbers with a NaN among them have no order.
_COUNTED = frozenset({"long", "integer", "string", "timestamp"})
# Types of DuckDB as Delta has them.
_TYPES = {
    "BIGINT": "long",
    "BOOLEAN": "boolean",
    "DOUBLE": "double",
    "INTEGER": "integer",
    "TIMESTAMP WITH TIME ZONE": "timestamp",
    "VARCHAR": "string",
}


class StoreError(Exception):
    """The store cannot be used now: it is away, or refuses. The text is one line."""


class ForeignPositionError(Exception):
    """Another process has published this log: it runs twice, or its directory was copied or restored."""


@dataclass(frozen=True, slots=True)
class Addition:
    """What one piece adds to one table.

    Attributes:
        table: The table.
        path: The Parquet file.
        day: The day of receipt, YYYY-MM-DD.
        after: The number of the log record that ends the piece before.
        until: The number of the log record that ends this piece.
    """

    table: str
    path: Path
    day: str
    after: int
    until: int


class DeltaStore:
    """A store, for one log.

    Args:
        url: file:///directory, s3://bucket/folder, gs://… or abfss://…. Credentials come from the environment.
        log: The ID of the log, 32 hex digits.

    Raises:
        StoreError: From each method, if the store is away or refuses.
    """

    def __init__(self, url: str, log: str) -> None:
        self.url = url.rstrip("/")
        self._log = log
        self._tables: dict[str, DeltaTable] = {}
        is_disk = url.startswith("file:")
        self._objects = _try(lambda: from_url(self.url, mkdir=True) if is_disk else from_url(self.url))

    def check(self) -> None:
        """Refuse a store that replaces an object which was to be created: two commits would become one.

        Raises:
            StoreError: It does, or it is away.
        """
        name = f"probes/{uuid.uuid4()}"
        self._put(name, io.BytesIO(b"probe"))
        try:
            self._put(name, io.BytesIO(b"probe"))  # safeguard: replacing-store-refused
        except AlreadyExistsError:
            return
        finally:
            _try(lambda: obstore.delete(self._objects, name))
        raise StoreError(
            f"{self.url} replaces objects in place of refusing to create them (If-None-Match); use another store"
        )

    def positions(self, tables: Iterable[str]) -> dict[str, int]:
        """Return the number of the last record of this log by table, of tables that have some of it."""
        found = {}
        for name in tables:
            table = self._open(name)
            if table is not None and (version := self._version(table, name)) is not None:
                found[name] = version
        return found

    def publish(self, addition: Addition) -> bool:
        """Add a file to a table, as one commit. Return False if the table has it.

        Raises:
            ForeignPositionError: The table has records of this log that this directory did not publish.
        """
        table = self._open(addition.table) or self._create(addition)
        version = self._version(table, addition.table)
        if version == addition.until:
            return False
        if version is not None and version > addition.after:  # safeguard: foreign-position-refused
            raise ForeignPositionError(
                f"{self.url}/{addition.table} has records of this log up to {version}, "
                f"and this directory published up to {addition.after}"
            )
        action = self._upload(addition)
        schema = _schema_of(addition.path)
        transaction = Transaction(self._app(addition.table), addition.until, int(time.time() * 1000))
        _try(
            lambda: table.create_write_transaction(
                [action],
                "append",
                schema,
                [_DAY],
                commit_properties=CommitProperties(app_transactions=[transaction]),
                post_commithook_properties=PostCommitHookProperties(create_checkpoint=True),
            )
        )
        _try(table.update_incremental)
        self._sync(addition.table, action.path)
        return True

    def put_content(self, digest: str, path: Path) -> None:
        """Store the content of a saved file under its SHA-256, unless the store has it. Raises OSError of the file."""
        with path.open("rb") as source:
            try:
                self._put(f"contents/{digest}", source)
            except AlreadyExistsError:
                pass  # the same bytes: names are digests, and an object is complete or absent
        self._sync("contents", digest)

    # -- tables --

    def _version(self, table: DeltaTable, name: str) -> int | None:
        return _try(lambda: table.transaction_version(self._app(name)))

    def _open(self, name: str) -> DeltaTable | None:
        """Return the table as it is now; None if it does not exist yet."""
        table = self._tables.get(name)
        try:
            if table is None:
                table = self._tables[name] = DeltaTable(self._address(name))
            else:
                table.update_incremental()
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as error:
            raise StoreError(_one_line(error)) from error
        return table

    def _create(self, addition: Addition) -> DeltaTable:
        """Create a table with the columns of its first file."""
        configuration = {
            "delta.checkpointInterval": str(CHECKPOINT_COMMITS),
            "delta.logRetentionDuration": "interval 7 days",
            "delta.dataSkippingNumIndexedCols": "32",
        }
        _try(
            lambda: DeltaTable.create(
                self._address(addition.table),
                _schema_of(addition.path),
                mode="ignore",
                partition_by=[_DAY],
                description=_DESCRIBED.format(TABLE_VERSION),
                configuration=configuration,
            )
        )
        table = self._open(addition.table)
        if table is None:
            raise StoreError(f"{self.url}/{addition.table} cannot be read after it was created")
        return table

    def _put(self, name: str, source: BinaryIO) -> None:
        """Create an object. Raises AlreadyExistsError, StoreError."""
        try:
            obstore.put(self._objects, name, source, mode="create")
        except AlreadyExistsError:
            raise
        except (BaseError, OSError, ValueError) as error:
            raise StoreError(_one_line(error)) from error

    def _upload(self, addition: Addition) -> AddAction:
        """Copy a file under a new random name, and describe it."""
        name = f"{_DAY}={addition.day}/{uuid.uuid4()}.parquet"
        with addition.path.open("rb") as source:
            self._put(f"{addition.table}/{name}", source)
        size = addition.path.stat().st_size
        partition = {_DAY: addition.day}
        return AddAction(name, size, partition, int(time.time() * 1000), True, json.dumps(statistics(addition.path)))

    def _app(self, table: str) -> str:
        return f"chiplog/{self._log}/{table}"

    def _address(self, name: str) -> str:
        return f"{self.url}/{name}"

    def _sync(self, table: str, name: str) -> None:
        """Make a file and the newest commit durable, on a disk: then the outbox may forget the piece."""
        if not self.url.startswith("file://"):
            return
        folder = Path(unquote(urlsplit(self._address(table)).path))
        commits = sorted((folder / "_delta_log").glob("*.json"))[-1:]
        try:
            for path in [folder / name, *commits]:  # safeguard: published-file-synced
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
                sync_directory(path.parent)
        except OSError as error:
            raise StoreError(f"{folder} cannot be synced: {error.strerror}") from error


def _schema_of(path: Path) -> Schema:
    """Return the columns of a table: those of a file of it, and its partition."""
    with duckdb.connect() as connection:
        found = connection.execute("SELECT column_name, column_type FROM (DESCRIBE FROM read_parquet(?))", [str(path)])
        fields = [Field(name, _delta_type(kind)) for name, kind in found.fetchall()]
    return Schema([*fields, Field(_DAY, PrimitiveType("date"))])


def _delta_type(kind: str) -> PrimitiveType | ArrayType:
    if kind.endswith("[]"):
        return ArrayType(_delta_type(kind.removesuffix("[]")))
    return PrimitiveType(_TYPES[kind])


def statistics(path: Path) -> dict[str, Any]:
    """Return Delta's statistics of a Parquet file, from its footer: the number of rows, smallest, largest and nulls.

    https://github.com/delta-io/delta/blob/master/PROTOCOL.md#per-file-statistics
    """
    types = {field.name: getattr(field.type, "type", "") for field in _schema_of(path).fields}
    with duckdb.connect() as connection:
        rows = connection.execute(
            """SELECT path_in_schema, stats_min_value, stats_max_value, stats_null_count, num_values,
               row_group_num_rows, row_group_id FROM parquet_metadata(?)""",
            [str(path)],
        ).fetchall()
    n_rows = sum({group: n for *_, n, group in rows}.values())
    columns: dict[str, list[tuple[Any, ...]]] = {}
    for column, *group in rows:
        if column in types:
            columns.setdefault(column, []).append(tuple(group))
    nulls = {name: sum(group[2] or 0 for group in groups) for name, groups in columns.items()}
    ranges = {name: _range(types[name], groups) for name, groups in columns.items() if types[name] in _COUNTED}
    known = {name: found for name, found in ranges.items() if found is not None}
    return {
        "numRecords": n_rows,
        "minValues": {name: smallest for name, (smallest, _) in known.items()},
        "maxValues": {name: largest for name, (_, largest) in known.items()},
        "nullCount": nulls,
    }


def _range(kind: str, groups: list[tuple[Any, ...]]) -> tuple[Any, Any] | None:
    """Return the smallest and the largest value of all row groups as JSON has them; None if they are not known."""
    filled = [group for group in groups if group[2] != group[3]]  # the others hold nulls alone
    if not filled or any(group[0] is None or group[1] is None for group in filled):
        return None
    if kind in ("long", "integer"):
        return min(int(group[0]) for group in filled), max(int(group[1]) for group in filled)
    smallest, largest = min(group[0] for group in filled), max(group[1] for group in filled)
    if kind == "timestamp":  # engines read milliseconds there
        return _milliseconds(smallest), _milliseconds(largest, add=1)
    return smallest, largest


def _milliseconds(text: str, add: int = 0) -> str:
    """Return a time of DuckDB's in whole milliseconds, as ISO 8601."""
    at = datetime.fromisoformat(text.removesuffix("+00")).replace(tzinfo=None) + timedelta(milliseconds=add)
    return at.isoformat(timespec="milliseconds") + "Z"


def _try(call: Callable[[], T]) -> T:
    """Call Delta; raise its errors as StoreError."""
    try:
        return call()
    except (StoreError, ForeignPositionError):
        raise
    except (DeltaError, OSError, ValueError) as error:
        raise StoreError(_one_line(error)) from error


def _one_line(error: BaseException) -> str:
    return " ".join(_COLOURS.sub("", str(error)).split())[:_ERROR_CHARS]
