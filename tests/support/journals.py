"""What is in the journals of ranks, read without a lock."""

from pathlib import Path
from typing import Any, NamedTuple

from chiplog_schemas.model.events import FIELDS, decode
from chiplog_schemas.storage.journal_dir import JournalReader, list_journals
from chiplog_schemas.storage.record import Record


class Event(NamedTuple):
    """One event of a journal."""

    producer: bytes
    seq: int
    kind: int
    ts: int
    fields: dict[str, Any]


def read_events(journals: Path) -> list[Event]:
    """Return every event of every journal in a directory, by producer and seq. Takes no lock."""
    events = []
    for producer, directory in list_journals(journals):
        for item in JournalReader(directory).records():
            assert isinstance(item, Record), item
            kind, ts, *values = decode(item.payload)
            names = [name for name, _ in FIELDS[kind]]
            events.append(Event(producer, item.number, kind, ts, dict(zip(names, values, strict=True))))
    return events
