"""Apply IMPORTED events, pure: what an import says about a producer, as another collector had decided it.

An event that is invalid in any part changes nothing. An event about a producer whose identity is known changes nothing
either: what its own agent delivered here, or an earlier import, has priority.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from chiplog_collector.index.apply.apply_context import REASON_CHARS_MAX, ApplyContext
from chiplog_collector.index.apply.label_checks import REPORTED_MAX
from chiplog_collector.index.apply.ledger import CLOCK_US_MAX, Ledger
from chiplog_collector.index.apply.registry import (
    CONSOLE,
    LATE_US_MAX,
    RUN_COLUMNS,
    RunRegistry,
    int32_of,
    plain_fields,
)
from chiplog_collector.index.apply.state import Producer, Run
from chiplog_collector.index.apply.validation import count_of, digest_of, json_of, text_of, uuid_of
from chiplog_schemas.limits import SEQ_END
from chiplog_schemas.model.codes import end_cause
from chiplog_schemas.model.events import STATES, select_typed
from chiplog_schemas.model.import_event import PRODUCER_FIELDS, RUN_FIELDS
from chiplog_schemas.storage.content_files import invalid_path_reason

_INT32_FIELDS = ("rank", "local_rank", "world_size", "exit_code", "exit_signal")

Rows = list[tuple[Any, ...]]


@dataclass(slots=True)
class ImportedPart:
    """A valid IMPORTED event. producer, run: None in an event that has only rows and seqs."""

    producer: dict[str, Any] | None = None
    run: dict[str, Any] | None = None
    owner: bytes | None = None
    seen_us: int = 0
    seqs: list[tuple[int, int]] = field(default_factory=list)
    lost: Rows = field(default_factory=list)
    config: Rows = field(default_factory=list)
    files: Rows = field(default_factory=list)
    stored: Rows = field(default_factory=list)
    events: Rows = field(default_factory=list)


class RunImporter:
    """Applies IMPORTED events to a State."""

    def __init__(self, context: ApplyContext, ledger: Ledger, registry: RunRegistry) -> None:
        self._context = context
        self._ledger = ledger
        self._registry = registry

    def apply(self, producer: Producer, seq: int, ts: int, body: Any) -> None:
        """Apply one event. Raises TypeError or ValueError for an invalid one; then nothing has changed."""
        part = parse_part(body)
        if producer.role is not None:  # safeguard: known-producer-keeps-identity
            return
        if part.producer is not None:
            self._enter(producer, part)
        self._ledger.admit_imported(producer, seq, part.seqs, part.seen_us)
        for first, last, reason in part.lost:
            self._ledger.declare_lost(producer, first, last, reason)
        for table, rows in (("config", part.config), ("files", part.files)):
            for row in rows:
                self._context.batch.add(table, (producer.producer, *row))
        for row in part.stored:
            self._context.batch.add("stored", row)
        for row_seq, row_ts, kind, level, message, details, cause in part.events:
            self._context.emit_event(producer, row_seq, row_ts, kind, level, message, details, cause=cause)

    def _enter(self, producer: Producer, part: ImportedPart) -> None:
        """Enter who a producer is, and its run if it has one."""
        described = part.producer or {}
        before = {
            name: getattr(producer, name) for name in ("launch", "restart", "boot", "uptime_us", "node", "agent_node")
        }
        for name in before:
            if name in described:  # attempts are counted, and nodes compared, when it enters its run
                setattr(producer, name, described[name])
        if part.run is not None:
            try:
                run = self._registry.enter_imported(producer, part.run["run_id"], described["label"])
            except ValueError:
                for name, value in before.items():
                    setattr(producer, name, value)
                raise
            self._describe(run, part.run)
            is_same = run.primary_label == part.run.get("primary_label")
            described["is_primary"] = described.get("is_primary", False) and run.primary_label == described["label"]
            described["is_coauthor"] = described.get("is_coauthor", False) and is_same
        for name, value in described.items():
            if name != "label":
                setattr(producer, name, value)
        if part.owner is not None and producer.role == CONSOLE and part.owner not in self._context.state.deleted:
            self._context.state.set_owner(producer, self._context.producer(part.owner))
        self._context.batch.producers.add(producer.producer)

    def _describe(self, run: Run, described: dict[str, Any]) -> None:
        """Fill the fields of a run that are unknown here."""
        for name, column in RUN_COLUMNS.items():
            if name in described and not getattr(run, column) and column not in run.edited:
                setattr(run, column, described[name])
        if run.primary_label is None:
            run.primary_label, run.primary_launch = described.get("primary_label"), described.get("primary_launch")
            run.primary_restart = described.get("primary_restart", 0)
        run.told += [what for what in described.get("told", []) if what not in run.told][
            : max(0, REPORTED_MAX - len(run.told))
        ]
        self._context.batch.runs.add(run.run)


def parse_part(body: Any) -> ImportedPart:
    """Validate the map of an IMPORTED event. Raises TypeError or ValueError."""
    if not isinstance(body, dict):
        raise TypeError("an import is a map")
    part = ImportedPart(seen_us=_time_of(body.get("seen_at", 0)), seqs=_ranges_of(body.get("seqs", [])))
    if "producer" in body:
        part.producer = _producer_of(body["producer"])
        part.run = _run_of(body["run"]) if "run" in body else None
        if part.run is not None and "label" not in part.producer:
            raise ValueError("a producer of a run has no label")
        part.owner = uuid_of(body["owner"]) if "owner" in body else None
    part.lost = _rows_of(body, "lost", _seq_of, _seq_of, lambda reason: text_of(reason)[:REASON_CHARS_MAX])
    part.config = _rows_of(body, "config", _seq_of, _time_of, text_of, json_of)
    part.files = _rows_of(body, "files", _seq_of, _time_of, _path_of, count_of, digest_of)
    part.stored = _rows_of(body, "stored", digest_of, count_of, _time_of)
    part.events = _rows_of(body, "events", _seq_of, _time_of, text_of, text_of, text_of, _details_of, end_cause)
    return part


def _producer_of(given: Any) -> dict[str, Any]:
    described, _ = plain_fields(select_typed(given, PRODUCER_FIELDS))
    if not described.get("role"):
        raise ValueError("a producer has no role")
    if described.get("state", "running") not in STATES:
        raise ValueError(f"state {described['state']!r:.40} must be one of {', '.join(STATES)}")
    for name in _INT32_FIELDS:
        if name in described and int32_of(described[name]) is None:
            del described[name]
    if not 0 <= described.get("produced", 0) < SEQ_END:
        del described["produced"]
    if abs(described.get("clock_us", 0)) >= CLOCK_US_MAX:
        del described["clock_us"]
    described["late_us"] = min(max(0, described.get("late_us", 0)), LATE_US_MAX)
    cause = end_cause(described.pop("cause", None))
    return described if cause is None else {**described, "cause": cause.value}


def _run_of(given: Any) -> dict[str, Any]:
    described, _ = plain_fields(select_typed(given, RUN_FIELDS))
    if not described.get("run_id"):
        raise ValueError("a run has no ID")
    return described


def _rows_of(body: dict[str, Any], name: str, *checks: Callable[[Any], Any]) -> Rows:
    given = body.get(name, [])
    if not isinstance(given, list):
        raise TypeError(f"{name} is not a list of rows")
    return [tuple(check(value) for check, value in zip(checks, row, strict=True)) for row in given]


def _ranges_of(flat: Any) -> list[tuple[int, int]]:
    if not isinstance(flat, list):
        raise TypeError("seqs are a list of first, last, first, last …")
    ranges = [(_seq_of(first), _seq_of(last)) for first, last in zip(flat[::2], flat[1::2], strict=True)]
    previous = -1
    for first, last in ranges:
        if not previous < first <= last:
            raise ValueError(f"seqs {first}..{last} are not ascending")
        previous = last
    return ranges


def _seq_of(value: Any) -> int:
    if type(value) is not int or not 0 <= value < SEQ_END:
        raise ValueError(f"{value!r:.40} is not a seq")
    return value


def _time_of(value: Any) -> int:
    if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
        raise ValueError(f"{value!r:.40} is not a time")
    return value


def _path_of(value: Any) -> str:
    path = text_of(value)
    if (reason := invalid_path_reason(path)) is not None:
        raise ValueError(f"path {path!r:.80}: {reason}")
    return path


def _details_of(value: Any) -> dict[str, Any]:
    details = json.loads(json_of(value))
    if not isinstance(details, dict):
        raise TypeError("the body of an event is a JSON object")
    return details
