"""The loop of the console helper: relay what a rank writes and record it, until the last writer has closed.

The helper uses two epolls. It sleeps on the first one, where a busy stream is masked (poll_policy.py gives the reason).
It only polls the second one, which holds all streams and reports the order in which they became ready. That is as close
to the order between two streams as pipes allow. The second epoll is edge-triggered: otherwise a stream would keep its
place from one poll to the next, ahead of a stream that was written to first while this process waited for a core.
"""

import contextlib
import json
import mmap
import os
import select
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from chiplog.console.exit_watch import ExitWatch
from chiplog.console.lines import ByteSplitter
from chiplog.console.poll_policy import LOOK_INTERVAL_S, PollPolicy
from chiplog.console.relay import CHUNK_BYTES, SpliceRelay
from chiplog.console.shared_counters import SharedCounters
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
_EARLY_BYTES_MAX = 4 << 20  # queued until then: more than a second of any output
_ORDERED = select.EPOLLIN | select.EPOLLET  # safeguard: streams-in-written-order
_DELIVER_INTERVAL_S = 0.05  # between two checks for delivery, once the run has finished
_DELIVER_WAIT_S = 5.0  # then the journal is left to the process that adopts it


def drain(control_descriptor: int) -> None:
    """Run the helper. `control_descriptor` is its end of the socket; the rank has sent the configuration on it."""
    with contextlib.suppress(OSError):
        os.setsid()  # the shell has called it already where the system can
    control = socket.socket(fileno=control_descriptor)
    config = json.loads(control.recv(MESSAGE_BYTES_MAX))
    streams = [StreamFds(**ends) for ends in config["streams"]]
    watch = config.get("watch", [])
    keep = {control_descriptor, config["tally"], *watch, *(number for ends in streams for number in ends.fds)}
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > 2 and number not in keep:
            # A process that waits for the end of a pipe that the rank inherited must not wait for this helper.
            with contextlib.suppress(OSError):  # the listing's own descriptor is closed already
                os.close(number)
    with contextlib.suppress(OSError, ValueError):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))  # do not compete for the cores that the rank is bound to
    tally = SharedCounters(config["tally"], mmap.mmap)
    tally.lock(wait=True)  # a rank that finishes before the helper is up moves the bytes itself
    ConsoleHelper(config, control, [SpliceRelay(ends, tally) for ends in streams], tally).run()


class ConsoleHelper:
    """One helper: the streams that it relays, the socket to its rank, and the lines that it records."""

    def __init__(
        self, orders: dict[str, Any], control: socket.socket, passages: list[SpliceRelay], tally: SharedCounters
    ) -> None:
        self._orders = orders
        self._control: socket.socket | None = control
        self._passages = {passage.ends.poll_fd: passage for passage in passages}
        self._tally = tally
        self._lines = {passage.ends.stream: ByteSplitter() for passage in passages}
        self._pace = TokenBucket(
            time.monotonic(), orders["bounds"]["console_lines_per_s"], orders["bounds"]["console_burst_lines"]
        )
        self._transcript: ConsoleJournal | None = None
        self._opening: threading.Thread | None = None
        self._queued: list[tuple[Any, ...]] = []  # events to record once the journal is open
        self._early_bytes = dict.fromkeys(self._lines, 0)  # per stream
        self._records = True  # until the run has finished
        self._once = OnceLogger(lambda message: print(message, file=sys.stderr, flush=True), keys_max=100)
        terminals = {passage.ends.poll_fd for passage in passages if passage.ends.master >= 0}
        # By master. Keys for children, where the stream is a terminal.
        self._keyboards = {master: Keyboard(self._passages[master].ends, orders["pid"]) for master in terminals}
        holds_bytes = {descriptor: passage.capacity_bytes for descriptor, passage in self._passages.items()}
        self._waking = PollPolicy(holds_bytes, terminals)
        # A chunk of this size may not be all available bytes.
        self._chunks = {descriptor: min(CHUNK_BYTES, n_bytes // 2) for descriptor, n_bytes in holds_bytes.items()}
        watch = orders.get("watch")
        self._watch = ExitWatch(watch[0], watch[1], orders["pid"], orders["journal"]) if watch else None
        self._is_told_to_finish = False
        self._sleep, self._ready = select.epoll(), select.epoll()
        for descriptor in (control.fileno(), *(watch or ())[:1], *self._passages):
            self._sleep.register(descriptor, select.EPOLLIN)
            self._ready.register(descriptor, _ORDERED if descriptor in self._passages else select.EPOLLIN)

    def run(self) -> None:
        """Relay until all streams have ended, then deliver what was recorded."""
        self._emit_lost_bytes_of_predecessor()
        for stream, lines in self._lines.items():
            self._add(stream, lines.feed_bytes(self._tally.take_partial(stream), time.monotonic()))
        self._send_control({"ready": os.getpid()})
        while self._passages:
            self.poll_once()
        self._finish()
        self._send_control({"finished": True})
        if self._transcript is not None:
            self._transcript.close(_DELIVER_WAIT_S)
        if self._watch is not None:
            self._watch.wait(is_finished=self._is_told_to_finish)

    def poll_once(self) -> None:
        """Wait for events and handle them."""
        ready = self._ready.poll(0)
        if not ready:
            self._sleep.poll(self._wait_s())
            ready = self._ready.poll(0)
        self._follow_terminals()  # before the output is shown: it may be a prompt for keys
        for descriptor, _ in ready:
            if descriptor in self._passages:
                self._relay_chunk(descriptor)
                if descriptor in self._passages:
                    self._ready.modify(descriptor, _ORDERED)  # after the others, if bytes are left
            elif self._control is not None and descriptor == self._control.fileno():
                self._handle_control()
            elif self._watch is not None and descriptor == self._watch.rank and not self._watch.has_ended:
                self._watch.note()
                self._unregister(descriptor)
            else:
                self._pass_keys(descriptor)
        self._settle_lines()
        self._update_wakeups()
        self._flush_queued()
        self._deliver()

    def _wait_s(self) -> float | None:
        if self._waking.timer_fd is not None:
            return LOOK_INTERVAL_S
        if self._queued:
            return _OPEN_INTERVAL_S
        if self._transcript is not None and not self._records:
            return _DELIVER_INTERVAL_S
        if self._records and any(lines.is_holding for lines in self._lines.values()):
            return _SETTLE_INTERVAL_S
        return _SIZE_INTERVAL_S if self._keyboards else None

    # -- terminals --

    def _follow_terminals(self) -> None:
        """Copy the real terminal's size to the pseudo-terminals and their modes back, and find readers of keys."""
        resized = [master for master in self._keyboards if self._passages[master].ends.sync_window_size()]
        if resized:
            signal_resize(self._orders["pid"])  # safeguard: winch-after-resize
        for keyboard in self._keyboards.values():
            before = keyboard.descriptor
            keyboard.look(time.monotonic())
            if keyboard.descriptor not in (-1, before):  # epoll drops a closed descriptor itself
                for poll in (self._sleep, self._ready):
                    poll.register(keyboard.descriptor, select.EPOLLIN)

    def _pass_keys(self, descriptor: int) -> None:
        for keyboard in self._keyboards.values():
            if keyboard.descriptor == descriptor:
                keyboard.pass_on()

    # -- streams --

    def _update_wakeups(self) -> None:
        """Wake on all streams except the one that a timer polls. The end of that stream wakes the helper too."""
        before = self._waking.timer_fd
        chosen = self._waking.choose_timer_stream(time.monotonic())
        if chosen != before:
            if before in self._passages:
                self._sleep.modify(before, select.EPOLLIN)
            if chosen is not None:
                self._sleep.modify(chosen, 0)

    def _relay_chunk(self, descriptor: int, *, all_of_it: bool = False) -> None:
        """Relay one chunk of a stream, or all available bytes, and record it.

        Of the stream that the timer polls, relay everything: it was written before the event that woke the helper.
        """
        passage = self._passages[descriptor]
        stream = passage.ends.stream
        was_broken = passage.reader_closed
        now = time.monotonic()
        for data in passage.relay_all():
            self._waking.record_write(descriptor, data, now)
            self._record(stream, data)
            if not all_of_it and (descriptor != self._waking.timer_fd or len(data) < self._chunks[descriptor]):
                break
        if passage.reader_closed and not was_broken:
            self._send_control({"broken": stream})
        if passage.write_error is not None:
            self._log_once(f"what stream {stream} of the training printed cannot be written: {passage.write_error}")
        if passage.has_ended:
            self._end(descriptor)

    def _end(self, descriptor: int) -> None:
        passage = self._passages.pop(descriptor)
        if (keyboard := self._keyboards.pop(descriptor, None)) is not None:
            keyboard.close()
        self._waking.forget(descriptor)
        self._unregister(descriptor)
        passage.close()

    def _unregister(self, descriptor: int) -> None:
        for poll in (self._sleep, self._ready):
            poll.unregister(descriptor)

    def _relay_all(self) -> None:
        """Relay all available bytes of all streams."""
        for descriptor in list(self._passages):
            self._relay_chunk(descriptor, all_of_it=True)

    # -- the rank --

    def _handle_control(self) -> None:
        """Handle a message of the rank, or the end of its socket."""
        assert self._control is not None
        try:
            said = self._control.recv(MESSAGE_BYTES_MAX)
        except OSError:
            said = b""
        if not said:
            self._unregister(self._control.fileno())
            self._control.close()
            self._control = None
            return
        order = json.loads(said)
        if "finish" in order:
            self._is_told_to_finish = True
            self._relay_all()
            self._finish()
            self._send_control({"finished": True})
        elif "closed" in order:
            # The rank has closed its reading end too: writers now get EPIPE, as they would without capture.
            for descriptor, passage in list(self._passages.items()):
                if passage.ends.stream == order["closed"]:
                    self._relay_all()
                    if descriptor in self._passages:
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
            self._early_bytes[stream] += len(data)
            if not self._queued:
                self._note_recorded()
            elif sum(self._early_bytes.values()) > _EARLY_BYTES_MAX:
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
        line_no = self._tally.line_no
        is_crowded = self._transcript is not None and self._transcript.is_crowded
        for line in lines:
            line_no += 1
            if is_crowded or not self._pace.allow(now):
                self._tally.n_dropped += 1
                continue
            self._emit_lost_lines()
            self._record_or_queue("line", ts_us, stream, line_no, line)
        self._tally.line_no = line_no

    def _emit_lost_lines(self) -> None:
        if lost := self._tally.n_dropped:
            message = f"{lost} lines above the rate limit, or while the journal was nearly full"
            self._record_or_queue("notice", "console_lost", message, {"lines": lost})
            self._tally.n_dropped = 0

    def _emit_lost_bytes_of_predecessor(self) -> None:
        """Declare lost what the previous helper relayed but did not record before it was killed."""
        for passage in self._passages.values():
            stream = passage.ends.stream
            n_bytes = self._tally.passed(stream) - self._tally.recorded(stream)
            if n_bytes > 0:
                message = f"up to {n_bytes} bytes of stream {stream}: the helper that recorded the console was killed"
                self._record_or_queue("notice", "console_lost", message, {"bytes": n_bytes})
                self._early_bytes[stream] += n_bytes

    def _record_or_queue(self, *event: Any) -> None:
        """Record a line or a notice, or queue it while the journal is being opened.

        The first line opens the journal: most helpers of a thousand ranks never need one. A thread opens it, because
        the terminal must not wait for the imports on a busy machine.
        """
        if self._transcript is not None:
            getattr(self._transcript, event[0])(*event[1:])
            return
        self._queued.append(event)
        if self._opening is None:
            self._opening = threading.Thread(target=self._open, daemon=True)
            try:
                self._opening.start()
            except RuntimeError:  # out of threads
                self._opening = None
                self._open()
                self._transcript, queued, self._queued = self._opened, self._queued, []
                for event in queued:
                    self._record_or_queue(*event)

    def _open(self) -> None:
        from chiplog.console.line_journal import ConsoleJournal

        self._opened = ConsoleJournal(self._orders, self._log_once)

    def _flush_queued(self, *, wait: bool = False) -> None:
        """Record the queued events once the journal is open."""
        if self._opening is None or (self._opening.is_alive() and not wait):
            return
        self._opening.join()
        self._opening, self._transcript = None, self._opened
        early, self._queued = self._queued, []
        for event in early:
            self._record_or_queue(*event)
        self._note_recorded()

    def _note_recorded(self) -> None:
        for stream, n_bytes in self._early_bytes.items():
            if n_bytes:
                self._tally.note_recorded(stream, n_bytes)
                self._early_bytes[stream] = 0

    def _finish(self) -> None:
        """Record unterminated lines, then seal the journal."""
        if not self._records:
            return
        for stream, lines in self._lines.items():
            self._add(stream, lines.flush())
        self._emit_lost_lines()
        self._records = False
        self._flush_queued(wait=True)
        if self._transcript is not None:
            self._transcript.seal()

    def _deliver(self) -> None:
        """Close a finished journal once it is delivered: children may keep writing for days."""
        if (
            not self._records
            and self._transcript is not None
            and self._transcript.is_delivered_or_expired(_DELIVER_WAIT_S)
        ):
            self._transcript.close(0.0)
            self._transcript = None
