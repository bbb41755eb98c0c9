"""Facts of this process and this host, from the operating system."""

import os
import secrets
import socket
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass

from chiplog.identity.identity import PARENT_RUN, SETUP, ProcessFacts, SpawnPosition, decode_inherited
from chiplog_schemas.limits import NAME_CHARS_MAX
from chiplog_schemas.process.owners import name_of
from chiplog_schemas.process.procfs import DEAD, START, STATE, boot_id, read_proc_stat

_SPAWN = ("torch.multiprocessing.spawn", "_wrap")  # the function that each process of mp.spawn() runs
_UNKNOWN = "0"  # start time of a process, if it cannot be read
_PID_DIGITS_MAX = 9  # the kernel's have at most seven; os.kill() rejects ten
_TICKS_DIGITS_MAX = 20  # of 64 bits
_ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"  # without characters that people confuse


def random_word(length: int = 6) -> str:
    """Return random characters that are easy to read out loud."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))


def read_process_facts(opened: Iterable[str] = ()) -> ProcessFacts:
    """Gather the facts of this process. opened: `used_run_ids`."""
    parent = os.getppid()
    return ProcessFacts(
        host=host_name(),
        pid=os.getpid(),
        parent=f"{parent}:{start_ticks(parent)}:{boot_id()}",
        now_s=time.time(),
        random=random_word(),
        spawned=_spawned(),
        used_run_ids=frozenset(opened),
        process_fingerprint=process_fingerprint(),
        stale_variables=frozenset(
            name for name, counts_no_more in _RECORDS if counts_no_more(os.environ.get(name, ""))
        ),
    )


def host_name() -> str:
    """Return this host's name without its domain."""
    return socket.gethostname().split(".")[0] or "localhost"


def node_name() -> str:
    """Return the name of this node: CHIPLOG_NODE, else the host's."""
    return os.environ.get("CHIPLOG_NODE", "").strip()[:NAME_CHARS_MAX] or host_name()


def is_multiprocessing_child() -> bool:
    """Return True if multiprocessing started this process, even while it still unpickles its task."""
    module = sys.modules.get("multiprocessing.process")
    return module is not None and (
        module.parent_process() is not None or getattr(module.current_process(), "_inheriting", False)
    )


def owner() -> str:
    """Return the process that ends this one, a daemonic child of multiprocessing; "" if none."""
    if not is_multiprocessing_child():
        return ""
    try:
        module = sys.modules["multiprocessing.process"]
        return name_of(module.parent_process().pid) if module.current_process().daemon else ""
    except AttributeError:  # the parent is not known yet
        return ""


def spawned_index() -> int | None:
    """Return the index of this process in a torch.multiprocessing.spawn(); None if spawn() did not start it."""
    spawned = _spawned()
    return None if spawned is None else spawned.index


def _spawned() -> SpawnPosition | None:
    """Return this process's position in a torch.multiprocessing.spawn(), as far as it can be found out.

    spawn() sets no variable. But it starts a wrapper with the index as second argument, and multiprocessing numbers the
    children of a process: that number minus the index identifies the call. A process of another kind that another
    thread starts in between breaks this, and so does a parallel start. Then only the process group knows the position.
    """
    if not is_multiprocessing_child():
        return None
    try:  # AttributeError also if the parent is not known yet
        module = sys.modules["multiprocessing.process"]
        process, parent = module.current_process(), module.parent_process().pid
        target, (_, index, *_), number = process._target, process._args, process._identity[-1]
        if (target.__module__, target.__name__) != _SPAWN or type(index) is not int or not 0 <= index < number:
            return None
        if os.environ.get("TORCH_MP_PARALLEL_START") == "1" and process._start_method == "forkserver":
            return None
    except (AttributeError, TypeError, ValueError, IndexError):
        return None
    return SpawnPosition(f"{parent}:{start_ticks(parent)}:{boot_id()}:{number - index}", index)


def process_fingerprint() -> str:
    """Return this process's session, and what distinguishes it from earlier and later processes of its PID."""
    return f"{pid_namespace_id()}/{start_ticks(os.getpid())}/{os.getsid(0)}"


@dataclass(frozen=True, slots=True)
class _Owner:
    """The process that wrote a record for its children."""

    pid: int
    start: str
    session: str  # '' if the record has none


def is_stale_parent(record: str) -> bool:
    """Return True if PARENT_RUN is from a process that has exited and did not start this one, e.g. in a terminal."""
    owner = _local_owner(record)
    return owner is not None and _has_exited(owner) and not _is_child_of(owner)


def pid_was_reused(record: str) -> bool:
    """Return True if the PID in a record belongs to another process by now.

    Only then is SETUP stale: a launcher may exit before its workers call init().
    """
    owner = _local_owner(record)
    return owner is not None and start_ticks(owner.pid) not in (owner.start, _UNKNOWN)


def _local_owner(record: str) -> _Owner | None:
    """Return the process that wrote a record, if its PID is valid here: same host, same boot, same PID namespace."""
    left = decode_inherited(record)
    has_start = _is_number(left.start, _TICKS_DIGITS_MAX) and left.start != _UNKNOWN
    if not has_start or not _is_number(left.pid, _PID_DIGITS_MAX) or not left.world or left.world != pid_namespace_id():
        return None
    return _Owner(int(left.pid), left.start, left.session)


def _is_number(text: str, digits_max: int) -> bool:
    return text.isdecimal() and len(text) <= digits_max


def _has_exited(owner: _Owner) -> bool:
    """Return True if that process has exited, reaped by its parent or not. False if that is unknown."""
    fields = read_proc_stat(owner.pid)
    if not fields:
        return not _exists(owner.pid)
    return fields[STATE] in DEAD or fields[START] != owner.start


def _is_child_of(owner: _Owner) -> bool:
    """Return True if a process that has exited, or a child of it, started this one. This one may call init() late.

    True in the same session: a shell or timeout(1) may be between the two, and each terminal has its own session. In
    another session, true for an orphan, whose parent is the system's init, which is not younger than the owner: tini
    starts a training in its own tick, and what the training starts after its init() is ticks younger. Or if
    multiprocessing names the owner as the parent.
    """
    if owner.pid == os.getpid():
        return False  # this process has the owner's PID now
    if owner.session == str(os.getsid(0)) or int(start_ticks(os.getppid())) <= int(owner.start):
        return True
    module = sys.modules.get("multiprocessing.process")
    parent = module.parent_process() if module is not None else None
    return parent is not None and parent.pid == owner.pid


_RECORDS = ((PARENT_RUN, is_stale_parent), (SETUP, pid_was_reused))


def pid_namespace_id() -> str:
    """Return the scope of this process's PID: the boot and the PID namespace; '' if unknown."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
    boot = boot_id()
    return "" if boot == "unknown" else f"{boot}.{''.join(filter(str.isdecimal, namespace))}"


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # another user's
    return True


def start_ticks(pid: int) -> str:
    """Return when a process started, in clock ticks since boot. Setting the clock does not change it."""
    fields = read_proc_stat(pid)
    return fields[START] if fields else _UNKNOWN
