"""Replace this process's stdout and stderr by pipes, with a helper that drains them; restore them at the end.

The helper is a process: a thread of the rank could not drain while native code prints and holds the GIL. If it dies,
the bytes stay in the pipes, whose read ends this process holds too, and another helper continues with them.
"""

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from chiplog.console.helper_process import HelperProcess
from chiplog.console.relay import SpliceRelay, drain_lines, is_filling, is_readable
from chiplog.console.shared_counters import SharedCounters
from chiplog.console.stream_fds import StreamFds, dup_above_stdio, fd_identity, inherited_pipes, open_stream_fds
from chiplog_schemas.paths import Paths
from chiplog_schemas.process.descriptors import OwnedDescriptor

STARTS_MAX = 4  # of helpers in one run: one and three replacements; then the streams are restored
_STALLED_S = 5.0  # bytes wait, no write is in progress and none move: the helper is stopped or hangs
_LATE_S = 30.0  # the same for a helper that is starting: 64 at once on two busy cores take seconds
_LOOK_INTERVAL_S = 0.2  # between checks for a stopped helper: one at each tick would cost too much


class StreamRedirect:
    """The captured streams of one run in one process.

    orders: a helper's configuration, without its descriptors. on_given_up: called when no further helper can be
    started, with the reason, the unrecorded bytes of each restored stream and the number of the last line. on_rest:
    called with bytes that were relayed without a helper, and whether they are the last; returns the number of the last
    line, and the unterminated line of each stream if more follows. Raises OSError, and then nothing has changed.
    """

    def __init__(
        self,
        streams: Iterable[int],
        places: Paths,
        orders: dict[str, Any],
        on_given_up: Callable[[str, dict[int, bytes], int], None],
        on_rest: Callable[[dict[int, bytes], int, bool], tuple[int, dict[int, bytes]]],
    ) -> None:
        self._process = HelperProcess(places, orders)
        self._on_given_up = on_given_up
        self._on_rest = on_rest
        self._ends: dict[int, StreamFds] = {}
        self._broken: set[int] = set()
        self._inodes: dict[int, tuple[int, int]] = {}
        self._buffering: dict[int, tuple[Any, bool]] = {}
        self._owned: dict[int, OwnedDescriptor] = {}  # descriptors that the training could close, by number
        self._helper = 0  # its PID, once it has reported that it is ready
        self._progress: tuple[int, float] = (0, time.monotonic())  # bytes passed, and when that last changed
        self._next_check_s = 0.0  # for a stopped helper
        self._is_given_up = False
        self._lock = threading.Lock()
        self._tally_descriptor = dup_above_stdio(os.memfd_create("chiplog-console", os.MFD_CLOEXEC))
        os.ftruncate(self._tally_descriptor, SharedCounters.SIZE)
        self._tally = SharedCounters(self._tally_descriptor)
        writing: dict[int, int] = {}
        try:
            for stream in streams:
                self._ends[stream], writing[stream] = open_stream_fds(stream)
            numbers = (self._tally_descriptor, *(number for ends in self._ends.values() for number in ends.fds))
            self._owned = {number: OwnedDescriptor(number) for number in numbers}
            self._start_helper()
            for stream, descriptor in writing.items():
                self._replace_fd(stream, descriptor)
        except BaseException:
            self._restore()
            self._close(targets=True)
            raise
        finally:
            for descriptor in writing.values():
                os.close(descriptor)

    @property
    def helper(self) -> int:
        """The PID of the helper; 0 while none is ready."""
        return self._helper

    def targets(self) -> dict[int, tuple[tuple[int, int], int]]:
        """Return for each captured stream what replaces it, as (device, inode), and its original target."""
        inodes = self._inodes
        return {stream: (inodes[stream], ends.target) for stream, ends in self._ends.items() if stream in inodes}

    # -- while the training runs: the sender thread --

    def tick(self) -> None:
        """Read the helper's messages, and replace it if it has exited or is stopped."""
        if not self._lock.acquire(False):
            return
        try:
            self._process.reap()
            self._disown_what_was_closed()
            if not self._ends:
                return  # already finished
            if self._is_given_up:
                self._drain()
                return
            while self._process.is_connected and (said := self._process.receive(0)) is not None:
                if "ready" in said:
                    self._helper = said["ready"]
                elif "broken" in said:
                    self._close_broken(said["broken"])  # safeguard: training-meets-epipe
                elif "gone" in said:
                    self._restart_helper()  # safeguard: killed-helper-replaced
                    return
            self._kill_stalled_helper()  # safeguard: stopped-helper-ended
            # safeguard: printing-waits-for-no-helper
            if not self._helper and any(map(is_filling, self._open_streams())):
                # In a thread: the reader may be slow, and the sender has other work.
                with contextlib.suppress(RuntimeError):  # no thread can be started now
                    threading.Thread(target=self._drain_without_helper, name="chiplog-console", daemon=True).start()
        finally:
            self._lock.release()

    def _disown_what_was_closed(self) -> None:
        """Leave the streams to the helper once the training has closed any descriptor of this object.

        The numbers may belong to other files by then. The helper has its own descriptors, and records until the process
        ends.
        """
        # safeguard: console-spares-foreign-descriptors
        if self._process.is_ours and all(descriptor.is_ours for descriptor in self._owned.values()):
            return
        self._ends, self._inodes, self._owned = {}, {}, {}
        self._process.disown()

    def _close_broken(self, stream: int) -> None:
        """Close the pipe so that writers get EPIPE: the stream's original target has no reader any more."""
        if stream not in self._broken:
            self._broken.add(stream)
            ends = self._ends[stream]
            for descriptor in {*ends.fds} - {ends.target}:
                self._owned.pop(descriptor, None)
                os.close(descriptor)
        self._process.send({"closed": stream})

    def _kill_stalled_helper(self) -> None:
        now = time.monotonic()
        if now < self._next_check_s:
            return
        self._next_check_s = now + _LOOK_INTERVAL_S
        moved = sum(self._tally.passed(stream) for stream in self._ends)
        waits = any(state & select.POLLIN for state in self._states())
        if moved != self._progress[0] or self._tally.is_waiting or not waits:
            self._progress = (moved, now)
        elif now - self._progress[1] > (_STALLED_S if self._helper else _LATE_S):
            if self._helper:
                with contextlib.suppress(OSError):
                    os.kill(self._helper, signal.SIGKILL)  # still its PID: its end of the socket is open
            elif self._tally.lock():  # else it has just started, and will report that
                self._fall_back("it does not come up")

    def _states(self) -> list[int]:
        """Return the poll state of each open stream: 0 if no bytes wait, POLLHUP if all writers have closed."""
        poll = select.poll()
        streams = [ends.poll_fd for ends in self._open_streams()]
        for descriptor in streams:
            poll.register(descriptor, select.POLLIN)
        found = dict(poll.poll(0))
        return [found.get(descriptor, 0) for descriptor in streams]

    def _all_writers_closed(self) -> bool:
        """Return True if all writers have closed and no bytes wait: a helper exits then."""
        return all(state and not state & select.POLLIN for state in self._states())

    def _start_helper(self) -> None:
        """Start a helper on the pipes, without waiting for it. Raises OSError."""
        self._tally.is_waiting = False  # the previous helper may have died in a blocked write
        self._progress = (self._progress[0], time.monotonic())
        self._process.start(self._tally_descriptor, self._open_streams())

    def _restart_helper(self) -> None:
        self._helper = 0
        if self._all_writers_closed():  # the training has replaced the descriptors
            self._process.close()
            return
        if self._process.n_starts >= STARTS_MAX:
            self._fall_back(f"{self._process.n_starts} helpers ended")
            return
        try:
            self._start_helper()
        except OSError as error:
            self._fall_back(str(error))

    def _fall_back(self, why: str) -> None:
        """Restore the streams, and relay from this process what is in the pipes, now and later."""
        self._is_given_up = True
        self._restore()
        self._process.close()
        self._on_given_up(why, self._drain(), self._tally.line_no)

    def _drain(self) -> dict[int, bytes]:
        """Relay the available bytes without a helper; return what was not recorded of each stream."""
        found: dict[int, bytes] = {}
        for ends in self._open_streams():
            found[ends.stream] = self._tally.take_partial(ends.stream)
            if is_readable(ends.poll_fd):
                passage = SpliceRelay(ends, self._tally)
                found[ends.stream] += b"".join(passage.relay_all())
                passage.close_copy()
                if passage.has_ended or passage.reader_closed:
                    self._close_broken(ends.stream)
        return found

    def _drain_without_helper(self) -> None:
        """Relay and record whole lines of pipes that fill up while no helper is ready."""
        with self._lock:
            if self._helper or not self._process.is_connected or not self._ends or not self._tally.lock():
                return  # already finished, or the helper has just started
            try:
                found = {ends.stream: drain_lines(ends, self._tally) for ends in self._open_streams()}
                begun = {stream: self._tally.take_partial(stream) + data for stream, data in found.items()}
                self._tally.line_no, partial = self._on_rest(begun, self._tally.line_no, False)
                for stream, data in found.items():
                    self._tally.set_partial(stream, partial[stream])  # safeguard: begun-line-handed-over
                    self._tally.note_recorded(stream, len(data))
                # Keep the helper's time limit: it has not moved these bytes.
                self._progress = (sum(self._tally.passed(stream) for stream in self._ends), self._progress[1])
            finally:
                self._tally.unlock()

    def _open_streams(self) -> list[StreamFds]:
        return [ends for stream, ends in self._ends.items() if stream not in self._broken]

    # -- the end --

    def finish(self, wait_s: float) -> bool:
        """Restore the streams and have the helper record the rest. Return True if it confirms within `wait_s`.

        The helper keeps relaying what children still write into the pipes.
        """
        if not self._lock.acquire(timeout=wait_s):
            return False
        try:
            deadline = time.monotonic() + wait_s
            self._disown_what_was_closed()
            if not self._ends:
                return True
            self._restore()
            finished = self._finish_helper(deadline)
            # safeguard: late-helper-loses-no-line
            if not finished and (not self._process.is_connected or self._tally.lock()):
                rest = self._drain()
                if not self._is_given_up:  # else they were recorded when Python printed them
                    for stream, data in rest.items():
                        self._tally.note_recorded(stream, len(data))
                    self._on_rest(rest, self._tally.line_no, True)
            self._process.reap()
            self._close(targets=True)
            return finished
        finally:
            self._lock.release()

    def _finish_helper(self, deadline: float) -> bool:
        if self._is_given_up or not self._process.is_connected:
            return False
        self._process.send({"finish": True})
        while (wait_s := deadline - time.monotonic()) > 0:
            said = self._process.receive(wait_s) or {}
            if "finished" in said:
                return True
            if "broken" in said:
                self._close_broken(said["broken"])
            if "gone" in said:
                self._process.close()
                if self._all_writers_closed():
                    return True
                if self._process.n_starts >= STARTS_MAX:
                    return False
                try:
                    self._start_helper()
                except OSError:
                    return False
                self._process.send({"finish": True})
        return False

    def close_in_child(self) -> None:
        """Close everything in a forked child except the streams: it writes into its parent's pipes."""
        self._disown_what_was_closed()
        if not self._ends:
            return
        for stream, ends in self._ends.items():
            inherited_pipes[stream] = (self._inodes[stream], ends.target)
        self._close(targets=False)

    # -- descriptors --

    def _replace_fd(self, stream: int, descriptor: int) -> None:
        """Replace a stream by a pipe's write end."""
        python = _python_stream(stream)
        if python is not None:
            with contextlib.suppress(Exception):  # a stream that fails would fail without capture too
                python.flush()
        os.dup2(descriptor, stream)
        status = os.fstat(stream)
        self._inodes[stream] = (status.st_dev, status.st_ino)
        # Python writes 8 KiB at once to a pipe or file. Line buffering gives each line its own time and its place among
        # the output of C code, and keeps the last lines of a process that is killed.
        if python is not None and not getattr(python, "line_buffering", True):
            with contextlib.suppress(Exception):
                python.reconfigure(line_buffering=True)
                self._buffering[stream] = (python, False)

    def _restore(self) -> None:
        """Restore the streams, unless other code has replaced them."""
        for stream, inode in self._inodes.items():
            if fd_identity(stream) == inode:
                os.dup2(self._ends[stream].target, stream)
        for python, line_buffering in self._buffering.values():
            with contextlib.suppress(Exception):  # closed or detached
                python.reconfigure(line_buffering=line_buffering)
        self._buffering = {}

    def _close(self, *, targets: bool) -> None:
        for stream, ends in self._ends.items():
            kept = ends.fds if stream not in self._broken else (ends.target,)
            for descriptor in kept:
                if targets or descriptor != ends.target:
                    os.close(descriptor)
        self._ends, self._inodes = {}, {}
        self._process.close()
        self._owned = {}
        self._tally.close()
        os.close(self._tally_descriptor)


def _python_stream(number: int) -> Any:
    return sys.stdout if number == 1 else sys.stderr
