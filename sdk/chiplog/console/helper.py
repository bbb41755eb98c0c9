"""The loop of the console helper: relay what a rank writes and record it, until the last writer has closed.

The epoll is edge-triggered. It reports the streams in the order in which they became ready, which is as close to the
order between two streams as pipes allow. A level-triggered stream would keep its place from one poll to the next, ahead
of a stream that was written to first while this process waited for a core.
"""

import contextlib
import json
import os
import select
import socket
import sys
import time
from typing import Any

from chiplog.console.exit_watch import ExitWatch
from chiplog.console.line_journal import ConsoleJournal
from chiplog.console.lines import ByteSplitter, LineLimiter
from chiplog.console.poll_policy import POLL_INTERVAL_S, StreamRate, uses_timer
from chiplog.console.relay import CHUNKS_MAX, RelayLock, StreamRelay
from chiplog.console.stream_fds import MESSAGE_BYTES_MAX, StreamFds
from chiplog.console.terminal import Keyboard, signal_resize
from chiplog_schemas.once import OnceLogger

_SIZE_INTERVAL_S = 0.25  # between checks of the terminal's size: no SIGWINCH reaches another session
_SETTLE_INTERVAL_S = 0.5  # between checks whether a finished progress bar is a line; a bar wakes the helper anyway
_ORDERED = select.EPOLLIN | select.EPOLLET  # safeguard: streams-in-written-order


def drain(control_descriptor: int) -> None:
    """Run the helper. `control_descriptor` is its end of the socket; the rank has sent the configuration on it."""
    with contextlib.suppress(OSError):
        os.setsid()  # the shell has called it already where the system can
    control = socket.socket(fileno=control_descriptor)
    config = json.loads(control.recv(MESSAGE_BYTES_MAX))
    streams = [StreamFds(*fds) for fds in config["streams"]]
    keep = {control_descriptor, config["lock"], *config["watch"], *(number for fds in streams for number in fds.fds)}
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > 2 and number not in keep:
            # A process that waits for the end of a pipe that the rank inherited must not wait for this helper.
            with contextlib.suppress(OSError):  # the listing's own descriptor is closed already
                os.close(number)
    with contextlib.suppress(OSError, ValueError):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))  # do not compete for the cores that the rank is bound to
    lock = RelayLock(config["lock"])
    lock.acquire(wait=True)  # a rank that finishes before the helper is up relays the bytes itself
    ConsoleHelper(config, control, streams, lock).run()


class HelperStream(StreamRelay):
    """A stream of the rank: its relay, its lines, and, if it is a terminal, the keys for children."""

    def __init__(self, fds: StreamFds, rank: int) -> None:
        super().__init__(fds)
        self.lines = ByteSplitter()
        self.rate = StreamRate(fds.capacity_bytes, is_terminal=bool(fds.name))
        self.keyboard = Keyboard(fds, rank) if fds.name else None


class ConsoleHelper:
    """One helper: the streams that it relays, the socket to its rank, and the lines that it records."""

    def __init__(
        self, config: dict[str, Any], control: socket.socket, streams: list[StreamFds], lock: RelayLock
    ) -> None:
        self._rank = config["pid"]
        self._control: socket.socket | None = control
        self._streams = {fds.source: HelperStream(fds, self._rank) for fds in streams}
        self._lock = lock
        self._once = OnceLogger(lambda message: print(message, file=sys.stderr, flush=True), keys_max=100)
        self._records = True  # until the run has finished
        self._journal = journal = ConsoleJournal(config, self._log_once)
        rate, burst = config["limits"]["console_lines_per_s"], config["limits"]["console_burst_lines"]
        self._limiter = LineLimiter(
            journal.line, journal.lost, lambda: not journal.is_crowded, rate, burst, lock.line_no
        )
        watch = config["watch"]
        self._watch = ExitWatch(watch[0], watch[1], self._rank, config["journal"]) if watch else None
        self._epoll = select.epoll()
        for descriptor in (control.fileno(), *watch[:1], *self._streams):
            self._epoll.register(descriptor, _ORDERED if descriptor in self._streams else select.EPOLLIN)

    def run(self) -> None:
        """Relay until all streams have ended, then deliver what was recorded."""
        begun = self._lock.take_begun()
        for stream in self._streams.values():
            self._record(stream, begun.get(stream.fds.stream, b""))
        self._send_control({"ready": os.getpid()})
        while self._streams:
            self.poll_once()
        is_finished = not self._records
        self._finish()
        self._send_control({"finished": True})
        self._journal.close()
        if self._watch is not None:
            self._watch.wait(is_finished=is_finished)

    def poll_once(self) -> None:
        """Wait for events and handle them."""
        ready = self._epoll.poll(0) or self._epoll.poll(self._sleep())
        self._follow_terminals()  # before the output is shown: it may be a prompt for keys
        for descriptor, _ in ready:
            if (stream := self._streams.get(descriptor)) is not None:
                self._relay_chunk(stream)
                if descriptor in self._streams:
                    self._epoll.modify(descriptor, _ORDERED)  # after the others, if bytes are left
            elif self._control is not None and descriptor == self._control.fileno():
                self._handle_control()
            elif self._watch is not None and descriptor == self._watch.rank:
                self._watch.note()
                self._watch = None
                self._epoll.unregister(descriptor)
            else:
                for keyboard in self._keyboards():
                    if keyboard.descriptor == descriptor:
                        keyboard.pass_on()
        for stream in self._streams.values():
            if self._records and stream.lines.is_holding:  # rows of progress bars that are not drawn any more
                self._add(stream, stream.lines.settle(time.monotonic()))

    def _sleep(self) -> float | None:
        """Sleep here while a stream is busy. Return how long to sleep on the epoll, where each write wakes up."""
        if uses_timer([stream.rate for stream in self._streams.values()], time.monotonic()):
            select.select([] if self._control is None else [self._control], [], [], POLL_INTERVAL_S)
            return 0
        if self._records and any(stream.lines.is_holding for stream in self._streams.values()):
            return _SETTLE_INTERVAL_S
        return _SIZE_INTERVAL_S if self._keyboards() else None

    # -- terminals --

    def _keyboards(self) -> list[Keyboard]:
        return [stream.keyboard for stream in self._streams.values() if stream.keyboard is not None]

    def _follow_terminals(self) -> None:
        """Copy the real terminal's size to the pseudo-terminals and their modes back, and find readers of keys."""
        resized = [stream for stream in self._streams.values() if stream.fds.sync_window_size()]
        if resized:
            signal_resize(self._rank)  # safeguard: winch-after-resize
        for keyboard in self._keyboards():
            before = keyboard.descriptor
            keyboard.poll_modes(time.monotonic())
            if keyboard.descriptor not in (-1, before):  # epoll drops a closed descriptor itself
                self._epoll.register(keyboard.descriptor, select.EPOLLIN)

    # -- streams --

    def _relay_chunk(self, stream: HelperStream) -> bytes:
        """Relay one chunk of a stream, and record it. Return b"" if there was none."""
        was_broken = stream.reader_closed
        if data := stream.relay():
            stream.rate.record_write(len(data), time.monotonic())
            self._record(stream, data)
        number = stream.fds.stream
        if stream.reader_closed and not was_broken:
            self._send_control({"broken": number})
        if stream.write_error is not None:
            self._log_once(f"what stream {number} of the training printed cannot be written: {stream.write_error}")
        if stream.has_ended:
            self._end(stream)
        return data

    def _end(self, stream: HelperStream) -> None:
        if self._records:
            self._add(stream, stream.lines.flush())
        if stream.keyboard is not None:
            stream.keyboard.close()
        self._epoll.unregister(stream.fds.source)
        del self._streams[stream.fds.source]
        stream.close()

    def _relay_all(self) -> None:
        """Relay all available bytes of all streams. Ends even if a process keeps writing."""
        for stream in list(self._streams.values()):
            for _ in range(CHUNKS_MAX):
                if not self._relay_chunk(stream):
                    break

    # -- the rank --

    def _handle_control(self) -> None:
        """Handle a message of the rank, or the end of its socket."""
        assert self._control is not None
        try:
            message = self._control.recv(MESSAGE_BYTES_MAX)
        except OSError:
            message = b""
        if not message:
            self._epoll.unregister(self._control.fileno())
            self._control.close()
            self._control = None
            return
        order = json.loads(message)
        self._relay_all()
        if "finish" in order:
            self._finish()
            self._send_control({"finished": True})
        for stream in list(self._streams.values()):
            # The rank has closed its reading end too: writers now get EPIPE, as they would without capture.
            if stream.fds.stream == order.get("closed"):
                self._end(stream)

    def _send_control(self, message: dict[str, Any]) -> None:
        if self._control is not None:
            with contextlib.suppress(OSError):  # the rank has exited or does not read: it needs no answer
                self._control.send(json.dumps(message).encode(), socket.MSG_DONTWAIT)

    def _log_once(self, message: str) -> None:
        """Log a message once, to the file that all helpers log to."""
        self._once.log(message, f"chiplog console {os.getpid()}: {message}")

    # -- lines --

    def _record(self, stream: HelperStream, data: bytes) -> None:
        if self._records and data:
            self._add(stream, stream.lines.feed_bytes(data, time.monotonic()))

    def _add(self, stream: HelperStream, lines: list[str]) -> None:
        if lines:
            self._limiter.take(stream.fds.stream, lines, time.monotonic())
            self._lock.line_no = self._limiter.line_no

    def _finish(self) -> None:
        """Record unterminated lines, then seal the journal."""
        if self._records:
            for stream in self._streams.values():
                self._add(stream, stream.lines.flush())
            self._limiter.declare()
            self._records = False
            self._journal.seal()
