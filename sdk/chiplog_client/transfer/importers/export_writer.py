"""Write what an importer yields as exports of chiplog: one directory for each run, in bounded memory."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from chiplog.safety.text import clean_utf8
from chiplog.settings import clean_name, clean_text
from chiplog_client.transfer.export_format import (
    CONTENTS,
    FORMAT,
    PARQUET_FILES,
    PRODUCER_COLUMNS,
    RUN_FILE,
    TABLES,
    VERSION,
)
from chiplog_client.transfer.import_blocks import derived_uuid
from chiplog_client.transfer.importers.imported_run import (
    MAIN,
    Config,
    ConsoleLine,
    Definition,
    End,
    HistogramOf,
    ImportedRun,
    ImporterError,
    Int64s,
    Label,
    MediaOf,
    Notice,
    Part,
    Points,
    RunTag,
    SavedFile,
    Summary,
    SystemSample,
    Text,
    Unmapped,
)
from chiplog_client.transfer.open_directory import OpenDirectory
from chiplog_schemas.limits import (
    CONSOLE_LINE_CHARS_MAX,
    EVENT_BYTES_MAX,
    FILE_BYTES_MAX,
    KEY_BYTES_MAX,
    KEYS_MAX,
    NAME_CHARS_MAX,
    TEXT_CHARS_MAX,
)
from chiplog_schemas.storage.content_files import invalid_path_reason

_MEMORY_BYTES = 128 << 20  # of DuckDB here: more spills to the scratch directory
_OWN_SEQS = 64  # the first ones of a label, for its identity and for rows that are no events
_ROWS_MAX, _BUFFERED_CHARS_MAX = 10_000, 4 << 20  # of a table, before they go to DuckDB
_VALUE_BYTES_MAX = EVENT_BYTES_MAX // 2  # of one value of config or summary
_TIME_US_END = 253_402_300_800_000_000  # the year 10,000
_COPY_BYTES = 1 << 20
_EXAMPLE_CHARS = 60
_STAGED = ".staged"  # a file that is being copied
DIGEST_TAG = "chiplog:import/"  # and the origin: a run's tag with the digest of what was imported; views hide it
_ORIGINS = {"lightning": "csv"}  # formats that read the files of another one: a folder or its file is one source
_NOT_DIGESTED = frozenset({"source", "of_path", "file_us"})
_POINTS = {"place": "INTEGER", "key": "INTEGER", "step": "BIGINT", "seq": "BIGINT", "ts": "BIGINT", "value": "DOUBLE"}


@dataclass(slots=True)
class WrittenRun:
    """An export that was written.

    Attributes:
        origin: What wrote the source: the format, without the one of its files.
        digest: Of everything that the run has.
        unmapped: What could not be mapped, how much of it, and the first example.
        n_seqs: How many seqs each producer has.
        n_points, n_rows: Numbers, and rows of all kinds.
        is_only: Its source has no other run.
    """

    run: ImportedRun
    path: Path
    origin: str
    digest: str
    unmapped: dict[str, tuple[int, str]]
    n_seqs: dict[bytes, int]
    n_points: int
    n_rows: int
    is_only: bool = False

    @property
    def run_id(self) -> str:
        """The run's ID."""
        return self.run.run_id

    @property
    def producers(self) -> list[bytes]:
        """The 16 bytes of each process of the run."""
        return list(self.n_seqs)

    @property
    def contents(self) -> dict[str, Path]:
        """Where its files are, by digest."""
        return {path.name: path for path in sorted((self.path / CONTENTS).iterdir())}

    def stored(self) -> Iterator[tuple[bytes, list[tuple[int, int]]]]:
        """Yield each process of the run with the closed ranges of seqs that it has."""
        for producer, n_seqs in self.n_seqs.items():
            yield producer, [(0, n_seqs - 1)]


def write_exports(
    format_name: str,
    parts: Iterable[Part],
    target: Path,
    *,
    run_id: str | None = None,
    project: str | None = None,
    source: Path | None = None,
    on_progress: Callable[[int], None] = lambda _: None,
) -> list[WrittenRun]:
    """Write all runs that an importer yields.

    Args:
        format_name: Of the importer: one source read as two formats has two runs' producers.
        parts: What the importer yields.
        target: An empty directory, in which each run becomes one.
        run_id: The ID of the source's only run; None: the source's own.
        project: The project of all runs; None: as the source says.
        source: For messages. None: the first run's.
        on_progress: Called with the number of values and rows that were read since the last call.

    Raises:
        ImporterError: The source is bad.
        OSError: The target cannot be written.
    """
    written: list[WrittenRun] = []
    iterator = iter(parts)
    part = next(iterator, None)
    first_id = part.run_id if isinstance(part, ImportedRun) else ""
    while part is not None:
        assert isinstance(part, ImportedRun), part
        if run_id is not None and part.run_id != first_id:
            others = (other.run_id for other in iterator if isinstance(other, ImportedRun))
            n_runs = len({first_id, part.run_id, *others})
            raise ImporterError(f"{source or written[0].run.source} has {n_runs:,} runs; --as names one")
        given: dict[str, Any] = {
            name: value for name, value in (("run_id", run_id), ("project", project)) if value is not None
        }
        with _RunWriter(format_name, part, target / str(len(written)), given) as writer:
            for part in iterator:
                if isinstance(part, ImportedRun) and not writer.is_same(part):
                    break
                on_progress(writer.add(part))
            else:
                part = None
            written.append(writer.finish())
    n_runs = len({run.run_id for run in written})
    for run in written:
        run.is_only = n_runs == 1
    return written


@dataclass(slots=True)
class _Writer:
    """A label: the producer that it becomes. source: for messages."""

    source: Path
    place: int
    uuid: str
    next_seq: int = _OWN_SEQS
    first_us: int | None = None
    last_us: int | None = None
    n_lines: int = 0
    has_samples: bool = False
    who: Label | None = None
    end: End | None = None

    def take(self, n_seqs: int, first_us: int, last_us: int) -> int:
        """Return the first of so many seqs of events at these times."""
        if not -_TIME_US_END < first_us <= last_us < _TIME_US_END:
            raise ImporterError(
                f"{self.source}: a time of {first_us} to {last_us} µs since the epoch is none; correct the source"
            )
        seq = self.next_seq
        self.next_seq += n_seqs
        self.first_us = first_us if self.first_us is None else min(self.first_us, first_us)
        self.last_us = last_us if self.last_us is None else max(self.last_us, last_us)
        return seq


class _Rows:
    """Rows of one table, which go to DuckDB some at a time."""

    def __init__(self, local: Any, name: str) -> None:
        self._local = local
        self._name = name
        self._columns = PARQUET_FILES[name]
        local.execute(
            f"CREATE TABLE {name} ({', '.join(f'{column} {kind}' for column, kind in self._columns.items())})"
        )
        self._clear()

    def _clear(self) -> None:
        self._rows: list[Mapping[str, Any]] = []
        self._n_chars = 0

    def add(self, row: Mapping[str, Any], n_chars: int) -> None:
        """Add a row. n_chars: of its texts, about."""
        self._rows.append(row)
        self._n_chars += n_chars
        if len(self._rows) >= _ROWS_MAX or self._n_chars > _BUFFERED_CHARS_MAX:
            self.flush()

    def flush(self) -> None:
        """Write what was added."""
        if not self._rows:
            return
        from arro3.core import Array, DataType, Table

        types = {"DOUBLE": DataType.float64(), "BIGINT": DataType.int64(), "INTEGER": DataType.int64()}
        types |= {"TIMESTAMP": DataType.int64(), "BOOLEAN": DataType.bool()}
        arrays: dict[str, Any] = {
            column: Array([row.get(column) for row in self._rows], types.get(kind, DataType.utf8()))
            for column, kind in self._columns.items()
        }
        selected = ", ".join(
            f"make_timestamp({column})" if kind == "TIMESTAMP" else f"{column}::{kind}"
            for column, kind in self._columns.items()
        )
        self._local.from_arrow(Table.from_pydict(arrays)).create_view("chunk", replace=True)
        self._local.execute(f"INSERT INTO {self._name} SELECT {selected} FROM chunk")
        self._clear()


class _RunWriter:
    """Writes the export of one run. Use it as a context manager."""

    def __init__(self, format_name: str, run: ImportedRun, directory: Path, given: dict[str, Any]) -> None:
        import duckdb

        self._origin = _ORIGINS.get(format_name, format_name)
        self._digest = hashlib.sha256()
        self._given = given
        self._source_run = run
        self._run = self._checked(run)
        self._directory = directory
        self._contents = directory / CONTENTS
        self._contents.mkdir(parents=True)
        self._open_directory = OpenDirectory(directory)
        self._local = duckdb.connect(
            config={
                "memory_limit": f"{_MEMORY_BYTES >> 20}MiB",
                "temp_directory": self._open_directory.place(".spilled"),
            }
        )
        self._local.execute("SET TimeZone = 'UTC'")
        self._local.execute(f"CREATE TABLE points ({', '.join(f'{name} {kind}' for name, kind in _POINTS.items())})")
        self._writers: dict[str, _Writer] = {}
        self._keys: dict[str, int | None] = {}  # None: a name that is left out
        self._rows: dict[str, _Rows] = {}
        self._unmapped: dict[str, tuple[int, str]] = {}
        self._adders: dict[type, Callable[[Any], int]] = {
            Points: self._add_points,
            Text: self._add_text,
            HistogramOf: self._add_histogram,
            MediaOf: self._add_media,
            ConsoleLine: self._add_line,
            SystemSample: self._add_sample,
            SavedFile: self._add_file,
            Config: self._add_config,
            Summary: self._add_summary,
            Definition: self._add_definition,
            RunTag: self._add_tag,
            Notice: self._add_notice,
            Label: self._note_label,
            End: self._note_end,
            Unmapped: self._note_unmapped,
            ImportedRun: self._describe_again,
        }

    def __enter__(self) -> "_RunWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self._local.close()
        self._open_directory.close()

    def add(self, part: Part) -> int:
        """Add a part, and return how many values or rows it has."""
        self._digest_part(part)
        return self._adders[type(part)](part)

    def _digest_part(self, part: Part) -> None:
        """Digest what a part has. Contents of files are digested where they are read."""
        if isinstance(part, Unmapped | ImportedRun):  # the run is digested at the end, as its last one describes it
            return
        if isinstance(part, Points):
            times = np.where(part.times == self._run.file_us, 0, part.times) if self._run.file_us else part.times
            rows = _row_numbers(part.rows, len(part.values))
            self._digest_values(part.label, list(part.keys), len(part.values))
            for array in (part.key_of, part.steps, times, part.values, rows):
                self._digest.update(np.ascontiguousarray(array).data)
            return
        named = {field.name: getattr(part, field.name) for field in fields(part)}
        named.pop("content", None)
        if isinstance(part, Config | Summary) or named.get("ts") == self._run.file_us:
            named.pop("ts", None)  # of the file, or of the beginning
        self._digest_values(type(part).__name__, *named.values())

    def _digest_values(self, *values: Any) -> None:
        for value in values:
            named = sorted(value.items()) if isinstance(value, Mapping) else value
            data = repr(named).encode("utf-8", "surrogatepass")
            self._digest.update(len(data).to_bytes(8, "little") + data)

    def is_same(self, run: ImportedRun) -> bool:
        """Return True if a beginning of a run describes this one again."""
        return (run.run_id, run.piece) == (self._source_run.run_id, self._source_run.piece)

    def _checked(self, run: ImportedRun) -> ImportedRun:
        run = replace(run, **self._given)
        cleaned, fault = clean_name(run.run_id, NAME_CHARS_MAX)
        if fault:  # safeguard: impossible-run-id-refused
            raise ImporterError(
                f"{run.source}: run ID {run.run_id!r:.80} has {fault}; import this run by itself with --as {cleaned!r}"
            )
        return run

    def _describe_again(self, run: ImportedRun) -> int:
        self._run = self._checked(run)
        return 0

    # -- labels, names and texts --

    def _writer(self, label: str) -> _Writer:
        writer = self._writers.get(label)
        if writer is None:
            cleaned, fault = clean_name(label, NAME_CHARS_MAX)
            if fault:
                raise ImporterError(f"{self._run.source}: label {label!r:.80} has {fault}; call it {cleaned!r}")
            uuid = derived_uuid("imported", self._origin, self._run.run_id, self._run.piece, label).hex()
            writer = self._writers[label] = _Writer(self._run.source, len(self._writers), uuid)
        return writer

    def _key(self, key: str) -> int | None:
        """Return the number of a metric's name, or None if it is left out."""
        if key not in self._keys:
            n_bytes = len(clean_utf8(key).encode())
            is_taken = 0 < n_bytes <= KEY_BYTES_MAX and len(self._keys) < KEYS_MAX
            self._keys[key] = len(self._keys) if is_taken else None
        return self._keys[key]

    def _takes(self, key: str, n_values: int = 1) -> bool:
        if self._key(key) is not None:
            return True
        what = f"values of names over {KEY_BYTES_MAX} bytes, without a character, or beyond {KEYS_MAX:,}"
        self._leave_out(what, n_values, key)
        return False

    def _leave_out(self, what: str, count: int = 1, example: object = "") -> None:
        before, first = self._unmapped.get(what, (0, f"{example}"))
        self._unmapped[what] = before + count, first

    def _add(self, table: str, label: str, ts: int, n_chars: int = 0, /, **values: Any) -> int:
        """Add a row, which is an event of its own."""
        writer = self._writer(label)
        seq = writer.take(1, ts, ts)
        if table not in self._rows:
            self._rows[table] = _Rows(self._local, table)
        names = {"run_id": self._run.run_id, "label": label, "attempt": 0, "producer": writer.uuid}
        self._rows[table].add({**names, "seq": seq, "ts": ts, **values}, n_chars)
        return 1

    # -- values --

    def _add_points(self, points: Points) -> int:
        from arro3.core import Array, Table

        n = len(points.values)
        if not n:
            return 0
        writer = self._writer(points.label)
        numbers = np.array([-1 if (key := self._key(name)) is None else key for name in points.keys], np.int32)
        keys = numbers[points.key_of]
        seqs = _row_numbers(points.rows, n)
        first = writer.take(int(seqs[-1]) + 1, int(points.times.min()), int(points.times.max()))
        columns: dict[str, npt.NDArray[Any]] = {
            "key": keys,
            "step": points.steps,
            "seq": seqs + first,
            "ts": points.times,
            "value": points.values,
        }
        taken: npt.NDArray[np.bool_] = keys >= 0
        for index in np.unique(points.key_of[~taken]):
            self._takes(points.keys[index], int((points.key_of == index).sum()))
        arrays: dict[str, Any] = {name: Array.from_numpy(column[taken]) for name, column in columns.items()}
        self._local.from_arrow(Table.from_pydict(arrays)).create_view("chunk", replace=True)
        self._local.execute(f"INSERT INTO points SELECT {writer.place}, key, step, seq, ts, value FROM chunk")
        return n

    def _add_text(self, text: Text) -> int:
        if not self._takes(text.key):
            return 1
        value = self._cut(text.value, TEXT_CHARS_MAX, "texts cut to {} characters")
        return self._add(
            "texts", text.label, text.ts, len(value), key=clean_utf8(text.key), step=text.step, value=value
        )

    def _cut(self, text: str, limit: int, what: str) -> str:
        if len(text) > limit:
            self._leave_out(what.format(f"{limit:,}"), 1, text[:_EXAMPLE_CHARS])
            text = text[: limit - 1] + "…"
        return clean_utf8(text)

    def _add_histogram(self, named: HistogramOf) -> int:
        if not self._takes(named.key):
            return 1
        if len(named.edges) != len(named.counts) + 1:
            self._leave_out("histograms whose edges do not fit their counts", 1, named.key)
            return 1
        lists = {"edges": _list_text(named.edges), "counts": _list_text(named.counts)}
        n_chars = sum(map(len, lists.values()))
        return self._add(
            "histograms", named.label, named.ts, n_chars, key=clean_utf8(named.key), step=named.step, **lists
        )

    def _add_media(self, media: MediaOf) -> int:
        if self._takes(media.key) and (found := self._keep(media.content)) is not None:
            digest, n_bytes = found
            metadata = _json_text(media.metadata)
            described = {"key": clean_utf8(media.key), "step": media.step, "kind": media.kind, "metadata": metadata}
            self._add(
                "media",
                media.label,
                media.ts,
                len(metadata),
                sha256=digest,
                bytes=n_bytes,
                stored_at=media.ts,
                **described,
            )
        return 1

    def _add_line(self, line: ConsoleLine) -> int:
        writer = self._writer(line.label)
        text = self._cut(line.line, CONSOLE_LINE_CHARS_MAX, "console lines cut to {} characters")
        self._add("console", line.label, line.ts, len(text), stream=line.stream, line_no=writer.n_lines, line=text)
        writer.n_lines += 1
        return 1

    def _add_sample(self, sample: SystemSample) -> int:
        writer = self._writer(sample.label)
        writer.take(0, sample.ts, sample.ts)
        writer.has_samples = True
        if "system" not in self._rows:
            self._rows["system"] = _Rows(self._local, "system")
        common = {"run_id": self._run.run_id, "label": sample.label, "node": self._node, "device": sample.device}
        for name, value in sample.values.items():
            self._rows["system"].add({**common, "ts": sample.ts, "name": clean_utf8(name), "value": value}, 0)
        return len(sample.values)

    @property
    def _node(self) -> str:
        """The node of samples: one of this run, as what other runs say of the same host are samples of theirs."""
        return "/".join(clean_utf8(part) for part in (self._run.host, self._run.run_id) if part)

    def _add_file(self, file: SavedFile) -> int:
        if (reason := invalid_path_reason(file.path)) is not None:  # safeguard: imported-path-stays-below-run
            self._leave_out(f"files whose path no run has: {reason}", 1, file.path)
        elif (found := self._keep(file.content)) is not None:
            path, (digest, n_bytes) = clean_utf8(file.path), found
            self._add("saves", file.label, file.ts, path=path, bytes=n_bytes, sha256=digest, stored_at=file.ts)
        return 1

    def _add_config(self, config: Config) -> int:
        return self._add_values("config", config)

    def _add_summary(self, summary: Summary) -> int:
        return self._add_values("summary", summary)

    def _add_values(self, table: str, described: Config | Summary) -> int:
        for key, value in described.values.items():
            text = _json_text(value)
            if len(text.encode()) > _VALUE_BYTES_MAX or not 0 < len(clean_utf8(key).encode()) <= KEY_BYTES_MAX:
                self._leave_out(
                    f"values of {table} over {_VALUE_BYTES_MAX:,} bytes, or of longer names than any", 1, key
                )
                continue
            self._add(table, described.label, described.ts, len(text), key=clean_utf8(key), value=text)
        return len(described.values)

    def _add_definition(self, named: Definition) -> int:
        if not 0 < len(named.name) <= KEY_BYTES_MAX:
            self._leave_out(f"definitions of names over {KEY_BYTES_MAX} characters", 1, named.name[:_EXAMPLE_CHARS])
            return 1
        described = {
            "name": clean_utf8(named.name),
            "summary": named.summary,
            "step_metric": clean_utf8(named.step_metric),
        }
        hidden = "" if named.is_hidden is None else str(named.is_hidden).lower()
        return self._add("definitions", named.label, named.ts, **described, hidden=hidden)

    def _add_tag(self, tag: RunTag) -> int:
        value = self._cut(tag.value, TEXT_CHARS_MAX, "tags cut to {} characters")
        return self._add("run_tags", tag.label, tag.ts, len(value), key=clean_utf8(tag.key), value=value)

    def _add_notice(self, notice: Notice) -> int:
        message = self._cut(notice.message, TEXT_CHARS_MAX, "messages cut to {} characters")
        described: dict[str, Any] = {"kind": notice.kind, "level": notice.level, "message": message}
        described["body"] = _json_text(notice.body)
        return self._add("events", notice.label, notice.ts, len(message), **described)

    def _note_label(self, label: Label) -> int:
        self._writer(label.label).who = label
        return 0

    def _note_end(self, end: End) -> int:
        self._writer(end.label).end = end
        return 0

    def _note_unmapped(self, unmapped: Unmapped) -> int:
        self._leave_out(unmapped.what, unmapped.count, unmapped.example)
        return 0

    # -- contents --

    def _keep(self, content: Path | bytes) -> tuple[str, int] | None:
        """Keep a file of the source; return its digest and size, or None if it cannot be read."""
        if isinstance(content, bytes):
            digest = hashlib.sha256(content).hexdigest()
            self._digest_values(digest)
            (self._contents / digest).write_bytes(content)
            return digest, len(content)
        staged = self._contents / _STAGED
        found, n_bytes = hashlib.sha256(), 0
        try:
            if content.stat().st_size > FILE_BYTES_MAX:
                self._leave_out(f"files over {FILE_BYTES_MAX:,} bytes", 1, content)
                return None
            source = content.open("rb")
        except (OSError, ValueError):
            self._leave_out("files that are missing or cannot be read", 1, content)
            return None
        with source, staged.open("wb") as copy:
            while data := source.read(_COPY_BYTES):
                found.update(data)
                n_bytes += copy.write(data)
        os.rename(staged, self._contents / found.hexdigest())
        self._digest_values(found.hexdigest())
        return found.hexdigest(), n_bytes

    # -- the files of the export --

    def finish(self) -> WrittenRun:
        """Write the files, and return what was written."""
        if not self._writers:
            self._writer(MAIN)
        primary = MAIN if MAIN in self._writers else next(iter(self._writers))
        of_path = {*_NOT_DIGESTED, *(self._run.of_path - self._given.keys())}
        self._digest_values(
            *(getattr(self._run, field.name) for field in fields(ImportedRun) if field.name not in of_path)
        )
        digest, tagged = self._digest.hexdigest(), self._writers[primary]
        times = [time for time in (tagged.first_us, self._run.created_us) if time is not None]
        ts = next(iter(times), _file_us(self._run.source))
        self._add("run_tags", primary, ts, len(digest), key=f"{DIGEST_TAG}{self._origin}", value=digest)
        tables = self._write_points()
        for name, rows in self._rows.items():
            rows.flush()
            tables |= self._copy(name, f"FROM {name}")
        tables |= self._write_producers(primary)
        run = {
            "run_id": self._run.run_id,
            "primary_label": primary,
            "tags": [clean_utf8(tag) for tag in self._run.tags],
        }
        described = {"project": self._run.project, "name": self._run.name, "notes": self._run.notes}
        described |= {"run_group": self._run.group, "job_type": self._run.job_type}
        run |= {column: cleaned for column, value in described.items() if (cleaned := clean_text(column, value)[0])}
        content = {"format": FORMAT, "version": VERSION, "run": run, "tables": tables}
        text = json.dumps({**content, "files": [], "absent_contents": {}}, ensure_ascii=False)
        (self._directory / RUN_FILE).write_text(text, encoding="utf-8")
        (self._contents / _STAGED).unlink(missing_ok=True)
        return WrittenRun(
            self._run,
            self._directory,
            self._origin,
            digest,
            self._unmapped,
            {bytes.fromhex(writer.uuid): writer.next_seq for writer in self._writers.values()},
            n_points=tables.get("metrics.parquet", {}).get("rows", 0),
            n_rows=sum(table["rows"] for table in tables.values()),
        )

    def _copy(self, name: str, query: str) -> dict[str, dict[str, Any]]:
        """Write the rows of a query; return the entry of its file in `run.json`."""
        file = f"{name}.parquet"
        self._local.execute(f"COPY ({query}) TO {self._open_directory.target(file)} (FORMAT parquet, COMPRESSION zstd)")
        [(n_rows,)] = self._local.execute(f"SELECT count(*) FROM {self._open_directory.rows(file)}").fetchall()
        with self._open_directory.open(file) as written:
            return {file: {"rows": n_rows, "sha256": hashlib.file_digest(written, "sha256").hexdigest()}}

    def _write_points(self) -> dict[str, dict[str, Any]]:
        if not self._local.execute("SELECT 1 FROM points LIMIT 1").fetchall():
            return {}
        self._local.execute("CREATE TABLE names (key INTEGER, name VARCHAR)")
        taken = {clean_utf8(name): number for name, number in self._keys.items() if number is not None}
        self._local.execute(
            "INSERT INTO names SELECT unnest($1::INTEGER[]), unnest($2::VARCHAR[])", [list(taken.values()), list(taken)]
        )
        self._local.execute("CREATE TABLE labels (place INTEGER, label VARCHAR, producer VARCHAR, rank INTEGER)")
        rows = [[w.place, label, w.uuid, w.who.rank if w.who else None] for label, w in self._writers.items()]
        self._local.executemany("INSERT INTO labels VALUES (?, ?, ?, ?)", rows)
        given = {"run_id": "$run", "attempt": "0", "key": "n.name", "ts": "make_timestamp(p.ts)"}
        given |= {"label": "w.label", "rank": "w.rank", "producer": "w.producer"}
        selected = ", ".join(
            f"({given.get(column, f'p.{column}')})::{kind} AS {column}"
            for column, kind in TABLES["metrics"].columns.items()
        ).replace("$run", "getvariable('run')")
        self._local.execute("SET VARIABLE run = ?", [self._run.run_id])
        joined = "points p JOIN names n ON n.key = p.key JOIN labels w ON w.place = p.place"
        return self._copy("metrics", f"SELECT {selected} FROM {joined}")

    def _write_producers(self, primary: str) -> dict[str, dict[str, Any]]:
        columns = ", ".join(f"{name} {kind}" for name, kind in PRODUCER_COLUMNS.items())
        self._local.execute(f"CREATE TABLE producers ({columns})")
        for label, writer in self._writers.items():
            row = self._producer(label, writer, label == primary)
            ranges = [{"first_seq": 0, "last_seq": writer.next_seq - 1}]
            names = ", ".join([*row, "stored"])
            values = ", ".join(
                f"make_timestamp({'?'})" if PRODUCER_COLUMNS[name] == "TIMESTAMP" else "?" for name in [*row, "stored"]
            )
            self._local.execute(f"INSERT INTO producers ({names}) VALUES ({values})", [*row.values(), ranges])
        return self._copy("producers", "FROM producers")

    def _producer(self, label: str, writer: _Writer, is_primary: bool) -> dict[str, Any]:
        """Return the columns of a label that are known."""
        end = writer.end or End(state="finished")
        who = writer.who or Label(label=label)
        times = [time for time in (who.started_us, self._run.created_us, writer.first_us) if time is not None]
        started_us = min(times, default=_file_us(self._run.source))
        ended_us = max(time for time in (end.ended_us, writer.last_us, started_us) if time is not None)
        if writer.has_samples and ended_us == writer.last_us:
            ended_us += 1  # samples of a label are those before its end
        any_samples = any(other.has_samples for other in self._writers.values())
        node = self._node if any_samples else self._run.host
        known = {
            "producer": writer.uuid,
            "role": "rank",
            "run_id": self._run.run_id,
            "label": label,
            "attempt": 0,
            "is_primary": is_primary,
            "job_type": self._run.job_type,
            "rank": who.rank,
            "world_size": who.world_size,
            "node": node,
            "agent_node": node,
            "hostname": self._run.host,
            "launch": derived_uuid("imported", self._origin, self._run.run_id, self._run.piece).hex(),
            "restart": 0,
            "state": end.state,
            "exit_code": end.exit_code,
            "reason": end.reason,
            "sets_run": is_primary,
            "started_at": started_us,
            "ended_at": ended_us if end.state != "running" else None,
            "last_seen_at": ended_us,
            "produced": writer.next_seq,
        }
        return {name: value for name, value in known.items() if value is not None}


def _file_us(path: Path) -> int:
    """Return when a source was changed last, or the epoch if that is unknown."""
    try:
        return path.stat().st_mtime_ns // 1000
    except OSError:
        return 0


def _row_numbers(rows: Int64s | None, n: int) -> Int64s:
    """Return for each value the number of its call, from 0."""
    if rows is None:
        return np.arange(n, dtype=np.int64)
    return np.concatenate(([0], np.cumsum(rows[1:] != rows[:-1])))


def _list_text(values: Iterable[float]) -> str:
    """Return numbers as DuckDB reads a list of them, NaN and infinities included."""
    return f"[{', '.join(map(repr, map(float, values)))}]"


def _json_text(value: Any) -> str:
    return clean_utf8(json.dumps(value, ensure_ascii=False, default=str))
