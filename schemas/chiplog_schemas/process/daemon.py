"""Start a daemon of ours in the background: exec'd, in a session of its own, with no inherited descriptors.

And what it may use there: all processors, all descriptors.
"""

import contextlib
import fcntl
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from chiplog_schemas.paths import Paths, ensure_private_dir
from chiplog_schemas.process.file_lock import lock_holder_pid

OUTPUT_BYTES_MAX = 1 << 20  # daemons print starts, stops and changes of state; more than this is old
_SPARE_DESCRIPTORS_MAX = 4096  # as many as can connect before anybody looks again
_SHELL_WAIT_S = 10.0  # it does nothing but start a process
STARTING_S = 2.0  # one that was started comes up within this, else the next who asks starts another
# Variables that are meant for the training, not for what it happens to start.
NOT_FOR_DAEMONS = ("LD_PRELOAD", "PYTHONSTARTUP", "PYTHONINSPECT", "PYTHONWARNINGS", "CUDA_VISIBLE_DEVICES")


def start_daemon(module: str, arguments: Sequence[str], places: Paths) -> None:
    """Run `python -m module arguments…` detached. Does not wait for it to be ready. Raises OSError.

    A shell starts it and ends at once: the daemon is no child of the training, whose `os.wait()` must not wait for it.
    Its output goes to run/<module>.out, which a start empties when it has grown long; CHIPLOG_DIR is set in its
    environment. Two that race are harmless: the daemon itself takes its directory's lock and the loser leaves.
    """
    ensure_private_dir(places.run)
    environment = {name: value for name, value in os.environ.items() if name not in NOT_FOR_DAEMONS}
    environment["CHIPLOG_DIR"] = str(places.root)
    output = os.open(output_path(places, module), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(output).st_size > OUTPUT_BYTES_MAX:
            os.ftruncate(output, 0)
        closes = [(os.POSIX_SPAWN_CLOSE, number) for number in _inheritable()]
        # -P: a module of the training's directory must never shadow one of ours or of the standard library.
        command = [sys.executable, "-P", "-m", module, *arguments]
        shell = spawn_detached(command, environment, [(os.POSIX_SPAWN_DUP2, output, 1), *closes])
    finally:
        os.close(output)
    deadline = time.monotonic() + _SHELL_WAIT_S
    while (status := reap(shell)) is None:
        if time.monotonic() > deadline:
            os.kill(shell, signal.SIGKILL)
            os.waitpid(shell, 0)
            raise OSError(f"{module} cannot be started: the shell has not ended after {_SHELL_WAIT_S:g} s")
        time.sleep(0.001)
    if status:
        raise OSError(f"{module} cannot be started: the shell ended with {status}")


def spawn_detached(command: Sequence[str], environment: Mapping[str, str], actions: Sequence[tuple[Any, ...]]) -> int:
    """Let a shell start a command in a session of its own, reading nothing; return the shell's PID. Raises OSError.

    actions: for posix_spawn; the first one makes descriptor 1, and 2 becomes the same. Not subprocess, which waits for
    the end of a pipe: a worker that another thread forks in that moment holds that pipe as long as it lives.
    """
    options: dict[str, Any] = {
        "file_actions": [
            *actions[:1],  # before 0 is opened, which may be what it copies where that was closed
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, 1, 2),
            *actions[1:],
        ],
        "setsigmask": [],
        "setsigdef": [signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ],
    }
    shell = ["sh", "-c", 'cd /; "$@" &', "sh", *command]
    try:
        return os.posix_spawn("/bin/sh", shell, environment, setsid=True, **options)
    except NotImplementedError:  # an older libc: in the session of whoever starts it
        return os.posix_spawn("/bin/sh", shell, environment, **options)


def reap(pid: int) -> int | None:
    """Return a child's exit status and reap it: who waits for any child must not meet it. None while it runs."""
    try:
        ended, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return 0  # somebody else has waited, or children are not waited for here
    return os.waitstatus_to_exitcode(status) if ended else None


def _inheritable() -> list[int]:
    """Return the descriptors of this process that whoever it starts would get, standard streams aside."""
    found = []
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)  # posix_spawn takes no number above
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own, or closed meanwhile
            if 2 < int(name) < soft and os.get_inheritable(int(name)):
                found.append(int(name))
    return found


def start_daemon_once(
    module: str, arguments: Sequence[str], places: Paths, lock: Path, just_now_s: float = STARTING_S
) -> bool:
    """Start a daemon unless a process of this host did just now; tell whether this one did. Raises OSError.

    The ranks of a node all notice at once that nobody listens. A daemon for each of them would cost them seconds.
    lock: that the daemon holds while it lives. One that came up since and is gone keeps nobody from starting another.
    just_now_s: how long what was started is waited for.
    """
    ensure_private_dir(places.run)
    stamp = os.open(places.run / f"{module}.started", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(stamp, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Time since boot, which no setting of a clock changes. A stamp of an earlier boot may lie ahead of it.
        said, now = os.pread(stamp, 32, 0), time.monotonic_ns()
        if said.isdigit() and 0 <= now - int(said) < just_now_s * 1e9 and not _is_gone(lock, stamp):
            return False
        os.ftruncate(stamp, 0)
        os.pwrite(stamp, str(now).encode(), 0)
    except BlockingIOError:
        return False  # another one is about to
    finally:
        os.close(stamp)
    start_daemon(module, arguments, places)
    return True


def _is_gone(lock: Path, stamp: int) -> bool:
    """Tell whether a daemon took the lock behind the stamp, and holds it no more."""
    try:
        return os.stat(lock).st_mtime_ns > os.fstat(stamp).st_mtime_ns and lock_holder_pid(lock) == 0
    except OSError:
        return False


def reset_affinity() -> None:
    """Undo the CPU affinity that a daemon inherits from the rank that happened to start it."""
    with contextlib.suppress(OSError, ValueError):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))


def on_stop_signals(stop: Callable[..., object]) -> None:
    """Call `stop` at each signal that asks a daemon to end: SIGTERM, SIGINT, and SIGHUP when its terminal closes.

    Under nohup, which ignores SIGHUP, a daemon outlives its terminal.
    """
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, stop)


def keep_files_private() -> int:
    """Make all files of this process, and of those that it starts, private to its user. Return the umask before.

    DuckDB creates its files with 0666 less the umask. Never called in a training, whose umask is the user's.
    """
    return os.umask(0o077)


def raise_fd_limit() -> None:
    """Raise the soft limit of open files to the hard one, for this daemon and those that it starts.

    The soft one, mostly 1024, is for programs that call select(2); everybody who connects takes a descriptor.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # "unlimited" beyond what the kernel gives out: stay as we are
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def fds_nearly_exhausted() -> bool:
    """Tell whether the last quarter of the descriptors is in use, or only some thousands are left.

    Cheap enough for each turn of a loop: the kernel gives out the lowest number that is free.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        lowest = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return True
    os.close(lowest)
    return limit != resource.RLIM_INFINITY and lowest >= limit - min(limit // 4, _SPARE_DESCRIPTORS_MAX)


def output_path(places: Paths, module: str) -> Path:
    """Return the file that holds what a background daemon printed."""
    return places.run / f"{module}.out"
