"""The helper's process: start one on the pipes of a rank, exchange messages with it, and start another.

It is not a child of the training and has its own session, because launchers kill process groups.
"""

import contextlib
import itertools
import json
import os
import select
import socket
import sys
import time
from collections.abc import Iterable
from typing import Any

from chiplog.console.stream_fds import FIRST, StreamFds, dup_above_stdio
from chiplog_schemas.paths import Paths, ensure_private_dir
from chiplog_schemas.process.daemon import NOT_FOR_DAEMONS, OUTPUT_BYTES_MAX, reap, spawn_detached
from chiplog_schemas.process.descriptors import OwnedDescriptor
from chiplog_schemas.process.exit_status import STATUS_NAME

HELPER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "helper_main.py")
OUTPUT = "chiplog_console.out"  # the helpers' log, usually empty
_SHELL_WAIT_S = 0.01  # it only starts a process; if it takes longer, the sender thread reaps it
_MESSAGE_BYTES_MAX = 65_536


class HelperProcess:
    """The helper of one run in one process, and after its end the next one. One thread at a time.

    config: a helper's configuration, without its descriptors.
    """

    def __init__(self, places: Paths, config: dict[str, Any]) -> None:
        self.n_starts = 0
        self._places = places
        self._config = config
        self._control: socket.socket | None = None
        self._owned: OwnedDescriptor | None = None  # the socket's descriptor, which the training could close
        self._shells: list[int] = []

    @property
    def is_connected(self) -> bool:
        """Return True if the socket to a helper is open."""
        return self._control is not None

    @property
    def is_ours(self) -> bool:
        """Return True if other code of this process has not closed the socket."""
        return self._owned is None or self._owned.is_ours

    def start(self, lock: int, streams: list[StreamFds]) -> None:
        """Start a helper on the streams, without waiting for it. lock: a descriptor of `RelayLock`. Raises OSError."""
        self.n_starts += 1
        if not sys.executable:
            raise OSError("there is no sys.executable to run a helper with")
        watch: tuple[int, ...] = ()
        ours, theirs = (
            dup_above_stdio(end.detach()) for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        )
        self.close()
        self._control = socket.socket(fileno=ours)
        self._owned = OwnedDescriptor(ours)
        try:
            watch = self._open_watch()
            wanted = [theirs, lock, *watch, *(number for stream in streams for number in stream.fds)]
            given = dict(zip(wanted, _free_fd_numbers(wanted), strict=False))
            given_fds = {
                "streams": [stream.to_helper_args(given) for stream in streams],
                "lock": given[lock],
                "watch": [given[number] for number in watch],
            }
            self.send({**self._config, **given_fds, "pid": os.getpid()})
            self._shells.append(_spawn(given, given[theirs], self._places))
        finally:
            for descriptor in (theirs, *watch):
                os.close(descriptor)
        deadline = time.monotonic() + _SHELL_WAIT_S
        while self._shells and time.monotonic() < deadline:
            self.reap()
            time.sleep(0.0005)

    def receive(self, wait_s: float) -> dict[str, Any] | None:
        """Return the helper's next message, {"gone": True} after its end; None if none comes within `wait_s`."""
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
        reported: dict[str, Any] = json.loads(data) if data else {"gone": True}
        return reported

    def send(self, message: dict[str, Any]) -> None:
        """Send a message, if there is a helper."""
        if self._control is not None:
            with contextlib.suppress(OSError):  # it has exited: `receive` reports that
                self._control.send(json.dumps(message).encode(), socket.MSG_DONTWAIT)

    def close(self) -> None:
        """Close the socket. The helper keeps relaying until the last writer has closed."""
        if self._control is not None:
            self._control.close()
            self._control = self._owned = None

    def disown(self) -> None:
        """Leave the socket's number to the code that may have opened another file on it."""
        if self._control is not None:
            self._control.detach()
            self._control = self._owned = None

    def reap(self) -> None:
        """Reap shells that have ended: training code that waits for any child must not get them."""
        self._shells = [pid for pid in self._shells if reap(pid) is None]

    def _open_watch(self) -> tuple[int, ...]:
        """Open what a helper needs to record the exit status: this process's pidfd and the journal's status file."""
        if not self._config.get("journal"):
            return ()
        opened = []
        try:
            opened.append(os.pidfd_open(os.getpid()))
            path = os.path.join(self._config["journal"], STATUS_NAME)
            opened.append(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except OSError:  # an older kernel, or out of descriptors: the agent may still see the exit
            for descriptor in opened:
                os.close(descriptor)
            return ()
        return dup_above_stdio(opened[0]), dup_above_stdio(opened[1])


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
