"""Media in a database that a test writes: their events, and contents as a collector stores them."""

import hashlib
from pathlib import Path
from typing import Any

from chiplog import Table
from chiplog_schemas.codec import pack
from chiplog_schemas.model.events import EventKind
from chiplog_schemas.storage.content_files import content_path
from chiplog_schemas.storage.record import Kind
from tests.support.collector_log import Rank


def store_content(files: Path, data: bytes) -> tuple[int, bytes]:
    """Store a content, and return the record that says so. files: the collector's."""
    digest = hashlib.sha256(data).digest()
    path = content_path(files, digest)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return Kind.STORED, pack([b"S" * 16, digest, len(data)])


def log_table(rank: Rank, step: int, key: str, rows: list[dict[str, Any]], ts: int | None = None, **more: Any) -> bytes:
    """Log a table, and return its content. more: of its metadata."""
    content = Table(data=rows).to_content()
    metadata = ", ".join(f'"{name}": {value}' for name, value in more.items())
    digest = hashlib.sha256(content.data).digest()
    rank.say(EventKind.MEDIA, step, key, "table", digest, len(content.data), f"{{{metadata}}}", ts=ts)
    return content.data
