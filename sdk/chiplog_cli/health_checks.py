"""The checks of `chiplog doctor`: each one reports what it found and, if that is a problem, the remedy."""

import errno
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from chiplog.journal.reachability import Reason, probe
from chiplog.native.loader import SWITCH, hot_path, why_not
from chiplog_client import daemons
from chiplog_client.delivered import is_delivered
from chiplog_schemas._version import __version__
from chiplog_schemas.file_systems import LOCAL_FILE_SYSTEMS, VOLATILE_FILE_SYSTEMS, file_system_type
from chiplog_schemas.limits import GIB, JOURNAL_BYTES_MAX, MIB, SPOOL_BYTES_MAX
from chiplog_schemas.paths import LOCAL_DIR, Paths
from chiplog_schemas.process.file_lock import Lock, LockHeldError, lock_holder_pid
from chiplog_schemas.process.log_owner import served_elsewhere
from chiplog_schemas.query.duckdb_errors import foreign_path_reason
from chiplog_schemas.storage.former_places import find_leftovers, why_elsewhere
from chiplog_schemas.storage.journal_dir import LOCK_NAME, is_adoptable, list_journals
from chiplog_schemas.transport.link_status import LinkState

OK, WARNING, ERROR = "ok", "warning", "bad"
_FREE_BYTES_MIN = 4 * JOURNAL_BYTES_MAX  # four ranks whose journals are full
_FREE_INODES_MIN = 1_000  # ranks, spool and log create a few hundred files a day
_BACKLOG_BYTES = 64 * MIB  # of the spool: minutes of delay at usual rates
_DESCRIPTORS_MIN = 1_024  # a rank needs ten, a collector one for each agent
_ADOPTION_S = 10.0  # a working agent has adopted a dead rank's journal by then: it checks twice a second
_STORE_S = 20.0  # for two requests, and an import of Delta
_PROBE = ".doctor"
TESTED_DUCKDB = "2.0"  # the version in constraints.txt; a new one changed results of SQL before


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. verdict: ok, warning or bad; remedy: '' if there is nothing to do."""

    check: str
    verdict: str
    found: str
    remedy: str = ""


def run_checks(where: Paths) -> Iterator[Finding]:
    """Yield the findings of all checks. A check that fails itself is reported, and the others continue."""
    for check in CHECKS:
        try:
            yield check(where)
        except OSError as error:
            yield Finding(check.__name__.strip("_"), ERROR, str(error), "find out what denies access, and fix it")


def _python(where: Paths) -> Finding:
    import zmq

    found = f"Python {sys.version.split()[0]}, pyzmq {zmq.pyzmq_version()}, libzmq {zmq.zmq_version()}"
    if not zmq.has("curve"):
        return Finding("python", WARNING, f"{found} without CURVE", "keys need it: install pyzmq's wheel from PyPI")
    return Finding("python", OK, found)


def _duckdb(where: Paths) -> Finding:
    remedy = f"pip install 'duckdb=={TESTED_DUCKDB}.*'"
    try:
        version = metadata.version("duckdb")
    except metadata.PackageNotFoundError:
        return Finding("duckdb", ERROR, "not installed", remedy)
    if version.split(".")[:2] != TESTED_DUCKDB.split("."):
        found = f"{version} was not tested with chiplog {__version__}, {TESTED_DUCKDB} was"
        return Finding("duckdb", WARNING, found, f"if a query or the collector fails: {remedy}")
    return Finding("duckdb", OK, version)


def _log_call(where: Paths) -> Finding:
    if hot_path is not None:
        return Finding("log()", OK, "in C")
    remedy = "" if why_not.startswith(SWITCH) else "install a C compiler and Python.h, then chiplog again"
    return Finding("log()", WARNING if remedy else OK, f"in Python, several times slower: {why_not}", remedy)


def _directory(where: Paths) -> Finding:
    name = "directory"
    if reason := foreign_path_reason(where.index):
        return Finding(name, ERROR, reason, "set CHIPLOG_DIR to another directory")
    if not where.root.exists():
        parent = next(path for path in where.root.parents if path.exists())
        if not os.access(parent, os.W_OK | os.X_OK):
            return Finding(name, ERROR, f"{where.root} does not exist, {parent} is not writable", "set CHIPLOG_DIR")
        return Finding(name, OK, f"{where.root} does not exist yet: the first run creates it")
    for path in (where.root, where.local, where.journals, where.agent, where.collector, where.run):
        if not path.exists():
            continue
        about = path.stat()
        if about.st_uid != os.getuid():
            return Finding(name, ERROR, f"{path} belongs to user {about.st_uid}", "set CHIPLOG_DIR to one of your own")
        if stat.S_IMODE(about.st_mode) & 0o022:
            return Finding(name, ERROR, f"{path} is writable by others", f"chmod go-w {path}")
        if not os.access(path, os.W_OK | os.X_OK):
            return Finding(name, ERROR, f"{path} is not writable", f"chmod u+rwx {path}, or set CHIPLOG_DIR")
    return Finding(name, OK, f"{where.root}, writable only by you")


def _disk(where: Paths) -> Finding:
    at = next(path for path in (where.local, *where.local.parents) if path.exists())
    kind = file_system_type(at)
    usage = shutil.disk_usage(at)
    found = f"{kind or 'unknown file system'} at {at}, {usage.free / GIB:.1f} GiB free of {usage.total / GIB:.1f}"
    if why := why_elsewhere(where):
        found = f"journals, spool and sockets are there, {why}: {found}"
    elsewhere = f"set {LOCAL_DIR} to a directory on a disk of this node"
    if kind not in LOCAL_FILE_SYSTEMS and not os.environ.get(LOCAL_DIR):
        return Finding("disk", ERROR, f"{found}: other nodes may share it", elsewhere)
    if usage.free < _FREE_BYTES_MIN:
        return Finding("disk", ERROR, found, f"free some: four full journals need {_FREE_BYTES_MIN // MIB} MiB")
    if why and kind in VOLATILE_FILE_SYSTEMS:
        return Finding("disk", WARNING, f"{found}: it ends with this container or boot", elsewhere)
    if usage.free < SPOOL_BYTES_MAX:
        return Finding("disk", WARNING, found, f"a full spool needs {SPOOL_BYTES_MAX // GIB} GiB; free some")
    return Finding("disk", OK, found)


def _former_places(where: Paths) -> Finding:
    left = find_leftovers(where)
    if not left:
        return Finding("former places", OK, f"nothing is left outside of {where.local}")
    remedy = "chiplog up moves them; what another node may still write only after two hours without a change"
    return Finding("former places", WARNING, "; ".join(map(str, left)), remedy)


def _inodes(where: Paths) -> Finding:
    """Check that files can be created. btrfs and others, which have no fixed number of inodes, report 0 of 0."""
    at = next(path for path in (where.local, *where.local.parents) if path.exists())
    about = os.statvfs(at)
    if not about.f_files:  # safeguard: unlimited-inodes-are-fine
        return Finding("inodes", OK, f"as many files as fit at {at}")
    found = f"{about.f_favail:,} of {about.f_files:,} inodes are free at {at}"
    if about.f_favail < _FREE_INODES_MIN:
        remedy = "remove files, or set CHIPLOG_DIR to another file system: each rank creates some"
        return Finding("inodes", WARNING if about.f_favail else ERROR, found, remedy)
    return Finding("inodes", OK, found)


def _journal(where: Paths) -> Finding:
    """Try the operations of a journal: allocate and lock."""
    if not where.local.exists():
        return Finding("journal", OK, "not tried: nothing has run here yet")
    path = where.local / f"{_PROBE}-{os.getpid()}"
    try:
        lock = Lock(path)
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.posix_fallocate(descriptor, 0, MIB)
        finally:
            os.close(descriptor)
            lock.release()
    except LockHeldError as error:
        return Finding("journal", ERROR, str(error), "this file system's locks do not work; set CHIPLOG_DIR to another")
    except OSError as error:
        remedy = (
            "free some space or inodes" if error.errno == errno.ENOSPC else "set CHIPLOG_DIR to another file system"
        )
        return Finding("journal", ERROR, f"{where.local} cannot hold a journal: {error.strerror}", remedy)
    finally:
        path.unlink(missing_ok=True)
    return Finding("journal", OK, "files can be allocated and locked here")


def _limits(where: Paths) -> Finding:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < _DESCRIPTORS_MIN:
        return Finding("limits", WARNING, f"{soft} open files allowed", f"ulimit -n {min(hard, 65_536)}")
    return Finding("limits", OK, f"{soft:,} open files allowed")


def _gpu(where: Paths) -> Finding:
    import ctypes

    if (released := released_gpus(where)) is not None:
        return Finding("gpu", WARNING, released, "chiplog agent gpu resume")
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        if Path("/proc/driver/nvidia/version").exists():
            return Finding("gpu", WARNING, "NVIDIA's driver is loaded, libnvidia-ml.so.1 is not found", "install it")
        return Finding("gpu", OK, "no NVIDIA driver: no GPU statistics")
    return Finding("gpu", OK, "libnvidia-ml.so.1 found")


def _named_agent(where: Paths) -> Finding:
    address = os.environ.get("CHIPLOG_AGENT")
    if not address:
        return Finding("named agent", OK, "none is named: each user's own agent is used")
    found = probe(address)
    if found is None:
        return Finding("named agent", OK, f"{address}, by CHIPLOG_AGENT, listens")
    if found.reason is Reason.DENIED:
        remedy = "unset CHIPLOG_AGENT: it is another user's, and your own agent delivers what you log"
    else:
        remedy = "start it, or unset CHIPLOG_AGENT and run `chiplog up`, which delivers what waits"
    return Finding("named agent", ERROR, f"{address}, by CHIPLOG_AGENT: {found.text}", remedy)


def _agent(where: Paths) -> Finding:
    pid = daemons.daemon_pid(where, daemons.AGENT)
    backlog = directory_bytes(where.agent / "spool")
    if not pid:
        if backlog > _BACKLOG_BYTES:
            return Finding("agent", WARNING, f"none runs, {backlog // MIB} MiB wait in the spool", "chiplog up")
        if daemons.has_undelivered_spool(where):  # safeguard: undelivered-spool-found
            return Finding("agent", WARNING, f"none runs, {daemons.what_spool_has(where)}", "chiplog up delivers them")
        return Finding("agent", OK, "none runs; the first run starts one")
    found = f"process {pid}, spool {backlog // MIB} MiB"
    if daemons.is_sigstopped(pid):
        return Finding("agent", ERROR, f"{found}, stopped by a signal: it accepts nothing", f"kill -CONT {pid}")
    link = daemons.collector_link_status(where)
    if link is not None and link.state is LinkState.CLOSED:
        return Finding("agent", WARNING, f"{found}, {link.text}", "see its collector; the spool keeps everything")
    if link is not None and link.state is LinkState.REFUSING:
        remedy = "chiplog keys allow with a --node for each of them, on the collector's host"
        return Finding("agent", ERROR, f"{found}, {link.text}", remedy)
    if backlog > _BACKLOG_BYTES:
        return Finding("agent", WARNING, found, "see whether its collector answers: chiplog doctor --canary")
    return Finding("agent", OK, found)


def _collector(where: Paths) -> Finding:
    named = os.environ.get("CHIPLOG_COLLECTOR")
    if named:
        return Finding("collector", OK, f"{named}, by CHIPLOG_COLLECTOR; see the agent's line")
    if elsewhere := daemons.goes_elsewhere(where):
        return Finding("collector", OK, elsewhere)
    pid = daemons.daemon_pid(where, daemons.COLLECTOR)
    if pid and daemons.is_sigstopped(pid):
        return Finding(
            "collector", ERROR, f"process {pid}, stopped by a signal: it accepts nothing", f"kill -CONT {pid}"
        )
    if not pid and (elsewhere := served_elsewhere(where)):
        return Finding("collector", WARNING, elsewhere, "log and query through that host's collector")
    if pid:
        return Finding("collector", OK, f"process {pid}, log {directory_bytes(where.collector / 'log') // MIB} MiB")
    if daemons.has_log(where) and not where.index.exists():  # safeguard: unapplied-log-found
        return Finding("collector", WARNING, "none runs, and no database has its log", "chiplog up applies it")
    return Finding("collector", OK, "none runs; an agent starts one")


def _store(where: Paths) -> Finding:
    url = os.environ.get("CHIPLOG_STORE")
    if not url:
        return Finding("store", OK, "none; CHIPLOG_STORE names one")
    command = [sys.executable, "-P", "-m", "chiplog_cli", "store", "check", url]  # the collector's, not the client's
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_STORE_S)
    except subprocess.TimeoutExpired:
        found = f"{url} does not answer within {_STORE_S:g} s"
        return Finding("store", ERROR, found, "look at the address, its credentials and the network")
    said = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    line = said[-1].removeprefix("chiplog: ") if said else f"the check ended with status {done.returncode}"
    if done.returncode == 0:
        return Finding("store", OK, line)
    return Finding("store", ERROR, line, "collectors keep what they cannot publish; chiplog store check repeats this")


def _journals(where: Paths) -> Finding:
    dead = [path for _, path in list_journals(where.journals) if not lock_holder_pid(path / LOCK_NAME)]
    stuck = [path for path in dead if not is_adoptable(path) and time.time() - _last_modified(path) > _ADOPTION_S]
    if stuck:
        found = (
            f"no agent can adopt {len(stuck)} of the journals, such as {stuck[0]}: no lock and head that it can open"
        )
        return Finding("journals", WARNING, found, "make its files writable for this user, or remove it if it is empty")
    if dead and not daemons.daemon_pid(where, daemons.AGENT):
        found = f"{daemons.what_waits(len(dead))} for an agent"
        return Finding("journals", WARNING, found, "chiplog up delivers them")
    waiting = [path for path in dead if time.time() - _last_modified(path) > _ADOPTION_S]
    if waiting:
        found = f"{daemons.what_waits(len(waiting))} although an agent runs"
        return Finding("journals", WARNING, found, "see the agent: chiplog status")
    offline = sum(not is_delivered(path) for _, path in list_journals(where.local / "offline"))
    if offline:
        found = f"{offline} {'journal was' if offline == 1 else 'journals were'} recorded offline"
        return Finding("journals", WARNING, found, "chiplog sync delivers what was recorded offline")
    return Finding("journals", OK, "nothing waits")


def released_gpus(where: Paths) -> str | None:
    """Return since when an operator has the agent leave the GPUs closed; None if none has."""
    try:
        since_s = where.gpus_released.stat().st_mtime
    except OSError:
        return None
    since = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(since_s))
    return f"released since {since}, without samples and XIDs until: chiplog agent gpu resume"


def _last_modified(directory: Path) -> float:
    """Return when a file in a directory was last written; now if the directory has just been removed."""
    try:
        return max((entry.stat().st_mtime for entry in os.scandir(directory)), default=time.time())
    except OSError:
        return time.time()


def directory_bytes(directory: Path) -> int:
    """Return the total size of a directory's files; 0 if it cannot be read."""
    try:
        return sum(entry.stat().st_size for entry in os.scandir(directory) if entry.is_file())
    except OSError:
        return 0


CHECKS: tuple[Callable[[Paths], Finding], ...] = (
    _python,
    _duckdb,
    _log_call,
    _directory,
    _disk,
    _inodes,
    _former_places,
    _journal,
    _limits,
    _gpu,
    _named_agent,
    _agent,
    _collector,
    _store,
    _journals,
)
