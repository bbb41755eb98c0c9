"""The tail of a journal: where the next record goes. Every append ends here, in C if the extension is built.

Everything that changes is in the tail: the end of the records, the next seq, and the layout. An append reads it,
prepares what to write, and then commits: if the tail is still the same, it writes the record and replaces the tail. If
another record was appended in the meantime, it starts again with the new tail. So a nested append, such as that of a
signal handler, is in the file when it returns, and an exception of a signal handler comes before a commit or after it.

In C a commit runs no Python code. In Python it relies on this: CPython runs signal handlers, finalisers and other
threads at calls, at backward jumps and where containers are allocated, and a commit has none of these. A commit is one
line of source, because a tracer (`sys.settrace`) may run code between lines. Both rely on the interpreter lock.

A commit also checks that this process is the one that writes here: a forked child, which may begin to run anywhere in
an append, writes nothing.
"""

from typing import TYPE_CHECKING, Any
from zlib import crc32

from chiplog.native.loader import hot_path
from chiplog.safety.process_number import PAGE
from chiplog_schemas.storage.record import HEADER_BYTES, MAGIC, pack_back, pack_front

_COUNTER_BYTES = 8
_NO_PLACE = slice(0, 0)
NO_MEMORY = bytearray()  # for a commit that writes nothing


class PythonAppender:
    """The tail, and the two functions that replace it."""

    _tail: Any  # (end of the records, next seq, layout)
    _process: int  # the number of the process that writes here

    def append(self, payload: bytes, *, urgent: bool = False) -> None:
        """Append an event with the next seq. `urgent` events may use the reserve. Waits only for the disk.

        A full journal drops the event; a separate event declares its seq lost as soon as there is room. Raises only
        what a signal handler raises; then the event was appended completely or not at all.
        """
        size, checksum = len(payload), crc32(payload)  # safeguard: log-never-waits
        while True:
            tail = self._tail
            position, seq, layout = tail
            end = position + HEADER_BYTES + size
            if end > layout.limit:
                self._append_in_python(payload, urgent)
                return
            # The usual case is inlined: beside a training it runs with cold caches.
            back = pack_back(size, 1, 1, 0, seq)
            record = pack_front(MAGIC, crc32(back, checksum)) + back + payload
            # Built before the commit, including the slice: allocating a container may run finalisers.
            after, place, memory = (end, seq + 1, layout), slice(position, end), layout.memory
            # safeguard: overtaken-append-restarts
            if self._tail is tail and PAGE[0] == self._process: memory[place] = record; self._tail = after; return  # fmt: skip  # noqa: E501, E701, E702
            if PAGE[0] != self._process:
                self._append_in_python(payload, urgent)
                return

    def _append_in_python(self, payload: bytes, urgent: bool) -> None:
        """Append an event for which `append` finds no room, or that a forked child appends."""
        raise NotImplementedError

    def _publish(
        self, tail: Any, after: Any, records: bytes, memory: Any, position: int, page: Any, page_offset: int
    ) -> bool:
        """Replace this tail by another and write records, unless it has been replaced already. All or nothing.

        Args:
            tail: The tail that the caller has read.
            after: The tail to replace it with.
            records: What to write into the segment of `after`.
            memory: Of that segment; NO_MEMORY if there are no records.
            position: Where in the memory.
            page: The mapped head page, where the next seq is written; NO_MEMORY if that is not needed.
            page_offset: Where on the page.

        Returns:
            True if the tail was replaced.
        """
        end, seq, layout = tail
        current, segment = layout.segment, after[2].segment
        place = slice(position, position + len(records))
        first = segment.first_seq if segment is current else seq
        counter, produced = _NO_PLACE, b""
        if page is not NO_MEMORY:
            counter, produced = slice(page_offset, page_offset + _COUNTER_BYTES), after[1].to_bytes(8, "little")
        # safeguard: overtaken-long-append-restarts
        if self._tail is tail and PAGE[0] == self._process: memory[place] = records; page[counter] = produced; current.end, current.next_seq = end, seq; segment.first_seq = first; self._tail = after; return True  # fmt: skip  # noqa: E501, E701, E702
        return False


if TYPE_CHECKING or hot_path is None:
    Appender = PythonAppender
else:
    Appender = hot_path.Appender
