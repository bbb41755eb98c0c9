"""Facts of this process and this host, as the operating system tells them."""

import os
import secrets
import socket
import sys
import time
from collections.abc import Iterable

from chiplog.identity import Facts, Spawned
from chiplog_schemas.machine import boot_id

_SPAWN = ("torch.multiprocessing.spawn", "_wrap")  # what each process of mp.spawn() runs
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


def start_of(pid: int) -> str:
    """Return when a process started, in clock ticks since boot: no setting of a clock changes that."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()[19]  # field 22, starttime: proc_pid_stat(5)
    except (OSError, IndexError):
        return "0"
