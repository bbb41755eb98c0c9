"""Files by content: their names on disk, a file's name in a run, and how much of a disk they may use.

The name of a content is its SHA-256 in 64 lower-case hex digits, in the outbox of a node and in `files/` of a
collector. A peer names a content by those 32 bytes, never by a path.
"""

import os
import re
from pathlib import Path

from chiplog_schemas.limits import FREE_BYTES_MIN, PATH_CHARS_MAX

DIGEST_BYTES = 32
ANY_LABEL_FOLDER = "mlflow/"  # files of a run below it may be of any label; the view base.saves has it, too
_NAME = re.compile(r"[0-9a-f]{64}")
_FREE_SHARE = 20  # of a disk smaller than this many times FREE_BYTES_MIN, one part stays free


def is_content_name(name: str) -> bool:
    """Return True if a file's name on disk is the name of a content."""
    return _NAME.fullmatch(name) is not None


def list_contents(directory: Path) -> list[Path]:
    """Return the contents in a directory, by name; none when it does not exist. Raises OSError."""
    try:
        names = sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [directory / name for name in names if is_content_name(name)]


def content_path(directory: Path, digest: bytes) -> Path:
    """Return where a collector stores a content. directory: its `files/`. digest: 32 bytes."""
    name = digest.hex()
    return directory / name[:2] / name


def read_content(directory: Path, digest: bytes, offset: int, n_bytes: int) -> tuple[int, bytes]:
    """Return the size of a stored content, and up to `n_bytes` of it from `offset` on. Raises OSError."""
    with content_path(directory, digest).open("rb") as content:
        return os.fstat(content.fileno()).st_size, os.pread(content.fileno(), n_bytes, offset)


def invalid_path_reason(path: str) -> str | None:
    """Return why a path cannot be a file's name in a run, or None if it can."""
    if len(path) > PATH_CHARS_MAX:
        return f"it has {len(path)} characters, the limit is {PATH_CHARS_MAX}"
    if any(part in ("", ".", "..") for part in path.split("/")):
        return "it must be relative, without empty parts and '..'"
    if any(ord(character) < 32 or 127 <= ord(character) < 160 for character in path):
        return "it has control characters"
    return None


def insufficient_space_reason(directory: Path, n_bytes: int) -> str | None:
    """Return why a file of this size would take the disk space that events need, or None if it may be written.

    Raises OSError when the disk does not answer.
    """
    disk = os.statvfs(directory)
    free = disk.f_bavail * disk.f_frsize
    kept = min(FREE_BYTES_MIN, disk.f_blocks * disk.f_frsize // _FREE_SHARE)
    if free - n_bytes >= kept:
        return None
    return f"{directory} has {free} bytes free, of which {kept} are kept for events; make room"
