"""Which control groups a process is in, how much memory they use, and the limit on it; cgroup v2 and v1.

The kernel's documents are the source: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
"""

import os
from collections.abc import Iterable
from typing import NamedTuple

UNIFIED = ""  # the name of the hierarchy of v2
_DEPTH_MAX = 64  # levels from a group up to its mount; real trees have fewer than ten
_FILES = {  # version: limit, usage, the key in memory.stat for the page cache that the kernel can reclaim
    2: ("memory.max", "memory.current", b"inactive_file "),
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", b"total_inactive_file "),
}


class Memory(NamedTuple):
    """The memory of a control group. limit_bytes: None without a limit below the host's memory."""

    usage_bytes: int
    limit_bytes: int | None


class MemoryGroup:
    """The control groups above one process that account for its memory.

    Groups are found once, at construction; limits are read at each `read`, since they can be changed at any time.
    """

    def __init__(self, pid: int | str = "self", *, proc: str = "/proc") -> None:
        self._version, found = find_groups(pid, proc)
        self.folders = tuple(found)  # innermost first

    def read(self, host_bytes: int) -> Memory | None:
        """Return the memory of the group with the tightest limit; without any limit, that of the process's own group.

        None if no group accounts for it, as in the root group of v2. Usage excludes inactive page cache, which the
        kernel reclaims first, as the kubelet's working set does. Raises OSError when the group has vanished in between,
        ValueError when a file has an undocumented format.
        """
        limit_file, usage_file, cache_key = _FILES[self._version]
        tightest, folder = host_bytes, ""
        for candidate in self.folders:
            limit = _limit(f"{candidate}/{limit_file}")
            if limit is not None and limit < tightest:
                tightest, folder = limit, candidate
        own = self.folders[0] if self.folders else ""
        if not (folder or own) or not os.path.exists(f"{folder or own}/{usage_file}"):
            return None
        usage = int(_read(f"{folder or own}/{usage_file}"))
        _, found, rest = _read(f"{folder or own}/memory.stat").partition(cache_key)
        if found:
            usage -= int(rest.split(b"\n", 1)[0])
        return Memory(max(usage, 0), tightest if folder else None)


def _limit(path: str) -> int | None:
    try:
        text = _read(path).strip()
    except FileNotFoundError:
        return None  # the root group of v2 has no memory.max
    return None if text == b"max" else int(text)


def find_groups(pid: int | str, proc: str) -> tuple[int, list[str]]:
    """Return the version of the hierarchy that governs memory, and the process's folders in it, innermost first."""
    return find_all_groups(pid, proc, ["memory"])["memory"]


def find_all_groups(pid: int | str, proc: str, controllers: Iterable[str]) -> dict[str, tuple[int, list[str]]]:
    """Return the same for each of some controllers; `UNIFIED` is v2 whatever v1 governs.

    Raises OSError when the process has ended, ValueError when a file has an undocumented format.
    """
    groups: dict[str, str] = {}  # controller of v1, or UNIFIED → path
    for line in _read(f"{proc}/{pid}/cgroup").decode(errors="surrogateescape").splitlines():
        _, names, path = line.split(":", 2)
        groups |= dict.fromkeys(names.split(","), path)  # v2 has no names
    mounts: dict[str, tuple[str, str]] = {}
    for line in _read(f"{proc}/self/mountinfo").decode(errors="surrogateescape").splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind in ("cgroup", "cgroup2"):
            root, mount = before.split()[3:5]
            for name in [UNIFIED] if kind == "cgroup2" else options.split(","):
                mounts.setdefault(name, (root, mount))
    found: dict[str, tuple[int, list[str]]] = {}
    for controller in controllers:
        found[controller] = 2, []
        for name in (controller, UNIFIED):  # where both are mounted and v1 has the controller, v2 has no files of it
            if name in groups and name in mounts:
                found[controller] = 2 if name == UNIFIED else 1, _folders(groups[name], *mounts[name])
                break
    return found


def _folders(group: str, root: str, mount: str) -> list[str]:
    """Return the folders from a group up to its mount, innermost first; none when the group is outside of the mount.

    That is the case for another container's group: its limit is not visible from here, and the mount's own is another.
    """
    root = root.rstrip("/")
    parts = [part for part in group.removeprefix(root).split("/") if part][:_DEPTH_MAX]
    if not f"{group}/".startswith(f"{root}/") or ".." in parts:
        return []
    folders = ["/".join([mount, *parts[:count]]) for count in range(len(parts), -1, -1)]
    return [folder for folder in folders if os.path.isdir(folder)]


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()
