"""Apply the log: records in, rows out. Pure, and a function of the log's bytes alone, so a rebuild gives the same rows.

This module handles each kind of record, in log order. It applies what the ledger says is new, and puts into quarantine
what cannot be applied.
"""

import contextlib
from collections.abc import Callable

import numpy as np

from chiplog_collector.index.apply.apply_context import QUARANTINE_BYTES_MAX, REASON_CHARS_MAX, ApplyContext
from chiplog_collector.index.apply.authorization import NodeAuthorization
from chiplog_collector.index.apply.change_handlers import Changes
from chiplog_collector.index.apply.event_handlers import EventHandlers, Row, rows_of
from chiplog_collector.index.apply.label_checks import LabelChecks
from chiplog_collector.index.apply.ledger import Ledger
from chiplog_collector.index.apply.node_loss import NodeLossTracker
from chiplog_collector.index.apply.registry import RunRegistry
from chiplog_collector.index.apply.state import State
from chiplog_collector.index.apply.validation import clean, count_of, digest_of, json_text, text_of
from chiplog_collector.index.apply.write_batch import Batch
from chiplog_schemas.codec import CodecError, short_repr, unpack
from chiplog_schemas.limits import SEQ_END
from chiplog_schemas.model.block_decoder import Block, decode_block
from chiplog_schemas.model.block_format import OPAQUE, BlockError, NewerBlockError, version_of
from chiplog_schemas.model.change_record import Action, decode_change
from chiplog_schemas.model.codes import QuarantineCode
from chiplog_schemas.model.events import EventKind
from chiplog_schemas.model.receipt import Receipt, RestrictedSender, decode_receipt
from chiplog_schemas.storage.record import CorruptRange, Kind, Record

_AGAIN_MAX = 500  # records of up to 2 MiB, many MB in total: one transaction must hold them
_KINDS_WITH_EVENTS = frozenset(
    {-1, Kind.BLOCK, Kind.TRIMMED, Kind.QUARANTINE}
)  # -1: bytes of the log that are not a record
_NOTHING_LOST = frozenset({QuarantineCode.NEWER_BLOCK, QuarantineCode.UNREAD_BLOCK, QuarantineCode.SEQ_OUT_OF_RANGE})

# Events that define identities or depend on them: a producer's are applied in its order, whatever their kinds.
_IN_ORDER = frozenset({OPAQUE, *(kind for kind in EventKind if not kind.spec.table)})


class Applier:
    """Turn records into a Batch. Call `apply` for each in order, then `flush` for the content of one transaction."""

    def __init__(
        self,
        state: State,
        read_again: Callable[[int], Record | None] = lambda number: None,
        receipt_of: Callable[[int], Receipt | None] = lambda number: None,
    ) -> None:
        """Initialise.

        read_again: returns a record of the log by its number, None if it can no longer be read.
        receipt_of: returns the receipt of that record.
        """
        self._context = ApplyContext(state)
        self._read_again = read_again
        self._receipt_of = receipt_of
        self._n_refused = 0  # events of the block being applied
        self._again: frozenset[bytes] = frozenset()  # producers whose refused data is being applied again
        self._labels = LabelChecks(self._context)
        self._speakers = NodeAuthorization(self._context)
        self._absence = NodeLossTracker(self._context)
        self._ledger = Ledger(self._context, self._absence)
        registry = RunRegistry(self._context, self._labels, self._ledger)
        self._changes = Changes(self._context)
        self._events = EventHandlers(self._context, self._ledger, registry, self._is_authorized)
        self._sender: bytes | None = None  # of the record being applied, if its receipt names it
        # Of the record being applied, and its number, if restricted.
        self._speaker: tuple[RestrictedSender, int] | None = None
        self._waiting: list[Record] = []  # records that wait for the receipt with their time and sender
        self._numbers: list[int] = []  # of all records since the last receipt

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
            self.batch.received_us = max(self.batch.received_us, receipt.received_us)
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

    @property
    def must_flush(self) -> bool:
        """Return True if what has been applied must be written before anything else is applied."""
        return bool(self.batch.thinnings) and self.is_between_receipts

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
            self._ledger.mark_log_damaged()
        reason = clean(reason[:REASON_CHARS_MAX])
        row = (number, kind, reason, data[:QUARANTINE_BYTES_MAX], code.value, block_version, loses_events)
        self.batch.add("quarantine", row)
        if kind == Kind.MANAGE:
            with contextlib.suppress(ValueError, RecursionError):  # else no request waits for it
                self.batch.failed_changes[decode_change(data).id] = reason
        body = {"record": number, "code": code.value}
        self._context.emit_event(None, 0, self.received_us, "quarantined", "error", reason, body)

    def _apply(self, record: Record) -> None:
        if record.kind == Kind.BLOCK:
            self._apply_block(record)
        elif record.kind == Kind.TRIMMED:
            self.batch.lacks_facts = True
            self._apply_block(record)
        elif record.kind == Kind.GAP:
            self._apply_gap(record)
        elif record.kind == Kind.STORED:
            self._apply_stored(record)
        elif record.kind == Kind.PRESENCE:
            self._apply_presence(record)
        elif record.kind == Kind.QUARANTINE:
            self._apply_quarantine(record)
        elif record.kind == Kind.MANAGE:
            self._apply_change(record)
        elif record.kind == Kind.PRUNED:
            pass  # its content was deleted
        else:
            reason = f"record of kind {record.kind} is unknown"
            self._set_aside(record, QuarantineCode.UNKNOWN_RECORD, reason)

    def _apply_gap(self, record: Record) -> None:
        try:
            _, first, last, reason = unpack(record.payload)
            why = f"{text_of(reason):.{REASON_CHARS_MAX}}"
            message = f"an agent's records {short_repr(first)}..{short_repr(last)} can never arrive: {why}"
        except (CodecError, ValueError, TypeError) as error:
            message = f"a gap record cannot be read: {error}"
        self._context.emit_event(
            None, record.number, self.received_us, "gap", "error", message, {"record": record.number}
        )
        self._ledger.mark_log_damaged()

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

    def _apply_change(self, record: Record) -> None:
        try:
            change = decode_change(record.payload)
            self._changes.apply(change, record.number)
        except (ValueError, TypeError, RecursionError) as error:  # safeguard: bad-change-costs-itself
            self._set_aside(record, QuarantineCode.INVALID_RECORD, f"a change cannot be applied: {error}")
            return
        if change.action is Action.ADMIT_BLOCKS:
            self._apply_parked(record.number)

    def _apply_parked(self, admitted_by: int) -> None:
        """Apply blocks that were parked, a limited number per change. Those that cannot be read count, too."""
        version = self.state.block_version
        due = sorted(number for number, needed in self.state.parked.items() if needed <= version)[:_AGAIN_MAX]
        for number in due:
            del self.state.parked[number]
            self.batch.admitted.append(number)
            record, receipt = self._read_again(number), self._receipt_of(number)
            if record is None:
                reason = "a parked record can no longer be read"
                self.quarantine(number, Kind.BLOCK, QuarantineCode.RECORD_GONE, reason, b"")
                continue
            speaker = None if receipt is None else receipt.speaker_of(number)
            self._speaker = None if speaker is None else (speaker, number)  # safeguard: parked-block-keeps-sender
            self._sender = None if receipt is None else receipt.sender_of(number)
            self._apply(record)
        if due:
            message = f"{len(due)} blocks of a newer version are applied: the collector was upgraded"
            body = {"blocks": len(due), "version": version}
            self._context.emit_event(None, admitted_by, self.received_us, "accepted_blocks", "info", message, body)

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
            for number in sorted(due)[:_AGAIN_MAX]:
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
            block = self._decode(record)
            refused = frozenset() if self._speaker is None else self._speakers.unauthorized(*self._speaker, block)
            self._n_refused = sum(last - first + 1 for i in refused for first, last in block.producers[i][1])
            beyond = frozenset(i for i, (_, had) in enumerate(block.producers) if had and had[-1][1] >= SEQ_END)
            if beyond:
                reason = f"seqs of {len(beyond)} producers exceed {SEQ_END}: their events are rejected"
                self._set_aside(record, QuarantineCode.SEQ_OUT_OF_RANGE, reason)
                refused |= beyond
            if self.state.deleted:  # safeguard: deleted-stays-deleted
                refused |= {i for i, (uuid, _) in enumerate(block.producers) if uuid in self.state.deleted}
            if refused and len(refused) == len(block.producers):
                return
            ids = {group.keys_bin: self._events.keys(group.keys_bin) for group in block.groups if group.keys_bin}
        except NewerBlockError as error:
            # Parked: the log keeps the block and the index counts it. After an upgrade the index asks for a change that
            # admits it. Its rows count to that record, because a store may have those of its place.
            code = QuarantineCode.UNREAD_BLOCK
            if error.version > self.state.block_version:
                self.state.parked[record.number], code = error.version, QuarantineCode.NEWER_BLOCK
            self.quarantine(record.number, record.kind, code, str(error), b"", block_version=error.version)
            return
        except BlockError as error:
            self._set_aside(record, QuarantineCode.INVALID_BLOCK, str(error))  # safeguard: bad-block-quarantined
            return
        masks, numbers = self._ledger.admit(block, refused, self._sender)
        in_order: list[Row] = []
        for group in block.groups:
            mask = None if masks is None else masks(group)
            if self._again and group.kind in (EventKind.PEER, EventKind.LOST):
                again = np.array([isinstance(a, bytes) and a in self._again for a in group.columns["about"]])
                mask = again if mask is None else again | mask  # the ledger has them, as the agent's own events
            if mask is not None and not mask.any():
                continue
            if group.kind in _IN_ORDER:
                in_order += rows_of(group, numbers, mask)
            else:
                self._events.apply_group(group, numbers, ids.get(group.keys_bin, ()), mask)
        self._events.apply_rows(sorted(in_order, key=lambda row: row[:2]))
        if not block.is_imported:  # the checks were made where it was recorded
            self._labels.check_block(block, numbers)  # safeguard: shared-label-reported

    def _decode(self, record: Record) -> Block:
        """Raises BlockError; NewerBlockError also for a version that the log has not admitted."""
        version = version_of(record.payload)
        if version > self.state.block_version:  # safeguard: newer-block-waits-for-admission
            raise NewerBlockError(version, self.state.block_version)
        return decode_block(record.payload, is_trimmed=record.kind == Kind.TRIMMED)

    def _is_authorized(self, uuid: bytes) -> bool:
        """Return True if the sender of the record being applied may report about a producer."""
        # safeguard: foreign-loss-not-believed
        if self._speaker is None or self._speakers.authorize(self._speaker[0], uuid, self._speaker[1]):
            return True
        self._n_refused += 1
        return False
