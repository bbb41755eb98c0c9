"""The events: the content of one msgpack payload of a producer's journal.

A payload is an array `[kind, ts, field …]`; `ts` is microseconds since the epoch, UTC. EventKind declares each kind:
its number, its fields and its table. New fields go last. A reader that does not know them keeps the payload verbatim.
Every event has a `seq` of its producer: the number of the record that holds it.
"""

from dataclasses import dataclass, field, fields
from enum import Enum, IntEnum, unique
from typing import Any, Self, get_args, get_origin

from chiplog_schemas.codec import CodecError, pack, unpack

PRODUCER_BYTES = 16

# Every group of a block has these columns in addition to its kind's fields. No field may use these names.
ROW_COLUMNS = ("producer", "seq", "ts")


class Column(IntEnum):
    """How a field travels in a block."""

    INT = 1  # little-endian int64
    OBJECT = 2  # any msgpack value
    KEYS = 3  # the tuple of keys that the rows of a group share: msgpack array of str, as bin
    VALUES = 4  # one row of the matrix: little-endian float64 per key, as bin


@unique
class Field(Enum):
    """What a field holds: how it travels, its type in the table of its kind, and what tells it from others of both."""

    INT = Column.INT, "BIGINT"
    TEXT = Column.OBJECT, "VARCHAR"
    OPTIONAL_TEXT = Column.OBJECT, "VARCHAR", "text or NULL"  # a text, or nil
    NAME = Column.OBJECT, "INTEGER"  # a text; the table has its number in base.names
    FLOATS = Column.OBJECT, "DOUBLE[]"  # float64, as bin
    STREAM = Column.INT, "VARCHAR"  # see CONSOLE_STREAMS
    DIGEST = Column.OBJECT, "VARCHAR", "hex digits"  # a SHA-256: 32 bytes
    OPTIONAL_DIGEST = Column.OBJECT, "VARCHAR", "hex digits or NULL"  # a SHA-256, or nil
    JSON = Column.OBJECT, "VARCHAR", "JSON"  # a JSON text
    OBJECT = Column.OBJECT, ""  # any value; only in kinds without a table
    KEYS = Column.KEYS, ""
    VALUES = Column.VALUES, ""

    def __init__(self, column: Column, sql_type: str, form: str = "") -> None:
        self.column = column
        self.sql_type = sql_type
        self.form = form


@dataclass(frozen=True, slots=True)
class EventSpec:
    """Everything that an event kind declares.

    fields: in their order on the wire. table: of the schema `base`. If the fields have a matrix, each of its values is
    a row of the table; else each event is a row. Without a table, the index has a method for the kind. defaults: of
    the last fields, which events of older writers lack; a kind above LAST_GROUP_KIND may have some.
    """

    fields: dict[str, Field]
    table: str = ""
    defaults: tuple[Any, ...] = ()

    @property
    def has_matrix(self) -> bool:
        """Return True if an event has one float64 for each of its keys."""
        return Field.VALUES in self.fields.values()

    @property
    def row(self) -> tuple[str, ...]:
        """The columns of the row that an event is; empty if it is not one row."""
        return (*ROW_COLUMNS, *self.fields) if self.table and not self.has_matrix else ()


class EventKind(IntEnum):
    """The kind of an event. Numbers are never reused."""

    # the numbers of one step, from one call
    METRICS = 1, EventSpec({"step": Field.INT, "keys": Field.KEYS, "values": Field.VALUES}, table="metrics")
    # seconds spent in each phase of a step
    PHASES = 2, EventSpec({"step": Field.INT, "keys": Field.KEYS, "values": Field.VALUES}, table="phases")
    TEXT = 3, EventSpec({"step": Field.INT, "key": Field.NAME, "value": Field.TEXT}, table="texts")
    # n + 1 edges, n counts
    HISTOGRAM = (
        4,
        EventSpec(
            {"step": Field.INT, "key": Field.NAME, "edges": Field.FLOATS, "counts": Field.FLOATS}, table="histograms"
        ),
    )
    CONSOLE = 5, EventSpec({"stream": Field.STREAM, "line_no": Field.INT, "line": Field.TEXT}, table="console")
    CONFIG = 6, EventSpec({"values": Field.OBJECT})  # {key: JSON text}
    SUMMARY = 7, EventSpec({"values": Field.OBJECT})  # {key: JSON text}
    # who the producer is: the first event of a journal, repeated when more is known; see IDENTITY_FIELDS
    IDENTITY = 8, EventSpec({"identity": Field.OBJECT})
    # how the producer's label ended, reported by the producer itself; see STATE_FIELDS
    STATE = 9, EventSpec({"state": Field.OBJECT})
    # seqs that can never arrive. about: a producer's 16 bytes; empty: the producer of the event itself
    LOST = (
        10,
        EventSpec({"about": Field.OBJECT, "first": Field.INT, "last": Field.INT, "reason": Field.OBJECT}),
    )
    # an alert, a restart, a refusal …: a row of the view `events`
    # notice: one word; level: debug, info, warning, error; body: {str: plain value}
    NOTICE = (
        11,
        EventSpec({"notice": Field.OBJECT, "level": Field.OBJECT, "message": Field.OBJECT, "body": Field.OBJECT}),
    )
    # a sample of one device (agents only)
    SYSTEM = 12, EventSpec({"device": Field.NAME, "keys": Field.KEYS, "values": Field.VALUES}, table="system")
    # what an agent knows about another producer: where its process runs, and how it ended
    # about: 16 bytes; state: see STATE_FIELDS
    PEER = 13, EventSpec({"about": Field.OBJECT, "state": Field.OBJECT})
    # a saved file; its bytes are sent separately. sha256: 32 bytes
    FILE = 14, EventSpec({"path": Field.OBJECT, "bytes": Field.INT, "sha256": Field.OBJECT})
    # the summary of a metric, and the metric on its x axis; see DEFINITION_FIELDS
    DEFINE = 15, EventSpec({"name": Field.OBJECT, "definition": Field.OBJECT})
    # hashes of a rank's config, which the index compares with the primary's. whole: 1 or 0; hashes: {key: hex digits}
    CONFIG_HASHES = 16, EventSpec({"whole": Field.INT, "hashes": Field.OBJECT})
    # from an import, about the producer of the event; see import_event.py
    IMPORTED = 17, EventSpec({"body": Field.OBJECT})
    # an image, a table … at a step; its bytes are sent separately. media: its kind; metadata: a JSON object
    MEDIA = (
        18,
        EventSpec(
            {
                "step": Field.INT,
                "key": Field.NAME,
                "kind": Field.TEXT,
                "sha256": Field.DIGEST,
                "bytes": Field.INT,
                "metadata": Field.JSON,
            },
            table="media",
        ),
    )
    # an entry of a manifest, before the ARTIFACT that has the manifest's digest; bytes of files are sent separately.
    # reference: where its content is; empty: it is a file. omitted: why its bytes are not sent; empty: they are
    ARTIFACT_FILE = (
        19,
        EventSpec(
            {
                "digest": Field.DIGEST,
                "path": Field.TEXT,
                "bytes": Field.INT,
                "sha256": Field.OPTIONAL_DIGEST,
                "reference": Field.TEXT,
                "omitted": Field.TEXT,
            },
            table="artifact_files",
            defaults=("",),
        ),
    )
    # a version of an artifact was logged. project: as its label knows it, or empty; metadata: a JSON object
    ARTIFACT = (
        20,
        EventSpec(
            {
                "project": Field.TEXT,
                "name": Field.TEXT,
                "type": Field.TEXT,
                "digest": Field.DIGEST,
                "n_files": Field.INT,
                "bytes": Field.INT,
                "metadata": Field.JSON,
                "description": Field.TEXT,
            },
            table="artifacts",
        ),
    )
    # an alias of a version. is_set: 1; 0: no version has it any more
    ARTIFACT_ALIAS = (
        21,
        EventSpec(
            {
                "project": Field.TEXT,
                "name": Field.TEXT,
                "digest": Field.DIGEST,
                "alias": Field.TEXT,
                "is_set": Field.INT,
            },
            table="artifact_aliases",
        ),
    )
    # the producer's run uses a version
    ARTIFACT_USE = (
        22,
        EventSpec({"project": Field.TEXT, "name": Field.TEXT, "digest": Field.DIGEST}, table="artifact_uses"),
    )
    # a tag of the run, from any label. value: nil removes it
    TAG = 23, EventSpec({"key": Field.TEXT, "value": Field.OPTIONAL_TEXT}, table="run_tags")

    spec: EventSpec

    def __new__(cls, number: int, spec: EventSpec) -> Self:
        kind = int.__new__(cls, number)
        kind._value_ = number
        kind.spec = spec
        return kind


# By kind: the fields in their order, and how they travel.
FIELDS: dict[int, tuple[tuple[str, Column], ...]] = {
    kind: tuple((name, what.column) for name, what in kind.spec.fields.items()) for kind in EventKind
}
_DEFAULTS: dict[int, tuple[Any, ...]] = {kind: kind.spec.defaults for kind in EventKind}
MATRIX_KINDS = frozenset(kind for kind in EventKind if kind.spec.has_matrix)

# Marks of entries of an identity: kept by an agent; also not read by the index; copied to base.producers by the index.
# "run": the column of base.runs that the index copies the entry to.
_AGENT = {"agent": True}
_AGENT_ONLY = {"agent": True, "agent_only": True}
_COPIED = {"copied": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdentity:
    """Who a producer is: the map of an IDENTITY event, of a journal's head page and of HELLO. None: absent."""

    role: str | None = field(default=None, metadata=_COPIED)  # rank, agent, console or canary
    run_id: str | None = field(default=None, metadata=_AGENT)
    project: str | None = field(default=None, metadata={"run": "project"})
    name: str | None = field(default=None, metadata={"run": "name"})
    group: str | None = field(default=None, metadata={"run": "run_group"})
    job_type: str | None = field(default=None, metadata={"run": "job_type"} | _COPIED)
    tags: list[str] | None = field(default=None, metadata={"run": "tags"})
    notes: str | None = field(default=None, metadata={"run": "notes"})
    label: str | None = field(default=None, metadata=_AGENT)
    primary: bool | None = None  # claims to be the primary
    sets_run: bool | None = None  # whether the run's state follows this label's; by default it follows the primary's
    rank: int | None = field(default=None, metadata=_AGENT | _COPIED)
    local_rank: int | None = field(default=None, metadata=_COPIED)
    world_size: int | None = field(default=None, metadata=_COPIED)
    node: str | None = None
    hostname: str | None = None  # of the machine or container, without domain; absent: same as node
    pid: int | None = field(default=None, metadata=_AGENT)
    gpus: list[str] | None = None  # UUIDs
    # The same for all processes of one launcher, restarts included.
    launch: str | None = field(default=None, metadata=_COPIED)
    restart: int | None = field(default=None, metadata=_COPIED)  # the launcher's restart count
    started_at: int | None = field(default=None, metadata=_AGENT)  # µs since the epoch
    sdk: str | None = None  # version
    of: str | None = None  # consoles only: the producer, 32 hex digits, whose label the lines belong to
    fallback: bool | None = None  # claims to be primary only until another rank makes a firm claim
    # The run ID that it used until the ranks agreed on this one: the same run under another name.
    formerly: str | None = None
    boot: str | None = field(default=None, metadata=_AGENT | _COPIED)  # ID of the boot of its machine
    # Where torchelastic expects the exception that ends this process.
    error_file: str | None = field(default=None, metadata=_AGENT_ONLY)
    # µs since the boot of its machine, which no clock change affects; at its first identity.
    uptime: int | None = field(default=None, metadata=_AGENT)
    # Of a daemonic child of multiprocessing: the parent that ends it; see pool_owners.py.
    owner: str | None = field(default=None, metadata=_AGENT)
    # Label of the process with an open run that started this rank, unless that process is a rank itself.
    parent: str | None = None
    resume: str | None = None  # what its run_id requires: `must` exist, or `never`, must be new; absent: either
    resume_launch: str | None = None  # the launch to which `resume` applies, where a parent's is followed; absent: own
    pid_namespace: int | None = field(default=None, metadata=_AGENT)  # inode of the PID namespace of `pid`
    # What the process knows about its GPUs; see PROTOCOL.md §5.
    gpu_claim: dict[str, Any] | None = field(default=None, metadata=_AGENT_ONLY)
    # Seconds between samples of its machine that it asks for; 0: none.
    sample_interval_s: float | None = field(default=None, metadata=_AGENT_ONLY)

    def to_map(self) -> dict[str, Any]:
        """Return the entries that are present."""
        return {name: value for name in IDENTITY_FIELDS if (value := getattr(self, name)) is not None}


def marked_entries(mark: str) -> dict[str, Any]:
    """Return the entries of an identity with a mark, and the mark's value."""
    return {entry.name: entry.metadata[mark] for entry in fields(ProducerIdentity) if mark in entry.metadata}


# The type of each entry: `list` for `list[str] | None`.
IDENTITY_FIELDS: dict[str, type | tuple[type, ...]] = {
    entry.name: get_origin(get_args(entry.type)[0]) or get_args(entry.type)[0] for entry in fields(ProducerIdentity)
}

STATE_FIELDS: dict[str, type | tuple[type, ...]] = {
    "state": str,  # finished, failed, crashed
    "exit_code": int,
    "exit_signal": int,
    "reason": str,
    "produced": int,  # how many seqs the producer assigned (PEER only)
    "late_us": int,  # it may have ended up to this much earlier than `ts` (PEER only); absent: 0
    "detail": dict,  # {str: plain value}: traceback, source of the status …; becomes the body of the row in `events`
    "node": str,  # of the agent that delivers it (this and the next three: PEER only)
    "pid": int,  # of its process, in the PID namespace of its agent
    "start": int,  # of that process, in clock ticks since boot; only if the agent saw it running
    "remote": bool,  # it runs on a machine other than its agent's; absent: false
    "gpus": list,  # UUIDs of the GPUs that it uses, from NVML (PEER only)
    "cause": str,  # an EndCause, of an end other than `finished`; absent from older writers
}

LOCATION_FIELDS = {name: STATE_FIELDS[name] for name in ("node", "pid", "start", "remote")}

DEFINITION_FIELDS: dict[str, type | tuple[type, ...]] = {
    "summary": str,  # one of SUMMARIES
    "step_metric": str,  # name of the metric on the x axis
    "hidden": bool,  # the page draws no curve of it until someone asks for it
}

RESUME_DEMANDS = ("must", "never")
SUMMARIES = ("min", "max", "mean", "last", "first", "none")
STATES = ("running", "finished", "failed", "crashed")
CONSOLE_STREAMS = {1: "stdout", 2: "stderr"}


def encode(kind: EventKind, ts: int, *fields: Any) -> bytes:
    """Encode one event. `ts` in microseconds. Raises CodecError when a field is not a plain value."""
    assert 0 <= len(FIELDS[kind]) - len(fields) <= len(kind.spec.defaults), (kind, fields)
    return pack([int(kind), ts, *fields])


def decode(payload: bytes | memoryview) -> list[Any]:
    """Decode `[kind, ts, field …]` of any kind, known or not. Raises CodecError if the payload is not an event."""
    event = unpack(payload)
    if not (isinstance(event, list) and len(event) >= 2 and type(event[0]) is int and _is_int64(event[1])):
        raise CodecError("an event is an array of kind, time and fields")
    return event


def with_known_fields(event: list[Any]) -> list[Any]:
    """Return a decoded event without fields that this version does not know, and with the defaults of absent ones."""
    n_fields = len(FIELDS.get(event[0], event[2:]))
    n_absent = n_fields + 2 - len(event)
    return event[: n_fields + 2] if n_absent <= 0 else [*event, *_DEFAULTS[event[0]][-n_absent:]]


def matches_schema(event: list[Any]) -> bool:
    """Return True if a decoded event has exactly the fields that FIELDS defines for its kind, of the right types."""
    fields = FIELDS.get(event[0])
    if fields is None or len(event) != len(fields) + 2:
        return False
    for (_, column), value in zip(fields, event[2:], strict=True):
        if column is Column.INT:
            if not _is_int64(value):
                return False
        elif column is not Column.OBJECT and type(value) is not bytes:
            return False
    return True


def select_typed(body: Any, fields: dict[str, type | tuple[type, ...]]) -> dict[str, Any]:
    """Return the entries of a decoded map that `fields` knows and whose values have the right type.

    Peers are not trusted.
    """
    if not isinstance(body, dict):
        return {}
    known = {}
    for name, kind in fields.items():
        value = body.get(name)
        # safeguard: identity-types-checked
        if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
            known[name] = value
    return known


def _is_int64(value: Any) -> bool:
    return type(value) is int and -(1 << 63) <= value < (1 << 63)


assert not any(name in ROW_COLUMNS for fields in FIELDS.values() for name, _ in fields)
