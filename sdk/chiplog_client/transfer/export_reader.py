"""Read an export, and check all of it before anything is sent: its version, its digests, its columns, its files."""

import contextlib
import hashlib
import json
import re
import struct
from collections.abc import Iterator, Sequence
from io import BufferedReader
from pathlib import Path
from typing import Any

from chiplog_client.transfer.export_format import (
    CONTENTS,
    EXPORTED_NAMES,
    FILES,
    FORMAT,
    LATER_COLUMNS,
    OF_CONTENTS,
    OPTIONAL_COLUMNS,
    OPTIONAL_COLUMNS_OF_TABLES,
    PARQUET_FILES,
    REQUIRED_OF_PRODUCERS,
    RUN_FILE,
    VERSION,
)
from chiplog_client.transfer.open_directory import OpenDirectory
from chiplog_schemas.codec import CodecError, pack
from chiplog_schemas.limits import NAME_CHARS_MAX, SEQ_END
from chiplog_schemas.model.import_event import RUN_FIELDS
from chiplog_schemas.query.duckdb_errors import foreign_path_reason
from chiplog_schemas.query.query_messages import one_line
from chiplog_schemas.storage.content_files import invalid_path_reason

_MEMORY_BYTES = 512 << 20  # of DuckDB: larger sorts spill
_JSON_BYTES_MAX = 256 << 20  # of run.json: 10,000 labels take 5 MB
_FETCHED_ROWS = 100_000
_UUID = re.compile("[0-9a-f]{32}")


class ExportError(Exception):
    """A directory that is no export, or a damaged or newer one. The text names it, and the remedy."""


class ExportReader:
    """A checked export. Use it as a context manager.

    Attributes:
        run: The row of `runs`, with the columns that decide the primary.
        contents: Where the saved files are, by digest.
        n_points: Rows of the numbers.
    """

    def __init__(self, directory: Path, scratch: Path) -> None:
        """Read `run.json` and check the directory. Raises ExportError.

        directory: The export. scratch: An empty directory for what does not fit into memory.
        """
        import duckdb

        self.directory = directory
        self._lacking: dict[str, frozenset[str]] = {}  # columns that an export of an earlier version lacks, by table
        self._resources = contextlib.ExitStack()
        try:
            try:
                self._open_directory = self._resources.enter_context(OpenDirectory(directory))
            except (FileNotFoundError, NotADirectoryError) as error:
                raise self._no_export() from error
            content = self._read_json()
            self.run: dict[str, Any] = content["run"]
            self._tables: dict[str, dict[str, Any]] = content["tables"]
            self.n_points = self._tables.get("metrics.parquet", {}).get("rows", 0)
            rows = scratch / "rows.duckdb"
            if reason := foreign_path_reason(rows):
                raise self._error(reason, "set TMPDIR to another directory")
            spilled = self._resources.enter_context(OpenDirectory(scratch)).place("spilled")
            self._local = self._resources.enter_context(
                duckdb.connect(
                    str(rows.absolute()),
                    config={"memory_limit": f"{_MEMORY_BYTES >> 20}MiB", "temp_directory": spilled},
                )
            )
            self._local.execute("SET TimeZone = 'UTC'")
            for name in self._tables:
                self._check_table(name)
            if "producers.parquet" not in self._tables:
                raise self._error("it has no producers.parquet")
            self._check_producers()
            self.contents = self._check_files(content["files"], content["absent_contents"])
        except BaseException as error:
            self._resources.close()
            if isinstance(error, OSError | duckdb.Error):
                raise self._error(f"{error}".partition("\n")[0], "check the disk, and TMPDIR") from error
            raise

    def __enter__(self) -> "ExportReader":
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    def has(self, name: str) -> bool:
        """Return True if the export has rows of this table."""
        return f"{name}.parquet" in self._tables

    def source(self, name: str) -> str:
        """Return the rows of a table's file in SQL."""
        rows = self._open_directory.rows(f"{name}.parquet")
        added = "".join(f", NULL::{PARQUET_FILES[name][column]} AS {column}" for column in self._lacking.get(name, ()))
        return f"(SELECT *{added} FROM {rows})" if added else rows

    def execute(self, statement: str, values: Sequence[Any] = ()) -> None:
        """Run a statement in the database of this reader."""
        self._local.execute(statement, list(values))

    def rows(self, query: str, values: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query, some at a time. Several may be read in turns."""
        cursor = self._local.cursor()
        try:
            cursor.execute(query, list(values))
            while rows := cursor.fetchmany(_FETCHED_ROWS):
                yield from rows
        finally:
            cursor.close()

    def table_rows(self, table: str, columns: str) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a table of this database in their order. The whole result would not fit into memory."""
        n_rows = next(self.rows(f"SELECT count(*) FROM {table}"))[0]
        query = f"SELECT {columns} FROM {table} WHERE rowid >= ? AND rowid < ? ORDER BY rowid"
        for first in range(0, n_rows, _FETCHED_ROWS):
            yield from self.rows(query, [first, first + _FETCHED_ROWS])

    def open_saved(self, path: Path) -> BufferedReader:
        """Open a saved file of `contents`. Raises OSError."""
        return self._open_directory.open(str(path.relative_to(self.directory)))

    @contextlib.contextmanager
    def naming(self, name: str) -> Iterator[None]:
        """Raise ExportError, which names the table's file, for rows that cannot be read or encoded."""
        import duckdb

        try:
            yield
        except (
            duckdb.Error,
            ValueError,
            TypeError,
            AttributeError,
            ArithmeticError,
            struct.error,
            CodecError,
        ) as error:
            raise self._error(f"{name}.parquet has rows that no run has: {one_line(str(error)):.200}") from error

    def _no_export(self) -> ExportError:
        return ExportError(f"{self.directory} is no export of chiplog: name a directory with {RUN_FILE}")

    def _error(self, reason: str, remedy: str = "export the run again") -> ExportError:
        return ExportError(f"{self.directory} cannot be imported: {reason}; {remedy}")

    def _read_json(self) -> dict[str, Any]:
        try:
            with self._open_directory.open(RUN_FILE) as file:
                content = json.loads(file.read(_JSON_BYTES_MAX))
        except FileNotFoundError as error:
            raise self._no_export() from error
        except (OSError, ValueError, RecursionError) as error:
            raise self._error(f"{RUN_FILE} cannot be read: {_reason(error)}") from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise self._no_export()
        version = content.get("version")
        if type(version) is not int or version < 1:
            raise self._error(f"its version {version!r:.20} is no number")
        if version > VERSION:  # safeguard: newer-export-refused
            raise self._error(f"its version {version} is newer than {VERSION}", "install that release of chiplog here")
        shapes = {"run": dict, "tables": dict, "files": list, "absent_contents": dict}
        for name, kind in shapes.items():
            if not isinstance(content.get(name), kind):
                raise self._error(f"{RUN_FILE} lacks {name}")
        self._check_run(content["run"])
        for name, table in content["tables"].items():
            if name not in [f"{known}.parquet" for known in PARQUET_FILES]:
                raise self._error(f"{RUN_FILE} lists {name!r:.80}, which is no table of an export")
            if not isinstance(table, dict) or type(table.get("rows")) is not int:
                raise self._error(f"{RUN_FILE} has {table!r:.80} for {name!r:.80}, without a number of rows")
        return content

    def _check_run(self, run: dict[str, Any]) -> None:
        run_id = run.get("run_id")
        if not isinstance(run_id, str) or not 0 < len(run_id) <= NAME_CHARS_MAX:
            raise self._error(f"{RUN_FILE}: run ID {run_id!r:.80} is none")
        for name, kind in RUN_FIELDS.items():
            name = EXPORTED_NAMES.get(name, name)
            value = run.get(name)
            try:
                if value is None or (isinstance(value, kind) and type(value) is not bool):
                    pack(value)
                    continue
            except CodecError:
                pass  # of a text with half a character, of a number out of range
            raise self._error(f"{RUN_FILE} has {value!r:.80} for the run's {name}")

    def _check_table(self, name: str) -> None:
        """Verify the digest of a table, and its columns."""
        import duckdb

        table = name.removesuffix(".parquet")
        expected = PARQUET_FILES[table]
        try:
            with self._open_directory.open(name) as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise self._error(f"{name} cannot be read: {_reason(error)}") from error
        if digest != self._tables[name].get("sha256"):  # safeguard: damaged-table-refused
            raise self._error(f"{name} is damaged or was changed: its digest is not the one in {RUN_FILE}")
        try:
            described = self._local.execute(f"DESCRIBE FROM {self.source(table)}").fetchall()
        except duckdb.Error as error:
            raise self._error(f"{name} is no Parquet file: {str(error).partition(chr(10))[0]:.200}") from error
        found = {row[0]: row[1] for row in described}
        self._lacking[table] = LATER_COLUMNS.get(table, frozenset()) - found.keys()
        expected = {column: kind for column, kind in expected.items() if column not in self._lacking[table]}
        for column, kind in expected.items():
            if found.get(column) != kind:
                raise self._error(f"{name} has no column {column} of type {kind}")
        self._check_values(name, expected)

    def _check_values(self, name: str, columns: dict[str, str]) -> None:
        """Check that no value is missing that an event needs, and that times and seqs are ones."""
        table = name.removesuffix(".parquet")
        optional = OPTIONAL_COLUMNS | OPTIONAL_COLUMNS_OF_TABLES.get(table, frozenset())
        required = REQUIRED_OF_PRODUCERS if table == "producers" else columns.keys() - optional
        wrong = [f"{column} IS NULL" for column in sorted(required)]
        wrong += [f"NOT isfinite({column})" for column, kind in columns.items() if kind == "TIMESTAMP"]
        # The index leaves a producer out whose seqs no process reaches.
        wrong += ["seq < 0", f"seq >= {SEQ_END}"] if "seq" in columns else []
        wrong += [f"NOT json_valid({column})" for column in ("hashes", "metadata") if column in columns]
        wrong += [
            f"length({column}) <> 64 OR ({column} IS NOT NULL AND try(unhex({column})) IS NULL)"
            for column in ("sha256", "digest")
            if column in columns
        ]
        with self.naming(table):
            counts = ", ".join(f"count(*) FILTER ({condition})" for condition in wrong)
            found = next(self.rows(f"SELECT {counts} FROM {self.source(table)}")) if wrong else ()
        for condition, n_rows in zip(wrong, found, strict=True):
            if n_rows:  # safeguard: impossible-rows-refused
                raise self._error(f"{name} has {n_rows} rows that no run has: {condition}")

    def _check_producers(self) -> None:
        """Check that each producer is one, that labels are of one run, and that each row names a producer."""
        query = f"SELECT producer, owner, stored FROM {self.source('producers')}"
        known = set()
        for producer, owner, stored in self.rows(query):
            if producer in known:
                raise self._error(f"producers.parquet has producer {producer} twice")
            if not _is_uuid(producer) or not (owner is None or _is_uuid(owner)):
                raise self._error(f"producers.parquet: producer {producer!r:.40} is not 32 hex digits")
            if not stored:
                raise self._error(f"producers.parquet: producer {producer} has no stored events")
            if not _are_ascending(stored):
                raise self._error(f"producers.parquet: the stored events of {producer} are no ranges")
            known.add(producer)
        for name in self._tables:
            columns = PARQUET_FILES[name.removesuffix(".parquet")]
            if "producer" in columns and name not in ("producers.parquet", "events.parquet"):
                query = f"SELECT DISTINCT producer FROM {self.source(name.removesuffix('.parquet'))}"
                if unknown := {producer for (producer,) in self.rows(query)} - known:
                    raise self._error(f"{name} has rows of {min(map(str, unknown))!r:.40}, which no producer is")

    def _check_files(self, files: list[Any], absent: dict[str, Any]) -> dict[str, Path]:
        """Verify the saved files, and return where each content is."""
        found: dict[str, Path] = {}
        reasons: dict[str, list[str]] = {}
        wanted = set()
        for name in filter(self.has, OF_CONTENTS):
            query = f"SELECT DISTINCT sha256 FROM {self.source(name)} WHERE stored_at IS NOT NULL"
            wanted |= {str(digest) for (digest,) in self.rows(query)} - set(absent)
        for file in files:
            path, digest = (file.get(name) if isinstance(file, dict) else None for name in ("path", "sha256"))
            if not isinstance(path, str) or not isinstance(digest, str) or digest in found or digest in absent:
                continue
            reason = invalid_path_reason(path) or self._digest_reason(f"{FILES}/{path}", digest)
            if reason is None:
                found[digest] = self.directory / FILES / path
            else:
                reasons.setdefault(digest, []).append(f"{FILES}/{path} ({reason})")
        for digest in sorted(wanted - set(found)):
            reason = self._digest_reason(f"{CONTENTS}/{digest}", digest)
            if reason is not None:  # safeguard: damaged-file-refused
                where = " and ".join([*reasons.get(digest, []), f"{CONTENTS}/{digest} ({reason})"])
                raise self._error(f"a file is missing or damaged: {where}")
            found[digest] = self.directory / CONTENTS / digest
        return {digest: found[digest] for digest in sorted(wanted)}

    def _digest_reason(self, name: str, digest: str) -> str | None:
        """Return why a file does not hold a content, or None if it does."""
        try:
            with self._open_directory.open(name) as file:
                is_same = hashlib.file_digest(file, "sha256").hexdigest() == digest
        except OSError as error:
            return _reason(error)
        return None if is_same else "another SHA-256"


def _is_uuid(value: Any) -> bool:
    return isinstance(value, str) and _UUID.fullmatch(value) is not None


def _are_ascending(ranges: list[dict[str, Any]]) -> bool:
    """Return True if closed ranges of seqs follow each other."""
    end = -1
    for range_ in ranges:
        first, last = range_.values() if range_ is not None else (None, None)
        if first is None or last is None or not end < first <= last < SEQ_END:
            return False
        end = last
    return True


def _reason(error: Exception) -> str:
    return one_line((error.strerror or str(error)) if isinstance(error, OSError) else str(error))
