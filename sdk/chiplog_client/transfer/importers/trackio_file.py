"""Runs in Trackio's SQLite file of a project, with the media and artifacts in the folders beside it."""

import json
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from chiplog.media.table import Table
from chiplog.values.media_value import MediaError
from chiplog_client.transfer.importers import sqlite_file
from chiplog_client.transfer.importers.formats import Options
from chiplog_client.transfer.importers.imported_run import (
    Config,
    HistogramOf,
    ImportedRun,
    ImporterError,
    MediaOf,
    Notice,
    Part,
    PointBuffer,
    SavedFile,
    SystemSample,
    Text,
    Unmapped,
    run_id_of_path,
)

_TABLES = frozenset({"metrics", "configs"})
_COLUMNS = frozenset({"run_name", "timestamp", "step", "metrics"})  # of `metrics`, since the first release
_NUMBERS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}  # as JSON texts there
_LEVELS = {"warn": "warning"}  # others have the same names
_MEDIA = {f"trackio.{kind}": kind for kind in ("image", "video", "audio", "html", "object3d")}


def is_one(path: Path) -> bool:
    """Return True if a path is a database of Trackio."""
    return path.is_file() and sqlite_file.has_tables(path, _TABLES)


def read(path: Path, options: Options) -> Iterator[Part]:
    """Yield the runs of a project."""
    with sqlite_file.opened(path) as connection:
        store = _Store(path, connection)
        store.check()
        runs = store.runs()
        if not runs:
            raise ImporterError(f"{path} has no run of Trackio; name the file of another project")
        for run in runs:
            yield from store.parts_of(*run)
        yield from store.unmapped()


class _Store:
    """An open database. Earlier releases know runs by name only, and lack some tables."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._path = path
        self._connection = connection
        self._tables = {
            name: {column["name"] for column in connection.execute(f"PRAGMA table_info({name})")}
            for name in ("metrics", "configs", "system_metrics", "alerts", "artifact_versions", "traces")
        }
        self._id = "run_id" if "run_id" in self._tables["metrics"] else "run_name"
        self._media = path.resolve().parent / "media"

    def check(self) -> None:
        """Raise ImporterError for a database of another layout."""
        if missing := _COLUMNS - self._tables["metrics"]:
            raise ImporterError(
                f"{self._path}: its table metrics has no column {min(missing)}, so that it is not Trackio's or is "
                "newer; update chiplog"
            )

    def runs(self) -> list[tuple[str, str]]:
        """Return ID and name of each run, in the order of their first rows."""
        found: dict[str, str] = {}
        for table in ("configs", "metrics", "system_metrics", "alerts"):
            if self._id in self._tables[table]:
                query = f"SELECT {self._id} AS id, run_name FROM {table} GROUP BY 1 ORDER BY min(rowid)"
                for row in self._connection.execute(query):
                    found.setdefault(row["id"], row["run_name"])
        return list(found.items())

    def parts_of(self, run: str, name: str) -> Iterator[Part]:
        """Yield a run and its parts."""
        config, created_us = self._config(run)
        yield ImportedRun(
            source=self._path,
            run_id=run if self._id == "run_id" else run_id_of_path("trackio", self._path / run),
            project=self._path.stem,
            name=name,
            group=config.get("_Group") or None,
            created_us=created_us,
            of_path=frozenset({"project"}),
        )
        if config and created_us is not None:
            yield Config(values=config, ts=created_us)
        yield from self._metrics(run)
        for row in self._rows("system_metrics", run):
            values = _flat(row.json("metrics"))
            numbers = {key: number for key, value in values if (number := _number(value)) is not None}
            if numbers:
                yield SystemSample(ts=row.us("timestamp"), values=numbers)
        for row in self._rows("alerts", run):
            body = {name: row[name] for name in ("text", "step") if row[name] is not None}
            level = _LEVELS.get(row["level"], row["level"])
            yield Notice(kind="alert", level=level, message=row["title"], ts=row.us("timestamp"), body=body)
        yield from self._artifacts(run)

    def unmapped(self) -> Iterator[Unmapped]:
        """Yield what belongs to no run, or has no place."""
        if self._tables["traces"]:
            [n_traces] = self._connection.execute("SELECT count(*) FROM traces").fetchone()
            if n_traces:
                yield Unmapped(what="traces", count=n_traces)
        files = self._media / self._path.stem / "files"
        n_files = sum(path.is_file() for path in files.rglob("*"))
        if n_files:
            yield Unmapped(what="files of the project, which are no run's", count=n_files, example=str(files))

    def _rows(self, table: str, run: str) -> Iterator["_Row"]:
        if self._id in self._tables[table]:
            query = f"SELECT rowid AS rowid, * FROM {table} WHERE {self._id} = ? ORDER BY rowid"
            for row in self._connection.execute(query, [run]):
                yield _Row(dict(row), f"{self._path}: table {table}, row {row['rowid']}")

    def _config(self, run: str) -> tuple[dict[str, Any], int | None]:
        for row in self._rows("configs", run):
            config = row.json("config")
            return config, row.us("created_at")
        return {}, None

    def _metrics(self, run: str) -> Iterator[Part]:
        points = PointBuffer()
        for row in self._rows("metrics", run):
            step, ts = row.int("step"), row.us("timestamp")
            numbers: dict[str, float] = {}
            for key, value in _flat(row.json("metrics")):
                number = _number(value)
                if number is not None:
                    numbers[key] = number
                elif value is not None:
                    try:
                        yield from self._other(key, step, ts, value)
                    except (KeyError, TypeError, ValueError, AttributeError, MediaError) as error:
                        yield Unmapped(what="values that cannot be read", example=f"{key} at step {step}: {error}")
            yield from points.add(step, ts, numbers)
        yield from points.flush()

    def _other(self, key: str, step: int, ts: int, value: Any) -> Iterator[Part]:
        """Yield the part for a value that is not a number."""
        kind = value.get("_type") if isinstance(value, dict) else None
        if isinstance(value, str) or kind == "trackio.markdown":
            yield Text(key=key, step=step, ts=ts, value=value if isinstance(value, str) else str(value["_value"]))
        elif kind == "trackio.histogram":
            yield HistogramOf(key=key, step=step, ts=ts, edges=value["bins"], counts=value["values"])
        elif kind == "trackio.table":
            content = _table(value["_value"]).to_content()
            metadata = content.metadata
            yield MediaOf(key=key, step=step, ts=ts, kind="table", content=content.data, metadata=metadata)
        elif kind in _MEDIA:
            file = self._media / str(value["file_path"])
            if not file.resolve().is_relative_to(self._media.resolve()):  # safeguard: imported-media-below-their-folder
                yield Unmapped(what="media outside of the folder of media", example=str(file))
                return
            metadata = {"format": file.suffix.lstrip(".").lower()}
            metadata |= {"caption": value["caption"]} if value.get("caption") else {}
            yield MediaOf(key=key, step=step, ts=ts, kind=_MEDIA[kind], content=file, metadata=metadata)
        else:
            yield Unmapped(what=f"values of type {kind or type(value).__name__}", example=key)

    def _artifacts(self, run: str) -> Iterator[Part]:
        """Yield the files of the artifact versions that a run made, as files of the run."""
        if "producer_run_id" not in self._tables["artifact_versions"]:
            return
        query = (
            "SELECT v.id, a.name, v.version, v.manifest, v.created_at FROM artifact_versions v "
            "JOIN artifacts a ON a.id = v.artifact_id WHERE v.producer_run_id = ? ORDER BY v.id"
        )
        blobs = self._path.resolve().parent / "artifacts" / self._path.stem / "blobs" / "sha256"
        for found in self._connection.execute(query, [run]):
            row = _Row(dict(found), f"{self._path}: table artifact_versions, row {found['id']}")
            for entry in row.json("manifest", list):
                digest = str(entry.get("digest", ""))
                path = f"artifacts/{row['name']}/v{row['version']}/{entry.get('path', '')}"
                if digest.isalnum():
                    yield SavedFile(path=path, content=blobs / digest[:2] / digest, ts=row.us("created_at"))
                else:
                    yield Unmapped(what="references in artifacts", example=path)


class _Row(dict[str, Any]):
    """A row by column. place: for messages."""

    def __init__(self, values: dict[str, Any], place: str) -> None:
        super().__init__(values)
        self._place = place

    def json(self, column: str, kind: type = dict) -> Any:
        """Return the JSON of a column. Raises ImporterError."""
        try:
            value = json.loads(self[column])
        except (ValueError, TypeError) as error:
            raise self._error(column, str(error)) from error
        if not isinstance(value, kind):
            raise self._error(column, f"it is a JSON {type(value).__name__}")
        return value

    def us(self, column: str) -> int:
        """Return a time in ISO 8601, which is UTC without a zone, in microseconds. Raises ImporterError."""
        try:
            time = datetime.fromisoformat(self[column])
        except (ValueError, TypeError) as error:
            raise self._error(column, str(error)) from error
        return round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1_000_000)

    def int(self, column: str) -> int:
        """Return a whole number. Raises ImporterError."""
        try:
            return int(self[column])
        except (ValueError, TypeError) as error:
            raise self._error(column, str(error)) from error

    def _error(self, column: str, reason: str) -> ImporterError:
        return ImporterError(
            f"{self._place}: {column} cannot be read: {reason:.200}; repair or delete the row in a copy"
        )


def _flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield values by key, those of nested maps with the keys joined by `/`."""
    for key, value in values.items():
        if isinstance(value, dict) and "_type" not in value:
            yield from _flat(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", value


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else _NUMBERS.get(value) if isinstance(value, str) else None


def _table(rows: list[dict[str, Any]]) -> Table:
    columns = list(rows[0]) if rows else []
    return Table(columns, [[_cell(row.get(column)) for column in columns] for row in rows])


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict | list) else value
