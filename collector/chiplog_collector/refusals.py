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
