"""Who may write the log of a CHIPLOG_DIR: never two processes, on any file system.

On a file system that is known to be local the collector's lock alone decides. Elsewhere a lock may not be seen on other
nodes, so a record decides in addition:

    CHIPLOG_DIR/collector/
      owner-<generation>   JSON, see LogOwner; created exclusively: one of two claims succeeds; the highest counts
      host                 the owner's host name, for earlier versions, which start a collector only on that host

The process that holds the lock claims the record and renews it every RENEW_S. Another machine never takes it over by
itself. This machine does, after its reboot, once the record has not been renewed for WATCH_S. A person may name the
former owner (`--take-over`): then any machine does, under the same condition. No clocks are compared: the record that
changes is the sign of life. An owner that could not renew its record checks it again before it writes.
"""

import contextlib
import json
import os
import socket
import threading
import time
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from chiplog_schemas.atomic_file import atomic_write
from chiplog_schemas.paths import Paths, ensure_private_dir
from chiplog_schemas.process.procfs import boot_id, pid_namespace, start_ticks

RENEW_S = 5.0  # a small file, over the network at times
WATCH_S = 30.0  # six renewals: a busy machine delays them, and file systems cache for some seconds
_POLL_S = 1.0
_PREFIX = "owner-"
_HOST = "host"
_BYTES_MAX = 4096  # of a record; a longer file is not chiplog's
_HOST_CHARS_MAX = 255  # of a name
_UNREADABLE = "unknown"  # the name of an owner whose record cannot be read


class OwnedElsewhereError(OSError):
    """Another process may write this log. The text is one line with the remedy."""


@dataclass(frozen=True, slots=True)
class LogOwner:
    """One record. A record without a boot is of an earlier version, or damaged."""

    host: str
    machine: str = ""  # machine ID, see machine-id(5)
    boot: str = ""
    pid: int = 0
    start: int = 0  # of the process, in clock ticks since boot
    pid_namespace: int = 0
    may_be_shared: bool = True  # as the owner saw its file system
    is_service: bool = False  # it listens at addresses that were named: only its operator starts it
    has_ended: bool = False
    renewals: int = 0
    generation: int = 0

    @property
    def is_name_only(self) -> bool:
        """Return True if only the host's name is known."""
        return not self.boot

    @property
    def is_of_this_machine(self) -> bool:
        """Return True if the owner ran on this machine, in this boot or an earlier one."""
        if self.is_name_only:
            return self.host == socket.gethostname()[:_HOST_CHARS_MAX]  # as the earlier version decided
        own = machine_id()
        return self.machine == own if self.machine and own else self.boot == boot_id()

    @property
    def has_exited(self) -> bool:
        """Return True if the owner has certainly ended: it recorded that, or the kernel knows no such process."""
        is_visible = self.boot == boot_id() and self.pid_namespace == pid_namespace() and self.is_of_this_machine
        return self.has_ended or (is_visible and start_ticks(self.pid) != self.start)


def machine_id() -> str:
    """Return the ID of this machine or container; '' if it has none."""
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        with contextlib.suppress(OSError, ValueError), open(path, encoding="ascii") as file:
            return file.read(64).strip()
    return ""


def read_owner(collector: Path) -> LogOwner | None:
    """Return who owns the log in a collector's directory; None if no collector has recorded it. Raises OSError."""
    for generation, path in sorted(_records(collector), reverse=True):
        try:
            found = json.loads(path.read_bytes()[:_BYTES_MAX])
            known = {field.name: found[field.name] for field in fields(LogOwner) if field.name in found}
            return replace(LogOwner(**known), host=str(known["host"])[:_HOST_CHARS_MAX], generation=generation)
        except FileNotFoundError:
            continue  # a later one has replaced it
        except (ValueError, TypeError, KeyError):
            return LogOwner(_UNREADABLE, generation=generation)
    try:
        with open(collector / _HOST, encoding="utf-8", errors="replace") as file:
            return LogOwner(file.read(_HOST_CHARS_MAX).strip() or _UNREADABLE)
    except FileNotFoundError:
        return None


def belongs_elsewhere(places: Paths) -> str:
    """Return one line if the data of this directory belongs to a collector on another machine, '' otherwise."""
    owner = _shared_owner(places)
    if owner is None or owner.is_of_this_machine:
        return ""
    return f"{_whose(places, owner)}; what is logged here waits in {places.local}; {_remedy(owner)}"


def served_elsewhere(places: Paths) -> str:
    """Return the same, also while a collector of another container, or of a machine with the same ID, may run."""
    owner = _shared_owner(places)
    if owner is None or owner.has_ended or owner.is_name_only or not owner.is_of_this_machine:
        return belongs_elsewhere(places)
    is_same_boot = owner.boot == boot_id()
    is_near = owner.pid_namespace == pid_namespace() if is_same_boot else owner.host == socket.gethostname()
    if is_near:  # this container's, or of the former boot of this host
        return ""
    waits = f"what is logged here waits in {places.local} until that one ends"
    return f"{_whose(places, owner)}; {waits}; set CHIPLOG_COLLECTOR to the address of that collector"


def _shared_owner(places: Paths) -> LogOwner | None:
    """Return the owner where other nodes may use this directory; None if it is unknown, or only the lock decides."""
    if not places.may_be_shared:  # safeguard: host-name-irrelevant-on-local-disk
        return None
    try:
        return read_owner(places.collector)
    except OSError:
        return None


def may_write_log(places: Paths) -> bool:
    """Return True if a process of this machine may now write the database or start a collector that is not a service.

    False while no collector has recorded that the log is its own.
    """
    try:
        owner = read_owner(places.collector)
    except OSError:
        return False
    if owner is None or owner.is_service:
        return False
    if not places.may_be_shared:
        return True
    return owner.is_of_this_machine and (owner.has_exited or owner.is_name_only)


class LogOwnership:
    """The ownership of a log, from construction to `release`. The caller holds the collector's lock.

    take_over: host name of the former owner, if a person has named it. Raises OwnedElsewhereError, OSError.
    """

    def __init__(self, places: Paths, *, is_service: bool = False, take_over: str = "") -> None:
        self._places = places
        former = read_owner(places.collector)
        if former is not None:
            _require_ended(places, former, take_over)
        self._owner = LogOwner(
            socket.gethostname(),
            machine_id(),
            boot_id(),
            os.getpid(),
            start_ticks(os.getpid()),
            pid_namespace(),
            places.may_be_shared,
            is_service,
            generation=1 + (former.generation if former is not None else 0),
        )
        self._renew_at = self._confirmed_at = _now_s()
        self._is_lost = ""
        ensure_private_dir(places.collector)
        try:
            atomic_write(self._path, self._encoded(), replaces=False)  # safeguard: one-claim-of-two-succeeds
            with contextlib.suppress(OSError):
                atomic_write(places.collector / _HOST, self._owner.host.encode())
        except FileExistsError:
            taken = f"the log in {places.collector} was claimed by another collector just now"
            raise OwnedElsewhereError(taken) from None
        except OSError:
            if places.may_be_shared:
                raise
            # A full disk: on one of this node the lock alone decides, and runs can still be deleted.
        for generation, path in _records(places.collector):
            if generation < self._owner.generation:
                with contextlib.suppress(OSError):
                    path.unlink()

    @property
    def _path(self) -> Path:
        return self._places.collector / f"{_PREFIX}{self._owner.generation:06d}"

    def renew(self) -> str:
        """Renew the record when it is due. Return why this process must end, '' otherwise."""
        if _now_s() >= self._renew_at and not self._is_lost:
            with contextlib.suppress(OSError):  # tried again at the next call; see `confirm`
                self._renew()
        return self._is_lost

    def confirm(self) -> None:
        """Raise OSError unless this process still owns the log. Called before each write; costs one clock reading."""
        # safeguard: stalled-owner-checks-record
        if self._places.may_be_shared and _now_s() - self._confirmed_at > WATCH_S / 2:
            self._renew()
        if self._is_lost:
            raise OwnedElsewhereError(self._is_lost)

    def _renew(self) -> None:
        owner = read_owner(self._places.collector)
        if owner is not None and owner.generation > self._owner.generation:
            self._is_lost = _whose(self._places, owner)
            return
        self._owner = replace(self._owner, renewals=self._owner.renewals + 1)
        atomic_write(self._path, self._encoded())
        self._confirmed_at = _now_s()
        self._renew_at = self._confirmed_at + RENEW_S

    def renew_in_background(self) -> None:
        """Renew the record in a thread until `release`, for a command without a loop."""

        def work() -> None:
            while not self._owner.has_ended and not self.renew():
                time.sleep(_POLL_S)

        threading.Thread(target=work, name="chiplog-owner", daemon=True).start()

    def release(self) -> None:
        """Record that this process writes no more."""
        if self._is_lost or self._owner.has_ended:
            return
        self._owner = replace(self._owner, has_ended=True)
        with contextlib.suppress(OSError):  # then the next owner waits until it has not been renewed
            atomic_write(self._path, self._encoded())

    def _encoded(self) -> bytes:
        return json.dumps(asdict(self._owner)).encode()


def _require_ended(places: Paths, former: LogOwner, take_over: str) -> None:
    """Raise OwnedElsewhereError unless the former owner of a log writes no more and this process may follow it."""
    if not places.may_be_shared and (former.is_name_only or not former.may_be_shared):
        return  # the lock alone decides, whatever the host is called now
    if places.may_be_shared and not former.is_of_this_machine and take_over != former.host:
        # safeguard: log-of-another-machine-left-alone
        raise OwnedElsewhereError(f"{_whose(places, former)}; {_remedy(former)}")
    if not (former.is_name_only or former.has_exited) and _is_renewed(places, former):
        raise OwnedElsewhereError(f"{_whose(places, former)}, which runs; stop it there first (chiplog down)")


def _is_renewed(places: Paths, former: LogOwner) -> bool:
    """Watch a record for WATCH_S. Return True if its owner renews it, or another process has claimed it."""
    deadline = _now_s() + WATCH_S
    while _now_s() < deadline:
        time.sleep(_POLL_S)
        owner = read_owner(places.collector)
        if owner != former:  # safeguard: renewed-record-not-taken-over
            return owner is not None and not owner.has_ended
    return False


def _whose(places: Paths, owner: LogOwner) -> str:
    return f"the data in {places.collector} belongs to the collector of host {owner.host}"


def _remedy(owner: LogOwner) -> str:
    gone = f"if that host is gone, run `chiplog up --take-over {owner.host}`"
    return f"set CHIPLOG_COLLECTOR to the address of that collector, or {gone}"


def _records(collector: Path) -> list[tuple[int, Path]]:
    try:
        names = [name for name in os.listdir(collector) if name.startswith(_PREFIX)]
    except FileNotFoundError:
        return []
    numbers = [(name.removeprefix(_PREFIX), name) for name in names]
    return [(int(number), collector / name) for number, name in numbers if number.isdecimal()]


def _now_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)  # a suspended machine does not renew
