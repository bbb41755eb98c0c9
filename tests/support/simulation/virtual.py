"""A clock, a disk and a network that exist only in memory, for the simulation. Deterministic by seed.

The disk distinguishes written from synced data. A killed process loses nothing that it wrote. A machine that loses its
power loses what was not synced, from any byte on, and names of files whose directory was not synced. The network keeps
order within a connection. A connection may lose messages in its middle and continue (as libzmq does when it
reconnects), be cut in one direction, and deliver late what a closed socket has sent.
"""

import errno
import os
import random
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import zmq

Frames = list[Any]
_AGAIN = zmq.Again()


class Killed(BaseException):
    """SIGKILL in the middle of a write: nothing of the process may catch it."""


class Clock:
    """Replaces the module `time`. `skew_us`: how wrong the wall clock is."""

    def __init__(self) -> None:
        self.now = 0.0
        self.skew_us = 0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now_us() / 1e6

    def sleep(self, seconds: float) -> None:
        """Virtual processes run in turns; none of them blocks another."""

    def now_us(self) -> int:
        return int(self.now * 1e6) + 1_700_000_000_000_000 + self.skew_us


class File:
    """`data` is what a reader sees, `safe` what a power failure leaves at least."""

    __slots__ = ("data", "named", "safe")

    def __init__(self) -> None:
        self.data = bytearray()
        self.safe = b""
        self.named = False  # its name is on the disk too


class DiskPath(str):
    """As much of pathlib.Path as the segment log needs."""

    disk: "Disk"

    def __truediv__(self, name: str) -> "DiskPath":
        return DiskPath(f"{self}/{name}")

    @property
    def name(self) -> str:
        return self.rpartition("/")[2]

    def read_bytes(self) -> bytes:
        return bytes(self.disk.file(self).data)

    def stat(self) -> Any:
        return SimpleNamespace(st_size=len(self.disk.file(self).data))


class Disk:
    """Replaces the module `os` in the segment log. The first part of a path is the machine."""

    O_RDONLY, O_WRONLY, O_RDWR = os.O_RDONLY, os.O_WRONLY, os.O_RDWR
    O_CREAT, O_TRUNC, O_CLOEXEC, O_DIRECTORY = os.O_CREAT, os.O_TRUNC, os.O_CLOEXEC, os.O_DIRECTORY
    SEEK_SET = os.SEEK_SET

    def __init__(self, chance: random.Random, on_safe: Callable[[str, bytes], None]) -> None:
        self.directories: dict[str, dict[str, File]] = {}
        self.full: set[str] = set()  # machines whose disk refuses
        self.kill_at: dict[str, str] = {}  # machine -> "before" or "after" its next sync: the process that syncs dies
        self._chance = chance
        self._on_safe = on_safe
        self._open: dict[int, tuple[str, str, File]] = {}  # as long as it is open a file outlives its name
        self._next = 3

    def file(self, path: str) -> File:
        directory, _, name = path.rpartition("/")
        try:
            return self.directories[directory][name]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "no such file", path) from None

    def listdir(self, directory: str) -> list[str]:
        return list(self.directories.get(directory, ()))

    def open(self, path: str, flags: int, mode: int = 0) -> int:
        descriptor, self._next = self._next, self._next + 1
        if flags & os.O_DIRECTORY:
            self._open[descriptor] = (path, "", File())
            return descriptor
        directory, _, name = path.rpartition("/")
        if flags & os.O_CREAT:
            self._refuse(path)
            found = self.directories.setdefault(directory, {}).setdefault(name, File())
            if flags & os.O_TRUNC:
                found.data = bytearray()
        self._open[descriptor] = (directory, name, self.file(path))
        return descriptor

    def close(self, descriptor: int) -> None:
        del self._open[descriptor]

    def _refuse(self, path: str) -> None:
        if path[1:].partition("/")[0] in self.full:
            raise OSError(errno.ENOSPC, "virtual disk full", path)

    def _of(self, descriptor: int) -> File:
        return self._open[descriptor][2]

    def write(self, descriptor: int, data: Any) -> int:
        directory, _, file = self._open[descriptor]
        if directory[1:].partition("/")[0] in self.full:
            file.data += bytes(data)[: self._chance.randrange(len(data))]  # a full disk accepts what fits
        self._refuse(directory)
        file.data += data
        return len(data)

    def writev(self, descriptor: int, parts: list[Any]) -> int:
        return self.write(descriptor, b"".join(parts))

    def fdatasync(self, descriptor: int) -> None:
        directory, name, file = self._open[descriptor]
        machine = directory[1:].partition("/")[0]
        if file.data != file.safe and self._chance.random() < 0.5:
            self._refuse(directory)
        when = self.kill_at.pop(machine, "")
        if when == "before":
            raise Killed
        safe, file.safe = file.safe, bytes(file.data)
        fresh = file.safe[len(safe) :] if file.safe.startswith(safe) else file.safe
        self._on_safe(f"{directory}/{name}", fresh)
        if when == "after":
            raise Killed

    def fsync(self, descriptor: int) -> None:
        directory, name, _ = self._open[descriptor]
        if name:
            self.fdatasync(descriptor)
        else:
            for file in self.directories.get(directory, {}).values():
                file.named = True

    def ftruncate(self, descriptor: int, size: int) -> None:
        del self._of(descriptor).data[size:]

    def lseek(self, descriptor: int, offset: int, whence: int) -> None:
        """Writes are appended, and the segment log cuts where it seeks to."""

    def truncate(self, path: str, size: int) -> None:
        del self.file(path).data[size:]

    def unlink(self, path: str) -> None:
        directory, _, name = path.rpartition("/")
        self.file(path)
        del self.directories[directory][name]

    def fstat(self, descriptor: int) -> Any:
        return SimpleNamespace(st_size=len(self._of(descriptor).data))

    def pread(self, descriptor: int, size: int, offset: int) -> bytes:
        return bytes(self._of(descriptor).data[offset : offset + size])

    # -- faults --

    def lose_power(self, machine: str) -> None:
        """Keep what was synced, and perhaps some of the rest."""
        for directory, files in self.directories.items():
            if directory[1:].partition("/")[0] != machine:
                continue
            for name, file in list(files.items()):
                if not file.named and self._chance.random() < 0.5:
                    del files[name]
                    continue
                least = min(len(file.safe), len(file.data))
                size = self._chance.choice((least, self._chance.randint(least, len(file.data)), len(file.data)))
                file.data = file.data[:size] if file.data.startswith(file.safe) else bytearray(file.safe)
                file.safe = file.safe if len(file.data) >= len(file.safe) else bytes(file.data)

    def delete(self, directory: str) -> None:
        self.directories.pop(directory, None)


def plain(frames: Frames) -> Frames:
    """Copy what the sender may reuse."""
    return [bytes(frame) if isinstance(frame, memoryview) else frame for frame in frames]


class Router:
    """A bound ROUTER of one process."""

    def __init__(self) -> None:
        self.queue: deque[tuple[bytes, Frames]] = deque()
        self.peers: dict[bytes, Dealer] = {}
        self.closed = False

    def poll(self, timeout_ms: int = 0) -> int:
        return len(self.queue)

    def recv_multipart(self, flags: int = 0) -> Frames:
        if not self.queue:
            raise _AGAIN.with_traceback(None)
        routing, frames = self.queue.popleft()
        return [routing, *frames]

    def send_multipart(self, frames: Frames, flags: int = 0) -> None:
        peer = self.peers.get(frames[0])
        if peer is not None:
            peer.network.replies.append((peer.address, frames[1:]))
            peer.arriving.append((peer.network.arrival(), frames[1:]))

    def close(self, linger: int = 0) -> None:
        self.closed = True


class Dealer:
    """A DEALER of one process, and its monitor."""

    def __init__(self, network: "Network", address: str, machine: str) -> None:
        self.network, self.address, self.machine = network, address, machine
        self.leaving: deque[tuple[float, Frames]] = deque()
        self.arriving: deque[tuple[float, Frames]] = deque()
        self.router: Router | None = None
        self.routing = b""
        self.closed = self.lost_sight = False

    def send_multipart(self, frames: Frames, flags: int = 0) -> None:
        self.leaving.append((self.network.arrival(), frames))

    def recv_multipart(self, flags: int = 0) -> Frames:
        if not self.arriving or self.arriving[0][0] > self.network.clock.now or self.network.is_cut(self, "back"):
            raise _AGAIN.with_traceback(None)
        return self.arriving.popleft()[1]

    def get(self, option: int) -> int:
        return zmq.POLLIN  # as far as it knows: the message may have been received by the time of the call

    def disable_monitor(self) -> None: ...

    def close(self, linger: int = 0) -> None:
        self.closed = True


class Monitor:
    """Reports once that the peer closed the connection."""

    def __init__(self, dealer: Dealer) -> None:
        self._dealer = dealer

    def recv_multipart(self, flags: int = 0) -> Frames:
        if not self._dealer.lost_sight:
            raise _AGAIN.with_traceback(None)
        self._dealer.lost_sight = False
        return [b""]

    def get(self, option: int) -> int:
        return zmq.POLLIN if self._dealer.lost_sight else 0

    def close(self, linger: int = 0) -> None: ...


class Network:
    """Every socket that there is."""

    def __init__(self, clock: Clock, chance: random.Random) -> None:
        self.clock = clock
        self.chance = chance
        self.routers: dict[str, Router] = {}
        self.dealers: list[Dealer] = []
        self.cuts: set[tuple[str, str]] = set()  # (machine, "forth" or "back")
        self.delay_s = 0.0
        self.history: deque[tuple[str, bytes, Frames]] = deque(maxlen=40)
        self.replies: deque[tuple[str, Frames]] = deque(maxlen=40)
        self._count = 0

    def arrival(self) -> float:
        return self.clock.now + (self.chance.random() * self.delay_s if self.delay_s else 0.0)

    def is_cut(self, dealer: Dealer, way: str) -> bool:
        return (dealer.machine, way) in self.cuts

    def connect(self, address: str, machine: str) -> Dealer:
        dealer = Dealer(self, address, machine)
        self.dealers.append(dealer)
        return dealer

    def deliver(self, address: str) -> None:
        """Deliver due messages to the router of this address. A payload that is not bytes is passed unchanged."""
        router = self.routers.get(address)
        for dealer in list(self.dealers):
            if dealer.address != address:
                continue
            if dealer.router is not router:
                self._reconnect(dealer, router)
            if router is None or self.is_cut(dealer, "forth"):
                continue
            while dealer.leaving and dealer.leaving[0][0] <= self.clock.now:
                frames = dealer.leaving.popleft()[1]
                self.history.append((address, dealer.routing, frames))
                router.queue.append((dealer.routing, plain(frames)))
            if dealer.closed and not dealer.leaving:
                self.dealers.remove(dealer)
                router.peers.pop(dealer.routing, None)

    def _reconnect(self, dealer: Dealer, router: Router | None) -> None:
        """The process at the other end changed. The transport finds the new one by itself, and may not report it."""
        if dealer.router is not None:
            dealer.arriving.clear()
            dealer.leaving.clear() if self.chance.random() < 0.5 else self.lose_some(dealer)
            dealer.lost_sight = self.chance.random() < 0.8
        dealer.router = router
        if router is not None:
            self._count += 1
            dealer.routing = self._count.to_bytes(5, "big")
            router.peers[dealer.routing] = dealer

    def lose_some(self, dealer: Dealer) -> None:
        """Lose a stretch of what is on its way, in both directions; what follows arrives."""
        for queue in (dealer.leaving, dealer.arriving):
            items = list(queue)
            first, last = sorted((self.chance.randint(0, len(items)), self.chance.randint(0, len(items))))
            queue.clear()
            queue.extend(items[:first] + items[last:])

    def repeat_one(self) -> None:
        """Deliver a message again that came before: of a session that is over, or to another sender than was meant."""
        if self.history:
            address, routing, frames = self.chance.choice(self.history)
            router = self.routers.get(address)
            if router is not None:
                router.queue.append((routing, plain(frames)))
        if self.replies:
            address, frames = self.chance.choice(self.replies)
            dealers = [dealer for dealer in self.dealers if dealer.address == address and not dealer.closed]
            if dealers:
                self.chance.choice(dealers).arriving.append((self.clock.now, frames))
