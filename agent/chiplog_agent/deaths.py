"""When ranks died: a pidfd for each process tells the moment, where its journal's lock tells only that it happened.

A hint, never a verdict: in another PID namespace a rank's PID may be somebody else's. What counts is the lock.
"""

import os
import select
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Process:
    """A process that is watched, for as long as one of its producers is."""

    pid: int
    producers: set[bytes] = field(default_factory=set)


class Deaths:
    """The processes of this node's producers, and when each ended. One descriptor for each process."""

    def __init__(self) -> None:
        self._processes: dict[int, _Process] = {}  # by pidfd
        self._newest: dict[int, int] = {}  # PID -> pidfd of the process that had it last
        self._descriptors: dict[bytes, int] = {}  # producer -> pidfd
        self._times: dict[bytes, int] = {}
        self._poll = select.poll()

    def watch(self, producer: bytes, pid: object) -> None:
        """Watch the process that says it is a producer's, until `forget`."""
        if type(pid) is not int or not 0 < pid < 1 << 31 or producer in self._descriptors:
            return
        descriptor = self._newest.get(pid)
        if descriptor is None or _has_ended(descriptor):  # a PID may be given out again before anybody looks
            try:
                descriptor = os.pidfd_open(pid)
            except OSError:
                return  # gone already, no descriptor left, or an older kernel: the lock will tell
            self._processes[descriptor] = _Process(pid)
            self._newest[pid] = descriptor
            self._poll.register(descriptor, select.POLLIN)
        self._processes[descriptor].producers.add(producer)
        self._descriptors[producer] = descriptor

    def look(self, now_us: int) -> bool:
        """Note who ended since the last look; tell whether somebody did."""
        if not self._processes:
            return False
        ended = self._poll.poll(0)
        for descriptor, _ in ended:
            for producer in self._processes[descriptor].producers:
                self._times[producer] = now_us
                del self._descriptors[producer]
            self._close(descriptor)
        return bool(ended)

    def time_of(self, producer: bytes) -> int | None:
        """Return when a producer's process ended, in µs since the epoch; None when nobody saw it."""
        return self._times.get(producer)

    def forget(self, producer: bytes) -> None:
        """Drop what is known of a producer that is delivered."""
        self._times.pop(producer, None)
        descriptor = self._descriptors.pop(producer, None)
        if descriptor is not None:
            process = self._processes[descriptor]
            process.producers.discard(producer)
            if not process.producers:
                self._close(descriptor)

    def _close(self, descriptor: int) -> None:
        self._poll.unregister(descriptor)
        pid = self._processes.pop(descriptor).pid
        if self._newest[pid] == descriptor:
            del self._newest[pid]
        os.close(descriptor)


def _has_ended(descriptor: int) -> bool:
    one = select.poll()
    one.register(descriptor, select.POLLIN)
    return bool(one.poll(0))
