"""Start a daemon in the background: exec'd, in a dedicated session, without inherited descriptors.

The module also removes limits that a daemon inherits: CPU affinity and the soft limit of open files.
"""

import contextlib
import fcntl
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from chiplog_schemas.paths import Paths, ensure_private_dir
from chiplog_schemas.process.file_lock import lock_holder_pid

COLLECTOR_MODULE = "chiplog_collector"  # chiplog-sdk alone does not have it
OUTPUT_BYTES_MAX = 1 << 20  # daemons print starts, stops and changes of state; older output is dropped
_SPARE_DESCRIPTORS_MAX = 4096  # as many connections as can arrive between two checks
_SHELL_WAIT_S = 10.0  # the shell only starts a process
STARTING_S = 2.0  # a daemon is up within this time; after it, the next caller starts another
# Variables that are meant for the training and not for the daemons that it starts.
NOT_FOR_DAEMONS = ("LD_PRELOAD", "PYTHONSTARTUP", "PYTHONINSPECT", "PYTHONWARNINGS", "CUDA_VISIBLE_DEVICES")


def has_collector(environ: Mapping[str, str]) -> bool:
    """Return True if an agent that starts here has a collector: by CHIPLOG_COLLECTOR, or because it can start one."""
    return bool(environ.get("CHIPLOG_COLLECTOR")) or find_spec(COLLECTOR_MODULE) is not None


def start_daemon(module: str, arguments: Sequence[str], places: Paths) -> None:
    """Run `python -m module arguments…` detached. Does not wait until it is ready. Raises OSError.

    A shell starts the daemon and exits at once, so the daemon is not a child that `os.wait()` of the training waits
    for. Its output goes to run/<module>.out, which a start truncates when it is too long. CHIPLOG_DIR and
    CHIPLOG_KEYS are absolute in its environment. Two concurrent starts are harmless: each daemon locks its directory,
    and the second one exits.
    """
    environment = {name: value for name, value in os.environ.items() if name not in NOT_FOR_DAEMONS}
    environment["CHIPLOG_DIR"] = str(places.root)
    if keys := environment.get("CHIPLOG_KEYS"):  # the daemon's working directory is another one
        environment["CHIPLOG_KEYS"] = os.path.abspath(os.path.expanduser(keys))
    output = open_output(places, module)
    try:
        closes = [(os.POSIX_SPAWN_CLOSE, number) for number in _inheritable()]
        # -P: a module in the training's directory must not shadow one of chiplog or of the standard library.
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
    """Start a command through a shell in a new session, with no input. Return the shell's PID. Raises OSError.

    actions: for posix_spawn; the first one opens descriptor 1, and 2 becomes its copy. This does not use subprocess,
    which waits for the end of a pipe: a worker that another thread forks at that moment keeps the pipe open as long as
    it lives.
    """
    options: dict[str, Any] = {
        "file_actions": [
            *actions[:1],  # before 0 is opened: 0 may be the source of the copy if it was closed
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, 1, 2),
            *actions[1:],
        ],
        "setsigmask": [],
        "setsigdef": [signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ],
    }
    shell = ["sh", "-c", 'cd /; "$@" &', "sh", *command]
    try:
        # safeguard: start-ignores-forked-workers
        return os.posix_spawn("/bin/sh", shell, environment, setsid=True, **options)
    except NotImplementedError:  # an older libc: the daemon stays in the session of the caller
        return os.posix_spawn("/bin/sh", shell, environment, **options)


def reap(pid: int) -> int | None:
    """Return a child's exit status and reap it, so that no `wait` for any child returns it. None while it runs."""
    try:
        ended, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return 0  # other code has waited for it, or SIGCHLD is ignored
    return os.waitstatus_to_exitcode(status) if ended else None


def _inheritable() -> list[int]:
    """Return the descriptors that a child of this process would inherit, except the standard streams."""
    found = []
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)  # posix_spawn rejects numbers above it
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the listing, or one closed since
            if 2 < int(name) < soft and os.get_inheritable(int(name)):
                found.append(int(name))
    return found


def start_daemon_once(
    module: str, arguments: Sequence[str], places: Paths, lock: Path, just_now_s: float = STARTING_S
) -> bool:
    """Start a daemon unless a process of this host has just done so. Return True if this call did. Raises OSError.

    All ranks of a node notice at once that no daemon listens. Starting one daemon for each would cost them seconds.
    lock: the lock that a running daemon holds. A daemon that has started and ended since does not prevent a new start.
    just_now_s: how long callers wait for a started daemon.
    """
    ensure_private_dir(places.run)
    stamp = os.open(places.run / f"{module}.started", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(stamp, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Time since boot, which no clock change affects. A stamp of an earlier boot may be in the future.
        stamped, now = os.pread(stamp, 32, 0), time.monotonic_ns()
        if stamped.isdigit() and 0 <= now - int(stamped) < just_now_s * 1e9 and not _is_gone(lock, stamp):
            return False
        os.ftruncate(stamp, 0)
        os.pwrite(stamp, str(now).encode(), 0)
    except BlockingIOError:
        return False  # another process is about to start it
    finally:
        os.close(stamp)
    start_daemon(module, arguments, places)
    return True


def _is_gone(lock: Path, stamp: int) -> bool:
    """Return True if a daemon took the lock after the stamp, and no longer holds it."""
    try:
        return os.stat(lock).st_mtime_ns > os.fstat(stamp).st_mtime_ns and lock_holder_pid(lock) == 0
    except OSError:
        return False


def reset_affinity() -> None:
    """Undo the CPU affinity that a daemon inherits from the rank that started it."""
    with contextlib.suppress(OSError, ValueError):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))


def on_stop_signals(stop: Callable[..., object]) -> None:
    """Call `stop` on each signal that asks a daemon to end: SIGTERM, SIGINT, and SIGHUP when its terminal closes.

    Under nohup, which ignores SIGHUP, a daemon outlives its terminal.
    """
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # safeguard: nohup-survives-hangup
        signal.signal(signal.SIGHUP, stop)  # safeguard: hangup-ends-in-order


def keep_files_private() -> int:
    """Make all files of this process and of its children private to the user. Return the previous umask.

    DuckDB creates its files with 0666 minus the umask. Never called in a training process, whose umask is the user's.
    """
    return os.umask(0o077)  # safeguard: private-umask


def raise_fd_limit() -> None:
    """Raise the soft limit of open files to the hard limit, for this daemon and its children.

    The soft limit, usually 1024, protects programs that call select(2). A daemon needs one descriptor per connection.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # "unlimited" beyond the kernel's maximum: keep the limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # safeguard: hard-limit-of-files


def fds_nearly_exhausted() -> bool:
    """Return True if the last quarter of the descriptors is in use, or only some thousands are free.

    Cheap enough for each turn of a loop: the kernel always assigns the lowest free number.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        lowest = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return True
    os.close(lowest)
    return limit != resource.RLIM_INFINITY and lowest >= limit - min(limit // 4, _SPARE_DESCRIPTORS_MAX)


def open_output(places: Paths, module: str) -> int:
    """Open the file with the output of a background daemon, truncated if it is too long. Raises OSError."""
    ensure_private_dir(places.run)
    output = os.open(output_path(places, module), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    if os.fstat(output).st_size > OUTPUT_BYTES_MAX:
        os.ftruncate(output, 0)
    return output


def output_path(places: Paths, module: str) -> Path:
    """Return the file with the output of a background daemon."""
    return places.run / f"{module}.out"
