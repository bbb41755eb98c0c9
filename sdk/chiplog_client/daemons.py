"""Start, stop and find the agent and collector of a CHIPLOG_DIR. Used by the command line and by `connect()`."""

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from chiplog_schemas.addresses import AddressError, ipc_path, is_loopback
from chiplog_schemas.limits import EVENT_BYTES_MAX, KIB
from chiplog_schemas.paths import Paths, ensure_private_dir
from chiplog_schemas.process.daemon import NOT_FOR_DAEMONS, output_path, start_daemon
from chiplog_schemas.process.file_lock import EMBEDDED, Lock, lock_holder_pid, lock_note
from chiplog_schemas.process.log_owner import WATCH_S, LogOwnership, may_write_log, read_owner
from chiplog_schemas.process.procfs import START, read_proc_stat
from chiplog_schemas.storage.journal_dir import LOCK_NAME, is_adoptable, list_journals
from chiplog_schemas.storage.segment_format import list_segments
from chiplog_schemas.storage.segment_log import OWED_NAME
from chiplog_schemas.storage.watermark import Watermark
from chiplog_schemas.transport.collector_memory import remembered_collector
from chiplog_schemas.transport.link_status import LinkState, LinkStatus, read_link_status

COLLECTOR, AGENT, INDEX = "chiplog_collector", "chiplog_agent", "chiplog_collector.index"
START_WAIT_S = 15.0  # importing DuckDB on a busy machine
RENEW_WAIT_S = 5.0  # a daemon checks once a second that its files exist
STOP_WAIT_S = 30.0  # for the index to catch up with the log
COMING_UP_MAX_S = 60.0  # an older daemon answers or hangs
_POLL_INTERVAL_S = 0.05
_JUST_FINISHED_S = 10.0  # the collector has the end of a run long before, unless something is wrong
_TAIL_BYTES = min(4096, EVENT_BYTES_MAX)
_HOW_IT_ANSWERS = {
    LinkState.CONNECTING: ", which has not answered yet",
    LinkState.CLOSED: ", which is out of reach",
    LinkState.OPEN: ", which answers",
    LinkState.REFUSING: ", which answers",
}


def lock_path(where: Paths, module: str) -> Path:
    """Return the lock file of a daemon, or of the process that writes the DuckDB file."""
    if module == INDEX:
        return where.index_lock
    return (where.collector if module == COLLECTOR else where.agent) / "lock"


def socket_path(where: Paths, module: str) -> Path:
    """Return the socket that a daemon binds once it is ready."""
    address = where.query_address if module == COLLECTOR else where.agent_address
    return ipc_path(address)


def daemon_pid(where: Paths, module: str) -> int:
    """Return the PID of a running daemon; 0 if none runs."""
    return lock_holder_pid(lock_path(where, module))


def is_sigstopped(pid: int) -> bool:
    """Return True if a signal or a debugger has stopped a process: it holds its lock and does nothing."""
    return read_proc_stat(pid)[:1] in (["T"], ["t"])  # state


def collector_link_status(where: Paths) -> LinkStatus | None:
    """Return the running agent's report on its link to the collector; None without an agent."""
    pid = daemon_pid(where, AGENT)
    return read_link_status(where.agent_link, pid) if pid else None


def start(where: Paths, module: str, arguments: list[str]) -> int:
    """Start a daemon unless one runs; return the PID of the one that holds the lock and listens.

    One that exits in the meantime is replaced. Raises OSError with the daemon's last output.
    """
    path = socket_path(where, module)
    running = pid = daemon_pid(where, module)
    has_started = False
    # After a reboot a collector watches the record of its former boot first.
    wait_s = START_WAIT_S + (WATCH_S if module == COLLECTOR and where.may_be_shared else 0.0)
    deadline = time.monotonic() + wait_s
    while not (pid and _accepts_connections(path) and daemon_pid(where, module) == pid):
        if not pid and not has_started:
            ensure_private_dir(where.run)
            start_daemon(module, arguments, where)
            has_started = True
        if time.monotonic() > deadline:
            if running and not has_started:
                raise OSError(f"{module} (process {running}) runs and does not listen at {path}")
            raise OSError(f"{module} did not come up within {wait_s:g} s: {last_output_line(where, module)}")
        time.sleep(_POLL_INTERVAL_S)
        pid = daemon_pid(where, module)
    return pid


def stop(where: Paths, module: str) -> int:
    """Stop a daemon with SIGTERM, wait for its exit, and return its PID; 0 if none ran. Raises OSError if it stays."""
    # safeguard: down-waits-for-lock
    if not daemon_pid(where, module) and _accepts_connections(socket_path(where, module)):
        # Its lock file was removed: the daemon creates another one.
        _wait_until(
            RENEW_WAIT_S, lambda: daemon_pid(where, module) > 0 or not _accepts_connections(socket_path(where, module))
        )
    pid = daemon_pid(where, module)
    if pid <= 0:
        return 0
    if is_sigstopped(pid):
        raise OSError(f"{module} (process {pid}) was stopped by a signal and cannot end; kill -CONT {pid} resumes it")
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        return pid  # it has just ended by itself
    if not _wait_until(STOP_WAIT_S, lambda: daemon_pid(where, module) != pid):
        raise OSError(
            f"{module} (process {pid}) did not end within {STOP_WAIT_S:g} s; see {output_path(where, module)}, "
            f"or kill -9 {pid}: what it has acknowledged is on disk"
        )
    return pid


def last_output_line(where: Paths, module: str) -> str:
    """Return the last line that a background daemon printed."""
    try:
        with open(output_path(where, module), "rb") as output:
            output.seek(max(0, os.fstat(output.fileno()).st_size - _TAIL_BYTES))
            lines = output.read().decode("utf-8", "replace").strip().splitlines()
    except OSError:
        return "(no output)"
    return lines[-1] if lines else "(no output)"


def may_start_agent(where: Paths) -> bool:
    """Return True if no agent runs here and this user may start one for what an earlier one left."""
    if daemon_pid(where, AGENT):
        return False
    try:
        is_ours = os.stat(where.journals).st_uid == os.geteuid()
    except OSError:
        return False
    # With journals elsewhere, only a collector makes the root: it may be missing.
    roots = [where.root] if where.root.exists() else []
    return is_ours and all(os.access(path, os.W_OK) for path in (*roots, where.local, where.journals))


def waiting_journals(where: Paths) -> list[bytes]:
    """Return the producers of ended processes whose journals no agent collects, if this user may start one here."""
    return ended_journals(where) if may_start_agent(where) else []


def ended_journals(where: Paths) -> list[bytes]:
    """Return the producers of ended processes whose journals an agent may collect."""
    journals = list_journals(where.journals)
    # safeguard: unadoptable-starts-nothing
    return [producer for producer, path in journals if not lock_holder_pid(path / LOCK_NAME) and is_adoptable(path)]


def journals_on_their_way(where: Paths) -> list[bytes]:
    """Return the producers of ended processes whose journals the agent will collect, or has begun to a moment ago.

    A journal that it holds for longer cannot be read.
    """
    ended = ended_journals(where)  # first: the agent may adopt one in the meantime
    agent = daemon_pid(where, AGENT)
    adopted = [
        producer
        for producer, path in list_journals(where.journals)
        if agent and lock_holder_pid(path / LOCK_NAME) == agent and _is_recent(path / LOCK_NAME)
    ]
    return ended + adopted  # safeguard: adopted-journal-awaited


def has_live_journal(where: Paths) -> bool:
    """Return True if a process of this node records here."""
    return any(lock_holder_pid(path / LOCK_NAME) for _, path in list_journals(where.journals))


def has_just_finished(where: Paths) -> bool:
    """Return True if a journal was begun or removed here a moment ago, as at the end of a run."""
    return _is_recent(where.journals)


def _is_recent(path: Path) -> bool:
    """Return True if a file or directory was written a moment ago, as the file of a lock is when it is taken."""
    try:
        return time.time() - os.stat(path).st_mtime < _JUST_FINISHED_S
    except OSError:
        return False


def has_undelivered_spool(where: Paths) -> bool:
    """Return True if the spool has events of ranks that the collector has not acknowledged."""
    try:
        return bool(list_segments(where.agent / "spool")) and (
            Watermark(where.agent / "spool" / OWED_NAME, writable=False).get() > 0
        )
    except OSError:
        return False  # of an older agent, or not for this user


def may_apply_log(where: Paths) -> bool:
    """Return True if this user may apply the log of a collector of this machine that is not a service.

    The log of a service, which listens at named addresses, is left to its operator.
    """
    try:
        is_ours = os.stat(where.collector).st_uid == os.geteuid()
    except OSError:
        return False
    if not is_ours or not all(os.access(path, os.W_OK) for path in (where.root, where.collector)):
        return False
    return may_write_log(where) and has_log(where)  # safeguard: log-of-other-host-left-alone


def collector_elsewhere(where: Paths) -> str:
    """Return the address of another collector to which the agents of this directory deliver; '' if there is none."""
    collector = remembered_collector(where.agent)
    if collector is None:
        return ""
    # safeguard: own-service-is-here
    if _is_open(collector_link_status(where)) and _is_own_service(where, collector.address):
        return ""
    return collector.address


def goes_elsewhere(where: Paths) -> str:
    """Return one line if the agents of this directory deliver to another collector; '' otherwise.

    It reads small files only: whether that collector answers is what the agent has reported.
    """
    address = collector_elsewhere(where)
    if not address:
        return ""
    link = collector_link_status(where)
    answers = _HOW_IT_ANSWERS[link.state] if link is not None else ""
    n_bytes = 0 if _is_open(link) else _spool_bytes(where)
    size, up = f"{n_bytes / KIB:,.0f} KiB", f"chiplog up --dir {shlex.quote(str(where.root))}"
    if not n_bytes:
        waits = ""
    elif not daemon_pid(where, AGENT):  # only its next start shows what of its newest segment has arrived
        waits = f"; no agent runs: a part of the {size} in its spool may not have arrived, and `{up}` delivers it"
    else:
        waits = f"; up to {size} wait in the spool until it answers"
    how = "--url" if os.environ.get("CHIPLOG_COLLECTOR") else "--url or CHIPLOG_COLLECTOR"
    return (
        f"what is logged under {where.root} goes to the collector {address}{answers}{waits}; query it with "
        f"{how}; `{up} --collector local` delivers here again, with all that waits"
    )


def _is_open(link: LinkStatus | None) -> bool:
    return link is not None and link.state in (LinkState.OPEN, LinkState.REFUSING)


def _is_own_service(where: Paths, address: str) -> bool:
    """Return True if an address that answers is of this host, and a collector runs here that listens at named ones."""
    try:
        if not is_loopback(address):
            return False
        owner = read_owner(where.collector)
    except (OSError, AddressError):  # AddressError: a Unix socket
        return False
    return owner is not None and owner.is_service and daemon_pid(where, COLLECTOR) > 0


def _spool_bytes(where: Paths) -> int:
    """Return the size of the spool; 0 if it cannot be read. Its newest segment may have what was acknowledged."""
    try:
        return sum(path.stat().st_size for _, path in list_segments(where.agent / "spool"))
    except OSError:
        return 0  # the agent has just removed one


def take_over(where: Paths, host: str) -> None:
    """Take the data of a directory over from a host that is gone.

    Waits until the collector of that host has not renewed its record for a while. Raises OSError if it does, or if the
    data does not belong to that host.
    """
    ensure_private_dir(where.collector)
    lock = Lock(lock_path(where, COLLECTOR))
    try:
        LogOwnership(where, take_over=host).release()
    finally:
        lock.release()


def has_log(where: Paths) -> bool:
    """Return True if a collector has received anything here."""
    try:
        return bool(list_segments(where.collector / "log"))
    except OSError:
        return False  # it is not for this user


def apply_log(where: Paths) -> None:
    """Run an index until it has applied the log, for at most COMING_UP_MAX_S. Raises OSError.

    It does not take the lock of the collector, so a collector can start at any time. Its index then waits for this one.
    """
    ensure_private_dir(where.run)
    environment = {name: value for name, value in os.environ.items() if name not in NOT_FOR_DAEMONS}
    with open(output_path(where, COLLECTOR), "ab", opener=_open_private) as output:
        # safeguard: applied-log-private
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", INDEX, str(where.root)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            umask=0o077,
            start_new_session=True,  # a terminal's Ctrl-C ends the reader, which then ends it
        )
    try:
        process.wait(COMING_UP_MAX_S)
    except subprocess.TimeoutExpired:
        raise OSError(f"the log is not applied after {COMING_UP_MAX_S:g} s; the next reader continues") from None
    finally:
        process.kill()  # what it has committed stays
        process.wait()
    if process.returncode:
        raise OSError(f"the index ended with exit status {process.returncode}: {last_output_line(where, COLLECTOR)}")


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def what_spool_has(where: Paths) -> str:
    """Return a text about a spool with undelivered events."""
    return f"the spool in {where.agent} has events that the collector lacks"


def what_waits(n_journals: int) -> str:
    """Return a text with the number of waiting journals."""
    return (
        "1 journal of an ended process waits" if n_journals == 1 else f"{n_journals} journals of ended processes wait"
    )


def is_coming_up(where: Paths, module: str) -> bool:
    """Return True if a daemon runs here, is not stopped, and was started a short time ago."""
    pid = daemon_pid(where, module)
    if pid <= 0:
        return False
    fields = read_proc_stat(pid)
    if len(fields) <= START or fields[0] in ("T", "t"):
        return False
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[START]) / os.sysconf("SC_CLK_TCK")
    return age_s < COMING_UP_MAX_S


def start_wait_s(where: Paths) -> float:
    """Return how much longer than a running collector one may need that is starting, or that starts its index."""
    if any(is_coming_up(where, module) for module in (COLLECTOR, AGENT, INDEX)):
        return COMING_UP_MAX_S
    pid = daemon_pid(where, COLLECTOR)
    may_start_index = pid > 0 and is_embedded(where, COLLECTOR) and not is_sigstopped(pid)
    return START_WAIT_S if may_start_index else 0.0  # safeguard: index-start-waited-for


def is_embedded(where: Paths, module: str) -> bool:
    """Return True if a training started the running daemon, which therefore exits when it is idle."""
    return lock_note(lock_path(where, module)) == EMBEDDED


def _accepts_connections(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def _wait_until(wait_s: float, done: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + wait_s
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_INTERVAL_S)
    return True
