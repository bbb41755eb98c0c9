"""An index over a log that a test writes."""

import contextlib
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb

from chiplog_collector.index.database import Database
from chiplog_collector.index.follower import LogFollower
from chiplog_schemas.query.execute import tables_found
from chiplog_schemas.query.query_messages import allow_contents, disable_faulty_optimizers
from chiplog_schemas.storage.record import Kind
from chiplog_schemas.storage.segment_log import SegmentLog
from tests.support.collector_log import LOG_ID, VIEWS, contents_of, receipt


@cache
def empty_file(log_id: bytes = LOG_ID) -> bytes:
    """Return the file of an index without rows. To create one takes 100 ms of CPU time."""
    with TemporaryDirectory() as directory:
        path = Path(directory) / "index.duckdb"
        Database(path, log_id).close()
        return path.read_bytes()


def empty_database(path: Path) -> Database:
    """Return a database without rows at a path where there is none."""
    path.write_bytes(empty_file())
    return Database(path, LOG_ID, has_views=True)


class Index:
    """A log on disk, and the database that a follower builds from it."""

    def __init__(self, directory: Path, log_id: bytes = LOG_ID) -> None:
        self.log_id = log_id
        self.log = SegmentLog(directory / "log", log_id)
        self.path = directory / "index.duckdb"
        self.directory = directory
        self.files = directory / "files"
        self._open(has_views=not self.path.exists())

    def _open(self, *, has_views: bool) -> None:
        if not self.path.exists():
            self.path.write_bytes(empty_file(self.log_id))
        self.database = Database(self.path, self.log_id, has_views=has_views)
        disable_faulty_optimizers(self.database.connection)  # as wherever queries are answered
        allow_contents(self.database.connection, self.files)
        self.follower = LogFollower(self.database, self.directory / "log")

    def take(self, *payloads: Any) -> "Index":
        """Log payloads, with a receipt after each, and apply them."""
        for payload in payloads:
            kind, content, *version = payload if isinstance(payload, tuple) else (Kind.BLOCK, payload)
            self.log.append(kind, content, *version)
            self.log.append(Kind.RECEIPT, receipt(self.log.next_number))
        self.log.commit()
        self.follow()
        return self

    def take_from(self, name: str, payload: Any, *, restricted: bool = True, nodes: list[str] | None = None) -> "Index":
        """Log one payload of an agent of its own; if restricted, with a key for the node of that name or `nodes`."""
        kind, content = payload if isinstance(payload, tuple) else (Kind.BLOCK, payload)
        self.log.append(kind, content)
        sender = name.encode().ljust(16, b"-")
        self.log.append(Kind.RECEIPT, receipt(self.log.next_number, sender, nodes or [name] if restricted else None))
        self.log.commit()
        self.follow()
        return self

    def follow(self) -> None:
        while self.database.next_number < self.log.next_number:
            before = self.database.next_number
            self.follower.step(self.log.next_number)
            assert self.database.next_number > before, "the position must move"

    def reopen(self, *, has_views: bool = True) -> None:
        """Load what is in the file; unless it has them, make the views as each start does."""
        self.follower.close()
        self.database.close()
        self._open(has_views=has_views)

    def sql(self, query: str) -> list[tuple[Any, ...]]:
        with tables_found(self.database.connection, query):
            return self.database.connection.execute(query).fetchall()

    def views(self) -> dict[str, list[str]]:
        """Return the contents of every view that users see, sorted."""
        return {name: contents_of(self.sql, name) for name in VIEWS}

    def close(self) -> None:
        self.follower.close()
        self.database.close()
        self.log.close()


def copy_of(index: Index, name: str) -> dict[str, list[str]]:
    """Return all views of another file."""
    with contextlib.closing(duckdb.connect(str(index.directory / name), read_only=True)) as connection:
        return {view: contents_of(lambda query: connection.execute(query).fetchall(), view) for view in VIEWS}
