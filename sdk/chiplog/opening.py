"""Open the journal of a run: on disk, else in memory, with the events that every journal begins with."""

import secrets
from typing import Any

from chiplog.complaints import Complaints
from chiplog.promises import PromisingJournal
from chiplog.settings import Settings
from chiplog_schemas.codec import pack
from chiplog_schemas.events import PRODUCER_BYTES, EventKind, encode
from chiplog_schemas.places import check_root


def open_journal(
    settings: Settings, info: dict[str, Any], started_us: int, complaints: Complaints
) -> tuple[PromisingJournal, bool]:
    """Return a published journal whose first event is the identity, and whether it is on disk. Never raises OSError.

    info: what the IDENTITY event says. started_us: µs since the epoch.
    """
    producer = secrets.token_bytes(PRODUCER_BYTES)
    offline = settings.mode == "offline"
    parent = settings.places.local / "offline" if offline else settings.places.journals
    bytes_max = settings.bounds.spool_bytes_max if offline else settings.bounds.journal_bytes_max
    memory = settings.bounds.journal_memory_bytes_max
    packed, first = pack(info), encode(EventKind.IDENTITY, started_us, info)
    try:
        path = parent / producer.hex()
        check_root(settings.places)
        journal = PromisingJournal(path, producer, packed, bytes_max=bytes_max, memory_bytes_max=memory)
        journal.append(first)
        journal.publish()
    except OSError as error:
        message = f"no journal in {parent}: {error}; events are kept in memory only, bounded"
        complaints.warn_once(("disk", ""), message)
        journal = PromisingJournal(None, producer, packed, bytes_max=memory)
        journal.append(first)
        journal.append(encode(EventKind.NOTICE, started_us, "journal_memory", "warning", message[:500], {}))
        return journal, False
    return journal, True
