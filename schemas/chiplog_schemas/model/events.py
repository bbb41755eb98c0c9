"""The events: the content of one msgpack payload of a producer's journal.

A payload is an array `[kind, ts, field …]`; `ts` is microseconds since the epoch, UTC. FIELDS names the fields of each
kind and their column types. New fields go last. A reader that does not know them keeps the payload verbatim.
Every event has a `seq` of its producer: the number of the record that holds it.
"""

from enum import IntEnum
from typing import Any

from chiplog_schemas.codec import CodecError, pack, unpack

PRODUCER_BYTES = 16


class EventKind(IntEnum):
    """The kind of an event. Numbers are never reused."""

    METRICS = 1  # the numbers of one step, from one call
    PHASES = 2  # seconds spent in each phase of a step
    TEXT = 3
    HISTOGRAM = 4
    CONSOLE = 5
    CONFIG = 6
    SUMMARY = 7
    IDENTITY = 8  # who the producer is: the first event of a journal, repeated when more is known
    STATE = 9  # how the producer's label ended, reported by the producer itself
    LOST = 10  # seqs that can never arrive
    NOTICE = 11  # an alert, a restart, a refusal …: a row of the view `events`
    SYSTEM = 12  # a sample of one device (agents only)
    PEER = 13  # what an agent knows about another producer: where its process runs, and how it ended
    FILE = 14  # a saved file; its bytes are sent separately
    DEFINE = 15  # the summary of a metric, and the metric on its x axis
    CONFIG_HASHES = 16  # hashes of a rank's config, which the index compares with the primary's


# Every group of a block has these columns in addition to its kind's fields. No field may use these names.
ROW_COLUMNS = ("producer", "seq", "ts")


class Column(IntEnum):
    """How a field travels in a block."""

    INT = 1  # little-endian int64
    OBJECT = 2  # any msgpack value
    KEYS = 3  # the tuple of keys that the rows of a group share: msgpack array of str, as bin
    VALUES = 4  # one row of the matrix: little-endian float64 per key, as bin


FIELDS: dict[int, tuple[tuple[str, Column], ...]] = {
    EventKind.METRICS: (("step", Column.INT), ("keys", Column.KEYS), ("values", Column.VALUES)),
    EventKind.PHASES: (("step", Column.INT), ("keys", Column.KEYS), ("values", Column.VALUES)),
    EventKind.TEXT: (("step", Column.INT), ("key", Column.OBJECT), ("value", Column.OBJECT)),
    EventKind.HISTOGRAM: (
        ("step", Column.INT),
        ("key", Column.OBJECT),
        ("edges", Column.OBJECT),  # float64 × (n + 1), as bin
        ("counts", Column.OBJECT),  # float64 × n, as bin
    ),
    EventKind.CONSOLE: (("stream", Column.INT), ("line_no", Column.INT), ("line", Column.OBJECT)),
    EventKind.CONFIG: (("values", Column.OBJECT),),  # {key: JSON text}
    EventKind.SUMMARY: (("values", Column.OBJECT),),  # {key: JSON text}
    EventKind.IDENTITY: (("identity", Column.OBJECT),),  # see IDENTITY_FIELDS
    EventKind.STATE: (("state", Column.OBJECT),),  # see STATE_FIELDS
    EventKind.LOST: (
        ("about", Column.OBJECT),  # a producer's 16 bytes; empty: the producer of the event itself
        ("first", Column.INT),
        ("last", Column.INT),
        ("reason", Column.OBJECT),
    ),
    EventKind.NOTICE: (
        ("notice", Column.OBJECT),  # one word: alert, bad_value, restart …
        ("level", Column.OBJECT),  # debug, info, warning, error
        ("message", Column.OBJECT),
        ("body", Column.OBJECT),  # {str: plain value}
    ),
    EventKind.SYSTEM: (("device", Column.OBJECT), ("keys", Column.KEYS), ("values", Column.VALUES)),
    EventKind.PEER: (("about", Column.OBJECT), ("state", Column.OBJECT)),  # 16 bytes, see STATE_FIELDS
    EventKind.FILE: (("path", Column.OBJECT), ("bytes", Column.INT), ("sha256", Column.OBJECT)),  # the last: 32 bytes
    EventKind.DEFINE: (("name", Column.OBJECT), ("definition", Column.OBJECT)),  # str, see DEFINITION_FIELDS
    EventKind.CONFIG_HASHES: (("whole", Column.INT), ("hashes", Column.OBJECT)),  # 1 or 0; {key: hex digits}
}

MATRIX_KINDS = frozenset({EventKind.METRICS, EventKind.PHASES, EventKind.SYSTEM})

IDENTITY_FIELDS: dict[str, type | tuple[type, ...]] = {
    "role": str,  # rank, agent or console
    "run_id": str,
    "project": str,
    "name": str,
    "group": str,
    "job_type": str,
    "tags": list,
    "notes": str,
    "label": str,
    "primary": bool,  # claims to be the primary
    "sets_run": bool,  # whether the run's state follows this label's; by default it follows the primary's
    "rank": int,
    "local_rank": int,
    "world_size": int,
    "node": str,
    "pid": int,
    "gpus": list,  # UUIDs
    "launch": str,  # the same for all processes of one launcher, restarts included
    "restart": int,  # the launcher's restart count
    "started_at": int,  # µs since the epoch
    "sdk": str,  # version
    "of": str,  # consoles only: the producer, 32 hex digits, whose label the lines belong to
    "fallback": bool,  # claims to be primary only until another rank makes a firm claim
    "formerly": str,  # the run ID that it used until the ranks agreed on this one: the same run under another name
    "boot": str,  # ID of the boot of its machine
    "error_file": str,  # where torchelastic expects the exception that ends this process
    "uptime": int,  # µs since the boot of its machine, which no clock change affects; at its first identity
    "owner": str,  # of a daemonic child of multiprocessing: the parent that ends it; see owners.py
    "resume": str,  # what its run_id requires: `must` exist, or `never`, must be new; absent: either
    "parent": str,  # label of the process with an open run that started this rank, unless that process is a rank itself
    "resume_launch": str,  # the launch to which `resume` applies, where a parent's is followed; absent: its own
    "hostname": str,  # of the machine or container, without domain; absent: same as node
    "pid_namespace": int,  # inode of the PID namespace that `pid` belongs to
    "gpu_claim": dict,  # for its agent: what the process knows about its GPUs; see PROTOCOL.md §5
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
}

RESUME_DEMANDS = ("must", "never")
SUMMARIES = ("min", "max", "mean", "last", "first", "none")
STATES = ("running", "finished", "failed", "crashed")
CONSOLE_STREAMS = {1: "stdout", 2: "stderr"}


def encode(kind: EventKind, ts: int, *fields: Any) -> bytes:
    """Encode one event. `ts` in microseconds. Raises CodecError when a field is not a plain value."""
    assert len(fields) == len(FIELDS[kind]), (kind, fields)
    return pack([int(kind), ts, *fields])


def decode(payload: bytes | memoryview) -> list[Any]:
    """Decode `[kind, ts, field …]` of any kind, known or not. Raises CodecError if the payload is not an event."""
    event = unpack(payload)
    if not (isinstance(event, list) and len(event) >= 2 and type(event[0]) is int and _is_int64(event[1])):
        raise CodecError("an event is an array of kind, time and fields")
    return event


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
