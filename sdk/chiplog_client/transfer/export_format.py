"""The layout of an export: one directory for each run, of JSON, Parquet and the saved files.

    <run>/
      run.json              written last: format, version, what the run is, and the digests of the tables
      producers.parquet     who wrote: identity, how it ended, which of its events are stored, which are lost
      metrics.parquet …     one file for each table of TABLES that has rows
      files/PATH            the newest version of each saved file
      contents/SHA256       what has no place below files/: media, files of artifacts, earlier versions of a path

Times are UTC, in microseconds. `producer` is 32 hex digits; (producer, seq) identifies an event. New columns go last,
and readers ignore columns that they do not know.
"""

from dataclasses import dataclass

FORMAT = "chiplog export"
VERSION = 1
RUN_FILE = "run.json"
FILES, CONTENTS = "files", "contents"

_OF_LABEL = {"run_id": "VARCHAR", "label": "VARCHAR", "attempt": "INTEGER"}
_OF_RANK = {**_OF_LABEL, "rank": "INTEGER"}
_OF_STEP = {"key": "VARCHAR", "step": "BIGINT", "seq": "BIGINT", "ts": "TIMESTAMP"}
_OF_EVENT = {"seq": "BIGINT", "ts": "TIMESTAMP"}
_PRODUCER = {"producer": "VARCHAR"}
_OF_VERSION = {"project": "VARCHAR", "name": "VARCHAR", "digest": "VARCHAR"}


@dataclass(frozen=True, slots=True)
class Table:
    """One Parquet file of an export.

    columns: their names, and their types in DuckDB.
    source: the rows in the collector's database, a table or a query, with integers for `producer` and `key`.
    counts: the query source from which the number of rows per key and producer follows, and its expression.
    is_wide: a row may be long, so that few are read at a time.
    """

    columns: dict[str, str]
    source: str
    counts: tuple[str, str] | None = None
    is_wide: bool = True

    @property
    def is_keyed(self) -> bool:
        """Return True if its rows have the integer of a name, by which they are sorted first."""
        return "key" in self.source_columns and "step" in self.columns

    @property
    def source_columns(self) -> tuple[str, ...]:
        """The columns that are read, under their names in the database."""
        renamed = {"phase": "key", "seconds": "value"} if "phase" in self.columns else {}
        return tuple(renamed.get(name, name) for name in self.columns if name not in _OF_RANK)


TABLES = {
    "metrics": Table(
        {**_OF_RANK, **_OF_STEP, "value": "DOUBLE", **_PRODUCER},
        "reads.logged_metrics",
        ("(FROM reads.series WHERE is_metric)", "sum(f.n)::BIGINT"),
        is_wide=False,
    ),
    "phases": Table(
        {**_OF_RANK, "phase": "VARCHAR", "step": "BIGINT", **_OF_EVENT, "seconds": "DOUBLE", **_PRODUCER},
        "reads.logged_phases",
        ("(FROM reads.series WHERE NOT is_metric)", "sum(f.n)::BIGINT"),
        is_wide=False,
    ),
    "texts": Table({**_OF_RANK, **_OF_STEP, "value": "VARCHAR", **_PRODUCER}, "reads.logged_texts"),
    "histograms": Table(
        {**_OF_RANK, **_OF_STEP, "edges": "DOUBLE[]", "counts": "DOUBLE[]", **_PRODUCER}, "reads.logged_histograms"
    ),
    "media": Table(
        {
            **_OF_RANK,
            **_OF_STEP,
            "kind": "VARCHAR",
            "sha256": "VARCHAR",
            "bytes": "BIGINT",
            "metadata": "VARCHAR",
            "stored_at": "TIMESTAMP",
            **_PRODUCER,
        },
        "reads.logged_media",
    ),
    "console": Table(
        {**_OF_LABEL, "stream": "VARCHAR", "line_no": "BIGINT", **_OF_EVENT, "line": "VARCHAR", **_PRODUCER},
        "reads.logged_console",
    ),
    "config": Table(
        {**_OF_LABEL, **_OF_EVENT, "key": "VARCHAR", "value": "VARCHAR", **_PRODUCER}, "reads.logged_config"
    ),
    "summary": Table(
        {**_OF_LABEL, **_OF_EVENT, "key": "VARCHAR", "value": "VARCHAR", **_PRODUCER}, "reads.logged_summary"
    ),
    "definitions": Table(
        {
            **_OF_LABEL,
            **_OF_EVENT,
            "name": "VARCHAR",
            "summary": "VARCHAR",
            "step_metric": "VARCHAR",
            "hidden": "VARCHAR",
            **_PRODUCER,
        },
        "reads.logged_definitions",
    ),
    "config_hashes": Table(
        {**_OF_LABEL, **_OF_EVENT, "is_whole": "BOOLEAN", "hashes": "VARCHAR", **_PRODUCER},
        "reads.logged_config_hashes",
    ),
    "saves": Table(
        {
            **_OF_LABEL,
            **_OF_EVENT,
            "path": "VARCHAR",
            "bytes": "BIGINT",
            "sha256": "VARCHAR",
            "stored_at": "TIMESTAMP",
            **_PRODUCER,
        },
        "reads.logged_files",
    ),
    "artifact_files": Table(
        {
            **_OF_LABEL,
            **_OF_EVENT,
            "digest": "VARCHAR",
            "path": "VARCHAR",
            "bytes": "BIGINT",
            "sha256": "VARCHAR",
            "reference": "VARCHAR",
            "omitted": "VARCHAR",
            "stored_at": "TIMESTAMP",
            **_PRODUCER,
        },
        "reads.logged_artifact_files",
    ),
    "artifacts": Table(
        {
            **_OF_LABEL,
            **_OF_EVENT,
            **_OF_VERSION,
            "type": "VARCHAR",
            "n_files": "BIGINT",
            "bytes": "BIGINT",
            "metadata": "VARCHAR",
            "description": "VARCHAR",
            **_PRODUCER,
        },
        "reads.logged_artifacts",
    ),
    "artifact_aliases": Table(
        {**_OF_LABEL, **_OF_EVENT, **_OF_VERSION, "alias": "VARCHAR", "is_set": "BIGINT", **_PRODUCER},
        "reads.logged_artifact_aliases",
    ),
    "artifact_uses": Table({**_OF_LABEL, **_OF_EVENT, **_OF_VERSION, **_PRODUCER}, "reads.logged_artifact_uses"),
    "run_tags": Table(
        {**_OF_LABEL, **_OF_EVENT, "key": "VARCHAR", "value": "VARCHAR", **_PRODUCER}, "reads.logged_run_tags"
    ),
    # As the view shows them: an early end names its label. Only a `traceback` has a cause.
    "events": Table(
        {
            **_OF_LABEL,
            **_OF_EVENT,
            "kind": "VARCHAR",
            "level": "VARCHAR",
            "message": "VARCHAR",
            "body": "VARCHAR",
            "cause": "VARCHAR",
            **_PRODUCER,
        },
        "reads.logged_events",
    ),
}

# Those whose rows name contents: sha256, and when it arrived.
OF_CONTENTS = ("saves", "media", "artifact_files")

# What belongs to a run by the time and the device, and has no producer in the run: samples, and what GPUs reported.
SYSTEM_COLUMNS = {
    "run_id": "VARCHAR",
    "label": "VARCHAR",
    "rank": "INTEGER",
    "node": "VARCHAR",
    "device": "VARCHAR",
    "name": "VARCHAR",
    "ts": "TIMESTAMP",
    "value": "DOUBLE",
    "n_sharers": "BIGINT",
}
GPU_EVENT_COLUMNS = {
    "run_id": "VARCHAR",
    "node": "VARCHAR",
    **_OF_EVENT,
    "kind": "VARCHAR",
    "level": "VARCHAR",
    "message": "VARCHAR",
    "body": "VARCHAR",
}

# A producer's columns as in the table of the index, except for integers that only this database knows.
PRODUCER_COLUMNS = {
    "producer": "VARCHAR",
    "role": "VARCHAR",
    **_OF_LABEL,
    "is_primary": "BOOLEAN",
    "job_type": "VARCHAR",
    "rank": "INTEGER",
    "local_rank": "INTEGER",
    "world_size": "INTEGER",
    "node": "VARCHAR",
    "pid": "BIGINT",
    "gpus": "VARCHAR[]",
    "launch": "VARCHAR",
    "restart": "BIGINT",
    "state": "VARCHAR",
    "exit_code": "INTEGER",
    "exit_signal": "INTEGER",
    "reason": "VARCHAR",
    "sets_run": "BOOLEAN",
    "started_at": "TIMESTAMP",
    "ended_at": "TIMESTAMP",
    "produced": "BIGINT",
    "fallback": "BOOLEAN",
    "boot": "VARCHAR",
    "late_us": "BIGINT",
    "is_presumed": "BOOLEAN",
    "clock_us": "BIGINT",
    "uptime_us": "BIGINT",
    "hostname": "VARCHAR",
    "rank_pid": "BIGINT",
    "agent_node": "VARCHAR",
    "start_ticks": "BIGINT",
    "is_remote": "BOOLEAN",
    "parent": "VARCHAR",
    "is_coauthor": "BOOLEAN",
    "are_gpus_resolved": "BOOLEAN",
    "cause": "VARCHAR",
    "owner": "VARCHAR",  # of a console: the producer whose lines it sends
    "last_seen_at": "TIMESTAMP",
    "stored": "STRUCT(first_seq BIGINT, last_seq BIGINT)[]",  # closed ranges, ascending
    "lost": "STRUCT(first_seq BIGINT, last_seq BIGINT, reason VARCHAR)[]",
}

# Every Parquet file that an export may have, with its columns.
PARQUET_FILES = {
    "producers": PRODUCER_COLUMNS,
    **{name: table.columns for name, table in TABLES.items()},
    "system": SYSTEM_COLUMNS,
    "gpu_events": GPU_EVENT_COLUMNS,
}
# Columns that have no value in some rows, or that an import does not read. producers.parquet has others.
OPTIONAL_COLUMNS = frozenset(
    {
        *("run_id", "label", "attempt", "rank", "summary", "step_metric", "stored_at", "n_sharers"),
        *("level", "message", "body", "cause", "hidden"),
    }
)
# Columns that exports of earlier versions lack; their values are NULL then.
LATER_COLUMNS = {"definitions": frozenset({"hidden"}), "artifact_files": frozenset({"omitted"})}
OPTIONAL_COLUMNS_OF_TABLES = {"artifact_files": frozenset({"sha256"}), "run_tags": frozenset({"value"})}
REQUIRED_OF_PRODUCERS = frozenset({"producer", "stored"})
EXPORTED_NAMES = {"group": "run_group"}  # columns of a run that have another name on the wire


def directory_name(run_id: str) -> str:
    """Return the name of a run's directory: its ID, with %XX for characters that a name cannot have."""
    name = "".join(
        _encoded(character) if character in "/%" or not character.isprintable() else character for character in run_id
    )
    return f"%2E{name[1:]}" if name.startswith(".") else name


def _encoded(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode())
