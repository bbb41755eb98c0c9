"""An agent's report on its link to the collector, in a file for `chiplog status` and `chiplog doctor`.

One JSON object: state, text, pid, at_us. It is valid only while the agent that wrote it lives. It is replaced as a
whole, so that no reader finds half of it.
"""

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from chiplog_schemas.atomic_file import atomic_write
from chiplog_schemas.clock import now_us

_BYTES_MAX = 64 * 1024  # of a file that any user may have written; an agent's has one line


class LinkState(StrEnum):
    """The state of the link."""

    CONNECTING = "connecting"  # since the agent's start no collector has answered, and none has refused
    OPEN = "open"
    REFUSING = "refusing"  # open, and the collector keeps events of this agent without applying them
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class LinkStatus:
    """One report. text: for people. pid: the agent's. at_us: when the state changed, since the epoch."""

    state: LinkState
    text: str
    pid: int
    at_us: int


def write_link_status(path: Path, state: LinkState, text: str) -> None:
    """Replace the report of this process. Raises OSError."""
    atomic_write(path, json.dumps(asdict(LinkStatus(state, text, os.getpid(), now_us()))).encode())


def read_link_status(path: Path, pid: int) -> LinkStatus | None:
    """Return the report of the agent with this PID; None without one, or with only one of an earlier agent."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.loads(file.read(_BYTES_MAX))
        status = LinkStatus(LinkState(found["state"]), str(found["text"]), found["pid"], found["at_us"])
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return status if status.pid == pid else None  # safeguard: link-report-of-live-agent


def remove_link_status(path: Path) -> None:
    """Remove the report of an agent that ends."""
    with contextlib.suppress(OSError):
        path.unlink()
