"""Read an export, and check all of it before anything is sent: its version, its digests, its columns, its files."""

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from chiplog.transfer.export_format import CONTENTS, FILES, FORMAT, PARQUET_FILES, RUN_FILE, VERSION
from chiplog.transfer.open_directory import OpenDirectory
from chiplog_schemas.limits import NAME_CHARS_MAX
from chiplog_schemas.query.duckdb_errors import foreign_path_reason
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
        content = self._read_json()
        self.run: dict[str, Any] = content["run"]
        self._tables: dict[str, dict[str, Any]] = content["tables"]
        self.n_points = int(self._tables.get("metrics.parquet", {}).get("rows", 0))
        self._resources = contextlib.ExitStack()
        try:
            self._opened = self._resources.enter_context(OpenDirectory(directory))
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
        except BaseException:
            self._resources.close()
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
        return self._opened.rows(f"{name}.parquet")

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

    def _error(self, reason: str, remedy: str = "export the run again") -> ExportError:
        return ExportError(f"{self.directory} cannot be imported: {reason}; {remedy}")

    def _read_json(self) -> dict[str, Any]:
        path = self.directory / RUN_FILE
        wrong = ExportError(f"{self.directory} is no export of chiplog: name a directory with {RUN_FILE}")
        try:
            with open(path, "rb") as file:
                content = json.loads(file.read(_JSON_BYTES_MAX))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise wrong from error
        except (OSError, ValueError) as error:
            raise self._error(f"{RUN_FILE} cannot be read: {error}") from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise wrong
        version = content.get("version")
        if type(version) is not int or version < 1:
            raise self._error(f"its version {version!r:.20} is no number")
        if version > VERSION:  # safeguard: newer-export-refused
            raise self._error(f"its version {version} is newer than {VERSION}", "install that release of chiplog here")
        shapes = {"run": dict, "tables": dict, "files": list, "absent_contents": dict}
        for name, kind in shapes.items():
            if not isinstance(content.get(name), kind):
                raise self._error(f"{RUN_FILE} lacks {name}")
        run_id = content["run"].get("run_id")
        if not isinstance(run_id, str) or not 0 < len(run_id) <= NAME_CHARS_MAX:
            raise self._error(f"run ID {run_id!r:.80} is none")
        return content

    def _check_table(self, name: str) -> None:
        """Verify the digest of a table, and its columns."""
        import duckdb

        expected = PARQUET_FILES.get(name.removesuffix(".parquet"))
        if expected is None or not name.endswith(".parquet"):
            raise self._error(f"{RUN_FILE} lists {name!r:.80}, which is no table of an export")
        try:
            with open(self.directory / name, "rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise self._error(f"{name} cannot be read: {error.strerror}") from error
        if digest != self._tables[name].get("sha256"):  # safeguard: damaged-table-refused
            raise self._error(f"{name} is damaged or was changed: its digest is not the one in {RUN_FILE}")
        try:
            described = self._local.execute(f"DESCRIBE FROM {self.source(name.removesuffix('.parquet'))}").fetchall()
        except duckdb.Error as error:
            raise self._error(f"{name} is no Parquet file: {str(error).partition(chr(10))[0]:.200}") from error
        found = {row[0]: row[1] for row in described}
        for column, kind in expected.items():
            if found.get(column) != kind:
                raise self._error(f"{name} has no column {column} of type {kind}")

    def _check_producers(self) -> None:
        """Check that each producer is one, that labels are of one run, and that each row names a producer."""
        query = f"SELECT producer, owner, stored FROM {self.source('producers')}"
        known = set()
        for producer, owner, stored in self.rows(query):
            if not _is_uuid(producer) or not (owner is None or _is_uuid(owner)):
                raise self._error(f"producer {producer!r:.40} is not 32 hex digits")
            if not stored:
                raise self._error(f"producer {producer} has no stored events")
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
        wanted = set()
        if self.has("saves"):
            query = f"SELECT DISTINCT sha256 FROM {self.source('saves')} WHERE stored_at IS NOT NULL"
            wanted = {str(digest) for (digest,) in self.rows(query)} - set(absent)
        for file in files:
            path, digest = (file.get(name) if isinstance(file, dict) else None for name in ("path", "sha256"))
            if not isinstance(path, str) or not isinstance(digest, str) or digest in found or digest in absent:
                continue
            if invalid_path_reason(path) is None and _has_digest(self.directory / FILES / path, digest):
                found[digest] = self.directory / FILES / path
        for digest in sorted(wanted - set(found)):
            if not _has_digest(self.directory / CONTENTS / digest, digest):  # safeguard: damaged-file-refused
                raise self._error(f"the saved file with SHA-256 {digest} is missing or damaged")
            found[digest] = self.directory / CONTENTS / digest
        return {digest: found[digest] for digest in sorted(wanted)}


def _is_uuid(value: Any) -> bool:
    return isinstance(value, str) and _UUID.fullmatch(value) is not None


def _has_digest(path: Path, digest: str) -> bool:
    try:
        if os.path.islink(path) or not path.is_file():
            return False
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == digest
    except OSError:
        return False
