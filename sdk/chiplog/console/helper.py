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
import threading
import time
from typing import TYPE_CHECKING, Any

from chiplog.console.exit_watch import ExitWatch
from chiplog.console.lines import ByteSplitter, lost_lines
from chiplog.console.poll_policy import POLL_INTERVAL_S, PollPolicy
from chiplog.console.relay import CHUNKS_MAX, RelayLock, StreamRelay
from chiplog.console.stream_fds import StreamFds
from chiplog.console.terminal import Keyboard, signal_resize
from chiplog_schemas.clock import now_us
from chiplog_schemas.once import OnceLogger
from chiplog_schemas.rate_limit import TokenBucket

if TYPE_CHECKING:
    from chiplog.console.line_journal import ConsoleJournal

MESSAGE_BYTES_MAX = 65_536  # of the control socket: it carries paths and bounds, never output
_SIZE_INTERVAL_S = 0.25  # between checks of the terminal's size: no SIGWINCH reaches another session
_SETTLE_INTERVAL_S = 0.5  # between checks whether a finished progress bar is a line; a bar wakes the helper anyway
_OPEN_INTERVAL_S = 0.01  # between two checks whether the journal is open
_QUEUED_BYTES_MAX = 4 << 20  # read until then: more than a second of any output
_ORDERED = select.EPOLLIN | select.EPOLLET  # safeguard: streams-in-written-order
_DELIVER_INTERVAL_S = 0.05  # between two checks for delivery, once the run has finished
_DELIVER_WAIT_S = 5.0  # then the journal is left to the process that adopts it


def drain(control_descriptor: int) -> None:
    """Run the helper. `control_descriptor` is its end of the socket; the rank has sent the configuration on it."""
    with contextlib.suppress(OSError):
        os.setsid()  # the shell has called it already where the system can
    control = socket.socket(fileno=control_descriptor)
    config = json.loads(control.recv(MESSAGE_BYTES_MAX))
    streams = [StreamFds(**fds) for fds in config["streams"]]
    watch = config.get("watch", [])
    keep = {control_descriptor, config["lock"], *watch, *(number for fds in streams for number in fds.fds)}
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


class ConsoleHelper:
    """One helper: the streams that it relays, the socket to its rank, and the lines that it records."""

    def __init__(
        self, config: dict[str, Any], control: socket.socket, streams: list[StreamFds], lock: RelayLock
    ) -> None:
        self._config = config
        self._control: socket.socket | None = control
        self._relays = {fds.source: StreamRelay(fds) for fds in streams}
        self._lock = lock
        self._lines = {fds.stream: ByteSplitter() for fds in streams}
        self._line_no = lock.line_no
        self._n_dropped = 0  # lines that are not declared yet
        self._bucket = TokenBucket(
            time.monotonic(), config["bounds"]["console_lines_per_s"], config["bounds"]["console_burst_lines"]
        )
        self._journal: ConsoleJournal | None = None
        self._opening: threading.Thread | None = None
        self._queued: list[tuple[Any, ...]] = []  # events to record once the journal is open
        self._queued_bytes = 0  # what was read since the first of them
        self._records = True  # until the run has finished
        self._once = OnceLogger(lambda message: print(message, file=sys.stderr, flush=True), keys_max=100)
        # By descriptor. Keys for children, where the stream is a terminal.
        self._keyboards = {fds.source: Keyboard(fds, config["pid"]) for fds in streams if fds.name}
        self._policy = PollPolicy({fds.source: fds.capacity_bytes for fds in streams}, self._keyboards)
        watch = config.get("watch")
        self._watch = ExitWatch(watch[0], watch[1], config["pid"], config["journal"]) if watch else None
        self._must_finish = False
        self._epoll = select.epoll()
        for descriptor in (control.fileno(), *(watch or ())[:1], *self._relays):
            self._epoll.register(descriptor, _ORDERED if descriptor in self._relays else select.EPOLLIN)

    def run(self) -> None:
        """Relay until all streams have ended, then deliver what was recorded."""
        for stream, begun in self._lock.take_begun().items():
            if stream in self._lines:
                self._add(stream, self._lines[stream].feed_bytes(begun, time.monotonic()))
        self._send_control({"ready": os.getpid()})
        while self._relays:
            self.poll_once()
        self._finish()
        self._send_control({"finished": True})
        if self._journal is not None:
            self._journal.close(_DELIVER_WAIT_S)
        if self._watch is not None:
            self._watch.wait(is_finished=self._must_finish)

    def poll_once(self) -> None:
        """Wait for events and handle them."""
        ready = self._epoll.poll(0) or self._epoll.poll(self._sleep())
        self._follow_terminals()  # before the output is shown: it may be a prompt for keys
        for descriptor, _ in ready:
            if descriptor in self._relays:
                self._relay_chunk(descriptor)
                if descriptor in self._relays:
                    self._epoll.modify(descriptor, _ORDERED)  # after the others, if bytes are left
            elif self._control is not None and descriptor == self._control.fileno():
                self._handle_control()
            elif self._watch is not None and descriptor == self._watch.rank and not self._watch.has_ended:
                self._watch.note()
                self._epoll.unregister(descriptor)
            else:
                self._pass_keys(descriptor)
        self._settle_lines()
        self._flush_queued()
        self._deliver()

    def _sleep(self) -> float | None:
        """Sleep here while a stream is busy. Return how long to sleep on the epoll, where each write wakes up."""
        if self._policy.uses_timer(time.monotonic()):
            select.select([] if self._control is None else [self._control], [], [], POLL_INTERVAL_S)
            return 0
        if self._queued:
            return _OPEN_INTERVAL_S
        if self._journal is not None and not self._records:
            return _DELIVER_INTERVAL_S
        if self._records and any(lines.is_holding for lines in self._lines.values()):
            return _SETTLE_INTERVAL_S
        return _SIZE_INTERVAL_S if self._keyboards else None

    # -- terminals --

    def _follow_terminals(self) -> None:
        """Copy the real terminal's size to the pseudo-terminals and their modes back, and find readers of keys."""
        resized = [source for source in self._keyboards if self._relays[source].fds.sync_window_size()]
        if resized:
            signal_resize(self._config["pid"])  # safeguard: winch-after-resize
        for keyboard in self._keyboards.values():
            before = keyboard.descriptor
            keyboard.poll_modes(time.monotonic())
            if keyboard.descriptor not in (-1, before):  # epoll drops a closed descriptor itself
                self._epoll.register(keyboard.descriptor, select.EPOLLIN)

    def _pass_keys(self, descriptor: int) -> None:
        for keyboard in self._keyboards.values():
            if keyboard.descriptor == descriptor:
                keyboard.pass_on()

    # -- streams --

    def _relay_chunk(self, descriptor: int) -> bool:
        """Relay one chunk of a stream, and record it. Return True if there was one."""
        relay = self._relays[descriptor]
        stream = relay.fds.stream
        was_broken = relay.reader_closed
        if data := relay.relay():
            self._policy.record_write(descriptor, len(data), time.monotonic())
            self._record(stream, data)
        if relay.reader_closed and not was_broken:
            self._send_control({"broken": stream})
        if relay.write_error is not None:
            self._log_once(f"what stream {stream} of the training printed cannot be written: {relay.write_error}")
        if relay.has_ended:
            self._end(descriptor)
        return bool(data)

    def _end(self, descriptor: int) -> None:
        relay = self._relays.pop(descriptor)
        if (keyboard := self._keyboards.pop(descriptor, None)) is not None:
            keyboard.close()
        self._policy.forget(descriptor)
        self._epoll.unregister(descriptor)
        relay.close()

    def _relay_all(self) -> None:
        """Relay all available bytes of all streams. Ends even if a process keeps writing."""
        for descriptor in list(self._relays):
            for _ in range(CHUNKS_MAX):
                if not self._relay_chunk(descriptor):
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
        if "finish" in order:
            self._must_finish = True
            self._relay_all()
            self._finish()
            self._send_control({"finished": True})
        elif "closed" in order:
            # The rank has closed its reading end too: writers now get EPIPE, as they would without capture.
            for descriptor, relay in list(self._relays.items()):
                if relay.fds.stream == order["closed"]:
                    self._relay_all()
                    if descriptor in self._relays:
                        self._end(descriptor)

    def _send_control(self, message: dict[str, Any]) -> None:
        if self._control is not None:
            try:
                self._control.send(json.dumps(message).encode(), socket.MSG_DONTWAIT)
            except OSError:
                pass  # the rank has exited or does not read: it needs no answer

    def _log_once(self, message: str) -> None:
        """Log a message once, to the file that all helpers log to."""
        self._once.log(message, f"chiplog console {os.getpid()}: {message}")

    # -- lines --

    def _record(self, stream: int, data: bytes) -> None:
        if self._records:
            self._add(stream, self._lines[stream].feed_bytes(data, time.monotonic()))
            self._queued_bytes += len(data) if self._queued else 0
            if self._queued_bytes > _QUEUED_BYTES_MAX:
                self._flush_queued(wait=True)

    def _settle_lines(self) -> None:
        """Record the rows of progress bars that are not drawn any more."""
        for stream, lines in self._lines.items():
            if lines.is_holding and self._records:
                self._add(stream, lines.settle(time.monotonic()))

    def _add(self, stream: int, lines: list[str]) -> None:
        if not lines:
            return
        now, ts_us = time.monotonic(), now_us()
        is_crowded = self._journal is not None and self._journal.is_crowded
        for line in lines:
            self._line_no += 1
            if is_crowded or not self._bucket.allow(now):
                self._n_dropped += 1
                continue
            self._emit_lost_lines()
            self._record_or_queue("line", ts_us, stream, self._line_no, line)
        self._lock.line_no = self._line_no

    def _emit_lost_lines(self) -> None:
        if self._n_dropped:
            self._record_or_queue("notice", "console_lost", *lost_lines(self._n_dropped))
            self._n_dropped = 0

    def _record_or_queue(self, *event: Any) -> None:
        """Record a line or a notice, or queue it while the journal is being opened.

        The first line opens the journal: most helpers of a thousand ranks never need one. A thread opens it, because
        the terminal must not wait for the imports on a busy machine.
        """
        if self._journal is not None:
            getattr(self._journal, event[0])(*event[1:])
            return
        self._queued.append(event)
        if self._opening is None:
            self._opening = threading.Thread(target=self._open, daemon=True)
            try:
                self._opening.start()
            except RuntimeError:  # out of threads
                self._opening = None
                self._open()
                self._journal = self._opened
                self._record_queued()

    def _open(self) -> None:
        from chiplog.console.line_journal import ConsoleJournal

        self._opened = ConsoleJournal(self._config, self._log_once)

    def _flush_queued(self, *, wait: bool = False) -> None:
        """Record the queued events once the journal is open."""
        if self._opening is None or (self._opening.is_alive() and not wait):
            return
        self._opening.join()
        self._opening, self._journal = None, self._opened
        self._record_queued()

    def _record_queued(self) -> None:
        queued, self._queued, self._queued_bytes = self._queued, [], 0
        for event in queued:
            self._record_or_queue(*event)

    def _finish(self) -> None:
        """Record unterminated lines, then seal the journal."""
        if not self._records:
            return
        for stream, lines in self._lines.items():
            self._add(stream, lines.flush())
        self._emit_lost_lines()
        self._records = False
        self._flush_queued(wait=True)
        if self._journal is not None:
            self._journal.seal()

    def _deliver(self) -> None:
        """Close a finished journal once it is delivered: children may keep writing for days."""
        if not self._records and self._journal is not None and self._journal.is_delivered_or_expired(_DELIVER_WAIT_S):
            self._journal.close(0.0)
            self._journal = None
