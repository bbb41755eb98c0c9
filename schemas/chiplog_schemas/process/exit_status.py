"""The exit status of a process that is not a child: from its pidfd, else from its zombie.

A pidfd keeps the status after the parent has waited for the process (Linux 6.15: PIDFD_GET_INFO of linux/pidfd.h).
Until the parent waits, field 52 of /proc/PID/stat holds it (proc_pid_stat(5)). On an older kernel the status is gone
once the parent has waited.

The helper that drains a rank's console holds such a pidfd from the start. It writes the status that it reads into the
file `status` of the rank's journal: the status, a space, the source. Until then the file is empty.
"""

import fcntl
import os
import struct
from pathlib import Path

from chiplog_schemas.process.procfs import DEAD, EXIT_CODE, STATE, read_proc_stat

# Why a label crashed whose process ended in an unknown way and without a known exit status.
UNKNOWN_EXIT = "the interpreter ended by SystemExit, or by an exception that no hook saw; its exit code is not known"
STATUS_NAME = "status"
_FILE_BYTES_MAX = 64
_STATUS_MAX = 0xFFFF  # waitpid(2): 8 bits of code, 7 of signal, and the core-dump flag
# struct pidfd_info: mask, cgroupid (u64), pid, tgid, ppid and eight IDs (u32), exit_code (s32); its first version.
_PIDFD_INFO = struct.Struct("<QQ11Ii")
_PIDFD_INFO_EXIT = 1 << 3
PIDFD_GET_INFO = 3 << 30 | _PIDFD_INFO.size << 16 | 0xFF << 8 | 11  # _IOWR(PIDFS_IOCTL_MAGIC, 11, struct pidfd_info)


def exit_status(descriptor: int, pid: int) -> tuple[int | None, str]:
    """Return (status as of waitpid(2), source) of a process that has ended; (None, "") when it is unknown.

    descriptor: a pidfd of the process. The parent may wait for the process between the two reads.
    """
    found = _status_by_pidfd(descriptor)
    if found is None and (zombie := _status_of_zombie(pid)) is not None:
        return zombie, "/proc/PID/stat"
    if found is None:
        found = _status_by_pidfd(descriptor)
    return found, "" if found is None else "pidfd"


def write_status(descriptor: int, status: int | None, source: str) -> None:
    """Write how a process ended into its journal's status file, in one write. Raises OSError."""
    os.pwrite(descriptor, f"{'unknown' if status is None else status} {source}\n".encode()[:_FILE_BYTES_MAX], 0)


def read_status(journal: Path) -> tuple[int, int, str] | None:
    """Return (time of writing, µs since the epoch; status; source), or None without a status."""
    try:
        with open(journal / STATUS_NAME, "rb") as file:
            text = file.read(_FILE_BYTES_MAX).decode("ascii", "replace").strip()
            written_us = os.fstat(file.fileno()).st_mtime_ns // 1000
    except OSError:
        return None
    status, _, source = text.partition(" ")
    return (written_us, int(status), source) if status.isdecimal() and int(status) <= _STATUS_MAX else None


def awaits_status(journal: Path) -> bool:
    """Return True if a helper was started that has not yet written how the process ended."""
    try:
        return os.stat(journal / STATUS_NAME).st_size == 0
    except OSError:
        return False


def _status_by_pidfd(descriptor: int) -> int | None:
    info = bytearray(_PIDFD_INFO.size)
    _PIDFD_INFO.pack_into(info, 0, _PIDFD_INFO_EXIT, *[0] * 13)
    try:
        fcntl.ioctl(descriptor, PIDFD_GET_INFO, info)
    except OSError:
        return None  # an older kernel does not know the call
    mask, *_, status = _PIDFD_INFO.unpack(info)
    return status if mask & _PIDFD_INFO_EXIT else None


def _status_of_zombie(pid: int) -> int | None:
    fields = read_proc_stat(pid)
    # X: the parent is waiting for it at this moment, and the pidfd does not have the status yet.
    return int(fields[EXIT_CODE]) if len(fields) > EXIT_CODE and fields[STATE] in DEAD else None
