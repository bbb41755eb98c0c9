"""What another decision about the node's own disk left behind: journals, a spool and saved files in a former place.

An earlier version kept them in CHIPLOG_DIR on file systems that it took for local. CHIPLOG_LOCAL_DIR may have been set
or unset. The agent moves them to the present place (`former_place.py` there); here is what people read about it.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from chiplog_schemas.atomic_file import atomic_write
from chiplog_schemas.file_systems import LOCAL_FILE_SYSTEMS, VOLATILE_FILE_SYSTEMS, file_system_type
from chiplog_schemas.paths import LOCAL_DIR, Paths
from chiplog_schemas.storage.content_files import list_contents
from chiplog_schemas.storage.journal_dir import list_journals
from chiplog_schemas.storage.segment_format import list_segments

MOVING = ".moving-"  # begins the name of a journal or a spool that an agent has begun to move
_MOVED, _FAULT = ".reported-moved", ".reported-volatile"  # in `local`: each line is printed once per node


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What a former place has for an agent to move."""

    place: Path
    n_journals: int
    has_spool: bool
    n_files: int

    def __bool__(self) -> bool:
        return bool(self.n_journals or self.has_spool or self.n_files)

    def __str__(self) -> str:
        parts = []
        if self.n_journals:
            parts.append(f"{self.n_journals} journal{'' if self.n_journals == 1 else 's'}")
        if self.has_spool:
            parts.append("a spool")
        if self.n_files:
            parts.append(f"{self.n_files} saved file{'' if self.n_files == 1 else 's'}")
        return f"{', '.join(parts)} in {self.place}"


def find_leftovers(places: Paths) -> list[Leftovers]:
    """Return what the former places of a CHIPLOG_DIR still have. It only reads."""
    found = []
    for place in places.former:
        try:
            n_journals = len(list_journals(place / "journals"))
            n_journals += sum(1 for _ in (place / "journals").glob(f"{MOVING}*"))
            spools = (place / "agent" / "spool", place / "agent" / f"{MOVING}spool")
            has_spool = any(map(list_segments, spools))
            left = Leftovers(place, n_journals, has_spool, len(list_contents(place / "outbox")))
        except OSError:
            continue  # another user's
        if left:
            found.append(left)
    return found


def why_elsewhere(places: Paths) -> str:
    """Return why journals and spool are not in CHIPLOG_DIR; '' if they are."""
    if places.local == places.root:
        return ""
    if os.environ.get(LOCAL_DIR):
        return f"by {LOCAL_DIR}"
    return (
        f"because {places.root} is on {file_system_type(places.root) or 'a file system'}, which other nodes may share"
    )


def new_notices(places: Paths) -> list[str]:
    """Return lines about the place of journals and spool that no process of this node has printed yet.

    One when an earlier decision had them elsewhere, with what is left there. One when the present place is volatile, or
    may be shared itself.
    """
    notices = []
    if any((place / "journals").is_dir() for place in places.former) and _is_first(places, _MOVED):
        where = f"journals, spool and sockets are now in {places.local}"
        why = f" {why_elsewhere(places)}" if why_elsewhere(places) else ""
        left = find_leftovers(places)
        moves = f"; an agent moves what was left: {'; '.join(map(str, left))}" if left else ""
        notices.append(f"{where}{why}{moves}; {LOCAL_DIR} chooses the place")
    if (fault := _fault_of_substitute(places)) and _is_first(places, _FAULT):
        what = (
            f"journals and spool are in {places.local} on {file_system_type(places.local) or 'a file system'}, {fault}"
        )
        notices.append(f"{what}, {why_elsewhere(places)}; set {LOCAL_DIR} to a directory on a disk of this node")
    return notices


def _fault_of_substitute(places: Paths) -> str:
    """Return why the place that is used instead of CHIPLOG_DIR is no disk of this node; '' if it is, or the user's."""
    if places.local == places.root:
        return ""
    kind = file_system_type(places.local)
    if kind in VOLATILE_FILE_SYSTEMS:
        return "which ends with this container or boot"
    return "" if kind in LOCAL_FILE_SYSTEMS or os.environ.get(LOCAL_DIR) else "which other nodes may share too"


def _is_first(places: Paths, name: str) -> bool:
    try:
        atomic_write(places.local / name, b"", replaces=False)
    except OSError:
        return False  # another process has printed it, or nothing can be written here, which is reported elsewhere
    return True
