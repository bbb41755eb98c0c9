"""Facts of this process and this host, as the operating system tells them."""

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
from chiplog_schemas.process.procfs import boot_id, read_proc_stat

_SPAWN = ("torch.multiprocessing.spawn", "_wrap")  # what each process of mp.spawn() runs
_STATE, _START = 0, 19  # of stat_fields(): state and starttime
_DEAD = ("Z", "X")  # a zombie, and for a moment nothing any more
_UNKNOWN = "0"  # when a process started, where nobody can tell
_PID_DIGITS_MAX = 9  # the kernel's have seven at most; os.kill() takes no ten
_TICKS_DIGITS_MAX = 20  # of 64 bits
_ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"  # without what people confuse


def random_word(length: int = 6) -> str:
    """Return random characters that can be read out."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))


def read_process_facts(opened: Iterable[str] = ()) -> ProcessFacts:
    """Gather the facts of this process. opened: see there."""
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
    """Tell whether multiprocessing started this process; also while it still unpickles what it is to do."""
    module = sys.modules.get("multiprocessing.process")
    return module is not None and (
        module.parent_process() is not None or getattr(module.current_process(), "_inheriting", False)
    )


def owner() -> str:
    """Return which process ends this one, a daemonic child of multiprocessing, when its work is done; "" if none."""
    if not is_multiprocessing_child():
        return ""
    try:
        module = sys.modules["multiprocessing.process"]
        return name_of(module.parent_process().pid) if module.current_process().daemon else ""
    except AttributeError:  # no parent is known yet
        return ""


def spawned_index() -> int | None:
    """Return which process of a torch.multiprocessing.spawn() this is; None for any other."""
    spawned = _spawned()
    return None if spawned is None else spawned.index


def _spawned() -> SpawnPosition | None:
    """Return which of the processes of a torch.multiprocessing.spawn() this is, as far as it can be told.

    It sets no variable. But it starts a function of its own, with the index as second argument, and multiprocessing
    counts the children of a process: what is left without the index names the call. A process of another kind that
    another thread starts in between, and starting them in parallel, would break that; then only the group tells.
    """
    if not is_multiprocessing_child():
        return None
    try:  # AttributeError, too: no parent is known yet
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
    """Return what tells this process from others that had its PID, or will have it, and its session."""
    return f"{pid_namespace_id()}/{start_ticks(os.getpid())}/{os.getsid(0)}"


@dataclass(frozen=True, slots=True)
class _Owner:
    """The process that left a record for those that it starts."""

    pid: int
    start: str
    session: str  # '' where the record has none


def is_stale_parent(record: str) -> bool:
    """Tell whether PARENT_RUN is of a process that has ended, and did not start this one: of a terminal, say."""
    owner = _local_owner(record)
    return owner is not None and _has_exited(owner) and not _is_child_of(owner)


def pid_was_reused(record: str) -> bool:
    """Tell whether the PID in a record is another process's by now.

    Only so is SETUP gone. It is somebody's wish, and a launcher may well leave before its workers come to init().
    """
    owner = _local_owner(record)
    return owner is not None and start_ticks(owner.pid) not in (owner.start, _UNKNOWN)


def _local_owner(record: str) -> _Owner | None:
    """Return who left a record, if its PID has its meaning here: the same boot of the same host, the same namespace."""
    left = decode_inherited(record)
    has_start = _is_number(left.start, _TICKS_DIGITS_MAX) and left.start != _UNKNOWN
    if not has_start or not _is_number(left.pid, _PID_DIGITS_MAX) or not left.world or left.world != pid_namespace_id():
        return None
    return _Owner(int(left.pid), left.start, left.session)


def _is_number(text: str, digits_max: int) -> bool:
    return text.isdecimal() and len(text) <= digits_max


def _has_exited(owner: _Owner) -> bool:
    """Tell whether that process is no more, or has ended and its parent has not asked how. False if nobody can tell."""
    fields = read_proc_stat(owner.pid)
    if not fields:
        return not _exists(owner.pid)
    return fields[_STATE] in _DEAD or fields[_START] != owner.start


def _is_child_of(owner: _Owner) -> bool:
    """Tell whether a process that has ended, or a child of it, started this one. It may come to init() late.

    Who is in its session is: there a shell, or timeout(1), may stand between. A terminal is a session of its own. In
    another session, who has no parent any more but the system's, which is no younger than the owner: tini starts a
    training in its own tick, and what that starts after its init() is ticks younger. Or multiprocessing knows.
    """
    if owner.pid == os.getpid():
        return False  # given out again, to this one
    if owner.session == str(os.getsid(0)) or int(start_ticks(os.getppid())) <= int(owner.start):
        return True
    module = sys.modules.get("multiprocessing.process")
    parent = module.parent_process() if module is not None else None
    return parent is not None and parent.pid == owner.pid


_RECORDS = ((PARENT_RUN, is_stale_parent), (SETUP, pid_was_reused))


def pid_namespace_id() -> str:
    """Return where a PID has its meaning: this boot, and this PID namespace of it; '' where that is not known."""
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
    """Return when a process started, in clock ticks since boot: no setting of a clock changes that."""
    fields = read_proc_stat(pid)
    return fields[_START] if fields else _UNKNOWN
