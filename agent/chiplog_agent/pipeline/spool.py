"""The agent's spool: blocks that the collector has not acknowledged, on disk, and the newest also in memory.

A spool that was set back (its end is gone, or an old copy was restored) reuses numbers that the collector has seen. The
collector would treat the blocks under them as received. The spool detects this at the next WELCOME, which names a
number that it has not assigned yet. From then on it sends every record under a higher number than on disk. The
difference, `raised`, is in a small file next to the segments. So nothing is copied, a full disk does not matter, and
there is no intermediate state: until the file is synced, nothing has changed. The collector ignores duplicates.
"""

import contextlib
import errno
from collections import deque
from pathlib import Path

from chiplog_schemas.atomic_file import sync_directory
from chiplog_schemas.limits import CREDIT_BYTES, KIB, NUMBER_LIMIT, SEGMENT_BYTES, SPOOL_BYTES_MAX
from chiplog_schemas.storage.log_reader import LogReader
from chiplog_schemas.storage.record import Kind, Record, encode, reframe
from chiplog_schemas.storage.segment_format import log_owner, read_header
from chiplog_schemas.storage.segment_log import OWED_NAME, SegmentLog
from chiplog_schemas.storage.watermark import Watermark, open_watermark
from chiplog_schemas.transport.dealer import LogSlice

DAMAGED = "damaged in the spool, or cut off from it"
TRIMMED = "trimmed here, but the collector does not have it"
RAISED_NAME = "raised"  # next to the segments: the offset added to the number of each sent record, see watermark.py
_RECENT_BYTES_MAX = CREDIT_BYTES  # as much as can be in flight
_NUMBER_MAX = NUMBER_LIMIT // 2  # that a collector may request; no spool that assigns numbers one by one gets there


class Spool:
    """A segment log with a reading position for the link (it is a LogSource, in raised numbers).

    The spool's ID, 16 bytes, identifies it to the collector. A spool that was emptied and restarts gets a new ID,
    because the collector has seen higher numbers under the old one.
    """

    def __init__(self, directory: Path, new_id: bytes, *, bytes_max: int = SPOOL_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.id = log_owner(directory) or new_id
        # Trimming removes whole segments, and never the open one. So a segment must be a small part of the quota, or
        # the open one alone would keep the spool full forever.
        segment_bytes = min(SEGMENT_BYTES, max(bytes_max // 8, 64 * KIB))
        self._log = SegmentLog(directory, self.id, segment_bytes=segment_bytes)
        # safeguard: seen-numbers-not-reused
        if self.id != new_id and not self._log.segments():  # all segments were damaged: the numbers are used up
            self._log.close()
            self.id = new_id
            self._log = SegmentLog(directory, self.id, segment_bytes=segment_bytes)
        self._directory = directory
        self._raised_file = open_watermark(directory / RAISED_NAME)
        self._raised = 0  # added to the numbers of the log; all other numbers here are the log's
        self._offset_is_known = True  # whether this offset is the one that the collector knows
        self._read_raised(is_new=self.id == new_id)
        self._synced = self._log.next_number
        self._acked = self._log.first_number
        self._reader = LogReader(directory, self._acked)
        self._position = self._acked  # number that the link reads next
        self._owed_file = open_watermark(directory / OWED_NAME)  # for readers: see `owe`
        self._owed = self._owed_file.get() if self._owed_file is not None else 0
        if self.is_drained:
            self._settle()
        self._recent: deque[tuple[int, bytes]] = deque()
        self._recent_bytes = 0
        self._read_ahead_queue: deque[Record] = deque()  # read from the disk, and not yet passed to the link

    @property
    def size_bytes(self) -> int:
        """Bytes on disk."""
        return self._log.size_bytes

    @property
    def is_full(self) -> bool:
        """Return True if the quota is used up."""
        return self._log.size_bytes >= self.bytes_max

    @property
    def is_drained(self) -> bool:
        """Return True if the collector has everything on stable storage."""
        return self._acked >= self._log.next_number

    @property
    def progress(self) -> tuple[int, int]:
        """The numbers after the last block, and after the last one that the collector has on stable storage."""
        return self._log.next_number, self._acked

    @property
    def waiting_bytes(self) -> int:
        """Bytes that were appended and could not be written yet."""
        return self._log.pending_bytes

    def ages_s(self, now_us: int) -> list[tuple[int, float]]:
        """Return the number after the blocks of each segment, and how old the first of them is in s; oldest first."""
        segments = self._log.segments()
        ends = [base for base, _ in segments[1:]] + [self._log.next_number]
        ages_s = []
        for (_, path), end in zip(segments, ends, strict=False):  # without a segment there is no end
            with contextlib.suppress(OSError):  # then these blocks count as young as those after them
                if (header := read_header(path)) is not None:
                    ages_s.append((end, max(0.0, (now_us - header.created_us) / 1e6)))
        return ages_s

    def _read_raised(self, *, is_new: bool) -> None:
        file = self._raised_file
        found = file.get() if file is not None else 0
        if is_new:  # an existing file belonged to another spool
            if file is not None and (found or not file.is_valid):
                with contextlib.suppress(OSError):  # then the next start asks the collector
                    file.set(0)
                    file.sync()
        elif file is not None:
            # safeguard: raised-numbers-survive-restart, unreadable-offset-resends-all
            self._raised, self._offset_is_known = found, file.is_valid
        else:  # a file that could not be written because the disk is full is empty
            self._offset_is_known = not _has_bytes(self._directory / RAISED_NAME)

    def append(self, block: bytes) -> None:
        """Add a block to the content of the next `sync`."""
        record = encode(Kind.BLOCK, self._log.next_number, block)
        number = self._log.append_encoded(record)
        if self._raised:
            return  # its number on disk is different: read it from the disk
        self._recent.append((number, record))
        self._recent_bytes += len(record)
        while self._recent_bytes > _RECENT_BYTES_MAX:
            self._recent_bytes -= len(self._recent.popleft()[1])

    def owe(self) -> None:
        """Note that the appended blocks have events of ranks. The next `sync` notes it for readers.

        A reader of this host starts an agent for them, if this one ends before the collector has them. The agent's own
        statistics are not worth that: some remain in the spool of every agent that ends.
        """
        self._owed = self._log.next_number

    def sync(self) -> None:
        """Write and sync. Raises OSError; then everything waits for the next call."""
        self._log.commit()
        self._synced = self._log.next_number
        self._note_owed(self._owed)  # safeguard: undelivered-spool-noted

    def _note_owed(self, number: int) -> None:
        file = self._owed_file
        if file is not None and file.get() != number:
            with contextlib.suppress(OSError):  # then readers see these events once another agent delivers them
                file.set(number)

    def _settle(self) -> None:
        """Note for readers that the collector has all events of ranks."""
        self._owed = 0
        self._note_owed(0)

    def close(self) -> None:
        """Close the files."""
        self._log.close()
        self._reader.close()
        if self._raised_file is not None:
            self._raised_file.close()
        if self._owed_file is not None:
            self._owed_file.close()

    # -- the Source of the link --

    @property
    def first_number(self) -> int:
        """The lowest number that is still here and needed."""
        return self._first + self._raised

    @property
    def _first(self) -> int:
        return max(self._acked, self._log.first_number)

    def seek(self, number: int) -> None:
        """Continue at this number. Raises OSError and changes nothing then, so the caller can retry."""
        # safeguard: rewound-spool-raises-numbers
        if number > self._log.next_number + self._raised or not self._offset_is_known:
            self._renumber_from(number)
        self._position = number - self._raised
        self._read_ahead_queue.clear()

    def _renumber_from(self, number: int) -> None:
        """Send all pending and later records under numbers from this one on: the collector has seen those below."""
        number_offset = max(0, number - self._first)
        if number_offset > _NUMBER_MAX:
            raise OSError(errno.ERANGE, f"the collector asks for number {number}; this spool is at {self._first}")
        if self._raised_file is None:
            self._raised_file = Watermark(self._directory / RAISED_NAME, writable=True)
        self._raised_file.set(number_offset)
        self._raised_file.sync()
        sync_directory(self._directory)
        self._raised, self._offset_is_known = number_offset, True
        self._recent.clear()
        self._recent_bytes = 0

    def read(self, max_bytes: int) -> LogSlice | None:
        """Return synced records from the reading position on, as many as fit, at least one; or the numbers lost there.

        On OSError the position is unchanged.
        """
        piece = self._read(max_bytes)
        if piece is not None:
            piece.first += self._raised
            piece.last += self._raised
        return piece

    def acknowledged(self, next_number: int) -> None:
        """Trim the records that the collector has on stable storage."""
        next_number -= self._raised
        if next_number > self._acked:
            self._acked = min(next_number, self._log.next_number)
            self._position = max(self._position, self._acked)
            self._log.trim(self._acked)
            if 0 < self._owed <= self._acked:
                self._settle()  # safeguard: delivered-spool-noted
        while self._recent and self._recent[0][0] < next_number:
            self._recent_bytes -= len(self._recent.popleft()[1])

    def _read(self, max_bytes: int) -> LogSlice | None:
        if self._position >= self._synced:
            return None
        if self._position < self._first:
            return self._lost_until(self._first, TRIMMED)
        if self._recent and self._recent[0][0] <= self._position:
            return self._read_recent(max_bytes)
        return self._read_disk(max_bytes)

    def _read_recent(self, max_bytes: int) -> LogSlice:
        first = self._position
        index = first - self._recent[0][0]
        parts: list[bytes] = []
        size = 0
        while index < len(self._recent) and self._position < self._synced:
            record = self._recent[index][1]
            if parts and size + len(record) > max_bytes:
                break
            parts.append(record)
            size += len(record)
            index += 1
            self._position += 1
        return LogSlice(first, self._position - 1, b"".join(parts))

    def _read_disk(self, max_bytes: int) -> LogSlice:
        while self._read_ahead_queue and self._read_ahead_queue[0].number < self._position:
            self._read_ahead_queue.popleft()  # was read from memory in the meantime
        if not self._read_ahead_queue:
            self._read_ahead(max_bytes)
        if not self._read_ahead_queue:
            self._log.persist_end()  # no synced record is left that shows these numbers
            return self._lost_until(self._synced, DAMAGED)
        if self._read_ahead_queue[0].number > self._position:
            return self._lost_until(self._read_ahead_queue[0].number, DAMAGED)  # safeguard: valid-blocks-after-damage
        first = self._position
        parts: list[bytes | memoryview] = []
        size = 0
        while self._read_ahead_queue and self._read_ahead_queue[0].number == self._position:
            header, payload = reframe(self._read_ahead_queue[0], self._position + self._raised)
            if parts and size + len(header) + len(payload) > max_bytes:
                break
            self._read_ahead_queue.popleft()
            self._position += 1
            parts += (header, payload)
            size += len(header) + len(payload)
        return LogSlice(first, self._position - 1, b"".join(parts))

    def _read_ahead(self, max_bytes: int) -> None:
        """Read the next valid records; none when the remaining synced ones are all damaged."""
        if self._reader.next_number != self._position:
            self._reader.close()
            self._reader = LogReader(self._log.directory, self._position)
        while not self._read_ahead_queue and (items := self._reader.read(self._synced, max_bytes)):
            self._read_ahead_queue.extend(item for item in items if isinstance(item, Record))

    def _lost_until(self, number: int, reason: str) -> LogSlice:
        first, self._position = self._position, number
        return LogSlice(first, number - 1, b"", reason)  # safeguard: damaged-blocks-declared


def _has_bytes(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except FileNotFoundError:
        return False
    except OSError:
        return True
