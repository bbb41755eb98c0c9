"""Delta tables under a path or a bucket, and the only module that imports deltalake.

Exactly once: each commit carries the ID of the log and the table as its application, and as its version the number of
the log record that ends the piece. The handle that looks at the application's version also commits, so Delta refuses
the commit if another process has committed for this log since.
"""

import io
import json
import math
import os
import re
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeVar
from urllib.parse import unquote, urlsplit

import obstore
from deltalake import CommitProperties, DeltaTable, Field, PostCommitHookProperties, Schema, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.schema import ArrayType, PrimitiveType
from deltalake.transaction import AddAction, RemoveAction
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import ObjectStore, from_url

from chiplog_collector.store.parquet_files import columns_of, statistics
from chiplog_schemas.atomic_file import sync_directory, sync_file

TABLE_VERSION = 1  # of the tables' columns; only ever added to
MAINTENANCE = "chiplog/maintenance"  # the application of each commit that rewrites a table
_DELETED = "chiplog/deleted/{}"  # the application whose version is the piece up to which deletions are carried out
_PIECE = "{}/piece"  # the application whose version is the number of the last piece of a log
COMPACTED = "compacted-"  # begins the names of files that replaced pieces
KEPT_HOURS = 7 * 24  # for readers of older snapshots; Delta's own default
CHECKPOINT_COMMITS = 20  # a reader lists and reads the commits since the last checkpoint
_CONTENTS = "contents"
REQUESTS = ("put", "list", "get")  # kinds that cost
_CHECKPOINT_GETS = 25  # it reads the one before in parts
_HEARTBEATS = "heartbeats"
_RETIRED = "retired"
GONE_S = 7 * 24 * 3600.0  # without a heartbeat, a log is gone: longer than a holiday weekend without power
RETIRED_FROM = 1 << 62  # numbers of what others delete of a log that is gone: above those of its own records
_DAY = "day"  # of receipt: the partition of each table
_DESCRIBED = "chiplog, version {}"  # of a table: Delta refuses properties that it does not know
_ERROR_CHARS = 300
_CLOCKS_APART_S = 60.0  # of a host and its store, without a fault
_INSTANCE_METADATA = "169.254.169.254"  # where cloud machines get credentials
_ANSWER = re.compile(r"(?:<\?xml[^>]*>\s*)?<Error\b.*?(?:</Error>|$)")  # of S3: code, message, and IDs of the request
_STATUS = re.compile(r" in [\d.]+\w?s - Server returned non-2xx status code(?: ↳|:)")  # before "403 Forbidden"
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")  # delta-rs prints arrows between the causes of an error
T = TypeVar("T")
# Types of DuckDB as Delta has them.
_TYPES = {
    "BIGINT": "long",
    "BOOLEAN": "boolean",
    "DOUBLE": "double",
    "INTEGER": "integer",
    "TIMESTAMP WITH TIME ZONE": "timestamp",
    "VARCHAR": "string",
}


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A Parquet file of a table.

    Attributes:
        path: Below the table.
        size_bytes: Its size.
        n_rows: The number of its rows.
        day: The day of receipt, YYYY-MM-DD.
        ranges: The smallest and the largest value by column, of columns where both are known.
        with_nulls: The columns in which a value may be missing.
    """

    path: str
    size_bytes: int
    n_rows: int
    day: str
    ranges: Mapping[str, tuple[Any, Any]] = field(default_factory=dict, compare=False)
    with_nulls: frozenset[str] = field(default=frozenset(), compare=False)

    @property
    def log(self) -> str:
        """The log of all of its rows; empty if they are of several, or that is not known."""
        first, last = self.ranges.get("log", ("", ""))
        return first if first == last else ""

    def may_have(self, column: str, value: str | None) -> bool:
        """Return False only if no row has a value in a column."""
        if value is None:
            return column in self.with_nulls
        found = self.ranges.get(column)
        return found is None or found[0] <= value <= found[1]

    @property
    def is_piece(self) -> bool:
        """True if it came from one piece and has not been compacted."""
        return not self.path.rpartition("/")[2].startswith(COMPACTED)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What the publisher of a log last wrote: see `chiplog_collector.store.heartbeat`.

    Attributes:
        log: The ID of the log, 32 hex digits.
        written_at: When, by the clock of the store.
        mark: Another one after each write.
        content: What it says; empty if it cannot be read.
    """

    log: str
    written_at: datetime
    mark: str
    content: Mapping[str, Any]


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
        piece: The ID of the piece, which the name of its file begins with.
    """

    table: str
    path: Path
    day: str
    after: int
    until: int
    piece: str = ""


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
        self.versions: dict[str, int] = {}  # by table: the newest commit that is known here
        self.is_disk = url.startswith("file:")
        self._opened: ObjectStore | None = None
        self._ahead: timedelta | None = None  # the store's clock of this host's, which counts from its start
        # Those of Delta are estimated from what its calls make: it does not count them. A test compares.
        self.requests: Counter[str] = Counter()

    @property
    def path(self) -> str:
        """The directory of a store on this disk."""
        return str(_path_of(self.url))

    def forget_tables(self) -> None:
        """Read each table again the next time: an outage may have ended with another disk."""
        self._tables.clear()
        self.versions.clear()

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
        """Return the number of the last record of this log by table, of tables that have some of it.

        What others have deleted of it has none.
        """
        found = {}
        for name in tables:
            table = self._open(name)
            version = None if table is None else self._version(table, name)
            if version is not None and version < RETIRED_FROM:
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
            if not self.has_piece(addition.table, addition.piece):  # safeguard: equal-end-is-no-piece
                raise ForeignPositionError(
                    f"{self.url}/{addition.table} has another piece of this log that ends at record {version}"
                )
            if self.is_disk:  # a process committed it that was killed, perhaps before it synced
                os.sync()
            return False
        if version is not None and version > addition.after:  # safeguard: foreign-position-refused
            raise ForeignPositionError(
                f"{self.url}/{addition.table} has records of this log up to {version}, "
                f"and this directory published up to {addition.after}"
            )
        name = f"{_DAY}={addition.day}/{addition.piece}-{uuid.uuid4()}.parquet"
        app = self._app(addition.table)
        versions = {app: addition.until, _PIECE.format(app): _piece_number(addition.piece)}
        self._commit(table, addition.table, [self._upload(addition.table, name, addition.path)], versions)
        return True

    def has_piece(self, table: str, piece: str) -> bool:
        """Return True if a piece is the last of this log in a table, also after its file was compacted."""
        opened = self._open(table)
        if opened is None:
            return False
        # safeguard: compacted-piece-known
        return _try(lambda: opened.transaction_version(_PIECE.format(self._app(table)))) == _piece_number(piece)

    # -- files of a table --

    def snapshot(self, table: str) -> list[StoredFile]:
        """Return the files of a table as it is now; none if it does not exist."""
        opened = self._open(table)
        if opened is None:
            return []
        found = _try(lambda: opened.get_add_actions(flatten=True))
        columns = {name: found.column(name).to_pylist() for name in found.column_names}
        ranged = [name.removeprefix("min.") for name in columns if name.startswith("min.")]
        nulls = [name.removeprefix("null_count.") for name in columns if name.startswith("null_count.")]
        given = (columns[name] for name in ("path", "size_bytes", "num_records", f"partition.{_DAY}"))
        files = []
        for place, (path, size_bytes, n_rows, day) in enumerate(zip(*given, strict=True)):
            ranges = {name: (columns[f"min.{name}"][place], columns[f"max.{name}"][place]) for name in ranged}
            known = {name: found for name, found in ranges.items() if None not in found}
            with_nulls = frozenset(name for name in nulls if columns[f"null_count.{name}"][place] != 0)
            files.append(StoredFile(path, size_bytes, n_rows, str(day), known, with_nulls))
        return files

    def version(self, table: str) -> int:
        """Return the number of the newest commit of a table; -1 if it does not exist."""
        opened = self._open(table)
        return -1 if opened is None else opened.version()

    def fetch(self, table: str, file: StoredFile, target: Path) -> None:
        """Copy a file of a table to this disk. Raises OSError of that."""
        try:
            self._download(f"{table}/{file.path}", target)
        except FileNotFoundError as error:  # an object that is not there
            raise StoreError(_one_line(error)) from error

    def fetch_content(self, digest: str, target: Path) -> None:
        """Copy the content of a saved file to this disk.

        Raises:
            FileNotFoundError: The store does not have it.
            StoreError: The store is away.
            OSError: This disk refuses.
        """
        self._download(f"contents/{digest}", target)

    def _download(self, name: str, target: Path) -> None:
        self.requests["get"] += 1
        try:
            with target.open("wb") as output:
                for part in obstore.get(self._objects, name).stream():
                    output.write(part)
        except BaseError as error:
            raise StoreError(_one_line(error)) from error

    def fetch_all(self, table: str, files: Iterable[StoredFile], directory: Path) -> list[str]:
        """Copy files of a table to a directory on this disk; return their paths. Raises OSError of that."""
        paths = []
        for number, file in enumerate(files):
            paths.append(str(directory / f"{table}-{number}.parquet"))
            self.fetch(table, file, Path(paths[-1]))
        return paths

    def address_of(self, table: str, file: StoredFile) -> str:
        """Return where other programs find a file: a path on this disk, or an address."""
        address = f"{self._address(table)}/{file.path}"
        return str(_path_of(address)) if self.is_disk else address

    def replace(
        self,
        table: str,
        old: Sequence[StoredFile],
        new: Sequence[Path],
        *,
        is_change: bool = False,
        deleted: Mapping[str, int] | None = None,
    ) -> None:
        """Replace files of one day of a table by others, as one commit. Nothing else rewrites a table.

        Each such commit is of the application `maintenance`, with the next version: of two processes that replace
        files at once, Delta refuses one. Never call `optimize`, which adds the rows of both.

        Args:
            table: The table.
            old: The files, of the last snapshot.
            new: Their replacement, on this disk.
            is_change: True if rows are gone; else no reader of changes sees the commit.
            deleted: By log, the piece up to which its deletions are carried out with this commit.

        Raises:
            StoreError: The store is away, or the table has been rewritten since the snapshot.
        """
        opened = self._tables[table]  # the handle of the snapshot: a newer one would not see what is gone
        version = _try(lambda: opened.transaction_version(MAINTENANCE))
        if not {file.path for file in old} <= set(_try(lambda: opened.get_add_actions().column("path").to_pylist())):
            raise StoreError(f"{table} has been rewritten since; nothing is changed")  # safeguard: stale-list-refused
        now_ms = int(self.now().timestamp() * 1000)
        added = [
            self._upload(table, f"{_DAY}={old[0].day}/{COMPACTED}{uuid.uuid4()}.parquet", path, is_change=is_change)
            for path in new
        ]
        removed = [RemoveAction(file.path, is_change, now_ms, file.size_bytes, {_DAY: file.day}) for file in old]
        versions = {_DELETED.format(log): until for log, until in (deleted or {}).items()}
        versions[MAINTENANCE] = 0 if version is None else version + 1  # safeguard: one-maintenance-at-a-time
        self._commit(opened, table, [*added, *removed], versions)

    def deleted_until(self, table: str, log: str) -> int:
        """Return the piece of a log up to which its deletions are carried out in a table, as of the last snapshot.

        -1: none are.
        """
        version = _try(lambda: self._tables[table].transaction_version(_DELETED.format(log)))
        return -1 if version is None else version

    def position(self, table: str) -> int:
        """Return the last number of this log in a table, also of what others deleted in its place; -1: none."""
        opened = self._open(table)
        version = None if opened is None else self._version(opened, table)
        return -1 if version is None else version

    def vacuum(self, table: str) -> int:
        """Delete the commits that are in a checkpoint and older than 7 days, and the files that no later one names.

        Times are those of the store. A host whose clock is ahead leaves commits to others.

        Returns: The number of these files.
        """
        opened = self._open(table)
        if opened is None:
            return 0
        # Delta compares with the clock of this host.
        ahead_h = math.ceil(max(0.0, (datetime.now(UTC) - self.now()).total_seconds() - _CLOCKS_APART_S) / 3600.0)
        if not ahead_h:
            _try(opened.cleanup_metadata)  # safeguard: old-commits-removed
        kept_hours = KEPT_HOURS + ahead_h  # safeguard: wrong-clock-removes-nothing-early
        return len(_try(lambda: opened.vacuum(retention_hours=kept_hours, dry_run=False, full=True)))

    # -- contents --

    def put_content(self, digest: str, path: Path) -> bool:
        """Store the content of a saved file under its SHA-256, unless the store has it. Raises OSError of the file.

        Returns:
            True if the store had it for so long that a vacuum may remove it now: put it again once rows name it.
        """
        name, is_renewed = f"{_CONTENTS}/{digest}", False
        with path.open("rb") as source:
            try:
                self._put(name, source)
            except AlreadyExistsError:  # the same bytes: names are digests, and an object is complete or absent
                modified = _try(lambda: obstore.head(self._objects, name)["last_modified"])
                is_renewed = modified < self.kept_since() + timedelta(hours=KEPT_HOURS / 2)
            if is_renewed:  # safeguard: old-content-renewed
                source.seek(0)
                self._put(name, source, mode="overwrite")
        self._sync(_CONTENTS, [digest])
        return is_renewed

    def kept_since(self) -> datetime:
        """Return the time before which contents and files are old, by the clock of the store."""
        return self.now() - timedelta(hours=KEPT_HOURS)

    def old_contents(self, before: datetime) -> set[str]:
        """Return the SHA-256 of the contents that no publisher has put since a time."""
        listed = _try(lambda: [meta for page in obstore.list(self._objects, f"{_CONTENTS}/") for meta in page])
        return {meta["path"].rpartition("/")[2] for meta in listed if meta["last_modified"] < before}

    def remove_content(self, digest: str, before: datetime) -> bool:
        """Remove a content, unless a publisher has put it since that time. Return True if it was removed."""
        name = f"{_CONTENTS}/{digest}"
        modified = _try(lambda: obstore.head(self._objects, name)["last_modified"])
        if modified >= before:  # safeguard: renewed-content-stays
            return False
        _try(lambda: obstore.delete(self._objects, name))
        return True

    def kept_files(self, table: str) -> list[StoredFile]:
        """Return all files of a table that exist: those of the snapshot, and those of earlier ones until a vacuum."""
        listed = _try(lambda: [meta for page in obstore.list(self._objects, f"{table}/") for meta in page])
        names = [(meta["path"].partition("/")[2], meta["size"]) for meta in listed]
        return [StoredFile(name, size, 0, "") for name, size in names if name.startswith(f"{_DAY}=")]

    def now(self) -> datetime:
        """Return the time by the clock of the store: that of this host may be wrong by a year.

        It is asked once, on a disk each time: that is the clock of this host, which may be corrected.
        """
        if self._ahead is None or self.is_disk:
            name = f"probes/{uuid.uuid4()}"
            self._put(name, io.BytesIO(b"now"))
            try:
                modified = _try(lambda: obstore.head(self._objects, name)["last_modified"])
                self._ahead = modified - _since_start()
            finally:
                _try(lambda: obstore.delete(self._objects, name))
        return _since_start() + self._ahead

    def contents(self) -> tuple[int, int]:
        """Return number and bytes of the contents of saved files, in a listing of a thousand at a time."""
        sizes = _try(lambda: [meta["size"] for page in obstore.list(self._objects, f"{_CONTENTS}/") for meta in page])
        self.requests["list"] += 1 + len(sizes) // 1000
        return len(sizes), sum(sizes)

    # -- heartbeats --

    def put_heartbeat(self, content: Mapping[str, Any]) -> None:
        """Replace the heartbeat of this log."""
        source = io.BytesIO(json.dumps(content).encode())
        self.requests["put"] += 1
        _try(lambda: obstore.put(self._objects, f"{_HEARTBEATS}/{self._log}", source, mode="overwrite"))

    def heartbeats(self, known: Iterable[Heartbeat] = ()) -> list[Heartbeat]:
        """Return the heartbeats of all logs, in one listing; those that are not among the known ones are then read."""
        self.requests["list"] += 1
        before = {(beat.log, beat.mark): beat for beat in known}
        listed = _try(lambda: [meta for page in obstore.list(self._objects, f"{_HEARTBEATS}/") for meta in page])
        found = []
        for meta in sorted(listed, key=lambda meta: meta["path"]):
            log, written_at = meta["path"].rpartition("/")[2], meta["last_modified"]
            mark = meta["e_tag"] or written_at.isoformat()
            found.append(before.get((log, mark)) or Heartbeat(log, written_at, mark, self._heartbeat(log)))
        return found

    def _heartbeat(self, log: str) -> Mapping[str, Any]:
        self.requests["get"] += 1
        data = _try(lambda: bytes(obstore.get(self._objects, f"{_HEARTBEATS}/{log}").bytes()))
        try:
            content = json.loads(data)
        except ValueError:
            return {}
        return content if isinstance(content, dict) else {}

    # -- logs that are gone --

    def retire(self, log: str) -> bool:
        """Note that a log is gone: others carry out its deletions, and it continues under a new ID if it returns.

        Returns:
            False if that was noted before.
        """
        try:
            self._put(f"{_RETIRED}/{log}", io.BytesIO(b""))
        except AlreadyExistsError:
            return False
        return True

    def retired(self) -> set[str]:
        """Return the IDs of the logs that are retired, in one listing."""
        self.requests["list"] += 1
        listed = _try(lambda: [meta for page in obstore.list(self._objects, f"{_RETIRED}/") for meta in page])
        return {meta["path"].rpartition("/")[2] for meta in listed}

    # -- tables --

    @property
    def _objects(self) -> ObjectStore:
        if self._opened is None:
            self._opened = _try(lambda: from_url(self.url, mkdir=True) if self.is_disk else from_url(self.url))
        return self._opened

    def _commit(
        self, table: DeltaTable, name: str, actions: list[AddAction | RemoveAction], versions: Mapping[str, int]
    ) -> None:
        """Commit by the handle that has looked at the versions of the applications, and make it durable."""
        before, added = table.version(), [action.path for action in actions if isinstance(action, AddAction)]
        transactions = [Transaction(app, version, int(time.time() * 1000)) for app, version in versions.items()]
        _try(
            lambda: table.create_write_transaction(
                actions,
                "append",
                table.schema(),
                [_DAY],
                commit_properties=CommitProperties(app_transactions=transactions),
                # Else each commit lists all commits of 7 days to find older ones: `vacuum` does that.
                post_commithook_properties=PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False),
            )
        )
        self.requests.update(put=1, list=2, get=2)
        if (before + 2) % CHECKPOINT_COMMITS == 0:
            self.requests.update(put=2, list=1, get=_CHECKPOINT_GETS)
        if self.is_disk:
            _try(table.update_incremental)
            self._sync(name, added, range(before + 1, table.version() + 1))
        self.versions[name] = max(table.version(), before + 1)

    def _version(self, table: DeltaTable, name: str) -> int | None:
        return _try(lambda: table.transaction_version(self._app(name)))

    def _open(self, name: str) -> DeltaTable | None:
        """Return the table as it is now; None if it does not exist yet."""
        table = self._tables.get(name)
        self.requests["list"] += 1
        try:
            if table is None:
                table = DeltaTable(self._address(name))
                self._check_version(table, name)
                self._tables[name] = table
            else:
                table.update_incremental()
            self.versions[name] = table.version()
            self.requests["get"] += 1 + table.version() % CHECKPOINT_COMMITS  # the commits since the checkpoint
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as error:
            raise StoreError(_one_line(error)) from error
        return table

    def _check_version(self, table: DeltaTable, name: str) -> None:
        described = re.fullmatch(_DESCRIBED.format(r"(\d+)"), table.metadata().description or "")
        if described is None:
            raise StoreError(f"{self.url}/{name} is a table of another program; give chiplog a folder of its own")
        if int(described[1]) > TABLE_VERSION:
            raise StoreError(f"{self.url}/{name} is of a newer chiplog (version {described[1]}); upgrade this one")

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

    def _put(self, name: str, source: BinaryIO, mode: Literal["create", "overwrite"] = "create") -> None:
        """Create an object, or replace it. Raises AlreadyExistsError, StoreError."""
        try:
            self.requests["put"] += 1
            obstore.put(self._objects, name, source, mode=mode)
        except AlreadyExistsError:
            raise
        except (BaseError, OSError, ValueError) as error:
            raise StoreError(_one_line(error)) from error

    def _upload(self, table: str, name: str, path: Path, *, is_change: bool = True) -> AddAction:
        """Copy a file under a new random name, and describe it."""
        with path.open("rb") as source:
            self._put(f"{table}/{name}", source)
        day = name.partition("/")[0].removeprefix(f"{_DAY}=")
        noted = json.dumps(statistics(path))
        return AddAction(name, path.stat().st_size, {_DAY: day}, int(time.time() * 1000), is_change, noted)

    def _app(self, table: str) -> str:
        return f"chiplog/{self._log}/{table}"

    def _address(self, name: str) -> str:
        return f"{self.url}/{name}"

    def _sync(self, table: str, names: Sequence[str], versions: Iterable[int] = ()) -> None:
        """Make files and commits of a table durable, on a disk: then the outbox may forget the piece."""
        if not self.is_disk:
            return
        folder = _path_of(self._address(table))
        commits = [f"_delta_log/{version:020d}.json" for version in versions]
        try:
            for path in [folder / name for name in (*names, *commits)]:  # safeguard: published-file-synced
                sync_file(path)
                sync_directory(path.parent)
        except OSError as error:
            raise StoreError(f"{folder} cannot be synced: {error.strerror}") from error


def _since_start() -> datetime:
    """Return a time that no correction of this host's clock changes, and that runs while the host is suspended."""
    return datetime.fromtimestamp(time.clock_gettime(time.CLOCK_BOOTTIME), UTC)


def _piece_number(piece: str) -> int:
    """Return the ID of a piece as Delta's versions are: below 2^63."""
    return int(piece or "0", 16) >> 1


def _path_of(address: str) -> Path:
    """Return the path that an address on this disk names."""
    return Path(unquote(urlsplit(address).path))


def _schema_of(path: Path) -> Schema:
    """Return the columns of a table: those of a file of it, and its partition."""
    fields = [Field(name, _delta_type(kind)) for name, kind in columns_of(path).items()]
    return Schema([*fields, Field(_DAY, PrimitiveType("date"))])


def _delta_type(kind: str) -> PrimitiveType | ArrayType:
    if kind.endswith("[]"):
        return ArrayType(_delta_type(kind.removesuffix("[]")))
    return PrimitiveType(_TYPES[kind])


def _try(call: Callable[[], T]) -> T:
    """Call Delta; raise its errors as StoreError."""
    try:
        return call()
    except (StoreError, ForeignPositionError):
        raise
    except (DeltaError, BaseError, OSError, ValueError) as error:
        raise StoreError(_one_line(error)) from error


def _one_line(error: BaseException) -> str:
    text = " ".join(_COLOURS.sub("", str(error)).split()).partition(" Debug source")[0]
    text = _ANSWER.sub(_code_and_message, _STATUS.sub(":", text))[:_ERROR_CHARS]
    if _INSTANCE_METADATA in text or "IMDS" in text:  # the last of the provider's usual places
        return f"no credentials are found: set AWS_ACCESS_KEY_ID, or what the provider names ({text})"
    return text


def _code_and_message(answer: "re.Match[str]") -> str:
    """Return code and message of an answer of S3, which is a page of XML."""
    found = [re.search(f"<{name}>(.*?)</{name}>", answer[0]) for name in ("Code", "Message")]
    return ", ".join(part[1] for part in found if part) or answer[0]
