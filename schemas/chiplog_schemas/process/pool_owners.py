"""Whether the owner of a pool ended well. If it did, so did its workers, which it ends with SIGTERM.

A daemonic child of multiprocessing creates an empty file `owners/<PID of its parent>:<start of its parent>`. A parent
that ends well finds this file at its end and writes into it. The agent reads the file to judge the child.
"""

import contextlib
import os
from pathlib import Path

from chiplog_schemas.paths import ensure_private_dir
from chiplog_schemas.process.procfs import DEAD, START, STATE, read_proc_stat

_WELL = b"0\n"
_DIGITS_MAX = 20  # of a 64-bit number


def name_of(pid: int) -> str:
    """Return an identifier of a process that no later process with the same PID has; "" when the process is gone."""
    fields = read_proc_stat(pid)
    return f"{pid}:{fields[START]}" if len(fields) > START else ""


def is_alive(owner: str) -> bool:
    """Return True if the process of this name runs, as far as this process can see."""
    pid, _, start = owner.partition(":")
    if not (pid.isdecimal() and start.isdecimal() and len(owner) <= 2 * _DIGITS_MAX):
        return False
    fields = read_proc_stat(int(pid))
    return len(fields) > START and fields[START] == start and fields[STATE] not in DEAD


def announce(owners: Path, owner: str) -> None:
    """Ask a process to record whether it ends well. Never raises."""
    with contextlib.suppress(OSError):
        ensure_private_dir(owners)
        os.close(os.open(owners / owner, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))


def note_good_end(owners: Path) -> None:
    """Record that this process ends well, if one of its workers asked. Never raises."""
    with contextlib.suppress(OSError):
        file = os.open(owners / name_of(os.getpid()), os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(file, _WELL)
        finally:
            os.close(file)


def ended_well(owners: Path, owner: str) -> bool:
    """Return True if a process has recorded that it ended well."""
    if "/" in owner or not owner:
        return False
    try:
        with open(owners / owner, "rb") as file:
            return file.read(len(_WELL)) == _WELL
    except OSError:
        return False


def remove_old(owners: Path, before_s: float) -> None:
    """Remove the files of ended processes that were last changed before a time in seconds since the epoch."""
    try:
        names = os.listdir(owners)
    except OSError:
        return
    for name in names:
        with contextlib.suppress(OSError):
            if os.stat(owners / name).st_mtime < before_s and not is_alive(name):
                os.unlink(owners / name)
