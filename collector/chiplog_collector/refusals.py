"""How many events of each agent the index keeps without applying them, in a file from the index to the receiver.

The receiver reports it to each agent, for `chiplog status` and `chiplog doctor`. The index rewrites it at its start.
"""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from chiplog_schemas.atomic_file import atomic_write

NAME = "refused"  # next to the log
# Per sender; above it the sender gets no credit, and its spool keeps the rest. Each takes some hundred bytes of memory.
RECORDS_MAX = 100_000
_BYTES_MAX = 16 << 20  # of a file with as many senders as a receiver keeps
_log = logging.getLogger("chiplog.index")


class Refused(NamedTuple):
    """The refused events of one sender."""

    events: int
    records: int


def write_refused(path: Path, counts: Mapping[bytes, Refused]) -> None:
    """Replace the file. If the disk refuses, log it; the next change writes the file again."""
    try:
        atomic_write(path, json.dumps({sender.hex(): list(count) for sender, count in counts.items()}).encode())
    except OSError as error:
        _log.warning("refusals cannot be reported to the agents: %s", error)


def read_refused(path: Path) -> dict[bytes, Refused]:
    """Return the content of the file; nothing if it is absent or cannot be read."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.loads(file.read(_BYTES_MAX))
        return {
            bytes.fromhex(sender): Refused(int(events), int(records)) for sender, (events, records) in found.items()
        }
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


class RefusedEvents:
    """Counts what is refused from now on. The file has only what is kept: it shrinks once a key admits events."""

    def __init__(self) -> None:
        self.n_refused = 0
        self._kept: dict[bytes, int] | None = None  # by sender

    @property
    def n_kept(self) -> int:
        """How many events are kept now without being applied."""
        return sum((self._kept or {}).values())

    def note(self, counts: Mapping[bytes, Refused]) -> None:
        """Note what is kept now. The first time it is what was refused before this start."""
        former, self._kept = self._kept, {sender: refused.events for sender, refused in counts.items()}
        if former is not None:
            self.n_refused += sum(max(0, events - former.get(sender, 0)) for sender, events in self._kept.items())
