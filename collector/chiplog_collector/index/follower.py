"""Bring a database up to date with a log, transaction by transaction."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb

from chiplog_collector.index.apply.applier import Applier
from chiplog_collector.index.apply.state import State
from chiplog_collector.index.database import DAY_US, Database, is_disk_error
from chiplog_collector.refusals import NAME as REFUSED_NAME
from chiplog_collector.refusals import Refused, write_refused
from chiplog_schemas.limits import INDEX_FLUSH_ROWS, NUMBER_LIMIT
from chiplog_schemas.model.codes import QuarantineCode
from chiplog_schemas.model.receipt import Receipt, decode_receipt
from chiplog_schemas.query.duckdb_errors import corruption_reason
from chiplog_schemas.storage.log_reader import LogReader
from chiplog_schemas.storage.record import CorruptRange, Kind, Record

_READ_BYTES = 8 << 20
_RECEIPT_BYTES = 1 << 20  # read at once while a receipt is searched
_FLUSH_BYTES = 32 << 20  # of the log per transaction: 200,000 rows of long texts would exhaust the memory
_log = logging.getLogger("chiplog.index")


class LogFollower:
    """Brings a database up to date with a log, transaction by transaction."""

    def __init__(self, database: Database, log_directory: Path, ends: Iterable[int] = ()) -> None:
        """Initialise. ends: numbers of records at which a flush must end, because a store has what is before."""
        self._limits = sorted(number + 1 for number in ends)
        self.missed_ends: list[int] = []  # no receipt of this log: the store has another log of this ID
        self.failed_changes: dict[bytes, str] = {}  # by ID: why they were set aside, until `ChangeQueue` has seen it
        self.database = database
        self._directory = log_directory
        self._reader = LogReader(log_directory)
        self._refused_changed = True
        self.reload()

    def close(self) -> None:
        """Close the log."""
        self._reader.close()

    def reload(self) -> None:
        """Drop everything that is not in the database, and continue at its position."""
        self._applier = self._new_applier()
        self._read_from(self.database.next_number)
        self._safe_number = self.database.next_number  # after the last receipt applied
        self.read_number = self.database.next_number
        self._expected: int | None = self.read_number  # number of the next record; None after damage
        self._damage: list[CorruptRange] = []  # until the record after it: the position is one of records
        self._unread: list[Record | CorruptRange] = []  # after the end of a day
        self._day = self.database.newest_day
        self.records_read = 0
        self.n_damages_read = 0
        self.first_damage: str | None = None  # since `reload`, as text

    def _new_applier(self) -> Applier:
        return Applier(self.database.load(), self._read_again, self._receipt_of)

    def restore_series(self, found: Mapping[str, Sequence[tuple[Any, ...]]]) -> None:
        """Complete the rollups of series, see `Database.restore_series`. Call it between steps."""
        self.database.restore_series(found)
        self.reload()  # it may have new names

    def _read_from(self, number: int) -> None:
        self._reader.close()
        self._reader = LogReader(self._directory, number)
        self._unread = []

    def _read(self, limit: int) -> list[Record | CorruptRange]:
        """Return the next items of the log. Damage and missing numbers come before the record that follows them."""
        if self._unread:
            items, self._unread = self._unread, []
            return items
        items = []
        while not items and (found := self._reader.read(limit, _READ_BYTES)):
            for item in found:
                if isinstance(item, CorruptRange):
                    self._damage.append(item)
                    self._expected = None
                    continue
                if self._expected is not None and item.number > self._expected:
                    gone = f"records {self._expected}..{item.number - 1} are not there"
                    self._damage.append(CorruptRange(0, 0, gone))
                self._expected = item.number + 1
                self.records_read += 1
                if self._damage:
                    self._note_damage(self._damage)
                    items += self._damage
                    self._damage = []
                items.append(item)
        return items

    def _read_again(self, number: int) -> Record | None:
        reader = LogReader(self._directory, number)
        try:
            found = reader.read(number + 1, 1)
        finally:
            reader.close()
        return next((item for item in found if isinstance(item, Record) and item.number == number), None)

    def _receipt_of(self, number: int) -> Receipt | None:
        """Return the first receipt after a record."""
        reader = LogReader(self._directory, number)
        try:
            while items := reader.read(NUMBER_LIMIT, _RECEIPT_BYTES):
                for item in items:
                    if isinstance(item, Record) and item.kind == Kind.RECEIPT:
                        return decode_receipt(item.payload, item.number)
        finally:
            reader.close()
        return None

    @property
    def state(self) -> State:
        """The dimensions as the database has them, and what was applied and is not written yet."""
        return self._applier.state

    @property
    def refused(self) -> dict[bytes, Refused]:
        """The number of events that are kept without being applied, per sender."""
        kept = self._applier.state.kept.items()
        return {s: Refused(sum(n for _, n in records.values()), len(records)) for s, records in kept if records}

    def report_refused(self) -> None:
        """Write what is kept for the receiver, if it changed."""
        if self._refused_changed:
            self._refused_changed = False
            write_refused(self._directory.parent / REFUSED_NAME, self.refused)

    def _note_damage(self, damage: Sequence[CorruptRange]) -> None:
        self.n_damages_read += len(damage)
        if self.first_damage is None:
            self.first_damage = damage[0].reason

    def step(self, limit: int) -> int:
        """Apply the log below `limit`, at most one flush of it; return the number of events written."""
        synced = limit
        # safeguard: flush-ends-where-store-ends
        limit = min([limit, *(until for until in self._limits if until > self.database.next_number)])
        rows_before, n_bytes, is_exhausted = self._applier.batch.n_rows, 0, False
        while self._applier.batch.n_rows - rows_before < INDEX_FLUSH_ROWS and n_bytes < _FLUSH_BYTES:
            items = self._read(limit)
            if not items:
                is_exhausted = True
                break
            n_bytes += sum(len(item.payload) for item in items if isinstance(item, Record))
            try:
                for place, item in enumerate(items):
                    if self._ends_day(item):  # safeguard: flush-ends-with-day
                        self._unread = items[place:]
                        return self._write()
                    self._take(item)
                    if self._applier.must_flush:  # safeguard: thinning-ends-flush
                        self._rewind()
                        return self._write()
            except Exception as error:  # a record that triggers a bug must not stop the index forever
                if _is_environment_error(error):
                    raise
                _log.exception("a record cannot be applied; its neighbours are applied one by one: %r", error)
                return self._write_one_by_one(limit)
        if limit < synced and is_exhausted and self._safe_number == self.database.next_number:
            self._limits.remove(limit)
            if self.read_number >= limit:  # else the log has lost the records up to there, and the store has them
                self.missed_ends.append(limit - 1)
            return self.step(synced)  # safeguard: foreign-end-stops-nothing
        return self._write()

    def _ends_day(self, item: Record | CorruptRange) -> bool:
        """Return True if a flush must end before a receipt, because it is the first one of a day."""
        if not (isinstance(item, Record) and item.kind == Kind.RECEIPT):
            return False
        receipt = decode_receipt(item.payload, item.number)
        day = 0 if receipt is None else receipt.received_us // DAY_US
        is_first, self._day = day > self._day, max(day, self._day)
        return is_first and self._safe_number > self.database.next_number

    def _rewind(self) -> None:
        """Read again what follows the last receipt that was applied."""
        self._read_from(self._safe_number)
        self._expected = self.read_number = self._safe_number
        self._damage = []

    def _take(self, item: Record | CorruptRange) -> None:
        number = item.number if isinstance(item, Record) else self.read_number
        self._applier.apply(item, number)
        self.read_number = number + 1 if isinstance(item, Record) else number
        if self._applier.is_between_receipts:
            self._safe_number = self.read_number

    def _write(self) -> int:
        if self._safe_number == self.database.next_number:
            return 0
        batch = self._applier.flush()
        self._refused_changed = self._refused_changed or "refused" in batch.rows
        try:
            self.database.write(batch, self._applier.state, self._safe_number)
        except (duckdb.Error, ValueError, TypeError, OverflowError) as error:
            if _is_environment_error(error):
                raise
            _log.warning("a flush was refused (%s); its records are applied one by one", str(error).splitlines()[0])
            return self._write_one_by_one(self._safe_number)
        self.failed_changes |= batch.failed_changes
        self.database.sort_facts()
        return batch.n_events

    def _write_one_by_one(self, until: int) -> int:
        """Apply each record in a separate transaction, and put the one that fails into quarantine."""
        self.reload()
        n_events = 0
        group: list[Record | CorruptRange] = []
        while items := self._read(until):
            for item in items:
                group.append(item)
                if _is_receipt(item):
                    n_events += self._apply_group(group)
                    group = []
        self.reload()
        return n_events

    def _apply_group(self, group: list[Record | CorruptRange]) -> int:
        receipt = group[-1]
        assert isinstance(receipt, Record)
        n_events = 0
        applier = self._new_applier()
        numbers = [item.number for item in group[:-1] if isinstance(item, Record)]
        covers = decode_receipt(receipt.payload, receipt.number)
        unfinished = covers.uncommitted(numbers) if covers is not None else frozenset()
        for item in group:
            if isinstance(item, Record) and item.number in unfinished:
                continue
            behind = item.number + 1 if isinstance(item, Record) else self.database.next_number
            try:
                applier.apply(item, behind)
                if item is not receipt:
                    applier.apply(receipt, behind)
                batch = applier.flush()
                self.database.write(batch, applier.state, behind)
                n_events += batch.n_events
            except Exception as error:  # whatever it is, the position must move past it, and a row must report it
                if _is_environment_error(error):
                    raise
                reason = f"record cannot be applied: {str(error).splitlines()[0] if str(error) else repr(error)}"
                _log.error("record %d is set aside: %s", behind - 1, reason)
                applier = self._new_applier()
                data = bytes(item.payload) if isinstance(item, Record) else b""
                kind = item.kind if isinstance(item, Record) else -1
                applier.quarantine(behind - 1, kind, QuarantineCode.RECORD_FAILED, reason, data)
                batch = applier.flush()
                self.database.write(batch, applier.state, behind)
            self.failed_changes |= batch.failed_changes
        return n_events


def _is_receipt(item: Record | CorruptRange) -> bool:
    return isinstance(item, Record) and item.kind == Kind.RECEIPT


def _is_environment_error(error: Exception) -> bool:
    """Return True if an error is of the disk, of the memory or of the database itself."""
    return (
        is_disk_error(error)
        or isinstance(error, MemoryError | duckdb.OutOfMemoryException | duckdb.FatalException)
        or corruption_reason(error) is not None
    )
