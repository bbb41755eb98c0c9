"""Open the journal of a run, on disk or else in memory, with the first events of every journal."""

import errno
import secrets
from collections.abc import Callable
from typing import Any

from chiplog.journal.journal import Journal
from chiplog_schemas.codec import pack
from chiplog_schemas.limit_settings import Limits
from chiplog_schemas.model.events import PRODUCER_BYTES, EventKind, encode
from chiplog_schemas.paths import Paths, check_root

_REMEDY = "set dir= or CHIPLOG_DIR to a directory that this user can write"
_MORE_SPACE = "free space there, or set dir= or CHIPLOG_DIR to a directory on another disk"
_MORE_FILES = "allow this process more open files (ulimit -n)"
_REMEDIES = {
    errno.ENOSPC: _MORE_SPACE,
    errno.EDQUOT: _MORE_SPACE,
    errno.EMFILE: _MORE_FILES,
    errno.ENFILE: _MORE_FILES,
}


def open_journal(
    places: Paths, mode: str, limits: Limits, info: dict[str, Any], started_us: int, warn: Callable[[str], object]
) -> tuple[Journal, bool]:
    """Return a published journal whose first event is the identity, and whether it is on disk. Never raises OSError.

    info: the fields of the IDENTITY event. started_us: µs since the epoch. warn: called if it is not on disk.
    """
    producer = secrets.token_bytes(PRODUCER_BYTES)
    offline = mode == "offline"
    parent = places.local / "offline" if offline else places.journals
    bytes_max = limits.spool_bytes_max if offline else limits.journal_bytes_max
    memory = limits.journal_memory_bytes_max
    packed, first = pack(info), encode(EventKind.IDENTITY, started_us, info)

    def open_on_disk() -> Journal:
        check_root(places)
        journal = Journal(parent / producer.hex(), producer, packed, bytes_max=bytes_max, memory_bytes_max=memory)
        journal.append(first)
        journal.publish()
        return journal

    try:
        try:
            journal = open_on_disk()
        except OSError:  # perhaps the system lacked a mapping or a descriptor only at this moment
            journal = open_on_disk()  # safeguard: journal-tried-twice
    except OSError as error:  # safeguard: memory-without-journal
        message = f"no journal in {parent}: {_reason(error)}; events are kept in memory only, bounded, and end with"
        message = f"{message} this process unless an agent takes them; {_REMEDIES.get(error.errno or 0, _REMEDY)}"
        warn(message)
        journal = Journal(None, producer, packed, bytes_max=memory)
        journal.append(first)
        journal.append(encode(EventKind.NOTICE, started_us, "journal_memory", "warning", message[:500], {}))
        return journal, False
    return journal, True


def _reason(error: OSError) -> str:
    return f"{error.strerror} ({error.filename})" if error.strerror and error.filename else str(error)
