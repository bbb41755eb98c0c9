"""The list of what `chiplog sync` has delivered from a directory, beside the journals and files that stay there.

Each line of `.delivered` is a JSON list: name, bytes, and the CHIPLOG_DIR whose agent has it on stable storage. If the
size has changed since, for example after a complete copy, it counts as not delivered.
"""

import json
import os
from collections.abc import Iterable
from pathlib import Path

MARKS_NAME = ".delivered"
_MARKS_BYTES_MAX = 16 << 20  # a hundred thousand journals; beyond it journals are delivered again, without effect


def is_delivered(path: Path, root: Path | None = None) -> bool:
    """Return True if a journal or saved file was delivered to this CHIPLOG_DIR, or without `root` to any."""
    found = _marks(_list_of(path)).get(path.name, {})
    sizes = list(found.values()) if root is None else [found.get(str(root))]
    return bool(sizes) and _bytes_of(path) in sizes


def mark(paths: Iterable[Path], root: Path) -> None:
    """Record that these were delivered to a CHIPLOG_DIR. Raises OSError."""
    lines: dict[Path, list[str]] = {}
    for path in paths:
        line = json.dumps([path.name, _bytes_of(path), str(root)])
        lines.setdefault(_list_of(path), []).append(line + "\n")
    for at, new in lines.items():
        descriptor = os.open(at, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with open(descriptor, "a", encoding="utf-8") as target:
            target.writelines(new)


def _list_of(path: Path) -> Path:
    home = path.parent.parent if path.parent.name == "files" else path.parent
    return home / MARKS_NAME


def _marks(at: Path) -> dict[str, dict[str, int]]:
    """Return the delivered bytes by name and CHIPLOG_DIR."""
    marks: dict[str, dict[str, int]] = {}
    try:
        if at.stat().st_size > _MARKS_BYTES_MAX:
            return {}
        lines = at.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return {}
    for line in lines:
        try:
            name, n_bytes, root = json.loads(line)
            marks.setdefault(name, {})[root] = n_bytes
        except (ValueError, TypeError):
            continue  # a partial line: the disk was full
    return marks


def _bytes_of(path: Path) -> int:
    """Return the size of a file, or the total size of a directory's files; -1 if it cannot be read."""
    try:
        if path.is_dir():
            return sum(entry.stat().st_size for entry in os.scandir(path))
        return path.stat().st_size
    except OSError:
        return -1
