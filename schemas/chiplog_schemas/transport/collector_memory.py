"""The collector for which a spool was filled, in a file beside it: an agent that follows delivers to no other one.

    CHIPLOG_DIR/agent/collector    JSON: address, keys, node, is_configured

`chiplog agent --collector` writes it, and removes it with the word `local`; so does `chiplog up --collector local`. An
agent that a training started with CHIPLOG_COLLECTOR writes it too, and removes it once the spool is delivered.
"""

import contextlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from chiplog_schemas.atomic_file import atomic_write

LOCAL = "local"  # in place of an address: the collector of the same CHIPLOG_DIR
_NAME = "collector"
_BYTES_MAX = 16 * 1024  # an address, a path and a name


@dataclass(frozen=True, slots=True)
class RememberedCollector:
    """Where a spool goes. keys, node: of the agent that filled it. is_configured: an operator named it for good."""

    address: str
    keys: str
    node: str
    is_configured: bool


def remember_collector(agent: Path, collector: RememberedCollector) -> None:
    """Keep the collector of a spool. agent: the agent's directory. Raises OSError."""
    atomic_write(agent / _NAME, json.dumps(asdict(collector)).encode(), durable=True)


def forget_collector(agent: Path) -> None:
    """Let the next agent deliver to the collector of its CHIPLOG_DIR."""
    with contextlib.suppress(OSError):
        (agent / _NAME).unlink()


def remembered_collector(agent: Path) -> RememberedCollector | None:
    """Return the collector of a spool; None if it is that of the same CHIPLOG_DIR."""
    try:
        with open(agent / _NAME, "rb") as file:
            found = json.loads(file.read(_BYTES_MAX))
        address, keys, node = found["address"], found["keys"], found["node"]
        if not all(isinstance(text, str) for text in (address, keys, node)):
            return None
        return RememberedCollector(address, keys, node, bool(found["is_configured"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None
