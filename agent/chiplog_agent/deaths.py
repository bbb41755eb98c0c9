"""When ranks died: a pidfd for each tells the moment, where its journal's lock tells only that it happened.

A hint, never a verdict: in another PID namespace a rank's PID may be somebody else's. What counts is the lock.
"""

import os
import select


class Deaths:
    """The processes of this node's producers, and when each ended."""

    def __init__(self) -> None:
        self._descriptors: dict[int, bytes] = {}  # pidfd -> producer
        self._times: dict[bytes, int] = {}
        self._poll = select.poll()

    def watch(self, producer: bytes, pid: object) -> None:
        """Watch the process that says it is a producer's."""
        if type(pid) is not int or not 0 < pid < 1 << 31 or producer in self._descriptors.values():
            return
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            return  # gone already, or an older kernel: the lock will tell
        self._descriptors[descriptor] = producer
        self._poll.register(descriptor, select.POLLIN)

    def look(self, now_us: int) -> bool:
        """Note who ended since the last look; tell whether somebody did."""
        if not self._descriptors:
            return False
        ended = self._poll.poll(0)
        for descriptor, _ in ended:
            self._times[self._descriptors[descriptor]] = now_us
            self._close(descriptor)
        return bool(ended)

    def time_of(self, producer: bytes) -> int | None:
        """Return when a producer's process ended, in µs since the epoch; None when nobody saw it."""
        return self._times.get(producer)

    def forget(self, producer: bytes) -> None:
        """Drop what is known of a producer that is delivered."""
        self._times.pop(producer, None)
        for descriptor, watched in list(self._descriptors.items()):
            if watched == producer:
                self._close(descriptor)

    def _close(self, descriptor: int) -> None:
        self._poll.unregister(descriptor)
        del self._descriptors[descriptor]
        os.close(descriptor)
