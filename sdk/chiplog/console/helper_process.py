"""The helper's process: start one on the pipes of a rank, exchange messages with it, and start another.

It is not a child of the training and has its own session, because launchers kill process groups.
"""

import contextlib
import itertools
import json
import os
import socket
import sys
import time
from typing import Any

from chiplog.console.stream_fds import FIRST, MESSAGE_BYTES_MAX, StreamFds, dup_above_stdio
from chiplog_schemas.paths import Paths
from chiplog_schemas.process.daemon import NOT_FOR_DAEMONS, open_output, reap, spawn_detached
from chiplog_schemas.process.descriptors import OwnedDescriptor
from chiplog_schemas.process.exit_status import STATUS_NAME

HELPER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "helper_main.py")
OUTPUT = "chiplog_console"  # the helpers' log, usually empty
_SHELL_WAIT_S = 0.01  # it only starts a process; if it takes longer, the sender thread reaps it


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
        ours, theirs = (
            dup_above_stdio(end.detach()) for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        )
        self.close()
        self._control = socket.socket(fileno=ours)
        self._owned = OwnedDescriptor(ours)
        watch = self._open_watch()
        try:
            wanted = [theirs, lock, *watch, *(number for stream in streams for number in stream.fds)]
            # Numbers outside `wanted`: a dup2 onto a descriptor that is not copied yet would lose it.
            free = (number for number in itertools.count(FIRST) if number not in wanted)
            given = dict(zip(wanted, free, strict=False))
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
        self._control.settimeout(wait_s)
        try:
            data = self._control.recv(MESSAGE_BYTES_MAX)
        except (BlockingIOError, TimeoutError):
            return None
        except OSError:
            data = b""
        reported: dict[str, Any] = json.loads(data) if data else {"gone": True}
        return reported

    def send(self, message: dict[str, Any]) -> None:
        """Send a message, if there is a helper."""
        if self._control is not None:
            self._control.settimeout(0)
            with contextlib.suppress(OSError):  # it has exited: `receive` reports that
                self._control.send(json.dumps(message).encode())

    def close(self) -> None:
        """Close the socket, unless other code has. The helper keeps relaying until the last writer has closed."""
        if self._control is not None:
            number = self._control.detach()
            if self.is_ours:
                os.close(number)
            self._control = self._owned = None

    def reap(self) -> None:
        """Reap shells that have ended: training code that waits for any child must not get them."""
        self._shells = [pid for pid in self._shells if reap(pid) is None]

    def _open_watch(self) -> list[int]:
        """Open what a helper needs to record the exit status: this process's pidfd and the journal's status file."""
        opened: list[int] = []
        if self._config.get("journal"):
            path = os.path.join(self._config["journal"], STATUS_NAME)
            with contextlib.suppress(OSError):  # an older kernel, or out of descriptors: the agent may see the exit
                opened.append(dup_above_stdio(os.pidfd_open(os.getpid())))
                opened.append(dup_above_stdio(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)))
                return opened
        for descriptor in opened:
            os.close(descriptor)
        return []


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
    try:
        output = open_output(places, OUTPUT)
    except OSError:
        output = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    copies = [(os.POSIX_SPAWN_DUP2, here, there) for here, there in ((output, 1), *given.items())]
    try:
        return spawn_detached(helper, environment, copies)  # safeguard: helper-reads-under-gil
    finally:
        os.close(output)
