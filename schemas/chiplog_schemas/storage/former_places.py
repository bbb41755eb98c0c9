"""What another decision about the node's own disk left behind: journals, a spool and saved files in a former place.

An earlier version kept them in CHIPLOG_DIR on file systems that it took for local. CHIPLOG_LOCAL_DIR may have been set
or unset. The agent moves them to the present place (`former_place.py` there); here is what people read about it.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from chiplog_schemas.atomic_file import atomic_write
from chiplog_schemas.file_systems import VOLATILE_FILE_SYSTEMS, file_system_type
from chiplog_schemas.paths import LOCAL_DIR, Paths
from chiplog_schemas.storage.content_files import list_contents
from chiplog_schemas.storage.journal_dir import list_journals
from chiplog_schemas.storage.segment_format import list_segments

MOVING = ".moving-"  # begins the name of a journal or a spool that an agent has begun to move
_MOVED, _VOLATILE = ".reported-moved", ".reported-volatile"  # in `local`: each line is printed once per node


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

    One when another place still has journals, a spool or files; one when the present place is volatile.
    """
    notices = []
    if places.former and (left := find_leftovers(places)) and _is_first(places, _MOVED):
        where = f"journals, spool and sockets are now in {places.local}"
        why = f" {why_elsewhere(places)}" if why_elsewhere(places) else ""
        what = "; ".join(map(str, left))
        notices.append(f"{where}{why}; an agent moves what was left: {what}; {LOCAL_DIR} chooses the place")
    if places.local != places.root:
        kind = file_system_type(places.local)
        if kind in VOLATILE_FILE_SYSTEMS and _is_first(places, _VOLATILE):
            what = f"journals and spool are in {places.local} on {kind}, which ends with this container or boot"
            notices.append(f"{what}, {why_elsewhere(places)}; set {LOCAL_DIR} to a directory on a disk of this node")
    return notices


def _is_first(places: Paths, name: str) -> bool:
    try:
        atomic_write(places.local / name, b"", replaces=False)
    except OSError:
        return False  # another process has printed it, or nothing can be written here, which is reported elsewhere
    return True
