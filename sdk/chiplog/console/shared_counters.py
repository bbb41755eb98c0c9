"""Relay a rank's whole lines from the rank itself while no helper drains its pipes; leave the rest to the helper."""

import fcntl
import os
import select
import stat
import time

from chiplog.console.relay import (
    CHUNK_BYTES,
    SharedCounters,
    SpliceRelay,
    StreamFds,
    bytes_available,
    is_readable,
    read_all,
)

_ROOM_LOOKS = 20  # checks of a full target, a millisecond apart; then the next tick tries again
_TERMINAL_CROWDED_BYTES = 2_048  # of the 4,095 that a pseudo-terminal reports at most, however much more waits


def is_filling(ends: StreamFds) -> bool:
    """Return True if so many bytes wait that the writer may soon block. Raises nothing."""
    try:
        if ends.master >= 0:
            return bytes_available(ends.master) > _TERMINAL_CROWDED_BYTES
        # A quarter: short writes leave pages of it half empty.
        return bytes_available(ends.source) > fcntl.fcntl(ends.source, fcntl.F_GETPIPE_SZ) // 4
    except OSError:
        return False  # the terminal is gone


def drain_lines(ends: StreamFds, tally: SharedCounters) -> bytes:
    """Relay the available lines, and return them. The caller must hold the lock of the counters."""
    if not is_readable(ends.poll_fd):
        return b""
    passage = _LineRelay(ends, tally)
    try:
        return b"".join(passage.relay_all())
    finally:
        passage.close_copy()


class _LineRelay(SpliceRelay):
    """Leave an unterminated line in the pipe, unless it fills the pipe or comes from a terminal."""

    def relay(self) -> bytes:
        """Move the available lines, at most CHUNK_BYTES, and return them. Does not block on a target."""
        if not self._has_room():
            return b""
        n_bytes = self._peek() if self._can_tee and self.ends.master < 0 else -1
        if n_bytes < 0:
            return super().relay()
        copy = read_all(self._copy[0], n_bytes)
        data = copy[: copy.rfind(b"\n") + 1] or (copy if is_filling(self.ends) else b"")
        n_moved = self._splice(len(data))
        self._copy_rest(data[n_moved:])
        return data

    def _has_room(self) -> bool:
        for _ in range(_ROOM_LOOKS):
            if _takes_chunk(self.ends.target):
                return True
            time.sleep(0.001)
        return False


def _takes_chunk(target: int) -> bool:
    """Return True if a chunk fits. A pipe that is not empty may have less room than its free bytes suggest."""
    poll = select.poll()
    poll.register(target, select.POLLOUT)
    states = dict(poll.poll(0)).get(target, 0)
    if states & select.POLLERR or not stat.S_ISFIFO(os.fstat(target).st_mode):
        return bool(states)
    return bytes_available(target) == 0 and fcntl.fcntl(target, fcntl.F_GETPIPE_SZ) >= CHUNK_BYTES
