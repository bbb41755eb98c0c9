"""Facts of this process and this host, from the operating system."""

import os
import secrets
import socket
import sys
import time
from collections.abc import Iterable

from chiplog.identity.identity import ProcessFacts, SpawnPosition
from chiplog_schemas.limits import NAME_CHARS_MAX
from chiplog_schemas.process.inherited_run import process_fingerprint, stale_variables
from chiplog_schemas.process.pool_owners import name_of
from chiplog_schemas.process.procfs import boot_id, start_ticks

_SPAWN = ("torch.multiprocessing.spawn", "_wrap")  # the function that each process of mp.spawn() runs
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
        stale_variables=stale_variables(os.environ),
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
