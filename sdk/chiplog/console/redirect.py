"""Replace this process's stdout and stderr by pipes, with a helper that drains them; restore them at the end.

The helper is a process: a thread of the rank could not drain while native code prints and holds the GIL. It is not a
child of the training and has its own session, because launchers kill process groups. If it dies, the bytes stay in the
pipes, whose read ends this process holds too, and another helper continues with them.
"""

import contextlib
import itertools
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from chiplog.console.relay import SpliceRelay, drain_lines, is_filling, is_readable
from chiplog.console.shared_counters import SharedCounters
from chiplog.console.stream_fds import (
    FIRST,
    StreamFds,
    dup_above_stdio,
    fd_identity,
    inherited_pipes,
    open_stream_fds,
)
from chiplog_schemas.paths import Paths, ensure_private_dir
from chiplog_schemas.process.daemon import NOT_FOR_DAEMONS, OUTPUT_BYTES_MAX, reap, spawn_detached
from chiplog_schemas.process.descriptors import OwnedDescriptor
from chiplog_schemas.process.exit_status import STATUS_NAME

HELPER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "helper_main.py")
OUTPUT = "chiplog_console.out"  # the helpers' log, usually empty
STARTS_MAX = 4  # of helpers in one run: one and three replacements; then the streams are restored
_SHELL_WAIT_S = 0.01  # it only starts a process; if it takes longer, the sender thread reaps it
_STALLED_S = 5.0  # bytes wait, no write is in progress and none move: the helper is stopped or hangs
_LATE_S = 30.0  # the same for a helper that is starting: 64 at once on two busy cores take seconds
_LOOK_INTERVAL_S = 0.2  # between checks for a stopped helper: one at each tick would cost too much
_MESSAGE_BYTES_MAX = 65_536


class StreamRedirect:
    """The captured streams of one run in one process.

    orders: a helper's configuration, without its descriptors. on_given_up: called when no further helper can be
    started, with the reason, the unrecorded bytes of each restored stream and the number of the last line. on_rest:
    called with bytes that were relayed without a helper; returns the number of the last line. Raises OSError, and then
    nothing has changed.
    """

    def __init__(
        self,
        streams: Iterable[int],
        places: Paths,
        orders: dict[str, Any],
        on_given_up: Callable[[str, dict[int, bytes], int], None],
        on_rest: Callable[[dict[int, bytes], int], int],
    ) -> None:
        self._places = places
        self._orders = orders
        self._on_given_up = on_given_up
        self._on_rest = on_rest
        self._ends: dict[int, StreamFds] = {}
        self._broken: set[int] = set()
        self._inodes: dict[int, tuple[int, int]] = {}
        self._buffering: dict[int, tuple[Any, bool]] = {}
        self._control: socket.socket | None = None
        self._owned: dict[int, OwnedDescriptor] = {}  # descriptors that the training could close, by number
        self._helper = 0  # its PID, once it has reported that it is ready
        self._shells: list[int] = []
        self._starts = 0
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

    # -- while the training runs: the sender thread --

    def tick(self) -> None:
        """Read the helper's messages, and replace it if it has exited or is stopped."""
        if not self._lock.acquire(False):
            return
        try:
            self._reap()
            self._disown_what_was_closed()
            if not self._ends:
                return  # already finished
            if self._is_given_up:
                self._drain()
                return
            while self._control is not None and (said := self._receive(0)) is not None:
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
        if all(descriptor.is_ours for descriptor in self._owned.values()):
            return
        self._ends, self._inodes, self._owned = {}, {}, {}
        if self._control is not None:
            self._control.detach()
            self._control = None

    def _receive(self, wait_s: float) -> dict[str, Any] | None:
        """Return the helper's next message; None if none comes within `wait_s`."""
        assert self._control is not None
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        if not poll.poll(wait_s * 1000):
            return None
        try:
            data = self._control.recv(_MESSAGE_BYTES_MAX, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        said: dict[str, Any] = json.loads(data) if data else {"gone": True}
        return said

    def _close_control(self) -> None:
        if self._control is not None:
            self._owned.pop(self._control.fileno(), None)
            self._control.close()
            self._control = None

    def _send(self, message: dict[str, Any]) -> None:
        if self._control is not None:
            with contextlib.suppress(OSError):  # it has exited: `_receive` reports that
                self._control.send(json.dumps(message).encode(), socket.MSG_DONTWAIT)

    def _close_broken(self, stream: int) -> None:
        """Close the pipe so that writers get EPIPE: the stream's original target has no reader any more."""
        if stream not in self._broken:
            self._broken.add(stream)
            ends = self._ends[stream]
            for descriptor in {*ends.fds} - {ends.target}:
                self._owned.pop(descriptor, None)
                os.close(descriptor)
        self._send({"closed": stream})

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

    def _restart_helper(self) -> None:
        self._helper = 0
        if self._all_writers_closed():  # the training has replaced the descriptors
            self._close_control()
            return
        if self._starts >= STARTS_MAX:
            self._fall_back(f"{self._starts} helpers ended")
            return
        try:
            self._start_helper()
        except OSError as error:
            self._fall_back(str(error))

    def _fall_back(self, why: str) -> None:
        """Restore the streams, and relay from this process what is in the pipes, now and later."""
        self._is_given_up = True
        self._restore()
        self._close_control()
        self._on_given_up(why, self._drain(), self._tally.line_no)

    def _drain(self) -> dict[int, bytes]:
        """Relay the available bytes without a helper; return them by stream."""
        found: dict[int, bytes] = {}
        for ends in self._open_streams():
            found[ends.stream] = b""
            if is_readable(ends.poll_fd):
                passage = SpliceRelay(ends, self._tally)
                found[ends.stream] = b"".join(passage.relay_all())
                passage.close_copy()
                if passage.has_ended or passage.reader_closed:
                    self._close_broken(ends.stream)
        return found

    def _drain_without_helper(self) -> None:
        """Relay and record whole lines of pipes that fill up while no helper is ready."""
        with self._lock:
            if self._helper or self._control is None or not self._ends or not self._tally.lock():
                return  # already finished, or the helper has just started
            try:
                found = {ends.stream: drain_lines(ends, self._tally) for ends in self._open_streams()}
                self._tally.line_no = self._on_rest(found, self._tally.line_no)
                for stream, data in found.items():
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
            if not finished and (self._control is None or self._tally.lock()):  # safeguard: late-helper-loses-no-line
                rest = self._drain()
                if not self._is_given_up:  # else they were recorded when Python printed them
                    for stream, data in rest.items():
                        self._tally.note_recorded(stream, len(data))
                    self._on_rest(rest, self._tally.line_no)
            self._reap()
            self._close(targets=True)
            return finished
        finally:
            self._lock.release()

    def _finish_helper(self, deadline: float) -> bool:
        if self._is_given_up or self._control is None:
            return False
        self._send({"finish": True})
        while (wait_s := deadline - time.monotonic()) > 0:
            said = self._receive(wait_s) or {}
            if "finished" in said:
                return True
            if "broken" in said:
                self._close_broken(said["broken"])
            if "gone" in said:
                self._close_control()
                if self._all_writers_closed():
                    return True
                if self._starts >= STARTS_MAX:
                    return False
                try:
                    self._start_helper()
                except OSError:
                    return False
                self._send({"finish": True})
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
        self._close_control()
        self._owned = {}
        self._tally.close()
        os.close(self._tally_descriptor)

    # -- the helper's process --

    def _start_helper(self) -> None:
        """Start a helper on the pipes, without waiting for it. Raises OSError."""
        self._starts += 1
        self._tally.is_waiting = False  # the previous helper may have died in a blocked write
        self._progress = (self._progress[0], time.monotonic())
        if not sys.executable:
            raise OSError("there is no sys.executable to run a helper with")
        watch: tuple[int, ...] = ()
        ours, theirs = (
            dup_above_stdio(end.detach()) for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        )
        self._close_control()
        self._control = socket.socket(fileno=ours)
        self._owned[ours] = OwnedDescriptor(ours)
        try:
            watch = self._open_watch()
            ends = self._open_streams()
            wanted = [theirs, self._tally_descriptor, *watch, *(number for entry in ends for number in entry.fds)]
            given = dict(zip(wanted, _free_fd_numbers(wanted), strict=False))
            streams = [entry.to_helper_args(given) for entry in ends]
            told = {"streams": streams, "tally": given[self._tally_descriptor], "watch": [given[n] for n in watch]}
            self._send({**self._orders, **told, "pid": os.getpid()})
            self._shells.append(_spawn(given, given[theirs], self._places))
        finally:
            for descriptor in (theirs, *watch):
                os.close(descriptor)
        deadline = time.monotonic() + _SHELL_WAIT_S
        while self._shells and time.monotonic() < deadline:
            self._reap()
            time.sleep(0.0005)

    def _open_watch(self) -> tuple[int, ...]:
        """Open what a helper needs to record the exit status: this process's pidfd and the journal's status file."""
        if not self._orders.get("journal"):
            return ()
        opened = []
        try:
            opened.append(os.pidfd_open(os.getpid()))
            path = os.path.join(self._orders["journal"], STATUS_NAME)
            opened.append(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except OSError:  # an older kernel, or out of descriptors: the agent may still see the exit
            for descriptor in opened:
                os.close(descriptor)
            return ()
        return dup_above_stdio(opened[0]), dup_above_stdio(opened[1])

    def _reap(self) -> None:
        """Reap shells that have ended: training code that waits for any child must not get them."""
        self._shells = [pid for pid in self._shells if reap(pid) is None]


def _spawn(given: dict[int, int], control: int, places: Paths) -> int:
    """Start the helper through a shell; return the shell's PID. `given`: descriptors here, and their numbers there."""
    modules = ("chiplog", "chiplog_schemas", "zmq", "msgpack")
    paths = dict.fromkeys(
        os.path.dirname(os.path.dirname(os.path.abspath(sys.modules[m].__file__ or ""))) for m in modules
    )
    helper = [sys.executable, "-P", "-S", HELPER, str(control), *paths]
    dropped = {*NOT_FOR_DAEMONS, "PYTHONPATH"}
    environment = {name: value for name, value in os.environ.items() if name not in dropped}
    environment["CHIPLOG_DIR"] = str(places.root)
    actions = [
        (os.POSIX_SPAWN_OPEN, 1, _output(places), os.O_WRONLY | os.O_APPEND, 0),
        *((os.POSIX_SPAWN_DUP2, here, there) for here, there in given.items()),
    ]
    return spawn_detached(helper, environment, actions)  # safeguard: helper-reads-under-gil


def _output(places: Paths) -> str:
    """Return the path of the helpers' log file; truncate it when it has grown long."""
    path = places.run / OUTPUT
    try:
        ensure_private_dir(places.run)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(descriptor).st_size > OUTPUT_BYTES_MAX:
                os.ftruncate(descriptor, 0)
        finally:
            os.close(descriptor)
    except OSError:
        return os.devnull
    return str(path)


def _free_fd_numbers(wanted: Iterable[int]) -> Iterable[int]:
    """Yield numbers outside `wanted`: a dup2 onto a descriptor that is not copied yet would lose it."""
    taken = set(wanted)
    return (number for number in itertools.count(FIRST) if number not in taken)


def _python_stream(number: int) -> Any:
    return sys.stdout if number == 1 else sys.stderr
