"""Write the export of a run: each table in chunks, the saved files, and `run.json` last, in a new directory."""

import contextlib
import errno
import hashlib
import itertools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from chiplog_client.client import Client, QueryError
from chiplog_client.results.result import Result
from chiplog_client.transfer.chunks import CHUNK_ROWS, TOO_MUCH, ChunkReader
from chiplog_client.transfer.export_format import (
    CONTENTS,
    FILES,
    FORMAT,
    GPU_EVENT_COLUMNS,
    PRODUCER_COLUMNS,
    RUN_FILE,
    SYSTEM_COLUMNS,
    TABLES,
    VERSION,
    Table,
)
from chiplog_client.transfer.open_directory import OpenDirectory
from chiplog_schemas._version import __version__
from chiplog_schemas.atomic_file import sync_directory
from chiplog_schemas.storage.content_files import invalid_path_reason

_MEMORY_BYTES = 512 << 20  # of DuckDB here: a chunk is sorted; larger ones spill
_SORTED = {"metrics": "key, label, attempt, step, seq", "phases": "phase, label, attempt, step, seq"}
_SORTED |= dict.fromkeys(("texts", "histograms"), "key, label, attempt, step, seq")
_PARTS = ".parts"  # what is not part of the finished export
_SYSTEM_ORDER = "name, node, device, ts, label"

_PRODUCERS = """
SELECT p.*, o.id AS owner_id, s.last_seq, s.seen_at
FROM reads.producers p LEFT JOIN reads.producers o ON o.producer = p.owner LEFT JOIN (
    SELECT producer, max(last_seq) AS last_seq, max(seen_at) AS seen_at
    FROM reads.received_ranges WHERE run_id = $run GROUP BY producer
) s ON s.producer = p.producer
WHERE p.run_id = $run ORDER BY p.shown_label, p.shown_attempt, p.producer
"""
_STORED = "SELECT producer, first_seq, last_seq FROM reads.received_ranges WHERE run_id = $run"
_LOST = "SELECT producer, first_seq, last_seq, reason FROM reads.lost_ranges WHERE run_id = $run"
_RUN = "FROM reads.runs WHERE run_id = $run"
# Samples of the run's nodes from its start to its end: at least those that are the run's, by name.
_SAMPLE_NAMES = """
SELECT s.name, count(*) AS n, min(s.ts) AS first, max(s.ts) AS last FROM system_samples s
WHERE s.node IN (SELECT node FROM labels WHERE run_id = $run)
    AND s.ts >= (SELECT min(started_at) FROM labels WHERE run_id = $run)
    AND s.ts <= (SELECT max(coalesce(ended_at, TIMESTAMP 'infinity')) FROM labels WHERE run_id = $run)
GROUP BY s.name ORDER BY s.name
"""
_SAMPLES = """
SELECT run_id, label, rank, node, device, name, ts, value, n_sharers FROM system
WHERE run_id = $run AND name IN (SELECT unnest($names::VARCHAR[])) AND ts >= $first::TIMESTAMP AND ts < $last::TIMESTAMP
"""
_GPU_EVENTS = """
SELECT DISTINCT $run AS run_id, e.node, e.seq, e.ts, e.kind, e.level, e.message, e.body::VARCHAR AS body
FROM (SELECT *, body->>'device' AS device FROM events WHERE kind = 'device_stale' OR starts_with(kind, 'gpu.')) e
JOIN reads.gpu_events g ON g.run_id = $run AND g.node = e.node AND g.device = e.device AND g.ts = e.ts
    AND g.kind = e.kind AND g.message = e.message
WHERE e.run_id IS NULL
"""
_FILES = "SELECT path, bytes, sha256, ts FROM files WHERE run_id = $run ORDER BY path"
_LABELS = "SELECT * EXCLUDE (run_id) FROM labels WHERE run_id = $run ORDER BY rank NULLS LAST, label, attempt"
_CONFIG = "SELECT key, value FROM config WHERE run_id = $run ORDER BY key"
_SUMMARY = "SELECT key, value FROM run_summary WHERE run_id = $run ORDER BY key"
_DEFINITIONS = """
SELECT label, name, summary, step_metric, is_hidden FROM metric_definitions WHERE run_id = $run ORDER BY label, name
"""
_CONTENTS_OF_RUN = """
SELECT sha256, any_value(bytes) AS bytes, bool_or(is_stored) AS is_stored
FROM reads.contents WHERE run_id = $run GROUP BY sha256 ORDER BY sha256
"""


@dataclass(slots=True)
class Exported:
    """What an export holds."""

    run_id: str
    path: Path
    n_points: int = 0
    n_rows: int = 0
    n_files: int = 0  # saved files, media, and earlier versions
    n_bytes: int = 0
    n_absent: int = 0  # contents that the collector does not have
    is_running: bool = False


Progress = Callable[[str, int, int], None]  # what is copied, how much of it is done, and the total


def export_run(client: Client, run: str, target: Path, on_progress: Progress = lambda *_: None) -> Exported:
    """Write a run to a new directory, complete or not at all.

    Args:
        client: Connected to the collector or the directory that has the run.
        run: Its ID, which must exist.
        target: The directory to create. It must not exist.
        on_progress: Called after each part with its name, the rows or bytes done, and their number.

    Raises:
        OSError: The directory cannot be written, or exists.
        QueryError: The collector does not answer, or a saved file is damaged there.
    """
    with new_directory(target) as staging, OpenDirectory(staging) as opened:
        return _Exporter(client, run, opened, on_progress).write(target)


def export_tables(
    client: Client, run: str, directory: Path, names: Iterable[str], on_progress: Progress = lambda *_: None
) -> bool:
    """Write `producers.parquet` and some of TABLES to an empty directory, as in an export.

    Returns:
        True if the run has not ended.

    Raises:
        OSError: The directory cannot be written.
        QueryError: The collector does not answer.
    """
    with OpenDirectory(directory) as opened:
        return _Exporter(client, run, opened, on_progress).write_tables(names)


@contextlib.contextmanager
def new_directory(target: Path) -> Iterator[Path]:
    """Yield a directory that becomes `target` at the end of the block, with all that is in it, or is removed.

    Raises:
        OSError: It cannot be written, or the target exists.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".chiplog-export-", dir=target.parent))
    try:
        yield staging
        staging.chmod(0o777 & ~_umask())
        for directory in [staging, *(path for path in staging.rglob("*") if path.is_dir())]:
            sync_directory(directory)
        if os.path.lexists(target):
            raise FileExistsError(f"{target} exists")
        os.rename(staging, target)
        sync_directory(target.parent)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)  # safeguard: failed-export-removed
        raise


class _Exporter:
    """Writes the files of one export."""

    def __init__(self, client: Client, run: str, opened: OpenDirectory, on_progress: Progress) -> None:
        import duckdb

        self._client = client
        self._run = run
        self._open_directory = opened
        self._directory = opened.path
        self._on_progress = on_progress
        self._tables: dict[str, dict[str, Any]] = {}
        self._parts = self._directory / _PARTS
        self._parts.mkdir()
        self._local = duckdb.connect(
            config={"memory_limit": f"{_MEMORY_BYTES >> 20}MiB", "temp_directory": opened.place(f"{_PARTS}/spilled")}
        )
        self._local.execute("SET TimeZone = 'UTC'")

    def write_tables(self, names: Iterable[str]) -> bool:
        """Write the producers and some tables. Return True if the run has not ended."""
        try:
            producers = self._write_producers()
            for name in names:
                self._write_table(name, TABLES[name], producers)
            [row] = self._sql(_RUN).rows()
        finally:
            self._local.close()
        shutil.rmtree(self._parts)
        return bool(row["state"] == "running")

    def write(self, target: Path) -> Exported:
        done = Exported(self._run, target)
        try:
            [row] = self._sql(_RUN).rows()
            producers = self._write_producers()
            for name, table in TABLES.items():
                done.n_rows += self._write_table(name, table, producers)
            done.n_rows += self._write_system()
            self._write_query("gpu_events", GPU_EVENT_COLUMNS, _GPU_EVENTS, "ts, node, seq")
        finally:
            self._local.close()
        shutil.rmtree(self._parts)
        absent = self._write_files(done)
        self._write_run(row, absent)
        done.n_points = self._tables.get("metrics.parquet", {}).get("rows", 0)
        done.n_bytes = sum(path.stat().st_size for path in self._directory.rglob("*") if path.is_file())
        done.is_running = row["state"] == "running"
        return done

    def _sql(self, query: str, **values: Any) -> Result:
        return self._client.sql(query, {"run": self._run, **values})

    # -- tables --

    def _write_producers(self) -> list[int]:
        """Write the run's producers, and keep their names here for the other tables. Returns them in their order."""
        self._keep("raw", self._sql(_PRODUCERS))
        self._keep("stored_ranges", self._sql(_STORED))  # after it: what arrived in between counts neither way
        self._keep("lost_ranges", self._sql(_LOST))
        self._local.execute(
            "CREATE TABLE writers AS SELECT producer AS number, lower(id) AS producer, run_id, shown_label AS label, "
            "shown_attempt AS attempt, shown_rank AS rank, coalesce(last_seq, -1) AS last_seq, "
            "row_number() OVER () AS place FROM raw"
        )
        given = {
            "producer": "lower(r.id)",
            "owner": "lower(r.owner_id)",
            "run_id": "r.run_id",
            "last_seen_at": "r.seen_at",
            "stored": "(SELECT list({'first_seq': s.first_seq, 'last_seq': s.last_seq} ORDER BY s.first_seq) "
            "FROM stored_ranges s WHERE s.producer = r.producer)",
            "lost": "(SELECT list({'first_seq': l.first_seq, 'last_seq': l.last_seq, 'reason': l.reason} "
            "ORDER BY l.first_seq) FROM lost_ranges l WHERE l.producer = r.producer)",
        }
        selected = ", ".join(
            f"({given.get(name, f'r.{name}')})::{kind} AS {name}" for name, kind in PRODUCER_COLUMNS.items()
        )
        self._finish("producers", [self._copy(f"SELECT {selected} FROM raw r ORDER BY r.producer", "producers", 0)])
        return [number for (number,) in self._local.execute("SELECT number FROM writers ORDER BY place").fetchall()]

    def _write_table(self, name: str, table: Table, producers: list[int]) -> int:
        reader = ChunkReader(self._client, table, self._run, producers)
        if not reader.n_rows:
            return 0
        if reader.names:
            self._local.execute("CREATE OR REPLACE TABLE names (key INTEGER, name VARCHAR)")
            self._local.execute(
                "INSERT INTO names SELECT unnest($1::INTEGER[]), unnest($2::VARCHAR[])",
                [list(reader.names), list(reader.names.values())],
            )
        order = _SORTED.get(name, "label, attempt, seq, ts")
        given = {"key": "n.name"} if table.is_keyed else {}
        given |= {"phase": "n.name", "seconds": "c.value", "producer": "w.producer"}
        given |= {column: f"w.{column}" for column in ("run_id", "label", "attempt", "rank")}
        selected = ", ".join(
            f"({given.get(column, f'c.{column}')})::{kind} AS {column}" for column, kind in table.columns.items()
        )
        names = "JOIN names n ON n.key = c.key" if table.is_keyed else ""
        query = (
            # Rows that arrived after the producers were read are left out: their events do not count as stored.
            f"SELECT {selected} FROM chunk c JOIN writers w ON w.number = c.producer AND c.seq <= w.last_seq {names} "
            f"ORDER BY {order}"
        )
        parts: list[str] = []
        n_done = 0
        for chunk in reader.chunks():
            for result in reader.read(chunk):
                self._keep("chunk", result)
                parts.append(self._copy(query, name, len(parts)))
                n_done += len(result)
                self._on_progress(name, n_done, reader.n_rows)
        return self._finish(name, parts)

    def _write_system(self) -> int:
        """Write the samples that belong to the run's labels, some names at a time."""
        counted = self._sql(_SAMPLE_NAMES).rows()
        total, n_done, has_slices = sum(row["n"] for row in counted), 0, False
        parts: list[str] = []
        query = f"SELECT {_cast(SYSTEM_COLUMNS)} FROM chunk ORDER BY {_SYSTEM_ORDER}"
        while counted:
            group = [counted.pop(0)]
            while counted and sum(row["n"] for row in (*group, counted[0])) <= CHUNK_ROWS:
                group.append(counted.pop(0))
            first, last = min(row["first"] for row in group), max(row["last"] for row in group) + datetime.resolution
            n_rows = sum(row["n"] for row in group)
            n_slices = -(-n_rows // CHUNK_ROWS)  # of time; more than one only for one name
            has_slices |= n_slices > 1
            bounds = [first + (last - first) * number / n_slices for number in range(n_slices)] + [last]
            for begin, end in itertools.pairwise(bounds):
                for result in self._samples([row["name"] for row in group], begin, end):
                    self._keep("chunk", result)
                    parts.append(self._copy(query, "system", len(parts)))
            n_done += n_rows
            self._on_progress("system", n_done, total)
        return self._finish("system", parts, _SYSTEM_ORDER if has_slices else "")

    def _samples(self, names: list[str], first: datetime, last: datetime) -> Iterator[Result]:
        """Yield the samples of some names, in halves if they are too much for one answer."""
        try:
            result = self._sql(_SAMPLES, names=names, first=first, last=last)
        except QueryError as error:
            if error.kind not in TOO_MUCH or len(names) == 1:
                raise
        else:
            yield result
            return
        middle = len(names) // 2
        yield from self._samples(names[:middle], first, last)
        yield from self._samples(names[middle:], first, last)

    def _write_query(self, name: str, columns: dict[str, str], query: str, order: str) -> None:
        result = self._sql(query)
        if len(result):
            self._keep("chunk", result)
            self._finish(name, [self._copy(f"SELECT {_cast(columns)} FROM chunk ORDER BY {order}", name, 0)])

    def _keep(self, name: str, result: Result) -> None:
        self._local.from_arrow(result._table).create_view(name, replace=True)

    def _copy(self, query: str, name: str, number: int) -> str:
        """Write the rows of a query as a file of .parts, and return its name."""
        part = f"{_PARTS}/{name}-{number}.parquet"
        self._write_parquet(query, part)
        return part

    def _write_parquet(self, query: str, name: str) -> None:
        self._local.execute(f"COPY ({query}) TO {self._open_directory.target(name)} (FORMAT parquet, COMPRESSION zstd)")

    def _finish(self, name: str, parts: list[str], order: str = "") -> int:
        """Make one file of the parts, in their order, and return its rows."""
        if not parts:
            return 0
        target = self._directory / f"{name}.parquet"
        if len(parts) == 1:
            os.rename(self._directory / parts[0], target)
        else:
            ordered = f" ORDER BY {order}" if order else ""
            self._write_parquet(f"FROM {self._open_directory.rows(*parts)}{ordered}", target.name)
            for part in parts:
                (self._directory / part).unlink()
        counted = self._local.execute(f"SELECT count(*) FROM {self._open_directory.rows(target.name)}").fetchall()
        n_rows = int(counted[0][0])
        if n_rows == 0 and name != "producers":
            target.unlink()
            return 0
        self._tables[target.name] = {"rows": n_rows, **_sealed(target)}
        return n_rows

    # -- files --

    def _write_files(self, done: Exported) -> dict[str, str]:
        """Copy the contents of the saved files. Return, by digest, why contents are left out."""
        contents = {str(row["sha256"]): row for row in self._sql(_CONTENTS_OF_RUN).rows()}
        absent = {digest: "not arrived yet" for digest, row in contents.items() if not row["is_stored"]}
        left = [digest for digest in contents if digest not in absent]
        total, n_done = sum(int(contents[digest]["bytes"]) for digest in left), 0
        for row in self._sql(_FILES).rows():
            path, digest = str(row["path"]), str(row["sha256"])
            if digest not in absent:
                n_done += self._copy_content(digest, self._place_of(path, digest), absent)
                done.n_files += digest not in absent
                left = [other for other in left if other != digest]
                self._on_progress(path, n_done, total)
        for digest in left:
            n_done += self._copy_content(digest, self._directory / CONTENTS / digest, absent)
            done.n_files += digest not in absent
            self._on_progress(digest, n_done, total)
        for directory in sorted(self._directory.rglob("*"), reverse=True):  # of contents that are absent
            if directory.is_dir() and not any(directory.iterdir()):
                directory.rmdir()
        done.n_absent = len(absent)
        return absent

    def _place_of(self, path: str, digest: str) -> Path:
        """Return where a saved file goes: below files/, or to contents/ if the path has no place there."""
        target = self._directory / FILES / path
        if invalid_path_reason(path) is None:  # safeguard: exported-file-stays-below-target
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.touch(exist_ok=False)
                return target
            except (FileExistsError, NotADirectoryError):
                pass  # both `a` and `a/b` were saved
            except OSError as error:
                if error.errno != errno.ENAMETOOLONG:
                    raise
        return self._directory / CONTENTS / digest

    def _copy_content(self, digest: str, target: Path, absent: dict[str, str]) -> int:
        """Copy a saved file's content and return its size. Note in `absent` if it is missing or damaged."""
        target.parent.mkdir(parents=True, exist_ok=True)
        found, n_bytes = hashlib.sha256(), 0
        try:
            with open(target, "wb") as copy:
                for data in self._client.read_file(digest):
                    found.update(data)
                    copy.write(data)
                    n_bytes += len(data)
                copy.flush()
                os.fsync(copy.fileno())
        except QueryError as error:
            if error.kind != "refused":
                raise
            absent[digest] = "lost by the collector"
        else:
            if found.hexdigest() == digest:  # safeguard: exported-file-verified
                return n_bytes
            absent[digest] = "damaged at the collector"
        target.unlink()
        return 0

    # -- run.json --

    def _write_run(self, row: dict[str, Any], absent: dict[str, str]) -> None:
        config = {r["key"]: json.loads(r["value"]) for r in self._sql(_CONFIG).rows()}
        summary = {r["key"]: json.loads(r["value"]) for r in self._sql(_SUMMARY).rows()}
        content = {
            "format": FORMAT,
            "version": VERSION,
            "chiplog": __version__,
            "exported_at": datetime.now(UTC),
            "run": row,
            "labels": self._sql(_LABELS).rows(),
            "config": config,
            "summary": summary,
            "metric_definitions": self._sql(_DEFINITIONS).rows(),
            "files": self._sql(_FILES).rows(),
            "absent_contents": absent,
            "tables": self._tables,
        }
        text = json.dumps(content, indent=1, ensure_ascii=False, default=_plain)
        with open(self._directory / RUN_FILE, "w", encoding="utf-8") as target:
            target.write(text + "\n")
            target.flush()
            os.fsync(target.fileno())


def _plain(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _cast(columns: dict[str, str]) -> str:
    return ", ".join(f"({name})::{kind} AS {name}" for name, kind in columns.items())


def _sealed(path: Path) -> dict[str, Any]:
    """Sync a file; return its size and digest, by which an import detects damage."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
        return {"bytes": os.fstat(file.fileno()).st_size, "sha256": digest}


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
