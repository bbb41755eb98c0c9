"""The file of an index in its place below a CHIPLOG_DIR, and the files that were set aside."""

from pathlib import Path

from chiplog_schemas.paths import Paths
from chiplog_schemas.storage.watermark import Watermark
from tests.support.index import Index
from tests.support.sample_log import place_of


def never(wait_s: float) -> bool:
    return False


def put(index: Index) -> Paths:
    """Make the index, caught up, the one of a CHIPLOG_DIR, with the receiver's synced position."""
    limit = index.log.next_number
    place = place_of(index)
    Watermark(place.collector / "synced", writable=True).set(limit)
    return place


def set_aside_files(place: Paths) -> list[Path]:
    return sorted(place.collector.glob("index.duckdb.set-aside-*"))
