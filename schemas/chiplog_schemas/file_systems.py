"""Which file systems are this node's own.

Two nodes that share a directory would each take its locks, adopt the other's journals and remove its sockets. No list
of network file systems is complete, so only the file systems named here count as local. A kind that can be either
(FUSE, 9p, virtiofs, a kind unknown today) does not.
"""

import os
import re
from pathlib import Path

# In memory, or the upper layer of a container: gone after a reboot, or with the container.
VOLATILE_FILE_SYSTEMS = frozenset({"tmpfs", "devtmpfs", "ramfs", "overlay", "aufs"})
_BLOCK_DEVICE = "a block device"  # where the table of mounts cannot be read
LOCAL_FILE_SYSTEMS = VOLATILE_FILE_SYSTEMS | {
    _BLOCK_DEVICE,
    "ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "jfs", "reiserfs",
}  # fmt: skip
_ESCAPED = re.compile(r"\\([0-7]{3})")  # a space, tab, newline, backslash or # in the table of mounts


def _read_mounts() -> str:
    """Return the table of mounts; '' if it cannot be read."""
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as mounts:
            return mounts.read()
    except OSError:  # out of descriptors, or no /proc
        return ""


_mounts_at_import = _read_mounts()  # for a process that has no free descriptor later


def file_system_type(path: Path) -> str:
    """Return the kernel's name for the file system of an existing or future path; '' when unknown."""
    best, kind = "", ""
    path = Path(os.path.realpath(path))  # a home directory is often a link onto the network
    mounts = _read_mounts() or _mounts_at_import  # safeguard: local-without-descriptors
    for line in mounts.split("\n"):
        _, mount_point, mount_type, *_ = [*line.split(" "), "", "", ""]
        mount_point = _ESCAPED.sub(lambda found: chr(int(found[1], 8)), mount_point)
        inside = str(path) == mount_point or str(path).startswith(mount_point.rstrip("/") + "/")
        if mount_point and inside and len(mount_point) >= len(best):
            best, kind = mount_point, mount_type
    if best:
        return kind
    # In the root of a chroot(), no mount of the table has the path.
    return _BLOCK_DEVICE if _is_on_block_device(path) else ""


def _is_on_block_device(path: Path) -> bool:
    """Return True if a path is, or would be, on a device with a driver: network file systems have none (major 0)."""
    for existing in (path, *path.parents):
        try:
            return os.major(os.stat(existing).st_dev) != 0
        except OSError:
            continue
    return False
