"""How events become rows, pure: a group of one kind at once where its events are independent, else event by event."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chiplog_collector.index.apply.apply_context import QUARANTINE_BYTES_MAX, REASON_CHARS_MAX, ApplyContext
from chiplog_collector.index.apply.definitions import definition_of, hashes_of
from chiplog_collector.index.apply.imports import RunImporter
from chiplog_collector.index.apply.ledger import Ledger, Mask
from chiplog_collector.index.apply.registry import RunRegistry
from chiplog_collector.index.apply.state import Producer
from chiplog_collector.index.apply.validation import (
    as_list,
    clean,
    digest_of,
    floats_of,
    json_of,
    optional_digest_of,
    optional_text_of,
    text_of,
    uuid_of,
)
from chiplog_collector.index.apply.write_batch import Matrix
from chiplog_schemas.codec import CodecError
from chiplog_schemas.limits import NAME_CHARS_MAX
from chiplog_schemas.model.block_decoder import Group
from chiplog_schemas.model.block_format import OPAQUE, keys_of
from chiplog_schemas.model.codes import EndCause, QuarantineCode, end_cause
from chiplog_schemas.model.end_text import cause_of_exception
from chiplog_schemas.model.events import (
    CONSOLE_STREAMS,
    FIELDS,
    LOCATION_FIELDS,
    MATRIX_KINDS,
    EventKind,
    Field,
    decode,
    matches_schema,
    select_typed,
    with_known_fields,
)

_KEY_IDS_BYTES_MAX = 64 << 20  # of tuples of keys whose integers are cached: those of the active runs
_PROJECT_CHARS_MAX = 1_024  # of an artifact, kept in memory forever like its name
_ROW_TABLES: dict[int, str] = {kind: kind.spec.table for kind in EventKind if kind.spec.row}
_MATRIX_TABLES: dict[int, str] = {kind: kind.spec.table for kind in MATRIX_KINDS}

Row = tuple[int, int, int, int, list[Any]]  # producer, seq, kind, ts, fields
Columns = list[list[Any]]


class EventHandlers:
    """Apply the events of a block. is_authorized: returns True if the block's sender may report about a producer."""

    def __init__(
        self, context: ApplyContext, ledger: Ledger, registry: RunRegistry, is_authorized: Callable[[bytes], bool]
    ) -> None:
        self._context = context
        self._ledger = ledger
        self._registry = registry
        self._is_authorized = is_authorized
        self._key_ids: dict[bytes, tuple[int, ...]] = {}
        self._key_ids_bytes = 0
        checks: dict[Field, Callable[[Any], Any] | None] = {
            Field.INT: None,
            Field.TEXT: text_of,
            Field.OPTIONAL_TEXT: optional_text_of,
            Field.NAME: lambda value: self._context.name(text_of(value)),
            Field.FLOATS: floats_of,
            Field.STREAM: lambda value: CONSOLE_STREAMS.get(value, str(value)),
            Field.DIGEST: digest_of,
            Field.OPTIONAL_DIGEST: optional_digest_of,
            Field.JSON: json_of,
        }
        self._checks: dict[int, list[Callable[[Any], Any] | None]] = {
            kind: [checks[field] for field in kind.spec.fields.values()] for kind in EventKind if kind.spec.row
        }
        # How to apply one event of each kind, except samples, which are always a matrix.
        self._by_kind: dict[int, Callable[..., None]] = {
            **{kind: partial(self._add_row, kind) for kind in _ROW_TABLES},
            EventKind.METRICS: partial(self._add_points, "metrics"),
            EventKind.PHASES: partial(self._add_points, "phases"),
            EventKind.CONFIG: registry.config,
            EventKind.SUMMARY: self._apply_summary,
            EventKind.IDENTITY: registry.identity,
            EventKind.STATE: partial(registry.ended, by_itself=True),
            EventKind.LOST: self._apply_lost,
            EventKind.NOTICE: self._apply_notice,
            EventKind.PEER: self._apply_peer,
            EventKind.FILE: registry.file,
            EventKind.DEFINE: self._apply_definition,
            EventKind.CONFIG_HASHES: self._apply_config_hashes,
            EventKind.IMPORTED: RunImporter(context, ledger, registry).apply,
        }

    def apply_group(self, group: Group, numbers: NDArray[np.int32], keys: tuple[int, ...], mask: Mask) -> None:
        """Apply a group of independent events. numbers: its producers' integers. keys: the names of its matrix."""
        if group.kind in _ROW_TABLES:
            columns = _columns_of(group, numbers, mask)
            try:
                self._add_rows(group.kind, columns[:3], columns[3:])
            except Exception:  # caused by one of the events: the others count
                self.apply_rows(rows_of(group, numbers, mask))
            return
        if group.kind == EventKind.SYSTEM:
            devices = [self._context.name(clean(str(device))[:REASON_CHARS_MAX]) for device in group.columns["device"]]
            lead = np.array(devices, dtype=np.int64)
        else:
            lead = group.columns["step"]
        self._add_matrix(getattr(self._context.batch, _MATRIX_TABLES[group.kind]), group, lead, numbers, keys, mask)

    def _add_matrix(
        self,
        target: dict[tuple[int, ...], list[Matrix]],
        group: Group,
        lead: NDArray[np.int64],
        numbers: NDArray[np.int32],
        keys: tuple[int, ...],
        mask: Mask,
    ) -> None:
        values = group.columns["values"]
        matrix = Matrix(numbers[group.producer], lead, group.seq, group.ts, values)
        if mask is not None:
            matrix = Matrix(matrix.producer[mask], lead[mask], group.seq[mask], group.ts[mask], values[mask])
        target.setdefault(keys, []).append(matrix)
        self._context.batch.n_points += matrix.values.size

    def apply_rows(self, rows: list[Row]) -> None:
        """Apply events one by one, in this order."""
        for number, seq, kind, ts, fields in rows:
            producer = self._context.state.producers_by_number.get(number)
            if producer is None:
                continue  # deleted by an event before
            if kind == OPAQUE:
                self._apply_opaque(producer, seq, ts, fields[0])
            else:
                self._apply_event(kind, producer, seq, ts, fields)

    def _apply_opaque(self, producer: Producer, seq: int, ts: int, payload: Any) -> None:
        """Apply an event that the agent could not decode: this version may know its kind."""
        data = payload if isinstance(payload, bytes) else b""
        try:
            event = decode(data)
            known = with_known_fields(event)
            if matches_schema(known):
                self._apply_event(known[0], producer, seq, known[1], known[2:])
                return
            reason = f"event of kind {event[0]} with {len(event) - 2} fields is unknown"
        except CodecError as error:
            reason = str(error)
        self._reject(producer, seq, ts, OPAQUE, QuarantineCode.UNKNOWN_EVENT, reason[:REASON_CHARS_MAX], data)

    def _apply_event(self, kind: int, producer: Producer, seq: int, ts: int, fields: list[Any]) -> None:
        try:
            apply = self._by_kind.get(kind)
            if apply is None:
                raise ValueError(f"kind {kind} does not come row by row")
            apply(producer, seq, ts, *fields)
        except MemoryError:
            raise  # not caused by the event
        # safeguard: bad-event-costs-itself
        except Exception as error:  # any exception caused by a peer's values costs only this event, and becomes a row
            reason = clean(f"event of kind {kind} cannot be applied: {type(error).__name__} {error}"[:REASON_CHARS_MAX])
            self._reject(producer, seq, ts, kind, QuarantineCode.EVENT_REJECTED, reason, b"")

    def _reject(
        self, producer: Producer, seq: int, ts: int, kind: int, code: QuarantineCode, reason: str, data: bytes
    ) -> None:
        """Reject one event: the ledger has it, and its row in `events` counts it as lost. kind: of the event."""
        row = (-1, kind, reason, data[:QUARANTINE_BYTES_MAX], code.value, None, False)
        self._context.batch.add("quarantine", row)
        self._context.emit_event(producer, seq, ts, "quarantined", "error", reason, {"code": code.value})

    def _add_rows(self, kind: int, places: Columns, fields: Columns) -> None:
        """Add events that are one row each. Raises what a check raises, and adds none then.

        places: lists of producers, seqs and times. fields: a list of values for each field.
        """
        checks = self._checks[kind]
        checked = [
            values if check is None else map(check, values) for check, values in zip(checks, fields, strict=True)
        ]
        rows = [*zip(*places, *checked, strict=True)]
        if kind == EventKind.ARTIFACT:
            self._number_versions([(row[3], row[4], row[6]) for row in rows])
        self._context.batch.rows.setdefault(_ROW_TABLES[kind], []).extend(rows)

    def _number_versions(self, logged: list[tuple[str, str, str]]) -> None:
        """Give each new version of an artifact the next number. logged: project, name and digest. Raises ValueError."""
        if any(len(project) > _PROJECT_CHARS_MAX or len(name) > NAME_CHARS_MAX for project, name, _ in logged):
            raise ValueError(f"an artifact's name has more than {NAME_CHARS_MAX} characters")
        for project, name, digest in logged:
            versions = self._context.state.artifacts.setdefault((project, name), {})
            if digest not in versions:
                versions[digest] = len(versions)
                self._context.batch.add("artifact_versions", (project, name, digest, versions[digest]))

    def _add_row(self, kind: int, producer: Producer, seq: int, ts: int, *fields: Any) -> None:
        self._add_rows(kind, [[producer.producer], [seq], [ts]], [[value] for value in fields])

    def _add_points(
        self, table: str, producer: Producer, seq: int, ts: int, step: int, keys_bin: Any, values: Any
    ) -> None:
        """Apply numbers that do not come as a group's matrix: a matrix of one row."""
        keys = tuple(self._context.name(clean(key)) for key in keys_of(keys_bin))
        lead, seqs, times = (np.array([number], dtype=np.int64) for number in (step, seq, ts))
        row = np.array(floats_of(values), dtype=np.float64).reshape(1, len(keys))
        matrix = Matrix(np.array([producer.producer], dtype=np.int32), lead, seqs, times, row)
        getattr(self._context.batch, table).setdefault(keys, []).append(matrix)
        self._context.batch.n_points += row.size

    def _apply_summary(self, producer: Producer, seq: int, ts: int, values: Any) -> None:
        for key, value in values.items():
            self._context.batch.add("summary", (producer.producer, seq, ts, text_of(key), json_of(value)))

    def _apply_definition(self, producer: Producer, seq: int, ts: int, name: Any, definition: Any) -> None:
        self._context.batch.add("definitions", (producer.producer, seq, ts, *definition_of(name, definition)))

    def _apply_config_hashes(self, producer: Producer, seq: int, ts: int, whole: int, hashes: Any) -> None:
        self._context.batch.add("config_hashes", (producer.producer, seq, ts, bool(whole), hashes_of(hashes)))

    def _apply_lost(
        self, producer: Producer, seq: int, ts: int, about: Any, first: int, last: int, reason: Any
    ) -> None:
        if about and (self._is_deleted(uuid_of(about)) or not self._is_authorized(about)):
            return
        about = self._context.producer(uuid_of(about)) if about else producer
        reason = text_of(reason)[:REASON_CHARS_MAX]
        n_missing = self._ledger.declare_lost(about, first, last, reason)
        some = "" if n_missing == last - first + 1 else f"{n_missing} of "
        level = "error" if n_missing else "info"
        self._context.emit_event(about, seq, ts, "lost", level, f"{some}events {first}..{last} are lost: {reason}", {})

    def _apply_notice(
        self, producer: Producer, seq: int, ts: int, notice: Any, level: Any, message: Any, body: Any
    ) -> None:
        notice, level, message = text_of(notice), text_of(level), text_of(message)
        cause = _cause_of(message, body) if notice == "traceback" else None
        self._context.emit_event(producer, seq, ts, notice, level, message, body, cause=cause)

    def _apply_peer(self, _: Producer, seq: int, ts: int, uuid: Any, body: Any) -> None:
        if self._is_deleted(uuid_of(uuid)) or not self._is_authorized(uuid):
            return
        producer = self._context.producer(uuid)
        about = select_typed(body, LOCATION_FIELDS)
        if "node" in about:
            self._registry.locate(producer, about)
        gpus = select_typed(body, {"gpus": list}).get("gpus")
        if gpus is not None:
            self._registry.assign_gpus(producer, gpus)
        if (gpus is None and "node" not in about) or "state" in body:
            self._registry.ended(producer, seq, ts, body, by_itself=False)

    def _is_deleted(self, uuid: bytes) -> bool:
        return uuid in self._context.state.deleted  # safeguard: report-about-deleted-ignored

    def keys(self, keys_bin: bytes) -> tuple[int, ...]:
        """Return the integers of the names of a matrix. Raises BlockError for invalid keys."""
        ids = self._key_ids.get(keys_bin)
        if ids is None:
            self._key_ids_bytes += len(keys_bin)
            if self._key_ids_bytes > _KEY_IDS_BYTES_MAX:  # safeguard: key-cache-bounded
                self._key_ids, self._key_ids_bytes = {}, len(keys_bin)
            ids = self._key_ids[keys_bin] = tuple(self._context.name(clean(key)) for key in keys_of(keys_bin))
        return ids


def rows_of(group: Group, numbers: NDArray[np.int32], mask: Mask) -> list[Row]:
    """Return the wanted events of a group, one by one."""
    rows = zip(*_columns_of(group, numbers, mask), strict=True)
    return [(producer, seq, group.kind, ts, fields) for producer, seq, ts, *fields in rows]


def _columns_of(group: Group, numbers: NDArray[np.int32], mask: Mask) -> Columns:
    """Return the producers, seqs, times and fields of the wanted rows."""
    names = ["payload"] if group.kind == OPAQUE else [name for name, _ in FIELDS[group.kind]]
    columns = [numbers[group.producer].tolist(), group.seq.tolist(), group.ts.tolist()]
    columns += [as_list(group.columns[name]) for name in names]
    if mask is None:
        return columns
    wanted = np.flatnonzero(mask).tolist()
    return [[column[n] for n in wanted] for column in columns]


def _cause_of(message: str, body: Any) -> EndCause:
    """Return the cause of a `traceback`: its writer's code, or derived from the message of an older writer."""
    named = end_cause(body.get("cause")) if isinstance(body, dict) else None
    return cause_of_exception(message, named)  # safeguard: old-exception-cause-from-message
