"""The reading end of a segment log."""

import os
from pathlib import Path

from chiplog_schemas.limits import RECORD_BYTES_MAX
from chiplog_schemas.storage.record import HEADER_BYTES, CorruptRange, Record, scan_records
from chiplog_schemas.storage.segment_format import SEGMENT_HEADER_BYTES, list_segments


class LogReader:
    """Follow a segment log record by record, also while another process writes it.

    The `limit` of `read` is the number after the last record that may be read (the writer's synced position).
    """

    def __init__(self, directory: Path, next_number: int = 0) -> None:
        self.next_number = next_number
        self._directory = directory
        self._descriptor = -1
        self._base = -1
        self._offset = 0
        self._first = 0  # expected number of the next record

    def read(self, limit: int, max_bytes: int) -> list[Record | CorruptRange]:
        """Return the next records below `limit`, about `max_bytes` of them; empty when there are none yet.

        Damage in a segment that has a successor is returned in its place. Raises OSError.
        """
        found: list[Record | CorruptRange] = []
        while not found and self.next_number < limit:
            if self._descriptor < 0 and not self._open():
                break
            sealed = self._is_sealed()  # checked before the read: a sealed segment does not grow
            rest = os.fstat(self._descriptor).st_size - self._offset + 1
            # First the requested size, then one record of any size, then everything: a long damaged stretch.
            for size in (max_bytes, HEADER_BYTES + RECORD_BYTES_MAX, max(rest, max_bytes)):
                data = os.pread(self._descriptor, size, self._offset)
                end = self._collect(data, found, limit, max_bytes, sealed=sealed, cut=len(data) == size)
                if end or len(data) < size:
                    break
            self._offset += end
            if not found and end == 0 and (not sealed or not self._open(after=self._base)):
                break
        return found

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _collect(
        self, data: bytes, found: list[Record | CorruptRange], limit: int, max_bytes: int, *, sealed: bool, cut: bool
    ) -> int:
        end = 0
        damage: list[CorruptRange] = []  # until the record after it shows that it was not read before
        for item in scan_records(data, first=self._first, sealed=sealed, cut=cut):
            if isinstance(item, CorruptRange):
                damage.append(CorruptRange(self._offset + item.start, self._offset + item.end, item.reason))
                end = item.end
                continue
            if item.number >= limit:
                break
            if item.number >= self.next_number:
                self.next_number = item.number + 1
                found += [*damage, item]
            damage = []
            end, self._first = item.end, item.number + 1
            if self.next_number >= limit or end >= max_bytes:
                break
        found += damage
        return end

    def _is_sealed(self) -> bool:
        segments = list_segments(self._directory)
        return bool(segments) and segments[-1][0] > self._base

    def _open(self, after: int = -1) -> bool:
        segments = [entry for entry in list_segments(self._directory) if entry[0] > after]
        if not segments:
            return False
        below = [entry for entry in segments if entry[0] <= self.next_number]
        base, path = below[-1] if below and after < 0 else segments[0]
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False  # trimmed between listing and opening
        self.close()
        self._descriptor = descriptor
        self._base = self._first = base
        self._offset = SEGMENT_HEADER_BYTES
        return True
