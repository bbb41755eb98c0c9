"""Facts of this process and this host, as the operating system tells them."""

import os
import secrets
import socket
import sys
import time
from collections.abc import Iterable

from chiplog.identity import PARENT_RUN, SETUP, Facts, Spawned
from chiplog_schemas.machine import boot_id

_SPAWN = ("torch.multiprocessing.spawn", "_wrap")  # what each process of mp.spawn() runs
_UNKNOWN = "0"  # when a process started, where nobody can tell
_ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"  # without what people confuse


def random_word(length: int = 6) -> str:
    """Return random characters that can be read out."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))


def facts(opened: Iterable[str] = ()) -> Facts:
    """Gather the facts of this process. opened: see there."""
    parent = os.getppid()
    return Facts(
        host=host_name(),
        pid=os.getpid(),
        parent=f"{parent}:{start_of(parent)}:{boot_id()}",
        now_s=time.time(),
        random=random_word(),
        spawned=_spawned(),
        opened=frozenset(opened),
        stamp=stamp(),
        gone=frozenset(name for name in (PARENT_RUN, SETUP) if is_gone(os.environ.get(name, ""))),
    )


def host_name() -> str:
    """Return this host's name without its domain."""
    return socket.gethostname().split(".")[0] or "localhost"


def visible_gpus() -> list[str]:
    """Return what CUDA_VISIBLE_DEVICES lets this process see, as written there; UUIDs stay, indices need the driver."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return [entry.strip() for entry in listed.split(",") if entry.strip().startswith(("GPU-", "MIG-"))]


def is_multiprocessing_child() -> bool:
    """Tell whether multiprocessing started this process; also while it still unpickles what it is to do."""
    module = sys.modules.get("multiprocessing.process")
    return module is not None and (
        module.parent_process() is not None or getattr(module.current_process(), "_inheriting", False)
    )


def _spawned() -> Spawned | None:
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
    return Spawned(f"{parent}:{start_of(parent)}:{boot_id()}:{number - index}", index)


def stamp() -> str:
    """Return what tells this process from others that had its PID, or will have it: "world/start"."""
    return f"{_world()}/{start_of(os.getpid())}"


def is_gone(record: str) -> bool:
    """Tell whether a record for children is of a process of this host that has ended, and did not start this one.

    What it started itself may come to its init() later than its parent to its end. That one has no parent any more but
    an older one, the system's; or multiprocessing knows. Whatever else still has the record, in a terminal that a
    training opened say, has nothing to do with it. Of other hosts, and from before there was a stamp, nobody can tell.
    """
    pid, _, said = record.partition(":")
    world, start = [*said.split("/"), "", "", "", "", "", ""][4:6]
    if (
        not pid.isdecimal()
        or len(pid) > 9
        or not start.isdecimal()
        or start == _UNKNOWN
        or not world
        or world != _world()
    ):
        return False
    now = start_of(int(pid))
    if now == start or (now == _UNKNOWN and _exists(int(pid))):
        return False
    if int(pid) == os.getpid():
        return True
    module = sys.modules.get("multiprocessing.process")
    parent = module.parent_process() if module is not None else None
    return not (parent is not None and parent.pid == int(pid)) and int(start_of(os.getppid())) >= int(start)


def _world() -> str:
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


def start_of(pid: int) -> str:
    """Return when a process started, in clock ticks since boot: no setting of a clock changes that."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()[19]  # field 22, starttime: proc_pid_stat(5)
    except (OSError, IndexError):
        return _UNKNOWN
