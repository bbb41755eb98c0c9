"""Relay Ethernet frames between two interfaces with delay, jitter and loss, as `tc netem` does in other kernels.

`python -m tests.support.wire IF_A IF_B DELAY_MS JITTER_MS LOSS_PERCENT`, in a network namespace that holds both. Frames
keep their order in each direction, and a burst that waits longer than _QUEUE_FRAMES_MAX is cut off, as in a router.
Segmentation offload must be off at the hosts' ends, and receive offload at these two.
"""

import collections
import random
import select
import socket
import sys
import time

_ALL_PROTOCOLS = 3
_PACKET_OUTGOING = 4  # this host's own transmissions, echoed back by AF_PACKET
_FRAME_BYTES_MAX = 65_535
_RECEIVE_BYTES = 1 << 23
_QUEUE_FRAMES_MAX = 20_000  # in each direction: 30 MB on their way, more than any credit
_FRAMES_PER_TURN = 64  # of one end, before the other has its turn


def open_raw(interface: str) -> socket.socket:
    """Return a socket that gets every frame of an interface."""
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS))
    raw.bind((interface, 0))
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
    raw.setblocking(False)
    return raw


def relay(ends: tuple[socket.socket, socket.socket], delay_s: float, jitter_s: float, loss: float) -> None:
    """Relay forever."""
    waiting: tuple[collections.deque[tuple[float, bytes]], ...] = (collections.deque(), collections.deque())
    while True:
        due = min((queue[0][0] for queue in waiting if queue), default=None)
        select.select(ends, [], [], None if due is None else max(0.0, due - time.monotonic()))
        for end, queue in zip(ends, waiting, strict=True):
            _take(end, queue, delay_s, jitter_s, loss)
        now = time.monotonic()
        for target, queue in zip(reversed(ends), waiting, strict=True):
            while queue and queue[0][0] <= now:
                try:
                    target.send(queue.popleft()[1])
                except OSError:
                    pass  # the interface is down or its queue full: the frame is lost


def _take(
    end: socket.socket, queue: "collections.deque[tuple[float, bytes]]", delay_s: float, jitter_s: float, loss: float
) -> None:
    for _ in range(_FRAMES_PER_TURN):
        try:
            frame, address = end.recvfrom(_FRAME_BYTES_MAX)
        except BlockingIOError:
            return
        except OSError:
            return  # the interface went down
        if address[2] == _PACKET_OUTGOING or random.random() < loss or len(queue) >= _QUEUE_FRAMES_MAX:
            continue
        due = time.monotonic() + delay_s + random.uniform(-jitter_s, jitter_s)
        queue.append((max(due, queue[-1][0]) if queue else due, frame))


if __name__ == "__main__":
    if len(sys.argv) != 6:
        sys.exit(__doc__)
    delay_ms, jitter_ms, loss_percent = map(float, sys.argv[3:])
    relay((open_raw(sys.argv[1]), open_raw(sys.argv[2])), delay_ms / 1e3, jitter_ms / 1e3, loss_percent / 100)
