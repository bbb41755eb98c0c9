"""Pieces on their way to a store: one directory each, complete and synced before it has its name.

CHIPLOG_DIR/collector/store/
  unconfirmed               the first record that was written since the store was last seen to have this log alone
  retired                   how far the log is published, if the store has retired it, until the log has another ID
  outage.json               the last time that the store was away
  published.json            how far this log is published, as the last piece that was committed left it
  pieces/<until>/           one piece: <table>.parquet and piece.json; <until> is the log record that ends it
"""

import json
import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from chiplog_collector.store.deletion_requests import DeletionRequests
from chiplog_schemas.atomic_file import atomic_write, sync_directory, sync_file
from chiplog_schemas.paths import ensure_private_dir

_DIGITS = 20  # of the largest record number, so that names sort as numbers do
_MANIFEST = "piece.json"
_UNFINISHED = ".new"
_DOOMED = ".published"
_log = logging.getLogger("chiplog.store")


@dataclass(frozen=True, slots=True)
class Piece:
    """What one stretch of the log adds to the tables of a store.

    Attributes:
        log: The ID of the log, 32 hex digits.
        after: The number of the last record of the piece before; -1 if there is none.
        until: The number of its last record.
        day: The day of receipt, YYYY-MM-DD, UTC.
        rows: The number of rows by table, of tables that have some.
        id: Its own ID: of a copied directory, another piece may end at the same record.
    """

    log: str
    after: int
    until: int
    day: str
    rows: dict[str, int]
    id: str = ""


@dataclass(frozen=True, slots=True)
class Published:
    """How far a log is published, as this directory knows it.

    Attributes:
        log: The ID of the log, 32 hex digits.
        url: The store.
        until: The record that ends the last piece of which each table was committed; -1 before the first.
        positions: The last record by table.
        is_foreign: True if the store has more of the log than this directory published. Then nothing is published until
            a rebuild has made flushes that end where the pieces in the store end.
    """

    log: str
    url: str
    until: int
    positions: dict[str, int]
    is_foreign: bool = False


@dataclass(frozen=True, slots=True)
class Outage:
    """A time in which a store could not be used.

    Attributes:
        id: Its own ID, 16 hex digits.
        is_over: True once the store is back.
        text: For people.
    """

    id: str
    is_over: bool
    text: str


class Outbox:
    """The pieces of a collector that wait for its publisher. Any method raises OSError."""

    def __init__(self, directory: Path) -> None:
        """Use the directory `store` of a collector; nothing is created until something is written."""
        self.directory = directory
        self.notes = directory / "published.json"  # see `published`
        self._pieces = directory / "pieces"
        self._outage = directory / "outage.json"
        self._retired = directory / "retired"
        self._unconfirmed = directory / "unconfirmed"

    def ends(self) -> list[int]:
        """Return the numbers of the records that end the waiting pieces, ascending."""
        try:
            names = os.listdir(self._pieces)
        except FileNotFoundError:
            return []
        return sorted(int(name) for name in names if name.isdecimal())

    def is_cutting(self) -> bool:
        """Return True if a piece is being made, or was when its process ended."""
        return (self._pieces / _UNFINISHED).exists()

    def size_bytes(self) -> int:
        """Return how many bytes wait."""
        return sum(_size_bytes(self._path(until)) for until in self.ends())

    def oldest_at(self) -> float | None:
        """Return when the oldest piece was cut, in seconds since 1970; None if none waits."""
        waiting = self.ends()
        try:
            return (self._path(waiting[0]) / _MANIFEST).stat().st_mtime if waiting else None
        except FileNotFoundError:
            return None  # the publisher has removed it since

    def add(self, write: Callable[[Path], Piece]) -> Piece:
        """Add a piece. write: makes its files in a directory and returns what they hold."""
        ensure_private_dir(self.directory)
        ensure_private_dir(self._pieces)
        directory = self._pieces / _UNFINISHED
        shutil.rmtree(directory, ignore_errors=True)  # of a process that was killed
        ensure_private_dir(directory)
        piece = write(directory)
        for path in directory.iterdir():
            sync_file(path)
        atomic_write(directory / _MANIFEST, json.dumps(asdict(piece)).encode(), durable=True)
        os.rename(directory, self._path(piece.until))  # safeguard: piece-complete-or-absent
        sync_directory(self._pieces)
        return piece

    def piece(self, until: int) -> Piece:
        """Return what a waiting piece holds."""
        path = self._path(until) / _MANIFEST
        try:
            return Piece(**json.loads(path.read_bytes()))
        except (ValueError, TypeError) as error:
            raise OSError(f"{path} is damaged; remove {path.parent}, it is cut again: {error}") from error

    def file(self, piece: Piece, table: str) -> Path:
        """Return the Parquet file of a table of a piece."""
        return self._path(piece.until) / f"{table}.parquet"

    def remove(self, piece: Piece) -> None:
        """Remove a piece that is published."""
        self._remove(piece.until)

    def _remove(self, until: int) -> None:
        path = self._path(until)
        doomed = self._pieces / _DOOMED
        shutil.rmtree(doomed, ignore_errors=True)  # of a process that was killed
        os.rename(path, doomed)  # at once: a piece without some of its files must not be found
        sync_directory(self._pieces)
        shutil.rmtree(doomed)

    def published(self) -> Published | None:
        """Return how far the log is published; None until the publisher has asked the store."""
        try:
            return Published(**json.loads(self.notes.read_bytes()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise OSError(f"{self.notes} is damaged; remove it and run chiplog rebuild: {error}") from error

    def set_published(self, published: Published) -> None:
        """Note how far the log is published."""
        ensure_private_dir(self.directory)
        atomic_write(self.notes, json.dumps(asdict(published)).encode(), durable=True)

    def note_unconfirmed(self, number: int) -> None:
        """Note that the store may have other records of these numbers from this one on. The first note counts."""
        if self.unconfirmed() is None:
            ensure_private_dir(self.directory)
            atomic_write(self._unconfirmed, str(number).encode(), durable=True)

    def unconfirmed(self) -> int | None:
        """Return that record; None if there is none, or the note is damaged."""
        try:
            return int(self._unconfirmed.read_text())
        except (OSError, ValueError):
            return None

    def confirm(self) -> None:
        """Note that the store has this log and no other."""
        self._unconfirmed.unlink(missing_ok=True)

    def note_retired(self, published: Published) -> None:
        """Note, for the receiver, that the store has retired a log, and how far that is published."""
        ensure_private_dir(self.directory)
        atomic_write(self._retired, json.dumps(asdict(published)).encode(), durable=True)

    def retired(self) -> bytes:
        """Return the ID of the log that the store has retired; empty if there is none, or the note is damaged."""
        published = self._retired_at()
        try:
            return b"" if published is None else bytes.fromhex(published.log)
        except (ValueError, TypeError):
            return b""

    def _retired_at(self) -> Published | None:
        try:
            return Published(**json.loads(self._retired.read_bytes()))
        except (OSError, ValueError, TypeError):
            return None  # the publisher notes it again

    def renew(self, log: bytes) -> None:
        """Continue as another log after what is published of the retired one; what waits is cut again."""
        retired = self._retired_at()
        if retired is not None:
            if self._published_log() in ("", retired.log):  # else the publisher has begun under the new ID
                self.set_published(replace(retired, log=log.hex()))
            # safeguard: own-deletions-not-repeated
            DeletionRequests(self.directory, log.hex()).pass_over(retired.log)
        for until in self.ends():
            self._remove(until)  # a damaged one too
        self._retired.unlink(missing_ok=True)

    def _published_log(self) -> str:
        """Return the ID of the log that was published last; empty if it is unknown. The note of that may be damaged."""
        try:
            published = self.published()
        except OSError:  # safeguard: damaged-note-renewed
            _log.warning("%s is damaged; it is written again as of the retired log", self.notes)
            return ""
        return "" if published is None else published.log

    def outage(self) -> Outage | None:
        """Return the last outage; None if there was none, or its note cannot be read."""
        try:
            return Outage(**json.loads(self._outage.read_bytes()))
        except (OSError, ValueError, TypeError):
            return None

    def set_outage(self, outage: Outage) -> None:
        """Note an outage, for the receiver."""
        ensure_private_dir(self.directory)
        atomic_write(self._outage, json.dumps(asdict(outage)).encode())

    def _path(self, until: int) -> Path:
        return self._pieces / f"{until:0{_DIGITS}d}"


def _size_bytes(directory: Path) -> int:
    try:
        return sum(path.stat().st_size for path in directory.iterdir())
    except FileNotFoundError:
        return 0  # the publisher has removed it since
