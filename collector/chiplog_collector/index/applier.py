"""Apply the log: records in, rows out. Pure, and a function of the log's bytes alone, so a rebuild gives the same rows.

This module keeps exactly-once: of every block, only the seqs that the ledger does not have yet become rows. It also
decides, in log order, who a producer is, which attempt of its label it is, and whether it is the primary.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chiplog_collector.index.apply_context import ApplyContext, without_range
from chiplog_collector.index.authorization import NodeAuthorization
from chiplog_collector.index.definitions import definition_of, hashes_of
from chiplog_collector.index.label_checks import LabelChecks
from chiplog_collector.index.node_loss import NodeLossTracker
from chiplog_collector.index.registry import RunRegistry
from chiplog_collector.index.state import Producer, State
from chiplog_collector.index.validation import (
    SEQ_END,
    as_list,
    clean,
    count_of,
    digest_of,
    floats_of,
    json_of,
    json_text,
    text_of,
    uuid_of,
)
from chiplog_collector.index.write_batch import Batch, Matrix
from chiplog_collector.receiver.commit import Receipt, RestrictedSender, decode_receipt
from chiplog_schemas.codec import CodecError, short_repr, unpack
from chiplog_schemas.model.blocks import OPAQUE, Block, BlockError, Group, NewerBlockError, decode_block, keys_of
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
)
from chiplog_schemas.storage.record import CorruptRange, Kind, Record

_QUARANTINE_BYTES_MAX = 65_536
_REASON_CHARS_MAX = 500
_KEY_IDS_BYTES_MAX = 64 << 20  # of tuples of keys whose integers are cached: those of the active runs
_KEPT_PER_RECEIPT_MAX = 500  # records of up to 2 MiB, many MB in total: one transaction must hold them
_CLOCK_US_MAX = 1 << 53  # between two clocks: 285 years
_KINDS_WITH_EVENTS = frozenset({-1, Kind.BLOCK, Kind.QUARANTINE})  # -1: bytes of the log that are not a record
_NOTHING_LOST = frozenset({QuarantineCode.NEWER_BLOCK, QuarantineCode.SEQ_OUT_OF_RANGE})

# Events that define identities or depend on them: a producer's are applied in its order, whatever their kinds.
_IN_ORDER = frozenset({OPAQUE, *(kind for kind in EventKind if not kind.spec.table)})
_ROW_TABLES: dict[int, str] = {kind: kind.spec.table for kind in EventKind if kind.spec.row}
_MATRIX_TABLES: dict[int, str] = {kind: kind.spec.table for kind in MATRIX_KINDS}

Mask = NDArray[np.bool_] | None  # None: all rows
Row = tuple[int, int, int, int, list[Any]]  # producer, seq, kind, ts, fields
Columns = list[list[Any]]


class Applier:
    """Turn records into a Batch. Call `apply` for each in order, then `flush` for the content of one transaction."""

    def __init__(self, state: State, read_again: Callable[[int], Record | None] = lambda number: None) -> None:
        """Initialise. read_again: returns a record of the log by its number, None if it can no longer be read."""
        self._context = ApplyContext(state)
        self._read_again = read_again
        self._n_refused = 0  # events of the block being applied
        self._again: frozenset[bytes] = frozenset()  # producers whose refused data is being applied again
        self._labels = LabelChecks(self._context)
        self._registry = RunRegistry(self._context, self._labels)
        self._speakers = NodeAuthorization(self._context)
        self._absence = NodeLossTracker(self._context)
        self._sender: bytes | None = None  # of the record being applied, if its receipt names it
        # Of the record being applied, and its number, if restricted.
        self._speaker: tuple[RestrictedSender, int] | None = None
        self._waiting: list[Record] = []  # records that wait for the receipt with their time and sender
        self._numbers: list[int] = []  # of all records since the last receipt
        self._key_ids: dict[bytes, tuple[int, ...]] = {}
        self._key_ids_bytes = 0
        checks: dict[Field, Callable[[Any], Any] | None] = {
            Field.INT: None,
            Field.TEXT: text_of,
            Field.NAME: lambda value: self._context.name(text_of(value)),
            Field.FLOATS: floats_of,
            Field.STREAM: lambda value: CONSOLE_STREAMS.get(value, str(value)),
        }
        self._checks: dict[int, list[Callable[[Any], Any] | None]] = {
            kind: [checks[field] for field in kind.spec.fields.values()] for kind in EventKind if kind.spec.row
        }
        # How to apply one event of each kind, except samples, which are always a matrix.
        self._by_kind: dict[int, Callable[..., None]] = {
            **{kind: partial(self._add_row, kind) for kind in _ROW_TABLES},
            EventKind.METRICS: partial(self._add_points, "metrics"),
            EventKind.PHASES: partial(self._add_points, "phases"),
            EventKind.CONFIG: self._registry.config,
            EventKind.SUMMARY: self._apply_summary,
            EventKind.IDENTITY: self._registry.identity,
            EventKind.STATE: partial(self._registry.ended, by_itself=True),
            EventKind.LOST: self._apply_lost,
            EventKind.NOTICE: self._apply_notice,
            EventKind.PEER: self._apply_peer,
            EventKind.FILE: self._registry.file,
            EventKind.DEFINE: self._apply_definition,
            EventKind.CONFIG_HASHES: self._apply_config_hashes,
        }

    @property
    def state(self) -> State:
        """The known producers, runs and names, and which events have been applied."""
        return self._context.state

    @property
    def batch(self) -> Batch:
        """What the next transaction writes, as far as it is known."""
        return self._context.batch

    @property
    def received_us(self) -> int:
        """When the collector received the current records, in microseconds since 1970."""
        return self._context.received_us

    # -- records --

    def apply(self, item: Record | CorruptRange, number: int) -> None:
        """Process the next item of the log. `number`: its number, or for damage the number of the next record."""
        if isinstance(item, CorruptRange):
            self.quarantine(number, -1, QuarantineCode.LOG_DAMAGED, f"log damaged: {item.reason}", b"")
        elif item.kind == Kind.RECEIPT:
            receipt = decode_receipt(item.payload, item.number) or Receipt(self.received_us)
            self._context.received_us = receipt.received_us  # safeguard: receive-time-of-receipt
            waiting, self._waiting = self._waiting, []
            numbers, self._numbers = self._numbers, []
            unfinished = receipt.uncommitted(numbers)
            for record in waiting:
                if record.number not in unfinished:  # safeguard: unfinished-commit-not-applied
                    speaker = receipt.speaker_of(record.number)
                    self._speaker = None if speaker is None else (speaker, record.number)
                    self._sender = receipt.sender_of(record.number)
                    self._apply(record)
            self._apply_kept(receipt)  # safeguard: kept-blocks-applied
        else:
            self._numbers.append(item.number)
            if item.kind != Kind.SENDERS:
                self._waiting.append(item)

    @property
    def is_between_receipts(self) -> bool:
        """Return True if no record waits for a receipt: only then may a transaction end here."""
        return not self._waiting

    def flush(self) -> Batch:
        """Return the collected rows and reset the batch."""
        batch, self._context.batch = self.batch, Batch()
        return batch

    def quarantine(
        self,
        number: int,
        kind: int,
        code: QuarantineCode,
        reason: str,
        data: bytes,
        *,
        block_version: int | None = None,
    ) -> None:
        """Put something that cannot be applied into quarantine, and add a row to `events`.

        kind: of the record; -1 for bytes that are not a record. block_version: of a block of a newer version.
        """
        loses_events = kind in _KINDS_WITH_EVENTS and code not in _NOTHING_LOST
        if loses_events:
            self._mark_log_damaged()
        reason = clean(reason[:_REASON_CHARS_MAX])
        row = (number, kind, reason, data[:_QUARANTINE_BYTES_MAX], code.value, block_version, loses_events)
        self.batch.add("quarantine", row)
        body = {"record": number, "code": code.value}
        self._context.emit_event(None, 0, self.received_us, "quarantined", "error", reason, body)

    def _apply(self, record: Record) -> None:
        if record.kind == Kind.BLOCK:
            self._apply_block(record)
        elif record.kind == Kind.GAP:
            self._apply_gap(record)
        elif record.kind == Kind.STORED:
            self._apply_stored(record)
        elif record.kind == Kind.PRESENCE:
            self._apply_presence(record)
        elif record.kind == Kind.QUARANTINE:
            self._apply_quarantine(record)
        else:
            reason = f"record of kind {record.kind} is unknown"
            self._set_aside(record, QuarantineCode.UNKNOWN_RECORD, reason)

    def _apply_gap(self, record: Record) -> None:
        try:
            _, first, last, reason = unpack(record.payload)
            why = f"{text_of(reason):.{_REASON_CHARS_MAX}}"
            message = f"an agent's records {short_repr(first)}..{short_repr(last)} can never arrive: {why}"
        except (CodecError, ValueError, TypeError) as error:
            message = f"a gap record cannot be read: {error}"
        self._context.emit_event(
            None, record.number, self.received_us, "gap", "error", message, {"record": record.number}
        )
        self._mark_log_damaged()

    def _apply_stored(self, record: Record) -> None:
        try:
            _, digest, n_bytes = unpack(record.payload)
            self.batch.add("stored", (digest_of(digest), count_of(n_bytes), self.received_us))
        except (CodecError, ValueError, TypeError) as error:
            self._set_aside(record, QuarantineCode.INVALID_RECORD, f"record of a file: {error}")

    def _apply_quarantine(self, record: Record) -> None:
        try:
            _, reason, data = unpack(record.payload)
            reason, data = text_of(reason) or "no reason given", b"".join([data])
            self.quarantine(record.number, record.kind, QuarantineCode.INVALID_DELIVERY, reason, data)
        except (CodecError, ValueError, TypeError):
            self._set_aside(record, QuarantineCode.INVALID_RECORD, "unreadable quarantine")

    def _apply_presence(self, record: Record) -> None:
        try:
            self._absence.apply(record)
        except (ValueError, TypeError) as error:
            reason = f"a presence record cannot be read: {error}"
            self.quarantine(record.number, record.kind, QuarantineCode.INVALID_RECORD, reason, b"")

    def _set_aside(self, record: Record, code: QuarantineCode, reason: str) -> None:
        self.quarantine(record.number, record.kind, code, reason, bytes(record.payload))

    def _apply_kept(self, receipt: Receipt) -> None:
        """Apply refused records of senders whose keys now cover other nodes, a limited number per receipt."""
        for _, speaker in receipt.runs if self.state.kept else ():
            kept = self.state.kept.get(speaker.sender, {}) if speaker is not None else {}
            if speaker is None or not kept:
                continue
            due = [number for number, (nodes, _) in kept.items() if nodes != speaker.nodes]
            n_before = sum(n_events for _, n_events in kept.values())
            for number in sorted(due)[:_KEPT_PER_RECEIPT_MAX]:
                self._apply_again(speaker, number)
            n_applied = n_before - sum(n_events for _, n_events in kept.values())
            if n_applied > 0:
                names = ", ".join(speaker.nodes)
                message = f"{n_applied} refused events are applied: their key now speaks for {names}"
                body = {"events": n_applied, "sender": speaker.sender.hex(), "nodes": list(speaker.nodes)}
                self._context.emit_event(None, receipt.first, self.received_us, "accepted_node", "info", message, body)

    def _apply_again(self, speaker: RestrictedSender, number: int) -> None:
        nodes, n_events = self.state.kept[speaker.sender].pop(number)
        self.batch.add("refused", (number, speaker.sender, json_text(list(nodes)), -n_events, self.received_us))
        record = self._read_again(number)
        if record is None:
            reason = "a refused record can no longer be read"
            self.quarantine(number, Kind.BLOCK, QuarantineCode.RECORD_GONE, reason, b"")
            return
        self._speaker, self._sender = (speaker, number), speaker.sender
        self._again = self._speakers.foreign(nodes, record.payload)  # before any part of it is applied
        self._apply(record)
        self._again = frozenset()

    def _apply_block(self, record: Record) -> None:
        self._n_refused = 0
        self._take_block(record)
        if self._n_refused and self._speaker is not None:
            (sender, nodes), number = self._speaker
            self.state.kept.setdefault(sender, {})[number] = (nodes, self._n_refused)
            self.batch.add("refused", (number, sender, json_text(list(nodes)), self._n_refused, self.received_us))

    def _take_block(self, record: Record) -> None:
        try:
            block = decode_block(record.payload)
            refused = frozenset() if self._speaker is None else self._speakers.unauthorized(*self._speaker, block)
            self._n_refused = sum(last - first + 1 for i in refused for first, last in block.producers[i][1])
            beyond = frozenset(i for i, (_, had) in enumerate(block.producers) if had and had[-1][1] >= SEQ_END)
            if beyond:
                reason = f"seqs of {len(beyond)} producers exceed {SEQ_END}: their events are rejected"
                self._set_aside(record, QuarantineCode.SEQ_OUT_OF_RANGE, reason)
                refused |= beyond
            if refused and len(refused) == len(block.producers):
                return
            ids = {group.keys_bin: self._keys(group.keys_bin) for group in block.groups if group.keys_bin}
        except NewerBlockError as error:
            # Parked: the log keeps the block and the index counts it. The first start after an upgrade rebuilds and
            # applies it.
            code, version = QuarantineCode.NEWER_BLOCK, error.version
            self.quarantine(record.number, record.kind, code, str(error), b"", block_version=version)
            return
        except BlockError as error:
            self._set_aside(record, QuarantineCode.INVALID_BLOCK, str(error))  # safeguard: bad-block-quarantined
            return
        masks, numbers = self._admit(block, refused)
        in_order: list[Row] = []
        for group in block.groups:
            mask = None if masks is None else masks(group)
            if self._again and group.kind in (EventKind.PEER, EventKind.LOST):
                again = np.array([isinstance(a, bytes) and a in self._again for a in group.columns["about"]])
                mask = again if mask is None else again | mask  # the ledger has them, as the agent's own events
            if mask is not None and not mask.any():
                continue
            if group.kind in _IN_ORDER:
                in_order += self._rows_of(group, numbers, mask)
            else:
                self._apply_group(group, numbers, ids.get(group.keys_bin, ()), mask)
        self._apply_rows(sorted(in_order, key=lambda row: row[:2]))
        self._labels.check_block(block, numbers)  # safeguard: shared-label-reported

    # -- exactly once --

    def _admit(self, block: Block, refused: frozenset[int]) -> tuple[Callable[[Group], Mask] | None, NDArray[np.int32]]:
        """Enter the block's seqs into the ledger; return the mask of the new rows, and the producers' integers."""
        numbers = np.zeros(len(block.producers), dtype=np.int32)
        fresh: dict[int, list[tuple[int, int]]] = {}
        partial = bool(refused)
        for index, (uuid, ranges) in enumerate(block.producers):
            if index in refused:
                continue  # safeguard: refused-stays-out-of-ledger
            producer = self._context.producer(uuid)
            delay_us = self.received_us - block.created_ts
            if abs(delay_us) < _CLOCK_US_MAX and (producer.clock_us is None or delay_us < producer.clock_us):
                producer.clock_us = delay_us
                self.batch.producers.add(producer.producer)
            numbers[index] = producer.producer
            have = self.state.have[producer.producer]
            new: list[tuple[int, int]] = []
            for first, last in ranges:
                new += have.add(first, last)  # safeguard: stored-once
            if new != ranges:
                partial = True
            fresh[index] = new
            for first, last in new:
                self.batch.intervals.append((producer.producer, first, last, self.received_us))
                self.batch.n_events += last - first + 1
            if self._sender not in (None, producer.sender) and (new or not producer.is_presumed):
                self._absence.on_new_sender(producer, self._sender, new)
            if new and self.state.lost.get(producer.producer):
                self._retract_lost(producer, new)
        if not partial:  # safeguard: events-stored-once
            return None, numbers
        return _mask_of(fresh), numbers

    def _mark_log_damaged(self) -> None:
        """Record that the log lost records.

        The producers of the lost records are unknown, so no seq is waited for any longer.
        """
        if not self.state.damaged:
            self.state.damaged = True
            for producer in self.state.producers.values():
                self._context.declare_missing(producer)

    def _retract_lost(self, producer: Producer, ranges: list[tuple[int, int]]) -> None:
        lost = self.state.lost[producer.producer]
        for first, last in ranges:
            lost = [(a, b, reason) for x, y, reason in lost for a, b in without_range(x, y, first, last)]
        self.state.lost[producer.producer] = lost
        self.batch.losses[producer.producer] = list(lost)
        if not lost:
            self._context.emit_event(
                producer, 0, self.received_us, "found", "info", "all events that were declared lost have arrived", {}
            )

    # -- groups --

    def _apply_group(self, group: Group, numbers: NDArray[np.int32], keys: tuple[int, ...], mask: Mask) -> None:
        if group.kind in _ROW_TABLES:
            columns = self._columns_of(group, numbers, mask)
            try:
                self._add_rows(group.kind, columns[:3], columns[3:])
            except Exception:  # caused by one of the events: the others count
                self._apply_rows(self._rows_of(group, numbers, mask))
            return
        if group.kind == EventKind.SYSTEM:
            devices = [self._context.name(clean(str(device))[:_REASON_CHARS_MAX]) for device in group.columns["device"]]
            lead = np.array(devices, dtype=np.int64)
        else:
            lead = group.columns["step"]
        self._add_matrix(getattr(self.batch, _MATRIX_TABLES[group.kind]), group, lead, numbers, keys, mask)

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
        self.batch.n_points += matrix.values.size

    def _columns_of(self, group: Group, numbers: NDArray[np.int32], mask: Mask) -> Columns:
        """Return the producers, seqs, times and fields of the wanted rows."""
        names = ["payload"] if group.kind == OPAQUE else [name for name, _ in FIELDS[group.kind]]
        columns = [numbers[group.producer].tolist(), group.seq.tolist(), group.ts.tolist()]
        columns += [as_list(group.columns[name]) for name in names]
        if mask is None:
            return columns
        wanted = np.flatnonzero(mask).tolist()
        return [[column[n] for n in wanted] for column in columns]

    def _rows_of(self, group: Group, numbers: NDArray[np.int32], mask: Mask) -> list[Row]:
        rows = zip(*self._columns_of(group, numbers, mask), strict=True)
        return [(producer, seq, group.kind, ts, fields) for producer, seq, ts, *fields in rows]

    def _apply_rows(self, rows: list[Row]) -> None:
        for number, seq, kind, ts, fields in rows:
            producer = self.state.producers_by_number[number]
            if kind == OPAQUE:
                self._apply_opaque(producer, seq, ts, fields[0])
            else:
                self._apply_event(kind, producer, seq, ts, fields)

    def _apply_opaque(self, producer: Producer, seq: int, ts: int, payload: Any) -> None:
        """Apply an event that the agent could not decode: this version may know its kind."""
        data = payload if isinstance(payload, bytes) else b""
        try:
            event = decode(data)
            known = FIELDS.get(event[0])
            if known is not None and matches_schema(event[: len(known) + 2]):
                self._apply_event(event[0], producer, seq, event[1], event[2 : len(known) + 2])
                return
            reason = f"event of kind {event[0]} with {len(event) - 2} fields is unknown"
        except CodecError as error:
            reason = str(error)
        self._reject(producer, seq, ts, OPAQUE, QuarantineCode.UNKNOWN_EVENT, reason[:500], data)

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
            reason = clean(f"event of kind {kind} cannot be applied: {type(error).__name__} {error}"[:500])
            self._reject(producer, seq, ts, kind, QuarantineCode.EVENT_REJECTED, reason, b"")

    def _reject(
        self, producer: Producer, seq: int, ts: int, kind: int, code: QuarantineCode, reason: str, data: bytes
    ) -> None:
        """Reject one event. The ledger has it, so the event does not count as lost. kind: of the event."""
        row = (-1, kind, reason, data[:_QUARANTINE_BYTES_MAX], code.value, None, False)
        self.batch.add("quarantine", row)
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
        self.batch.rows.setdefault(_ROW_TABLES[kind], []).extend(rows)

    def _add_row(self, kind: int, producer: Producer, seq: int, ts: int, *fields: Any) -> None:
        self._add_rows(kind, [[producer.producer], [seq], [ts]], [[value] for value in fields])

    def _add_points(
        self, table: str, producer: Producer, seq: int, ts: int, step: int, keys_bin: Any, values: Any
    ) -> None:
        """Apply numbers that do not come as a group's matrix: one row for each key."""
        for key, value in zip(keys_of(keys_bin), floats_of(values), strict=True):
            self.batch.add(table, (producer.producer, self._context.name(clean(key)), step, seq, ts, value))

    def _apply_summary(self, producer: Producer, seq: int, ts: int, values: Any) -> None:
        for key, value in values.items():
            self.batch.add("summary", (producer.producer, seq, ts, text_of(key), json_of(value)))

    def _apply_definition(self, producer: Producer, seq: int, ts: int, name: Any, definition: Any) -> None:
        self.batch.add("definitions", (producer.producer, seq, ts, *definition_of(name, definition)))

    def _apply_config_hashes(self, producer: Producer, seq: int, ts: int, whole: int, hashes: Any) -> None:
        self.batch.add("config_hashes", (producer.producer, seq, ts, bool(whole), hashes_of(hashes)))

    def _apply_lost(
        self, producer: Producer, seq: int, ts: int, about: Any, first: int, last: int, reason: Any
    ) -> None:
        if about and not self._is_authorized(uuid_of(about)):
            return
        about = self._context.producer(uuid_of(about)) if about else producer
        reason = text_of(reason)[:_REASON_CHARS_MAX]
        n_missing = self._context.declare_lost(about, first, last, reason)
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
        if not self._is_authorized(uuid_of(uuid)):
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

    def _is_authorized(self, uuid: bytes) -> bool:
        """Return True if the sender of the record being applied may report about a producer."""
        # safeguard: foreign-loss-not-believed
        if self._speaker is None or self._speakers.authorize(self._speaker[0], uuid, self._speaker[1]):
            return True
        self._n_refused += 1
        return False

    def _keys(self, keys_bin: bytes) -> tuple[int, ...]:
        ids = self._key_ids.get(keys_bin)
        if ids is None:
            self._key_ids_bytes += len(keys_bin)
            if self._key_ids_bytes > _KEY_IDS_BYTES_MAX:  # safeguard: key-cache-bounded
                self._key_ids, self._key_ids_bytes = {}, len(keys_bin)
            ids = self._key_ids[keys_bin] = tuple(self._context.name(clean(key)) for key in keys_of(keys_bin))
        return ids


def _mask_of(fresh: dict[int, list[tuple[int, int]]]) -> Callable[[Group], Mask]:
    """Return a function that marks the rows of a group whose seqs are in these ranges of their producers."""
    bounds = {index: np.array(ranges, dtype=np.int64) for index, ranges in fresh.items() if ranges}

    def mask_of(group: Group) -> Mask:
        mask = np.zeros(len(group.seq), dtype=np.bool_)
        for index in np.unique(group.producer).tolist():
            if index in bounds:  # ascending, so each row is searched: a hostile block has very many ranges
                rows = group.producer == index
                seqs = group.seq[rows]
                at = np.searchsorted(bounds[index][:, 0], seqs, side="right") - 1
                mask[rows] = (at >= 0) & (seqs <= bounds[index][at, 1])
        return mask

    return mask_of


def _cause_of(message: str, body: Any) -> EndCause:
    """Return the cause of a `traceback`: its writer's code, or derived from the message of an older writer."""
    named = end_cause(body.get("cause")) if isinstance(body, dict) else None
    return cause_of_exception(message, named)  # safeguard: old-exception-cause-from-message
