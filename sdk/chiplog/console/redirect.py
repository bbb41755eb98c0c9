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
from chiplog.console.relay import RelayLock, StreamRelay, is_filling
from chiplog.console.stream_fds import StreamFds, dup_above_stdio, fd_identity, inherited_pipes, open_stream_fds
from chiplog_schemas.paths import Paths
from chiplog_schemas.process.descriptors import OwnedDescriptor
from chiplog_schemas.process.procfs import STATE, read_proc_stat

STARTS_MAX = 2  # of helpers in one run: one and a replacement; then the streams are restored
_STOPPED_S = 5.0  # bytes wait, and the helper is stopped all the time
_LATE_S = 30.0  # for a helper that is starting: 64 at once on two busy cores take seconds
_CHECK_INTERVAL_S = 0.2  # between checks for a stopped helper: one at each tick would cost too much


class StreamRedirect:
    """The captured streams of one run in one process.

    config: a helper's configuration, without its descriptors. on_killed: called when a helper has ended before its
    streams; it may have held a chunk and lines. on_given_up: called when no further helper can be started, with the
    reason, the unrecorded bytes of each restored stream and the number of the last line. on_rest: called with bytes
    that were relayed without a helper and the number of the last line; returns the new one. Raises OSError, and then
    nothing has changed.
    """

    def __init__(
        self,
        streams: Iterable[int],
        places: Paths,
        config: dict[str, Any],
        on_killed: Callable[[], None],
        on_given_up: Callable[[str, dict[int, bytes], int], None],
        on_rest: Callable[[dict[int, bytes], int], int],
    ) -> None:
        self._process = HelperProcess(places, config)
        self._on_killed = on_killed
        self._on_given_up = on_given_up
        self._on_rest = on_rest
        self._streams: dict[int, StreamFds] = {}
        self._inodes: dict[int, tuple[int, int]] = {}
        self._line_buffered: list[Any] = []  # Python's streams that were made line-buffered
        self._owned: dict[int, OwnedDescriptor] = {}  # descriptors that the training could close, by number
        self.helper = 0  # its PID, once it has reported that it is ready and until it has finished
        self._fine_at = time.monotonic()  # when the helper was started, or last seen to run
        self._next_check_s = 0.0
        self._is_given_up = False
        self._lock = threading.Lock()
        self._relay_lock = RelayLock(dup_above_stdio(os.memfd_create("chiplog-console", os.MFD_CLOEXEC)))
        self._own(self._relay_lock.descriptor)
        writing: dict[int, int] = {}
        try:
            for stream in streams:
                self._streams[stream], writing[stream] = open_stream_fds(stream)
                self._own(*self._streams[stream].fds)
            self._process.start(self._relay_lock.descriptor, self._open_streams())
            for stream, descriptor in writing.items():
                self._replace_fd(stream, descriptor)
        except BaseException:
            self._restore()
            self._close()
            raise
        finally:
            for descriptor in writing.values():
                os.close(descriptor)

    def targets(self) -> dict[int, tuple[tuple[int, int], int]]:
        """Return for each captured stream what replaces it, as (device, inode), and its original target."""
        inodes = self._inodes
        return {stream: (inodes[stream], fds.target) for stream, fds in self._streams.items() if stream in inodes}

    # -- while the training runs: the sender thread --

    def tick(self) -> None:
        """Read the helper's messages, and replace it if it has exited or is stopped."""
        if not self._lock.acquire(False):
            return
        try:
            self._process.reap()
            self._disown_what_was_closed()
            if not self._streams:
                return  # already finished
            if self._is_given_up:
                self._drain()
                return
            while self._process.is_connected and (kind := self._receive(0)):
                if kind == "gone":
                    self._replace_helper()  # safeguard: killed-helper-replaced
                    return
            self._check_helper()  # safeguard: stopped-helper-ended
            # safeguard: printing-waits-for-no-helper
            if not self.helper and any(map(is_filling, self._open_streams())):
                # In a thread: the reader may be slow, and the sender has other work.
                with contextlib.suppress(RuntimeError):  # no thread can be started now
                    threading.Thread(target=self._drain_without_helper, name="chiplog-console", daemon=True).start()
        finally:
            self._lock.release()

    def _receive(self, wait_s: float) -> str:
        """Handle the helper's next message. Return its kind, "" if none comes within `wait_s`."""
        message = self._process.receive(wait_s) or {}
        if "ready" in message:
            self.helper = message["ready"]
        elif "broken" in message:
            self._close_broken(message["broken"])  # safeguard: training-meets-epipe
        elif message:
            killed, self.helper = self.helper and "gone" in message, 0
            if killed:
                self._on_killed()  # safeguard: killed-helper-declared
        return next(iter(message), "")

    def _disown_what_was_closed(self) -> None:
        """Leave the streams to the helper once the training has closed any descriptor of this object.

        The numbers may belong to other files by then. The helper has its own descriptors, and records until the process
        ends.
        """
        # safeguard: console-spares-foreign-descriptors
        if self._process.is_ours and all(descriptor.is_ours for descriptor in self._owned.values()):
            return
        self._streams, self._inodes, self._owned = {}, {}, {}
        self._process.close()

    def _close_broken(self, stream: int) -> None:
        """Close the pipe so that writers get EPIPE: the stream's original target has no reader any more."""
        if (source := self._owned.pop(self._streams[stream].source, None)) is not None:
            source.close()
        self._process.send({"closed": stream})

    def _check_helper(self) -> None:
        """Kill a helper that is stopped while bytes wait, and fall back if none comes up."""
        now = time.monotonic()
        if now < self._next_check_s:
            return
        self._next_check_s = now + _CHECK_INTERVAL_S
        waits = any(state & select.POLLIN for state in self._states())
        if self.helper:
            if not waits or read_proc_stat(self.helper)[STATE : STATE + 1] not in (["T"], ["t"]):
                self._fine_at = now
            elif now - self._fine_at > _STOPPED_S:
                with contextlib.suppress(OSError):
                    os.kill(self.helper, signal.SIGKILL)  # still its PID: its end of the socket is open
        elif waits and now - self._fine_at > _LATE_S and self._relay_lock.acquire():
            self._fall_back("it does not come up")  # else it has just started, and will report that

    def _states(self) -> list[int]:
        """Return the poll state of each open stream: 0 if no bytes wait, POLLHUP if all writers have closed."""
        poll = select.poll()
        sources = [fds.source for fds in self._open_streams()]
        for descriptor in sources:
            poll.register(descriptor, select.POLLIN)
        found = dict(poll.poll(0))
        return [found.get(descriptor, 0) for descriptor in sources]

    def _replace_helper(self) -> None:
        """Start another helper, unless the training has replaced the descriptors: then all writers have closed."""
        if all(state and not state & select.POLLIN for state in self._states()):
            self._process.close()
            return
        try:
            if self._process.n_starts >= STARTS_MAX:
                raise OSError(f"{self._process.n_starts} helpers ended")
            self._fine_at = time.monotonic()
            self._process.start(self._relay_lock.descriptor, self._open_streams())
        except OSError as error:
            self._fall_back(str(error))

    def _fall_back(self, why: str) -> None:
        """Restore the streams, and relay from this process what is in the pipes, now and later."""
        self._is_given_up = True
        self._restore()
        self._process.close()
        self._on_given_up(why, self._drain(), self._relay_lock.line_no)

    def _drain(self) -> dict[int, bytes]:
        """Relay the available bytes without a helper; return what was not recorded of each stream."""
        found = self._relay_lock.take_begun()
        for fds in self._open_streams():
            relay = StreamRelay(fds)
            found[fds.stream] = found.get(fds.stream, b"") + b"".join(relay.relay_all())
            if relay.has_ended or relay.reader_closed:
                self._close_broken(fds.stream)
        return found

    def _drain_without_helper(self) -> None:
        """Relay and record whole lines of pipes that fill up while no helper is ready."""
        with self._lock:
            if self.helper or not self._process.is_connected or not self._streams or not self._relay_lock.acquire():
                return  # already finished, or the helper has just started
            try:
                begun, lines = self._relay_lock.take_begun(), {}
                for fds in self._open_streams():
                    data = begun.get(fds.stream, b"") + b"".join(StreamRelay(fds).relay_all(waits=False))
                    end = data.rfind(b"\n") + 1
                    lines[fds.stream], begun[fds.stream] = data[:end], data[end:]
                self._relay_lock.line_no = self._on_rest(lines, self._relay_lock.line_no)
                self._relay_lock.leave_begun(begun)  # safeguard: begun-line-handed-over
            finally:
                self._relay_lock.release()

    def _open_streams(self) -> list[StreamFds]:
        return [fds for fds in self._streams.values() if fds.source in self._owned]

    # -- the end --

    def finish(self, wait_s: float) -> None:
        """Restore the streams, and have the helper record the rest within `wait_s`, else relay and record it here.

        The helper keeps relaying what children still write into the pipes.
        """
        if not self._lock.acquire(timeout=wait_s):
            return
        try:
            deadline = time.monotonic() + wait_s
            self._disown_what_was_closed()
            if not self._streams:
                return
            self._restore()
            finished = self._finish_helper(deadline)
            # safeguard: late-helper-loses-no-line
            if not finished and (not self._process.is_connected or self._relay_lock.acquire()):
                rest = self._drain()
                if not self._is_given_up:  # else they were recorded when Python printed them
                    self._on_rest(rest, self._relay_lock.line_no)
            self._process.reap()
            self._close()
        finally:
            self._lock.release()

    def _finish_helper(self, deadline: float) -> bool:
        """Return True if the helper confirms that it has recorded everything."""
        self._process.send({"finish": True})
        while self._process.is_connected and (wait_s := deadline - time.monotonic()) > 0:
            kind = self._receive(wait_s)
            if kind == "finished":
                return True
            if kind == "gone":
                self._process.close()
        return False

    def close_in_child(self) -> None:
        """Close everything in a forked child except the streams: it writes into its parent's pipes."""
        self._disown_what_was_closed()
        if not self._streams:
            return
        for stream, fds in self._streams.items():
            inherited_pipes[stream] = (self._inodes[stream], fds.target)
            del self._owned[fds.target]
        self._close()

    # -- descriptors --

    def _replace_fd(self, stream: int, descriptor: int) -> None:
        """Replace a stream by a pipe's write end."""
        python: Any = sys.stdout if stream == 1 else sys.stderr
        if python is not None:
            with contextlib.suppress(Exception):  # a stream that fails would fail without capture too
                python.flush()
        os.dup2(descriptor, stream)
        self._inodes[stream] = fd_identity(stream)
        # Python writes 8 KiB at once to a pipe or file. Line buffering gives each line its own time and its place among
        # the output of C code, and keeps the last lines of a process that is killed.
        if python is not None and not getattr(python, "line_buffering", True):
            with contextlib.suppress(Exception):
                python.reconfigure(line_buffering=True)
                self._line_buffered.append(python)

    def _restore(self) -> None:
        """Restore the streams, unless other code has replaced them."""
        for stream, inode in self._inodes.items():
            if fd_identity(stream) == inode:
                os.dup2(self._streams[stream].target, stream)
        while self._line_buffered:
            with contextlib.suppress(Exception):  # closed or detached
                self._line_buffered.pop().reconfigure(line_buffering=False)

    def _own(self, *numbers: int) -> None:
        self._owned.update((number, OwnedDescriptor(number)) for number in numbers)

    def _close(self) -> None:
        for descriptor in self._owned.values():
            descriptor.close()
        self._streams, self._inodes, self._owned = {}, {}, {}
        self._process.close()
