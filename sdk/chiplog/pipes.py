"""Put pipes in place of this process's stdout and stderr, with a helper that drains them; undo it at the end.

The helper is a process: a thread of the rank could not drain while native code prints and holds the GIL. It is no child
of the training, and in a session of its own, for launchers kill process groups. If it dies the bytes stay in the pipes,
whose reading ends this process holds too, and another one goes on with them.
"""

import contextlib
import fcntl
import itertools
import json
import os
import select
import signal
import socket
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterable
from typing import Any

from chiplog.passage import Ends, Passage, Tally, copy_size, select_now
from chiplog_schemas.daemons import NOT_FOR_DAEMONS, OUTPUT_BYTES_MAX
from chiplog_schemas.places import Places, make_private

HELPER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "console_helper.py")
OUTPUT = "chiplog_console.out"  # what helpers say, which is nothing mostly
STARTS_MAX = 4  # of helpers in one run: one, and three in place of it; then the streams are given back
# Of each pipe, for bursts while the helper is started. Not the 1 MiB that a pipe may have: all pipes of a user share
# 64 MiB (pipe-user-pages-soft), and behind that each new one, a DataLoader's too, holds one page.
PIPE_BYTES = 256 << 10
_SHELL_WAIT_S = 0.01  # it does nothing but start a process; what takes longer is waited for by the sender thread
_STALLED_S = 5.0  # bytes wait, the helper writes to nobody and moves none: it is stopped, or hangs
_LATE_S = 30.0  # the same of one that did not come up yet: 64 at once on two busy cores take seconds
_MESSAGE_BYTES_MAX = 65_536
_FIRST = 3  # descriptors below are the standard streams'; a closed one must not become ours

# Streams that a forked child inherited, captured: the pipe's inode and what was there before, for an init() of its own.
_inherited: dict[int, tuple[tuple[int, int], int]] = {}


class Pipes:
    """The captured streams of one run in one process.

    orders: what a helper is told beside its descriptors. on_given_up: called when no helper can be had any more, with
    the streams that were given back and the bytes that the last one had not recorded. on_rest: called by `finish` when
    no helper was there, with what it passed on itself. Raises OSError, and then nothing has changed.
    """

    def __init__(
        self,
        streams: Iterable[int],
        places: Places,
        orders: dict[str, Any],
        on_given_up: Callable[[str, dict[int, bytes], int], None],
        on_rest: Callable[[dict[int, bytes], int], None],
    ) -> None:
        self._places = places
        self._orders = orders
        self._on_given_up = on_given_up
        self._on_rest = on_rest
        self._ends: dict[int, Ends] = {}
        self._broken: set[int] = set()
        self._inodes: dict[int, tuple[int, int]] = {}
        self._buffering: dict[int, tuple[Any, bool]] = {}
        self._control: socket.socket | None = None
        self._helper = 0  # its PID, once it has said that it is there
        self._shells: list[int] = []
        self._starts = 0
        self._moved: tuple[int, float] = (0, time.monotonic())  # bytes passed, and when that last changed
        self._is_given_up = False
        self._lock = threading.Lock()
        self._tally_descriptor = _high(os.memfd_create("chiplog-console", os.MFD_CLOEXEC))
        os.ftruncate(self._tally_descriptor, Tally.SIZE)
        self._tally = Tally(self._tally_descriptor)
        writing: dict[int, int] = {}
        try:
            for stream in streams:
                self._ends[stream], writing[stream] = _open_ends(stream)
            self._start_helper()
            for stream, descriptor in writing.items():
                self._put(stream, descriptor)
        except BaseException:
            self._restore()
            self._close(targets=True)
            raise
        finally:
            for descriptor in writing.values():
                os.close(descriptor)

    @property
    def helper(self) -> int:
        """The PID of the helper; 0 while it is not there."""
        return self._helper

    # -- while the training runs: the sender thread --

    def tick(self) -> None:
        """Look after the helper: hear what it says, start another one when it is gone or stopped."""
        if not self._lock.acquire(False):
            return
        try:
            self._reap()
            if not self._ends:
                return  # finished meanwhile
            if self._is_given_up:
                self._drain()
                return
            while self._control is not None and (said := self._hear(0)) is not None:
                if "ready" in said:
                    self._helper = said["ready"]
                elif "broken" in said:
                    self._close_broken(said["broken"])
                elif "gone" in said:
                    self._start_again()
                    return
            self._end_one_that_is_stopped()
        finally:
            self._lock.release()

    def _hear(self, wait_s: float) -> dict[str, Any] | None:
        """Return what the helper says next; None when it says nothing in this time."""
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

    def _tell(self, message: dict[str, Any]) -> None:
        if self._control is not None:
            with contextlib.suppress(OSError):  # it is gone: `_hear` tells
                self._control.send(json.dumps(message).encode(), socket.MSG_DONTWAIT)

    def _close_broken(self, stream: int) -> None:
        """Let writers meet EPIPE: nobody reads at the descriptor that they would write to without us."""
        if stream not in self._broken:
            self._broken.add(stream)
            ends = self._ends[stream]
            for descriptor in {*ends.all} - {ends.target}:
                os.close(descriptor)
        self._tell({"closed": stream})

    def _end_one_that_is_stopped(self) -> None:
        now = time.monotonic()
        moved = sum(self._tally.passed(stream) for stream in self._ends)
        waits = any(state & select.POLLIN for state in self._states())
        if moved != self._moved[0] or self._tally.is_waiting or not waits:
            self._moved = (moved, now)
        elif now - self._moved[1] > (_STALLED_S if self._helper else _LATE_S):
            if self._helper:
                with contextlib.suppress(OSError):
                    os.kill(self._helper, signal.SIGKILL)  # still its PID: its end of the socket is open
            elif self._tally.claim():  # else it is there just now, and will say so
                self._give_up("it does not come up")

    def _states(self) -> list[int]:
        """Return what poll says of each stream: 0 when nothing waits, POLLHUP when nobody can write any more."""
        poll = select.poll()
        streams = [ends.first for ends in self._unbroken()]
        for descriptor in streams:
            poll.register(descriptor, select.POLLIN)
        found = dict(poll.poll(0))
        return [found.get(descriptor, 0) for descriptor in streams]

    def _is_over(self) -> bool:
        """Tell whether nobody can write any more and nothing waits: then a helper leaves."""
        return all(state and not state & select.POLLIN for state in self._states())

    def _start_again(self) -> None:
        self._helper = 0
        if self._is_over():  # somebody put other descriptors in place of ours
            assert self._control is not None
            self._control.close()
            self._control = None
            return
        if self._starts >= STARTS_MAX:
            self._give_up(f"{self._starts} helpers ended")
            return
        try:
            self._start_helper()
        except OSError as error:
            self._give_up(str(error))

    def _give_up(self, why: str) -> None:
        """Put the streams back as they were, and pass on what is in the pipes, now and later, from here."""
        self._is_given_up = True
        self._restore()
        if self._control is not None:
            self._control.close()
            self._control = None
        self._on_given_up(why, self._drain(), self._tally.line_no)

    def _drain(self) -> dict[int, bytes]:
        """Pass on what is there, without a helper; return it by stream."""
        found: dict[int, bytes] = {}
        for ends in self._unbroken():
            found[ends.stream] = b""
            if select_now(ends.first):
                passage = Passage(ends, self._tally)
                found[ends.stream] = b"".join(passage.steps())
                passage.close_copy()
                if passage.has_ended or passage.is_broken:
                    self._close_broken(ends.stream)
        return found

    def _unbroken(self) -> list[Ends]:
        return [ends for stream, ends in self._ends.items() if stream not in self._broken]

    # -- the end --

    def finish(self, wait_s: float) -> bool:
        """Give the streams back and let the helper record what it has; return whether it said so in time.

        Children that still write into the pipes are passed on by the helper.
        """
        if not self._lock.acquire(timeout=wait_s):
            return False
        try:
            deadline = time.monotonic() + wait_s
            self._restore()
            finished = self._finish_helper(deadline)
            if not finished and (self._control is None or self._tally.claim()):
                rest = self._drain()
                if not self._is_given_up:  # else Python's lines were recorded when they were printed
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
        self._tell({"finish": True})
        while (wait_s := deadline - time.monotonic()) > 0:
            said = self._hear(wait_s) or {}
            if "finished" in said:
                return True
            if "broken" in said:
                self._close_broken(said["broken"])
            if "gone" in said:
                assert self._control is not None
                self._control.close()
                self._control = None
                if self._is_over():
                    return True
                if self._starts >= STARTS_MAX:
                    return False
                try:
                    self._start_helper()
                except OSError:
                    return False
                self._tell({"finish": True})
        return False

    def close_in_child(self) -> None:
        """Let go in a forked child: it writes into the pipes as its parent does, and looks after nothing."""
        for stream, ends in self._ends.items():
            _inherited[stream] = (self._inodes[stream], ends.target)
        self._close(targets=False)

    # -- descriptors --

    def _put(self, stream: int, descriptor: int) -> None:
        """Put a pipe's writing end in the place of a stream."""
        python = _python_stream(stream)
        if python is not None:
            with contextlib.suppress(Exception):  # a stream that refuses would do so without us
                python.flush()
        os.dup2(descriptor, stream)
        status = os.fstat(stream)
        self._inodes[stream] = (status.st_dev, status.st_ino)
        # To a pipe or file Python writes 8 KiB at once. Line by line each gets its time, and its place among what C
        # code prints, and the last ones of a process that is killed are there.
        if python is not None and not getattr(python, "line_buffering", True):
            with contextlib.suppress(Exception):
                python.reconfigure(line_buffering=True)
                self._buffering[stream] = (python, False)

    def _restore(self) -> None:
        """Put back what the streams were, unless somebody else has put something in their place."""
        for stream, inode in self._inodes.items():
            if _inode(stream) == inode:
                os.dup2(self._ends[stream].target, stream)
        for python, line_buffering in self._buffering.values():
            with contextlib.suppress(Exception):  # closed, or detached by somebody
                python.reconfigure(line_buffering=line_buffering)
        self._buffering = {}

    def _close(self, *, targets: bool) -> None:
        for stream, ends in self._ends.items():
            kept = ends.all if stream not in self._broken else (ends.target,)
            for descriptor in kept:
                if targets or descriptor != ends.target:
                    os.close(descriptor)
        self._ends, self._inodes = {}, {}
        if self._control is not None:
            self._control.close()
            self._control = None
        self._tally.close()
        os.close(self._tally_descriptor)

    # -- the helper's process --

    def _start_helper(self) -> None:
        """Start a helper on the pipes, without waiting for it. Raises OSError."""
        self._starts += 1
        self._tally.is_waiting = False  # the one before may have died while its target took nothing
        self._moved = (self._moved[0], time.monotonic())
        if not sys.executable:
            raise OSError("there is no sys.executable to run a helper with")
        ours, theirs = (_high(end.detach()) for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        if self._control is not None:
            self._control.close()
        self._control = socket.socket(fileno=ours)
        try:
            ends = self._unbroken()
            wanted = [theirs, self._tally_descriptor, *(number for entry in ends for number in entry.all)]
            given = dict(zip(wanted, _numbers_beside(wanted), strict=False))
            streams = [entry.numbered(given) for entry in ends]
            self._tell({**self._orders, "streams": streams, "tally": given[self._tally_descriptor]})
            self._shells.append(_spawn(given, given[theirs], self._places))
        finally:
            os.close(theirs)
        deadline = time.monotonic() + _SHELL_WAIT_S
        while self._shells and time.monotonic() < deadline:
            self._reap()
            time.sleep(0.0005)

    def _reap(self) -> None:
        """Wait for shells that have ended: training code that waits for any child must not meet them."""
        for pid in list(self._shells):
            try:
                if not os.waitpid(pid, os.WNOHANG)[0]:
                    continue
            except ChildProcessError:
                pass  # somebody else has waited, or children are not waited for here
            self._shells.remove(pid)


def _spawn(given: dict[int, int], control: int, places: Places) -> int:
    """Let a shell start the helper; return the shell's PID. `given`: descriptors here, and their numbers there."""
    modules = ("chiplog", "chiplog_schemas", "zmq", "msgpack")
    paths = dict.fromkeys(
        os.path.dirname(os.path.dirname(os.path.abspath(sys.modules[m].__file__ or ""))) for m in modules
    )
    helper = [sys.executable, "-P", "-S", HELPER, str(control), *paths]
    dropped = {*NOT_FOR_DAEMONS, "PYTHONPATH"}
    environment = {name: value for name, value in os.environ.items() if name not in dropped}
    environment["CHIPLOG_DIR"] = str(places.root)
    actions: list[tuple[Any, ...]] = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, _output(places), os.O_WRONLY | os.O_APPEND, 0),
        (os.POSIX_SPAWN_DUP2, 1, 2),
        *((os.POSIX_SPAWN_DUP2, here, there) for here, there in given.items()),
    ]
    options: dict[str, Any] = {"file_actions": actions, "setsigmask": [], "setsigdef": [signal.SIGCHLD]}
    command = ["sh", "-c", '"$@" &', "sh", *helper]
    try:
        return os.posix_spawn("/bin/sh", command, environment, setsid=True, **options)
    except NotImplementedError:  # an older libc; the helper makes its session itself
        return os.posix_spawn("/bin/sh", command, environment, **options)


def _output(places: Places) -> str:
    """Return the file that helpers write to when something is wrong with them; emptied when it has grown long."""
    path = places.run / OUTPUT
    try:
        make_private(places.run)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(descriptor).st_size > OUTPUT_BYTES_MAX:
                os.ftruncate(descriptor, 0)
        finally:
            os.close(descriptor)
    except OSError:
        return os.devnull
    return str(path)


def _numbers_beside(wanted: Iterable[int]) -> Iterable[int]:
    """Yield numbers that are none of these: a dup2 onto one that is still to be copied would lose it."""
    taken = set(wanted)
    return (number for number in itertools.count(_FIRST) if number not in taken)


def _open_ends(stream: int) -> tuple[Ends, int]:
    """Return the ends of a pipe or pseudo-terminal for a stream, and the descriptor to put in its place."""
    opened: list[int] = []

    def keep(descriptor: int) -> int:
        opened.append(_high(descriptor))
        return opened[-1]

    try:
        inode, before = _inherited.get(stream, ((0, 0), stream))
        # A forked child of a captured process: what it prints goes where its parent's goes, and not through its lines.
        target = keep(fcntl.fcntl(before if _inode(stream) == inode else stream, fcntl.F_DUPFD_CLOEXEC, _FIRST))
        source, feed = (keep(end) for end in os.pipe())
        if not os.isatty(target):
            with contextlib.suppress(OSError):  # beyond what this user may have: it stays as it is
                fcntl.fcntl(feed, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
            return Ends(stream, source, target), feed
        master, slave = (keep(end) for end in os.openpty())
        tty.setraw(slave, termios.TCSANOW)  # bytes go through as they are; the terminal behind does the rest
        copy_size(target, slave)
        os.set_blocking(master, False)
        return Ends(stream, source, target, master, feed), slave
    except BaseException:
        for descriptor in opened:
            os.close(descriptor)
        raise


def _high(descriptor: int) -> int:
    """Return a descriptor that is none of the standard streams'."""
    if descriptor >= _FIRST:
        return descriptor
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _FIRST)
    finally:
        os.close(descriptor)


def _inode(descriptor: int) -> tuple[int, int]:
    try:
        status = os.fstat(descriptor)
    except OSError:
        return (-1, -1)
    return (status.st_dev, status.st_ino)


def _python_stream(number: int) -> Any:
    return sys.stdout if number == 1 else sys.stderr
